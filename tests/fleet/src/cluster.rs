//! Three NATS servers, as `deploy/nats/cluster.conf` has them: encrypted, each a process, on ports of loopback.
//!
//! Every server is started from the shipped file itself, beside the `auth.conf` of `fairlane auth`. What the file takes from
//! the environment comes from there; where to listen on a machine that all three share is said by flags.

use std::path::{Path, PathBuf};

use async_nats::jetstream::stream::{ClusterInfo, Info};
use fairlane_nats::auth::User;
use fairlane_nats::embedded::{Search, find, free_port};
use fairlane_nats::objects::{self, ObjectOptions};
use fairlane_nats::{Nats, NatsOptions, connect};
use fairlane_support::keys::TESTER;
use fairlane_support::{Keys, eventually};
use futures::TryStreamExt;
use nix::sys::signal::Signal;

use crate::{Home, PATIENCE, Process, status};

/// Servers, and copies of everything.
pub const NODES: usize = 3;
const CONF: &str = include_str!("../../../deploy/nats/cluster.conf");

/// A running cluster with all of Fairlane's objects. Everything about it goes when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    nats: Nats,
    keys: Keys,
    settings: Vec<(&'static str, String)>,
    program: PathBuf,
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Node {
    name: String,
    ports: Ports,
    process: Option<Process>,
}

#[derive(Debug)]
struct Ports {
    clients: u16,
    monitor: u16,
    routes: u16,
}

impl Home for Cluster {
    fn client(&self) -> &Nats {
        &self.nats
    }

    fn settings(&self, user: &User) -> Vec<(&'static str, String)> {
        let mut settings = self.settings.clone();
        settings.push(("nats.nkey_file", self.keys.seed(user).display().to_string()));
        settings
    }
}

impl Cluster {
    /// Starts the servers, makes all objects as the operator, and waits until every copy is there.
    ///
    /// # Panics
    /// With the reason, if that fails.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for servers");
        let keys = Keys::new(&[]);
        std::fs::write(dir.path().join("cluster.conf"), CONF).expect("a configuration");
        std::fs::write(dir.path().join("auth.conf"), keys.conf()).expect("a configuration");
        certify(dir.path());
        let program = tokio::task::spawn_blocking(|| find(&Search::from_env())).await;
        let program = program.expect("no panic").expect("a nats-server").path;
        let port = || free_port().expect("a port");
        let node = |number| Node {
            name: format!("nats-{number}"),
            ports: Ports {
                clients: port(),
                monitor: port(),
                routes: port(),
            },
            process: None,
        };
        let mut nodes: Vec<Node> = (0..NODES).map(node).collect();
        for at in 0..NODES {
            nodes[at].process = Some(spawn(&nodes, at, dir.path(), &program));
        }
        let urls: Vec<String> = nodes
            .iter()
            .map(|node| format!("tls://127.0.0.1:{}", node.ports.clients))
            .collect();
        let ca = dir.path().join("ca.pem");
        let settings = vec![
            ("nats.url", urls.join(",")),
            ("nats.replicas", NODES.to_string()),
            ("nats.tls_ca_file", ca.display().to_string()),
        ];
        let trusting = |mut options: NatsOptions| {
            options.tls_ca = Some(ca.clone());
            options
        };
        make_objects(&trusting(keys.options(&User::Operator, &urls.join(",")))).await;
        let mut options = trusting(NatsOptions::new(urls.join(",")));
        options.user = Some(TESTER.to_owned());
        options.password = Some(TESTER.to_owned());
        let nats = connect(&options).await.expect("the tester comes in");
        let cluster = Self {
            nodes,
            nats,
            keys,
            settings,
            program,
            dir,
        };
        cluster.whole().await;
        cluster
    }

    /// Waits until every server runs and every stream has a leader and all its copies, none of them behind.
    ///
    /// # Panics
    /// After [`PATIENCE`], with what is missing.
    pub async fn whole(&self) {
        eventually(PATIENCE, "all copies to be current", || async {
            let streams = self.streams().await?;
            match streams.iter().find_map(missing) {
                Some(missing) => Err(missing),
                None => Ok(()),
            }
        })
        .await;
        for node in &self.nodes {
            let address = format!("127.0.0.1:{}", node.ports.monitor);
            // By its own word, its streams and consumers included.
            eventually(PATIENCE, &format!("{} to be well", node.name), || async {
                match status(&address, "/healthz").await? {
                    200 => Ok(()),
                    other => Err(other.to_string()),
                }
            })
            .await;
        }
    }

    /// The server that leads most streams, by its place.
    ///
    /// # Panics
    /// If the cluster does not say.
    pub async fn busiest(&self) -> usize {
        let streams = self.streams().await.expect("the cluster answers");
        let leaders: Vec<String> = streams
            .into_iter()
            .filter_map(|stream| stream.cluster?.leader)
            .collect();
        let led = |at: &usize| {
            let name = &self.nodes[*at].name;
            leaders.iter().filter(|leader| *leader == name).count()
        };
        (0..NODES).max_by_key(led).expect("there are servers")
    }

    /// Stops a server in order and starts it again; waits until the cluster is whole. `Signal::SIGUSR2` is lame duck mode,
    /// in which a server hands over what it leads and sends its clients away one by one before it ends.
    ///
    /// # Panics
    /// If it does not stop, or does not come back.
    pub async fn restart(&mut self, at: usize, signal: Signal) {
        let mut process = self.nodes[at].process.take().expect("it runs");
        process.signal(signal);
        process.end().await;
        self.revive(at).await;
    }

    /// Ends a server without warning, as the loss of its machine would.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill9(&mut self, at: usize) {
        let mut process = self.nodes[at].process.take().expect("it runs");
        process.kill9();
    }

    /// Starts a server that has ended, with the data it had; waits until the cluster is whole.
    ///
    /// # Panics
    /// If it does not come back.
    pub async fn revive(&mut self, at: usize) {
        let process = spawn(&self.nodes, at, self.dir.path(), &self.program);
        self.nodes[at].process = Some(process);
        self.whole().await;
    }

    async fn streams(&self) -> Result<Vec<Info>, String> {
        let streams = self.nats.jetstream.streams().try_collect::<Vec<_>>().await;
        let streams = streams.map_err(|error| error.to_string())?;
        let wanted = objects::specs(&self.nats.names, &ObjectOptions::default());
        let wanted = wanted.iter().filter(|spec| spec.consumer_of.is_none());
        if streams.len() < wanted.count() {
            return Err(format!("only {} streams answer", streams.len()));
        }
        Ok(streams)
    }
}

