//! Compares what the leader knows with what the server holds, and puts right what differs.
//!
//! The index tells of every job once, and whoever deletes one tells the leader; normally that is all
//! there is. But people delete and purge, streams come back from backups, and programs have bugs. So
//! the number of messages is compared every second. If it is off to the same side several times in a
//! row, and now and then in any case, the counts of all lanes are compared, twice; a lane that differs
//! both times is read again. Jobs that were missed are taken in, those that are gone are dropped. Work in between makes counts differ
//! for moments only, and what it does to a lane that is being read does no harm: a job that is dropped
//! or taken in wrongly is found out the next time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlane_core::JobSeq;
use fairlane_core::scheduler::Event;
use fairlane_nats::{ApiError, IndexEvent, IndexItem, Nats};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::Leader;
use crate::{convert, strangers};

/// Messages are counted this often.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Counts in a row that must be off to the same side before lanes are compared.
const ODD_COUNTS: u32 = 3;
/// Lanes are compared at least this often: what is missing in one may make up for another.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Time between the two comparisons of the lanes.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(2);
/// Lanes read again at a time; others follow.
const LANES_MAX: usize = 16;
/// How long a lane may take to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages that are no jobs which are remembered. Beyond that lanes are compared for nothing.
const STRANGERS_MAX: usize = 10_000;

/// Where the comparison stands.
#[derive(Debug)]
pub(super) struct Reconcile {
    stage: Stage,
    looked_at: Instant,
    /// Counts in a row that were off to the side of `sign`.
    odd: u32,
    sign: Sign,
    /// Messages that are no jobs, with their subjects.
    strangers: BTreeMap<u64, String>,
    /// Messages that are outside of what the leader reads.
    outside: u64,
    /// Subjects that differed at the first look, and how.
    suspects: BTreeMap<String, Sign>,
}

/// More or fewer messages than the leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Even,
    More,
    Fewer,
}

impl Sign {
    fn of(there: u64, known: u64) -> Self {
        match there.cmp(&known) {
            std::cmp::Ordering::Equal => Self::Even,
            std::cmp::Ordering::Greater => Self::More,
            std::cmp::Ordering::Less => Self::Fewer,
        }
    }
}

#[derive(Debug)]
enum Stage {
    Rest(Instant, Next),
    Asking(Asking),
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Count,
    Look,
}

struct Asking(BoxFuture<'static, Answer>);

impl std::fmt::Debug for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asking")
    }
}

/// What the server said.
#[derive(Debug)]
pub(super) enum Answer {
    /// Time to ask the next question.
    Ask(NextQuestion),
    Count(Result<u64, ApiError>),
    Subjects(Result<BTreeMap<String, u64>, ApiError>),
    Lanes(Vec<Difference>),
}

/// Opaque to the loop.
#[derive(Debug)]
pub(super) struct NextQuestion(Next);

/// What is different about one lane.
#[derive(Debug)]
pub(super) struct Difference {
    subject: String,
    missed: Vec<IndexItem>,
    gone: Vec<u64>,
}

