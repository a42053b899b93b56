//! Every pair of models crossed with everything models differ in, judged by the simulator's own
//! table of refusals: a request that its own model takes is either taken by the other model after
//! translation, or was said to be ineligible before.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use fairlane_core::TenantId;
use fairlane_core::fallback::{Ineligible, translate};
use fairlane_core::models::{Catalog, Lifecycle, Model};
use fairlane_sim::matrix::{self, ApiVersion};
use fairlane_sim::models::Model as Upstream;
use fairlane_sim::request::understand;
use fairlane_sim::validate::{Purpose, shape};
use fairlane_wire::fallback::{apply, asks};
use fairlane_wire::submission::{Submission, parse};
use serde_json::{Map, Value, json};

/// One thing that models differ in, and the values to try.
type Feature = Vec<Value>;

fn features() -> Vec<Feature> {
    let user = json!({"role": "user", "content": "hi"});
    let tool = json!([{"name": "t", "input_schema": {"type": "object"}}]);
    let thinking = |kind: &str| json!({"thinking": {"type": kind}});
    let effort = |effort: &str| json!({"output_config": {"effort": effort}});
    let choice = |kind: Value| json!({"tools": tool, "tool_choice": kind});
    vec![
        vec![
            json!({"max_tokens": 16}),
            json!({"max_tokens": 4_096}),
            json!({"max_tokens": 128_000}),
        ],
        vec![
            json!({}),
            thinking("adaptive"),
            thinking("disabled"),
            thinking("between_tools"),
            json!({"thinking": {"type": "enabled", "budget_tokens": 1_024}}),
        ],
        vec![json!({}), effort("low"), effort("max")],
        vec![
            json!({}),
            choice(json!({"type": "auto"})),
            choice(json!({"type": "any"})),
            choice(json!({"type": "tool", "name": "t"})),
        ],
        vec![
            json!({}),
            json!({"temperature": 1}),
            json!({"temperature": 0.2}),
            json!({"top_p": 0.99}),
            json!({"temperature": 1, "top_p": 0.99}),
            json!({"top_k": 5}),
        ],
        vec![
            json!({"messages": [user]}),
            json!({"messages": [user, {"role": "assistant", "content": "{"}]}),
        ],
    ]
}

/// Every combination of one value of each feature.
fn combinations(features: &[Feature]) -> Vec<Map<String, Value>> {
    features.iter().fold(vec![Map::new()], |bodies, feature| {
        let with = |body: &Map<String, Value>, value: &Value| {
            let mut body = body.clone();
            body.extend(value.as_object().unwrap().clone());
            body
        };
        bodies
            .iter()
            .flat_map(|body| feature.iter().map(move |value| with(body, value)))
            .collect()
    })
}

/// What the upstream says to a request, its size included.
fn upstream(request: &Map<String, Value>, betas: &str, version: ApiVersion) -> Result<(), String> {
    let said = |failure: fairlane_sim::failure::Failure| failure.message;
    shape(request, Purpose::Message, betas).map_err(said)?;
    let name = request["model"].as_str().unwrap();
    let model: &'static Upstream = matrix::callable_model(name, &[]).map_err(said)?;
    matrix::check(request, model, version).map_err(said)?;
    let understood = understand(request, model).map_err(said)?;
    matrix::context(understood.input_tokens + understood.max_tokens, model).map_err(said)
}

fn job(body: Map<String, Value>, model: &Model) -> Submission {
    let mut request = body;
    request.insert("model".into(), model.id.as_str().into());
    let body = json!({"origin": "scheduled", "kind": "tagging", "request": request});
    let tenant = TenantId::parse("acme").unwrap();
    parse(body.to_string().as_bytes(), &tenant).unwrap()
}

/// Asks for the request of `from` translated to `to`: `None` if it is ineligible.
fn translated(
    from: &Model,
    to: &Model,
    job: &Submission,
) -> Result<Map<String, Value>, Ineligible> {
    let changes = translate(from, to, &asks(job))?;
    let mut request = job.request.clone();
    apply(&mut request, &to.id, &changes);
    Ok(request)
}

