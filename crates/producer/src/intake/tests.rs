use std::collections::BTreeMap;

use fairlane_core::Kind;
use fairlane_core::oversize::{Place, Policies, Policy};
use fairlane_nats::HeaderMap;
use fairlane_wire::names::{Namespace, header};
use serde_json::{Value, json};

use super::*;

const NOW_MS: u64 = 1_700_000_100_000;
const STORED_MS: u64 = 1_700_000_000_000;

fn intake() -> Intake {
    Intake::new(
        Catalog::default(),
        Kinds::default(),
        Policies::default(),
        &Settings::default(),
    )
}

fn trace() -> TraceContext {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    TraceContext::parse(parent, Some("vendor=1")).unwrap()
}

fn arrival_with(token: &str, pairs: &[(&str, &str)]) -> Arrival {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.insert(*name, *value);
    }
    let subject = format!("fl.submit.{token}");
    Arrival::read(&Namespace::default(), &subject, &headers, 7, STORED_MS)
}

fn arrival() -> Arrival {
    arrival_with("acme", &[])
}

fn decide(arrival: &Arrival, body: &[u8]) -> Decision {
    intake().decide(arrival, Body::Here(body), &trace(), NOW_MS)
}

fn accepted(arrival: &Arrival, body: &Value) -> Accept {
    match decide(arrival, body.to_string().as_bytes()) {
        Decision::Accept(accept) => *accept,
        Decision::Refuse(refuse) => panic!("{}", refuse.letter.failure.line()),
        Decision::Split(split) => panic!("{split:?}"),
    }
}

fn refuse_bytes(arrival: &Arrival, body: &[u8]) -> Refuse {
    match decide(arrival, body) {
        Decision::Refuse(refuse) => *refuse,
        Decision::Accept(accept) => panic!("{accept:?}"),
        Decision::Split(split) => panic!("{split:?}"),
    }
}

fn refuse(body: &Value) -> Refuse {
    refuse_bytes(&arrival(), body.to_string().as_bytes())
}

/// A good submission with `changes` put over it; null takes a field away.
fn job(changes: Value) -> Value {
    let mut job = json!({
        "id": "a-1",
        "origin": "user_action",
        "kind": "tagging",
        "request": {
            "model": "claude-haiku-4-5-20251001",
            "max_tokens": 1_000,
            "messages": [{"role": "user", "content": "x".repeat(340)}],
        },
    });
    merge(&mut job, changes);
    job
}

fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (name, change) in changes {
                if change.is_null() {
                    into.remove(&name);
                } else {
                    merge(into.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (into, change) => *into = change,
    }
}

#[test]
fn an_accepted_job_says_everything_in_its_headers() {
    let accept = accepted(
        &arrival(),
        &job(json!({"not_before_ms": 5, "deadline_ms": NOW_MS + 1})),
    );
    assert_eq!(accept.priority, Priority::Critical);
    let pairs: Vec<String> = accept
        .headers
        .to_pairs()
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!(
        pairs,
        [
            "Fl-Job: a-1",
            "Fl-Key: a-1",
            "Fl-Kind: tagging",
            "Fl-Model: claude-haiku-4-5-20251001",
            "Fl-Pool: haiku-4.5",
            // 340 characters of text and 15 of "role", "user" and "content" make 105 tokens.
            "Fl-Input-Tokens: 121",
            "Fl-Output-Tokens: 256",
            "Fl-Accepted: 1700000000000",
            "Fl-Not-Before: 5",
            "Fl-Deadline: 1700000100001",
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate: vendor=1",
        ]
    );
    let record = String::from_utf8(accept.record.to_json(&Namespace::default())).unwrap();
    assert_eq!(
        record,
        r#"{"tenant":"acme","job":"a-1","phase":"queued","kind":"tagging","priority":"critical","model":"claude-haiku-4-5-20251001","attempts":0,"deliveries":0,"ambiguous":0,"accepted_ms":1700000000000,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":"00f067aa0ba902b7"}"#
    );
}

#[test]
fn priority_follows_from_origin_and_service_level() {
    let of = |changes| accepted(&arrival(), &job(changes)).priority;
    assert_eq!(of(json!({"origin": "batch_job"})), Priority::Batch);
    assert_eq!(
        of(json!({"origin": "scheduled", "sla_seconds": 600})),
        Priority::Standard
    );
    assert_eq!(
        of(json!({"origin": "scheduled", "sla_seconds": 86_400})),
        Priority::Batch
    );
}

#[test]
fn the_id_comes_from_the_body_then_the_header_then_the_stream() {
    let named = arrival_with("acme", &[("Fl-Job", "from-header")]);
    let nameless = job(json!({"id": null}));
    let id = |arrival: &Arrival, body: &Value| accepted(arrival, body).headers.job.to_string();
    assert_eq!(id(&named, &job(json!({}))), "a-1");
    assert_eq!(id(&named, &nameless), "from-header");
    assert_eq!(id(&arrival(), &nameless), "j18bcfe56800-7");
    assert_eq!(
        id(&arrival_with("acme", &[("Fl-Job", "a.b")]), &nameless),
        "j18bcfe56800-7"
    );

    let id = |arrival: &Arrival, body: &[u8]| refuse_bytes(arrival, body).letter.job.to_string();
    let broken = br#"{"id":"in-front","x":"#;
    assert_eq!(id(&named, broken), "from-header");
    assert_eq!(id(&arrival(), broken), "in-front");
    assert_eq!(id(&arrival(), br#"{"id":"a.b","x":"#), "j18bcfe56800-7");
    assert_eq!(id(&arrival(), b"\xff\xfe"), "j18bcfe56800-7");
}

#[test]
fn the_key_defaults_to_the_id() {
    let keyed = accepted(&arrival(), &job(json!({"idempotency_key": "clé 1"})));
    assert_eq!(keyed.headers.key, "clé 1");
    assert_eq!(accepted(&arrival(), &job(json!({}))).headers.key, "a-1");
}

#[test]
fn what_the_model_does_not_take_is_refused_before_any_call() {
    let cases = [
        (
            json!({"request": {"model": "claude-haiku-4.5"}}),
            DeadReason::UnknownModel,
            "request.model",
            "model \"claude-haiku-4.5\" is not known to this fleet",
            "claude-haiku-4-5",
        ),
        (
            json!({"request": {"max_tokens": 64_001}}),
            DeadReason::InvalidJob,
            "request.max_tokens",
            "request.max_tokens is 64001; claude-haiku-4-5 gives at most 64000",
            "give 64000 or less",
        ),
        (
            json!({"request": {"messages": [{"role": "user", "content": "x".repeat(680_000)}]}}),
            DeadReason::Oversize,
            "request.messages",
            "about 200021 input tokens and 1000 of max_tokens do not fit into the 200000 tokens of claude-haiku-4-5",
            "larger context",
        ),
        (
            json!({"deadline_ms": NOW_MS}),
            DeadReason::Expired,
            "deadline_ms",
            "deadline_ms is 1700000100000, which is 0 ms ago",
            "still to come",
        ),
    ];
    for (changes, reason, field, message, fix) in cases {
        let refuse = refuse(&job(changes));
        let failure = &refuse.letter.failure;
        assert_eq!(
            (failure.reason, failure.field.as_deref()),
            (reason, Some(field))
        );
        assert_eq!(failure.message, message);
        let found = failure.fix.as_deref().unwrap();
        assert!(found.contains(fix), "{found}");
        // What could be read stands in the letter and in the record.
        assert_eq!(refuse.letter.kind.as_deref(), Some("tagging"));
        let record = refuse.record.unwrap();
        assert_eq!(record.phase, Phase::Failed);
        assert_eq!(record.failure.as_ref(), Some(failure));
        assert_eq!(record.priority.as_deref(), Some("critical"));
        assert_eq!(record.finished_ms, Some(NOW_MS));
        assert!(is_refused_at_the_door(&record));
    }
}

#[test]
fn the_context_is_filled_to_the_last_token_and_not_beyond() {
    // 3.4 characters a token: 664 498 and 15 around them make 195 445 tokens, 16 more are added.
    let at = |chars: usize, max_tokens: u64| {
        job(json!({"request": {
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "x".repeat(chars)}],
        }}))
    };
    let accept = accepted(&arrival(), &at(664_498, 4_539));
    assert_eq!(accept.headers.tokens.input, 195_461);
    assert_eq!(
        refuse(&at(664_498, 4_540)).letter.failure.reason,
        DeadReason::Oversize
    );
}

#[test]
fn images_and_schemas_count() {
    let image = json!({"type": "image", "source": {"type": "base64", "data": "A".repeat(9_000)}});
    let with = |changes| accepted(&arrival(), &job(changes)).headers.tokens.input;
    let plain = with(json!({"request": {"messages": [{"role": "user", "content": []}]}}));
    let two = with(json!({"request": {"messages": [{"role": "user", "content": [image, image]}]}}));
    assert_eq!(two - plain, 3_200);
    let schema = json!({"request": {"messages": [{"role": "user", "content": []}]},
        "output_schema": {"const": "x".repeat(3_400)}});
    assert!(with(schema) >= plain + 1_000);
}

#[test]
fn broken_bodies_are_refused_with_the_place() {
    let cases: [(&[u8], DeadReason, &str); 5] = [
        (
            b"",
            DeadReason::Undecodable,
            "unexpected end of JSON at byte 0",
        ),
        (
            b"{\"id\":\"a\xff\"}",
            DeadReason::Undecodable,
            "invalid UTF-8 at byte 8",
        ),
        (
            b"wp;broken",
            DeadReason::Undecodable,
            "not JSON: expected value at byte 0",
        ),
        (
            b"[]",
            DeadReason::InvalidJob,
            "a job is a JSON object, not an array",
        ),
        (b"{}", DeadReason::InvalidJob, "origin is missing"),
    ];
    for (body, reason, message) in cases {
        let failure = refuse_bytes(&arrival(), body).letter.failure;
        assert_eq!(
            (failure.reason, failure.message.as_str()),
            (reason, message)
        );
    }
}

#[test]
fn size_and_depth_of_a_body_are_bounded_by_the_configuration() {
    let mut settings = Settings::default();
    settings.producer.body_bytes_max = 1_024;
    settings.producer.nesting_max = 5;
    let intake = Intake::new(
        Catalog::default(),
        Kinds::default(),
        Policies::default(),
        &settings,
    );
    let reason = |body: &Value| {
        let body = body.to_string();
        match intake.decide(&arrival(), Body::Here(body.as_bytes()), &trace(), NOW_MS) {
            Decision::Accept(_) | Decision::Split(_) => None,
            Decision::Refuse(refuse) => Some(refuse.letter.failure.reason),
        }
    };
    assert_eq!(reason(&job(json!({}))), None);
    assert_eq!(
        reason(&job(json!({"metadata": "x".repeat(1_000)}))),
        Some(DeadReason::Oversize)
    );
    assert_eq!(reason(&job(json!({"metadata": [[[[1]]]]}))), None);
    assert_eq!(
        reason(&job(json!({"metadata": [[[[[1]]]]]}))),
        Some(DeadReason::Undecodable)
    );
}

#[test]
fn a_name_that_cannot_be_a_tenant_has_a_letter_and_no_record() {
    for token in ["Wallpaper Pro/../*>", "é", "-a", &"x".repeat(64)] {
        let refuse = refuse_bytes(&arrival_with(token, &[]), br#"{"id":"a"}"#);
        assert_eq!(refuse.letter.failure.reason, DeadReason::InvalidTenant);
        assert_eq!(refuse.letter.tenant, None);
        assert_eq!(refuse.record, None);
    }
}

#[test]
fn an_object_must_be_the_tenants_own() {
    let claim = |token: &str, name: &str, bytes: usize| {
        let arrival = arrival_with(token, &[("Fl-Claim", name)]);
        match arrival.claim(bytes) {
            Claim::None => "none".to_owned(),
            Claim::Object(name) => format!("object {name}"),
            Claim::Refused(failure) => {
                assert_eq!(failure.reason, DeadReason::InvalidJob);
                assert_eq!(failure.field.as_deref(), Some(header::CLAIM));
                failure.message
            }
        }
    };
    assert_eq!(arrival().claim(5), Claim::None);
    assert_eq!(claim("acme", "acme.1", 0), "object acme.1");
    assert_eq!(claim("a b", "a b.1", 0), "none");
    for foreign in ["other.1", "acme", "acme.", "acme-2.1", "", ".acme.1"] {
        let message = claim("acme", foreign, 0);
        assert!(
            message.ends_with("is not one of tenant acme"),
            "{foreign}: {message}"
        );
    }
    let long = format!("acme.{}", "x".repeat(251));
    assert_eq!(
        claim("acme", &long, 0),
        "the name of the object has 256 bytes"
    );
    assert_eq!(
        claim("acme", "acme.1", 3),
        "the message names an object and has a body of 3 bytes"
    );
}

#[test]
fn a_claimed_job_keeps_the_name_of_its_object() {
    let claimed = arrival_with("acme", &[("Fl-Claim", "acme.1")]);
    let accept = accepted(&claimed, &job(json!({})));
    assert_eq!(accept.headers.claim.as_deref(), Some("acme.1"));

    let failure = Failure::new(DeadReason::InvalidJob, "payload acme.1 does not exist");
    let decision = intake().decide(
        &claimed,
        Body::Unusable(b"", failure.clone()),
        &trace(),
        NOW_MS,
    );
    let Decision::Refuse(refuse) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(refuse.letter.failure, failure);
}

#[test]
fn a_full_backlog_is_a_refusal_with_the_limit() {
    let arrival = arrival();
    let refuse = accepted(&arrival, &job(json!({}))).backlog_full(&arrival, Some(100), NOW_MS);
    let failure = &refuse.letter.failure;
    assert_eq!(failure.reason, DeadReason::BacklogFull);
    assert_eq!(
        failure.message,
        "tenant acme has 100 critical jobs waiting, which is the limit"
    );
    assert!(is_refused_at_the_door(&refuse.record.unwrap()));
}

#[test]
fn under_the_assigned_id_everything_names_it() {
    let refuse = refuse(&job(json!({"origin": "x"}))).under_assigned_id();
    assert_eq!(refuse.letter.job.as_str(), "j18bcfe56800-7");
    assert_eq!(refuse.record.unwrap().job.as_str(), "j18bcfe56800-7");
}

/// Lines of the wallpaper example that no call is needed to refuse, by line number.
fn refused_lines(lines: &[&[u8]]) -> BTreeMap<usize, (String, Failure)> {
    let mut refused = BTreeMap::new();
    for (number, line) in lines.iter().enumerate().map(|(at, line)| (at + 1, line)) {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let tenant = submission::peek(line).tenant;
        let arrival = arrival_with(tenant.as_deref().unwrap_or("wallpaper-pro"), &[]);
        if let Decision::Refuse(refuse) = decide(&arrival, line) {
            refused.insert(
                number,
                (refuse.letter.job.to_string(), refuse.letter.failure),
            );
        }
    }
    refused
}

#[test]
fn eight_hundred_wallpapers_are_judged_as_expected() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/wallpapers-800.jsonl"
    );
    let bytes = std::fs::read(path).unwrap();
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let refused = refused_lines(&lines);
    let told: Vec<String> = refused
        .iter()
        .map(|(line, (job, failure))| {
            format!("{line} {job} {}: {}", failure.reason, failure.message)
        })
        .collect();
    let want = [
        "18 j18bcfe56800-7 undecodable: not JSON: expected value at byte 0",
        "112 wp-0111 undecodable: invalid UTF-8 at byte 385",
        "205 wp-0204 oversize: about 338368 input tokens and 128 of max_tokens do not fit into the 200000 tokens of claude-haiku-4-5",
        "343 wp-0342 invalid_job: request.messages is missing",
        "378 wp-0377 unknown_model: model \"claude-haiku-9\" is not known to this fleet",
        "403 wp-0402 invalid_job: priority is not the caller's to set (found \"critical\")",
        "456 wp-0455 invalid_job: origin \"user-action\" is not known",
        "501 wp-0500 undecodable: unexpected end of JSON at byte 120",
        "621 wp-0620 undecodable: not JSON: unexpected end of hex escape at byte 272",
        "651 wp-0650 undecodable: nested too deeply: more than 127 levels at byte 719",
        "721 wp-0720 invalid_tenant: tenant \"Wallpaper Pro/../*>\" contains ' '; a tenant is 1 to 63 letters, digits, '_' or '-', and starts with a letter or digit",
    ];
    assert_eq!(told, want);
    assert_eq!(
        refused[&621].1.field.as_deref(),
        Some("request.messages[0].content")
    );
}

