//! Following jobs to their end: headers of all changes, bodies of the few that matter.
//!
//! Changes are read in order and without gaps, and every record carries its phase in a header, so a job costs one read
//! of a body: that of its end. A slow sweep looks at jobs nothing was heard of; it finds those that share the
//! outcome of another job, and repeats reads that failed.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::records::{RecordError, Records};
use fairlane_nats::{Index, IndexEvent, Nats};
use fairlane_runtime::drain::Signal;
use fairlane_wire::{Namespace, Phase, header};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, select_all, unfold};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};

use super::book::{Book, Seen};
use super::progress::Progress;

/// Bodies read at once, and keys waiting for that; more make the changes wait.
const READS_MAX: usize = 32;
const QUEUE_MAX: usize = 4_096;
/// One index for each tenant up to this number, and one for everybody beyond.
const INDEXES_MAX: usize = 8;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Jobs that have not ended looked at in one sweep.
const SWEEP_MAX: usize = 256;
/// Sweeps without any change after which we say what may be missing.
const QUIET_SWEEPS: u32 = 10;

/// How following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// Every job has ended.
    Complete,
    TimedOut,
    Interrupted,
}

/// Follows until every job of `book` has ended, `deadline`, or a signal.
pub(crate) async fn follow(
    nats: &Nats,
    book: &mut Book,
    deadline: Option<Instant>,
    signals: &mut mpsc::Receiver<Signal>,
    progress: &mut Progress,
) -> Followed {
    let mut changes = changes(nats, book);
    let mut follower = Follower::new(nats, book);
    let mut sweep = interval(SWEEP_EVERY);
    sweep.tick().await;
    while !follower.book.is_complete() {
        follower.start_reads();
        tokio::select! {
            Some(read) = follower.reads.next(), if !follower.reads.is_empty() => follower.read(read),
            Some(event) = changes.next(), if follower.queue.len() < QUEUE_MAX => follower.change(event),
            _ = sweep.tick() => follower.sweep(progress).await,
            () = until(deadline) => return Followed::TimedOut,
            Some(_) = signals.recv() => return Followed::Interrupted,
        }
        progress.show(follower.book);
    }
    Followed::Complete
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// All changes of records of the tenants concerned.
fn changes(nats: &Nats, book: &Book) -> BoxStream<'static, IndexEvent> {
    let bucket = nats.names.status_bucket();
    let stream = format!("KV_{bucket}");
    let filters: Vec<String> = if book.tenants.len() <= INDEXES_MAX {
        let tenants = book.tenants.keys();
        tenants
            .map(|tenant| Namespace::kv_subject(&bucket, &format!("{tenant}.*")))
            .collect()
    } else {
        vec![Namespace::kv_subject(&bucket, ">")]
    };
    let each = filters
        .iter()
        .map(|filter| events(nats.index(&stream, filter)));
    select_all(each).boxed()
}

fn events(index: Index) -> BoxStream<'static, IndexEvent> {
    unfold(index, |mut index| async move {
        let event = index.next().await?;
        Some((event, index))
    })
    .boxed()
}

type Read = (String, Result<Option<Seen>, RecordError>);

struct Follower<'a> {
    nats: &'a Nats,
    records: Records,
    prefix: String,
    book: &'a mut Book,
    queue: VecDeque<String>,
    /// What is in the queue or being read.
    wanted: HashSet<String>,
    /// Changed again while it was being read.
    again: HashSet<String>,
    reads: FuturesUnordered<BoxFuture<'static, Read>>,
    submissions_are_taken: bool,
    quiet_sweeps: u32,
    advised: bool,
}

impl<'a> Follower<'a> {
    fn new(nats: &'a Nats, book: &'a mut Book) -> Self {
        Self {
            nats,
            // Only reads: how long records are kept does not matter.
            records: Records::new(nats, Duration::ZERO),
            prefix: Namespace::kv_subject(&nats.names.status_bucket(), ""),
            book,
            queue: VecDeque::new(),
            wanted: HashSet::new(),
            again: HashSet::new(),
            reads: FuturesUnordered::new(),
            submissions_are_taken: false,
            quiet_sweeps: 0,
            advised: false,
        }
    }