fn spawn(nodes: &[Node], at: usize, dir: &Path, program: &Path) -> Process {
    let node = &nodes[at];
    let config = dir.join("cluster.conf").display().to_string();
    let routes = format!("nats://127.0.0.1:{}", node.ports.routes);
    let (port, monitor) = (
        node.ports.clients.to_string(),
        node.ports.monitor.to_string(),
    );
    let arguments = [
        "--config",
        &config,
        "--addr",
        "127.0.0.1",
        "--port",
        &port,
        "--http_port",
        &monitor,
        "--cluster",
        &routes,
    ];
    let path = |name: &str| dir.join(name).display().to_string();
    let mut environment = vec![
        ("NATS_NAME".to_owned(), node.name.clone()),
        ("NATS_STORE".to_owned(), path(&node.name)),
        ("NATS_TLS_CERT".to_owned(), path("cert.pem")),
        ("NATS_TLS_KEY".to_owned(), path("key.pem")),
        ("NATS_TLS_CA".to_owned(), path("ca.pem")),
    ];
    for (number, node) in nodes.iter().enumerate() {
        let route = format!("nats-route://127.0.0.1:{}", node.ports.routes);
        environment.push((format!("NATS_ROUTE_{}", number + 1), route));
    }
    Process::spawn(program, &node.name, &arguments, &environment, dir)
}

/// An authority, and a certificate of it that serves all servers towards clients and each other.
fn certify(dir: &Path) {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa,
        KeyPair,
    };
    let mut params = CertificateParams::new(Vec::new()).expect("an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("a certificate");
    params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
    params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ClientAuth);
    let key = KeyPair::generate().expect("a key");
    let cert = params.signed_by(&key, &ca).expect("a certificate");
    for (name, pem) in [
        ("ca.pem", ca.pem()),
        ("cert.pem", cert.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        std::fs::write(dir.join(name), pem).expect("a file");
    }
}

async fn make_objects(operator: &NatsOptions) {
    let options = ObjectOptions {
        replicas: NODES as u64,
        ..ObjectOptions::default()
    };
    let operator = connect(operator).await.expect("the operator comes in");
    let report = eventually(PATIENCE, "the objects to be made", || async {
        objects::ensure(&operator, &options).await
    })
    .await;
    assert!(report.differences.is_empty(), "{report}");
}

/// What a stream lacks.
fn missing(stream: &Info) -> Option<String> {
    let name = &stream.config.name;
    let Some(ClusterInfo {
        leader: Some(_),
        replicas,
        ..
    }) = &stream.cluster
    else {
        return Some(format!("{name} has no leader"));
    };
    let current = replicas.iter().filter(|copy| copy.current && !copy.offline);
    (current.count() + 1 < NODES).then(|| format!("{name} has {replicas:?}"))
}
