//! Which NATS to talk to, and with what configuration.
//!
//! One order for all commands: flag, environment, configuration file, current context, a running `fairlane dev`, the default. The first
//! that says anything wins.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use fairlane_nats::auth::User;
use fairlane_nats::objects::ObjectOptions;
use fairlane_nats::{ConnectError, Nats, NatsOptions};
use fairlane_runtime::config::{self, Loaded, Origin, Settings};
use fairlane_wire::Namespace;

use crate::cli::Globals;
use crate::context::{Contexts, FILE_VARIABLE};
use crate::dev::state::{self, Running};
use crate::exit::{Exit, Stop};

/// The short name of the variable for the NATS server, shared by all commands.
pub(crate) const URL_VARIABLE: &str = "FAIRLANE_NATS_URL";
/// The configuration key it stands for.
pub(crate) const URL_KEY: &str = "nats.url";
const NAMESPACE_KEY: &str = "nats.namespace";
const CREDS_KEY: &str = "nats.creds_file";
const NKEY_KEY: &str = "nats.nkey_file";
const CA_KEY: &str = "nats.tls_ca_file";

/// How long a command for people waits for NATS; roles wait longer, because they may start before it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_OF_ROLES: Duration = Duration::from_secs(60);

/// Where the address of NATS comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UrlFrom {
    Flag,
    Variable,
    Config(Origin),
    Context(String),
    RunningDev,
    Default,
}

impl fmt::Display for UrlFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--nats-url"),
            Self::Variable => f.write_str(URL_VARIABLE),
            Self::Config(origin) => origin.fmt(f),
            Self::Context(name) => write!(f, "context {name}"),
            Self::RunningDev => f.write_str("the running `fairlane dev`"),
            Self::Default => f.write_str("the default"),
        }
    }
}

/// Configuration, complete.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) loaded: Loaded,
    pub(crate) url_from: UrlFrom,
}

impl Target {
    /// Reads everything there is: files, environment, flags, and whether `fairlane dev` runs.
    pub(crate) fn load(globals: &Globals) -> Result<Self, Stop> {
        let env: Vec<(String, String)> = config::process_env().collect();
        let dev = state::running();
        let contexts = Contexts::load()?;
        Self::from_parts(globals, env, &contexts, dev.as_ref())
    }

    /// The same for a role, which never follows a `fairlane dev` that happens to run, nor the context of the person
    /// who happens to start it.
    pub(crate) fn load_for_role(globals: &Globals) -> Result<Self, Stop> {
        let mut contexts = Contexts::default();
        if globals.context.is_some() {
            contexts = Contexts::load()?;
            contexts.current = None;
        }
        Self::from_parts(globals, config::process_env().collect(), &contexts, None)
    }

    fn from_parts(
        globals: &Globals,
        env: Vec<(String, String)>,
        contexts: &Contexts,
        dev: Option<&Running>,
    ) -> Result<Self, Stop> {
        let variable = env
            .iter()
            .find(|(name, value)| name == URL_VARIABLE && !value.is_empty())
            .map(|(_, value)| value.clone());
        let mut flags = globals.set.clone();
        let named = match &globals.context {
            Some(name) => Some((name, contexts.get(name)?)),
            None => None,
        };
        if let Some((_, fleet)) = named {
            flags.push((NAMESPACE_KEY.to_owned(), fleet.namespace.clone()));
            for (key, file) in [
                (CREDS_KEY, &fleet.creds_file),
                (NKEY_KEY, &fleet.nkey_file),
                (CA_KEY, &fleet.tls_ca_file),
            ] {
                flags.extend(
                    file.iter()
                        .map(|file| (key.to_owned(), file.display().to_string())),
                );
            }
        }
        if let Some(namespace) = &globals.namespace {
            flags.push((NAMESPACE_KEY.to_owned(), namespace.clone()));
        }
        let explicit = match (&globals.nats_url, variable) {
            _ if let Some((name, fleet)) = named => {
                Some((fleet.url.clone(), UrlFrom::Context(name.clone())))
            }
            (Some(url), _) => Some((url.clone(), UrlFrom::Flag)),
            // Said more precisely than by the variable.
            (None, Some(_)) if flags.iter().any(|(key, _)| key == URL_KEY) => None,
            (None, Some(url)) => Some((url, UrlFrom::Variable)),
            (None, None) => None,
        };
        if let Some((url, _)) = &explicit {
            flags.push((URL_KEY.to_owned(), url.clone()));
        }
        // They are read here, so they are no misspelt keys.
        let ours = [URL_VARIABLE, FILE_VARIABLE];
        let env = env
            .into_iter()
            .filter(|(name, _)| !ours.contains(&name.as_str()));
        let mut loaded = config::load(globals.config.as_deref(), env, &flags)
            .map_err(|error| Stop::new(Exit::Usage, error))?;
        let url_from = match explicit {
            Some((_, from)) => from,
            None => follow(&mut loaded, contexts, dev),
        };
        Namespace::parse(&loaded.settings.nats.namespace)
            .map_err(|error| Stop::new(Exit::Usage, error))?;
        Ok(Self { loaded, url_from })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.loaded.settings
    }

