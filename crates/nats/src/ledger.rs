//! The accounts of tenants, from the bookings.
//!
//! The entries are the truth about money: one for each call that reached the upstream. Two successful
//! calls of one job are one too many, and a call that was cut may have been paid without an answer;
//! both are told apart, so that nobody has to take "paid once" on trust.

use std::collections::{BTreeMap, BTreeSet};

use fairlane_core::TenantId;
use fairlane_wire::LedgerEntry;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::client::Nats;
use crate::index::IndexEvent;
use crate::jobs::ReadError;

/// Bodies read at once.
const READS_MAX: usize = 64;
/// Outcome of a call whose answer was kept, as it is booked.
const ANSWERED: &str = "done";

/// Calls, their tokens, and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spent {
    pub calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub usd: f64,
}

impl Spent {
    fn add(&mut self, entry: &LedgerEntry) {
        self.calls += 1;
        self.input_tokens += entry.usage.prompt();
        self.output_tokens += entry.usage.output_tokens;
        #[expect(clippy::cast_precision_loss, reason = "for showing")]
        let usd = entry.cost_pico_usd.unwrap_or(0) as f64 / 1e12;
        self.usd += usd;
    }

    fn plus(mut self, other: &Self) -> Self {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.usd += other.usd;
        self
    }
}

/// The account of one tenant, or of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Account {
    pub jobs: u64,
    #[serde(flatten)]
    pub spent: Spent,
    /// Of these, calls that may have been paid without an answer.
    pub ambiguous: Spent,
    /// Of these, answers to jobs that had one.
    pub double_paid: Spent,
}

/// All accounts.
#[derive(Debug, Default)]
pub struct Accounts {
    pub tenants: BTreeMap<String, Account>,
    jobs: BTreeSet<(String, u64)>,
    answered: BTreeSet<(String, u64)>,
}

impl Accounts {
    /// Adds an entry.
    pub fn book(&mut self, entry: &LedgerEntry) {
        let tenant = entry.tenant.to_string();
        let job = (tenant.clone(), entry.seq);
        let account = self.tenants.entry(tenant).or_default();
        account.spent.add(entry);
        account.jobs += u64::from(self.jobs.insert(job.clone()));
        if entry.ambiguous {
            account.ambiguous.add(entry);
        }
        if entry.outcome == ANSWERED && !self.answered.insert(job) {
            account.double_paid.add(entry);
        }
    }

    /// The sum of all.
    #[must_use]
    pub fn total(&self) -> Account {
        let zero = Account::default();
        self.tenants.values().fold(zero, |sum, account| Account {
            jobs: sum.jobs + account.jobs,
            spent: sum.spent.plus(&account.spent),
            ambiguous: sum.ambiguous.plus(&account.ambiguous),
            double_paid: sum.double_paid.plus(&account.double_paid),
        })
    }
}

/// Why the bookings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot read the bookings")]
    Read(#[from] ReadError),
    #[error("booking {seq} is not one")]
    Undecodable {
        seq: u64,
        #[source]
        error: serde_json::Error,
    },
}

impl Nats {
    /// The accounts since `since_ms` (unix milliseconds), of one tenant or of all.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn accounts(
        &self,
        tenant: Option<&TenantId>,
        since_ms: u64,
    ) -> Result<Accounts, LedgerError> {
        let (stream, jobs) = (self.names.ledger_stream(), self.jobs());
        let all = || self.names.ledger_filter();
        let filter = tenant.map_or_else(all, |tenant| self.names.ledger_subject(tenant));
        let mut index = self.index_since(&stream, &filter, since_ms);
        let mut entries = Vec::new();
        while let Some(event) = index.next().await {
            match event {
                IndexEvent::Item(item) => entries.push(item.seq),
                IndexEvent::Current => break,
                IndexEvent::Stale | IndexEvent::Reset => {}
            }
        }
        let read = |seq| jobs.get(&stream, seq);
        let mut bodies = futures::stream::iter(entries).map(read).buffered(READS_MAX);
        let mut accounts = Accounts::default();
        while let Some(message) = bodies.try_next().await? {
            // One that has expired meanwhile is as old as those before it.
            let Some(message) = message else { continue };
            let entry = serde_json::from_slice(&message.payload);
            let seq = message.seq;
            accounts.book(&entry.map_err(|error| LedgerError::Undecodable { seq, error })?);
        }
        Ok(accounts)
    }
}
