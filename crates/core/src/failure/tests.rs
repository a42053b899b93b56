use super::*;

fn answer(status: u16, kind: ErrorKind) -> ErrorAnswer {
    ErrorAnswer {
        status,
        kind,
        code: None,
        hint: None,
        retry_after: None,
        should_retry: None,
        place: Place::BeforeStream,
    }
}

fn error(status: u16, kind: ErrorKind) -> Ending {
    Ending::Error(answer(status, kind))
}

fn in_stream(kind: ErrorKind, progressed: bool) -> Ending {
    Ending::Error(ErrorAnswer {
        place: Place::InStream { progressed },
        ..answer(200, kind)
    })
}

fn coded(status: u16, kind: ErrorKind, code: &str) -> Ending {
    Ending::Error(ErrorAnswer {
        code: Some(ErrorCode::parse(code)),
        ..answer(status, kind)
    })
}

fn said(status: u16, kind: ErrorKind, message: &str) -> Ending {
    Ending::Error(ErrorAnswer {
        hint: Hint::read(message),
        ..answer(status, kind)
    })
}

fn timed(status: u16, kind: ErrorKind, seconds: u16) -> Ending {
    let retry_after = Some(RetryAfter::from_secs(seconds));
    Ending::Error(ErrorAnswer {
        retry_after,
        ..answer(status, kind)
    })
}

