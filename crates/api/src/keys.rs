//! Who calls: keys of tenants, and tokens for the fleet as a whole.
//!
//! Both are looked up by the hash of what was shown, so no secret is kept in memory, and how long a
//! look-up takes says nothing about them. Keys stand in the tenants' records, which are watched: one that
//! is revoked is refused as soon as the change arrives.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use fairlane_core::TenantId;
use fairlane_nats::watch::Event;
use fairlane_nats::{Content, Entry, Nats};
use fairlane_runtime::Shutdown;
use fairlane_wire::{TenantKey, TenantRecord};

use crate::error::{ApiError, Kind, Result};

/// How often the file of tokens is looked at.
const TOKENS_EVERY: Duration = Duration::from_secs(1);

/// Somebody whom we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A program of a tenant; with the id of its key.
    Tenant(TenantId, String),
    /// May read everything.
    Viewer,
    /// May do everything.
    Operator,
}

#[derive(Debug, Default)]
struct Book {
    keys: HashMap<String, (TenantId, String)>,
    of_tenant: HashMap<TenantId, HashSet<String>>,
    tokens: HashMap<String, Caller>,
    /// Whether all keys have been read once.
    is_complete: bool,
}

/// The file of tokens, and the setting that names it.
#[derive(Debug, Clone)]
pub(crate) struct TokensFile {
    key: &'static str,
    path: PathBuf,
}

impl TokensFile {
    pub(crate) fn new(key: &'static str, path: PathBuf) -> Self {
        Self { key, path }
    }
}

/// All keys and tokens.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    book: RwLock<Book>,
}

impl Keys {
    /// The caller who sent these headers.
    ///
    /// # Errors
    /// `authentication_error`, or `overloaded_error` while the keys are not known yet.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller> {
        let refused = |message| ApiError::new(Kind::Authentication, message);
        let Some(secret) = shown(headers) else {
            return Err(refused(
                "no key; send it as x-api-key, or as authorization: Bearer",
            ));
        };
        let hash = TenantKey::hash(secret);
        let book = self.book.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = book.tokens.get(&hash) {
            return Ok(caller.clone());
        }
        match book.keys.get(&hash) {
            Some((tenant, key)) => Ok(Caller::Tenant(tenant.clone(), key.clone())),
            None if book.is_complete => Err(refused("this key is not known, or was revoked")),
            None => Err(ApiError::new(
                Kind::Overloaded,
                "the keys are still being read; try again",
            )
            .retry_after(1)),
        }
    }

    /// Keeps the keys as they are in the tenants' records.
    async fn follow(&self, nats: &Nats, shutdown: &Shutdown) {
        let mut watch = nats.bucket(&nats.names.tenants_bucket()).watch();
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = shutdown.stop_now().cancelled() => return,
            };
            match event {
                Some(Event::Change(entry)) => self.learn(&entry),
                Some(Event::Current) => self.change(|book| book.is_complete = true),
                Some(Event::Stale) => {}
                None => return,
            }
        }
    }

    fn learn(&self, entry: &Entry) {
        let Ok(tenant) = TenantId::parse(&entry.key) else {
            return;
        };
        let keys = match &entry.content {
            Content::Live(value) => match TenantRecord::parse(value) {
                Ok(record) => record.keys,
                Err(error) => {
                    // Whoever broke the record may have meant to revoke.
                    tracing::warn!(%tenant, %error, "a tenant's record is not usable: none of its keys is let in");
                    Vec::new()
                }
            },
            Content::Deleted(_) | Content::Expired => Vec::new(),
        };
        self.change(|book| book.replace(&tenant, keys));
    }

    fn change(&self, change: impl FnOnce(&mut Book)) {
        change(&mut self.book.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Keeps keys and tokens as they are, until the process stops.
    pub(crate) async fn follow_all(
        &self,
        nats: &Nats,
        tokens: Option<TokensFile>,
        shutdown: &Shutdown,
    ) {
        tokio::join!(self.follow(nats, shutdown), async {
            if let Some(tokens) = tokens {
                self.follow_tokens(&tokens, shutdown).await;
            }
        });
    }

    /// Reads the tokens of a file.
    ///
    /// # Errors
    /// What is wrong, with the line; tokens themselves are not repeated.
    pub(crate) fn read_tokens(&self, TokensFile { key, path }: &TokensFile) -> anyhow::Result<()> {
        let shown = path.display();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {key} {shown}"))?;
        let tokens = tokens(&text).with_context(|| format!("{key} {shown}"))?;
        self.change(|book| book.tokens = tokens);
        Ok(())
    }

    /// Reads the tokens again whenever their file changes. One that cannot be used changes nothing.
    async fn follow_tokens(&self, file: &TokensFile, shutdown: &Shutdown) {
        let mut seen = changed_at(&file.path).await;
        loop {
            tokio::select! {
                () = tokio::time::sleep(TOKENS_EVERY) => {}
                () = shutdown.stop_now().cancelled() => return,
            }
            let found = changed_at(&file.path).await;
            if found == seen {
                continue;
            }
            seen = found;
            match self.read_tokens(file) {
                Ok(()) => tracing::info!("read the API's tokens again"),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "the tokens stay as they were");
                }
            }
        }
    }
}

