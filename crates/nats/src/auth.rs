//! Who may do what on the NATS server: the smallest permissions with which each role works, and the
//! server configuration that grants them.
//!
//! Everybody is a user of one account, known by an nkey. Each has an inbox prefix of its own and may
//! subscribe to that alone, because whoever may subscribe to another one's inbox reads its replies.
//! Wildcards of NATS stand for whole tokens, so everything is named in full, per fleet (namespace).
//!
//! What is not granted, and why:
//! - A role that has a consumer of a stream could have it deliver to any subject; so tenants get none,
//!   and no watch of a bucket, which needs one.
//! - `STREAM.INFO` with a filter lists the keys of all tenants; tenants read their records directly, by a
//!   subject that ends in the key. The short form names the key in its body and reads any: not for tenants.
//! - A write to a bucket can carry a header that wipes it; tenants write to no bucket.
//! - Only the operator makes streams, and nobody deletes or purges one. (Stores of objects excepted,
//!   where purging is how an object is deleted.)

use fairlane_core::TenantId;
use fairlane_wire::names::Namespace;

use crate::objects::{ObjectOptions, specs};

/// Who connects to NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// People and tools that look after the fleet; the only one that makes streams and buckets.
    Operator,
    Producer,
    Scheduler,
    Worker,
    /// Whoever submits jobs of one tenant.
    Tenant(TenantId),
}

/// What a user may publish, and subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
    /// It may answer each request it receives, once.
    pub answers: bool,
}

impl User {
    /// The users that every fleet has.
    pub const ROLES: [Self; 4] = [
        Self::Operator,
        Self::Producer,
        Self::Scheduler,
        Self::Worker,
    ];

    /// Its name in files and inboxes.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Operator => "operator".to_owned(),
            Self::Producer => "producer".to_owned(),
            Self::Scheduler => "scheduler".to_owned(),
            Self::Worker => "worker".to_owned(),
            Self::Tenant(tenant) => format!("tenant-{tenant}"),
        }
    }

    /// Where its replies arrive.
    #[must_use]
    pub fn inbox_prefix(&self, names: &Namespace) -> String {
        format!("_INBOX_{}_{}", names.as_str(), self.name())
    }

    /// What it may do.
    #[must_use]
    pub fn permissions(&self, names: &Namespace) -> Permissions {
        let grants = match self {
            Self::Operator => operator(names),
            Self::Producer => producer(names),
            Self::Scheduler => scheduler(names),
            Self::Worker => worker(names),
            Self::Tenant(tenant) => of_tenant(names, tenant),
        };
        let mut subscribe = vec![format!("{}.>", self.inbox_prefix(names))];
        subscribe.extend(grants.subscribe);
        Permissions {
            publish: grants.publish,
            subscribe,
            answers: grants.answers,
        }
    }
}

#[derive(Debug, Default)]
struct Grants {
    publish: Vec<String>,
    subscribe: Vec<String>,
    answers: bool,
}

impl Grants {
    fn publish(mut self, subjects: impl IntoIterator<Item = String>) -> Self {
        self.publish.extend(subjects);
        self
    }

    fn subscribe(mut self, subjects: impl IntoIterator<Item = String>) -> Self {
        self.subscribe.extend(subjects);
        self
    }

    fn api(self, calls: impl IntoIterator<Item = String>) -> Self {
        self.publish(calls.into_iter().map(|call| format!("$JS.API.{call}")))
    }

    /// What every role asks for at its start: is everything as it should be?
    fn compares(self, names: &Namespace) -> Self {
        let specs = specs(names, &ObjectOptions::default());
        let info = specs.iter().map(|spec| match &spec.consumer_of {
            None => format!("STREAM.INFO.{}", spec.server_name),
            Some(stream) => format!("CONSUMER.INFO.{stream}.{}", spec.server_name),
        });
        self.api(["INFO".to_owned()]).api(info)
    }

    /// Says which traces are sent although they were not chosen, and hears it.
    fn traces(self, names: &Namespace) -> Self {
        self.publish([names.trace_subject()])
            .subscribe([names.trace_subject()])
    }

