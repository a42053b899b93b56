//! Users of a server in operator mode: nobody stands in its configuration, whoever has a JWT that its operator's account
//! signed comes in.
//!
//! The JWTs are what the `nsc` tool makes: claims as JSON, signed with nkeys. Each role has a signing key of the account, and its
//! permissions stand in the account's JWT, as that key's scope. In the JWT of the user they would be too long for the line with which a
//! client introduces itself: a server takes 4 KB (`max_control_line`).

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fairlane_nats::NatsOptions;
use fairlane_nats::auth::User;
use fairlane_wire::Namespace;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::keys::TESTER;

/// How long after a request it may be answered: what a server grants to users of its configuration.
const ANSWER_WITHIN_NS: u64 = 120_000_000_000;

/// Credentials of all roles, in files, and what makes a server trust them.
#[derive(Debug)]
pub struct Credentials {
    dir: TempDir,
    names: Namespace,
    conf: String,
}

impl Credentials {
    /// A new operator, an account of the fleet, and a user of it for every role.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn new() -> Self {
        let names = Namespace::default();
        let dir = tempfile::tempdir().expect("a directory for credentials");
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        let roles = User::ROLES.map(|user| (user, KeyPair::new_account()));
        let scopes: Vec<Value> = roles
            .iter()
            .map(|(user, key)| scope(user, key, &names))
            .collect();
        let mut fleet = account_claims(-1);
        fleet["signing_keys"] = scopes.into();
        // The server's own traffic has an account to itself; JetStream insists on it.
        let system = KeyPair::new_account();
        let conf = format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n  {}: {}\n  {}: {}\n}}\n",
            signed(
                &operator,
                &operator,
                "operator",
                &json!({"type": "operator", "version": 2})
            ),
            system.public_key(),
            system.public_key(),
            signed(&operator, &system, "SYS", &account_claims(0)),
            account.public_key(),
            signed(&operator, &account, "FAIRLANE", &fleet),
        );
        let made = Self { dir, names, conf };
        for (user, key) in &roles {
            let claims =
                json!({"type": "user", "version": 2, "issuer_account": account.public_key()});
            made.write(&user.name(), key, &claims);
        }
        let everything =
            json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
        made.write(TESTER, &account, &everything);
        made
    }

    /// What the server's configuration has to say.
    #[must_use]
    pub fn conf(&self) -> &str {
        &self.conf
    }

    /// The credentials file of a user.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.creds"))
    }

    /// How this user connects.
    #[must_use]
    pub fn options(&self, user: &User, url: &str) -> NatsOptions {
        let mut options = NatsOptions::new(url);
        options.creds_file = Some(self.file(&user.name()));
        options.inbox_prefix = Some(user.inbox_prefix(&self.names));
        options.name = user.name();
        options
    }

    /// How the test itself connects, which may do everything.
    #[must_use]
    pub fn tester(&self, url: &str) -> NatsOptions {
        let mut options = NatsOptions::new(url);
        options.creds_file = Some(self.file(TESTER));
        options
    }

    fn write(&self, name: &str, issuer: &KeyPair, claims: &Value) {
        let user = KeyPair::new_user();
        let jwt = signed(issuer, &user, name, claims);
        let seed = user.seed().expect("a new pair has its seed");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(self.file(name), text).expect("a file for credentials");
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self::new()
    }
}

/// An account without limits; `storage` is -1 for as much as there is, 0 for no JetStream.
fn account_claims(storage: i64) -> Value {
    json!({
        "type": "account", "version": 2,
        "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1,
            "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
        },
        "default_permissions": {"pub": {}, "sub": {}},
    })
}

/// What users may do whose JWT this key signed: what this role may.
fn scope(user: &User, key: &KeyPair, names: &Namespace) -> Value {
    let permissions = user.permissions(names);
    let mut template = json!({
        "pub": {"allow": permissions.publish}, "sub": {"allow": permissions.subscribe},
        "subs": -1, "data": -1, "payload": -1,
    });
    if permissions.answers {
        template["resp"] = json!({"max": 1, "ttl": ANSWER_WITHIN_NS});
    }
    json!({"kind": "user_scope", "key": key.public_key(), "role": user.name(), "template": template})
}

/// A JWT in which `issuer` says this of `subject`.
fn signed(issuer: &KeyPair, subject: &KeyPair, name: &str, claims: &Value) -> String {
    let body = json!({
        "jti": subject.public_key(), "iat": 1_700_000_000_u64, "iss": issuer.public_key(),
        "sub": subject.public_key(), "name": name, "nats": claims,
    });
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let head = encoded(&json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let text = format!("{head}.{}", encoded(&body));
    let signature = issuer
        .sign(text.as_bytes())
        .expect("a pair with its seed signs");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}
