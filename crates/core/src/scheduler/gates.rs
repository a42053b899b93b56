//! Gates: what the upstream refuses for a reason that no waiting alone is known to end.
//!
//! A spent budget, a refused key, a model that is gone: a gate shuts for whoever is concerned, and after
//! a time lets one call through, to see. If that is answered the gate is gone, if it is refused again
//! the gate stays shut for as long again. Jobs that meet a shut gate step out of line and wait behind
//! it, so that their tenant's other work goes on; at most one of them is on its way at a time. When it
//! goes ajar one job of each tenant steps in line again: whose turn comes first is the probe.

use std::collections::{BTreeMap, BTreeSet};

use super::pools::PoolIx;
use super::tenants::TenantIx;
use crate::Millis;
use crate::ids::{JobSeq, Kind, ModelId};

/// Whom a gate concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GateKey {
    /// Everything that uses our key.
    Account,
    Pool(PoolIx),
    Model(ModelId),
    /// A tenant's jobs of one kind for one model.
    Kind(TenantIx, Kind, ModelId),
}

/// Gates that are remembered. Tenants choose kinds, so they are bounded; a job that meets no gate is
/// refused by the upstream itself, and parked.
const GATES_MAX: usize = 1_000;

/// Tenants that have a job in line at once, to be the probe of one gate.
const CANDIDATES_MAX: usize = 100;

/// After a probe that told nothing another goes after this.
const PROBE_AGAIN: Millis = 5_000;

#[derive(Debug, Default)]
struct Gate {
    /// Nothing passes before.
    until: Millis,
    /// The job that went through to see.
    probe: Option<JobSeq>,
    /// Jobs that stand in line to be the probe.
    candidates: BTreeMap<TenantIx, JobSeq>,
    waiting: BTreeMap<TenantIx, BTreeSet<JobSeq>>,
}

/// What a job meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    Free,
    /// Nothing passes before this time.
    Shut(Millis),
    /// The next one passes, as a probe.
    Ajar,
    /// A probe is out.
    Probing,
}

/// What the end of a probe says about its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Passed,
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: BTreeMap<GateKey, Gate>,
    /// Behind which gate a tenant's job waits, or stands in line as its candidate.
    behind: BTreeMap<JobSeq, (TenantIx, GateKey)>,
}