impl Reconcile {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Rest(Instant::now() + COUNT_EVERY, Next::Count),
            looked_at: Instant::now(),
            odd: 0,
            sign: Sign::Even,
            strangers: BTreeMap::new(),
            outside: 0,
            suspects: BTreeMap::new(),
        }
    }

    /// Notes a message that is no job.
    pub(super) fn stranger(&mut self, item: &IndexItem) {
        if self.strangers.len() < STRANGERS_MAX {
            self.strangers.insert(item.seq, item.subject.clone());
        }
    }

    /// The next answer, or that it is time to ask. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Answer {
        match &mut self.stage {
            Stage::Rest(until, next) => {
                tokio::time::sleep_until(*until).await;
                Answer::Ask(NextQuestion(*next))
            }
            Stage::Asking(Asking(answer)) => answer.await,
        }
    }

    fn rest(&mut self, pause: Duration, next: Next) {
        self.stage = Stage::Rest(Instant::now() + pause, next);
    }

    fn ask(&mut self, answer: impl Future<Output = Answer> + Send + 'static) {
        self.stage = Stage::Asking(Asking(Box::pin(answer)));
    }

    /// Takes in a count; true if lanes are to be compared.
    fn counted(&mut self, there: u64, known: u64) -> bool {
        let sign = Sign::of(there.saturating_sub(self.outside), known);
        if sign != self.sign {
            self.sign = sign;
            self.odd = 0;
        }
        self.odd += 1;
        (sign != Sign::Even && self.odd >= ODD_COUNTS) || self.looked_at.elapsed() >= LOOK_EVERY
    }

    /// Takes in the counts of all subjects; which of them differ for the second time.
    fn compared(
        &mut self,
        there: &BTreeMap<String, u64>,
        known: &BTreeMap<String, u64>,
    ) -> Vec<String> {
        let subjects: BTreeSet<&String> = there.keys().chain(known.keys()).collect();
        let count = |counts: &BTreeMap<String, u64>, subject| {
            counts.get(subject).copied().unwrap_or_default()
        };
        let signs = subjects.into_iter().map(|subject| {
            let sign = Sign::of(count(there, subject), count(known, subject));
            (subject.clone(), sign)
        });
        let differ: BTreeMap<_, _> = signs.filter(|(_, sign)| *sign != Sign::Even).collect();
        let again = differ
            .iter()
            .filter(|(subject, sign)| self.suspects.get(*subject) == Some(sign));
        let again = again.map(|(subject, _)| subject.clone());
        let again = again.take(LANES_MAX).collect();
        self.suspects = differ;
        self.looked_at = Instant::now();
        again
    }
}

impl Leader {
    /// Goes on with the comparison after an answer.
    pub(super) fn reconcile(&mut self, answer: Answer) {
        match answer {
            Answer::Ask(NextQuestion(Next::Count)) if !self.lanes.are_complete() => {
                self.reconcile.rest(COUNT_EVERY, Next::Count);
            }
            Answer::Ask(NextQuestion(next)) => {
                let nats = self.shell.nats.clone();
                self.reconcile.ask(question(nats, next));
            }
            Answer::Count(Ok(there)) => {
                let known = self.core.known() + self.reconcile.strangers.len();
                let next = if self.reconcile.counted(there, known as u64) {
                    Next::Look
                } else {
                    Next::Count
                };
                self.reconcile.rest(COUNT_EVERY, next);
            }
            Answer::Subjects(Ok(there)) => self.compare(there),
            Answer::Lanes(differences) => {
                for difference in differences {
                    self.put_right(difference);
                }
                self.begin_again();
            }
            Answer::Count(Err(error)) | Answer::Subjects(Err(error)) => {
                tracing::debug!(%error, "cannot compare the picture with the stream");
                self.begin_again();
            }
        }
    }

    fn begin_again(&mut self) {
        self.reconcile.suspects.clear();
        self.reconcile.sign = Sign::Even;
        self.reconcile.odd = 0;
        self.reconcile.rest(COUNT_EVERY, Next::Count);
    }

    fn compare(&mut self, mut there: BTreeMap<String, u64>) {
        let names = &self.shell.nats.names;
        let outside: u64 = there
            .extract_if(.., |subject, _| names.job_priority(subject).is_none())
            .map(|(_, count)| count)
            .sum();
        if outside != self.reconcile.outside {
            tracing::warn!(
                messages = outside,
                "messages of the job stream are on no lane"
            );
            self.reconcile.outside = outside;
        }
        let is_first = self.reconcile.suspects.is_empty();
        let known = self.known();
        let again = self.reconcile.compared(&there, &known);
        if !again.is_empty() {
            let lanes: Vec<_> = again.into_iter().map(|lane| self.lane(lane)).collect();
            let nats = self.shell.nats.clone();
            self.reconcile.ask(read_all(nats, lanes));
        } else if is_first && !self.reconcile.suspects.is_empty() {
            self.reconcile.rest(SECOND_LOOK_AFTER, Next::Look);
        } else {
            self.begin_again();
        }
    }