/// One of each ending that matters, with a name for people.
fn catalogue() -> Vec<(&'static str, Ending)> {
    use ErrorKind as K;
    use StopReason as S;
    let refusal = |category| Ending::Message(S::Refusal(RefusalCategory::parse(category)));
    let cap = Ending::Error(ErrorAnswer {
        retry_after: RetryAfter::from_ms(20 * 24 * 3_600_000),
        should_retry: Some(false),
        ..answer(429, K::Billing)
    });
    vec![
        ("`end_turn`", Ending::Message(S::EndTurn)),
        ("`tool_use`", Ending::Message(S::ToolUse)),
        ("`stop_sequence`", Ending::Message(S::StopSequence)),
        ("`pause_turn`", Ending::Message(S::PauseTurn)),
        ("`compaction`", Ending::Message(S::Compaction)),
        ("`max_tokens`", Ending::Message(S::MaxTokens)),
        ("`refusal`, no category", refusal(None)),
        ("`refusal`, category bio", refusal(Some("bio"))),
        (
            "`model_context_window_exceeded`",
            Ending::Message(S::ContextWindowExceeded),
        ),
        (
            "any other stop reason",
            Ending::Message(S::parse("new_reason", None)),
        ),
        ("output breaks its schema", Ending::SchemaViolated),
        ("3xx", error(307, K::Missing)),
        ("400", error(400, K::InvalidRequest)),
        (
            "400, spend limit in the text",
            said(
                400,
                K::InvalidRequest,
                "You have reached your specified API usage limits. You will regain access on 2026-12-01",
            ),
        ),
        (
            "400, credit in the text",
            said(
                400,
                K::InvalidRequest,
                "Your credit balance is too low to access the API.",
            ),
        ),
        (
            "400, prompt too long in the text",
            said(
                400,
                K::InvalidRequest,
                "prompt is too long: 210000 tokens > 200000 maximum",
            ),
        ),
        (
            "400 `organization_on_hold`",
            coded(400, K::InvalidRequest, "organization_on_hold"),
        ),
        (
            "400 `image_dimensions_too_large`",
            coded(400, K::InvalidRequest, "image_dimensions_too_large"),
        ),
        (
            "400 `cmek_key_disabled`",
            coded(400, K::InvalidRequest, "cmek_key_disabled"),
        ),
        (
            "400 `cmek_key_network_blocked`",
            coded(400, K::InvalidRequest, "cmek_key_network_blocked"),
        ),
        ("401", error(401, K::Authentication)),
        ("402", error(402, K::Billing)),
        (
            "402 `linked_organization_spend_limit_reached`",
            coded(402, K::Billing, "linked_organization_spend_limit_reached"),
        ),
        ("403", error(403, K::Permission)),
        (
            "404, model in the text",
            said(404, K::NotFound, "model: claude-none-1"),
        ),
        (
            "404, anything else",
            said(404, K::NotFound, "File not found: file_1"),
        ),
        ("404, not from the API", error(404, K::Missing)),
        ("408", error(408, K::Missing)),
        ("409", error(409, K::Conflict)),
        ("413", error(413, K::Missing)),
        ("422", error(422, K::InvalidRequest)),
        (
            "other 4xx, `invalid_request_error`",
            error(418, K::InvalidRequest),
        ),
        ("other 4xx", error(418, K::Missing)),
        ("429 with retry-after", timed(429, K::RateLimit, 16)),
        ("429 without retry-after", error(429, K::RateLimit)),
        (
            "429 `ramp_limit_exceeded`",
            coded(429, K::RateLimit, "ramp_limit_exceeded"),
        ),
        (
            "429 `enforced_spend_limit_reached`",
            coded(429, K::RateLimit, "enforced_spend_limit_reached"),
        ),
        (
            "429 `contract_spend_limit_reached`",
            coded(429, K::RateLimit, "contract_spend_limit_reached"),
        ),
        (
            "429, concurrent connections in the text",
            said(
                429,
                K::RateLimit,
                "Number of concurrent connections has exceeded your rate limit.",
            ),
        ),
        ("429 `billing_error`, retry-after of weeks", cap),
        ("499", error(499, K::Missing)),
        ("500", error(500, K::Api)),
        ("502", error(502, K::Missing)),
        ("503", error(503, K::Missing)),
        ("504", error(504, K::Timeout)),
        ("529", error(529, K::Overloaded)),
        ("529 with retry-after", timed(529, K::Overloaded, 5)),
        ("any other status", error(999, K::Missing)),
        (
            "200, then `overloaded_error`",
            in_stream(K::Overloaded, true),
        ),
        (
            "200, then `api_error` before any output",
            in_stream(K::Api, false),
        ),
        (
            "200, then an unknown error",
            in_stream(K::Unknown("new_error".into()), true),
        ),
        ("not connected", Ending::NotConnected(NotConnected::Failed)),
        (
            "not connected in time",
            Ending::NotConnected(NotConnected::Timeout),
        ),
        ("cut before the headers", Ending::Cut(Cut::BeforeHeaders)),
        ("cut after the headers", Ending::Cut(Cut::AfterHeaders)),
        (
            "cut in the middle of the answer",
            Ending::Cut(Cut::AfterProgress),
        ),
        (
            "end without `message_stop`",
            Ending::Cut(Cut::WithoutMessageStop),
        ),
        ("no first byte in time", Ending::Timeout(Timeout::FirstByte)),
        (
            "no progress, nothing read",
            Ending::Timeout(Timeout::Progress { progressed: false }),
        ),
        (
            "no progress any more",
            Ending::Timeout(Timeout::Progress { progressed: true }),
        ),
        (
            "undecodable answer",
            Ending::Undecodable { progressed: false },
        ),
        (
            "cancelled before sending",
            Ending::Cancelled(Cancelled::BeforeSending),
        ),
        (
            "cancelled after sending",
            Ending::Cancelled(Cancelled::AfterSending),
        ),
    ]
}