impl Book {
    fn replace(&mut self, tenant: &TenantId, keys: Vec<TenantKey>) {
        for hash in self.of_tenant.remove(tenant).unwrap_or_default() {
            self.keys.remove(&hash);
        }
        for key in keys {
            let hashes = self.of_tenant.entry(tenant.clone()).or_default();
            hashes.insert(key.sha256.clone());
            self.keys.insert(key.sha256, (tenant.clone(), key.id));
        }
    }
}

async fn changed_at(path: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(path).await.ok()?.modified().ok()
}

/// The secret that a call shows.
fn shown(headers: &HeaderMap) -> Option<&str> {
    let bearer = || {
        let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    };
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    key.or_else(bearer)
        .map(str::trim)
        .filter(|secret| !secret.is_empty())
}

fn tokens(text: &str) -> anyhow::Result<HashMap<String, Caller>> {
    let mut tokens = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let right = || {
            format!(
                "line {}: expected a role (operator or viewer), a space, and a token of 16 characters or more",
                at + 1
            )
        };
        let (role, token) = line.split_once(char::is_whitespace).with_context(right)?;
        let token = token.trim();
        anyhow::ensure!(token.len() >= 16, right());
        let caller = match role {
            "operator" => Caller::Operator,
            "viewer" => Caller::Viewer,
            _ => anyhow::bail!(right()),
        };
        tokens.insert(TenantKey::hash(token), caller);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use fairlane_nats::Revision;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_str(value).unwrap())])
    }

    fn entry(tenant: &str, record: &TenantRecord) -> Entry {
        Entry {
            key: tenant.to_owned(),
            revision: Revision(1),
            stored_ms: 0,
            content: Content::Live(record.to_bytes().into()),
        }
    }

    #[test]
    fn a_key_speaks_for_its_tenant_until_it_is_revoked() {
        let keys = Keys::default();
        let key = TenantKey::of("flk_a", 0, None);
        let record = TenantRecord {
            keys: vec![key.clone()],
            ..TenantRecord::default()
        };
        let with_key = headers("x-api-key", "flk_a");
        assert_eq!(keys.caller(&with_key).unwrap_err().kind, Kind::Overloaded);
        keys.change(|book| book.is_complete = true);
        keys.learn(&entry("acme", &record));
        let acme = Caller::Tenant(TenantId::parse("acme").unwrap(), key.id);
        assert_eq!(keys.caller(&with_key), Ok(acme.clone()));
        assert_eq!(
            keys.caller(&headers("authorization", "bearer flk_a")),
            Ok(acme)
        );
        keys.learn(&entry("acme", &TenantRecord::default()));
        for refused in [
            with_key,
            headers("x-api-key", "flk_b"),
            headers("authorization", "Basic flk_a"),
            HeaderMap::new(),
        ] {
            let error = keys.caller(&refused).unwrap_err();
            assert_eq!(error.kind, Kind::Authentication);
            assert!(!error.message.contains("flk_"));
        }
    }

    #[test]
    fn an_unusable_record_lets_nobody_in() {
        let keys = Keys::default();
        keys.change(|book| book.is_complete = true);
        let record = TenantRecord {
            keys: vec![TenantKey::of("flk_a", 0, None)],
            ..TenantRecord::default()
        };
        keys.learn(&entry("acme", &record));
        let mut broken = entry("acme", &record);
        broken.content = Content::Live("{".into());
        keys.learn(&broken);
        assert!(keys.caller(&headers("x-api-key", "flk_a")).is_err());
    }

    #[test]
    fn tokens_have_roles_and_a_wrong_line_is_named_without_its_token() {
        let good =
            tokens("# people\noperator 0123456789abcdef\n\nviewer\tfedcba9876543210\n").unwrap();
        assert_eq!(good[&TenantKey::hash("0123456789abcdef")], Caller::Operator);
        assert_eq!(good[&TenantKey::hash("fedcba9876543210")], Caller::Viewer);
        for wrong in [
            "operator short",
            "admin 0123456789abcdef",
            "0123456789abcdef",
        ] {
            let error = tokens(wrong).unwrap_err().to_string();
            assert!(
                error.starts_with("line 1") && !error.contains("0123"),
                "{error}"
            );
        }
    }
}