/// A judge that cuts the kind of [`job`].
fn cutting(places: &[Place]) -> Intake {
    let cuts = Policies::of([(
        Kind::parse("tagging").unwrap(),
        Policy::Truncate(places.to_vec()),
    )]);
    Intake::new(
        Catalog::default(),
        Kinds::default(),
        cuts,
        &Settings::default(),
    )
}

#[test]
fn a_job_of_a_kind_that_may_be_cut_is_cut_to_what_fits_with_a_margin() {
    let intake = cutting(&[Place::LastUserMessage]);
    let claimed = arrival_with("acme", &[("Fl-Claim", "acme.1")]);
    // 190 000 tokens, less 1 000 for the answer, 16 of the frame and 15 characters of names: in the first
    // case at 3.4 characters a token, in the second one at one.
    for (text, chars, kept) in [("x", 800_000, 642_530), ("水", 700_000, 188_979)] {
        let body = job(json!({"metadata": 7, "request": {
            "messages": [{"role": "user", "content": text.repeat(chars)}],
        }}));
        let body = body.to_string();
        let decision = intake.decide(&claimed, Body::Here(body.as_bytes()), &trace(), NOW_MS);
        let Decision::Accept(accept) = decision else {
            panic!("{decision:?}");
        };
        let truncated = &accept.record.truncated;
        assert_eq!(accept.headers.truncated, *truncated);
        assert_eq!(truncated.len(), 1);
        assert_eq!(truncated[0].field, "request.messages[0].content");
        assert_eq!(truncated[0].from_chars, chars as u64);
        assert_eq!(truncated[0].to_chars, kept, "{text}");
        assert_eq!(accept.headers.claim, None, "the object holds another body");
        assert_eq!(accept.headers.original.as_deref(), Some("acme.1"));
        assert_eq!(accept.record.original_claim, accept.headers.original);
        let body = accept.body.unwrap();
        let cut = submission::parse(&body, &accept.tenant).unwrap();
        assert_eq!(cut.metadata, Some(json!(7)));
        let content = cut.request["messages"][0]["content"].as_str().unwrap();
        assert_eq!(content, text.repeat(usize::try_from(kept).unwrap()));
        // What is stored would be taken as it is.
        let again = intake.decide(&arrival(), Body::Here(&body), &trace(), NOW_MS);
        let Decision::Accept(again) = again else {
            panic!("{again:?}");
        };
        assert_eq!(again.body, None);
        assert_eq!(again.headers.tokens, accept.headers.tokens);
    }
}

