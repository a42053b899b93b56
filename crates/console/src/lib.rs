//! The console: one page in a browser for the people who look after the fleet.
//!
//! The page is plain HTML, CSS and ES modules, built by nothing and part of the program. It knows nothing by itself and
//! needs no permission to be read: all it shows comes from the API's calls beside it (`fairlane_api::Desk`), with the
//! token that its user types in. A policy lets it run and load nothing but its own files, and make no markup of text.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

/// What the page may do: load its own files and call its own server. Text that is taken for markup is refused by the
/// browser (trusted types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page.
#[derive(Debug, Clone, Copy)]
struct Asset {
    name: &'static str,
    media: &'static str,
    body: &'static str,
}

macro_rules! assets {
    ($($name:literal: $media:expr),* $(,)?) => {
        &[$(Asset { name: $name, media: $media, body: include_str!(concat!("../assets/", $name)) }),*]
    };
}

const ASSETS: &[Asset] = assets! {
    "index.html": HTML,
    "style.css": CSS,
    "icon.svg": SVG,
    "main.js": JS,
    "api.js": JS,
    "dom.js": JS,
    "diff.js": JS,
    "feed.js": JS,
    "format.js": JS,
    "jobs.js": JS,
    "letters.js": JS,
    "letter.js": JS,
    "now.js": JS,
    "redrive.js": JS,
    "rows.js": JS,
    "share.js": JS,
    "signin.js": JS,
    "tenant.js": JS,
    "tenants.js": JS,
};

/// The page at `/console/`, with ways to it from `/` and `/console`.
pub fn routes() -> Router {
    let leads_there = get(|| async { Redirect::to("console/") });
    Router::new()
        .route("/", leads_there.clone())
        .route("/console", leads_there)
        .route(
            "/console/",
            get(|headers: HeaderMap| async move { served(&headers, "index.html") }),
        )
        .route(
            "/console/{file}",
            get(|Path(file): Path<String>, headers: HeaderMap| async move {
                served(&headers, &file)
            }),
        )
}

fn served(asked: &HeaderMap, name: &str) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let tag = tag(asset.body);
    let known = asked.get(IF_NONE_MATCH).and_then(|tag| tag.to_str().ok());
    let is_known = known.is_some_and(|known| known.contains(&tag));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, asset.media)], asset.body).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        // Another version of the program has other files under the same names.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes");
    headers.insert(ETAG, tag);
    response
}

/// Changes with the content.
fn tag(body: &str) -> String {
    let hash = Sha256::digest(body.as_bytes());
    let hex: String = hash.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn body(name: &str) -> &'static str {
        ASSETS.iter().find(|asset| asset.name == name).unwrap().body
    }

    #[test]
    fn all_files_of_the_page_are_served_and_no_others() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let files = std::fs::read_dir(dir).unwrap();
        let files: BTreeSet<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let served: BTreeSet<String> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(files, served);
    }

    #[test]
    fn what_a_file_asks_for_is_there() {
        for asset in ASSETS {
            for line in asset.body.lines() {
                let Some((_, from)) = line.rsplit_once("from \"./") else {
                    continue;
                };
                let name = from.trim_end_matches(['"', ';']);
                assert!(!body(name).is_empty(), "{} imports {name}", asset.name);
            }
        }
        for name in ["style.css", "main.js", "icon.svg"] {
            assert!(
                body("index.html").contains(&format!("\"{name}\"")),
                "{name}"
            );
        }
    }

    #[test]
    fn nothing_is_inline_nothing_comes_from_elsewhere_and_no_text_becomes_markup() {
        let html = body("index.html");
        assert!(!html.contains("<style") && !html.contains(" style="));
        assert_eq!(html.matches("<script").count(), 1);
        for asset in ASSETS {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "url(http",
                "@import",
                "src=\"http",
                "href=\"http",
            ] {
                assert!(!asset.body.contains(word), "{} has {word}", asset.name);
            }
        }
    }

    #[tokio::test]
    async fn a_file_is_sent_again_only_when_it_has_changed() {
        let first = served(&HeaderMap::new(), "main.js");
        assert_eq!(first.status(), 200);
        assert_eq!(first.headers()[CONTENT_TYPE], JS);
        let policy = first.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(!policy.contains("unsafe"), "{policy}");
        let tag = first.headers()[ETAG].clone();
        let again = HeaderMap::from_iter([(IF_NONE_MATCH, tag.clone())]);
        assert_eq!(served(&again, "main.js").status(), 304);
        assert_eq!(served(&again, "style.css").status(), 200);
        assert_eq!(served(&again, "other.js").status(), 404);
        assert_eq!(served(&again, "../Cargo.toml").status(), 404);
    }
}