fn table() -> String {
    let mut rows = String::from(
        "| call ended as | class | reason | next | burns an attempt | breaker | pause | paid |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (name, ending) in catalogue() {
        let verdict = classify(&ending);
        let next = match verdict.next {
            Next::Keep => "keep",
            Next::Continue => "continue",
            Next::Retry => "retry",
            Next::RetryOnce => "retry once",
            Next::RetryWithMoreRoom => "retry with more room",
            Next::Wait => "wait",
            Next::DeadLetter => "dead letter",
        };
        let attempt = if verdict.burns_attempt { "yes" } else { "no" };
        let breaker = match verdict.health {
            Health::NoSample => "-",
            Health::Good => "good",
            Health::UpstreamBad => "bad (upstream)",
            Health::NetworkBad => "bad (network)",
        };
        let pause = match verdict.pause {
            None => "-".to_owned(),
            Some(Pause { scope, until }) => {
                let scope = match scope {
                    Scope::Pool => "pool",
                    Scope::Model => "model",
                    Scope::Kind => "kind",
                    Scope::Account => "account",
                    Scope::Concurrency => "concurrency",
                };
                match until {
                    Until::For(wait) => format!("{scope}, {} s", wait.ms() / 1_000),
                    Until::Probe { interval_ms } => {
                        format!("{scope}, probe every {} s", interval_ms / 1_000)
                    }
                }
            }
        };
        let paid = match verdict.paid {
            Paid::No => "no",
            Paid::Yes => "yes",
            Paid::Maybe => "maybe",
        };
        let (class, reason) = (verdict.class.as_str(), verdict.reason.as_str());
        rows += &format!(
            "| {name} | {class} | {reason} | {next} | {attempt} | {breaker} | {pause} | {paid} |\n"
        );
    }
    rows
}

/// `FAIRLANE_UPDATE=1 cargo test -p fairlane-core` writes the table anew.
#[test]
fn the_documented_table_is_what_the_function_does() {
    if std::env::var_os("FAIRLANE_UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/failure.md");
        std::fs::write(path, table()).unwrap();
        return;
    }
    assert_eq!(
        include_str!("../failure.md"),
        table(),
        "run with FAIRLANE_UPDATE=1 and look at the difference"
    );
}

#[test]
fn only_three_stop_reasons_are_success() {
    let words = [
        "end_turn",
        "tool_use",
        "stop_sequence",
        "max_tokens",
        "refusal",
        "pause_turn",
        "model_context_window_exceeded",
        "compaction",
        "",
        "END_TURN",
        "new",
    ];
    for word in words {
        let verdict = classify(&Ending::Message(StopReason::parse(word, None)));
        let success = matches!(word, "end_turn" | "tool_use" | "stop_sequence");
        assert_eq!(verdict.class == Class::Success, success, "{word}");
        assert_eq!(verdict.next == Next::Keep, success, "{word}");
    }
}

#[test]
fn the_classes_of_the_mission_hold() {
    use ErrorKind as K;
    for (status, kind) in [
        (529, K::Overloaded),
        (500, K::Api),
        (503, K::Missing),
        (504, K::Timeout),
    ] {
        let verdict = classify(&error(status, kind));
        assert_eq!(
            (verdict.class, verdict.next),
            (Class::Transient, Next::Retry),
            "{status}"
        );
        assert!(verdict.feeds_breaker() && verdict.burns_attempt, "{status}");
    }
    for status in [400, 413, 422] {
        for kind in [K::InvalidRequest, K::Missing, K::Unknown("x".into())] {
            let verdict = classify(&error(status, kind));
            assert_eq!(
                (verdict.class, verdict.next),
                (Class::Poison, Next::DeadLetter),
                "{status}"
            );
            assert_eq!(
                (verdict.health, verdict.pause),
                (Health::NoSample, None),
                "{status}"
            );
        }
    }
    for status in [401, 403] {
        let verdict = classify(&error(status, K::Missing));
        assert_eq!(
            (verdict.class, verdict.next),
            (Class::ConfigFault, Next::Wait),
            "{status}"
        );
        assert!(
            !verdict.burns_attempt && verdict.pause.is_some(),
            "{status}"
        );
    }
}