impl Gates {
    /// Shuts a gate until a time; never for a shorter time than it is shut already.
    pub(super) fn shut(&mut self, key: GateKey, until: Millis, now: Millis) {
        if !self.gates.contains_key(&key) && self.gates.len() >= GATES_MAX {
            // A gate nobody has come to since it went ajar serves nobody.
            self.gates
                .retain(|_, gate| gate.until > now || gate.is_in_use());
            if self.gates.len() >= GATES_MAX {
                return;
            }
        }
        let gate = self.gates.entry(key).or_default();
        gate.until = gate.until.max(until);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    pub(super) fn passage(&self, key: &GateKey, now: Millis) -> Passage {
        match self.gates.get(key) {
            None => Passage::Free,
            Some(gate) if now < gate.until => Passage::Shut(gate.until),
            Some(gate) if gate.probe.is_some() => Passage::Probing,
            Some(_) => Passage::Ajar,
        }
    }

    /// A job goes upstream: it is the probe of every gate on its way that is ajar.
    pub(super) fn sent(&mut self, keys: &[GateKey], seq: JobSeq, now: Millis) {
        for key in keys {
            if self.passage(key, now) == Passage::Ajar
                && let Some(gate) = self.gates.get_mut(key)
            {
                gate.probe = Some(seq);
            }
        }
        self.forget(seq);
    }

    /// A delivery of `seq` is over. Returns the jobs that need not wait any more.
    pub(super) fn landed(&mut self, seq: JobSeq, finding: Finding, now: Millis) -> Vec<JobSeq> {
        let mut freed = Vec::new();
        let probed: Vec<GateKey> = self
            .gates
            .iter()
            .filter(|(_, gate)| gate.probe == Some(seq))
            .map(|(key, _)| key.clone())
            .collect();
        for key in probed {
            let Some(gate) = self.gates.get_mut(&key) else {
                continue;
            };
            gate.probe = None;
            match finding {
                // It was shut again meanwhile, by this very call or another.
                _ if gate.until > now => {}
                Finding::Nothing => gate.until = now + PROBE_AGAIN,
                Finding::Passed => {
                    let gate = self.gates.remove(&key).unwrap_or_default();
                    freed.extend(gate.candidates.into_values());
                    freed.extend(gate.waiting.into_values().flatten());
                }
            }
        }
        for seq in &freed {
            self.behind.remove(seq);
        }
        freed
    }

    /// `seq` steps out of line and waits behind the gate.
    pub(super) fn wait(&mut self, key: &GateKey, tenant: TenantIx, seq: JobSeq) {
        self.forget(seq);
        if let Some(gate) = self.gates.get_mut(key) {
            gate.waiting.entry(tenant).or_default().insert(seq);
            self.behind.insert(seq, (tenant, key.clone()));
        }
    }

    /// Whether `seq` waits behind a gate, not in line.
    pub(super) fn holds(&self, seq: JobSeq) -> Option<&GateKey> {
        let (tenant, key) = self.behind.get(&seq)?;
        let waiting = self.gates.get(key)?.waiting.get(tenant)?;
        waiting.contains(&seq).then_some(key)
    }

    /// `seq` is gone, or goes another way.
    pub(super) fn forget(&mut self, seq: JobSeq) {
        let Some((tenant, key)) = self.behind.remove(&seq) else {
            return;
        };
        if let Some(gate) = self.gates.get_mut(&key) {
            gate.take(tenant, seq);
            if gate.candidates.get(&tenant) == Some(&seq) {
                gate.candidates.remove(&tenant);
            }
        }
    }

    /// Jobs that may stand in line again, to be the probes of gates that are ajar.
    pub(super) fn candidates(&mut self, now: Millis) -> Vec<JobSeq> {
        let mut candidates = Vec::new();
        for gate in self.gates.values_mut() {
            if gate.until <= now && gate.probe.is_none() {
                candidates.extend(gate.step_forward());
            }
        }
        candidates
    }

    /// When the next gate with somebody behind it goes ajar.
    pub(super) fn next_ajar(&self, now: Millis) -> Option<Millis> {
        let gates = self.gates.values();
        gates
            .filter(|gate| !gate.waiting.is_empty() && gate.until > now)
            .map(|gate| gate.until)
            .min()
    }

    /// All gates with their probes and candidates.
    #[cfg(test)]
    pub(super) fn inspect(&self) -> Vec<(GateKey, Option<JobSeq>, Vec<JobSeq>)> {
        let gates = self.gates.iter();
        gates
            .map(|(key, gate)| {
                (
                    key.clone(),
                    gate.probe,
                    gate.candidates.values().copied().collect(),
                )
            })
            .collect()
    }

    /// Gates that are not open, and until when they are shut.
    pub(super) fn all(&self) -> impl Iterator<Item = (&GateKey, Millis)> {
        self.gates.iter().map(|(key, gate)| (key, gate.until))
    }
}

impl Gate {
    /// The oldest job of each tenant that has none in line.
    fn step_forward(&mut self) -> Vec<JobSeq> {
        let room = CANDIDATES_MAX.saturating_sub(self.candidates.len());
        let first =
            |(&tenant, jobs): (&TenantIx, &BTreeSet<JobSeq>)| Some((tenant, *jobs.first()?));
        let waiting = self.waiting.iter().filter_map(first);
        let forward: Vec<_> = waiting
            .filter(|(tenant, _)| !self.candidates.contains_key(tenant))
            .take(room)
            .collect();
        for &(tenant, seq) in &forward {
            self.take(tenant, seq);
            self.candidates.insert(tenant, seq);
        }
        forward.into_iter().map(|(_, seq)| seq).collect()
    }

    /// `seq` does not wait any more.
    fn take(&mut self, tenant: TenantIx, seq: JobSeq) {
        if let Some(jobs) = self.waiting.get_mut(&tenant) {
            jobs.remove(&seq);
            if jobs.is_empty() {
                self.waiting.remove(&tenant);
            }
        }
    }

