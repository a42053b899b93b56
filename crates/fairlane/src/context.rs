//! Contexts: named fleets, so that nobody has to give an address and credentials with every command.
//!
//! One file under the user's configuration directory holds them all and says which one is current. It names the
//! file with the key or the credentials and never holds a secret itself. Commands for people follow the current context where neither
//! flags, environment nor configuration say which NATS is meant; roles follow one only if they are told to.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fairlane_wire::Namespace;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{ContextAddArgs, ContextCommand, Format, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::text::columns;

/// Names the file, for those who keep it elsewhere.
pub(crate) const FILE_VARIABLE: &str = "FAIRLANE_CONTEXTS";

/// All contexts, as they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Fleet>,
}

/// How to reach one fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fleet {
    pub(crate) url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) creds_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nkey_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca_file: Option<PathBuf>,
    #[serde(default = "default_namespace")]
    pub(crate) namespace: String,
}

fn default_namespace() -> String {
    Namespace::default().as_str().to_owned()
}

/// Where the contexts are kept; None if there is no home for them.
fn file() -> Option<PathBuf> {
    let path = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    path(FILE_VARIABLE).or_else(|| {
        let home = path("XDG_CONFIG_HOME").or_else(|| Some(path("HOME")?.join(".config")));
        Some(home?.join("fairlane/contexts.json"))
    })
}

impl Contexts {
    /// Reads the file of this user; nothing, if there is none.
    pub(crate) fn load() -> Result<Self, Stop> {
        file().map_or_else(|| Ok(Self::default()), |path| Self::read(&path))
    }

    fn read(path: &Path) -> Result<Self, Stop> {
        let usage = |error: anyhow::Error| {
            let text = format!(
                "cannot use the contexts in {}; put the file right or remove it",
                path.display()
            );
            Stop::new(Exit::Usage, error.context(text))
        };
        match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| usage(error.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(usage(error.into())),
        }
    }

    /// Replaces the file in one step: a reader sees the old one or the new one.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let dir = path
            .parent()
            .context("the file of contexts has no directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let text = serde_json::to_vec_pretty(self)?;
        let mut new = tempfile::NamedTempFile::new_in(dir)?;
        new.write_all(&text)?;
        new.persist(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(())
    }

    /// The context of this name.
    pub(crate) fn get(&self, name: &str) -> Result<&Fleet, Stop> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            let known = match known.as_slice() {
                [] => "there is none yet; make one with `fairlane context add`".to_owned(),
                known => format!("there are {}", known.join(", ")),
            };
            Stop::saying(Exit::NotFound, format!("no context {name:?}: {known}"))
        })
    }

    /// The current context and its name. One that was removed by hand is none.
    pub(crate) fn current(&self) -> Option<(&str, &Fleet)> {
        let name = self.current.as_deref()?;
        Some((name, self.contexts.get(name)?))
    }
}

pub(crate) fn run(globals: &Globals, command: ContextCommand) -> Outcome {
    let path = file().ok_or_else(|| {
        let text = format!("no place for contexts: set HOME, XDG_CONFIG_HOME or {FILE_VARIABLE}");
        Stop::saying(Exit::Usage, text)
    })?;
    let mut contexts = Contexts::read(&path)?;
    match command {
        ContextCommand::Add(args) => {
            let fleet = added(globals, &args)?;
            contexts.contexts.insert(args.name.clone(), fleet);
            if args.r#use || contexts.current().is_none() {
                contexts.current = Some(args.name.clone());
            }
            contexts.write(&path)?;
            print(told(&contexts, &args.name))?;
        }
        ContextCommand::Use(args) => {
            contexts.get(&args.name)?;
            contexts.current = Some(args.name.clone());
            contexts.write(&path)?;
            print(told(&contexts, &args.name))?;
        }
        ContextCommand::Rm(args) => {
            let name = args.context.name;
            let fleet = contexts.get(&name)?;
            let what = format!("Context {name} ({}) will be removed.", fleet.url);
            if args.consent.dry_run {
                say("nothing was changed; without --dry-run:");
                print(what)?;
                return Ok(Exit::Ok);
            }
            args.consent.ask(&what, "nothing was changed")?;
            contexts.contexts.remove(&name);
            contexts.current.take_if(|current| *current == name);
            contexts.write(&path)?;
            print(format_args!("context {name} is gone"))?;
        }
        ContextCommand::Ls(output) => match output.format {
            Format::Table => print(table(&contexts))?,
            Format::Json | Format::Jsonl => {
                let all = contexts.contexts.iter().map(|(name, fleet)| {
                    let mut document = json!(fleet);
                    document["name"] = json!(name);
                    document["current"] = json!(contexts.current.as_ref() == Some(name));
                    document
                });
                print_json(&all.collect::<Vec<_>>())?;
            }
        },
    }
    Ok(Exit::Ok)
}

fn added(globals: &Globals, args: &ContextAddArgs) -> Result<Fleet, Stop> {
    let url = globals.nats_url.clone().ok_or_else(|| {
        let text = "give the address of the fleet's NATS: fairlane context add NAME --nats-url nats://HOST:4222";
        Stop::saying(Exit::Usage, text)
    })?;
    let namespace = globals.namespace.clone().unwrap_or_else(default_namespace);
    Namespace::parse(&namespace).map_err(|error| Stop::new(Exit::Usage, error))?;
    Ok(Fleet {
        url,
        creds_file: from_everywhere(args.creds.as_deref(), "credentials file")?,
        nkey_file: from_everywhere(args.nkey.as_deref(), "key file")?,
        tls_ca_file: from_everywhere(args.ca.as_deref(), "certificate file")?,
        namespace,
    })
}

/// The path of a file that is there, right from every directory.
fn from_everywhere(path: Option<&Path>, what: &str) -> Result<Option<PathBuf>, Stop> {
    let Some(path) = path else { return Ok(None) };
    let whole = std::fs::canonicalize(path).map_err(|error| {
        let text = format!("cannot find the {what} {}", path.display());
        Stop::new(Exit::Usage, anyhow::Error::new(error).context(text))
    })?;
    Ok(Some(whole))
}

fn told(contexts: &Contexts, name: &str) -> String {
    if contexts.current.as_deref() == Some(name) {
        format!("context {name} is used from now on")
    } else {
        format!(
            "context {name} is stored; use it with `fairlane context use {name}`, or once with --context {name}"
        )
    }
}

fn table(contexts: &Contexts) -> String {
    if contexts.contexts.is_empty() {
        return "no contexts yet; make one with `fairlane context add NAME --nats-url nats://HOST:4222`".to_owned();
    }
    let head = ["CONTEXT", "CURRENT", "NATS", "NAMESPACE", "CREDENTIALS"].map(str::to_owned);
    let rows = contexts.contexts.iter().map(|(name, fleet)| {
        let is_current = contexts.current.as_ref() == Some(name);
        let creds = fleet.creds_file.as_ref().or(fleet.nkey_file.as_ref());
        [
            name.clone(),
            if is_current { "yes" } else { "" }.to_owned(),
            fleet.url.clone(),
            fleet.namespace.clone(),
            creds.map_or_else(|| "-".to_owned(), |path| path.display().to_string()),
        ]
    });
    columns(
        &std::iter::once(head).chain(rows).collect::<Vec<_>>(),
        false,
    )
}
