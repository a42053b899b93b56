//! What holds for a tenant: its record in the tenants bucket, over what the configuration says.

use fairlane_core::TenantId;
use fairlane_core::drr::Weight;
use fairlane_core::scheduler::{Config, Event, Policy};
use fairlane_nats::Entry;
use fairlane_wire::{Plan, TenantRecord, TenantRecordError};

/// Weight of tenants with the plan `pro`.
const PRO: Weight = Weight(3_000);

/// Why a record changes nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("the key is no tenant: {0}")]
    Key(String),
    #[error(transparent)]
    Record(#[from] TenantRecordError),
}

/// What a change of a tenant's record means; a record that is gone gives way to the configuration.
///
/// # Errors
/// [`Unusable`] with the field, its value, and what would be right.
pub(crate) fn policy(config: &Config, entry: &Entry) -> Result<Event, Unusable> {
    let tenant = TenantId::parse(&entry.key).map_err(|error| Unusable::Key(error.to_string()))?;
    let record = match entry.value() {
        Some(value) => TenantRecord::parse(value)?,
        None => TenantRecord::default(),
    };
    let policy = policy_with(config, &tenant, &record);
    Ok(Event::Policy { tenant, policy })
}

/// What holds for a tenant with this record of its own.
#[must_use]
pub fn policy_with(config: &Config, tenant: &TenantId, record: &TenantRecord) -> Policy {
    let base = config.tenants.get(tenant).copied();
    let base = base.unwrap_or(config.default_policy);
    let weight = record.weight.map(weight).or(record.plan.map(weight_of));
    Policy {
        weight: weight.unwrap_or(base.weight),
        in_flight_max: record.in_flight_max.unwrap_or(base.in_flight_max),
        daily_input_tokens: record.daily_input_tokens.or(base.daily_input_tokens),
        demoted_until: record.demoted_until_ms.or(base.demoted_until),
    }
}

/// A weight as people write it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked where it was read: at most 1 000"
)]
pub(crate) fn weight(written: f64) -> Weight {
    Weight(((written * 1_000.0).round() as u32).max(1))
}

/// The weight a plan gives.
pub(crate) fn weight_of(plan: Plan) -> Weight {
    match plan {
        Plan::Standard => Weight::ONE,
        Plan::Pro => PRO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use fairlane_nats::{Content, Revision};
    use fairlane_runtime::config::{Settings, Tenant};

    fn config() -> Config {
        let mut settings = Settings::default();
        let acme = Tenant {
            plan: Some("pro".to_owned()),
            daily_input_tokens: Some(7),
            ..Tenant::default()
        };
        settings.tenants.insert("acme".to_owned(), acme);
        Options::from_settings(&settings).unwrap().config
    }

    fn entry(key: &str, content: Content) -> Entry {
        Entry {
            key: key.to_owned(),
            revision: Revision(1),
            stored_ms: 0,
            content,
        }
    }

    fn live(key: &str, value: &'static str) -> Entry {
        entry(key, Content::Live(value.as_bytes().into()))
    }

    fn told(entry: &Entry) -> Policy {
        match policy(&config(), entry) {
            Ok(Event::Policy { policy, .. }) => policy,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_stands_over_the_configuration_field_by_field() {
        let base = told(&live("acme", "{}"));
        assert_eq!((base.weight, base.daily_input_tokens), (PRO, Some(7)));
        let changed = told(&live(
            "acme",
            r#"{"weight": 0.25, "in_flight_max": 2, "demoted_until_ms": 9}"#,
        ));
        let expected = Policy {
            weight: Weight(250),
            in_flight_max: 2,
            daily_input_tokens: Some(7),
            demoted_until: Some(9),
        };
        assert_eq!(changed, expected);
        let standard = told(&live("acme", r#"{"plan": "standard"}"#));
        assert_eq!(standard.weight, Weight::ONE);
        let nobody = told(&live("nobody", r#"{"plan": "pro", "weight": 2}"#));
        assert_eq!(
            nobody.weight,
            Weight(2_000),
            "a weight says more than a plan"
        );
    }

    #[test]
    fn a_record_that_is_gone_gives_way_to_the_configuration() {
        for gone in [Content::Deleted("".into()), Content::Expired] {
            assert_eq!(told(&entry("acme", gone)).weight, PRO);
        }
    }

    #[test]
    fn a_wrong_record_changes_nothing_and_says_why() {
        let error = |entry| policy(&config(), &entry).unwrap_err().to_string();
        let wrong = error(live("acme", r#"{"weight": 3000}"#));
        assert_eq!(
            wrong,
            "field weight is 3000; use a number from 0.01 to 1000"
        );
        assert!(error(live("a.b", "{}")).starts_with("the key is no tenant: "));
    }
}