    fn is_in_use(&self) -> bool {
        self.probe.is_some() || !self.candidates.is_empty() || !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: GateKey = GateKey::Account;
    const ACME: TenantIx = TenantIx(0);

    fn pool(number: usize) -> GateKey {
        GateKey::Pool(PoolIx(number))
    }

    #[test]
    fn one_goes_through_to_see_and_frees_the_others() {
        let mut gates = Gates::default();
        assert_eq!(gates.passage(&ACCOUNT, 0), Passage::Free);
        gates.shut(ACCOUNT, 60_000, 0);
        gates.shut(ACCOUNT, 30_000, 0);
        assert_eq!(gates.passage(&ACCOUNT, 59_999), Passage::Shut(60_000));
        for seq in 1..=3 {
            gates.wait(&ACCOUNT, ACME, JobSeq(seq));
        }
        assert_eq!(gates.candidates(59_999), []);
        assert_eq!(gates.next_ajar(59_999), Some(60_000));
        assert_eq!(gates.candidates(60_000), [JobSeq(1)]);
        assert_eq!(gates.candidates(60_000), [], "one at a time");
        gates.sent(&[ACCOUNT], JobSeq(1), 60_000);
        assert_eq!(gates.passage(&ACCOUNT, 60_000), Passage::Probing);
        let freed = gates.landed(JobSeq(1), Finding::Passed, 60_500);
        assert_eq!(freed, [JobSeq(2), JobSeq(3)]);
        assert_eq!(gates.passage(&ACCOUNT, 60_500), Passage::Free);
        assert_eq!(gates.holds(JobSeq(2)), None);
    }

    #[test]
    fn a_probe_that_is_refused_again_leaves_the_gate_shut_for_as_long_again() {
        let mut gates = Gates::default();
        gates.shut(ACCOUNT, 60_000, 0);
        gates.wait(&ACCOUNT, ACME, JobSeq(2));
        gates.sent(&[ACCOUNT], JobSeq(1), 60_000);
        gates.shut(ACCOUNT, 120_500, 60_500);
        assert_eq!(gates.landed(JobSeq(1), Finding::Nothing, 60_500), []);
        assert_eq!(gates.passage(&ACCOUNT, 60_501), Passage::Shut(120_500));
        assert_eq!(gates.candidates(120_500), [JobSeq(2)]);
    }

    #[test]
    fn a_probe_that_is_lost_is_followed_by_another() {
        let mut gates = Gates::default();
        gates.shut(ACCOUNT, 60_000, 0);
        gates.sent(&[ACCOUNT], JobSeq(1), 60_000);
        gates.landed(JobSeq(1), Finding::Nothing, 61_000);
        assert_eq!(gates.passage(&ACCOUNT, 61_000), Passage::Shut(66_000));
        assert_eq!(gates.passage(&ACCOUNT, 66_000), Passage::Ajar);
    }

    #[test]
    fn a_candidate_that_goes_away_makes_room_for_the_next() {
        let mut gates = Gates::default();
        gates.shut(ACCOUNT, 10, 0);
        gates.wait(&ACCOUNT, ACME, JobSeq(1));
        gates.wait(&ACCOUNT, ACME, JobSeq(2));
        assert_eq!(gates.candidates(10), [JobSeq(1)]);
        gates.forget(JobSeq(1));
        assert_eq!(gates.candidates(10), [JobSeq(2)]);
    }

    #[test]
    fn gates_without_end_take_no_memory_without_end() {
        let mut gates = Gates::default();
        for number in 0..3 * GATES_MAX {
            gates.shut(pool(number), 100, 0);
        }
        assert_eq!(gates.gates.len(), GATES_MAX);
        gates.shut(ACCOUNT, 300, 200);
        assert_eq!(gates.passage(&ACCOUNT, 200), Passage::Shut(300));
        assert_eq!(gates.gates.len(), 1, "those that nobody needs are gone");
    }
}
