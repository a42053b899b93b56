//! The parts of an answer, told while it is written to whoever listens.
//!
//! Nobody is waited for: what does not fit into a short queue is left out, and the numbers of the parts
//! tell a listener that something is missing. The answer itself never depends on it.

use std::time::Duration;

use bytes::Bytes;
use fairlane_claude::sse::Event;
use fairlane_nats::{HeaderMap, Nats};
use fairlane_wire::header;
use tokio::sync::mpsc;

/// Events that may wait to be told.
const EVENTS_MAX: usize = 1_024;
/// Events told in one message, and the bytes of one; a larger event is left out.
const TOLD_AT_ONCE: usize = 64;
const TOLD_BYTES: usize = 256 * 1024;
/// How long the last parts may take after the answer is there.
const TAIL: Duration = Duration::from_secs(1);

/// Where the events of a call go in.
#[derive(Debug)]
pub(crate) struct Parts {
    sender: mpsc::Sender<Part>,
    next: u64,
}

/// Where they come out.
#[derive(Debug)]
pub(crate) struct Teller {
    nats: Nats,
    subject: String,
    attempt: String,
    parts: mpsc::Receiver<Part>,
}

#[derive(Debug)]
struct Part {
    number: u64,
    text: String,
}

/// Parts told on `subject` as those of `attempt`.
pub(crate) fn channel(nats: Nats, subject: String, attempt: String) -> (Parts, Teller) {
    let (sender, parts) = mpsc::channel(EVENTS_MAX);
    let teller = Teller {
        nats,
        subject,
        attempt,
        parts,
    };
    (Parts { sender, next: 0 }, teller)
}

impl Parts {
    /// Takes the next event. One that does not fit is left out, but counted.
    pub(crate) fn push(&mut self, event: &Event) {
        let number = self.next;
        self.next += 1;
        if let Ok(room) = self.sender.try_reserve() {
            let text = as_sent(event);
            room.send(Part { number, text });
        }
    }
}

impl Teller {
    /// Tells parts until `call` is over, and then what is left, if that does not take long.
    pub(crate) async fn beside<T>(self, call: impl Future<Output = T>) -> T {
        let mut telling = std::pin::pin!(self.run());
        let mut call = std::pin::pin!(call);
        let done = tokio::select! {
            done = &mut call => done,
            // Ends only when the call has dropped its side.
            () = &mut telling => return call.await,
        };
        if tokio::time::timeout(TAIL, telling).await.is_err() {
            tracing::info!("the last parts of an answer were not told");
        }
        done
    }

    async fn run(mut self) {
        let mut waiting: Vec<Part> = Vec::new();
        loop {
            if waiting.is_empty() && self.parts.recv_many(&mut waiting, TOLD_AT_ONCE).await == 0 {
                return;
            }
            let (first, count) = (waiting[0].number, together(&waiting));
            let text: String = waiting.drain(..count).map(|part| part.text).collect();
            if text.len() <= TOLD_BYTES || text.len() < self.room() {
                self.tell(first, count, text.into()).await;
            }
        }
    }

    fn room(&self) -> usize {
        self.nats
            .client
            .server_info()
            .max_payload
            .saturating_sub(1_024)
    }

    async fn tell(&self, first: u64, count: usize, text: Bytes) {
        let mut headers = HeaderMap::new();
        headers.insert(header::PART, format!("{} {first} {count}", self.attempt));
        let told = self
            .nats
            .client
            .publish_with_headers(self.subject.clone(), headers, text);
        if let Err(error) = told.await {
            tracing::debug!(%error, "cannot tell a part of an answer");
        }
    }
}

/// How many of the waiting parts go into one message: without a gap, and not too large.
fn together(waiting: &[Part]) -> usize {
    let mut bytes = 0;
    let fits = waiting.iter().enumerate().take_while(|(at, part)| {
        bytes += part.text.len();
        *at == 0 || (bytes <= TOLD_BYTES && part.number == waiting[at - 1].number + 1)
    });
    fits.count()
}

/// An event in the form in which it came.
fn as_sent(event: &Event) -> String {
    let mut text = format!("event: {}\n", event.name);
    for line in event.data.split('\n') {
        text += "data: ";
        text += line;
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, bytes: usize) -> Part {
        let text = "x".repeat(bytes);
        Part { number, text }
    }

    #[test]
    fn what_is_told_at_once_has_no_gap_and_is_not_too_large() {
        assert_eq!(together(&[part(3, 9), part(4, 9), part(6, 9)]), 2);
        assert_eq!(together(&[part(0, TOLD_BYTES), part(1, 1)]), 1);
        assert_eq!(together(&[part(0, 2 * TOLD_BYTES), part(1, 1)]), 1);
    }

    #[test]
    fn an_event_is_told_in_the_form_in_which_it_came() {
        let event = Event {
            name: "ping".to_owned(),
            data: "a\nb".to_owned(),
        };
        assert_eq!(as_sent(&event), "event: ping\ndata: a\ndata: b\n\n");
    }
}
