//! The books of a fleet: every accepted job is somewhere, and in one place only.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fairlane_nats::{IndexEvent, Nats};
use fairlane_wire::{LedgerEntry, Phase, header};

/// What the stores say, all of it read from NATS.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Books {
    /// Job records by phase.
    pub records: BTreeMap<&'static str, usize>,
    /// Submissions no producer has taken yet.
    pub submitted: u64,
    /// Jobs in the job stream.
    pub queued: u64,
    /// Leases that are held or parked.
    pub leases: usize,
    /// Dead letters.
    pub letters: usize,
    /// Calls in the ledger.
    pub calls: usize,
    /// Of these, calls whose outcome is unknown.
    pub ambiguous: usize,
}

impl Books {
    /// # Errors
    /// If something cannot be read.
    pub async fn read(nats: &Nats) -> Result<Self> {
        let names = &nats.names;
        let mut books = Self {
            submitted: messages(nats, &names.submit_stream()).await?,
            queued: messages(nats, &names.jobs_stream()).await?,
            ..Self::default()
        };
        for item in all(nats, &format!("KV_{}", names.status_bucket())).await? {
            let phase = item
                .headers
                .get(header::PHASE)
                .context("a record without a phase")?;
            let phase = Phase::parse(phase.as_str()).context("an unknown phase")?;
            *books.records.entry(phase.as_str()).or_default() += 1;
        }
        let leases = all(nats, &format!("KV_{}", names.credits_bucket())).await?;
        books.leases = leases
            .iter()
            .filter(|item| item.headers.get(header::KV_OPERATION).is_none())
            .filter(|item| item.headers.get(header::MARKER_REASON).is_none())
            .count();
        // Beside the letters, the stream has notes that some were sent again.
        let letters = all(nats, &names.dlq_stream()).await?;
        let is_letter = |subject| names.parse_dlq_subject(subject).is_some();
        books.letters = letters
            .iter()
            .filter(|item| is_letter(item.subject.as_str()))
            .count();
        for item in all(nats, &names.ledger_stream()).await? {
            let message = nats.jobs().get(&names.ledger_stream(), item.seq).await?;
            let entry: LedgerEntry =
                serde_json::from_slice(&message.context("a booking is gone")?.payload)?;
            books.calls += 1;
            books.ambiguous += usize::from(entry.ambiguous);
        }
        Ok(books)
    }

    /// Jobs in this phase.
    #[must_use]
    pub fn in_phase(&self, phase: Phase) -> usize {
        self.records.get(phase.as_str()).copied().unwrap_or(0)
    }

    /// Whether nothing is left to do: no submission, no job, no lease, and every record final.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        // Accepted is also said of those that share another job's outcome, for good.
        let mut open = Phase::ALL
            .into_iter()
            .filter(|phase| !phase.is_final() && *phase != Phase::Accepted);
        self.submitted == 0
            && self.queued == 0
            && self.leases == 0
            && open.all(|phase| self.in_phase(phase) == 0)
    }
}

async fn messages(nats: &Nats, stream: &str) -> Result<u64> {
    let mut stream = nats.jetstream.get_stream(stream).await?;
    Ok(stream.info().await?.state.messages)
}

async fn all(nats: &Nats, stream: &str) -> Result<Vec<fairlane_nats::IndexItem>> {
    let mut index = nats.index(stream, ">");
    let mut items = Vec::new();
    while let Some(event) = index.next().await {
        match event {
            IndexEvent::Item(item) => items.push(item),
            IndexEvent::Current => return Ok(items),
            IndexEvent::Stale | IndexEvent::Reset => {}
        }
    }
    anyhow::bail!("the index of {stream} ended")
}
