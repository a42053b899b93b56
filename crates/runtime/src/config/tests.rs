use std::path::Path;

use super::*;

const FILE: &str = "fairlane.toml";

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn try_all(
    file: &str,
    variables: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Loaded, ConfigError> {
    merge(
        Some((Path::new(FILE), file)),
        env(variables).into_iter(),
        &env(flags),
    )
}

fn messages(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
    try_all(file, variables, flags)
        .expect_err("the configuration is wrong")
        .to_string()
}

#[test]
fn no_source_at_all_gives_the_defaults() {
    let loaded = merge(None, std::iter::empty(), &[]).unwrap();
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.settings.nats.url, "nats://127.0.0.1:4222");
    assert_eq!(loaded.settings.results.dead_letters_keep_ms, 2_592_000_000);
    assert_eq!(loaded.settings.producer.body_bytes_max, 33_554_432);
    assert_eq!(loaded.origins.get("nats.url"), Origin::Default);
}

#[test]
fn each_layer_wins_over_the_one_below() {
    let file = "[worker]\nslots = 1\nmax_attempts = 2\nrenew_ms = 1000\n";
    let loaded = try_all(
        file,
        &[
            ("FAIRLANE__WORKER__MAX_ATTEMPTS", "3"),
            ("FAIRLANE__WORKER__RENEW_MS", "2000"),
            ("UNRELATED", "x"),
        ],
        &[("worker.renew_ms", "3000")],
    )
    .unwrap();
    let worker = &loaded.settings.worker;
    assert_eq!((worker.slots, worker.max_attempts), (1, 3));
    assert_eq!((worker.renew_ms, worker.drain_ms), (3_000, 120_000));
    let origin = |key| loaded.origins.get(key).to_string();
    assert_eq!(origin("worker.drain_ms"), "default");
    assert_eq!(origin("worker.slots"), "fairlane.toml");
    assert_eq!(
        origin("worker.max_attempts"),
        "env FAIRLANE__WORKER__MAX_ATTEMPTS"
    );
    assert_eq!(origin("worker.renew_ms"), "flag");
}

#[test]
fn unknown_keys_name_the_source_and_the_nearest_right_name() {
    assert_eq!(
        messages("[nats]\nurll = \"nats://a\"", &[], &[]),
        r#"config: unknown key "nats.urll" (from fairlane.toml); did you mean "nats.url"?"#
    );
    assert_eq!(
        messages("", &[("FAIRLANE__NATS__URLL", "nats://a")], &[]),
        r#"config: unknown key "nats.urll" (from env FAIRLANE__NATS__URLL); did you mean FAIRLANE__NATS__URL?"#
    );
    assert_eq!(
        messages("", &[], &[("nats.nmspace", "x")]),
        r#"config: unknown key "nats.nmspace" (from flag); did you mean "nats.namespace"?"#
    );
    assert_eq!(
        messages("[natts]\nurl = \"nats://a\"", &[], &[]),
        r#"config: unknown key "natts" (from fairlane.toml); did you mean "nats"?"#
    );
}

