//! What a server does besides answering: TLS, pages in browsers, its end.

use std::time::Duration;

use fairlane_fleet_tests::api::{Caller, OPERATOR, message};
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_sim::SimConfig;
use fairlane_support::{eventually, within};
use nix::sys::signal::Signal;
use reqwest::Method;

use crate::{PROGRAM, read_until, setup};

const PAGE: &str = "https://page.example";

#[tokio::test]
async fn no_page_may_call_unless_its_origin_is_named() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let caller = fleet.caller().with(OPERATOR);
    let from = async |caller: &Caller, method: Method, origin: &str| {
        let request = caller
            .request(method, "/v1/tenants")
            .header("origin", origin);
        let request = request.header("access-control-request-method", "GET");
        request.send().await.unwrap()
    };
    for method in [Method::GET, Method::OPTIONS] {
        let answer = from(&caller, method, PAGE).await;
        let named = answer
            .headers()
            .keys()
            .filter(|name| name.as_str().starts_with("access-control"));
        assert_eq!(named.count(), 0, "{answer:?}");
    }
    drop(fleet);
    let fleet = Fleet::start(
        PROGRAM,
        setup(&[(
            "producer.api_origins",
            "https://page.example,http://localhost:3000",
        )]),
    )
    .await;
    let caller = fleet.caller().with(OPERATOR);
    for origin in [PAGE, "http://localhost:3000"] {
        let answer = from(&caller, Method::GET, origin).await;
        assert_eq!(answer.headers()["access-control-allow-origin"], origin);
        let asked = from(&caller, Method::OPTIONS, origin).await;
        assert_eq!(asked.status(), 204);
        assert!(
            asked.headers()["access-control-allow-headers"]
                .to_str()
                .unwrap()
                .contains("x-api-key")
        );
    }
    let other = from(&caller, Method::GET, "https://page.example.evil").await;
    assert!(other.headers().get("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn the_api_is_served_over_tls_with_the_certificate_that_is_named() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = [
        ("producer.api_tls_cert_file", cert.to_str().unwrap()),
        ("producer.api_tls_key_file", key.to_str().unwrap()),
    ];
    let fleet = Fleet::start(PROGRAM, setup(&files)).await;
    let plain = fleet.caller().with(OPERATOR);
    let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let builder = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([trusted]);
    let secure = plain.secure(builder.build().unwrap());
    eventually(PATIENCE, "the API", || async {
        let answer = secure.request(Method::GET, "/v1/tenants").send().await;
        match answer {
            Ok(answer) if answer.status() == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let answer = secure
        .request(Method::GET, "/v1/tenants")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    // Whoever does not speak TLS, or does not know who vouches for the server, gets nothing.
    assert!(
        plain
            .request(Method::GET, "/v1/tenants")
            .send()
            .await
            .is_err()
    );
    let stranger = plain.secure(plain.http.clone());
    assert!(
        stranger
            .request(Method::GET, "/v1/tenants")
            .send()
            .await
            .is_err()
    );
}

fn slow(ms: u64) -> SimConfig {
    SimConfig {
        zero_latency: false,
        first_byte_ms: 100,
        prompt_ms_per_1k: 0.0,
        tokens_per_second: 1_000.0 * 20.0 / ms as f64,
        ..SimConfig::instant()
    }
}

async fn begun_stream(caller: &Caller) -> reqwest::Response {
    let mut body = message("a story [[sim:out=20]]");
    body["stream"] = true.into();
    let answer = caller
        .request(Method::POST, "/v1/messages")
        .json(&body)
        .send();
    let mut answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200);
    read_until(&mut answer, "content_block_delta").await;
    answer
}

#[tokio::test]
async fn open_calls_end_before_a_server_that_is_asked_to_stop() {
    let setup = Setup {
        sim: slow(2_000),
        ..setup(&[])
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let mut stream = begun_stream(&acme).await;
    let asking = {
        let acme = acme.clone();
        tokio::spawn(async move {
            acme.post("/v1/messages", &message("x [[sim:out=20]]"))
                .await
        })
    };
    eventually(PATIENCE, "both calls", || async {
        let in_flight = fleet.sim.stats().in_flight;
        if in_flight == 2 {
            Ok(())
        } else {
            Err(in_flight)
        }
    })
    .await;
    fleet.producers[0].signal(Signal::SIGTERM);
    read_until(&mut stream, "event: message_stop").await;
    assert_eq!(asking.await.unwrap().status, 200);
    assert!(fleet.producers[0].end().await.success());
    let refused = acme.request(Method::GET, "/v1/models").send().await;
    assert!(refused.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn what_is_open_when_the_time_to_stop_is_over_is_told_so() {
    let setup = Setup {
        sim: slow(60_000),
        ..setup(&[("producer.drain_ms", "300")])
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let mut stream = begun_stream(&acme).await;
    acme.post(
        "/v1/jobs",
        &serde_json::from_str(&fairlane_fleet_tests::job("j", "x [[sim:out=20]]")).unwrap(),
    )
    .await;
    let mut events = acme.request(Method::GET, "/v1/jobs/j/events").send();
    let mut events = within(Duration::from_secs(30), "events", &mut events)
        .await
        .unwrap();
    let asking = {
        let acme = acme.clone();
        tokio::spawn(async move {
            acme.post("/v1/messages", &message("x [[sim:out=20]]"))
                .await
        })
    };
    eventually(PATIENCE, "all calls", || async {
        let in_flight = fleet.sim.stats().in_flight;
        if in_flight == 3 {
            Ok(())
        } else {
            Err(in_flight)
        }
    })
    .await;
    fleet.producers[0].signal(Signal::SIGTERM);
    let told = read_until(&mut stream, "event: error\n").await;
    assert!(told.contains("overloaded_error"), "{told}");
    assert!(!told.contains("message_stop"), "{told}");
    let told = read_until(&mut events, "event: error\n").await;
    assert!(told.contains("overloaded_error"), "{told}");
    let answer = asking.await.unwrap();
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (529, "overloaded_error")
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(fleet.producers[0].end().await.success());
}