#[test]
fn no_translated_request_is_refused_by_the_other_model() {
    let catalog = Catalog::default();
    let models: Vec<&Model> = catalog
        .models()
        .filter(|model| model.lifecycle != Lifecycle::Retired)
        .collect();
    let bodies = combinations(&features());
    // Pair, and how many requests its first model takes, and how many of those the second may answer.
    let mut counts: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
    for version in [ApiVersion::V2023, ApiVersion::V2026] {
        for from in &models {
            for body in &bodies {
                let job = job(body.clone(), from);
                if upstream(&job.request, "", version).is_err() {
                    continue;
                }
                for to in models.iter().filter(|to| to.id != from.id) {
                    let count = counts
                        .entry((from.id.as_str(), to.id.as_str()))
                        .or_default();
                    count.0 += 1;
                    let Ok(request) = translated(from, to, &job) else {
                        continue;
                    };
                    count.1 += 1;
                    let said = upstream(&request, "", version);
                    assert_eq!(said, Ok(()), "{} -> {}: {request:?}", from.id, to.id);
                }
            }
        }
    }
    let part = |from, to| {
        let (taken, may) = counts[&(from, to)];
        f64::from(may) / f64::from(taken)
    };
    // Not by refusing everything: all that a pair refuses is an answer longer than the model gives.
    assert!(part("claude-sonnet-5-5", "claude-haiku-5-5") > 0.99);
    assert!((0.6..0.7).contains(&part("claude-sonnet-4-6", "claude-haiku-4-5")));
    for ((from, to), (taken, may)) in counts {
        assert!(taken > 100, "{from} -> {to}: {taken}");
        assert!(may > 0, "{from} -> {to}");
    }
}

#[test]
fn a_swap_of_names_would_be_refused() {
    let catalog = Catalog::default();
    let [sonnet, haiku] =
        ["claude-sonnet-4-6", "claude-haiku-4-5"].map(|name| catalog.find(name).unwrap());
    let refused = combinations(&features())
        .into_iter()
        .map(|body| job(body, sonnet))
        .filter(|job| upstream(&job.request, "", ApiVersion::V2023).is_ok())
        .filter(|job| {
            let mut request = job.request.clone();
            request.insert("model".into(), haiku.id.as_str().into());
            upstream(&request, "", ApiVersion::V2023).is_err()
        });
    assert!(refused.count() > 100);
}

#[test]
fn no_prompt_of_any_script_overflows_the_smaller_context() {
    let catalog = Catalog::default();
    let scripts = [
        "lighthouse in the mist ",
        "静かな広い絵",
        "1 2 3 4 5 6 7 8 ",
        "été à la mer ",
    ];
    for (from, to) in [
        ("claude-sonnet-4-6", "claude-haiku-4-5"),
        ("claude-sonnet-5-5", "claude-haiku-5-5"),
        ("claude-sonnet-5-5", "claude-haiku-4-5"),
        ("claude-haiku-4-5", "claude-haiku-5-5"),
    ] {
        let [from, to] = [from, to].map(|name| catalog.find(name).unwrap());
        let mut seen = [0, 0];
        for script in scripts {
            for kilobytes in [1, 50, 100, 200, 400, 800, 1_600] {
                let content = script.repeat(kilobytes * 1_000 / script.len());
                let mut body = Map::new();
                body.insert("max_tokens".into(), 4_096.into());
                body.insert(
                    "messages".into(),
                    json!([{"role": "user", "content": content}]),
                );
                let job = job(body, from);
                match translated(from, to, &job) {
                    Ok(request) => {
                        seen[0] += 1;
                        assert_eq!(upstream(&request, "", ApiVersion::V2023), Ok(()));
                    }
                    Err(why) => {
                        seen[1] += 1;
                        assert!(matches!(why, Ineligible::Context { .. }), "{why}");
                    }
                }
            }
        }
        assert!(seen[0] > 5, "{} -> {}: {seen:?}", from.id, to.id);
    }
}
