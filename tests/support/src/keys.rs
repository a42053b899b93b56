//! Keys and permissions as an installation has them, for servers of tests.

use std::path::PathBuf;

use fairlane_core::TenantId;
use fairlane_nats::NatsOptions;
use fairlane_nats::auth::{self, User};
use fairlane_wire::Namespace;
use tempfile::TempDir;

/// A user of the test's own, who may do everything.
pub const TESTER: &str = "tester";

/// A seed for each role and some tenants, in files, and what lets them in.
#[derive(Debug)]
pub struct Keys {
    dir: TempDir,
    names: Namespace,
    conf: String,
}

impl Keys {
    /// New keys for all roles and these tenants.
    ///
    /// # Panics
    /// If a name is no tenant's, or the files cannot be written.
    #[must_use]
    pub fn new(tenants: &[&str]) -> Self {
        let names = Namespace::default();
        let dir = tempfile::tempdir().expect("a directory for keys");
        let tenant = |name: &&str| User::Tenant(TenantId::parse(name).expect("a tenant's name"));
        let users = User::ROLES.into_iter().chain(tenants.iter().map(tenant));
        let users: Vec<_> = users
            .map(|user| {
                let (seed, key) = auth::new_key();
                let path = dir.path().join(format!("{}.nk", user.name()));
                std::fs::write(path, seed).expect("a file for a seed");
                (user, key)
            })
            .collect();
        let conf = auth::render(&names, &users);
        let tester = format!("users: [\n      {{user: {TESTER}, password: {TESTER}}}");
        let conf = conf.replacen("users: [", &tester, 1);
        Self { dir, names, conf }
    }

    /// What the server's configuration has to say.
    #[must_use]
    pub fn conf(&self) -> &str {
        &self.conf
    }

    /// The seed of a user.
    #[must_use]
    pub fn seed(&self, user: &User) -> PathBuf {
        self.dir.path().join(format!("{}.nk", user.name()))
    }

    /// How this user connects.
    #[must_use]
    pub fn options(&self, user: &User, url: &str) -> NatsOptions {
        let mut options = NatsOptions::new(url);
        options.nkey_file = Some(self.seed(user));
        options.inbox_prefix = Some(user.inbox_prefix(&self.names));
        options.name = user.name();
        options
    }
}
