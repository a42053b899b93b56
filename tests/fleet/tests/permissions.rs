//! The permissions that are shipped, over an encrypted connection: a job goes its way, and every border
//! holds from the wrong side.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use async_nats::jetstream::Context;
use fairlane_core::TenantId;
use fairlane_fleet_tests::{Fleet, Home, Setup, job};
use fairlane_nats::auth::User;
use fairlane_nats::embedded::{EmbeddedServer, ServerOptions};
use fairlane_nats::objects::{self, ObjectOptions};
use fairlane_nats::{Nats, connect};
use fairlane_support::{Credentials, LIMIT, TestNats, eventually, within};
use fairlane_wire::{Namespace, Phase};
use futures::StreamExt;
use tokio::sync::mpsc;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
/// Nobody may publish this.
const FORBIDDEN: &str = "fl.forbidden";
const TENANTS: &[&str] = &["acme", "wayne"];

fn tenant(name: &str) -> User {
    User::Tenant(TenantId::parse(name).unwrap())
}

/// A bare client of a user, and what the server refuses it.
struct Intruder {
    client: async_nats::Client,
    refusals: mpsc::UnboundedReceiver<String>,
}

impl Intruder {
    async fn enter(server: &TestNats, user: &User) -> Self {
        let keys = server.keys.as_ref().unwrap();
        let seed = std::fs::read_to_string(keys.seed(user)).unwrap();
        let options = async_nats::ConnectOptions::with_nkey(seed);
        Self::connect(options, user, server.url()).await
    }

    async fn connect(options: async_nats::ConnectOptions, user: &User, url: &str) -> Self {
        let (refused, refusals) = mpsc::unbounded_channel();
        let options = options
            .custom_inbox_prefix(user.inbox_prefix(&Namespace::default()))
            .event_callback(move |event| {
                let refused = refused.clone();
                async move {
                    if let async_nats::Event::ServerError(error) = event {
                        // The test may be over.
                        drop(refused.send(error.to_string().to_lowercase()));
                    }
                }
            });
        let client = options.connect(url).await.unwrap();
        Self { client, refusals }
    }

    /// Whether the server let through what was done last. It judges in order: what is certainly refused
    /// and done afterwards tells that the judgement is there.
    async fn was_allowed(&mut self, subject: &str) -> bool {
        let sent = self.client.publish(FORBIDDEN, "".into()).await;
        sent.unwrap();
        let mut allowed = true;
        loop {
            let refused = within(LIMIT, "a refusal", self.refusals.recv())
                .await
                .unwrap();
            if refused.contains(FORBIDDEN) {
                return allowed;
            }
            let is_about = refused.contains(&format!("\"{}\"", subject.to_lowercase()));
            assert!(is_about, "{refused} is not about {subject}");
            allowed = false;
        }
    }

    async fn may_publish(&mut self, subject: &str) -> bool {
        let sent = self.client.publish(subject.to_owned(), "{}".into()).await;
        sent.unwrap();
        self.was_allowed(subject).await
    }

    async fn may_subscribe(&mut self, subject: &str) -> bool {
        let _subscription = self.client.subscribe(subject.to_owned()).await.unwrap();
        self.was_allowed(subject).await
    }
}

