//! Which processes a fleet on one machine has, and what each is told. Plain data; nothing is started here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use fairlane_runtime::config::Secret;
use fairlane_sim::config::Preset;

use crate::cli::Globals;

/// Start of all configuration variables.
const PREFIX: &str = "FAIRLANE__";
/// The key given to the simulator, which takes any.
const SIMULATED_KEY: &str = "simulated";

/// In the order in which they are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Worker,
    Scheduler,
    Producer,
    Simulator,
}

impl Group {
    pub(crate) const STOP_ORDER: [Self; 4] = [
        Self::Worker,
        Self::Scheduler,
        Self::Producer,
        Self::Simulator,
    ];

    /// The subcommand.
    fn command(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Scheduler => "scheduler",
            Self::Producer => "producer",
            Self::Simulator => "sim",
        }
    }

    /// Where it tells that it is ready.
    pub(crate) fn ready_path(self) -> &'static str {
        match self {
            Self::Worker | Self::Scheduler | Self::Producer => "/readyz",
            Self::Simulator => "/sim/health",
        }
    }
}

/// Where jobs are sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Upstream {
    Simulator {
        preset: Preset,
        time_scale: f64,
        url: String,
    },
    Claude {
        key: Secret,
    },
}

/// What all processes share.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nats_url: String,
    pub(crate) upstream: Upstream,
    /// Name of the limits the schedulers keep.
    pub(crate) preset: Preset,
    pub(crate) config: Option<PathBuf>,
    pub(crate) namespace: Option<String>,
    pub(crate) set: Vec<(String, String)>,
    /// Keep configuration variables out, so that only what is said here counts.
    pub(crate) is_hermetic: bool,
}

/// One process, but for the port it listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) group: Group,
    pub(crate) args: Vec<OsString>,
    /// Variables set, and those taken away.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) env_removed: Vec<String>,
}

