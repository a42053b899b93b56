//! Batches whose maker dies while it makes them.

use fairlane_fleet_tests::api::message;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_support::eventually;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{PROGRAM, setup};

const ITEMS: usize = 20_000;

fn batch(items: usize) -> Value {
    let item = |number| json!({"custom_id": format!("n-{number}"), "params": message("tags")});
    json!({"requests": (0..items).map(item).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_batch_whose_maker_was_killed_is_called_off_and_ends() {
    let setup = Setup {
        workers: 0,
        ..setup(&[])
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let making = {
        let (acme, body) = (acme.clone(), batch(ITEMS));
        let sending = acme
            .request(Method::POST, "/v1/messages/batches")
            .json(&body)
            .send();
        tokio::spawn(sending)
    };
    let jobs = fleet.client().names.jobs_stream();
    eventually(PATIENCE, "some jobs of the batch", || async {
        match fleet.client().jobs().count(&jobs).await {
            Ok(count) if count > 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    fleet.producers[0].kill9();
    assert!(
        making.await.unwrap().is_err(),
        "the maker was killed before it answered"
    );
    let producer = fleet.spawn("producer");
    fleet.producers[0] = producer;
    let ended = eventually(PATIENCE, "the batch to end", || async {
        let listed = acme
            .request(Method::GET, "/v1/messages/batches")
            .send()
            .await;
        let listed: Value = match listed {
            Ok(listed) => listed.json().await.map_err(|error| error.to_string())?,
            Err(error) => return Err(error.to_string()),
        };
        let batch = &listed["data"][0];
        if batch["processing_status"] == "ended" {
            Ok(batch.clone())
        } else {
            Err(listed.to_string())
        }
    })
    .await;
    assert_eq!(ended["request_counts"]["canceled"], ITEMS, "{ended}");
    assert_eq!(ended["request_counts"]["processing"], 0);
    let id = ended["id"].as_str().unwrap();
    let results = acme
        .get(&format!("/v1/messages/batches/{id}/results"))
        .await;
    let lines: Vec<Value> = results
        .text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), ITEMS);
    assert!(
        lines
            .iter()
            .all(|line| line["result"]["type"] == "canceled")
    );
    // Nothing of it is left to run.
    let books = fleet.settled().await;
    assert_eq!((books.queued, books.submitted), (0, 0), "{books:?}");
    let whole = acme.post("/v1/messages/batches", &batch(10)).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
}

#[tokio::test]
async fn a_batch_is_made_to_its_end_when_its_maker_has_gone_away() {
    let setup = Setup {
        workers: 0,
        ..setup(&[])
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let making = {
        let (acme, body) = (acme.clone(), batch(3_000));
        let sending = acme
            .request(Method::POST, "/v1/messages/batches")
            .json(&body)
            .send();
        tokio::spawn(sending)
    };
    let jobs = fleet.client().names.jobs_stream();
    let until = async |wanted: u64| {
        eventually(PATIENCE, "jobs of the batch", || async {
            match fleet.client().jobs().count(&jobs).await {
                Ok(count) if count >= wanted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    };
    until(100).await;
    making.abort();
    until(3_000).await;
    let listed = acme.get("/v1/messages/batches").await.json();
    assert_eq!(
        listed["data"][0]["processing_status"], "in_progress",
        "{listed}"
    );
}