#[test]
fn what_may_not_be_cut_or_not_enough_is_turned_away_whole() {
    let long = "x".repeat(800_000);
    let in_system = json!({"request": {"system": long}});
    let other_kind = json!({"kind": "translation", "request": {
        "messages": [{"role": "user", "content": long}],
    }});
    let intake = cutting(&[Place::LastUserMessage]);
    for changes in [in_system, other_kind] {
        let body = job(changes).to_string();
        let decision = intake.decide(&arrival(), Body::Here(body.as_bytes()), &trace(), NOW_MS);
        let Decision::Refuse(refuse) = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(refuse.letter.failure.reason, DeadReason::Oversize);
        assert_eq!(refuse.record.unwrap().truncated, []);
    }
}

#[test]
fn a_job_that_fits_is_stored_as_it_was_published_whatever_its_kind() {
    let body = job(json!({})).to_string();
    let intake = cutting(&Place::ALL);
    let decision = intake.decide(&arrival(), Body::Here(body.as_bytes()), &trace(), NOW_MS);
    let Decision::Accept(accept) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!((accept.body, accept.record.truncated), (None, vec![]));
}

#[test]
fn the_oversize_wallpaper_is_cut_if_its_kind_allows_that() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/wallpapers-800.jsonl"
    );
    let bytes = std::fs::read(path).unwrap();
    let line = bytes.split(|byte| *byte == b'\n').nth(204).unwrap();
    let tenant = submission::peek(line).tenant.unwrap();
    let kind = serde_json::from_slice::<Value>(line).unwrap()["kind"].clone();
    let cuts = Policies::of([(
        Kind::parse(kind.as_str().unwrap()).unwrap(),
        Policy::Truncate(vec![Place::LastUserMessage]),
    )]);
    let settings = Settings::default();
    let intake = Intake::new(Catalog::default(), Kinds::default(), cuts, &settings);
    let arrival = arrival_with(&tenant, &[]);
    let decision = intake.decide(&arrival, Body::Here(line), &trace(), NOW_MS);
    let Decision::Accept(accept) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(accept.headers.job.as_str(), "wp-0204");
    assert!(accept.headers.tokens.input + 128 <= 190_000);
    assert!(accept.body.unwrap().len() < line.len());
}

