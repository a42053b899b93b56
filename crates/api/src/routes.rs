//! All paths, and the OpenAPI document that is made from the same list: what is served is described, and
//! nothing else.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use crate::Shared;
use crate::error::ApiError;
use crate::{batches, count, dead, fleet, frame, jobs, messages, models, tenants};

/// Who may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Anybody,
    /// With any key or token.
    Known,
    /// A tenant for itself, an operator for any.
    Tenant,
    Viewer,
    Operator,
}

/// What one call is, for people and for generated clients.
#[derive(Debug, Clone)]
struct Doc {
    summary: &'static str,
    who: Who,
    query: &'static [(&'static str, &'static str, &'static str)],
    /// Schema of the body, which is JSON.
    body: Option<Value>,
    answers: (u16, &'static str),
    /// Whether it is also served at the desk.
    at_desk: bool,
}

impl Doc {
    fn new(summary: &'static str, who: Who) -> Self {
        Self {
            summary,
            who,
            query: &[],
            body: None,
            answers: (200, JSON),
            at_desk: false,
        }
    }

    fn at_desk(mut self) -> Self {
        self.at_desk = true;
        self
    }

    /// Parameters of the query: name, JSON type, meaning.
    fn query(mut self, query: &'static [(&'static str, &'static str, &'static str)]) -> Self {
        self.query = query;
        self
    }

    fn takes(mut self, schema: Value) -> Self {
        self.body = Some(schema);
        self
    }

    fn answers(mut self, status: u16, media: &'static str) -> Self {
        self.answers = (status, media);
        self
    }
}

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const JSONL: &str = "application/x-jsonl";
const EVENTS: &str = "text/event-stream";

/// Parameters that choose dead letters.
const LETTERS: &[(&str, &str, &str)] = &[
    ("reason", "string", "only letters of this reason"),
    ("kind", "string", "only letters of this kind of job"),
    (
        "fingerprint",
        "string",
        "only letters whose fingerprint begins so",
    ),
    ("standing", "string", "open (if not given), redriven or all"),
    (
        "since_ms",
        "integer",
        "written at this time or later, unix milliseconds",
    ),
    (
        "until_ms",
        "integer",
        "written before this time, unix milliseconds",
    ),
    (
        "limit",
        "integer",
        "how many, at most 1000; 100 if not given",
    ),
];

/// The paths so far, and what they are.
struct Surface {
    router: Router<Arc<Shared>>,
    /// Those of them that a scheduler's console calls.
    desk: Router<Arc<Shared>>,
    paths: Map<String, Value>,
}

impl Surface {
    fn add(
        mut self,
        method: &'static str,
        path: &'static str,
        handler: MethodRouter<Arc<Shared>>,
        doc: &Doc,
    ) -> Self {
        if doc.at_desk {
            self.desk = self.desk.route(path, handler.clone());
        }
        self.router = self.router.route(path, handler);
        let item = self.paths.entry(path).or_insert_with(|| json!({}));
        item[method] = described(method, path, doc);
        self
    }

    fn get<H: Handler<T, Arc<Shared>>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        doc: Doc,
    ) -> Self {
        self.add("get", path, get(handler), &doc)
    }

    fn post<H: Handler<T, Arc<Shared>>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        doc: Doc,
    ) -> Self {
        self.add("post", path, post(handler), &doc)
    }

    fn put<H: Handler<T, Arc<Shared>>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        doc: Doc,
    ) -> Self {
        self.add("put", path, put(handler), &doc)
    }

    fn delete<H: Handler<T, Arc<Shared>>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
        doc: Doc,
    ) -> Self {
        self.add("delete", path, delete(handler), &doc)
    }
}

fn surface() -> Surface {
    let surface = Surface {
        router: Router::new(),
        desk: Router::new(),
        paths: Map::new(),
    };
    fleet_paths(job_paths(claude(surface)))
}

