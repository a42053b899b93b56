//! What all calls of one simulator share. Each part has its own lock, held only for a few operations and never
//! over an await.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    bucket::Bucket,
    cache::PromptCache,
    clock::{Clock, Micros},
    config::SimConfig,
    conn::Conns,
    fault::{FaultError, FaultSpec, Faults, Strike},
    hash,
    limits::{Pool, Snapshot},
    log::{CallRecord, Ending, Log, RequestId, usd},
    models::{Model, PoolId},
    once::OnceMemory,
};

/// Locks; a panic elsewhere leaves plain numbers behind, which are still good.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SimConfig,
    pub(crate) clock: Clock,
    pub(crate) conns: Arc<Conns>,
    /// No new calls; calls in flight may finish until their connections are broken.
    pub(crate) stop: CancellationToken,
    pub(crate) once: Mutex<OnceMemory>,
    pub(crate) cache: Mutex<PromptCache>,
    pub(crate) counting: Mutex<Bucket>,
    pools: [Mutex<Pool>; PoolId::ALL.len()],
    faults: Mutex<Faults>,
    has_faults: AtomicBool,
    books: Mutex<Books>,
    in_flight: AtomicU64,
    in_flight_peak: AtomicU64,
    next_id: AtomicU64,
    boot: u64,
}

/// The log and the sums over it since the last reset.
#[derive(Debug)]
struct Books {
    log: Log,
    totals: Totals,
}

/// Sums over all calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Calls that have ended.
    pub calls: u64,
    /// Calls by HTTP status; those that got none are under 0.
    pub by_status: BTreeMap<u16, u64>,
    /// Calls by ending.
    pub by_ending: BTreeMap<Ending, u64>,
    /// Calls by pool, and how many of them were answered 429.
    pub by_pool: BTreeMap<PoolId, PoolTotals>,
    /// What was billed.
    pub billed: Billed,
}

/// Sums over the calls of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolTotals {
    /// Calls that have ended.
    pub calls: u64,
    /// Of these, answered 429.
    pub throttled: u64,
}

/// What the real API would bill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Billed {
    /// Calls.
    pub calls: u64,
    /// Input tokens at full price.
    pub input_tokens: u64,
    /// Input tokens written to the cache.
    pub cache_creation_input_tokens: u64,
    /// Input tokens read from the cache.
    pub cache_read_input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    #[serde(serialize_with = "as_usd", rename = "cost_usd")]
    /// Price in nano-dollars; shown in dollars.
    pub cost_nano_usd: u64,
}

fn as_usd<S: serde::Serializer>(nano: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(usd(*nano))
}

impl Totals {
    fn add(&mut self, record: &CallRecord) {
        self.calls += 1;
        *self
            .by_status
            .entry(record.status.unwrap_or(0))
            .or_default() += 1;
        *self.by_ending.entry(record.ending).or_default() += 1;
        if let Some(pool) = record.pool() {
            let pool = self.by_pool.entry(pool).or_default();
            pool.calls += 1;
            pool.throttled += u64::from(record.status == Some(429));
        }
        if record.billed {
            let input = &record.input;
            self.billed.calls += 1;
            self.billed.input_tokens += input.uncached;
            self.billed.cache_creation_input_tokens += input.write_5m + input.write_1h;
            self.billed.cache_read_input_tokens += input.read;
            self.billed.output_tokens += record.output_tokens;
            self.billed.cost_nano_usd += record.cost_nano_usd();
        }
    }
}

/// A summary of a simulator's state.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// Calls that have begun and not ended.
    pub in_flight: u64,
    /// The most calls in flight at once since the last reset.
    pub in_flight_peak: u64,
    /// Open connections.
    pub connections: usize,
    /// Sums since the last reset.
    #[serde(flatten)]
    pub totals: Totals,
    /// What is left of each pool's limits, and its calls in flight.
    pub pools: BTreeMap<PoolId, PoolStats>,
    /// Records in memory, position of the newest, and lines that could not be written.
    pub log: LogStats,
}

/// One pool in a summary.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStats {
    /// Calls admitted and not finished.
    pub in_flight: u64,
    /// The buckets.
    #[serde(flatten)]
    pub limits: Snapshot,
}

/// The log in a summary.
#[derive(Clone, Debug, Serialize)]
pub struct LogStats {
    /// Records in memory.
    pub held: usize,
    /// Position of the oldest one in memory.
    pub first_seq: Option<u64>,
    /// Position of the newest one.
    pub last_seq: u64,
    /// Lines lost on their way to the file.
    pub file_errors: u64,
}