    fn namespace(&self) -> Namespace {
        Namespace::parse(&self.settings().nats.namespace).expect("checked when it was loaded")
    }

    /// How to connect as `name`.
    pub(crate) fn nats_options(&self, name: &str) -> NatsOptions {
        let nats = &self.settings().nats;
        let mut options = NatsOptions::new(&nats.url);
        options.creds_file.clone_from(&nats.creds_file);
        options.nkey_file.clone_from(&nats.nkey_file);
        options.tls_ca.clone_from(&nats.tls_ca_file);
        options.tls_identity = nats.tls_cert_file.clone().zip(nats.tls_key_file.clone());
        options.user.clone_from(&nats.user);
        options.password = nats.password.as_ref().map(|text| text.expose().to_owned());
        let user = match name {
            "producer" => User::Producer,
            "scheduler" => User::Scheduler,
            "worker" => User::Worker,
            _ => User::Operator,
        };
        let own_prefix = || user.inbox_prefix(&self.namespace());
        options.inbox_prefix = Some(nats.inbox_prefix.clone().unwrap_or_else(own_prefix));
        options.request_timeout = Duration::from_millis(nats.request_timeout_ms);
        options.connect_timeout = PATIENCE_OF_ROLES;
        options.name = format!("fairlane-{name}");
        options.namespace = self.namespace();
        options
    }

    /// How a role connects, with the operator's key, for what operators ask of it.
    pub(crate) fn operator_options(
        &self,
        nkey: Option<std::path::PathBuf>,
        creds: Option<std::path::PathBuf>,
    ) -> NatsOptions {
        let mut options = self.nats_options("api-operator");
        (options.nkey_file, options.creds_file) = (nkey, creds);
        (options.user, options.password) = (None, None);
        options.inbox_prefix = Some(User::Operator.inbox_prefix(&self.namespace()));
        options
    }

    /// Connects for a command.
    pub(crate) async fn connect(&self, name: &str) -> Result<Nats, Stop> {
        let mut options = self.nats_options(name);
        options.connect_timeout = PATIENCE;
        fairlane_nats::connect(&options)
            .await
            .map_err(|error| self.unreachable(error))
    }

    /// Connects to a fleet that was started a moment ago.
    pub(crate) async fn connect_to(&self, url: &str, namespace: &str) -> Result<Nats, Stop> {
        let mut options = self.nats_options("demo");
        options.url = url.to_owned();
        options.namespace =
            Namespace::parse(namespace).map_err(|error| Stop::new(Exit::Usage, error))?;
        options.connect_timeout = PATIENCE;
        fairlane_nats::connect(&options)
            .await
            .map_err(|error| Stop::new(Exit::Unreachable, error))
    }

    /// What to tell when there is no connection.
    pub(crate) fn unreachable(&self, error: ConnectError) -> Stop {
        let exit = match &error {
            ConnectError::HalfCredentials { .. } | ConnectError::Credentials { .. } => Exit::Usage,
            ConnectError::Refused(_) | ConnectError::Unreachable { .. } => Exit::Unreachable,
        };
        let url = &self.settings().nats.url;
        let context = format!(
            "cannot connect to NATS at {url} (from {}); give --nats-url, or start `fairlane dev`",
            self.url_from
        );
        Stop::new(exit, anyhow::Error::new(error).context(context))
    }

    /// What this installation wants to find on NATS.
    pub(crate) fn object_options(&self) -> ObjectOptions {
        let settings = self.settings();
        let defaults = ObjectOptions::default();
        let dlq_keep = Duration::from_millis(settings.results.dead_letters_keep_ms);
        // A dead letter without its body could not be repaired.
        let margin = defaults.payloads_keep.saturating_sub(defaults.dlq_keep);
        ObjectOptions {
            replicas: u64::from(settings.nats.replicas),
            backlog_per_tenant_max: settings.nats.backlog_per_tenant_max,
            submissions_per_tenant_max: settings.nats.submissions_per_tenant_max,
            submit_bytes_max: settings.nats.submit_bytes_max,
            jobs_bytes_max: settings.nats.jobs_bytes_max,
            payloads_bytes_max: settings.nats.payloads_bytes_max,
            dlq_keep,
            payloads_keep: dlq_keep + margin,
            submit_ack_wait: Duration::from_millis(settings.producer.ack_wait_ms),
            submit_max_deliver: u64::from(settings.producer.max_deliver),
            ledger_keep: defaults.ledger_keep,
        }
    }

