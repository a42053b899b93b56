//! What a simulator can be told: limits, pace, keys, log. Plain fields, so that a command line and a file fit alike.

use std::{num::ParseIntError, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{fault::FaultSpec, models::PoolId};

const FIRST_BYTE_MS: u64 = 400;
const TOKENS_PER_SECOND: f64 = 80.0;
const PROMPT_MS_PER_1K: f64 = 10.0;
const LOG_CAPACITY: usize = 1_000_000;
const BODY_LIMIT_BYTES: usize = 32 * 1024 * 1024;
const PING_MS: u64 = 5_000;
const STOP_GRACE_MS: u64 = 5_000;
const ORGANIZATION: &str = "0f1e2d3c-4b5a-4968-8776-655443322110";

/// A full set of limits by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Preset {
    /// 50 requests, 30 000 input and 8 000 output tokens a minute (Haiku 50 / 50 000 / 10 000). The stress preset.
    Tier1,
    /// 1 000 / 2 000 000 / 400 000 (Fable 1 000 / 500 000 / 100 000).
    #[default]
    Start,
    /// 5 000 / 5 000 000 / 1 000 000 (Fable 2 000 / 1 500 000 / 300 000).
    Build,
    /// 10 000 / 10 000 000 / 2 000 000 (Fable 4 000 / 4 000 000 / 800 000).
    Scale,
    /// A thousand million of everything.
    Unlimited,
}

/// Limits of one pool, per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Requests a minute.
    pub rpm: u64,
    /// Input tokens a minute, cache reads not counted.
    pub itpm: u64,
    /// Output tokens a minute.
    pub otpm: u64,
    /// Calls at once, if that is limited too.
    pub concurrent: Option<u64>,
}

impl Preset {
    /// The limits of `pool` under this preset.
    #[must_use]
    pub fn limits(self, pool: PoolId) -> Limits {
        let fable = pool == PoolId::Fable5x;
        let (rpm, itpm, otpm) = match self {
            Self::Tier1 if pool.is_haiku() => (50, 50_000, 10_000),
            Self::Tier1 => (50, 30_000, 8_000),
            Self::Start if fable => (1_000, 500_000, 100_000),
            Self::Start => (1_000, 2_000_000, 400_000),
            Self::Build if fable => (2_000, 1_500_000, 300_000),
            Self::Build => (5_000, 5_000_000, 1_000_000),
            Self::Scale if fable => (4_000, 4_000_000, 800_000),
            Self::Scale => (10_000, 10_000_000, 2_000_000),
            Self::Unlimited => (1_000_000_000, 1_000_000_000, 1_000_000_000),
        };
        Limits {
            rpm,
            itpm,
            otpm,
            concurrent: None,
        }
    }

    /// Requests a minute of the token counting endpoint, which has its own limit.
    #[must_use]
    pub fn count_tokens_rpm(self) -> u64 {
        match self {
            Self::Tier1 => 100,
            Self::Start => 2_000,
            Self::Build => 4_000,
            Self::Scale => 8_000,
            Self::Unlimited => 1_000_000_000,
        }
    }
}

/// How output tokens are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum OtpmMode {
    /// As they are generated; `max_tokens` does not count.
    #[default]
    Live,
    /// `max_tokens` is reserved at the start and the rest given back at the end.
    Reserve,
}

/// Other limits for one pool, or for all of them when `pool` is `None`.
/// On a command line: `haiku-4.5:rpm=50,itpm=40000,otpm=8000` or `all:concurrent=20`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolOverride {
    /// Which pool; all when absent.
    pub pool: Option<PoolId>,
    /// Requests a minute.
    pub rpm: Option<u64>,
    /// Input tokens a minute.
    pub itpm: Option<u64>,
    /// Output tokens a minute.
    pub otpm: Option<u64>,
    /// Calls at once.
    pub concurrent: Option<u64>,
}

/// Why a pool override on the command line was not understood.
#[derive(Debug, thiserror::Error)]
pub enum PoolOverrideError {
    /// The part before the colon is missing.
    #[error("`{0}` has no colon; write for example haiku-4.5:rpm=50,itpm=40000,otpm=8000")]
    Shape(String),
    /// No such pool.
    #[error(
        "unknown pool `{0}`; use all, opus-5.5, opus-5, opus-4.x, sonnet-5.5, sonnet-5, sonnet-4.x, haiku-5.5, haiku-4.5 or fable-5.x"
    )]
    Pool(String),
    /// Not a limit name.
    #[error("unknown limit `{0}`; use rpm, itpm, otpm or concurrent")]
    Limit(String),
    /// Not a number.
    #[error("limit {name} must be a whole number, not `{value}`")]
    Number {
        /// Which limit.
        name: String,
        /// What was given.
        value: String,
        /// Why it does not parse.
        source: ParseIntError,
    },
}

