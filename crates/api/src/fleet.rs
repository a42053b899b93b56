//! `/v1/fleet`: all that is going on, at once or as it changes.
//!
//! However many watch, the leader is asked once a second, and not at all while nobody does. Each watcher is sent what
//! is different from what it was sent last: one that reads slowly skips what lies between.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use fairlane_core::TenantId;
use fairlane_wire::fleet::{FleetTenant, TENANTS_MAX};
use fairlane_wire::{FleetRecord, WhyRequest};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::Shared;
use crate::error::{ApiError, Kind, Result, with_causes};
use crate::frame::{Reader, Whoever};
use crate::jobs::{ask, ask_leader};
use crate::keys::Caller;
use crate::replay::event;

/// How often the leader is asked while somebody watches.
const EVERY: Duration = Duration::from_secs(1);
/// Watchers of one process.
const WATCHERS_MAX: usize = 200;
/// A watcher that does not read for so long is dropped.
const UNREAD_MAX: Duration = Duration::from_secs(30);
const QUESTION: WhyRequest = WhyRequest::Fleet {
    tenants_max: TENANTS_MAX,
};

/// What the leader said last.
#[derive(Debug, Clone, Default)]
struct Told {
    fleet: Option<Arc<FleetRecord>>,
    /// Why it is not newer.
    trouble: Option<String>,
}

/// What watchers are sent from.
#[derive(Debug)]
pub(crate) struct Feed {
    told: watch::Sender<Told>,
    /// Whether a task asks the leader.
    is_fed: Mutex<bool>,
    watchers: Arc<Semaphore>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            told: watch::Sender::default(),
            is_fed: Mutex::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
        }
    }
}

/// Begins to watch; asks the leader from now on, if that is not done yet.
fn watched(shared: &Arc<Shared>) -> watch::Receiver<Told> {
    let feed = &shared.feed;
    let mut is_fed = feed.is_fed.lock().unwrap_or_else(PoisonError::into_inner);
    let told = feed.told.subscribe();
    if !*is_fed {
        *is_fed = true;
        // What is left of an earlier watch may be hours old.
        feed.told.send_replace(Told::default());
        shared.tasks.spawn(fed(shared.clone()));
    }
    told
}

/// Asks the leader until nobody watches any more, or the process drains.
async fn fed(shared: Arc<Shared>) {
    let feed = &shared.feed;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.shutdown.draining().cancelled() => return,
        }
        {
            // Whoever begins to watch does so under the same lock.
            let mut is_fed = feed.is_fed.lock().unwrap_or_else(PoisonError::into_inner);
            if feed.told.receiver_count() == 0 {
                *is_fed = false;
                return;
            }
        }
        let answer = ask::<FleetRecord>(&shared, &QUESTION).await;
        feed.told.send_modify(|told| match answer {
            Ok(fleet) => {
                told.fleet = Some(Arc::new(fleet));
                told.trouble = None;
            }
            Err(error) => told.trouble = Some(with_causes(&error)),
        });
    }
}

pub(crate) async fn once(State(shared): State<Arc<Shared>>, _: Reader) -> Result<Json<Value>> {
    let fleet: FleetRecord = ask_leader(&shared, &QUESTION).await?;
    Ok(Json(json!(fleet)))
}