/// What clients of the Claude API call.
fn claude(surface: Surface) -> Surface {
    surface
        .post(
            "/v1/messages",
            messages::create,
            Doc::new(
                "Answer a message, as the Claude API does; with \"stream\": true in parts",
                Who::Tenant,
            )
            .takes(request_schema()),
        )
        .post(
            "/v1/messages/count_tokens",
            count::count,
            Doc::new("Count the input tokens of a message", Who::Tenant).takes(request_schema()),
        )
        .get(
            "/v1/models",
            models::list,
            Doc::new("List the models of this fleet", Who::Tenant),
        )
        .get(
            "/v1/models/{model}",
            models::one,
            Doc::new("Show a model", Who::Tenant),
        )
        .post(
            "/v1/messages/batches",
            batches::create,
            Doc::new("Make a batch of messages", Who::Tenant).takes(json!({
                "type": "object", "required": ["requests"],
                "properties": {"requests": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "required": ["custom_id", "params"],
                    "properties": {"custom_id": {"type": "string"}, "params": request_schema()},
                }}},
            })),
        )
        .get(
            "/v1/messages/batches",
            batches::list,
            Doc::new("List batches, the latest first", Who::Tenant).query(&[
                ("limit", "integer", "how many, 1 to 1000; 20 if not given"),
                (
                    "after_id",
                    "string",
                    "those that come after this one in the list",
                ),
                (
                    "before_id",
                    "string",
                    "those that come before this one in the list",
                ),
            ]),
        )
        .get(
            "/v1/messages/batches/{batch}",
            batches::one,
            Doc::new("Show a batch", Who::Tenant),
        )
        .get(
            "/v1/messages/batches/{batch}/results",
            batches::results,
            Doc::new("The results of a batch that has ended", Who::Tenant).answers(200, JSONL),
        )
        .post(
            "/v1/messages/batches/{batch}/cancel",
            batches::cancel,
            Doc::new("Call off what is left of a batch", Who::Tenant),
        )
        .delete(
            "/v1/messages/batches/{batch}",
            batches::delete,
            Doc::new("Forget a batch that has ended", Who::Tenant),
        )
}

fn job_paths(surface: Surface) -> Surface {
    surface
        .post(
            "/v1/jobs",
            jobs::create,
            Doc::new(
                "Submit a job; or several, one JSON object a line",
                Who::Tenant,
            )
            .takes(json!({"type": "object", "required": ["origin", "kind"]}))
            .answers(202, JSON),
        )
        .get(
            "/v1/jobs",
            jobs::find,
            Doc::new("Whose jobs have this id", Who::Viewer)
                .at_desk()
                .query(&[("id", "string", "the id; required")]),
        )
        .get(
            "/v1/jobs/{job}",
            jobs::one,
            Doc::new("Show a job's record", Who::Tenant).at_desk(),
        )
        .get(
            "/v1/jobs/{job}/result",
            jobs::result,
            Doc::new("The answer of a job that is done", Who::Tenant).query(&[(
                "wait",
                "integer",
                "wait for its end for so many seconds, at most 60",
            )]),
        )
        .get(
            "/v1/jobs/{job}/events",
            jobs::events,
            Doc::new("Every change of a job's record until its end", Who::Tenant)
                .answers(200, EVENTS),
        )
        .get(
            "/v1/jobs/{job}/why",
            jobs::why,
            Doc::new("What a job waits for, and until when", Who::Tenant).at_desk(),
        )
        .post(
            "/v1/jobs/{job}/cancel",
            jobs::cancel,
            Doc::new("Call a job off", Who::Tenant),
        )
        .post(
            "/v1/jobs/{job}/regenerate",
            jobs::regenerate,
            Doc::new(
                "Have a job made again by the model it was meant for",
                Who::Tenant,
            ),
        )
        .post(
            "/v1/jobs/{job}/answer",
            jobs::answer,
            Doc::new("Say whether a job may wait until the next day", Who::Tenant).takes(json!({
                "type": "object", "required": ["answer"],
                "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
            })),
        )
}