#[test]
fn each_kind_of_429_pauses_its_own_scope_and_burns_nothing() {
    use ErrorKind as K;
    let hour = Until::Probe {
        interval_ms: 3_600_000,
    };
    let secs = |secs| Until::For(RetryAfter::from_secs(secs));
    let spend_text = "You have reached your specified workspace API usage limits.";
    let cases = [
        (
            timed(429, K::RateLimit, 16),
            Class::Transient,
            Scope::Pool,
            secs(16),
        ),
        (
            coded(429, K::RateLimit, "ramp_limit_exceeded"),
            Class::Transient,
            Scope::Pool,
            secs(15),
        ),
        (
            coded(429, K::RateLimit, "enforced_spend_limit_reached"),
            Class::PoolClosing,
            Scope::Account,
            hour,
        ),
        (
            coded(429, K::RateLimit, "contract_spend_limit_reached"),
            Class::PoolClosing,
            Scope::Account,
            hour,
        ),
        (
            said(429, K::RateLimit, "too many concurrent connections"),
            Class::Transient,
            Scope::Concurrency,
            secs(15),
        ),
        (
            error(429, K::Billing),
            Class::PoolClosing,
            Scope::Account,
            hour,
        ),
        (
            said(429, K::RateLimit, spend_text),
            Class::PoolClosing,
            Scope::Account,
            hour,
        ),
        (
            error(429, K::Missing),
            Class::PoolClosing,
            Scope::Pool,
            Until::Probe {
                interval_ms: 60_000,
            },
        ),
    ];
    for (ending, class, scope, until) in cases {
        let verdict = classify(&ending);
        assert_eq!(verdict.class, class, "{ending:?}");
        assert_eq!(verdict.pause, Some(Pause { scope, until }), "{ending:?}");
        assert_eq!(
            (verdict.next, verdict.burns_attempt, verdict.paid),
            (Next::Wait, false, Paid::No)
        );
        assert_eq!(
            verdict.health,
            Health::NoSample,
            "a limit says nothing about the model: {ending:?}"
        );
    }
}

#[test]
fn a_spend_cap_ignores_the_wait_of_weeks_and_probes_hourly() {
    let cap = Ending::Error(ErrorAnswer {
        retry_after: RetryAfter::from_ms(20 * 24 * 3_600_000),
        should_retry: Some(false),
        ..answer(429, ErrorKind::Billing)
    });
    let verdict = classify(&cap);
    let until = Until::Probe {
        interval_ms: 3_600_000,
    };
    assert_eq!(
        verdict.pause,
        Some(Pause {
            scope: Scope::Account,
            until
        })
    );
    assert_eq!(verdict.retry_after, None);
}

#[test]
fn a_tenants_own_words_in_a_message_close_nothing() {
    for words in [
        "You have reached your specified",
        "Your credit balance is too low",
    ] {
        let message = format!("messages.0.role: Input should be 'user', not '{words}'");
        let verdict = classify(&said(400, ErrorKind::InvalidRequest, &message));
        assert_eq!(
            (verdict.class, verdict.pause),
            (Class::Poison, None),
            "{words}"
        );
    }
}

#[test]
fn a_429_in_a_stream_pauses_like_one_before_it() {
    let ending = Ending::Error(ErrorAnswer {
        retry_after: Some(RetryAfter::from_secs(7)),
        place: Place::InStream { progressed: false },
        ..answer(200, ErrorKind::RateLimit)
    });
    let until = Until::For(RetryAfter::from_secs(7));
    assert_eq!(
        classify(&ending).pause,
        Some(Pause {
            scope: Scope::Pool,
            until
        })
    );
}

#[test]
fn exhausted_accounts_are_no_bad_input_wherever_they_are_told() {
    let credit = "Your credit balance is too low to access the Anthropic API.";
    for status in [400, 429] {
        for text in [credit, "You have reached your specified API usage limits."] {
            let verdict = classify(&said(status, ErrorKind::InvalidRequest, text));
            assert_eq!(
                (verdict.class, verdict.next),
                (Class::PoolClosing, Next::Wait),
                "{status} {text}"
            );
        }
    }
    assert_eq!(
        classify(&error(402, ErrorKind::Billing)).class,
        Class::PoolClosing
    );
    assert_eq!(
        classify(&error(400, ErrorKind::Billing)).class,
        Class::PoolClosing
    );
}

#[test]
fn an_unknown_model_waits_and_never_touches_the_breaker() {
    let verdict = classify(&said(404, ErrorKind::NotFound, "model: claude-sonnet-9"));
    assert_eq!(
        (verdict.class, verdict.reason),
        (Class::ConfigFault, Reason::ModelUnavailable)
    );
    assert_eq!(verdict.pause.map(|pause| pause.scope), Some(Scope::Model));
    assert!(!verdict.feeds_breaker() && !verdict.burns_attempt);
}

