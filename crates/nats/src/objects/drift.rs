//! Comparing a configuration with the one wanted.

use std::fmt;

use serde_json::{Map, Value};

use super::spec::Spec;

/// How much a difference matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Fairlane would lose jobs, money or fairness.
    Breaks,
    /// A limit or a lifetime an operator may have chosen.
    Differs,
}

/// One field that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The object, for example `bucket fl_credits`.
    pub object: String,
    /// The field in the server's words.
    pub field: String,
    /// What Fairlane wants, JSON.
    pub wanted: String,
    /// What is there, JSON.
    pub found: String,
    /// How much it matters.
    pub weight: Weight,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Breaks => "BROKEN    ",
            Weight::Differs => "different ",
        };
        let Self {
            object,
            field,
            wanted,
            found,
            ..
        } = self;
        write!(f, "{weight} {object}: {field} is {found}, wanted {wanted}")
    }
}

/// Fields that are the operator's business or the server's bookkeeping.
const IGNORED: [&str; 8] = [
    "description",
    "metadata",
    "placement",
    "compression",
    "consumer_limits",
    "first_seq",
    "persist_mode",
    "num_replicas_override",
];

/// Fields without which promises do not hold, whatever the values.
const BREAKING: [&str; 20] = [
    "ack_policy",
    "allow_direct",
    "allow_msg_ttl",
    "allow_rollup_hdrs",
    "deliver_policy",
    "deliver_subject",
    "discard",
    "discard_new_per_subject",
    "filter_subject",
    "filter_subjects",
    "mirror",
    "no_ack",
    "retention",
    "sealed",
    "sources",
    "subject_delete_marker_ttl",
    "subject_transform",
    "subjects",
    "deny_purge",
    "mirror_direct",
];

/// Where `found` is not as `spec` wants it, sorted by field.
pub(super) fn compare(spec: &Spec, found: &Map<String, Value>) -> Vec<Difference> {
    let mut fields: Vec<&String> = spec.config.keys().chain(found.keys()).collect();
    fields.sort();
    fields.dedup();
    let nothing = Value::Null;
    let mut differences = Vec::new();
    for field in fields {
        let wanted = spec.config.get(field).unwrap_or(&nothing);
        let found = found.get(field).unwrap_or(&nothing);
        if IGNORED.contains(&field.as_str()) || same(wanted, found) {
            continue;
        }
        differences.push(Difference {
            object: spec.name.clone(),
            field: field.clone(),
            wanted: wanted.to_string(),
            found: found.to_string(),
            weight: weight(spec, field),
        });
    }
    differences
}

/// A field that is left out has its zero value; -1 is how the server writes "no limit".
fn same(wanted: &Value, found: &Value) -> bool {
    wanted == found || is_zero(wanted) && is_zero(found)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => matches!(number.as_i64(), Some(0 | -1)),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn weight(spec: &Spec, field: &str) -> Weight {
    // More than one message per key would show old values as current ones.
    let history = field == "max_msgs_per_subject" && spec.config["max_msgs_per_subject"] == 1;
    if history || BREAKING.contains(&field) {
        Weight::Breaks
    } else {
        Weight::Differs
    }
}

#[cfg(test)]
mod tests {
    use fairlane_wire::names::Namespace;
    use serde_json::json;

    use super::super::spec::{ObjectOptions, specs};
    use super::*;

    fn spec(name: &str) -> Spec {
        let all = specs(&Namespace::default(), &ObjectOptions::default());
        all.into_iter().find(|spec| spec.name == name).unwrap()
    }

    #[test]
    fn what_the_server_adds_or_leaves_out_is_no_difference() {
        let spec = spec("bucket fl_credits");
        let mut found = spec.config.clone();
        found.remove("max_age");
        found.insert("sealed".to_owned(), json!(false));
        found.insert("metadata".to_owned(), json!({"_nats.level": "4"}));
        found.insert("max_msg_size".to_owned(), json!(-1));
        assert_eq!(compare(&spec, &found), []);
    }

    #[test]
    fn a_changed_a_missing_and_an_added_field_are_each_reported() {
        let spec = spec("bucket fl_credits");
        let mut found = spec.config.clone();
        found.insert("num_replicas".to_owned(), json!(3));
        found.remove("allow_msg_ttl");
        found.insert("no_ack".to_owned(), json!(true));
        let told: Vec<_> = compare(&spec, &found)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
            [
                "BROKEN     bucket fl_credits: allow_msg_ttl is null, wanted true",
                "BROKEN     bucket fl_credits: no_ack is true, wanted null",
                "different  bucket fl_credits: num_replicas is 3, wanted 1",
            ]
        );
    }

    #[test]
    fn a_longer_history_breaks_a_bucket_but_a_backlog_cap_may_differ() {
        let deeper = |name: &str| {
            let spec = spec(name);
            let mut found = spec.config.clone();
            found.insert("max_msgs_per_subject".to_owned(), json!(5));
            compare(&spec, &found)[0].weight
        };
        assert_eq!(deeper("bucket fl_credits"), Weight::Breaks);
        assert_eq!(deeper("stream FL_JOBS"), Weight::Differs);
    }
}