    /// Logs of a command for people: warnings, as text. Kept until the end of the command.
    pub(crate) fn quiet_logs(
        &self,
        name: &str,
    ) -> Result<Option<fairlane_runtime::telemetry::Telemetry>, Stop> {
        // A command that is watched runs many times in one process, which has one log.
        static IS_SET: AtomicBool = AtomicBool::new(false);
        if IS_SET.swap(true, Ordering::Relaxed) {
            return Ok(None);
        }
        let silent = config::Telemetry {
            otlp_endpoint: None,
            ..self.settings().telemetry.clone()
        };
        Self::set_up(name, silent).map(Some)
    }

    /// The same, with traces if they are configured: of what begins the trace of a job.
    pub(crate) fn quiet_logs_and_traces(
        &self,
        name: &str,
    ) -> Result<fairlane_runtime::telemetry::Telemetry, Stop> {
        Self::set_up(name, self.settings().telemetry.clone())
    }

    fn set_up(
        name: &str,
        telemetry: config::Telemetry,
    ) -> Result<fairlane_runtime::telemetry::Telemetry, Stop> {
        let logs = config::Telemetry {
            log: "warn".to_owned(),
            log_format: config::LogFormat::Text,
            ..telemetry
        };
        let terminal = fairlane_runtime::telemetry::Terminal::detect();
        let telemetry = fairlane_runtime::telemetry::init(name, &logs, terminal)
            .context("cannot set up logs")?;
        Ok(telemetry)
    }
}