/// A judge that has jobs of the kind of [`job`] summarised.
fn summarising() -> Intake {
    let policies = Policies::of([(
        Kind::parse("tagging").unwrap(),
        Policy::Summarise(vec![Place::LastUserMessage]),
    )]);
    let settings = Settings::default();
    Intake::new(Catalog::default(), Kinds::default(), policies, &settings)
}

fn split(intake: &Intake, arrival: &Arrival, body: &[u8]) -> Split {
    match intake.decide(arrival, Body::Here(body), &trace(), NOW_MS) {
        Decision::Split(split) => *split,
        other => panic!("{other:?}"),
    }
}

fn too_long() -> String {
    let content = "some words. ".repeat(80_000);
    let job = job(json!({"deadline_ms": NOW_MS + 5, "request": {"messages": [
        {"role": "user", "content": content}]}}));
    job.to_string()
}

#[test]
fn a_job_that_is_summarised_has_parts_that_fit_and_are_the_same_each_time() {
    let (intake, body) = (summarising(), too_long());
    let first = split(&intake, &arrival(), body.as_bytes());
    assert_eq!(first.parts.len(), 2);
    assert_eq!(first.accept.record.phase, Phase::Accepted);
    assert_eq!(first, split(&intake, &arrival(), body.as_bytes()));
    // Sent again it has the same parts, so what is done is not paid again.
    let mut later = arrival();
    later.seq = 8;
    let redrive = split(&intake, &later, body.as_bytes());
    assert_eq!(first.parts, redrive.parts);
    let other = split(
        &intake,
        &arrival(),
        body.replace("words", "birds").as_bytes(),
    );
    assert_ne!(first.parts[0].job, other.parts[0].job);

    let record = &first.accept.record;
    let plan = PartsPlan {
        tenant: first.accept.tenant.clone(),
        job: record.job.clone(),
        subject: "fl.submit.acme".into(),
        submission: 7,
        stored_ms: 5,
        headers: Vec::new(),
        traceparent: trace().traceparent().to_owned(),
        original: "acme.1".into(),
        source: "acme.1".into(),
        round: 1,
        summary_tokens: first.summary_tokens,
        parts: first.parts.clone(),
        sent_ms: 6,
    };
    let bodies = intake.part_bodies(&plan, body.as_bytes()).unwrap();
    let link = format!("part {}", record.job);
    let of_part = arrival_with("acme", &[("Fl-Parent", &link)]);
    for (part, body) in plan.parts.iter().zip(&bodies) {
        let decision = intake.decide(&of_part, Body::Here(body), &trace(), NOW_MS);
        let Decision::Accept(accept) = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(accept.headers.job, part.job);
        assert_eq!(accept.headers.kind.as_str(), parts::KIND);
        assert_eq!(accept.priority, first.accept.priority);
        assert_eq!(accept.headers.deadline_ms, Some(NOW_MS + 5));
        let parent = Callback::Parent(record.job.clone());
        assert_eq!(accept.headers.callback, Some(parent));
    }
}