impl FromStr for PoolOverride {
    type Err = PoolOverrideError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pool, limits) = text
            .split_once(':')
            .ok_or_else(|| PoolOverrideError::Shape(text.to_owned()))?;
        let mut parsed = Self {
            pool: match pool {
                "all" => None,
                name => Some(
                    PoolId::by_name(name)
                        .ok_or_else(|| PoolOverrideError::Pool(name.to_owned()))?,
                ),
            },
            ..Self::default()
        };
        for limit in limits.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = limit.split_once('=').unwrap_or((limit, ""));
            let slot = match name {
                "rpm" => &mut parsed.rpm,
                "itpm" => &mut parsed.itpm,
                "otpm" => &mut parsed.otpm,
                "concurrent" => &mut parsed.concurrent,
                _ => return Err(PoolOverrideError::Limit(name.to_owned())),
            };
            *slot = Some(value.parse().map_err(|source| PoolOverrideError::Number {
                name: name.to_owned(),
                value: value.to_owned(),
                source,
            })?);
        }
        Ok(parsed)
    }
}

/// Everything a simulator can be told. `SimConfig::default()` is a realistic upstream with the `start` limits.
#[derive(Clone, Debug, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct SimConfig {
    /// Set of rate limits
    #[arg(long, value_enum, default_value_t)]
    pub preset: Preset,
    /// Other limits for one pool, e.g. haiku-4.5:rpm=50,itpm=40000,otpm=8000 (repeatable; `all:` for every pool)
    #[arg(long = "pool", value_name = "POOL:LIMITS")]
    pub pools: Vec<PoolOverride>,
    /// Whether output tokens are charged as generated or max_tokens is reserved
    #[arg(long, value_enum, default_value_t)]
    pub otpm_mode: OtpmMode,
    /// Seconds worth of requests a burst may use at most (60 = the whole minute at once)
    #[arg(long, default_value_t = 60.0)]
    pub request_burst_seconds: f64,
    /// Time to the first byte, in milliseconds
    #[arg(long, default_value_t = FIRST_BYTE_MS)]
    pub first_byte_ms: u64,
    /// Extra time to the first byte per 1 000 input tokens, in milliseconds
    #[arg(long, default_value_t = PROMPT_MS_PER_1K)]
    pub prompt_ms_per_1k: f64,
    /// Output tokens a second of one call
    #[arg(long, default_value_t = TOKENS_PER_SECOND)]
    pub tokens_per_second: f64,
    /// Divides every service time (10 = ten times faster, 0 = answer at once); refill of the limits is not scaled
    #[arg(long, default_value_t = 1.0)]
    pub time_scale: f64,
    /// Spread of service times: 0.2 makes each call up to 20 % faster or slower
    #[arg(long, default_value_t = 0.0)]
    pub jitter: f64,
    /// Answer at once, all stream events in one go
    #[arg(long)]
    pub zero_latency: bool,
    /// Seed of jitter and fault probabilities
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Accepted API keys; any non-empty key when none is given (repeatable)
    #[arg(long = "api-key", value_name = "KEY")]
    pub api_keys: Vec<String>,
    /// Model ids that answer 404 besides those already retired (repeatable)
    #[arg(long = "retired-model", value_name = "MODEL")]
    pub retired_models: Vec<String>,
    /// Calls kept in memory for /sim/log
    #[arg(long, default_value_t = LOG_CAPACITY)]
    pub log_capacity: usize,
    /// File that every call is appended to, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Largest request body, in bytes
    #[arg(long, default_value_t = BODY_LIMIT_BYTES)]
    pub body_limit_bytes: usize,
    /// Silence in a stream after which a ping is sent, in milliseconds
    #[arg(long, default_value_t = PING_MS)]
    pub ping_ms: u64,
    /// How long calls in flight may go on after the stop signal, in milliseconds
    #[arg(long, default_value_t = STOP_GRACE_MS)]
    pub stop_grace_ms: u64,
    /// Value of the anthropic-organization-id header
    #[arg(long, default_value = ORGANIZATION)]
    pub organization: String,
    /// Faults that are active from the start
    #[arg(skip)]
    pub faults: Vec<FaultSpec>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            preset: Preset::default(),
            pools: Vec::new(),
            otpm_mode: OtpmMode::default(),
            request_burst_seconds: 60.0,
            first_byte_ms: FIRST_BYTE_MS,
            prompt_ms_per_1k: PROMPT_MS_PER_1K,
            tokens_per_second: TOKENS_PER_SECOND,
            time_scale: 1.0,
            jitter: 0.0,
            zero_latency: false,
            seed: 0,
            api_keys: Vec::new(),
            retired_models: Vec::new(),
            log_capacity: LOG_CAPACITY,
            log_file: None,
            body_limit_bytes: BODY_LIMIT_BYTES,
            ping_ms: PING_MS,
            stop_grace_ms: STOP_GRACE_MS,
            organization: ORGANIZATION.to_owned(),
            faults: Vec::new(),
        }
    }
}

