//! A nats-server for one test.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlane_nats::auth::User;
use fairlane_nats::embedded::{
    self, Binary, EmbeddedServer, Origin, Search, ServerOptions, Version, Wheel,
};
use fairlane_nats::objects::{self, ObjectOptions};
use fairlane_nats::{Nats, NatsOptions, connect};

use crate::keys::{Keys, TESTER};

/// A server of its own in a directory of its own, with all of Fairlane's objects, and a connection.
#[derive(Debug)]
pub struct TestNats {
    /// A connection with the default namespace.
    pub nats: Nats,
    /// The server; everything about it goes when this is dropped.
    pub server: EmbeddedServer,
    /// Who may do what, if not everybody may do everything.
    pub keys: Option<Keys>,
}

impl TestNats {
    /// Starts a server with all objects.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn start() -> Self {
        Self::with(ServerOptions::default(), &ObjectOptions::default()).await
    }

    /// Starts a server with all objects that lets in the roles and these tenants alone, each with its
    /// permissions. The connection may do everything. `more` goes into the server's configuration.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn secured(tenants: &[&str], more: &str) -> Self {
        Self::secured_with(tenants, more, &ObjectOptions::default()).await
    }

    /// The same with objects as chosen.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn secured_with(tenants: &[&str], more: &str, objects: &ObjectOptions) -> Self {
        let keys = Keys::new(tenants);
        let options = ServerOptions {
            extra_config: format!("{}{more}", keys.conf()),
            ..ServerOptions::default()
        };
        let started = Self::try_bare(options, Some(keys)).await;
        let started = started.unwrap_or_else(|error| {
            panic!("cannot start a NATS server for a test: {error:#}");
        });
        let operator = started.connect_as(&User::Operator).await;
        if let Err(error) = make(&operator, objects).await {
            panic!("the operator cannot make the objects: {error:#}");
        }
        started
    }

    /// Starts a server without any objects.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn bare(options: ServerOptions) -> Self {
        match Self::try_bare(options, None).await {
            Ok(started) => started,
            Err(error) => panic!("cannot start a NATS server for a test: {error:#}"),
        }
    }

    /// Starts a server with objects as chosen.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn with(server: ServerOptions, objects: &ObjectOptions) -> Self {
        let started = Self::bare(server).await;
        if let Err(error) = make(&started.nats, objects).await {
            panic!("cannot make the objects for a test: {error:#}");
        }
        started
    }

    async fn try_bare(options: ServerOptions, keys: Option<Keys>) -> Result<Self> {
        let server = EmbeddedServer::start(options).await?;
        let nats = connect(&test_options(server.url(), keys.is_some())).await?;
        Ok(Self { nats, server, keys })
    }

    /// A connection as one of those who have keys.
    ///
    /// # Panics
    /// If there are no keys, or with the reason, if that fails.
    pub async fn connect_as(&self, user: &User) -> Nats {
        let keys = self.keys.as_ref().expect("a server with keys");
        match connect(&keys.options(user, self.url())).await {
            Ok(nats) => nats,
            Err(error) => panic!("cannot connect as {}: {error}", user.name()),
        }
    }

    /// URL for further connections.
    #[must_use]
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// Another connection to the same server.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn connect(&self) -> Nats {
        match connect(&test_options(self.server.url(), self.keys.is_some())).await {
            Ok(nats) => nats,
            Err(error) => panic!("cannot connect to the test's NATS server: {error}"),
        }
    }
}

fn test_options(url: &str, asks_who: bool) -> NatsOptions {
    let mut options = NatsOptions::new(url);
    if asks_who {
        options.user = Some(TESTER.to_owned());
        options.password = Some(TESTER.to_owned());
    }
    options.name = "test".to_owned();
    options.request_timeout = Duration::from_secs(5);
    options
}

async fn make(nats: &Nats, options: &ObjectOptions) -> Result<()> {
    let report = objects::ensure(nats, options).await?;
    ensure!(report.differences.is_empty(), "{report}");
    Ok(())
}

/// A server that is too old for Fairlane but knows JetStream well.
///
/// # Errors
/// If it is not in the cache and cannot be fetched.
pub fn old_server() -> Result<Binary> {
    let wheel = Wheel {
        version: Version {
            major: 2,
            minor: 12,
            patch: 8,
        },
        sha256: [
            "a44100c5cff85f2eca9fe6ef18bb54bbe86ef12bf9a0c1cca9419fa41e75752d",
            "3906e109710b9096b2c5ef6a9dc5a0872e7f941be8dc3c2a484129219525cf09",
        ],
    };
    let cache = Search::from_env()
        .cache
        .context("no cache directory: set HOME or FAIRLANE_CACHE")?;
    let path = embedded::fetch(&wheel, &cache)?;
    Ok(Binary {
        path,
        version: wheel.version,
        origin: Origin::Cache,
    })
}