    /// Reads single messages.
    fn reads(self, stream: &str) -> Self {
        self.api([
            format!("STREAM.MSG.GET.{stream}"),
            format!("DIRECT.GET.{stream}"),
            format!("DIRECT.GET.{stream}.>"),
        ])
    }

    /// Reads all of a stream and what comes after it, by a consumer of its own.
    fn follows(self, stream: &str) -> Self {
        self.reads(stream).api([
            format!("CONSUMER.CREATE.{stream}.>"),
            format!("CONSUMER.MSG.NEXT.{stream}.*"),
            format!("CONSUMER.DELETE.{stream}.*"),
        ])
    }

    /// Takes work from a durable consumer. Acknowledgements come in two forms.
    fn takes_from(self, stream: &str, consumer: &str) -> Self {
        self.api([format!("CONSUMER.MSG.NEXT.{stream}.{consumer}")])
            .publish([
                format!("$JS.ACK.{stream}.{consumer}.>"),
                format!("$JS.ACK.*.*.{stream}.{consumer}.>"),
            ])
    }

    fn deletes_from(self, stream: &str) -> Self {
        self.api([format!("STREAM.MSG.DELETE.{stream}")])
    }

    fn reads_bucket(self, bucket: &str) -> Self {
        self.reads(&stream_of(bucket))
    }

    fn watches(self, bucket: &str) -> Self {
        self.follows(&stream_of(bucket))
    }

    fn writes_bucket(self, bucket: &str) -> Self {
        self.publish([format!("$KV.{bucket}.>")])
    }

    /// Stores, reads and deletes large bodies.
    fn uses_payloads(self, names: &Namespace) -> Self {
        let store = names.payload_store();
        let stream = format!("OBJ_{store}");
        self.reads(&stream)
            .publish([format!("$O.{store}.C.*"), format!("$O.{store}.M.*")])
            .api([format!("STREAM.PURGE.{stream}")])
    }
}

