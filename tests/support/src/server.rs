//! A nats-server for one test.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlane_nats::embedded::{
    self, Binary, EmbeddedServer, Origin, Search, ServerOptions, Version, Wheel,
};
use fairlane_nats::objects::{self, ObjectOptions};
use fairlane_nats::{Nats, NatsOptions, connect};

/// A server of its own in a directory of its own, with all of Fairlane's objects, and a connection.
#[derive(Debug)]
pub struct TestNats {
    /// A connection with the default namespace.
    pub nats: Nats,
    /// The server; everything about it goes when this is dropped.
    pub server: EmbeddedServer,
}

impl TestNats {
    /// Starts a server with all objects.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn start() -> Self {
        Self::with(ServerOptions::default(), &ObjectOptions::default()).await
    }

    /// Starts a server without any objects.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn bare(options: ServerOptions) -> Self {
        match Self::try_bare(options).await {
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

    async fn try_bare(options: ServerOptions) -> Result<Self> {
        let server = EmbeddedServer::start(options).await?;
        let nats = connect(&test_options(server.url())).await?;
        Ok(Self { nats, server })
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
        match connect(&test_options(self.server.url())).await {
            Ok(nats) => nats,
            Err(error) => panic!("cannot connect to the test's NATS server: {error}"),
        }
    }
}

fn test_options(url: &str) -> NatsOptions {
    let mut options = NatsOptions::new(url);
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
