//! Which smaller model may answer a job during an overload, decided before any call.

use fairlane_core::Tokens;
use fairlane_core::fallback::{Ineligible, Kinds, plan};
use fairlane_core::models::Catalog;
use fairlane_wire::FallbackRecord;
use fairlane_wire::fallback::{asks, barred};
use fairlane_wire::job::Fallback;
use fairlane_wire::submission::{FallbackChoice, Submission};

use super::{OUTPUT_TOKENS_EXPECTED, size};

/// What the job's headers and its record say about its fallback.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Chosen {
    pub(super) header: Option<Fallback>,
    /// None where there is nothing to say: most models have no smaller one.
    pub(super) record: Option<FallbackRecord>,
}

pub(super) fn choose(catalog: &Catalog, kinds: &Kinds, job: &Submission) -> Chosen {
    match eligible(catalog, kinds, job) {
        Ok(fallback) => Chosen {
            record: Some(FallbackRecord {
                model: Some(fallback.model.to_string()),
                ..FallbackRecord::default()
            }),
            header: Some(fallback),
        },
        Err(Ineligible::NoPair { .. }) => Chosen::default(),
        Err(why) => Chosen {
            header: None,
            record: Some(FallbackRecord {
                barred: Some(barred(&why)),
                ..FallbackRecord::default()
            }),
        },
    }
}

fn eligible(catalog: &Catalog, kinds: &Kinds, job: &Submission) -> Result<Fallback, Ineligible> {
    let (model, changes) = plan(catalog, &job.model, &asks(job))?;
    match job.on_overload.fallback {
        FallbackChoice::Never => return Err(Ineligible::Never),
        FallbackChoice::ByKind if kinds.may_fall_back(&job.kind) => {}
        FallbackChoice::ByKind => {
            return Err(Ineligible::Kind {
                kind: job.kind.clone(),
            });
        }
    }
    Ok(Fallback {
        model: model.id.clone(),
        pool: model.pool.clone(),
        tokens: Tokens {
            input: size::input_tokens(job, model),
            output: changes.max_tokens.min(OUTPUT_TOKENS_EXPECTED),
        },
    })
}

#[cfg(test)]
mod tests {
    use fairlane_core::TenantId;
    use fairlane_wire::submission::parse;
    use serde_json::{Value, json};

    use super::*;

    fn chosen(fields: Value) -> Chosen {
        let mut body = json!({"origin": "scheduled", "kind": "tagging", "request": {
            "model": "claude-sonnet-4-6", "max_tokens": 100,
            "messages": [{"role": "user", "content": "静".repeat(1_000)}]}});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let tenant = TenantId::parse("acme").unwrap();
        let job = parse(body.to_string().as_bytes(), &tenant).unwrap();
        choose(&Catalog::default(), &Kinds::default(), &job)
    }

    fn barred(fields: Value) -> String {
        let chosen = chosen(fields);
        assert_eq!(chosen.header, None);
        chosen.record.unwrap().barred.unwrap()
    }

    #[test]
    fn an_eligible_job_names_its_smaller_model_and_what_it_takes_there() {
        let chosen = chosen(json!({}));
        let fallback = chosen.header.unwrap();
        assert_eq!(fallback.model.as_str(), "claude-haiku-4-5");
        assert_eq!(fallback.pool.as_str(), "haiku-4.5");
        assert_eq!(fallback.tokens.output, 100);
        assert!(fallback.tokens.input > 0);
        let record = chosen.record.unwrap();
        assert_eq!(record.model.as_deref(), Some("claude-haiku-4-5"));
        assert_eq!((record.barred, record.used_because), (None, None));
    }

    #[test]
    fn the_estimate_is_made_anew_for_the_other_tokenizer() {
        let request = json!({"model": "claude-haiku-4-5", "max_tokens": 100,
            "messages": [{"role": "user", "content": "x".repeat(34_000)}]});
        let mut catalog = Catalog::default();
        let id = |name: &str| fairlane_core::ModelId::parse(name).unwrap();
        catalog.set_fallback(id("claude-haiku-4-5"), id("claude-haiku-5-5"));
        let body = json!({"origin": "scheduled", "kind": "tagging", "request": request});
        let tenant = TenantId::parse("acme").unwrap();
        let job = parse(body.to_string().as_bytes(), &tenant).unwrap();
        let own = size::input_tokens(&job, catalog.find("claude-haiku-4-5").unwrap());
        let other = choose(&catalog, &Kinds::default(), &job)
            .header
            .unwrap()
            .tokens
            .input;
        assert!(other * 100 / own >= 130, "{own} {other}");
    }

    #[test]
    fn a_job_that_keeps_to_its_own_model_is_told_why() {
        let kind = barred(json!({"kind": "long_form_writing"}));
        assert_eq!(
            kind,
            "no fallback: jobs of kind long_form_writing do not fall back"
        );
        let never = barred(json!({"on_overload": {"fallback": "never"}}));
        assert_eq!(never, "no fallback: its owner wants no other model");
        let long = barred(
            json!({"request": {"model": "claude-sonnet-4-6", "max_tokens": 100_000,
            "messages": [{"role": "user", "content": "hi"}]}}),
        );
        assert!(
            long.contains("claude-haiku-4-5 gives at most 64000"),
            "{long}"
        );
        let small = chosen(
            json!({"request": {"model": "claude-haiku-4-5", "max_tokens": 100,
            "messages": [{"role": "user", "content": "hi"}]}}),
        );
        assert_eq!(small, Chosen::default(), "nothing to say");
    }
}