impl Spec {
    /// What to add to tell it to listen on `port` of loopback.
    pub(crate) fn listening(&self, port: u16) -> Listening {
        let address = format!("127.0.0.1:{port}");
        match self.group {
            Group::Simulator => Listening::Args(["--listen".into(), address.into()]),
            Group::Worker | Group::Scheduler | Group::Producer => {
                let role = self.group.command().to_ascii_uppercase();
                Listening::Variable(format!("{PREFIX}{role}__HTTP_ADDR"), address)
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listening {
    Args([OsString; 2]),
    Variable(String, String),
}

impl Plan {
    /// The simulator's process. None if the real Claude API is used.
    pub(crate) fn simulator(&self, inherited: &[String]) -> Option<Spec> {
        let Upstream::Simulator {
            preset, time_scale, ..
        } = &self.upstream
        else {
            return None;
        };
        let args = [
            "sim",
            "--die-with-parent",
            "--preset",
            preset_name(*preset),
            "--time-scale",
            &time_scale.to_string(),
        ];
        Some(Spec {
            name: "simulator".to_owned(),
            group: Group::Simulator,
            args: args.iter().map(OsString::from).collect(),
            env: Vec::new(),
            env_removed: self.removed(inherited, &[]),
        })
    }

    /// Process number `number` (from 1) of a role. `inherited` are the names of all variables of this process.
    pub(crate) fn role(&self, group: Group, number: u8, inherited: &[String]) -> Spec {
        let env = self.env(inherited);
        Spec {
            name: format!("{}-{number}", group.command()),
            group,
            args: self.role_args(group),
            env_removed: self.removed(inherited, &env),
            env,
        }
    }

    fn role_args(&self, group: Group) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![group.command().into(), "--die-with-parent".into()];
        if let Some(path) = &self.config {
            args.extend(["--config".into(), path.into()]);
        }
        if let Some(namespace) = &self.namespace {
            args.extend(["--namespace".into(), namespace.into()]);
        }
        for (key, value) in &self.set {
            args.extend(["--set".into(), format!("{key}={value}").into()]);
        }
        args
    }

    fn env(&self, inherited: &[String]) -> Vec<(String, String)> {
        let preset = preset_name(self.preset);
        let mut env = vec![
            ("NATS__URL", self.nats_url.as_str()),
            ("LIMITS__PRESET", preset),
        ];
        // Said by an earlier source, the file would conflict with the key.
        env.push(("CLAUDE__API_KEY_FILE", ""));
        match &self.upstream {
            Upstream::Simulator { url, .. } => {
                env.extend([
                    ("CLAUDE__BASE_URL", url.as_str()),
                    ("CLAUDE__API_KEY", SIMULATED_KEY),
                ]);
            }
            Upstream::Claude { key } => env.push(("CLAUDE__API_KEY", key.expose())),
        }
        if self.is_hermetic || !names(inherited, "FAIRLANE__TELEMETRY__LOG_FORMAT") {
            env.push(("TELEMETRY__LOG_FORMAT", "text"));
        }
        let full = |(key, value): (&str, &str)| (format!("{PREFIX}{key}"), value.to_owned());
        env.into_iter().map(full).collect()
    }

    /// Variables that must not reach a child: those of our own commands, and other spellings of what we set.
    fn removed(&self, inherited: &[String], set: &[(String, String)]) -> Vec<String> {
        let unwanted = |name: &&String| {
            let upper = name.to_ascii_uppercase();
            let is_ours = ["FAIRLANE_NATS_URL", "ANTHROPIC_API_KEY"].contains(&upper.as_str());
            let is_set = set.iter().any(|(key, _)| *key == upper && key != *name);
            is_ours
                || is_set
                || (self.is_hermetic
                    && upper.starts_with(PREFIX)
                    && !set.iter().any(|(key, _)| key == *name))
        };
        inherited.iter().filter(unwanted).cloned().collect()
    }
}

/// What tells a producer to serve the HTTP API on `port` of loopback, to tenants and to whom `tokens` names.
pub(crate) fn api_env(port: u16, tokens: &Path) -> [(String, String); 2] {
    let full = |key: &str, value: String| (format!("{PREFIX}PRODUCER__{key}"), value);
    [
        full("API_ADDR", format!("127.0.0.1:{port}")),
        full("API_TOKENS_FILE", tokens.display().to_string()),
    ]
}

/// What tells a scheduler to serve the console to whom `tokens` names.
pub(crate) fn console_env(tokens: &Path) -> (String, String) {
    let key = format!("{PREFIX}SCHEDULER__CONSOLE_TOKENS_FILE");
    (key, tokens.display().to_string())
}

fn names(inherited: &[String], name: &str) -> bool {
    inherited
        .iter()
        .any(|other| other.eq_ignore_ascii_case(name))
}

/// The name of a set of limits, the same for the simulator and the schedulers.
pub(crate) fn preset_name(preset: Preset) -> &'static str {
    match preset {
        Preset::Tier1 => "tier1",
        Preset::Start => "start",
        Preset::Build => "build",
        Preset::Scale => "scale",
        Preset::Unlimited => "unlimited",
    }
}

/// Keys that a fleet on one machine decides itself.
const OWN_KEYS: [&str; 3] = ["claude.base_url", "claude.api_key", "claude.api_key_file"];

/// Refuses `--set` for what we decide: it would win over the simulator's address, and spend money.
///
/// # Errors
/// What to do instead.
pub(crate) fn check_set(globals: &Globals) -> Result<(), String> {
    let own = globals.set.iter().find(|(key, _)| {
        let key = key.to_ascii_lowercase();
        OWN_KEYS.contains(&key.as_str())
    });
    match own {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "--set {key} cannot be used here: the simulator is used unless ANTHROPIC_API_KEY is set; \
             for anything else run the roles yourself (fairlane producer, scheduler, worker)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(upstream: Upstream, is_hermetic: bool) -> Plan {
        Plan {
            nats_url: "nats://127.0.0.1:1".to_owned(),
            upstream,
            preset: Preset::Scale,
            config: Some("fleet.toml".into()),
            namespace: None,
            set: vec![("worker.slots".to_owned(), "3".to_owned())],
            is_hermetic,
        }
    }

    fn simulated(is_hermetic: bool) -> Plan {
        let upstream = Upstream::Simulator {
            preset: Preset::Scale,
            time_scale: 20.0,
            url: "http://127.0.0.1:2".to_owned(),
        };
        plan(upstream, is_hermetic)
    }

    fn variable<'a>(spec: &'a Spec, name: &str) -> Option<&'a str> {
        let found = spec.env.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    fn inherited(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_role_is_told_where_everything_is() {
        let spec = simulated(false).role(Group::Worker, 2, &[]);
        assert_eq!(spec.name, "worker-2");
        assert_eq!(
            spec.args,
            [
                "worker",
                "--die-with-parent",
                "--config",
                "fleet.toml",
                "--set",
                "worker.slots=3"
            ]
        );
        for (name, value) in [
            ("FAIRLANE__NATS__URL", "nats://127.0.0.1:1"),
            ("FAIRLANE__CLAUDE__BASE_URL", "http://127.0.0.1:2"),
            ("FAIRLANE__CLAUDE__API_KEY", "simulated"),
            ("FAIRLANE__LIMITS__PRESET", "scale"),
            ("FAIRLANE__TELEMETRY__LOG_FORMAT", "text"),
        ] {
            assert_eq!(variable(&spec, name), Some(value), "{name}");
        }
        assert_eq!(
            spec.listening(9),
            Listening::Variable("FAIRLANE__WORKER__HTTP_ADDR".into(), "127.0.0.1:9".into())
        );
    }

    #[test]
    fn a_key_in_the_environment_never_reaches_a_process_that_uses_the_simulator() {
        let names = inherited(&["ANTHROPIC_API_KEY", "FAIRLANE_NATS_URL", "PATH"]);
        let plan = simulated(false);
        for spec in [
            plan.simulator(&names).unwrap(),
            plan.role(Group::Worker, 1, &names),
        ] {
            assert_eq!(spec.env_removed, ["ANTHROPIC_API_KEY", "FAIRLANE_NATS_URL"]);
        }
    }

    #[test]
    fn other_spellings_of_what_is_set_are_taken_away() {
        let names = inherited(&["FAIRLANE__Claude__Base_Url", "FAIRLANE__CLAUDE__BASE_URL"]);
        let spec = simulated(false).role(Group::Worker, 1, &names);
        assert_eq!(spec.env_removed, ["FAIRLANE__Claude__Base_Url"]);
    }

    #[test]
    fn configuration_variables_reach_dev_but_not_the_demo() {
        let names = inherited(&["FAIRLANE__WORKER__SLOTS", "FAIRLANE__TELEMETRY__LOG_FORMAT"]);
        let dev = simulated(false).role(Group::Worker, 1, &names);
        assert_eq!(dev.env_removed, Vec::<String>::new());
        assert_eq!(variable(&dev, "FAIRLANE__TELEMETRY__LOG_FORMAT"), None);
        let demo = simulated(true).role(Group::Worker, 1, &names);
        assert_eq!(demo.env_removed, ["FAIRLANE__WORKER__SLOTS"]);
    }

    #[test]
    fn the_real_api_is_used_with_the_key_and_without_a_simulator() {
        let upstream = Upstream::Claude {
            key: Secret::new("sk-1"),
        };
        let plan = plan(upstream, false);
        assert_eq!(plan.simulator(&[]), None);
        let spec = plan.role(Group::Worker, 1, &[]);
        assert_eq!(variable(&spec, "FAIRLANE__CLAUDE__API_KEY"), Some("sk-1"));
        assert_eq!(variable(&spec, "FAIRLANE__CLAUDE__API_KEY_FILE"), Some(""));
        assert_eq!(variable(&spec, "FAIRLANE__CLAUDE__BASE_URL"), None);
        assert!(!format!("{plan:?}").contains("sk-1"));
    }

    #[test]
    fn the_simulator_is_told_how_fast_and_how_much() {
        let spec = simulated(true).simulator(&[]).unwrap();
        assert_eq!(
            spec.args,
            [
                "sim",
                "--die-with-parent",
                "--preset",
                "scale",
                "--time-scale",
                "20"
            ]
        );
        assert_eq!(
            spec.listening(9),
            Listening::Args(["--listen".into(), "127.0.0.1:9".into()])
        );
    }

    #[test]
    fn workers_stop_first_and_what_they_need_last() {
        assert_eq!(
            Group::STOP_ORDER.map(Group::command),
            ["worker", "scheduler", "producer", "sim"]
        );
    }
}