    fn change(&mut self, event: IndexEvent) {
        match event {
            IndexEvent::Item(item) => {
                let Some(key) = item.subject.strip_prefix(&self.prefix) else {
                    return;
                };
                let phase = item.headers.get(header::PHASE);
                let phase = phase.and_then(|word| Phase::parse(word.as_str()));
                if self.book.glimpse(key, phase) {
                    self.want(key.to_owned());
                }
            }
            // The bucket is a new one: none of its records is older than we are.
            IndexEvent::Reset => self.book.baseline = 0,
            IndexEvent::Current | IndexEvent::Stale => {}
        }
    }

    fn want(&mut self, key: String) {
        if self.wanted.contains(&key) {
            self.again.insert(key);
            return;
        }
        self.wanted.insert(key.clone());
        self.queue.push_back(key);
    }

    fn start_reads(&mut self) {
        while self.reads.len() < READS_MAX
            && let Some(key) = self.queue.pop_front()
        {
            // What changed before the read begins is in what it reads.
            self.again.remove(&key);
            let records = self.records.clone();
            self.reads.push(Box::pin(async move {
                let seen = read(&records, &key).await;
                (key, seen)
            }));
        }
    }

    fn read(&mut self, (key, seen): Read) {
        self.wanted.remove(&key);
        if self.again.remove(&key) {
            self.want(key.clone());
        }
        match seen {
            Ok(Some(seen)) => {
                let taken = self.submissions_are_taken;
                if let Some(other) = self.book.record(&key, &seen, taken) {
                    self.want(other);
                }
                self.quiet_sweeps = 0;
            }
            // Not there (yet); the sweep asks again.
            Ok(None) => {}
            Err(error) => tracing::debug!(%key, %error, "cannot read a record now"),
        }
    }

    async fn sweep(&mut self, progress: &mut Progress) {
        let intake = match self.intake().await {
            Ok(intake) => intake,
            Err(error) => {
                tracing::debug!(%error, "cannot learn how far the producers are");
                return;
            }
        };
        self.submissions_are_taken |= intake.taken_up_to >= self.book.last_submission;
        let mut keys = self.book.next_open(SWEEP_MAX);
        if self.submissions_are_taken {
            keys.extend(self.book.some_old(QUEUE_MAX));
        }
        for key in keys {
            if !self.wanted.contains(&key) {
                self.want(key);
            }
        }
        self.quiet_sweeps += 1;
        if self.quiet_sweeps >= QUIET_SWEEPS && !self.advised {
            self.advised = true;
            progress.say(if self.submissions_are_taken {
                "no job has ended for a while; are a scheduler and a worker running, and is there room in the limits?"
            } else if intake.nobody_asks {
                "nobody takes submissions; start a producer: fairlane producer"
            } else {
                "the producers are busy; waiting for our turn"
            });
        }
    }

    /// How far the producers have come.
    async fn intake(&self) -> anyhow::Result<Intake> {
        let names = &self.nats.names;
        let consumer: PullConsumer = self
            .nats
            .jetstream
            .get_consumer_from_stream(names.producer_consumer(), names.submit_stream())
            .await?;
        let info = consumer.cached_info();
        let is_idle = info.num_pending == 0 && info.num_ack_pending == 0;
        Ok(Intake {
            taken_up_to: if is_idle {
                info.delivered
                    .stream_sequence
                    .max(self.book.last_submission)
            } else {
                info.ack_floor.stream_sequence
            },
            nobody_asks: info.num_waiting == 0 && info.num_ack_pending == 0,
        })
    }
}

struct Intake {
    /// Every submission up to this sequence was judged.
    taken_up_to: u64,
    nobody_asks: bool,
}

async fn read(records: &Records, key: &str) -> Result<Option<Seen>, RecordError> {
    let parts = key
        .split_once('.')
        .and_then(|(tenant, job)| Some((TenantId::parse(tenant).ok()?, JobId::parse(job).ok()?)));
    let Some((tenant, job)) = parts else {
        return Ok(None);
    };
    let slot = records.get(&tenant, &job).await?;
    Ok(slot.record.map(|record| Seen {
        record,
        revision: slot.revision,
    }))
}