    /// What the leader knows, by subject.
    fn known(&self) -> BTreeMap<String, u64> {
        let names = &self.shell.nats.names;
        let lanes = self.core.lanes().into_iter();
        let mut known: BTreeMap<String, u64> = lanes
            .map(|((priority, tenant), jobs)| (names.job_subject(priority, &tenant), jobs))
            .collect();
        for subject in self.reconcile.strangers.values() {
            *known.entry(subject.clone()).or_default() += 1;
        }
        known
    }

    fn lane(&self, subject: String) -> Lane {
        let names = &self.shell.nats.names;
        let strangers = self.reconcile.strangers.iter();
        let strangers = strangers.filter(|(_, of)| **of == subject);
        let mut known: BTreeSet<u64> = strangers.map(|(&seq, _)| seq).collect();
        if let Some((priority, tenant)) = names.parse_job_subject(&subject) {
            known.extend(self.core.lane(priority, &tenant).map(|seq| seq.0));
        }
        let priority = names.job_priority(&subject);
        Lane {
            shown: priority.map_or(0, |priority| self.lanes.shown(priority)),
            subject,
            known,
        }
    }

    fn put_right(&mut self, difference: Difference) {
        let Difference {
            subject,
            missed,
            gone,
        } = difference;
        // A worker that has one will find out and say so.
        let gone: Vec<u64> = gone
            .into_iter()
            .filter(|&seq| !self.core.is_held(JobSeq(seq)))
            .collect();
        if missed.is_empty() && gone.is_empty() {
            return;
        }
        tracing::warn!(
            subject,
            missed = missed.len(),
            gone = gone.len(),
            "the picture of a lane was wrong"
        );
        let leading = self.shell.metrics.leading();
        leading.picture_repaired(missed.len(), gone.len());
        for item in missed {
            self.ages.saw(item.seq, item.stored_ms);
            self.job(&item);
        }
        for seq in gone {
            self.reconcile.strangers.remove(&seq);
            self.apply(Event::PutAside { seq: JobSeq(seq) });
        }
    }

    /// Takes in a message of the job stream.
    pub(super) fn job(&mut self, item: &IndexItem) {
        match convert::job(&self.shell.nats.names, item) {
            Ok(job) => self.apply(Event::Job(job)),
            Err(error) => {
                self.reconcile.stranger(item);
                tracing::warn!(seq = item.seq, subject = item.subject, error, "not a job");
                let (nats, clock) = (self.shell.nats.clone(), self.shell.clock);
                let (turns, seq) = (self.asides.clone(), item.seq);
                self.outcomes.push(Box::pin(async move {
                    // Never closed; without a turn it would only be less patient.
                    let _turn = turns.acquire_owned().await;
                    while let Err(cannot) = strangers::bury(&nats, seq, &error, clock.now()).await {
                        let cannot = format!("{cannot:#}");
                        tracing::warn!(seq, cannot, "cannot bury a message that is no job yet");
                        tokio::time::sleep(strangers::AGAIN_AFTER).await;
                    }
                    Event::Tick
                }));
            }
        }
    }
}

/// A lane to read again, with the messages that are known of it.
#[derive(Debug)]
struct Lane {
    subject: String,
    known: BTreeSet<u64>,
    /// The index comes by itself to what has a higher sequence. A job above might have been shown,
    /// run and ended by the time the lane is read.
    shown: u64,
}

async fn question(nats: Nats, next: Next) -> Answer {
    let stream = nats.names.jobs_stream();
    match next {
        Next::Count => Answer::Count(nats.jobs().count(&stream).await),
        Next::Look => Answer::Subjects(nats.jobs().counts(&stream, ">").await),
    }
}