fn fleet_paths(surface: Surface) -> Surface {
    surface
        .get(
            "/v1/whoami",
            fleet::whoami,
            Doc::new("Whom a key or token speaks for", Who::Known).at_desk(),
        )
        .get(
            "/v1/fleet",
            fleet::once,
            Doc::new("All that is going on", Who::Viewer).at_desk(),
        )
        .get(
            "/v1/fleet/events",
            fleet::events,
            Doc::new(
                "All that is going on (event fleet), and then what changes in it (event change), once a second",
                Who::Viewer,
            )
            .at_desk()
            .answers(200, EVENTS),
        )
        .get(
            "/v1/tenants",
            tenants::list,
            Doc::new(
                "List the tenants that have settings of their own",
                Who::Viewer,
            ).at_desk(),
        )
        .get(
            "/v1/tenants/{tenant}",
            tenants::one,
            Doc::new("Show the settings of a tenant", Who::Viewer).at_desk(),
        )
        .put(
            "/v1/tenants/{tenant}",
            tenants::set,
            Doc::new(
                "Change settings of a tenant; null takes one away",
                Who::Operator,
            ).at_desk()
            .takes(json!({"type": "object"})),
        )
        .get(
            "/v1/tenants/{tenant}/why",
            tenants::why,
            Doc::new("What a tenant waits for", Who::Viewer).at_desk(),
        )
        .post(
            "/v1/tenants/{tenant}/keys",
            tenants::create_key,
            Doc::new(
                "Make a key for a tenant; its secret is shown this once",
                Who::Operator,
            )
            .takes(json!({"type": "object", "properties": {"note": {"type": "string"}}}))
            .answers(201, JSON),
        )
        .delete(
            "/v1/tenants/{tenant}/keys/{key}",
            tenants::revoke_key,
            Doc::new("Revoke a key", Who::Operator),
        )
        .get(
            "/v1/ledger",
            tenants::ledger,
            Doc::new("What calls were paid for", Who::Tenant).query(&[(
                "since_ms",
                "integer",
                "from this time on, unix milliseconds; one day if not given",
            )]),
        )
        .get(
            "/v1/autoscale",
            tenants::autoscale,
            Doc::new(
                "How many worker slots are worth having, and why",
                Who::Viewer,
            ),
        )
        .get(
            "/v1/dead-letters",
            dead::list,
            Doc::new(
                "Dead letters, in groups of one cause and one by one",
                Who::Tenant,
            ).at_desk()
            .query(LETTERS),
        )
        .get(
            "/v1/dead-letters/export",
            dead::export,
            Doc::new("Dead letters as lines of a file", Who::Tenant)
                .query(LETTERS)
                .answers(200, LINES),
        )
        .get(
            "/v1/dead-letters/{letter}",
            dead::one,
            Doc::new("Show a dead letter with its body", Who::Tenant).at_desk(),
        )
        .post(
            "/v1/dead-letters/{letter}/repair",
            dead::repair,
            Doc::new(
                "What a repair would make of a dead letter; nothing is sent",
                Who::Tenant,
            ).at_desk()
            .takes(json!({"type": "object"})),
        )
        .delete(
            "/v1/dead-letters/{letter}",
            dead::purge,
            Doc::new("Delete a dead letter for good", Who::Operator),
        )
        .post(
            "/v1/redrives",
            dead::redrive,
            Doc::new("Send dead letters again, repaired if wanted", Who::Operator).at_desk()
                .takes(json!({
                    "type": "object", "required": ["filter"],
                    "properties": {
                        "filter": {"type": "object"}, "repair": {"type": "object"},
                        "per_second": {"type": "integer", "minimum": 1, "maximum": 10_000},
                        "dry_run": {"type": "boolean"},
                    },
                }))
                .answers(202, JSON),
        )
        .get(
            "/v1/redrives",
            dead::runs,
            Doc::new("List the runs that send dead letters again", Who::Viewer).at_desk(),
        )
        .get(
            "/v1/redrives/{run}",
            dead::run,
            Doc::new("Show a run", Who::Viewer).at_desk(),
        )
        .post(
            "/v1/redrives/{run}/pause",
            dead::pause,
            Doc::new("Pause a run", Who::Operator).at_desk(),
        )
        .post(
            "/v1/redrives/{run}/cancel",
            dead::cancel,
            Doc::new("End a run", Who::Operator).at_desk(),
        )
        .post(
            "/v1/redrives/{run}/resume",
            dead::resume,
            Doc::new("Go on with a run", Who::Operator).at_desk().answers(202, JSON),
        )
}

fn request_schema() -> Value {
    json!({
        "type": "object", "required": ["model", "max_tokens", "messages"],
        "properties": {
            "model": {"type": "string"},
            "max_tokens": {"type": "integer", "minimum": 1},
            "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
            "stream": {"type": "boolean"},
        },
    })
}