impl Shared {
    pub(crate) fn new(config: SimConfig, stop: CancellationToken) -> anyhow::Result<Self> {
        use anyhow::Context;
        config.check()?;
        let clock = Clock::start();
        let now = clock.started();
        let log = Log::open(config.log_capacity, config.log_file.as_deref())
            .with_context(|| format!("opening the log file {:?}", config.log_file))?;
        let mut faults = Faults::new(config.seed);
        faults
            .add(config.faults.clone(), now)
            .context("faults of the simulator's configuration")?;
        let pool = |id| {
            let limits = config.limits(id);
            Mutex::new(Pool::new(
                limits,
                config.request_burst_seconds,
                config.otpm_mode,
                now,
            ))
        };
        let pools = PoolId::ALL.map(pool);
        Ok(Self {
            clock,
            conns: Arc::default(),
            stop,
            once: Mutex::default(),
            cache: Mutex::default(),
            counting: Mutex::new(Bucket::new(config.preset.count_tokens_rpm(), now)),
            pools,
            has_faults: AtomicBool::new(!faults.list().is_empty()),
            faults: Mutex::new(faults),
            books: Mutex::new(Books {
                log,
                totals: Totals::default(),
            }),
            in_flight: AtomicU64::new(0),
            in_flight_peak: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            boot: hash::mix(now.0),
            config,
        })
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(crate) fn pool(&self, id: PoolId) -> MutexGuard<'_, Pool> {
        locked(&self.pools[id.index()])
    }

    pub(crate) fn next_request_id(&self) -> RequestId {
        RequestId {
            boot: self.boot,
            number: self.next_id.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Counts a call in; returns how many are in flight with it.
    pub(crate) fn enter(&self) -> u64 {
        let with_this = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_peak.fetch_max(with_this, Ordering::Relaxed);
        with_this
    }

    /// Counts a call out and books it.
    pub(crate) fn leave(&self, record: CallRecord) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut books = locked(&self.books);
        books.totals.add(&record);
        books.log.push(record);
    }

    pub(crate) fn strike(&self, model: &Model) -> Option<Strike> {
        if !self.has_faults.load(Ordering::Acquire) {
            return None;
        }
        locked(&self.faults).strike(self.now(), model)
    }

    pub(crate) fn add_faults(&self, specs: Vec<FaultSpec>) -> Result<Vec<u64>, FaultError> {
        let ids = locked(&self.faults).add(specs, self.now())?;
        self.has_faults.store(true, Ordering::Release);
        Ok(ids)
    }

    pub(crate) fn remove_faults(&self, id: Option<u64>) -> usize {
        locked(&self.faults).remove(id)
    }

    pub(crate) fn fault_list(&self) -> serde_json::Value {
        serde_json::json!({ "faults": locked(&self.faults).list() })
    }

    pub(crate) fn read_log(&self, since: u64, max: usize) -> Vec<CallRecord> {
        locked(&self.books).log.read(since, max)
    }

    pub(crate) fn log_stats(&self) -> LogStats {
        let books = locked(&self.books);
        LogStats {
            held: books.log.held(),
            first_seq: books.log.first_seq(),
            last_seq: books.log.last_seq(),
            file_errors: books.log.file_errors(),
        }
    }

    pub(crate) fn flush_log(&self) -> io::Result<()> {
        locked(&self.books).log.flush()
    }

    /// Empties log, sums, prompt memory and prompt cache, and fills the buckets. Faults stay.
    pub(crate) fn reset(&self) {
        let now = self.now();
        {
            let mut books = locked(&self.books);
            books.log.clear();
            books.totals = Totals::default();
        }
        for pool in &self.pools {
            locked(pool).refill(now);
        }
        locked(&self.counting).give(now, u64::MAX);
        *locked(&self.once) = OnceMemory::default();
        *locked(&self.cache) = PromptCache::default();
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.in_flight_peak.store(in_flight, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let now = self.now();
        let pool = |id: PoolId| {
            let mut pool = self.pool(id);
            let stats = PoolStats {
                in_flight: pool.in_flight(),
                limits: pool.snapshot(now),
            };
            (id, stats)
        };
        let totals = locked(&self.books).totals.clone();
        Stats {
            uptime_ms: now.as_ms() - self.clock.started().as_ms(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            in_flight_peak: self.in_flight_peak.load(Ordering::Relaxed),
            connections: self.conns.count(),
            totals,
            pools: PoolId::ALL.into_iter().map(pool).collect(),
            log: self.log_stats(),
        }
    }
}