/// A configuration value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("sim configuration: {key} is {value}, but must be {expected}")]
pub struct ConfigError {
    key: &'static str,
    value: String,
    expected: &'static str,
}

impl SimConfig {
    /// The fast, unlimited simulator that most tests want: no latency, no limits.
    #[must_use]
    pub fn instant() -> Self {
        Self {
            preset: Preset::Unlimited,
            zero_latency: true,
            ..Self::default()
        }
    }

    /// The limits of one pool: the preset, then the overrides in order.
    #[must_use]
    pub fn limits(&self, pool: PoolId) -> Limits {
        let mut limits = self.preset.limits(pool);
        for other in &self.pools {
            if other.pool.is_some_and(|named| named != pool) {
                continue;
            }
            limits.rpm = other.rpm.unwrap_or(limits.rpm);
            limits.itpm = other.itpm.unwrap_or(limits.itpm);
            limits.otpm = other.otpm.unwrap_or(limits.otpm);
            limits.concurrent = other.concurrent.or(limits.concurrent);
        }
        limits
    }

    /// Checks the values that have a range.
    ///
    /// # Errors
    /// Names the first key that is out of range, its value, and what would be right.
    pub fn check(&self) -> Result<(), ConfigError> {
        let numbers = [
            ("time_scale", self.time_scale, 0.0, "0 (at once) or more"),
            ("prompt_ms_per_1k", self.prompt_ms_per_1k, 0.0, "0 or more"),
            (
                "tokens_per_second",
                self.tokens_per_second,
                0.001,
                "0.001 or more",
            ),
            (
                "request_burst_seconds",
                self.request_burst_seconds,
                0.001,
                "0.001 or more",
            ),
        ];
        for (key, value, least, expected) in numbers {
            if !value.is_finite() || value < least {
                let value = value.to_string();
                return Err(ConfigError {
                    key,
                    value,
                    expected,
                });
            }
        }
        let rejected = |key, value: String, expected| {
            Err(ConfigError {
                key,
                value,
                expected,
            })
        };
        if !(0.0..1.0).contains(&self.jitter) {
            return rejected("jitter", self.jitter.to_string(), "at least 0 and below 1");
        }
        if self.log_capacity == 0 {
            return rejected("log_capacity", "0".to_owned(), "1 or more");
        }
        if self.ping_ms == 0 {
            return rejected("ping_ms", "0".to_owned(), "1 or more");
        }
        if axum::http::HeaderValue::from_str(&self.organization).is_err() {
            return rejected(
                "organization",
                format!("{:?}", self.organization),
                "printable ASCII",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        config: SimConfig,
    }

    #[test]
    fn an_empty_command_line_and_an_empty_file_are_the_default() {
        use clap::Parser;
        let line = Line::parse_from(["sim"]).config;
        let file: SimConfig = serde_json::from_str("{}").unwrap();
        let default = format!("{:?}", SimConfig::default());
        assert_eq!(format!("{line:?}"), default);
        assert_eq!(format!("{file:?}"), default);
        assert!(file.check().is_ok());
    }

    #[test]
    fn overrides_replace_only_what_they_name() {
        let config = SimConfig {
            preset: Preset::Tier1,
            pools: vec![
                "all:concurrent=4".parse().unwrap(),
                "haiku-4.5:itpm=40000,otpm=8000".parse().unwrap(),
            ],
            ..SimConfig::default()
        };
        let haiku = config.limits(PoolId::Haiku45);
        assert_eq!((haiku.rpm, haiku.itpm, haiku.otpm), (50, 40_000, 8_000));
        assert_eq!(haiku.concurrent, Some(4));
        let sonnet = config.limits(PoolId::Sonnet4x);
        assert_eq!((sonnet.rpm, sonnet.itpm, sonnet.otpm), (50, 30_000, 8_000));
    }

    #[test]
    fn a_wrong_override_says_what_is_wrong() {
        for (text, part) in [
            ("haiku-4.5", "no colon"),
            ("haiku-9:rpm=1", "unknown pool `haiku-9`"),
            ("all:rpn=1", "unknown limit `rpn`"),
            ("all:rpm=x", "limit rpm must be a whole number"),
        ] {
            let error = text.parse::<PoolOverride>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let config = SimConfig {
            tokens_per_second: 0.0,
            ..SimConfig::default()
        };
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("tokens_per_second"), "{error}");
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(serde_json::from_str::<SimConfig>(r#"{"presett":"build"}"#).is_err());
    }
}
