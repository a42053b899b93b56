//! What the ledger says, from the headers of its bookings: what tenants have spent today, and how the last hour went.
//! It is read beside everything else: until it is read, nobody is beyond a budget.

use std::collections::BTreeMap;

use fairlane_core::failure::Reason;
use fairlane_core::hour::Ended;
use fairlane_core::scheduler::Event;
use fairlane_core::{Millis, Priority, TenantId};
use fairlane_nats::{Index, IndexEvent, IndexItem, Nats};
use fairlane_wire::{Namespace, header};

use super::Leader;

const DAY: Millis = 86_400_000;
const HOUR: Millis = 3_600_000;

/// The ledger of today (UTC), at least of the last hour, and from now on.
pub(super) fn open(nats: &Nats, now: Millis) -> Index {
    let names = &nats.names;
    let since = (now / DAY * DAY).min(now.saturating_sub(HOUR));
    nats.index_since(&names.ledger_stream(), &names.ledger_filter(), since)
}

/// Input tokens by tenant and day.
type Spent = BTreeMap<(TenantId, u64), u64>;

/// One call, as its booking's headers tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Booking {
    tenant: TenantId,
    input_tokens: u64,
    ended: Ended,
    /// As what its job was served, and how long that had waited for its first call, if this is it.
    waited: Option<(Priority, Millis)>,
}

impl Leader {
    pub(super) fn apply_ledger(&mut self, events: Vec<IndexEvent>) {
        let names = &self.shell.nats.names;
        let mut spent = Spent::new();
        for event in events {
            match event {
                IndexEvent::Item(item) => match booking(names, &item) {
                    Ok(booking) => {
                        let at = item.stored_ms;
                        self.hour.call(at, booking.ended);
                        if let Some((priority, wait)) = booking.waited {
                            self.hour.waited(at, priority, wait);
                        }
                        *spent.entry((booking.tenant, at / DAY)).or_default() +=
                            booking.input_tokens;
                    }
                    Err(error) => {
                        tracing::warn!(
                            seq = item.seq,
                            subject = item.subject,
                            error,
                            "not a settlement"
                        );
                    }
                },
                // Nothing to do: what was spent stays spent, whatever becomes of the ledger.
                IndexEvent::Current | IndexEvent::Stale | IndexEvent::Reset => {}
            }
        }
        for ((tenant, day), input_tokens) in spent {
            self.apply(Event::Spent {
                tenant,
                day,
                input_tokens,
            });
        }
    }
}

fn booking(names: &Namespace, item: &IndexItem) -> Result<Booking, String> {
    let tenant = names
        .parse_ledger_subject(&item.subject)
        .ok_or("its subject names no tenant")?;
    let header = |name: &str| item.headers.get(name).map(|value| value.as_str());
    let number = |name: &str| {
        let value = header(name);
        value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| format!("header {name} is {value:?}; it must be a whole number"))
    };
    let by_fallback = header(header::BY_FALLBACK).is_some();
    let waited = match (header(header::PRIORITY), header(header::WAITED)) {
        (Some(priority), Some(_)) => Priority::parse(priority).zip(Some(number(header::WAITED)?)),
        (Some(_) | None, None) | (None, Some(_)) => None,
    };
    Ok(Booking {
        tenant,
        input_tokens: number(header::INPUT_TOKENS)?,
        ended: match header(header::OUTCOME) {
            Some(word) if word == Reason::Done.as_str() => Ended::Answered { by_fallback },
            Some(word) if word == Reason::Overloaded.as_str() => Ended::Overloaded,
            Some(_) | None => Ended::Otherwise,
        },
        waited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_nats::HeaderMap;

    fn item(subject: &str, values: &[(&str, &str)]) -> IndexItem {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.insert(*name, *value);
        }
        IndexItem {
            seq: 1,
            subject: subject.to_owned(),
            headers,
            size: 0,
            stored_ms: 3 * DAY + 5,
        }
    }

    #[test]
    fn a_booking_says_who_spent_what_how_it_ended_and_how_long_it_was_waited_for() {
        let names = Namespace::default();
        let read = |values: &[(&str, &str)]| booking(&names, &item("fl.ledger.acme", values));
        let acme = TenantId::parse("acme").unwrap();
        let tokens = (header::INPUT_TOKENS, "120");
        let plain = Booking {
            tenant: acme,
            input_tokens: 120,
            ended: Ended::Otherwise,
            waited: None,
        };
        assert_eq!(read(&[tokens]), Ok(plain.clone()));
        let first = [
            tokens,
            (header::OUTCOME, "done"),
            (header::PRIORITY, "batch"),
            (header::WAITED, "40"),
            (header::BY_FALLBACK, "1"),
        ];
        let expected = Booking {
            ended: Ended::Answered { by_fallback: true },
            waited: Some((Priority::Batch, 40)),
            ..plain.clone()
        };
        assert_eq!(read(&first), Ok(expected));
        let overloaded = Booking {
            ended: Ended::Overloaded,
            ..plain
        };
        assert_eq!(
            read(&[tokens, (header::OUTCOME, "overloaded")]),
            Ok(overloaded)
        );
        let error = |subject: &str, values: &[(&str, &str)]| {
            booking(&names, &item(subject, values)).unwrap_err()
        };
        assert!(error("fl.ledger.a.b", &[tokens]).contains("no tenant"));
        assert!(error("fl.ledger.acme", &[]).contains("Fl-Input-Tokens is None"));
        let wrong = [(header::INPUT_TOKENS, "-1")];
        assert!(error("fl.ledger.acme", &wrong).contains("Some(\"-1\")"));
    }
}