async fn read_all(nats: Nats, lanes: Vec<Lane>) -> Answer {
    let mut differences = Vec::new();
    for lane in lanes {
        match tokio::time::timeout(READ_TIMEOUT, read(&nats, lane)).await {
            Ok(difference) => differences.extend(difference),
            Err(_) => break,
        }
    }
    Answer::Lanes(differences)
}

/// Reads a lane and says how it differs from what is known. None if it could not be read as a whole.
async fn read(nats: &Nats, lane: Lane) -> Option<Difference> {
    let Lane {
        subject,
        mut known,
        shown,
    } = lane;
    let mut index = nats.index(&nats.names.jobs_stream(), &subject);
    let mut missed = Vec::new();
    loop {
        match index.next().await? {
            IndexEvent::Item(item) => {
                if !known.remove(&item.seq) && item.seq <= shown {
                    missed.push(item);
                }
            }
            IndexEvent::Current => break,
            IndexEvent::Stale | IndexEvent::Reset => return None,
        }
    }
    Some(Difference {
        subject,
        missed,
        gone: known.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::testing::{leader, why};
    use fairlane_core::Priority;
    use fairlane_support::{LIMIT, TestNats, eventually, queue};

    #[test]
    fn a_count_must_be_off_to_one_side_for_a_while() {
        let mut reconcile = Reconcile::new();
        let odd = [(5, 5), (6, 5), (4, 5), (4, 5), (5, 5), (7, 5), (6, 5)];
        for (there, known) in odd {
            assert!(!reconcile.counted(there, known), "{there} {known}");
        }
        assert!(reconcile.counted(6, 5));
        assert!(!reconcile.counted(5, 5));
    }

    #[test]
    fn a_lane_is_read_again_if_it_differs_twice_in_the_same_way() {
        let counts = |of: &[(&str, u64)]| -> BTreeMap<String, u64> {
            of.iter()
                .map(|(lane, jobs)| ((*lane).to_owned(), *jobs))
                .collect()
        };
        let mut reconcile = Reconcile::new();
        let known = counts(&[("a", 1), ("b", 1), ("c", 1)]);
        let there = counts(&[("a", 2), ("b", 2), ("d", 1)]);
        assert!(reconcile.compared(&there, &known).is_empty());
        let there = counts(&[("a", 3), ("c", 1), ("d", 4)]);
        assert_eq!(reconcile.compared(&there, &known), ["a", "d"]);
    }

    #[tokio::test]
    async fn a_job_that_was_missed_appears_and_one_that_is_gone_vanishes() {
        let server = TestNats::start().await;
        let nats = &server.nats;
        for (tenant, job) in [("acme", "a"), ("acme", "b"), ("other", "c"), ("other", "d")] {
            queue(nats, Priority::Batch, tenant, job).await;
        }
        let (mut leader, stop) = leader(nats).await;
        while !leader.lanes.are_complete() {
            let (priority, events) = leader.lanes.next().await;
            leader.apply_jobs(priority, events).unwrap();
        }
        assert_eq!(leader.core.known(), 4);
        // As if the index had not shown it.
        leader.apply(Event::PutAside { seq: JobSeq(2) });
        let leads = tokio::spawn(async move { leader.lead().await });
        for seq in [3, 4] {
            nats.jobs().delete("FL_JOBS", seq).await.unwrap();
        }
        for (seq, expected) in [(1, "no_worker"), (2, "behind_own"), (3, "not_queued")] {
            eventually(LIMIT, &format!("job {seq} is {expected}"), || async {
                match why(nats, seq).await? {
                    reason if reason == expected => Ok(()),
                    other => Err(other),
                }
            })
            .await;
        }
        stop.cancel();
        leads.await.unwrap().unwrap();
    }
}
