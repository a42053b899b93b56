//! Who leads, and how many worker slots are worth having: from the control bucket, without asking
//! anybody.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use fairlane_nats::Nats;
use fairlane_wire::AutoscaleRecord;
use fairlane_wire::lease::Leader;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::Format;
use crate::exit::{Exit, Outcome};
use crate::out::{print, print_json};
use crate::text;

/// Leaders say every five seconds what is wanted; after this it counts for nothing.
const AGE_MAX_MS: u64 = 30_000;

pub(super) async fn show(nats: &Nats, format: Format) -> Outcome {
    let leader: Option<Leader> = read(nats, nats.names.leader_key()).await?;
    let leader = leader.filter(|leader| !leader.released);
    let wanted: Option<AutoscaleRecord> = read(nats, nats.names.autoscale_key()).await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    match format {
        Format::Table => print(text_of(leader.as_ref(), wanted.as_ref(), now_ms))?,
        Format::Json | Format::Jsonl => {
            print_json(&document(leader.as_ref(), wanted.as_ref(), now_ms))?;
        }
    }
    Ok(Exit::Ok)
}

async fn read<T: DeserializeOwned>(nats: &Nats, key: &str) -> anyhow::Result<Option<T>> {
    let bucket = nats.bucket(&nats.names.control_bucket());
    let entry = bucket.get(key).await;
    let entry = entry.with_context(|| format!("cannot read {key}"))?;
    let value = entry.as_ref().and_then(|entry| entry.value());
    let value = value.map(|value| serde_json::from_slice(value));
    value
        .transpose()
        .with_context(|| format!("{key} is not readable"))
}

fn document(leader: Option<&Leader>, wanted: Option<&AutoscaleRecord>, now_ms: u64) -> Value {
    let mut document = json!({
        "leader": leader.map(|leader| &leader.holder),
        "term": leader.and_then(|leader| leader.term),
        "autoscale": wanted,
    });
    if let Some(wanted) = wanted {
        document["autoscale"]["age_ms"] = json!(now_ms.saturating_sub(wanted.at_ms));
    }
    document
}

fn text_of(leader: Option<&Leader>, wanted: Option<&AutoscaleRecord>, now_ms: u64) -> String {
    let leader = match leader {
        Some(Leader {
            holder,
            term: Some(term),
            ..
        }) => format!("{holder}, term {term}"),
        Some(Leader { holder, .. }) => holder.clone(),
        None => "nobody".to_owned(),
    };
    let mut rows = vec![("leader", leader)];
    match wanted {
        None => rows.push(("workers", "not said yet".to_owned())),
        Some(wanted) => {
            let age_ms = now_ms.saturating_sub(wanted.at_ms);
            let old = if age_ms > AGE_MAX_MS {
                format!(" (as of {} ago)", text::span(age_ms))
            } else {
                String::new()
            };
            rows.push(("workers", format!("{}{old}", wanted.text)));
            let terms = wanted.terms;
            rows.push((
                "slots",
                format!(
                    "{} busy, {} for all that waits, {} the upstream allows",
                    terms.in_flight, terms.demand, terms.capacity
                ),
            ));
        }
    }
    let lines = rows.iter().map(|(name, value)| format!("{name:9} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use fairlane_core::autoscale::{Reason, Signal};

    use super::*;

    fn wanted() -> AutoscaleRecord {
        AutoscaleRecord::new(
            3,
            &Signal {
                at: 100_000,
                wanted: 80,
                reason: Reason::InputTokens,
                demand: 200,
                capacity: 80,
                in_flight: 72,
                pools: Vec::new(),
            },
        )
    }

    #[test]
    fn a_fleet_says_who_leads_and_how_many_slots_are_worth_having() {
        let leader = Leader {
            holder: "scheduler-1".to_owned(),
            term: Some(3),
            released: false,
        };
        assert_eq!(
            text_of(Some(&leader), Some(&wanted()), 101_000),
            "\
leader    scheduler-1, term 3
workers   holding at 80 slots: input tokens per minute are the limit; 120 more would sit idle
slots     72 busy, 200 for all that waits, 80 the upstream allows"
        );
        let document = document(Some(&leader), Some(&wanted()), 101_000);
        assert_eq!(document["autoscale"]["wanted_slots"], 80);
        assert_eq!(document["autoscale"]["age_ms"], 1_000);
    }

    #[test]
    fn an_old_answer_says_how_old_it_is() {
        let text = text_of(None, Some(&wanted()), 200_000);
        assert!(text.starts_with("leader    nobody\n"), "{text}");
        assert!(text.contains("(as of"), "{text}");
        assert!(text_of(None, None, 0).contains("not said yet"));
    }
}