/// Uses the current context, or else the running `fairlane dev`, for what nobody has configured.
fn follow(loaded: &mut Loaded, contexts: &Contexts, dev: Option<&Running>) -> UrlFrom {
    let origin = loaded.origins.get(URL_KEY);
    if origin != Origin::Default {
        return UrlFrom::Config(origin);
    }
    if let Some((name, fleet)) = contexts.current() {
        let nats = &mut loaded.settings.nats;
        nats.url.clone_from(&fleet.url);
        if loaded.origins.get(NAMESPACE_KEY) == Origin::Default {
            nats.namespace.clone_from(&fleet.namespace);
        }
        for (key, set, file) in [
            (CREDS_KEY, &mut nats.creds_file, &fleet.creds_file),
            (NKEY_KEY, &mut nats.nkey_file, &fleet.nkey_file),
            (CA_KEY, &mut nats.tls_ca_file, &fleet.tls_ca_file),
        ] {
            if loaded.origins.get(key) == Origin::Default {
                set.clone_from(file);
            }
        }
        return UrlFrom::Context(name.to_owned());
    }
    let Some(dev) = dev else {
        return UrlFrom::Default;
    };
    loaded.settings.nats.url.clone_from(&dev.nats_url);
    if loaded.origins.get(NAMESPACE_KEY) == Origin::Default {
        loaded.settings.nats.namespace.clone_from(&dev.namespace);
    }
    UrlFrom::RunningDev
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn running() -> Running {
        Running {
            pid: 1,
            nats_url: "nats://dev:1".to_owned(),
            namespace: "demo".to_owned(),
            ..Running::default()
        }
    }

    /// Address and its source for flags, environment and a configuration file.
    fn target(
        flags: &[&str],
        env: &[(&str, &str)],
        file: Option<&str>,
        dev: Option<&Running>,
    ) -> Target {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fairlane.toml");
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let path = path.to_str().unwrap();
        let line = [&["fairlane", "init", "--config", path][..], flags].concat();
        let globals = Cli::try_parse_from(line).unwrap().globals;
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Target::from_parts(&globals, env.collect(), &Contexts::default(), dev).unwrap()
    }

    #[test]
    fn a_context_stands_for_what_nobody_says_and_a_named_one_for_what_anybody_says() {
        let fleet = |url: &str| crate::context::Fleet {
            url: url.to_owned(),
            creds_file: Some("/c.creds".into()),
            nkey_file: None,
            tls_ca_file: Some("/ca.crt".into()),
            namespace: "ctx".to_owned(),
        };
        let contexts = Contexts {
            current: Some("a".to_owned()),
            contexts: [("a", fleet("nats://a:1")), ("b", fleet("nats://b:1"))]
                .map(|(name, fleet)| (name.to_owned(), fleet))
                .into(),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fairlane.toml");
        std::fs::write(&path, "").unwrap();
        let found = |flags: &[&str], env: &[(&str, &str)]| {
            let line = [
                &["fairlane", "init", "--config", path.to_str().unwrap()],
                flags,
            ]
            .concat();
            let globals = Cli::try_parse_from(line).unwrap().globals;
            let env = env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Target::from_parts(&globals, env.collect(), &contexts, Some(&running()))
        };
        let target = found(&[], &[]).unwrap();
        let nats = &target.settings().nats;
        assert_eq!(
            (nats.url.as_str(), nats.namespace.as_str()),
            ("nats://a:1", "ctx")
        );
        assert_eq!(
            nats.creds_file.as_deref(),
            Some(std::path::Path::new("/c.creds"))
        );
        assert_eq!(nats.tls_ca_file, Some("/ca.crt".into()));
        assert_eq!(target.url_from.to_string(), "context a");

        let variable = [("FAIRLANE_NATS_URL", "nats://v:1")];
        let target = found(&["--context", "b", "--namespace", "mine"], &variable).unwrap();
        let nats = &target.settings().nats;
        assert_eq!(
            (nats.url.as_str(), nats.namespace.as_str()),
            ("nats://b:1", "mine")
        );

        // Nobody else's server is shown the credentials of a context.
        let target = found(&[], &variable).unwrap();
        let nats = &target.settings().nats;
        assert_eq!((nats.url.as_str(), &nats.creds_file), ("nats://v:1", &None));
        let stop = found(&["--context", "c"], &[]).unwrap_err();
        assert_eq!(stop.exit, Exit::NotFound);
        assert!(format!("{:#}", stop.error.unwrap()).contains("there are a, b"));
    }

    #[test]
    fn the_address_comes_from_flag_then_environment_then_file_then_running_dev() {
        let dev = running();
        let file = Some("[nats]\nurl = \"nats://file:1\"");
        let variable = [
            ("FAIRLANE_NATS_URL", "nats://variable:1"),
            ("FAIRLANE__NATS__URL", "nats://env:1"),
        ];
        let flag = ["--nats-url", "nats://flag:1"];
        let found = |flags: &[&str], env: &[(&str, &str)], file, dev: Option<&Running>| {
            let target = target(flags, env, file, dev);
            (target.settings().nats.url.clone(), target.url_from)
        };
        let expect = |url: &str, from| (format!("nats://{url}:1"), from);
        assert_eq!(
            found(&flag, &variable, file, Some(&dev)),
            expect("flag", UrlFrom::Flag)
        );
        assert_eq!(
            found(&[], &variable, file, Some(&dev)),
            expect("variable", UrlFrom::Variable)
        );
        let (url, from) = found(&[], &variable[1..], file, Some(&dev));
        assert_eq!(url, "nats://env:1");
        assert_eq!(from.to_string(), "env FAIRLANE__NATS__URL");
        let (url, from) = found(&[], &[], file, Some(&dev));
        assert_eq!(url, "nats://file:1");
        assert!(matches!(from, UrlFrom::Config(Origin::File(_))));
        assert_eq!(
            found(&[], &[], None, Some(&dev)),
            expect("dev", UrlFrom::RunningDev)
        );
        let default = "nats://127.0.0.1:4222".to_owned();
        assert_eq!(found(&[], &[], None, None), (default, UrlFrom::Default));
    }

    #[test]
    fn the_namespace_of_a_running_dev_goes_with_its_address_only() {
        let dev = running();
        let namespace = |flags: &[&str]| {
            let target = target(flags, &[], None, Some(&dev));
            target.settings().nats.namespace.clone()
        };
        assert_eq!(namespace(&[]), "demo");
        assert_eq!(namespace(&["--namespace", "mine"]), "mine");
        assert_eq!(namespace(&["--nats-url", "nats://flag:1"]), "fl");
    }

    #[test]
    fn the_short_variable_is_no_misspelling_and_an_empty_one_says_nothing() {
        let target = target(&[], &[("FAIRLANE_NATS_URL", "")], None, None);
        assert_eq!(target.url_from, UrlFrom::Default);
        assert!(target.loaded.warnings.is_empty());
    }

    #[test]
    fn payloads_outlive_the_dead_letters_that_name_them() {
        let target = target(
            &["--set", "results.dead_letters_keep_ms=60000"],
            &[],
            None,
            None,
        );
        let options = target.object_options();
        assert!(options.payloads_keep > options.dlq_keep);
        assert_eq!(options.dlq_keep, Duration::from_secs(60));
    }
}