/// Who, what they publish, whether they may. Bodies are empty documents: what is let through does no harm.
fn publishes() -> Vec<(User, &'static str, bool)> {
    let (acme, worker, producer, scheduler, operator) = (
        || tenant("acme"),
        || User::Worker,
        || User::Producer,
        || User::Scheduler,
        || User::Operator,
    );
    vec![
        (acme(), "fl.submit.acme", true),
        (acme(), "fl.submit.wayne", false),
        (acme(), "fl.submit", false),
        (acme(), "fl.ask.cancel.acme.x", true),
        (acme(), "fl.ask.cancel.wayne.x", false),
        (acme(), "fl.jobs.critical.acme", false),
        (acme(), "fl.dlq.schema.acme", false),
        (acme(), "fl.ledger.acme", false),
        (acme(), "fl.ctl.ready", false),
        (acme(), "fl.ctl.cancel", false),
        (acme(), "fl.ctl.why", false),
        (acme(), "fl.ctl.credit.w", false),
        (acme(), "fl.callback.acme.x", false),
        (acme(), "$KV.fl_status.acme.x", false),
        (acme(), "$KV.fl_tenants.acme", false),
        (acme(), "$KV.fl_control.leader", false),
        (acme(), "$KV.fl_credits.1", false),
        (acme(), "$KV.fl_idem.acme.x", false),
        (acme(), "$O.fl_payloads.M.x", false),
        (
            acme(),
            "$JS.API.DIRECT.GET.KV_fl_status.$KV.fl_status.acme.x",
            true,
        ),
        (
            acme(),
            "$JS.API.DIRECT.GET.KV_fl_status.$KV.fl_status.wayne.x",
            false,
        ),
        (acme(), "$JS.API.DIRECT.GET.KV_fl_status", false),
        (acme(), "$JS.API.STREAM.MSG.GET.KV_fl_status", false),
        (acme(), "$JS.API.STREAM.INFO.KV_fl_status", false),
        (acme(), "$JS.API.CONSUMER.CREATE.KV_fl_status", false),
        (acme(), "$JS.API.CONSUMER.CREATE.FL_JOBS.x.fl.jobs.>", false),
        (acme(), "$JS.API.DIRECT.GET.FL_JOBS", false),
        (acme(), "$JS.API.INFO", false),
        (acme(), "_INBOX_fl_producer.x", false),
        (acme(), "_INBOX_fl_tenant-wayne.x", false),
        (worker(), "fl.jobs.critical.acme", false),
        (worker(), "fl.submit.acme", false),
        (worker(), "fl.ctl.credit.w", false),
        (worker(), "fl.ctl.cancel", false),
        (worker(), "$KV.fl_control.leader", false),
        (worker(), "$KV.fl_tenants.acme", false),
        (worker(), "$KV.fl_idem.acme.x", false),
        (
            worker(),
            "$JS.API.CONSUMER.CREATE.FL_JOBS.x.fl.jobs.>",
            false,
        ),
        (worker(), "$JS.API.CONSUMER.CREATE.KV_fl_credits.x.>", false),
        (worker(), "$JS.API.STREAM.MSG.DELETE.FL_DLQ", false),
        (worker(), "$JS.API.STREAM.PURGE.FL_JOBS", false),
        (worker(), "$JS.API.STREAM.DELETE.FL_JOBS", false),
        (worker(), "$JS.API.STREAM.CREATE.FL_JOBS", false),
        (scheduler(), "fl.submit.acme", false),
        // For its console, which shows with these rights and changes with the operator's.
        (scheduler(), "fl.ctl.why", true),
        (
            scheduler(),
            "$JS.API.CONSUMER.CREATE.KV_fl_redrives.x.>",
            true,
        ),
        (scheduler(), "$KV.fl_tenants.acme", false),
        (scheduler(), "$KV.fl_redrives.r-1", false),
        (scheduler(), "fl.redriven.7", false),
        (scheduler(), "fl.jobs.critical.acme", false),
        (scheduler(), "fl.ledger.acme", false),
        (scheduler(), "fl.ask.cancel.acme.x", false),
        (scheduler(), "$KV.fl_idem.acme.x", false),
        (scheduler(), "$KV.fl_batches.acme.x", false),
        (
            scheduler(),
            "$JS.API.CONSUMER.CREATE.KV_fl_status.x.>",
            false,
        ),
        (scheduler(), "$JS.API.CONSUMER.CREATE.FL_SUBMIT.x.>", false),
        (scheduler(), "$JS.API.STREAM.MSG.DELETE.FL_DLQ", false),
        (
            scheduler(),
            "$JS.API.CONSUMER.MSG.NEXT.FL_SUBMIT.producer",
            false,
        ),
        (scheduler(), "$JS.API.STREAM.PURGE.FL_JOBS", false),
        (scheduler(), "$JS.API.STREAM.DELETE.FL_JOBS", false),
        (scheduler(), "$JS.API.STREAM.UPDATE.FL_JOBS", false),
        (producer(), "fl.ledger.acme", false),
        (producer(), "fl.ctl.credit.w", false),
        (producer(), "$KV.fl_control.leader", false),
        (producer(), "$KV.fl_tenants.acme", false),
        (producer(), "$KV.fl_redrives.x", false),
        (producer(), "fl.redriven.7", false),
        (producer(), "$JS.API.STREAM.MSG.DELETE.FL_DLQ", false),
        (producer(), "$KV.fl_batches.acme.x", true),
        (producer(), "$JS.API.STREAM.MSG.DELETE.FL_JOBS", false),
        (producer(), "$JS.API.STREAM.MSG.DELETE.FL_LEDGER", false),
        (producer(), "$JS.API.STREAM.PURGE.FL_SUBMIT", false),
        (producer(), "$JS.API.STREAM.DELETE.FL_SUBMIT", false),
        (operator(), "$KV.fl_tenants.acme", true),
        (operator(), "$KV.fl_redrives.x", true),
        (operator(), "fl.redriven.7", true),
        (operator(), "fl.jobs.critical.acme", false),
        (operator(), "fl.ledger.acme", false),
        (operator(), "fl.ctl.credit.w", false),
        (operator(), "$KV.fl_control.leader", false),
        (operator(), "$KV.fl_credits.1", false),
        (operator(), "$KV.fl_status.acme.x", false),
        (operator(), "$JS.API.STREAM.DELETE.FL_JOBS", false),
        (operator(), "$JS.API.STREAM.PURGE.FL_JOBS", false),
        (operator(), "$JS.API.STREAM.MSG.DELETE.FL_JOBS", false),
        (operator(), "$JS.API.STREAM.CREATE.OTHER", false),
        (operator(), "$JS.API.STREAM.INFO.FL_JOBS", true),
    ]
}

