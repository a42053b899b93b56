//! Driving a run: one letter after the other, at its pace, until it is over or somebody says stop.

use std::time::Duration;

use bytes::Bytes;
use fairlane_nats::{HeaderMap, Revision, WriteError};
use fairlane_wire::header;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, Run, RunError, Runs, State, TRIES_MAX};
use crate::claim::{Claim, claim, sent};
use crate::ready::{Judge, Ready, headers, ready};

/// How often the position is saved, and so how soon a change from elsewhere is noticed.
const SAVE_EVERY: Duration = Duration::from_millis(500);
/// Letters sent without saving the position, at most.
const SAVE_AFTER: u64 = 100;
/// A submission that may or may not be stored is sent again: the second one changes nothing.
const SUBMITS_MAX: u32 = 3;
/// How long a run waits for producers to take what the tenant has published before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the letters of run `id` as `driver`, a name of the caller's own. `tell` hears of each
/// step. Returns when the run is over.
///
/// # Errors
/// [`RunError`]; the run goes on where it stopped when it is driven again.
pub async fn drive(
    runs: &Runs,
    id: &str,
    driver: &str,
    judge: &impl Judge,
    stop: &CancellationToken,
    tell: impl FnMut(&Run),
    now_ms: fn() -> u64,
) -> Result<Run, RunError> {
    let (run, revision) = take_over(runs, id, driver).await?;
    let mut drive = Drive {
        runs,
        judge,
        run,
        revision,
        saved_at: Instant::now(),
        saved_total: 0,
        tell,
        now_ms,
    };
    drive.saved_total = drive.run.tally.total();
    let ended = Box::pin(drive.all(stop)).await;
    // Also on an error: what was done is done.
    let saved = drive.save().await;
    ended?;
    saved?;
    Ok(drive.run)
}

async fn take_over(runs: &Runs, id: &str, driver: &str) -> Result<(Run, Revision), RunError> {
    for _ in 0..TRIES_MAX {
        let (run, revision) = runs.get(id).await?;
        if run.state.is_over() {
            return Err(RunError::Over {
                id: run.id,
                state: run.state,
            });
        }
        let ours = Run {
            driver: driver.to_owned(),
            state: State::Running,
            ..run
        };
        if let Some(revision) = runs.save(&ours, revision).await? {
            return Ok((ours, revision));
        }
    }
    Err(RunError::Contended { id: id.to_owned() })
}

struct Drive<'a, J, T> {
    runs: &'a Runs,
    judge: &'a J,
    run: Run,
    revision: Revision,
    saved_at: Instant,
    saved_total: u64,
    tell: T,
    now_ms: fn() -> u64,
}

