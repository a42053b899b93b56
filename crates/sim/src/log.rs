//! What the upstream itself knows: one record per call, in a bounded ring and optionally in a file.
//!
//! This log, not anybody's counters, says what was paid. A record is written once, when the call has ended, before
//! the last byte of its answer can be seen by the client.

use std::{
    collections::VecDeque,
    fmt,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::Path,
};

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    answer::StopReason,
    cache::CacheUse,
    clock::Micros,
    models::{Model, PoolId},
};

/// Records per segment; the ring drops whole segments, so it never copies what it holds.
const SEGMENT: usize = 1_024;

/// Which endpoint was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// `/v1/messages`
    Messages,
    /// `/v1/messages/count_tokens`
    CountTokens,
    /// `/v1/models` and one model
    Models,
    /// Anything else.
    Other,
}

impl Endpoint {
    /// The path, without ids.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Models => "/v1/models",
            Self::Other => "other",
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A whole 200 answer.
    Completed,
    /// A whole error answer.
    Error,
    /// The simulator broke the stream.
    Cut,
    /// An error event after 200.
    ErrorEvent,
    /// The simulator broke the connection before any answer.
    Reset,
    /// Generated and billed, then the connection broke before anything was sent.
    LostAnswer,
    /// The client went away.
    ClientGone,
    /// The simulator was stopped.
    Stopped,
}

/// The last characters of an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySuffix {
    chars: [u8; 4],
    length: u8,
}

impl KeySuffix {
    /// The last four bytes of a key that is printable ASCII; `?` for anything else in it.
    #[must_use]
    pub fn of(key: &str) -> Self {
        let bytes = key.as_bytes();
        let tail = &bytes[bytes.len().saturating_sub(4)..];
        let mut suffix = Self::default();
        for byte in tail {
            let shown = if byte.is_ascii_graphic() { *byte } else { b'?' };
            suffix.chars[usize::from(suffix.length)] = shown;
            suffix.length += 1;
        }
        suffix
    }

    /// The characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.chars[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Id of a call; shown as `req_...`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Differs from one start of a simulator to the next.
    pub boot: u64,
    /// Counts calls.
    pub number: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "req_{:012x}{:012x}",
            self.boot & 0xffff_ffff_ffff,
            self.number
        )
    }
}

/// One call.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Position in the log, from 1, in the order calls ended.
    pub seq: u64,
    /// When the request's head had arrived.
    pub at: Micros,
    /// When the call had ended.
    pub end: Micros,
    /// The id in the response header.
    pub request_id: RequestId,
    /// Tail of the API key.
    pub key: KeySuffix,
    /// HTTP method.
    pub method: &'static str,
    /// Which endpoint.
    pub endpoint: Endpoint,
    /// The model, if it is known.
    pub model: Option<&'static Model>,
    /// The model's name as asked, if it is not known.
    pub unknown_model: Option<Box<str>>,
    /// `x-fairlane-job`, else `metadata.user_id`.
    pub job: Option<Box<str>>,
    /// `x-fairlane-tenant`.
    pub tenant: Option<Box<str>>,
    /// Hash of the last user message.
    pub prompt_hash: Option<u64>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// HTTP status, if one was sent.
    pub status: Option<u16>,
    /// How the call ended.
    pub ending: Ending,
    /// Why the answer stopped, if it was complete.
    pub stop_reason: Option<StopReason>,
    /// Input tokens of a call that reached the model.
    pub input: CacheUse,
    /// Output tokens generated.
    pub output_tokens: u64,
    /// Whether the real API would bill the call.
    pub billed: bool,
    /// Calls in flight when this one began, itself included.
    pub concurrency: u64,
}

impl CallRecord {
    /// The pool of the model.
    #[must_use]
    pub fn pool(&self) -> Option<PoolId> {
        self.model.map(|model| model.pool)
    }

    /// The model's id, or what was asked for.
    #[must_use]
    pub fn model_name(&self) -> Option<&str> {
        self.model
            .map(|model| model.id)
            .or(self.unknown_model.as_deref())
    }

    /// What the call costs in nano-dollars; 0 when it is not billed.
    #[must_use]
    pub fn cost_nano_usd(&self) -> u64 {
        let Some(model) = self.model.filter(|_| self.billed) else {
            return 0;
        };
        let price = model.price_for(self.input.total());
        [
            (self.input.uncached, price.input),
            (self.input.write_5m, price.write_5m),
            (self.input.write_1h, price.write_1h),
            (self.input.read, price.read),
            (self.output_tokens, price.output),
        ]
        .into_iter()
        .fold(0, |sum, (tokens, each)| sum + tokens * each)
    }