#[test]
fn a_missing_file_is_one_jobs_fault_and_pauses_nobody() {
    let verdict = classify(&said(404, ErrorKind::NotFound, "File not found: file_011"));
    assert_eq!((verdict.class, verdict.pause), (Class::Poison, None));
}

#[test]
fn what_nobody_told_us_is_ambiguous_and_what_was_never_sent_is_not() {
    for ending in [
        Ending::Cut(Cut::BeforeHeaders),
        Ending::Cut(Cut::WithoutMessageStop),
        Ending::Timeout(Timeout::FirstByte),
        Ending::Cancelled(Cancelled::AfterSending),
        Ending::Undecodable { progressed: false },
    ] {
        let verdict = classify(&ending);
        assert_eq!(
            (verdict.class, verdict.next),
            (Class::Ambiguous, Next::RetryOnce),
            "{ending:?}"
        );
        assert_ne!(verdict.paid, Paid::No, "{ending:?}");
    }
    for ending in [
        Ending::NotConnected(NotConnected::Failed),
        Ending::NotConnected(NotConnected::Timeout),
        Ending::Cancelled(Cancelled::BeforeSending),
    ] {
        let verdict = classify(&ending);
        assert_eq!(
            (verdict.class, verdict.paid),
            (Class::Transient, Paid::No),
            "{ending:?}"
        );
        assert!(!verdict.burns_attempt, "{ending:?}");
    }
}

#[test]
fn a_header_may_keep_a_job_alive_but_not_kill_it() {
    let told = |status, kind, should_retry| {
        classify(&Ending::Error(ErrorAnswer {
            should_retry,
            ..answer(status, kind)
        }))
        .next
    };
    assert_eq!(
        told(400, ErrorKind::InvalidRequest, Some(true)),
        Next::Retry
    );
    assert_eq!(
        told(400, ErrorKind::InvalidRequest, Some(false)),
        Next::DeadLetter
    );
    assert_eq!(told(500, ErrorKind::Api, Some(false)), Next::Retry);
    assert_eq!(told(529, ErrorKind::Overloaded, Some(false)), Next::Retry);
}

#[test]
fn an_overload_keeps_its_wait_for_the_job_and_leaves_the_model_to_the_breaker() {
    let verdict = classify(&timed(529, ErrorKind::Overloaded, 5));
    assert_eq!(verdict.pause, None);
    assert_eq!(verdict.retry_after, Some(RetryAfter::from_secs(5)));
}