/// Who, what they subscribe to, whether they may.
fn subscriptions() -> Vec<(User, &'static str, bool)> {
    let acme = || tenant("acme");
    let mut table = vec![
        (acme(), "_INBOX_fl_tenant-acme.x", true),
        (acme(), "_INBOX_fl_tenant-wayne.>", false),
        (acme(), "_INBOX.>", false),
        (acme(), "fl.submit.acme", false),
        (acme(), "fl.jobs.>", false),
        (acme(), "fl.stream.acme.x", true),
        (acme(), "fl.stream.wayne.x", false),
        (acme(), "fl.callback.acme.x", true),
        (acme(), "fl.callback.wayne.x", false),
        (acme(), "fl.callback.>", false),
        (acme(), "$KV.fl_status.>", false),
        (acme(), "fl.ctl.>", false),
        (acme(), "$JS.EVENT.ADVISORY.>", false),
        (User::Worker, "fl.ctl.credit.w", true),
        (User::Worker, "fl.ctl.ready", false),
        (User::Scheduler, "fl.ctl.credit.w", false),
        (User::Scheduler, "fl.ask.>", false),
        (User::Producer, "fl.jobs.>", false),
        (User::Producer, "$KV.fl_status.>", true),
        (User::Producer, "$KV.fl_tenants.>", false),
        (User::Operator, "fl.submit.>", false),
    ];
    for user in User::ROLES.into_iter().chain([acme()]) {
        table.push((user.clone(), ">", false));
        table.push((user.clone(), "$SYS.>", false));
        let others = User::ROLES.into_iter().filter(|other| *other != user);
        for other in others {
            let inbox: &'static str = match other {
                User::Operator => "_INBOX_fl_operator.>",
                User::Producer => "_INBOX_fl_producer.>",
                User::Scheduler => "_INBOX_fl_scheduler.>",
                User::Worker => "_INBOX_fl_worker.>",
                User::Tenant(_) => continue,
            };
            table.push((user.clone(), inbox, false));
        }
    }
    table
}