    /// The record as one line of JSON, without the newline.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings always serialize")
    }
}

impl Serialize for CallRecord {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut line = to.serialize_struct("CallRecord", 24)?;
        line.serialize_field("seq", &self.seq)?;
        line.serialize_field("at_ms", &self.at.as_ms())?;
        line.serialize_field("end_ms", &self.end.as_ms())?;
        line.serialize_field("request_id", &self.request_id.to_string())?;
        line.serialize_field("key", self.key.as_str())?;
        line.serialize_field("method", &self.method)?;
        line.serialize_field("path", self.endpoint.path())?;
        line.serialize_field("model", &self.model_name())?;
        line.serialize_field("pool", &self.pool())?;
        line.serialize_field("job", &self.job)?;
        line.serialize_field("tenant", &self.tenant)?;
        let hash = self.prompt_hash.map(|hash| format!("{hash:016x}"));
        line.serialize_field("prompt_hash", &hash)?;
        line.serialize_field("stream", &self.stream)?;
        line.serialize_field("status", &self.status)?;
        line.serialize_field("ending", &self.ending)?;
        line.serialize_field("stop_reason", &self.stop_reason)?;
        line.serialize_field("input_tokens", &self.input.uncached)?;
        let written = self.input.write_5m + self.input.write_1h;
        line.serialize_field("cache_creation_input_tokens", &written)?;
        line.serialize_field("cache_read_input_tokens", &self.input.read)?;
        line.serialize_field("output_tokens", &self.output_tokens)?;
        line.serialize_field("billed", &self.billed)?;
        line.serialize_field("cost_usd", &usd(self.cost_nano_usd()))?;
        line.serialize_field("concurrency", &self.concurrency)?;
        line.end()
    }
}

/// Nano-dollars as dollars.
#[expect(clippy::cast_precision_loss)]
#[must_use]
pub(crate) fn usd(nano: u64) -> f64 {
    nano as f64 / 1e9
}

/// The ring and the file.
#[derive(Debug)]
pub struct Log {
    segments: VecDeque<Vec<CallRecord>>,
    capacity: usize,
    held: usize,
    next_seq: u64,
    file: Option<BufWriter<File>>,
    file_errors: u64,
}