pub(crate) async fn events(State(shared): State<Arc<Shared>>, _: Reader) -> Result<Response> {
    let permit = shared.feed.watchers.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        let text = format!("{WATCHERS_MAX} watch already; try again, or another process");
        ApiError::new(Kind::Overloaded, text).retry_after(5)
    })?;
    let mut told = watched(&shared);
    let (sender, mut receiver) = mpsc::channel::<Bytes>(1);
    let draining = shared.shutdown.draining().clone();
    shared.tasks.spawn(async move {
        let _permit = permit;
        let mut watcher = Watcher::default();
        loop {
            let changed = tokio::select! {
                changed = told.changed() => changed,
                () = sender.closed() => return,
                () = draining.cancelled() => return,
            };
            if changed.is_err() {
                return;
            }
            let now = told.borrow_and_update().clone();
            let Some(text) = watcher.word(&now) else {
                continue;
            };
            let read = tokio::time::timeout(UNREAD_MAX, sender.send(text.into())).await;
            if !matches!(read, Ok(Ok(()))) {
                return;
            }
        }
    });
    let parts = futures::stream::poll_fn(move |context| {
        let part = receiver.poll_recv(context);
        part.map(|part| part.map(Ok::<_, Infallible>))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// What a watcher has been sent.
#[derive(Debug, Default)]
struct Watcher {
    sent: Option<Arc<FleetRecord>>,
}

impl Watcher {
    /// The next event, which counts as sent. None before the leader was asked.
    fn word(&mut self, told: &Told) -> Option<String> {
        if let Some(trouble) = &told.trouble {
            return Some(event("trouble", &json!({"message": trouble})));
        }
        let fleet = told.fleet.clone()?;
        let text = match &self.sent {
            None => event("fleet", &json!(&*fleet)),
            Some(sent) => event("change", &difference(sent, &fleet)),
        };
        self.sent = Some(fleet);
        Some(text)
    }
}

/// What makes `after` of `before`: all fields but the tenants, the tenants that changed, the names of those that are
/// gone.
fn difference(before: &FleetRecord, after: &FleetRecord) -> Value {
    let known: HashMap<&TenantId, &FleetTenant> = before
        .tenants
        .iter()
        .map(|tenant| (&tenant.tenant, tenant))
        .collect();
    let is_changed = |tenant: &&FleetTenant| known.get(&tenant.tenant) != Some(tenant);
    let changed: Vec<&FleetTenant> = after.tenants.iter().filter(is_changed).collect();
    let there: HashSet<&TenantId> = after.tenants.iter().map(|tenant| &tenant.tenant).collect();
    let gone = before.tenants.iter().map(|tenant| &tenant.tenant);
    let gone: Vec<&str> = gone
        .filter(|tenant| !there.contains(tenant))
        .map(TenantId::as_str)
        .collect();
    let head = FleetRecord {
        tenants: Vec::new(),
        ..after.clone()
    };
    let mut difference = json!(head);
    difference["tenants"] = json!(changed);
    difference["gone"] = json!(gone);
    difference
}

/// Who a caller is, and what it needs to know to show the rest.
pub(crate) async fn whoami(
    State(shared): State<Arc<Shared>>,
    Whoever(caller): Whoever,
) -> Json<Value> {
    let (role, tenant) = match &caller {
        Caller::Tenant(tenant, _) => ("tenant", Some(tenant.as_str())),
        Caller::Viewer => ("viewer", None),
        Caller::Operator => ("operator", None),
    };
    let trace_url = shared.trace_url.as_deref().filter(|_| tenant.is_none());
    Json(json!({
        "role": role, "tenant": tenant, "namespace": shared.nats.names.as_str(),
        "version": env!("CARGO_PKG_VERSION"), "trace_url": trace_url,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, in_flight: u32) -> FleetTenant {
        FleetTenant {
            tenant: TenantId::parse(name).unwrap(),
            weight: 1_000,
            queued: [0; 3],
            in_flight,
            in_flight_max: 9,
            demoted: None,
            input_tokens_today: 0,
            daily_input_tokens: None,
            granted: 0,
        }
    }

    fn fleet(at_ms: u64, tenants: &[FleetTenant]) -> FleetRecord {
        let lane = json!({"priority": "batch", "queued": 0, "oldest_ms": 0});
        let text = json!({
            "term": 1, "at_ms": at_ms, "version": "0", "lanes": [lane, lane, lane], "in_flight": 0,
            "pools": [], "workers": [], "tenants": tenants, "active_tenants": 0, "active_weight": 0, "granted": 0,
        });
        serde_json::from_value(text).unwrap()
    }

    fn told(fleet: &FleetRecord) -> Told {
        Told {
            fleet: Some(Arc::new(fleet.clone())),
            trouble: None,
        }
    }

    #[test]
    fn a_watcher_is_sent_everything_once_and_then_what_changes() {
        let (a, b, c) = (tenant("a", 1), tenant("b", 1), tenant("c", 1));
        let before = fleet(1, &[a.clone(), b]);
        let mut watcher = Watcher::default();
        assert_eq!(watcher.word(&Told::default()), None);
        let whole = watcher.word(&told(&before)).unwrap();
        assert!(whole.starts_with("event: fleet\ndata: {"), "{whole}");
        let next = watcher.word(&told(&before)).unwrap();
        assert!(next.starts_with("event: change\ndata: {"), "{next}");
        let after = fleet(2, &[tenant("b", 2), a, c]);
        let change = difference(&before, &after);
        assert_eq!(change["at_ms"], 2);
        assert_eq!(change["gone"], json!([]));
        let names: Vec<&str> = change["tenants"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tenant| tenant["tenant"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["b", "c"], "not the one that is as it was");
        let gone = difference(&after, &fleet(3, &[tenant("c", 1)]));
        assert_eq!(gone["gone"], json!(["b", "a"]));
        assert_eq!(gone["tenants"], json!([]));
    }

    #[test]
    fn trouble_is_told_and_does_not_pass_for_news() {
        let mut watcher = Watcher::default();
        let fine = told(&fleet(1, &[]));
        let bad = Told {
            trouble: Some("no responders".to_owned()),
            ..fine.clone()
        };
        let text = watcher.word(&bad).unwrap();
        assert_eq!(
            text,
            "event: trouble\ndata: {\"message\":\"no responders\"}\n\n"
        );
        // What was known before the trouble was not sent to whoever came during it.
        let text = watcher.word(&fine).unwrap();
        assert!(text.starts_with("event: fleet\n"), "{text}");
    }
}