fn described(method: &str, path: &str, doc: &Doc) -> Value {
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
    );
    let in_query = doc.query.iter().map(|(name, kind, text)| {
        json!({"name": name, "in": "query", "description": text, "schema": {"type": kind}})
    });
    let tenant = (doc.who == Who::Tenant).then(|| {
        let text = "for which tenant; needed with the token of an operator or viewer";
        json!({"name": "fairlane-tenant", "in": "header", "description": text, "schema": {"type": "string"}})
    });
    let parameters: Vec<Value> = in_path.chain(in_query).chain(tenant).collect();
    let (status, media) = doc.answers;
    let schema = if media == JSON {
        json!({"type": "object"})
    } else {
        json!({"type": "string"})
    };
    let error = json!({"$ref": "#/components/schemas/Error"});
    let mut operation = json!({
        "operationId": operation_id(method, path),
        "summary": doc.summary,
        "description": who_text(doc.who),
        "parameters": parameters,
        "responses": {
            status.to_string(): {"description": "as asked", "content": {media: {"schema": schema}}},
            "default": {"description": "an error", "content": {JSON: {"schema": error}}},
        },
    });
    if let Some(schema) = &doc.body {
        operation["requestBody"] = json!({"required": true, "content": {JSON: {"schema": schema}}});
    }
    if doc.who == Who::Anybody {
        operation["security"] = json!([]);
    }
    operation
}

fn operation_id(method: &str, path: &str) -> String {
    let words = path
        .split('/')
        .filter(|word| !word.is_empty() && *word != "v1");
    let words = words.map(|word| word.trim_matches(['{', '}']).replace(['-', '.'], "_"));
    std::iter::once(method.to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join("_")
}

fn who_text(who: Who) -> &'static str {
    match who {
        Who::Anybody => "Anybody may call.",
        Who::Known => "With any key or token.",
        Who::Tenant => {
            "For a tenant with its key, or for any tenant with an operator's token (a viewer's, to read)."
        }
        Who::Viewer => "With the token of a viewer or operator.",
        Who::Operator => "With the token of an operator.",
    }
}

fn document(paths: &Map<String, Value>) -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Messages API as clients of the Claude API know it, and jobs.",
        },
        "paths": paths,
        "security": [{"key": []}, {"bearer": []}],
        "components": {
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {"Error": {
                "type": "object", "required": ["type", "error", "request_id"],
                "properties": {
                    "type": {"const": "error"},
                    "error": {
                        "type": "object", "required": ["type", "message"],
                        "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                    },
                    "request_id": {"type": "string"},
                },
            }},
        },
    })
}

/// The calls of the desk.
pub(crate) fn desk(shared: &Arc<Shared>) -> Router {
    let frame = axum::middleware::from_fn_with_state(shared.clone(), frame::frame);
    surface().desk.route_layer(frame).with_state(shared.clone())
}

/// Everything that is served.
pub(crate) fn router(shared: &Arc<Shared>) -> Router {
    const PATH: &str = "/v1/openapi.json";
    let Surface {
        router, mut paths, ..
    } = surface();
    let doc = Doc::new("This document", Who::Anybody);
    paths.insert(
        PATH.to_owned(),
        json!({"get": described("get", PATH, &doc)}),
    );
    let document = document(&paths);
    router
        .route(PATH, get(|| async move { Json(document) }))
        .fallback(|| async { ApiError::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async {
            ApiError::method_not_allowed("this path does not take this method")
        })
        .layer(axum::middleware::from_fn_with_state(
            shared.clone(),
            frame::frame,
        ))
        .with_state(shared.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_who_may_call() {
        let paths = surface().paths;
        let mut names = BTreeSet::new();
        for (path, item) in &paths {
            for (method, operation) in item.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{method} {path}: {name}");
                assert!(operation["description"].as_str().unwrap().ends_with('.'));
                let named: Vec<&str> = operation["parameters"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|parameter| parameter["in"] == "path")
                    .map(|parameter| parameter["name"].as_str().unwrap())
                    .collect();
                let in_path = path.matches('{').count();
                assert_eq!(named.len(), in_path, "{path}");
            }
        }
        assert!(names.len() > 30);
    }
}
