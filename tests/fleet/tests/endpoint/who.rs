//! Who may call what, and who is told what.

use fairlane_fleet_tests::api::{Answer, OPERATOR, VIEWER, message};
use fairlane_fleet_tests::{Fleet, PATIENCE};
use fairlane_support::eventually;
use reqwest::Method;
use serde_json::json;

use crate::{PROGRAM, setup};

#[tokio::test]
async fn every_operation_lets_in_whom_it_says_and_nobody_else() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let tenant = fleet.caller_of("acme").await;
    let nobody = fleet.caller();
    let (viewer, operator) = (nobody.with(VIEWER), nobody.with(OPERATOR));
    let document = nobody.get("/v1/openapi.json").await.json();
    let mut seen = [0; 5];
    for (path, item) in document["paths"].as_object().unwrap() {
        let parts: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect();
        let path = parts.join("/");
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let says = operation["description"].as_str().unwrap();
            let of = async |caller: &fairlane_fleet_tests::api::Caller| {
                let request = caller.request(method.clone(), &path).body("{");
                request.send().await.unwrap().status().as_u16()
            };
            let statuses = [
                &nobody,
                &nobody.with("flk_wrong"),
                &tenant,
                &viewer,
                &operator,
            ];
            let mut got = Vec::new();
            for caller in statuses {
                got.push(of(caller).await);
            }
            let is_read = method == Method::GET;
            let (kind, refused): (usize, [Option<u16>; 5]) = if says.starts_with("Anybody") {
                (0, [None; 5])
            } else if says.starts_with("For a tenant") {
                // An operator has to say for whom; a viewer only reads.
                let of_viewer = if is_read { None } else { Some(403) };
                (1, [Some(401), Some(401), None, of_viewer, None])
            } else if says.starts_with("With any key or token") {
                (4, [Some(401), Some(401), None, None, None])
            } else if says.starts_with("With the token of a viewer") {
                (2, [Some(401), Some(401), Some(403), None, None])
            } else {
                assert!(says.starts_with("With the token of an operator"), "{says}");
                (3, [Some(401), Some(401), Some(403), Some(403), None])
            };
            seen[kind] += 1;
            for (at, (got, refused)) in got.iter().zip(refused).enumerate() {
                match refused {
                    Some(status) => assert_eq!(*got, status, "caller {at}: {method} {path}"),
                    None => assert!(
                        ![401, 403].contains(got),
                        "caller {at}: {method} {path}: {got}"
                    ),
                }
            }
        }
    }
    assert!(seen.iter().all(|operations| *operations > 0), "{seen:?}");
}

#[tokio::test]
async fn a_key_speaks_for_its_tenant_alone_and_a_token_for_whom_it_says() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let (acme, other) = (
        fleet.caller_of("acme").await,
        fleet.caller_of("other").await,
    );
    let asked = acme.post("/v1/messages", &message("mine")).await;
    assert_eq!(asked.status, 200, "{}", asked.text);
    let job = asked.header("request-id").unwrap().to_owned();
    let path = format!("/v1/jobs/{job}");
    assert_eq!(acme.get(&path).await.json()["phase"], "done");
    let hidden = other.get(&path).await;
    assert_eq!(
        (hidden.status, hidden.error().as_str()),
        (404, "not_found_error")
    );
    let named = format!("{path}?tenant=acme");
    assert_eq!(other.get(&named).await.status, 403);
    let viewer = fleet.caller().with(VIEWER);
    assert_eq!(viewer.get(&path).await.error(), "invalid_request_error");
    assert_eq!(viewer.get(&named).await.json()["job"], job.as_str());
    let changed = viewer
        .post(&format!("{path}/cancel?tenant=acme"), &json!({}))
        .await;
    assert_eq!(
        (changed.status, changed.error().as_str()),
        (403, "permission_error")
    );
    let operator = fleet.caller().with(OPERATOR);
    let request = operator.request(Method::POST, "/v1/messages");
    let sent = request
        .header("fairlane-tenant", "other")
        .json(&message("for other"));
    let sent = sent.send().await.unwrap();
    let job = sent.headers()["request-id"].to_str().unwrap().to_owned();
    assert_eq!(
        other.get(&format!("/v1/jobs/{job}")).await.json()["tenant"],
        "other"
    );
}

