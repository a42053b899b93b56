//! `fairlane tenant`: what holds for tenants, changed from the command line.

use fairlane_support::TestNats;
use serde_json::json;

use crate::world::{Ran, World};

async fn stored(server: &TestNats, tenant: &str) -> Option<String> {
    let tenants = server.nats.bucket("fl_tenants");
    let entry = tenants.get(tenant).await.unwrap()?;
    let value = entry.value()?.to_vec();
    Some(String::from_utf8(value).unwrap())
}

#[track_caller]
fn fails(ran: &Ran, code: i32, says: &str) {
    assert_eq!(ran.code, Some(code), "{ran:#?}");
    assert!(ran.talk.contains(says), "no {says:?} in {ran:#?}");
}

#[tokio::test]
async fn settings_are_set_shown_listed_and_taken_away() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let ran = world.run(&["tenant", "ls"]).await;
    ran.has("no tenant has settings of its own; the configuration decides");

    let set = [
        "tenant",
        "set",
        "acme",
        "--plan",
        "pro",
        "--in-flight-max",
        "20",
    ];
    let ran = world.run(&set).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    ran.has("  plan                pro");
    let ran = world
        .run(&[
            "tenant",
            "set",
            "acme",
            "--weight",
            "2.5",
            "--in-flight-max",
            "",
            "-o",
            "json",
        ])
        .await;
    let record = json!({"tenant": "acme", "plan": "pro", "weight": 2.5});
    assert_eq!(ran.json(), record);
    let text = stored(&server, "acme").await.unwrap();
    assert_eq!(text, r#"{"plan":"pro","weight":2.5}"#);

    world
        .run(&["tenant", "set", "b", "--daily-input-tokens", "1_000"])
        .await;
    let ran = world.run(&["tenant", "ls", "-o", "table"]).await;
    ran.has("acme    pro   2.5     -                   -              -");
    ran.has("b       -     -       1000                -              -");
    let ran = world.run(&["tenant", "ls", "-o", "json"]).await;
    let b = json!({"tenant": "b", "daily_input_tokens": 1000});
    assert_eq!(ran.json(), json!([record, b]));

    let ran = world.run(&["tenant", "unset", "acme", "--yes"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(stored(&server, "acme").await, None);
    let ran = world.run(&["tenant", "unset", "acme", "--yes"]).await;
    fails(&ran, 3, "acme has no settings of its own");
    let ran = world.run(&["tenant", "show", "acme", "-o", "json"]).await;
    assert_eq!(ran.json(), json!({"tenant": "acme"}));
}

#[tokio::test]
async fn a_demotion_ends_at_its_time_or_by_hand() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.run(&["tenant", "set", "acme", "--weight", "2"]).await;
    let ran = world
        .run(&["tenant", "demote", "acme", "--for", "10m", "-o", "json"])
        .await;
    let until = ran.json()["demoted_until_ms"].as_i64().unwrap();
    let left = until - jiff::Timestamp::now().as_millisecond();
    assert!((500_000..=600_000).contains(&left), "{left}");
    let ran = world
        .run(&["tenant", "restore", "acme", "-o", "json"])
        .await;
    assert_eq!(ran.json(), json!({"tenant": "acme", "weight": 2.0}));
}

#[tokio::test]
async fn wrong_values_are_refused_with_what_would_be_right_and_change_nothing() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    for (flag, value, says) in [
        (
            "--plan",
            "gold",
            "field plan is \"gold\"; use \"standard\" or \"pro\"",
        ),
        (
            "--weight",
            "-1",
            "field weight is -1; use a number from 0.01 to 1000",
        ),
        ("--weight", "x", "field weight is \"x\"; use a number"),
        (
            "--in-flight-max",
            "0",
            "use a whole number from 1 to 1000000",
        ),
        ("--daily-input-tokens", "1.5", "use a whole number from 0"),
    ] {
        let ran = world.run(&["tenant", "set", "acme", flag, value]).await;
        fails(&ran, 2, says);
    }
    let ran = world.run(&["tenant", "set", "acme"]).await;
    fails(&ran, 2, "nothing to set: give --plan");
    assert_eq!(stored(&server, "acme").await, None);
}

#[tokio::test]
async fn a_record_somebody_broke_is_shown_and_not_overwritten() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let tenants = server.nats.bucket("fl_tenants");
    let broken = r#"{"wieght": 3}"#;
    tenants.put("acme", broken.into(), None).await.unwrap();
    let ran = world.run(&["tenant", "ls"]).await;
    assert!(
        ran.out.contains("acme: not usable: field \"wieght\""),
        "{ran:#?}"
    );
    let ran = world.run(&["tenant", "set", "acme", "--weight", "3"]).await;
    fails(&ran, 1, "take them away with `fairlane tenant unset acme`");
    assert_eq!(stored(&server, "acme").await.as_deref(), Some(broken));
    let ran = world.run(&["tenant", "unset", "acme", "--yes"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
}