#[test]
fn a_job_is_summarised_twice_at_most_and_a_part_never_is() {
    let (intake, body) = (summarising(), too_long());
    let mut twice = arrival();
    twice.rounds = 2;
    let part = arrival_with("acme", &[("Fl-Parent", "part a")]);
    for arrival in [twice, part] {
        let decision = intake.decide(&arrival, Body::Here(body.as_bytes()), &trace(), NOW_MS);
        let Decision::Refuse(refuse) = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(refuse.letter.failure.reason, DeadReason::Oversize);
    }
}

#[test]
fn a_job_that_was_cut_and_is_sent_again_without_its_whole_body_still_says_so() {
    let cut = r#"[{"field":"request.system","from_chars":900,"to_chars":300}]"#;
    let redrive = r#"{"letter":7,"run":"r-1","job":"a","lineage":[]}"#;
    let sent = arrival_with("acme", &[("Fl-Truncated", cut), ("Fl-Redrive", redrive)]);
    let accept = accepted(&sent, &job(json!({})));
    assert_eq!(accept.record.truncated[0].from_chars, 900);
    assert_eq!(accept.headers.truncated, accept.record.truncated);
    let plain = arrival_with("acme", &[("Fl-Truncated", cut)]);
    let accept = accepted(&plain, &job(json!({})));
    assert_eq!(accept.record.truncated, [], "nobody else can say so");
}