fn stream_of(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// Everything below `<namespace>.<word>`, with so many tokens.
fn below(names: &Namespace, word: &str, tokens: usize) -> String {
    let mut subject = format!("{}.{word}", names.as_str());
    for _ in 0..tokens {
        subject.push_str(".*");
    }
    subject
}

fn producer(names: &Namespace) -> Grants {
    let submit = names.submit_stream();
    Grants::default()
        .compares(names)
        .traces(names)
        .takes_from(&submit, names.producer_consumer())
        .takes_from(&names.callbacks_stream(), names.callbacks_consumer())
        .reads(&submit)
        .deletes_from(&submit)
        // What names a large body keeps it.
        .follows(&names.jobs_stream())
        .follows(&names.dlq_stream())
        .follows(&format!("OBJ_{}", names.payload_store()))
        .deletes_from(&format!("OBJ_{}", names.payload_store()))
        .publish([
            names.submit_filter(),
            names.jobs_filter(),
            names.dlq_filter(),
            names.callbacks_filter(),
            names.cancel_subject(),
            names.why_subject(),
            names.count_subject(),
            names.ask_filter(),
            // Where a submitter may always be told; what else producer.callback_subjects allows goes here.
            format!("{}.callback.>", names.as_str()),
        ])
        .watches(&names.status_bucket())
        .writes_bucket(&names.status_bucket())
        .watches(&names.idem_bucket())
        .writes_bucket(&names.idem_bucket())
        // Its HTTP API knows keys, tells accounts and shows runs. What operators change over HTTP is done with the
        // operator's own rights (`producer.operator_nkey_file`): whoever takes over a server that faces callers can
        // neither make keys nor raise budgets nor delete letters.
        .watches(&names.tenants_bucket())
        .follows(&names.ledger_stream())
        .watches(&names.redrives_bucket())
        .watches(&names.batches_bucket())
        .writes_bucket(&names.batches_bucket())
        .reads_bucket(&names.control_bucket())
        // A deferred job whose owner agrees is parked for longer.
        .reads_bucket(&names.credits_bucket())
        .writes_bucket(&names.credits_bucket())
        .uses_payloads(names)
        .subscribe([
            names.ask_filter(),
            below(names, "stream", 2),
            // A caller of the HTTP API hears of the end of its job.
            format!("$KV.{}.>", names.status_bucket()),
            names.stranded_advisory(),
        ])
        .answers()
}

fn scheduler(names: &Namespace) -> Grants {
    Grants::default()
        .compares(names)
        .traces(names)
        .follows(&names.jobs_stream())
        .deletes_from(&names.jobs_stream())
        .follows(&names.dlq_stream())
        .follows(&names.ledger_stream())
        .watches(&names.control_bucket())
        .writes_bucket(&names.control_bucket())
        .watches(&names.credits_bucket())
        .writes_bucket(&names.credits_bucket())
        .watches(&names.tenants_bucket())
        .reads_bucket(&names.status_bucket())
        .writes_bucket(&names.status_bucket())
        .uses_payloads(names)
        .publish([
            names.dlq_filter(),
            names.callbacks_filter(),
            names.call_subject(),
            below(names, "ctl.credit", 1),
        ])
        // Its console asks the leader and shows runs. What is changed there is done with the operator's own rights
        // (`scheduler.operator_nkey_file`).
        .publish([names.why_subject()])
        .watches(&names.redrives_bucket())
        .subscribe([
            names.ready_subject(),
            names.why_subject(),
            names.cancel_subject(),
        ])
        .answers()
}

fn worker(names: &Namespace) -> Grants {
    Grants::default()
        .compares(names)
        .traces(names)
        .reads(&names.jobs_stream())
        .deletes_from(&names.jobs_stream())
        .reads_bucket(&names.credits_bucket())
        .writes_bucket(&names.credits_bucket())
        .reads_bucket(&names.status_bucket())
        .writes_bucket(&names.status_bucket())
        .uses_payloads(names)
        .publish([
            names.ready_subject(),
            names.dlq_filter(),
            names.ledger_filter(),
            names.callbacks_filter(),
            below(names, "stream", 2),
        ])
        .subscribe([
            below(names, "ctl.credit", 1),
            names.call_subject(),
            names.cancel_subject(),
            names.count_subject(),
        ])
        .answers()
}

fn operator(names: &Namespace) -> Grants {
    let mut grants = Grants::default().compares(names);
    for spec in specs(names, &ObjectOptions::default()) {
        grants = match &spec.consumer_of {
            None => grants
                .api([format!("STREAM.CREATE.{}", spec.server_name)])
                .follows(&spec.server_name),
            Some(_) => grants,
        };
    }
    grants
        .deletes_from(&names.dlq_stream())
        .publish([
            names.submit_filter(),
            names.dlq_filter(),
            names.redriven_filter(),
            names.ask_filter(),
            names.why_subject(),
        ])
        .subscribe([names.ready_subject()])
        .writes_bucket(&names.tenants_bucket())
        .writes_bucket(&names.redrives_bucket())
        .uses_payloads(names)
}

fn of_tenant(names: &Namespace, tenant: &TenantId) -> Grants {
    let records = names.status_bucket();
    let ns = names.as_str();
    Grants::default()
        .publish([
            names.submit_subject(tenant),
            format!("{ns}.ask.*.{tenant}.*"),
        ])
        .api([format!("DIRECT.GET.KV_{records}.$KV.{records}.{tenant}.>")])
        .subscribe([
            format!("{ns}.stream.{tenant}.>"),
            format!("{}>", names.own_callback_prefix(tenant)),
        ])
}

impl Grants {
    fn answers(mut self) -> Self {
        self.answers = true;
        self
    }
}

/// The part of a server's configuration that lets these users in, by their public nkeys, and nobody
/// else: to be included from its main file.
#[must_use]
pub fn render(names: &Namespace, users: &[(User, String)]) -> String {
    let mut text = format!(
        "# Who may do what: one account for the fleet {:?}, with a user for each role and each tenant.\n\
         # Written by `fairlane auth`; what each permission is for is said there.\n\
         accounts {{\n  FAIRLANE {{\n    jetstream: enabled\n    users: [\n",
        names.as_str()
    );
    for (user, key) in users {
        let permissions = user.permissions(names);
        text += &format!("      # {}\n", user.name());
        text += &format!("      {{\n        nkey: {key}\n        permissions {{\n");
        list(&mut text, "publish", &permissions.publish);
        list(&mut text, "subscribe", &permissions.subscribe);
        if permissions.answers {
            text.push_str("          allow_responses: true\n");
        }
        text.push_str("        }\n      }\n");
    }
    text.push_str("    ]\n  }\n}\n");
    text
}

fn list(text: &mut String, name: &str, subjects: &[String]) {
    let mut subjects = subjects.to_vec();
    subjects.sort();
    subjects.dedup();
    *text += &format!("          {name}: {{ allow: [\n");
    for subject in subjects {
        *text += &format!("            {subject:?}\n");
    }
    text.push_str("          ] }\n");
}

/// A new key: the seed, which is the secret, and the public key.
///
/// # Panics
/// If the operating system gives no randomness.
#[must_use]
pub fn new_key() -> (String, String) {
    let pair = nkeys::KeyPair::new_user();
    let seed = pair.seed().expect("a new pair has its seed");
    (seed, pair.public_key())
}

/// The public key of a seed. None if it is none of a user.
#[must_use]
pub fn public_key(seed: &str) -> Option<String> {
    let pair = nkeys::KeyPair::from_seed(seed.trim()).ok()?;
    let key = pair.public_key();
    key.starts_with('U').then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> User {
        User::Tenant(TenantId::parse(name).unwrap())
    }

    #[test]
    fn the_shipped_configuration_is_what_is_rendered() {
        let users: Vec<_> = User::ROLES.into_iter().chain([tenant("acme")]).collect();
        let variable =
            |user: &User| format!("${}_NKEY", user.name().replace('-', "_").to_uppercase());
        let users: Vec<_> = users
            .into_iter()
            .map(|user| (variable(&user), user))
            .collect();
        let users: Vec<_> = users.into_iter().map(|(key, user)| (user, key)).collect();
        let rendered = render(&Namespace::default(), &users);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats/auth.conf");
        if std::env::var_os("FAIRLANE_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &rendered).unwrap();
        }
        let shipped = std::fs::read_to_string(path).unwrap();
        assert!(
            shipped == rendered,
            "deploy/nats/auth.conf is not up to date; run this test with FAIRLANE_WRITE_GOLDEN=1"
        );
    }

    #[test]
    fn a_tenant_may_name_nothing_of_another_and_no_inbox_but_its_own() {
        let names = Namespace::default();
        let permissions = tenant("acme").permissions(&names);
        for subject in permissions.publish.iter().chain(&permissions.subscribe) {
            assert!(subject.contains("acme"), "{subject}");
            assert!(!subject.starts_with("_INBOX."), "{subject}");
        }
        assert!(!permissions.answers);
    }

    #[test]
    fn nobody_deletes_a_stream_and_only_the_operator_makes_one() {
        let names = Namespace::default();
        for user in User::ROLES.into_iter().chain([tenant("acme")]) {
            for subject in user.permissions(&names).publish {
                assert!(!subject.contains("STREAM.DELETE"), "{user:?} {subject}");
                assert!(
                    !subject.contains("STREAM.PURGE") || subject.ends_with("OBJ_fl_payloads"),
                    "{user:?} {subject}"
                );
                let makes = subject.contains("STREAM.CREATE") || subject.contains("STREAM.UPDATE");
                assert!(!makes || user == User::Operator, "{user:?} {subject}");
            }
        }
    }

    #[test]
    fn a_seed_gives_its_public_key() {
        let (seed, key) = new_key();
        assert_eq!(public_key(&format!("{seed}\n")), Some(key));
        assert_eq!(public_key("SUAXXXX"), None);
    }
}
