//! Watching a bucket: its whole state, then every change, in order.
//!
//! After any interruption the whole bucket is read again and what was seen before is skipped by
//! its revision. That also finds keys whose delete came and went while nobody was looking: a
//! tombstone or marker lives only for a while. Such a key is reported as expired.

use std::collections::{HashMap, HashSet};

use async_nats::Message;
use tokio::sync::mpsc;

use crate::lease::{Bucket, Content, Entry, Revision, content, key_in};
use crate::ordered::{Reader, Source, Start, Step};
use crate::requests::Delivered;

/// Events waiting to be taken; more make the server wait.
const EVENTS_MAX: usize = 1_024;
/// Messages under way from the server.
const WINDOW: usize = 1_000;

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A key has this content now. Revisions never go back, except after a [`Event::Stale`] for a
    /// bucket that was deleted and made anew.
    Change(Entry),
    /// Everything stored until now has been reported.
    Current,
    /// The view may be behind until the next [`Event::Current`].
    Stale,
}

/// A running watch. Ends when dropped.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Event>,
}

impl Watch {
    /// The next event. None only when the program is ending. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Appends what is there, at least one and at most `limit` events. Returns how many; zero
    /// only when the program is ending. Dropping the future loses nothing.
    pub async fn next_many(&mut self, buffer: &mut Vec<Event>, limit: usize) -> usize {
        self.events.recv_many(buffer, limit).await
    }
}

impl Bucket {
    /// Watches all keys. Nothing is missing if the bucket cannot be reached yet: the watch begins
    /// when it can.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch_keys(">")
    }

    /// Watches the keys that match `filter` (`*` is one token, `>` the rest), for example
    /// `acme.*`.
    #[must_use]
    pub fn watch_keys(&self, filter: &str) -> Watch {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let source = Source {
            stream: self.stream(),
            filter: self.subject(filter),
            headers_only: false,
            window: WINDOW,
        };
        let reader = Reader::new(self.nats().clone(), source);
        // Owned by the returned value: the task ends when the receiver goes.
        tokio::spawn(run(reader, View::new(self.name()), sender));
        Watch { events }
    }
}

async fn run(mut reader: Reader, mut view: View, sender: mpsc::Sender<Event>) {
    let mut events = Vec::new();
    'running: loop {
        let step = tokio::select! {
            step = reader.step(Start::First) => step,
            () = sender.closed() => break,
        };
        view.apply(step, &mut events);
        for event in events.drain(..) {
            if sender.send(event).await.is_err() {
                break 'running;
            }
        }
    }
    reader.close().await;
}

/// What has been reported so far.
#[derive(Debug)]
struct View {
    bucket: String,
    /// Highest revision reported.
    last: u64,
    /// Keys reported as live, with the revision: needed to notice that one is gone.
    live: HashMap<String, u64>,
    /// While reading everything: the keys that are still there.
    reading: Option<HashSet<String>>,
}