#[tokio::test]
async fn every_border_holds_from_the_wrong_side() {
    let server = TestNats::secured(TENANTS, "").await;
    let mut wrong = Vec::new();
    for user in User::ROLES.into_iter().chain([tenant("acme")]) {
        let mut intruder = Intruder::enter(&server, &user).await;
        for (_, subject, allowed) in publishes().into_iter().filter(|row| row.0 == user) {
            if intruder.may_publish(subject).await != allowed {
                wrong.push(format!("{} publishes {subject}", user.name()));
            }
        }
        for (_, subject, allowed) in subscriptions().into_iter().filter(|row| row.0 == user) {
            if intruder.may_subscribe(subject).await != allowed {
                wrong.push(format!("{} subscribes to {subject}", user.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn nobody_comes_in_without_a_key_or_with_a_strangers() {
    let server = TestNats::secured(&[], "").await;
    assert!(async_nats::connect(server.url()).await.is_err());
    let (seed, _) = fairlane_nats::auth::new_key();
    let options = async_nats::ConnectOptions::with_nkey(seed);
    assert!(options.connect(server.url()).await.is_err());
}

/// A direct read of a record, as a tenant does it.
async fn read(client: &async_nats::Client, tenant: &str, job: &str) -> Option<String> {
    let subject = format!("$JS.API.DIRECT.GET.KV_fl_status.$KV.fl_status.{tenant}.{job}");
    let asked = client.request(subject, "".into());
    let answer = tokio::time::timeout(Duration::from_millis(500), asked).await;
    let message = answer.ok()?.ok()?;
    let is_there = message.status.is_none() && !message.payload.is_empty();
    is_there.then(|| String::from_utf8_lossy(&message.payload).into_owned())
}

#[tokio::test]
async fn a_tenant_submits_and_reads_its_own_job_and_nothing_of_another() {
    let setup = Setup {
        tenants: TENANTS,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let acme = Intruder::enter(&fleet.nats, &tenant("acme")).await;
    let wayne = Intruder::enter(&fleet.nats, &tenant("wayne")).await;
    for (who, name) in [(&acme, "acme"), (&wayne, "wayne")] {
        let jetstream: Context = async_nats::jetstream::new(who.client.clone());
        let subject = format!("fl.submit.{name}");
        let sent = jetstream
            .publish(subject, job("a-1", "five tags").into())
            .await;
        let stored = sent.unwrap().into_future();
        within(LIMIT, "the job to be stored", stored).await.unwrap();
    }
    fleet.phase("acme", "a-1", Phase::Done).await;
    fleet.phase("wayne", "a-1", Phase::Done).await;
    let record = read(&acme.client, "acme", "a-1").await.unwrap();
    assert!(record.contains(r#""phase":"done""#), "{record}");
    assert_eq!(read(&acme.client, "wayne", "a-1").await, None);
    // By the short form, with the other's key in the body.
    let body = r#"{"last_by_subj":"$KV.fl_status.wayne.a-1"}"#;
    for subject in [
        "$JS.API.DIRECT.GET.KV_fl_status",
        "$JS.API.DIRECT.GET.KV_fl_status.$KV.fl_status.acme.a-1",
    ] {
        let asked = acme.client.request(subject, body.into());
        let answer = tokio::time::timeout(Duration::from_millis(500), asked).await;
        let leaked = answer
            .ok()
            .and_then(Result::ok)
            .filter(|message| String::from_utf8_lossy(&message.payload).contains("wayne"));
        assert!(leaked.is_none(), "{leaked:?}");
    }
    // What it may ask to be done to its own jobs is answered.
    let asked = acme.client.request("fl.ask.cancel.acme.a-1", "".into());
    within(LIMIT, "an answer", asked).await.unwrap();
    drop(fleet);
}

#[tokio::test]
async fn another_tenants_answers_do_not_arrive() {
    let server = TestNats::secured(TENANTS, "").await;
    let acme = Intruder::enter(&server, &tenant("acme")).await;
    let mut own = acme.client.subscribe("fl.stream.acme.>").await.unwrap();
    let _other = acme.client.subscribe("fl.stream.wayne.>").await.unwrap();
    acme.client.flush().await.unwrap();
    let worker = server.connect_as(&User::Worker).await;
    for subject in ["fl.stream.wayne.x", "fl.stream.acme.x"] {
        worker.client.publish(subject, "x".into()).await.unwrap();
    }
    let message = within(LIMIT, "its own", own.next()).await.unwrap();
    assert_eq!(message.subject.as_str(), "fl.stream.acme.x");
}

#[tokio::test]
async fn a_role_talks_to_an_encrypted_server_whose_authority_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let made = made.unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}\n",
        cert.display().to_string(),
        key.display().to_string()
    );
    let keys = fairlane_support::Keys::new(&[]);
    let options = fairlane_nats::embedded::ServerOptions {
        extra_config: format!("{}{tls}", keys.conf()),
        ..Default::default()
    };
    let server = fairlane_nats::embedded::EmbeddedServer::start(options)
        .await
        .unwrap();
    let url = server.url().replace("nats://", "tls://");
    let mut options = keys.options(&User::Operator, &url);
    options.connect_timeout = Duration::from_secs(2);
    assert!(
        connect(&options).await.is_err(),
        "nobody vouches for the server"
    );
    options.tls_ca = Some(cert);
    let nats: Nats = connect(&options).await.unwrap();
    eventually(LIMIT, "an answer", || async {
        let info = fairlane_nats::objects::guard(&nats).await;
        info.map_err(|error| error.to_string())
    })
    .await;
}

/// A server in operator mode.
struct ByJwt {
    nats: Nats,
    server: EmbeddedServer,
    credentials: Credentials,
}

impl Home for ByJwt {
    fn client(&self) -> &Nats {
        &self.nats
    }

    fn settings(&self, user: &User) -> Vec<(&'static str, String)> {
        let file = self.credentials.file(&user.name());
        vec![
            ("nats.url", self.server.url().to_owned()),
            ("nats.creds_file", file.display().to_string()),
        ]
    }
}

#[tokio::test]
async fn credentials_with_a_jwt_let_the_roles_in_with_their_permissions_and_nobody_else() {
    let credentials = Credentials::new();
    let options = ServerOptions {
        extra_config: credentials.conf().to_owned(),
        ..ServerOptions::default()
    };
    let server = EmbeddedServer::start(options).await.unwrap();
    let operator = connect(&credentials.options(&User::Operator, server.url())).await;
    let made = objects::ensure(&operator.unwrap(), &ObjectOptions::default()).await;
    assert!(made.unwrap().differences.is_empty());
    // Signed by another operator's account.
    let stranger = Credentials::new().options(&User::Worker, server.url());
    assert!(connect(&stranger).await.is_err());

    let worker = std::fs::read_to_string(credentials.file("worker")).unwrap();
    let options = async_nats::ConnectOptions::with_credentials(&worker).unwrap();
    let mut worker = Intruder::connect(options, &User::Worker, server.url()).await;
    assert!(worker.may_publish("$JS.API.STREAM.INFO.FL_JOBS").await);
    assert!(!worker.may_publish("fl.jobs.critical.acme").await);
    assert!(!worker.may_publish("$KV.fl_control.leader").await);
    assert!(worker.may_subscribe("fl.ctl.credit.w").await);
    assert!(!worker.may_subscribe("fl.ctl.ready").await);

    let nats = connect(&credentials.tester(server.url())).await.unwrap();
    let home = ByJwt {
        nats,
        server,
        credentials,
    };
    let fleet = Fleet::start_on(home, PROGRAM, Setup::default()).await;
    fleet.publish("acme", job("a-1", "five tags")).await;
    fleet.phase("acme", "a-1", Phase::Done).await;
    fleet.settled().await;
}