/// All statuses times all types, hints, headers and places, and every code.
fn every_answer(mut visit: impl FnMut(&ErrorAnswer)) {
    let kinds = [
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "timeout_error",
        "overloaded_error",
        "made_up_error",
    ];
    let hints = [
        None,
        Some(Hint::SpendLimit),
        Some(Hint::CreditTooLow),
        Some(Hint::ConcurrentConnections),
        Some(Hint::Model),
        Some(Hint::PromptTooLong),
    ];
    let places = [
        Place::BeforeStream,
        Place::InStream { progressed: false },
        Place::InStream { progressed: true },
    ];
    let codes = [None, Some(ErrorCode::parse("made_up"))];
    for status in (0..=620).chain([999, u16::MAX]) {
        for kind in kinds
            .iter()
            .map(|word| ErrorKind::parse(Some(word)))
            .chain([ErrorKind::Missing])
        {
            for hint in hints {
                for place in places {
                    for code in &codes {
                        let retry_after = (status % 2 == 0).then_some(RetryAfter::from_secs(3));
                        let kind = kind.clone();
                        let code = code.clone();
                        visit(&ErrorAnswer {
                            status,
                            kind,
                            code,
                            hint,
                            retry_after,
                            should_retry: None,
                            place,
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn every_answer_has_a_sound_verdict() {
    every_answer(|answer| {
        let ending = Ending::Error(answer.clone());
        let verdict = classify(&ending);
        let waits = verdict.next == Next::Wait;
        assert_eq!(
            waits,
            verdict.pause.is_some(),
            "who waits must know for what: {answer:?}"
        );
        assert!(
            !(waits && verdict.burns_attempt),
            "waiting costs nothing: {answer:?}"
        );
        assert!(
            !matches!(
                verdict.class,
                Class::Success | Class::Continue | Class::Grey
            ),
            "{answer:?}"
        );
        assert!(
            !(verdict.class == Class::Poison && verdict.feeds_breaker()),
            "{answer:?}"
        );
        assert_ne!(verdict.health, Health::Good, "{answer:?}");
    });
}

#[test]
fn what_is_unknown_is_transient() {
    every_answer(|answer| {
        let unknown_kind = matches!(answer.kind, ErrorKind::Unknown(_) | ErrorKind::Missing);
        let status_says_nothing = matches!(
            answer.status,
            0..=299 | 405..=407 | 410..=412 | 414..=421 | 423..=428 | 430 | 432..=498 | 500..=u16::MAX
        );
        if unknown_kind && status_says_nothing {
            let class = classify(&Ending::Error(answer.clone())).class;
            assert_eq!(class, Class::Transient, "{answer:?}");
        }
    });
    let stop = Ending::Message(StopReason::parse("something_new", None));
    assert_eq!(classify(&stop).class, Class::Transient);
}

#[test]
fn every_code_is_understood_as_documented() {
    let cases = [
        ("ramp_limit_exceeded", Some(Reason::RampLimit)),
        ("enforced_spend_limit_reached", Some(Reason::SpendLimit)),
        ("contract_spend_limit_reached", Some(Reason::SpendLimit)),
        (
            "linked_organization_spend_limit_reached",
            Some(Reason::SpendLimit),
        ),
        (
            "linked_organization_billing_unavailable",
            Some(Reason::Billing),
        ),
        ("organization_on_hold", Some(Reason::AccountOnHold)),
        ("cmek_key_disabled", Some(Reason::EncryptionKey)),
        ("cmek_key_network_blocked", Some(Reason::EncryptionKey)),
        ("cmek_key_unreachable", Some(Reason::UpstreamError)),
        ("workspace_human_review_disabled", Some(Reason::Permission)),
        ("user_profile_not_billable", Some(Reason::Permission)),
        ("user_profile_required", Some(Reason::InvalidRequest)),
        ("image_dimensions_too_large", Some(Reason::InvalidRequest)),
        (
            "request_body_encoding_unsupported",
            Some(Reason::InvalidRequest),
        ),
        (
            "request_body_too_large_after_decoding",
            Some(Reason::Oversize),
        ),
        ("compaction_unavailable", Some(Reason::Overloaded)),
        ("compaction_something", None),
        ("thread_not_found", None),
        ("made_up", None),
    ];
    for (word, want) in cases {
        assert_eq!(code_reason(&ErrorCode::parse(word)), want, "{word}");
    }
}

#[test]
fn reason_words_are_stable_unique_and_fit_a_subject() {
    for reason in Reason::ALL {
        let word = reason.as_str();
        assert_eq!(Reason::parse(word), Some(reason));
        assert!(
            word.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
            "{word}"
        );
        assert!(!reason.advice().is_empty());
    }
    assert_eq!(Reason::parse("nonsense"), None);
}

#[test]
fn every_failure_reads_as_one_short_sentence_with_a_next_step() {
    for (name, ending) in catalogue() {
        let text = describe(&ending);
        assert!(text.len() < 200, "{name}: {text}");
        assert!(
            text.contains(": ") && !text.contains('\n') && !text.ends_with('.'),
            "{name}: {text}"
        );
    }
    assert_eq!(
        describe(&error(401, ErrorKind::Authentication)),
        "the API key was refused (HTTP 401): jobs stay queued; replace the API key"
    );
}

#[test]
fn unknown_words_of_the_upstream_are_kept_short() {
    let long = "é".repeat(10_000);
    for ending in [
        Ending::Message(StopReason::parse(&long, None)),
        Ending::Message(StopReason::parse("refusal", Some(&long))),
        error(999, ErrorKind::parse(Some(&long))),
        coded(999, ErrorKind::Missing, &long),
    ] {
        assert!(format!("{ending:?}").len() < 400);
    }
}
