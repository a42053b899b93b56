//! What tenants have spent today, from the headers of the ledger. It is read beside everything else:
//! until it is read, nobody is beyond a budget.

use std::collections::BTreeMap;

use fairlane_core::scheduler::Event;
use fairlane_core::{Millis, TenantId};
use fairlane_nats::{Index, IndexEvent, IndexItem, Nats};
use fairlane_wire::{Namespace, header};

use super::Leader;

const DAY: Millis = 86_400_000;

/// The ledger of today (UTC) and from now on.
pub(super) fn open(nats: &Nats, now: Millis) -> Index {
    let names = &nats.names;
    let today = now / DAY * DAY;
    nats.index_since(&names.ledger_stream(), &names.ledger_filter(), today)
}

/// Input tokens by tenant and day.
type Spent = BTreeMap<(TenantId, u64), u64>;

impl Leader {
    pub(super) fn apply_ledger(&mut self, events: Vec<IndexEvent>) {
        let names = &self.shell.nats.names;
        let mut spent = Spent::new();
        for event in events {
            match event {
                IndexEvent::Item(item) => match entry(names, &item) {
                    Ok((tenant, day, tokens)) => *spent.entry((tenant, day)).or_default() += tokens,
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

/// Tenant, day and input tokens of a settlement.
fn entry(names: &Namespace, item: &IndexItem) -> Result<(TenantId, u64, u64), String> {
    let tenant = names
        .parse_ledger_subject(&item.subject)
        .ok_or("its subject names no tenant")?;
    let name = header::INPUT_TOKENS;
    let value = item.headers.get(name).map(|value| value.as_str());
    let tokens = value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("header {name} is {value:?}; it must be a whole number"))?;
    Ok((tenant, item.stored_ms / DAY, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_nats::HeaderMap;

    fn item(subject: &str, tokens: Option<&str>) -> IndexItem {
        let mut headers = HeaderMap::new();
        if let Some(tokens) = tokens {
            headers.insert(header::INPUT_TOKENS, tokens);
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
    fn a_settlement_says_who_spent_what_and_when() {
        let names = Namespace::default();
        let acme = TenantId::parse("acme").unwrap();
        let good = item("fl.ledger.acme", Some("120"));
        assert_eq!(entry(&names, &good), Ok((acme, 3, 120)));
        let error = |subject, tokens| entry(&names, &item(subject, tokens)).unwrap_err();
        assert!(error("fl.ledger.a.b", Some("1")).contains("no tenant"));
        assert!(error("fl.ledger.acme", None).contains("Fl-Input-Tokens is None"));
        assert!(error("fl.ledger.acme", Some("-1")).contains("Some(\"-1\")"));
    }
}
