//! Layered configuration: defaults < file < environment < flags.
//!
//! The idea: each source is checked on its own against one description of all keys (`schema`), so a message can name
//! the key, the value, where it was written and what would be right. Only checked values are merged. Unknown keys are
//! refused everywhere, because a misspelt limit that is silently ignored is worse than a process that does not start.
//!
//! Nothing here reads the process environment: the caller passes it in, so tests need not change it.

mod check;
mod error;
mod layer;
mod page;
mod schema;
mod settings;
mod suggest;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use config::{File, FileFormat, Source, Value, ValueKind};

pub use error::{ConfigError, Origin, Problem};
pub use page::page;
pub use settings::{
    Breaker, Claude, Costs, Demotion, Fallback, JobKind, Limits, LogFormat, MASK, Model, Nats,
    OtlpProtocol, PoolLimits, Price, Producer, Results, Sampler, Scheduler, Secret, Settings,
    Telemetry, Tenant, Weights, Worker,
};

use layer::{KeyPath, Layer, dotted};
use schema::{Described, Kind, Node};

/// The file that is read when none is named.
pub const DEFAULT_FILE: &str = "fairlane.toml";

/// Which file to read: the one named (which then must exist), else `fairlane.toml` in `dir` if there is one.
pub fn default_file(named: Option<&Path>, dir: &Path) -> Option<PathBuf> {
    if let Some(path) = named {
        return Some(path.to_owned());
    }
    let path = dir.join(DEFAULT_FILE);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // Whatever else is wrong with it, reading it will say; ignoring a file that is there would not.
        Ok(_) | Err(_) => Some(match path.strip_prefix(".") {
            // Messages should say `fairlane.toml`, not `./fairlane.toml`.
            Ok(short) => short.to_owned(),
            Err(_) => path,
        }),
    }
}

/// The environment of this process, for [`load`]. Bytes that are not Unicode are replaced, so that a broken value is
/// refused by name instead of ending the process.
pub fn process_env() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        let text = |os: OsString| os.to_string_lossy().into_owned();
        (text(name), text(value))
    })
}

/// Reads and checks everything.
///
/// `file` is the file to read, or `None` for [`DEFAULT_FILE`] in the working directory if it exists. `env` is the
/// whole environment; only `FAIRLANE__SECTION__KEY` and agreed names such as `OTEL_EXPORTER_OTLP_ENDPOINT` are looked
/// at. `flags` are (dotted key, text). In the environment and in flags the empty text takes an optional value away.
///
/// # Errors
/// Every mistake found, each with key, value, source and what would be right.
pub fn load(
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    flags: &[(String, String)],
) -> Result<Loaded, ConfigError> {
    let file = match default_file(file, Path::new(".")) {
        Some(path) => Some((read(&path)?, path)),
        None => None,
    };
    let text = file
        .as_ref()
        .map(|(text, path)| (path.as_path(), text.as_str()));
    merge(text, env, flags)
}

fn read(path: &Path) -> Result<String, Problem> {
    std::fs::read_to_string(path).map_err(|error| Problem::Unreadable {
        path: path.to_owned(),
        detail: error.to_string(),
    })
}

