//! Which smaller model may answer a job during an overload, decided before any call.

use fairlane_core::Tokens;
use fairlane_core::fallback::{Ineligible, Kinds, plan};
use fairlane_core::models::Catalog;
use fairlane_wire::JobRecord;
use fairlane_wire::fallback::{asks, barred};
use fairlane_wire::job::Fallback;
use fairlane_wire::submission::{FallbackChoice, Submission};

use super::{OUTPUT_TOKENS_EXPECTED, size};

/// The header of a job that may fall back. Its record says to what, or why not; it says nothing where
/// there is nothing to say: most models have no smaller one.
pub(super) fn choose(
    catalog: &Catalog,
    kinds: &Kinds,
    job: &Submission,
    record: &mut JobRecord,
) -> Option<Fallback> {
    match eligible(catalog, kinds, job) {
        Ok(fallback) => {
            record.fallback_to = Some(fallback.model.to_string());
            Some(fallback)
        }
        Err(Ineligible::NoPair { .. }) => None,
        Err(why) => {
            record.no_fallback = Some(barred(&why));
            None
        }
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
    use fairlane_core::{JobId, TenantId};
    use fairlane_wire::Phase;
    use fairlane_wire::submission::parse;
    use serde_json::{Value, json};

    use super::*;

    fn chosen_from(catalog: &Catalog, fields: &Value) -> (Submission, Option<Fallback>, JobRecord) {
        let mut body = json!({"origin": "scheduled", "kind": "tagging", "request": {
            "model": "claude-sonnet-4-6", "max_tokens": 100,
            "messages": [{"role": "user", "content": "静".repeat(1_000)}]}});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let tenant = TenantId::parse("acme").unwrap();
        let job = parse(body.to_string().as_bytes(), &tenant).unwrap();
        let id = JobId::parse("a").unwrap();
        let mut record = JobRecord::new(tenant, id, Phase::Queued, 1);
        let fallback = choose(catalog, &Kinds::default(), &job, &mut record);
        (job, fallback, record)
    }

    fn chosen(fields: &Value) -> (Option<Fallback>, JobRecord) {
        let (_, fallback, record) = chosen_from(&Catalog::default(), fields);
        (fallback, record)
    }

    fn barred(fields: &Value) -> String {
        let (fallback, record) = chosen(fields);
        assert_eq!((fallback, record.fallback_to), (None, None));
        record.no_fallback.unwrap()
    }

    #[test]
    fn an_eligible_job_names_its_smaller_model_and_what_it_takes_there() {
        let (fallback, record) = chosen(&json!({}));
        let fallback = fallback.unwrap();
        assert_eq!(fallback.model.as_str(), "claude-haiku-4-5");
        assert_eq!(fallback.pool.as_str(), "haiku-4.5");
        assert_eq!(fallback.tokens.output, 100);
        assert!(fallback.tokens.input > 0);
        assert_eq!(record.fallback_to.as_deref(), Some("claude-haiku-4-5"));
        assert_eq!((record.no_fallback, record.fallback), (None, None));
    }

    #[test]
    fn the_estimate_is_made_anew_for_the_other_tokenizer() {
        let request = json!({"model": "claude-haiku-4-5", "max_tokens": 100,
            "messages": [{"role": "user", "content": "x".repeat(34_000)}]});
        let mut catalog = Catalog::default();
        let id = |name: &str| fairlane_core::ModelId::parse(name).unwrap();
        catalog.set_fallback(id("claude-haiku-4-5"), id("claude-haiku-5-5"));
        let (job, fallback, _) = chosen_from(&catalog, &json!({"request": request}));
        let own = size::input_tokens(&job, catalog.find("claude-haiku-4-5").unwrap());
        let other = fallback.unwrap().tokens.input;
        assert!(other * 100 / own >= 130, "{own} {other}");
    }

    #[test]
    fn a_job_that_keeps_to_its_own_model_is_told_why() {
        let kind = barred(&json!({"kind": "long_form_writing"}));
        assert_eq!(
            kind,
            "no fallback: jobs of kind long_form_writing do not fall back"
        );
        let never = barred(&json!({"on_overload": {"fallback": "never"}}));
        assert_eq!(never, "no fallback: its owner wants no other model");
        let request = |model: &str, max_tokens: u64| {
            json!({"request": {"model": model, "max_tokens": max_tokens,
                "messages": [{"role": "user", "content": "hi"}]}})
        };
        let long = barred(&request("claude-sonnet-4-6", 100_000));
        assert!(
            long.contains("claude-haiku-4-5 gives at most 64000"),
            "{long}"
        );
        let (fallback, record) = chosen(&request("claude-haiku-4-5", 100));
        assert_eq!(
            (fallback, record.no_fallback),
            (None, None),
            "nothing to say"
        );
    }
}