#[test]
fn a_key_in_the_wrong_section_is_found_where_it_belongs() {
    assert_eq!(
        messages("slots = 3", &[], &[]),
        r#"config: unknown key "slots" (from fairlane.toml); did you mean "worker.slots"?"#
    );
    assert!(messages("[nats]\nquantum = 3", &[], &[]).contains(r#""scheduler.quantum""#));
}

#[test]
fn with_no_near_name_the_message_lists_what_exists() {
    assert_eq!(
        messages("[results]\nzzzzzzzz = 1", &[], &[]),
        "config: unknown key \"results.zzzzzzzz\" (from fairlane.toml); known here: keep_ms, idempotency_ms, \
         dead_letters_keep_ms"
    );
}

#[test]
fn names_inside_free_maps_are_checked_too() {
    let message = messages("[tenants.acme]\nwieght = 2.0", &[], &[]);
    assert!(
        message.contains(r#""tenants.acme.wieght""#)
            && message.contains(r#""tenants.acme.weight""#),
        "{message}"
    );
}

#[test]
fn wrong_values_name_key_value_source_and_what_is_right() {
    assert_eq!(
        messages("[worker]\nslots = \"many\"", &[], &[]),
        "config: worker.slots is \"many\" (from fairlane.toml); expected a whole number from 1 to 10000"
    );
    assert_eq!(
        messages("", &[("FAIRLANE__WORKER__SLOTS", "0")], &[]),
        "config: worker.slots is \"0\" (from env FAIRLANE__WORKER__SLOTS); expected a whole number from 1 to 10000"
    );
    assert_eq!(
        messages("", &[], &[("telemetry.log_format", "xml")]),
        "config: telemetry.log_format is \"xml\" (from flag); expected \"auto\", \"text\" or \"json\""
    );
    assert_eq!(
        messages("nats = 3", &[], &[]),
        "config: nats is 3 (from fairlane.toml); expected a table"
    );
    assert_eq!(
        messages("[nats.url]\nhost = \"a\"", &[], &[]),
        "config: nats.url is a table (from fairlane.toml); expected an address starting with nats://, tls://, ws:// \
         or wss://, without user and password"
    );
}

#[test]
fn a_section_is_not_a_value() {
    let message = messages("", &[("FAIRLANE__SCHEDULER__WEIGHTS", "1")], &[]);
    assert!(message.contains("critical, standard, batch"), "{message}");
    let message = messages("", &[("FAIRLANE__NATS__URL__HOST", "1")], &[]);
    assert!(message.contains("nats.url.host"), "{message}");
}

#[test]
fn every_mistake_is_reported_at_once() {
    let error = try_all(
        "[nats]\nurll = \"a\"\nreplicas = 9",
        &[("FAIRLANE__WORKER__SLOTS", "x")],
        &[("nope", "1")],
    )
    .unwrap_err();
    assert_eq!(error.problems().len(), 4);
    assert_eq!(error.to_string().lines().count(), 4);
}

#[test]
fn broken_toml_says_where() {
    let message = messages("[nats\nurl = 1", &[], &[]);
    assert!(
        message.starts_with("config: fairlane.toml is not valid TOML: ")
            && message.contains("line 1"),
        "{message}"
    );
}

#[test]
fn map_keys_may_contain_dots_in_every_source() {
    let file =
        "[limits.pools.\"sonnet-4.x\"]\nrequests_per_minute = 50\ninput_tokens_per_minute = 7\n";
    let loaded = try_all(
        file,
        &[(
            "FAIRLANE__LIMITS__POOLS__SONNET_4_X__REQUESTS_PER_MINUTE",
            "60",
        )],
        &[("limits.pools.sonnet-4.x.output_tokens_per_minute", "8_000")],
    )
    .unwrap();
    assert_eq!(loaded.settings.limits.pools.len(), 1);
    let pool = &loaded.settings.limits.pools["sonnet-4.x"];
    assert_eq!(
        (
            pool.requests_per_minute,
            pool.input_tokens_per_minute,
            pool.output_tokens_per_minute
        ),
        (Some(60), Some(7), Some(8_000))
    );
}

#[test]
fn a_new_map_key_from_the_environment_is_lower_case_unless_written_otherwise() {
    let loaded = try_all(
        "",
        &[
            ("FAIRLANE__TENANTS__ACME__PLAN", "pro"),
            ("FAIRLANE__TENANTS__Beta__WEIGHT", "2"),
        ],
        &[],
    )
    .unwrap();
    let tenants = &loaded.settings.tenants;
    assert_eq!(tenants["acme"].plan.as_deref(), Some("pro"));
    assert_eq!(tenants["Beta"].weight, Some(2.0));
}

#[test]
fn an_entry_without_keys_exists() {
    let loaded = try_all(
        "[tenants.acme]",
        &[("FAIRLANE__TENANTS__ACME__WEIGHT", "2")],
        &[],
    )
    .unwrap();
    assert_eq!(loaded.settings.tenants["acme"].weight, Some(2.0));
    let loaded = try_all("[tenants.acme]", &[], &[]).unwrap();
    assert_eq!(loaded.settings.tenants["acme"], Tenant::default());
}

#[test]
fn the_empty_text_takes_an_optional_value_away() {
    let loaded = try_all(
        "[nats]\ninbox_prefix = \"_IN\"",
        &[("FAIRLANE__NATS__INBOX_PREFIX", "")],
        &[],
    )
    .unwrap();
    assert_eq!(loaded.settings.nats.inbox_prefix, None);
    let message = messages("", &[("FAIRLANE__NATS__URL", "")], &[]);
    assert!(message.contains("nats.url is \"\""), "{message}");
}

#[test]
fn the_standard_otlp_variable_is_the_weakest_of_the_environment() {
    let standard = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
    let own = ("FAIRLANE__TELEMETRY__OTLP_ENDPOINT", "http://b:4318");
    let endpoint = |variables: &[(&str, &str)]| {
        let loaded = try_all(
            "[telemetry]\notlp_endpoint = \"http://f:4318\"",
            variables,
            &[],
        );
        loaded.unwrap().settings.telemetry.otlp_endpoint.unwrap()
    };
    assert_eq!(endpoint(&[]), "http://f:4318");
    assert_eq!(endpoint(&[standard]), "http://a:4318");
    assert_eq!(endpoint(&[own, standard]), "http://b:4318");
    assert_eq!(endpoint(&[standard, own]), "http://b:4318");
}

#[test]
fn a_variable_with_too_few_underscores_is_warned_about() {
    let loaded = try_all(
        "",
        &[
            ("FAIRLANE_NATS_URL", "nats://a"),
            ("FAIRLANE_WORKER_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("FAIRLANE_CONFIG", "x.toml"),
            ("FAIRLANE__WORKER__SLOTS", "3"),
        ],
        &[],
    )
    .unwrap();
    assert_eq!(
        loaded.warnings,
        ["the variable FAIRLANE_NATS_URL is not read; did you mean FAIRLANE__NATS__URL?"]
    );
    assert_eq!(loaded.settings.nats.url, Settings::default().nats.url);
}

#[test]
fn explain_lists_every_key_in_order_and_masks_secrets() {
    let loaded = try_all(
        "[nats]\nuser = \"u\"\n[tenants.b]\nplan = \"pro\"\n[tenants.a]\nweight = 2",
        &[
            ("FAIRLANE__CLAUDE__API_KEY", "sk-very-secret"),
            ("FAIRLANE__NATS__PASSWORD", "hunter2"),
        ],
        &[],
    )
    .unwrap();
    let rows = loaded.explain();
    let row = |key: &str| rows.iter().find(|row| row.key == key).unwrap();
    assert_eq!(row("claude.api_key").value.as_deref(), Some("***"));
    assert_eq!(row("nats.password").value.as_deref(), Some("***"));
    assert_eq!(
        row("nats.password").origin,
        Origin::Env("FAIRLANE__NATS__PASSWORD".to_owned())
    );
    assert_eq!(row("nats.creds_file").value, None);
    assert_eq!(row("scheduler.preference").value.as_deref(), Some("0.9"));
    assert_eq!(row("scheduler.weights.batch").value.as_deref(), Some("5"));
    assert_eq!(row("telemetry.log_format").value.as_deref(), Some("auto"));
    let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(&keys[..2], &["nats.url", "nats.namespace"]);
    let tenants: Vec<&str> = keys
        .iter()
        .copied()
        .filter(|k| k.starts_with("tenants"))
        .collect();
    assert_eq!(tenants, ["tenants.a.weight", "tenants.b.plan"]);
    for shown in [
        format!("{rows:?}"),
        format!("{loaded:?}"),
        serde_json::to_string(&loaded.settings).unwrap(),
    ] {
        assert!(
            !shown.contains("very-secret") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
    assert_eq!(
        loaded.settings.claude.api_key.unwrap().expose(),
        "sk-very-secret"
    );
}

#[test]
fn a_wrong_secret_is_not_repeated() {
    let message = messages("[claude]\napi_key = 1234567", &[], &[]);
    assert!(
        message.contains("***") && !message.contains("1234567"),
        "{message}"
    );
    let message = messages("[nats]\nurl = \"nats://u:hunter2@host:4222\"", &[], &[]);
    assert!(message.contains("without user and password"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn values_that_do_not_fit_each_other_are_refused_with_both_sources() {
    assert_eq!(
        messages("[worker]\nrenew_ms = 8000", &[], &[]),
        "config: worker.renew_ms is 8000 (from fairlane.toml), which must be at most half of scheduler.credit_ttl_ms, \
         15000 (from default): one late renewal must not lose a running job"
    );
    for (file, words) in [
        (
            "[scheduler]\nheartbeat_ms = 1001",
            "half of scheduler.takeover_after_ms, 2000",
        ),
        (
            "[scheduler]\ntakeover_after_ms = 15001",
            "at most scheduler.lease_ttl_ms, 15000",
        ),
        (
            "[scheduler]\nunstarted_ttl_ms = 15001",
            "at most scheduler.credit_ttl_ms",
        ),
        ("[nats]\nuser = \"u\"", "needs nats.password"),
        (
            "[nats]\npassword = \"p\"",
            "nats.password is *** (from fairlane.toml), which needs nats.user",
        ),
        (
            "[nats]\nuser = \"u\"\npassword = \"p\"\ncreds_file = \"f\"",
            "excludes nats.user",
        ),
        (
            "[claude]\napi_key = \"k\"\napi_key_file = \"f\"",
            "excludes claude.api_key",
        ),
    ] {
        let message = messages(file, &[], &[]);
        assert!(message.contains(words), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn the_description_and_the_struct_have_the_same_keys() {
    let described: Vec<String> = merge(None, std::iter::empty(), &[])
        .unwrap()
        .explain()
        .into_iter()
        .map(|row| row.key)
        .collect();
    let mut serialised = Vec::new();
    let json = serde_json::to_value(Settings::default()).unwrap();
    leaf_keys(&json, String::new(), &mut serialised);
    let mut sorted = described.clone();
    sorted.sort();
    serialised.sort();
    assert_eq!(sorted, serialised);
}

fn leaf_keys(value: &serde_json::Value, prefix: String, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, inner) in fields {
                let dot = if prefix.is_empty() { "" } else { "." };
                leaf_keys(inner, format!("{prefix}{dot}{name}"), keys);
            }
        }
        _ => keys.push(prefix),
    }
}

#[test]
fn a_named_file_must_exist_and_the_default_one_need_not() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(default_file(None, dir.path()), None);
    let missing = dir.path().join("missing.toml");
    let error = load(Some(&missing), std::iter::empty(), &[]).unwrap_err();
    assert!(error.to_string().contains("missing.toml"), "{error}");

    let path = dir.path().join(DEFAULT_FILE);
    std::fs::write(&path, "[worker]\nslots = 7").unwrap();
    assert_eq!(default_file(None, dir.path()), Some(path.clone()));
    assert_eq!(default_file(Some(&missing), dir.path()), Some(missing));
    let loaded = load(Some(&path), std::iter::empty(), &[]).unwrap();
    assert_eq!(loaded.settings.worker.slots, 7);
    assert_eq!(loaded.origins.get("worker.slots"), Origin::File(path));
}

const EXAMPLE: &str = include_str!("../../fairlane.example.toml");

/// The example with every key taken out of its comment; `also_examples` adds the indented examples of map entries.
fn uncommented(also_examples: bool) -> String {
    let name = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase());
    EXAMPLE
        .lines()
        .filter_map(|line| match line.strip_prefix('#') {
            None => Some(line),
            Some(key) if name(key) => Some(key),
            Some(example) => example.strip_prefix("   ").filter(|_| also_examples),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_example_file_is_the_defaults_with_and_without_comments() {
    for text in [EXAMPLE.to_owned(), uncommented(false)] {
        let loaded = try_all(&text, &[], &[]).unwrap();
        assert_eq!(loaded.settings, Settings::default());
    }
}

#[test]
fn the_example_file_sets_every_key_once_uncommented() {
    let loaded = try_all(&uncommented(true), &[], &[]).unwrap();
    let defaulted: Vec<String> = loaded
        .explain()
        .into_iter()
        .filter(|row| row.origin == Origin::Default)
        .map(|row| row.key)
        .collect();
    assert_eq!(defaulted, Vec::<String>::new());
    let settings = loaded.settings;
    assert_eq!(
        settings.limits.pools["sonnet-4.x"].requests_per_minute,
        Some(1_000)
    );
    assert_eq!(
        settings.models["claude-sonnet-4-6"].context_tokens,
        Some(1_000_000)
    );
    assert_eq!(settings.tenants["acme"].plan.as_deref(), Some("pro"));
}