/// The pure part of [`load`]: the file is given as its path (for messages) and its text.
///
/// # Errors
/// As [`load`].
pub fn merge(
    file: Option<(&Path, &str)>,
    env: impl Iterator<Item = (String, String)>,
    flags: &[(String, String)],
) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let file = match file {
        Some((path, text)) => file_layer(path, text, &mut problems)?,
        None => Layer::default(),
    };
    let env: Vec<(String, String)> = env.collect();
    let warnings = layer::near_misses(Settings::NODES, &env);
    let env = layer::from_env(Settings::NODES, env, &file, &mut problems);
    let flags = layer::from_flags(Settings::NODES, flags, &mut problems);
    ConfigError::unless_none(problems)?;

    let mut origins = Origins::default();
    for leaf in [&file, &env, &flags].iter().flat_map(|layer| &layer.leaves) {
        origins.0.insert(dotted(&leaf.path), leaf.origin.clone());
    }
    let merged = config::Config::try_from(&Settings::default())
        .and_then(|defaults| {
            config::Config::builder()
                .add_source(defaults)
                .add_source(file)
                .add_source(env)
                .add_source(flags)
                .build()
        })
        .expect("checked layers hold plain values under described names, which merge");
    let values = merged.cache.clone();
    let settings: Settings = merged
        .try_deserialize()
        .expect("every leaf was checked against the description of its field");
    ConfigError::unless_none(check::check(&settings, &origins))?;
    Ok(Loaded {
        settings,
        origins,
        warnings,
        values,
    })
}

fn file_layer(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Result<Layer, Problem> {
    let table = File::from_str(text, FileFormat::Toml)
        .collect()
        .map_err(|error| Problem::Syntax {
            path: path.to_owned(),
            detail: error.to_string().trim().to_owned(),
        })?;
    let origin = Origin::File(path.to_owned());
    Ok(layer::from_table(
        Settings::NODES,
        &table,
        &origin,
        problems,
    ))
}

/// Where each value that is not a default comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The source of a dotted key; [`Origin::Default`] if nobody set it.
    pub fn get(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or(Origin::Default)
    }
}

/// A checked configuration and where its values come from.
#[derive(Clone)]
pub struct Loaded {
    /// The values.
    pub settings: Settings,
    /// Their sources.
    pub origins: Origins,
    /// What is probably a mistake but may be somebody else's business, such as `FAIRLANE_NATS_URL`. To be logged.
    pub warnings: Vec<String>,
    values: Value,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The merged values hold secrets in plain text.
        f.debug_struct("Loaded")
            .field("settings", &self.settings)
            .field("origins", &self.origins)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

/// One line of [`Loaded::explain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The dotted key.
    pub key: String,
    /// The value as text, `***` for a secret, `None` if an optional key is not set.
    pub value: Option<String>,
    /// Where the value comes from.
    pub origin: Origin,
}

impl Loaded {
    /// Every key with its value and source, in the order they are documented. Secrets are masked. Entries of maps
    /// (pools, models, tenants) show only what is set.
    pub fn explain(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        self.rows(Settings::NODES, &self.values, &mut Vec::new(), &mut rows);
        rows
    }

    fn rows(&self, nodes: &'static [Node], value: &Value, path: &mut KeyPath, rows: &mut Vec<Row>) {
        let empty = config::Map::new();
        let table = match &value.kind {
            ValueKind::Table(table) => table,
            _ => &empty,
        };
        let nil = Value::default();
        for node in nodes {
            let child = table.get(node.name).unwrap_or(&nil);
            path.push(node.name.to_owned());
            match node.kind {
                Kind::Leaf(rule) | Kind::Optional(rule) => {
                    let key = dotted(path);
                    rows.push(Row {
                        origin: self.origins.get(&key),
                        value: layer::shown_value(rule, &child.kind),
                        key,
                    });
                }
                Kind::Table(inner) => self.rows(inner, child, path, rows),
                Kind::Map(inner) => self.map_rows(inner, child, path, rows),
            }
            path.pop();
        }
    }

    fn map_rows(
        &self,
        entry: &'static [Node],
        value: &Value,
        path: &mut KeyPath,
        rows: &mut Vec<Row>,
    ) {
        let ValueKind::Table(table) = &value.kind else {
            return;
        };
        let ordered: BTreeMap<&String, &Value> = table.iter().collect();
        for (name, value) in ordered {
            path.push(name.clone());
            let mut inner = Vec::new();
            self.rows(entry, value, path, &mut inner);
            rows.extend(inner.into_iter().filter(|row| row.value.is_some()));
            path.pop();
        }
    }
}