#[tokio::test]
async fn a_key_that_is_revoked_is_refused_and_so_are_those_of_a_broken_record() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let operator = fleet.caller().with(OPERATOR);
    let made = operator
        .post("/v1/tenants/acme/keys", &json!({"note": "laptop"}))
        .await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    let caller = fleet.caller().with(made["secret"].as_str().unwrap());
    let until = async |what: &str, wanted: u16| {
        eventually(PATIENCE, what, || async {
            match caller.get("/v1/models").await.status {
                status if status == wanted => Ok(()),
                status => Err(status),
            }
        })
        .await;
    };
    until("the key to be let in", 200).await;
    let path = format!("/v1/tenants/acme/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(operator.send(Method::DELETE, &path).await.status, 200);
    until("the key to be refused", 401).await;
    let refused = caller.post("/v1/messages", &message("x")).await;
    assert_eq!(refused.error(), "authentication_error");
    assert!(!refused.text.contains("flk_"), "{}", refused.text);
    assert_eq!(fleet.sim.log().len(), 0, "nothing was called");
}

#[tokio::test]
async fn a_call_is_found_by_its_ids_in_the_log_which_holds_no_words_and_no_secrets() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let made = fleet.run(&["tenant", "key", "create", "acme"]).await;
    let secret = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let caller = fleet.caller().with(&secret);
    eventually(PATIENCE, "the key to be let in", || async {
        match caller.get("/v1/models").await.status {
            200 => Ok(()),
            status => Err(status),
        }
    })
    .await;
    let request = caller.request(Method::POST, "/v1/messages");
    let request = request.header("x-client-request-id", "from-the-client-7");
    let answer = request
        .json(&message("words-of-a-person"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.headers()["x-client-request-id"], "from-the-client-7");
    let id = answer.headers()["request-id"].to_str().unwrap().to_owned();
    assert_eq!(answer.headers()["fairlane-job"], id.as_str());
    assert_eq!(caller.get(&format!("/v1/jobs/{id}")).await.status, 200);
    // An error has an id as well, and repeats it.
    let wrong = caller
        .post("/v1/messages", &json!({"words-of-a-person": 1}))
        .await;
    assert_eq!(wrong.error(), "invalid_request_error");
    let wrong_id = wrong.header("request-id").unwrap();
    let too_long = caller.request(Method::GET, "/v1/models");
    let too_long = too_long.header("x-client-request-id", "y".repeat(500));
    let too_long = too_long.send().await.unwrap();
    assert!(too_long.headers().get("x-client-request-id").is_none());
    let log = fleet.producers[0].log();
    let line = |id: &str| {
        log.lines()
            .find(|line| line.contains(id) && line.contains("call"))
    };
    let found = line(&id).expect("the call is in the log");
    for word in ["from-the-client-7", "/v1/messages", "acme/", "200"] {
        assert!(found.contains(word), "{word}: {found}");
    }
    assert!(line(wrong_id).unwrap().contains("400"));
    for never in ["words-of-a-person", secret.as_str(), OPERATOR] {
        assert!(!log.contains(never), "{never} is in the log");
    }
}

#[tokio::test]
async fn without_the_operators_key_a_server_says_what_it_may_not_and_goes_on() {
    let setup = setup(&[("producer.operator_nkey_file", "")]);
    let fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let operator = fleet.caller().with(OPERATOR);
    for (method, path, body) in [
        (Method::PUT, "/v1/tenants/acme", json!({"weight": 3})),
        (Method::POST, "/v1/tenants/acme/keys", json!({})),
        (Method::POST, "/v1/redrives/r-1/pause", json!({})),
        (Method::POST, "/v1/redrives/r-1/resume", json!({})),
    ] {
        let sent = operator
            .request(method, path)
            .json(&body)
            .send()
            .await
            .unwrap();
        let told = Answer::read(sent).await;
        assert_eq!(
            (told.status, told.error().as_str()),
            (403, "permission_error"),
            "{path}"
        );
        assert!(
            told.text.contains("producer.operator_nkey_file"),
            "{}",
            told.text
        );
    }
    // Nothing was tried that NATS would refuse: that is seen when the fleet ends.
    for path in [
        "/v1/tenants",
        "/v1/tenants/acme",
        "/v1/redrives",
        "/v1/dead-letters",
        "/v1/ledger",
    ] {
        assert_eq!(operator.get(path).await.status, 200, "{path}");
    }
    assert_eq!(acme.post("/v1/messages", &message("x")).await.status, 200);
}