impl Log {
    /// An empty log that holds about `capacity` records (whole segments are dropped) and appends to `file`.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(capacity: usize, file: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self {
            segments: VecDeque::new(),
            capacity,
            held: 0,
            next_seq: 1,
            file: file.map(open).transpose()?.map(BufWriter::new),
            file_errors: 0,
        })
    }

    /// Numbers a record and keeps it.
    pub fn push(&mut self, mut record: CallRecord) {
        record.seq = self.next_seq;
        self.next_seq += 1;
        if let Some(file) = &mut self.file {
            let line = record.line();
            let written = file
                .write_all(line.as_bytes())
                .and_then(|()| file.write_all(b"\n"));
            self.file_errors += u64::from(written.is_err());
        }
        let full = |segment: &Vec<CallRecord>| segment.len() >= SEGMENT;
        if self.segments.back().is_none_or(full) {
            self.segments.push_back(Vec::with_capacity(SEGMENT));
        }
        if let Some(last) = self.segments.back_mut() {
            last.push(record);
            self.held += 1;
        }
        while self.held > self.capacity && self.segments.len() > 1 {
            let oldest = self.segments.pop_front();
            self.held -= oldest.map_or(0, |segment| segment.len());
        }
    }

    /// Up to `max` records with a position over `since`, in order.
    #[must_use]
    pub fn read(&self, since: u64, max: usize) -> Vec<CallRecord> {
        let Some(first) = self.first_seq() else {
            return Vec::new();
        };
        let skip =
            usize::try_from(since.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let (segment, offset) = (skip / SEGMENT, skip % SEGMENT);
        // Every segment but the last is full, so positions can be computed.
        self.segments
            .iter()
            .skip(segment)
            .flatten()
            .skip(offset)
            .take(max)
            .cloned()
            .collect()
    }

    /// The position of the oldest record still held.
    #[must_use]
    pub fn first_seq(&self) -> Option<u64> {
        self.segments.front()?.first().map(|record| record.seq)
    }

    /// The position of the newest record ever written; 0 before the first.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// Records held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Lines that could not be written to the file.
    #[must_use]
    pub fn file_errors(&self) -> u64 {
        self.file_errors
    }

    /// Forgets every record; positions go on counting. The file keeps its lines.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.held = 0;
    }

    /// Writes buffered lines to the file.
    ///
    /// # Errors
    /// What the file system says; also counted in [`Log::file_errors`].
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            None => Ok(()),
            Some(file) => file.flush().inspect_err(|_| self.file_errors += 1),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record() -> CallRecord {
        CallRecord {
            seq: 0,
            at: Micros(1_500),
            end: Micros(9_999),
            request_id: RequestId { boot: 1, number: 2 },
            key: KeySuffix::of("sk-test-abcd"),
            method: "POST",
            endpoint: Endpoint::Messages,
            model: Model::find("claude-haiku-4-5"),
            unknown_model: None,
            job: Some("j1".into()),
            tenant: Some("t1".into()),
            prompt_hash: Some(255),
            stream: true,
            status: Some(200),
            ending: Ending::Completed,
            stop_reason: Some(StopReason::EndTurn),
            input: CacheUse {
                uncached: 1_000,
                read: 10_000,
                write_5m: 100,
                write_1h: 10,
            },
            output_tokens: 200,
            billed: true,
            concurrency: 3,
        }
    }

    fn log(capacity: usize, records: u64) -> Log {
        let mut log = Log::open(capacity, None).unwrap();
        (0..records).for_each(|_| log.push(record()));
        log
    }

    #[test]
    fn a_line_has_every_field() {
        let mut log = log(10, 1);
        let line: serde_json::Value = serde_json::from_str(&log.read(0, 1)[0].line()).unwrap();
        let expected = serde_json::json!({
            "seq": 1, "at_ms": 1, "end_ms": 9, "request_id": "req_000000000001000000000002", "key": "abcd",
            "method": "POST", "path": "/v1/messages", "model": "claude-haiku-4-5-20251001", "pool": "haiku-4.5",
            "job": "j1", "tenant": "t1", "prompt_hash": "00000000000000ff", "stream": true, "status": 200,
            "ending": "completed", "stop_reason": "end_turn", "input_tokens": 1000,
            "cache_creation_input_tokens": 110, "cache_read_input_tokens": 10000, "output_tokens": 200,
            "billed": true, "cost_usd": 0.003_145, "concurrency": 3
        });
        assert_eq!(line, expected);
        log.flush().unwrap();
    }

    #[test]
    fn since_finds_its_place_across_segments() {
        let log = log(1_000_000, 3_000);
        assert_eq!(log.read(0, 10_000).len(), 3_000);
        for since in [0, 1, 1_023, 1_024, 1_025, 2_999] {
            assert_eq!(log.read(since, 1)[0].seq, since + 1);
        }
        assert!(log.read(3_000, 10).is_empty());
        assert!(log.read(9_999, 10).is_empty());
    }

    #[test]
    fn the_ring_drops_the_oldest_and_keeps_counting() {
        let log = log(2_000, 10_000);
        assert!(log.held() <= 2_000);
        assert_eq!(log.last_seq(), 10_000);
        let first = log.first_seq().unwrap();
        assert_eq!(log.read(0, 1)[0].seq, first);
        assert_eq!(log.read(9_998, 10).len(), 2);
    }

    #[test]
    fn clearing_keeps_positions() {
        let mut log = log(100, 5);
        log.clear();
        assert!(log.read(0, 10).is_empty());
        log.push(record());
        assert_eq!(log.read(0, 10)[0].seq, 6);
        assert_eq!(log.read(5, 10).len(), 1);
    }

    #[test]
    fn the_file_gets_a_line_per_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        let mut log = Log::open(10, Some(&path)).unwrap();
        log.push(record());
        log.push(record());
        log.flush().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn only_the_tail_of_a_key_is_kept() {
        assert_eq!(KeySuffix::of("sk-ant-secret-wxyz").as_str(), "wxyz");
        assert_eq!(KeySuffix::of("ab").as_str(), "ab");
        assert_eq!(KeySuffix::of("ab\u{e9}").as_str().len(), 4);
    }

    #[test]
    fn what_is_not_billed_costs_nothing() {
        let mut free = record();
        free.billed = false;
        assert_eq!(free.cost_nano_usd(), 0);
    }
}
