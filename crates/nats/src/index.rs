//! The headers of every message of a stream, in sequence order: a picture of the backlog.
//!
//! Bodies stay on the server. After an interruption reading goes on behind the last sequence;
//! deletions are not reported (whoever deletes knows). A stream that was deleted and made anew is
//! announced, because its sequences mean other messages.

use async_nats::{HeaderMap, Message};
use tokio::sync::mpsc;

use crate::client::Nats;
use crate::ordered::{Reader, Source, Start, Step};
use crate::requests::Delivered;

/// Events waiting to be taken; more make the server wait.
const EVENTS_MAX: usize = 4_096;
/// Messages under way from the server.
const WINDOW: usize = 4_000;

/// One message without its body.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexItem {
    /// Sequence in the stream; strictly increasing.
    pub seq: u64,
    /// Subject it was published to.
    pub subject: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Size of the body, bytes.
    pub size: u64,
    /// When the server stored it, unix milliseconds.
    pub stored_ms: u64,
}

/// What an index reports.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexEvent {
    /// The next message.
    Item(IndexItem),
    /// Everything stored until now has been reported.
    Current,
    /// The picture may be behind until the next [`IndexEvent::Current`].
    Stale,
    /// Forget everything: this is another stream than before.
    Reset,
}

/// A running index. Ends when dropped.
#[derive(Debug)]
pub struct Index {
    events: mpsc::Receiver<IndexEvent>,
}

impl Index {
    /// The next event. None only when the program is ending. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<IndexEvent> {
        self.events.recv().await
    }

    /// Appends what is there, at least one and at most `limit` events. Returns how many; zero
    /// only when the program is ending. Dropping the future loses nothing.
    pub async fn next_many(&mut self, buffer: &mut Vec<IndexEvent>, limit: usize) -> usize {
        self.events.recv_many(buffer, limit).await
    }
}

impl Nats {
    /// Reads the headers of all messages of `stream` on subjects that match `filter`, from the
    /// first one on.
    #[must_use]
    pub fn index(&self, stream: &str, filter: &str) -> Index {
        self.index_from(Start::First, stream, filter)
    }

    /// The same, from those on that were stored at `since`, in unix milliseconds.
    #[must_use]
    pub fn index_since(&self, stream: &str, filter: &str, since: u64) -> Index {
        self.index_from(Start::Since(since), stream, filter)
    }

    fn index_from(&self, first: Start, stream: &str, filter: &str) -> Index {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let source = Source {
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            headers_only: true,
            window: WINDOW,
        };
        let reader = Reader::new(self.clone(), source);
        // Owned by the returned value: the task ends when the receiver goes.
        tokio::spawn(run(reader, first, sender));
        Index { events }
    }
}

async fn run(mut reader: Reader, first: Start, sender: mpsc::Sender<IndexEvent>) {
    let mut picture = Picture::default();
    let mut events = Vec::new();
    'running: loop {
        let step = tokio::select! {
            step = reader.step(picture.start(first)) => step,
            () = sender.closed() => break,
        };
        picture.apply(step, &mut events);
        for event in events.drain(..) {
            if sender.send(event).await.is_err() {
                break 'running;
            }
        }
    }
    reader.close().await;
}

/// How far the stream has been reported.
#[derive(Debug, Default)]
struct Picture {
    last: u64,
    is_current: bool,
}

impl Picture {
    /// Where to go on reading.
    fn start(&self, first: Start) -> Start {
        match self.last {
            0 => first,
            last => Start::After(last),
        }
    }

    fn apply(&mut self, step: Step, events: &mut Vec<IndexEvent>) {
        match step {
            Step::Opened { recreated, pending } => {
                if recreated {
                    self.last = 0;
                    events.push(IndexEvent::Reset);
                }
                if pending == 0 {
                    self.caught_up(events);
                }
            }
            Step::Message(message, delivered) => {
                if delivered.stream_seq > self.last {
                    self.last = delivered.stream_seq;
                    events.push(IndexEvent::Item(item(message, delivered)));
                }
                if delivered.pending == 0 {
                    self.caught_up(events);
                }
            }
            // The last pending message may have been deleted before it was delivered.
            Step::Idle => self.caught_up(events),
            Step::Lost => {
                self.is_current = false;
                events.push(IndexEvent::Stale);
            }
        }
    }

    fn caught_up(&mut self, events: &mut Vec<IndexEvent>) {
        if !self.is_current {
            self.is_current = true;
            events.push(IndexEvent::Current);
        }
    }
}

fn item(message: Message, delivered: Delivered) -> IndexItem {
    let headers = message.headers.unwrap_or_default();
    let size = headers
        .get("Nats-Msg-Size")
        .and_then(|size| size.as_str().parse().ok());
    IndexItem {
        seq: delivered.stream_seq,
        subject: message.subject.to_string(),
        size: size.unwrap_or(0),
        headers,
        stored_ms: delivered.stored_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: u64, pending: u64) -> Step {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Size", "12");
        let message = Message {
            subject: "s".into(),
            reply: None,
            payload: Default::default(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        };
        let delivered = Delivered {
            stream_seq: seq,
            consumer_seq: 1,
            count: 1,
            stored_ms: 0,
            pending,
        };
        Step::Message(message, delivered)
    }

    fn tell(steps: impl IntoIterator<Item = Step>) -> Vec<String> {
        let mut picture = Picture::default();
        let mut events = Vec::new();
        for step in steps {
            picture.apply(step, &mut events);
        }
        let tell = |event: IndexEvent| match event {
            IndexEvent::Item(item) => format!("{}:{}", item.seq, item.size),
            IndexEvent::Current => "current".to_owned(),
            IndexEvent::Stale => "stale".to_owned(),
            IndexEvent::Reset => "reset".to_owned(),
        };
        events.into_iter().map(tell).collect()
    }

    const fn opened(recreated: bool, pending: u64) -> Step {
        Step::Opened { recreated, pending }
    }

    #[test]
    fn items_come_in_order_and_current_comes_once() {
        let told = tell([
            opened(false, 2),
            message(4, 1),
            message(9, 0),
            message(10, 0),
            Step::Idle,
        ]);
        assert_eq!(told, ["4:12", "9:12", "current", "10:12"]);
    }

    #[test]
    fn after_an_interruption_nothing_is_reported_twice() {
        let told = tell([
            opened(false, 1),
            message(4, 0),
            Step::Lost,
            opened(false, 2),
            message(4, 1),
            message(5, 0),
        ]);
        assert_eq!(told, ["4:12", "current", "stale", "5:12", "current"]);
    }

    #[test]
    fn a_new_stream_under_the_old_name_starts_over() {
        let told = tell([
            opened(false, 1),
            message(9, 0),
            Step::Lost,
            opened(true, 1),
            message(1, 0),
        ]);
        assert_eq!(
            told,
            ["9:12", "current", "stale", "reset", "1:12", "current"]
        );
    }

    #[test]
    fn idleness_means_current_if_the_last_message_went_away() {
        assert_eq!(
            tell([opened(false, 3), message(1, 2), Step::Idle]),
            ["1:12", "current"]
        );
    }
}