impl View {
    fn new(bucket: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            last: 0,
            live: HashMap::new(),
            reading: None,
        }
    }

    fn apply(&mut self, step: Step, events: &mut Vec<Event>) {
        match step {
            Step::Opened { recreated, pending } => {
                if recreated {
                    self.last = 0;
                }
                self.reading = Some(HashSet::new());
                if pending == 0 {
                    self.caught_up(events);
                }
            }
            Step::Message(message, delivered) => {
                self.message(message, delivered, events);
                if delivered.pending == 0 {
                    self.caught_up(events);
                }
            }
            // The last pending message may have gone before it was delivered.
            Step::Idle => self.caught_up(events),
            Step::Lost => {
                self.reading = None;
                events.push(Event::Stale);
            }
        }
    }

    fn message(&mut self, message: Message, delivered: Delivered, events: &mut Vec<Event>) {
        let Some(key) = key_in(&message.subject, &self.bucket).map(str::to_owned) else {
            return;
        };
        let content = content(message.headers.as_ref(), message.payload);
        let is_live = matches!(content, Content::Live(_));
        if let Some(present) = &mut self.reading {
            if is_live {
                present.insert(key.clone());
            } else {
                present.remove(&key);
            }
        }
        if delivered.stream_seq <= self.last {
            return;
        }
        self.last = delivered.stream_seq;
        if is_live {
            self.live.insert(key.clone(), self.last);
        } else {
            self.live.remove(&key);
        }
        events.push(Event::Change(Entry {
            key,
            revision: Revision(delivered.stream_seq),
            stored_ms: delivered.stored_ms,
            content,
        }));
    }

    fn caught_up(&mut self, events: &mut Vec<Event>) {
        let Some(present) = self.reading.take() else {
            return;
        };
        let mut gone: Vec<_> = self
            .live
            .extract_if(|key, _| !present.contains(key))
            .collect();
        gone.sort_by_key(|(_, revision)| *revision);
        events.extend(gone.into_iter().map(|(key, revision)| {
            Event::Change(Entry {
                key,
                revision: Revision(revision),
                stored_ms: 0,
                content: Content::Expired,
            })
        }));
        events.push(Event::Current);
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    /// A view together with what it reported.
    struct Watched {
        view: View,
        events: Vec<Event>,
    }

    impl Watched {
        fn new() -> Self {
            Self {
                view: View::new("b"),
                events: Vec::new(),
            }
        }

        fn open(&mut self, pending: u64) -> &mut Self {
            self.step(Step::Opened {
                recreated: false,
                pending,
            })
        }

        fn step(&mut self, step: Step) -> &mut Self {
            self.view.apply(step, &mut self.events);
            self
        }

        /// A message: `+` put, `-` tombstone, `!` expiry marker.
        fn message(&mut self, seq: u64, kind: char, key: &str, pending: u64) -> &mut Self {
            let mut headers = HeaderMap::new();
            match kind {
                '+' => {}
                '-' => headers.insert("KV-Operation", "DEL"),
                _ => headers.insert("Nats-Marker-Reason", "MaxAge"),
            }
            let message = Message {
                subject: format!("$KV.b.{key}").into(),
                reply: None,
                payload: Default::default(),
                headers: Some(headers),
                status: None,
                description: None,
                length: 0,
            };
            let delivered = Delivered {
                stream_seq: seq,
                consumer_seq: seq,
                count: 1,
                stored_ms: 7,
                pending,
            };
            self.step(Step::Message(message, delivered))
        }

        fn take(&mut self) -> Vec<String> {
            let tell = |event: Event| match event {
                Event::Change(entry) => match entry.content {
                    Content::Live(_) => format!("+{}@{}", entry.key, entry.revision),
                    Content::Deleted(_) => format!("-{}@{}", entry.key, entry.revision),
                    Content::Expired => format!("!{}@{}", entry.key, entry.revision),
                },
                Event::Current => "current".to_owned(),
                Event::Stale => "stale".to_owned(),
            };
            self.events.drain(..).map(tell).collect()
        }
    }

    #[test]
    fn an_empty_bucket_is_current_at_once() {
        assert_eq!(Watched::new().open(0).take(), ["current"]);
    }

    #[test]
    fn the_state_comes_first_then_current_then_changes() {
        let mut watched = Watched::new();
        watched
            .open(2)
            .message(3, '+', "a", 1)
            .message(5, '-', "b", 0);
        assert_eq!(watched.take(), ["+a@3", "-b@5", "current"]);
        watched.message(6, '!', "a", 0).message(7, '+', "b", 0);
        assert_eq!(watched.take(), ["!a@6", "+b@7"]);
    }

    #[test]
    fn reading_again_skips_what_was_reported_and_reports_what_was_missed() {
        let mut watched = Watched::new();
        watched
            .open(2)
            .message(1, '+', "a", 1)
            .message(2, '+', "b", 0)
            .step(Step::Lost);
        watched.take();
        watched
            .open(3)
            .message(1, '+', "a", 2)
            .message(3, '+', "b", 1)
            .message(4, '+', "c", 0);
        assert_eq!(watched.take(), ["+b@3", "+c@4", "current"]);
    }

    #[test]
    fn a_key_that_vanished_without_a_trace_is_reported_as_expired() {
        let mut watched = Watched::new();
        watched
            .open(2)
            .message(1, '+', "a", 1)
            .message(2, '+', "b", 0)
            .step(Step::Lost);
        watched.take();
        watched.open(1).message(2, '+', "b", 0);
        assert_eq!(watched.take(), ["!a@1", "current"]);
        watched.step(Step::Lost).take();
        watched.open(0);
        assert_eq!(watched.take(), ["!b@2", "current"]);
    }

    #[test]
    fn idleness_ends_the_first_reading_if_the_last_message_went_away() {
        let mut watched = Watched::new();
        watched
            .open(2)
            .message(1, '+', "a", 1)
            .step(Step::Idle)
            .step(Step::Idle);
        assert_eq!(watched.take(), ["+a@1", "current"]);
    }

    #[test]
    fn a_bucket_made_anew_is_reported_from_its_first_revision() {
        let mut watched = Watched::new();
        watched.open(1).message(9, '+', "a", 0).step(Step::Lost);
        watched.take();
        watched
            .step(Step::Opened {
                recreated: true,
                pending: 1,
            })
            .message(1, '+', "b", 0);
        assert_eq!(watched.take(), ["+b@1", "!a@9", "current"]);
    }

    #[test]
    fn an_interrupted_reading_does_not_report_keys_as_gone() {
        let mut watched = Watched::new();
        watched
            .open(2)
            .message(1, '+', "a", 1)
            .message(2, '+', "b", 0)
            .step(Step::Lost);
        watched.take();
        watched.open(2).message(1, '+', "a", 1).step(Step::Lost);
        assert_eq!(watched.take(), ["stale"]);
    }
}
