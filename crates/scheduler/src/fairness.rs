//! How fair the leader is, for people and machines that ask over HTTP: `/v1/fairness`.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use fairlane_core::Millis;
use fairlane_core::fairness::{WINDOW, Window};
use fairlane_core::scheduler::Scheduler;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The last hour as the leader measured it; nothing while this scheduler stands by.
#[derive(Debug, Clone)]
pub(crate) struct Fairness {
    report: watch::Sender<Option<Report>>,
}

#[derive(Debug)]
struct Report {
    /// End of the newest window in it.
    upto: Millis,
    body: Value,
}

impl Fairness {
    pub(crate) fn new() -> Self {
        Self {
            report: watch::Sender::new(None),
        }
    }

    /// Tells what the leader has measured by `now`. Cheap while no window has ended.
    pub(crate) fn tell(&self, core: &mut Scheduler, now: Millis) {
        let newest = core.fairness(now).history().last();
        let upto = newest.map_or(0, |window| window.to);
        let is_told = matches!(&*self.report.borrow(), Some(report) if report.upto == upto);
        if !is_told {
            let body = body(core, now);
            self.report.send_replace(Some(Report { upto, body }));
        }
    }

    /// This scheduler leads no more.
    pub(crate) fn forget(&self) {
        self.report.send_replace(None);
    }

    pub(crate) fn routes(&self) -> Router {
        let report = self.report.clone();
        let answer = move || {
            let answer = match &*report.borrow() {
                Some(report) => Json(report.body.clone()).into_response(),
                None => stands_by(),
            };
            std::future::ready(answer)
        };
        Router::new().route("/v1/fairness", get(answer))
    }
}

fn stands_by() -> Response {
    let error = "this scheduler does not lead; ask the one whose fairlane_leader is 1";
    let body = Json(json!({ "error": error }));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

fn body(core: &mut Scheduler, now: Millis) -> Value {
    let windows: Vec<Window> = core.fairness(now).history().cloned().collect();
    let windows: Vec<Value> = windows.iter().map(|window| of(window, core)).collect();
    json!({ "window_seconds": WINDOW / 1_000, "windows": windows })
}

fn of(window: &Window, core: &Scheduler) -> Value {
    let lanes = window.lanes.iter().map(|(lane, reading)| {
        json!({
            "pool": core.pool_of(*lane).as_str(),
            "priority": lane.priority.as_str(),
            "tenants": reading.flows,
            "index": reading.index,
            "min_share": reading.min_share,
            "gap_ratio": reading.gap_ratio,
        })
    });
    json!({
        "from_ms": window.from,
        "to_ms": window.to,
        "lanes": lanes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use fairlane_core::Term;
    use fairlane_runtime::config::Settings;

    use super::*;
    use crate::options::Options;

    #[test]
    fn a_report_is_renewed_when_a_window_ends_and_goes_with_the_lease() {
        let options = Options::from_settings(&Settings::default()).unwrap();
        let mut core = Scheduler::new(options.config, Term(1), 1_000);
        let fairness = Fairness::new();
        let windows = |fairness: &Fairness| {
            let report = fairness.report.borrow();
            let report = report.as_ref()?;
            Some(report.body["windows"].as_array()?.len())
        };
        assert_eq!(windows(&fairness), None);
        fairness.tell(&mut core, 2_000);
        assert_eq!(windows(&fairness), Some(0));
        fairness.tell(&mut core, 61_000);
        assert_eq!(windows(&fairness), Some(1));
        fairness.forget();
        assert_eq!(windows(&fairness), None);
    }
}
