//! The upstream's `usage` objects, and what they come to over a stream.

use fairlane_core::price::{Geo, Service, Speed, Terms, Usage};
use serde::Deserialize;
use serde_json::Value;

/// The part of a `usage` object that has a price. Fields that are absent or null say nothing.
#[derive(Debug, Default, Deserialize)]
struct Wire {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation: Option<CacheCreation>,
    output_tokens_details: Option<OutputDetails>,
    server_tool_use: Option<ServerToolUse>,
    service_tier: Option<String>,
    speed: Option<String>,
    inference_geo: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct CacheCreation {
    #[serde(default)]
    ephemeral_5m_input_tokens: u64,
    #[serde(default)]
    ephemeral_1h_input_tokens: u64,
}

#[derive(Debug, Deserialize)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct ServerToolUse {
    web_search_requests: Option<u64>,
    web_fetch_requests: Option<u64>,
}

/// Reads a whole `usage` object: prices, and the circumstances that change them. `None` when it is not
/// one.
#[must_use]
pub fn read(usage: &Value) -> Option<(Usage, Terms)> {
    let wire = Wire::deserialize(usage).ok()?;
    let (cache_write_5m, cache_write_1h) = wire.cache_writes();
    let tools = wire.server_tool_use.as_ref();
    let details = wire.output_tokens_details.as_ref();
    let usage = Usage {
        input: wire.input_tokens.unwrap_or(0),
        cache_write_5m,
        cache_write_1h,
        cache_read: wire.cache_read_input_tokens.unwrap_or(0),
        output: wire.output_tokens.unwrap_or(0),
        thinking: details
            .and_then(|details| details.thinking_tokens)
            .unwrap_or(0),
        web_search_requests: tools
            .and_then(|tools| tools.web_search_requests)
            .unwrap_or(0),
        web_fetch_requests: tools
            .and_then(|tools| tools.web_fetch_requests)
            .unwrap_or(0),
    };
    Some((usage, wire.terms()))
}

impl Wire {
    /// Five-minute and one-hour writes. Only the first usage of a stream splits them; when the total
    /// has grown since, the rest goes to the sort that was used, and to the dearer one if both were.
    fn cache_writes(&self) -> (u64, u64) {
        let CacheCreation {
            ephemeral_5m_input_tokens: short,
            ephemeral_1h_input_tokens: long,
        } = *self
            .cache_creation
            .as_ref()
            .unwrap_or(&CacheCreation::default());
        let split = short.saturating_add(long);
        let rest = self
            .cache_creation_input_tokens
            .unwrap_or(split)
            .saturating_sub(split);
        if long == 0 {
            (short.saturating_add(rest), 0)
        } else {
            (short, long.saturating_add(rest))
        }
    }

    fn terms(&self) -> Terms {
        let is = |field: &Option<String>, word| field.as_deref() == Some(word);
        Terms {
            speed: if is(&self.speed, "fast") {
                Speed::Fast
            } else {
                Speed::Standard
            },
            geo: if is(&self.inference_geo, "us") {
                Geo::Us
            } else {
                Geo::Global
            },
            service: if is(&self.service_tier, "batch") {
                Service::Batch
            } else {
                Service::Immediate
            },
        }
    }
}

/// Merges a later, cumulative `usage` into an earlier one: what it gives replaces, what it leaves out or
/// gives as null stays.
pub(crate) fn merge(usage: &mut Value, later: &Value) {
    let (Some(usage), Some(later)) = (usage.as_object_mut(), later.as_object()) else {
        return;
    };
    for (key, value) in later {
        if !value.is_null() {
            usage.insert(key.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_full_usage_is_read_with_its_terms() {
        let (usage, terms) = read(&json!({
            "input_tokens": 10,
            "cache_creation_input_tokens": 30,
            "cache_read_input_tokens": 5,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 3},
            "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1},
            "service_tier": "batch", "speed": "fast", "inference_geo": "us", "new_field": {},
        }))
        .unwrap();
        let want = Usage {
            input: 10,
            cache_write_5m: 10,
            cache_write_1h: 20,
            cache_read: 5,
            output: 7,
            thinking: 3,
            web_search_requests: 2,
            web_fetch_requests: 1,
        };
        assert_eq!(usage, want);
        assert_eq!(
            terms,
            Terms {
                speed: Speed::Fast,
                geo: Geo::Us,
                service: Service::Batch
            }
        );
    }

    #[test]
    fn nulls_and_missing_fields_are_nothing_and_nonsense_is_none() {
        let (usage, terms) =
            read(&json!({"input_tokens": 3, "cache_creation": null, "server_tool_use": null}))
                .unwrap();
        assert_eq!(
            usage,
            Usage {
                input: 3,
                ..Usage::default()
            }
        );
        assert_eq!(terms, Terms::default());
        assert_eq!(read(&json!({"input_tokens": "many"})), None);
        assert_eq!(read(&json!(null)), None);
    }

    #[test]
    fn the_split_of_cache_writes_survives_a_later_total() {
        let mut usage = json!({
            "input_tokens": 10, "output_tokens": 1, "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        });
        merge(
            &mut usage,
            &json!({"output_tokens": 40, "input_tokens": null, "cache_creation_input_tokens": 30}),
        );
        let (merged, _) = read(&usage).unwrap();
        assert_eq!((merged.input, merged.output), (10, 40));
        assert_eq!((merged.cache_write_5m, merged.cache_write_1h), (10, 20));
        merge(&mut usage, &json!({"cache_creation_input_tokens": 35}));
        let (grown, _) = read(&usage).unwrap();
        assert_eq!(
            (grown.cache_write_5m, grown.cache_write_1h),
            (10, 25),
            "the dearer sort"
        );
        let (unsplit, _) = read(&json!({"cache_creation_input_tokens": 9})).unwrap();
        assert_eq!((unsplit.cache_write_5m, unsplit.cache_write_1h), (9, 0));
    }
}