impl<J: Judge, T: FnMut(&Run)> Drive<'_, J, T> {
    async fn all(&mut self, stop: &CancellationToken) -> Result<(), RunError> {
        let pace = Duration::from_secs(1) / self.run.per_second.max(1);
        let mut pace = tokio::time::interval(pace);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut part = (usize::MAX, Vec::new());
        while self.run.tally.total() < self.run.letters {
            tokio::select! {
                () = stop.cancelled() => return Err(RunError::Stopped),
                _ = pace.tick() => {}
            }
            self.save_now_and_then().await?;
            match self.run.state {
                State::Running => {}
                State::Paused => {
                    self.wait_for_a_change(stop).await?;
                    continue;
                }
                State::Cancelled | State::Done => return Ok(()),
            }
            let position = usize::try_from(self.run.tally.total()).unwrap_or(usize::MAX);
            if part.0 != position / CHUNK {
                part.0 = position / CHUNK;
                part.1 = self.runs.members(&self.run.id, part.0).await?;
            }
            let letter = part.1.get(position % CHUNK).copied();
            let letter = letter.ok_or_else(|| RunError::Unreadable {
                id: self.run.id.clone(),
                text: format!("letter {position} is missing"),
            })?;
            Box::pin(self.one(letter)).await?;
            (self.tell)(&self.run);
        }
        self.run.state = State::Done;
        Ok(())
    }

    async fn one(&mut self, seq: u64) -> Result<(), RunError> {
        let nats = &self.runs.nats;
        let Some(letter) = nats.letter(seq).await? else {
            self.run.tally.gone += 1;
            return Ok(());
        };
        let ready = match ready(&letter, &self.run.repair, self.judge) {
            Ok(ready) => ready,
            Err(why) => {
                self.run.tally.left += 1;
                self.run.tally.leave(seq, &why.to_string());
                return Ok(());
            }
        };
        let revision = match claim(nats, seq, &self.run.id, (self.now_ms)()).await? {
            Claim::Ours(revision) => revision,
            // Ours, from before the position was lost.
            Claim::Theirs(note) if note.run == self.run.id => {
                self.run.tally.sent += 1;
                return Ok(());
            }
            Claim::Theirs(note) => {
                self.run.tally.already += 1;
                let state = if note.sent {
                    "already redriven by"
                } else {
                    "already claimed by"
                };
                let why = format!("{state} run {}", note.run);
                self.run.tally.leave(seq, &why);
                return Ok(());
            }
        };
        let headers = headers(&letter, &self.run.id, &self.run.repair, &ready);
        self.submit(seq, headers, ready).await?;
        sent(nats, seq, &self.run.id, revision, (self.now_ms)()).await?;
        self.run.tally.sent += 1;
        Ok(())
    }

    async fn submit(
        &self,
        letter: u64,
        mut headers: HeaderMap,
        ready: Ready,
    ) -> Result<(), RunError> {
        let nats = &self.runs.nats;
        let subject = nats.names.submit_subject(&ready.tenant);
        let mut body = Bytes::from(ready.body);
        let mut tries = 0;
        loop {
            tries += 1;
            let jobs = nats.jobs();
            let error = match jobs
                .publish_patiently(&subject, None, headers.clone(), body.clone(), PATIENCE)
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error {
                WriteError::TooLarge { .. } if !body.is_empty() => {
                    let name = format!("{}.again-{letter}", ready.tenant);
                    let put = nats.payloads().put(&name, &body, usize::MAX).await;
                    put.map_err(|error| RunError::Payload { letter, error })?;
                    headers.insert(header::CLAIM, name);
                    body = Bytes::new();
                }
                WriteError::Unknown { .. } if tries < SUBMITS_MAX => {}
                error => return Err(RunError::Submit { letter, error }),
            }
        }
    }

    async fn save_now_and_then(&mut self) -> Result<(), RunError> {
        let unsaved = self.run.tally.total() - self.saved_total;
        if unsaved >= SAVE_AFTER || self.saved_at.elapsed() >= SAVE_EVERY {
            self.save().await?;
        }
        Ok(())
    }

    /// Saves how far it is, and learns what others have decided.
    async fn save(&mut self) -> Result<(), RunError> {
        for _ in 0..TRIES_MAX {
            if let Some(revision) = self.runs.save(&self.run, self.revision).await? {
                self.revision = revision;
                self.saved_at = Instant::now();
                self.saved_total = self.run.tally.total();
                return Ok(());
            }
            let (found, revision) = self.runs.get(&self.run.id).await?;
            if found.driver != self.run.driver {
                return Err(RunError::TakenOver(self.run.id.clone()));
            }
            self.revision = revision;
            // Others change the state alone; only we can have finished.
            if self.run.state != State::Done {
                self.run.state = found.state;
            }
        }
        Err(RunError::Contended {
            id: self.run.id.clone(),
        })
    }

    async fn wait_for_a_change(&mut self, stop: &CancellationToken) -> Result<(), RunError> {
        (self.tell)(&self.run);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Err(RunError::Stopped),
                () = tokio::time::sleep(SAVE_EVERY) => {}
            }
            let (found, revision) = self.runs.get(&self.run.id).await?;
            if found.driver != self.run.driver {
                return Err(RunError::TakenOver(self.run.id.clone()));
            }
            self.revision = revision;
            if found.state != State::Paused {
                self.run.state = found.state;
                return Ok(());
            }
        }
    }
}
