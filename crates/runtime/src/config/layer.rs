//! One source of values, checked leaf by leaf against the description before it is merged.
//!
//! A layer is a list of (path, value, origin). Paths are lists of segments, because pool and model names contain dots.

use std::collections::BTreeMap;

use config::{Map, Value, ValueKind};

use super::error::{Origin, Problem};
use super::schema::{Kind, Mismatch, Node, Rule};
use super::settings::MASK;
use super::suggest;

/// The path of a leaf: `["limits", "pools", "sonnet-4.x", "requests_per_minute"]`.
pub(crate) type KeyPath = Vec<String>;

/// Start of every environment variable that is configuration.
pub(crate) const ENV_PREFIX: &str = "FAIRLANE__";
const ENV_SEPARATOR: &str = "__";

/// Names other tools have agreed on, read as the weakest of the environment variables.
pub(crate) const ENV_ALIASES: &[(&str, &str)] = &[
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "FAIRLANE__TELEMETRY__OTLP_ENDPOINT",
    ),
    (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "FAIRLANE__TELEMETRY__OTLP_PROTOCOL",
    ),
    (
        "OTEL_EXPORTER_OTLP_HEADERS",
        "FAIRLANE__TELEMETRY__OTLP_HEADERS",
    ),
    (
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "FAIRLANE__TELEMETRY__OTLP_METRICS_ENDPOINT",
    ),
    (
        "OTEL_METRIC_EXPORT_INTERVAL",
        "FAIRLANE__TELEMETRY__OTLP_METRICS_EVERY_MS",
    ),
    ("OTEL_TRACES_SAMPLER", "FAIRLANE__TELEMETRY__SAMPLER"),
    (
        "OTEL_TRACES_SAMPLER_ARG",
        "FAIRLANE__TELEMETRY__SAMPLER_ARG",
    ),
];

#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) path: KeyPath,
    pub(crate) value: ValueKind,
    pub(crate) origin: Origin,
}

/// Checked values of one source, in the order they win over each other (the last one wins).
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    pub(crate) leaves: Vec<Leaf>,
}

impl config::Source for Layer {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        let mut root = Map::new();
        for leaf in &self.leaves {
            insert(&mut root, &leaf.path, leaf);
        }
        Ok(root)
    }
}

fn insert(table: &mut Map<String, Value>, path: &[String], leaf: &Leaf) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let origin = Some(leaf.origin.to_string());
    if rest.is_empty() {
        table.insert(
            name.clone(),
            Value::new(origin.as_ref(), leaf.value.clone()),
        );
        return;
    }
    let child = table
        .entry(name.clone())
        .or_insert_with(|| Value::new(origin.as_ref(), ValueKind::Table(Map::new())));
    if let ValueKind::Table(inner) = &mut child.kind {
        insert(inner, rest, leaf);
    }
}

/// Checks a parsed file.
pub(crate) fn from_table(
    nodes: &'static [Node],
    table: &Map<String, Value>,
    origin: &Origin,
    problems: &mut Vec<Problem>,
) -> Layer {
    let mut walk = TableWalk {
        origin,
        leaves: Vec::new(),
        problems,
        path: Vec::new(),
    };
    walk.table(nodes, table);
    Layer {
        leaves: walk.leaves,
    }
}

struct TableWalk<'a> {
    origin: &'a Origin,
    leaves: Vec<Leaf>,
    problems: &'a mut Vec<Problem>,
    path: KeyPath,
}

impl TableWalk<'_> {
    fn table(&mut self, nodes: &'static [Node], table: &Map<String, Value>) {
        for (name, value) in sorted(table) {
            self.path.push(name.clone());
            match nodes.iter().find(|node| node.name == name) {
                Some(node) => self.node(node.kind, &value.kind),
                None => self.problems.push(unknown(&self.path, nodes, self.origin)),
            }
            self.path.pop();
        }
    }

    fn node(&mut self, kind: Kind, value: &ValueKind) {
        match (kind, value) {
            (Kind::Table(nodes), ValueKind::Table(table)) => self.table(nodes, table),
            (Kind::Map(nodes), ValueKind::Table(entries)) => {
                for (name, entry) in sorted(entries) {
                    self.path.push(name.clone());
                    if matches!(&entry.kind, ValueKind::Table(keys) if keys.is_empty()) {
                        // `[tenants.acme]` alone still says that acme exists.
                        self.push(entry.kind.clone());
                    }
                    self.node(Kind::Table(nodes), &entry.kind);
                    self.path.pop();
                }
            }
            (Kind::Table(_) | Kind::Map(_), _) => self.wrong(value, "a table".to_owned(), false),
            (Kind::Optional(_), ValueKind::String(text)) if text.is_empty() => {
                self.push(ValueKind::Nil);
            }
            (Kind::Leaf(rule) | Kind::Optional(rule), _) => match rule.check(value) {
                Ok(checked) => self.push(checked),
                Err(Mismatch) => self.wrong(value, rule.expected(), rule.is_secret()),
            },
        }
    }

    fn push(&mut self, value: ValueKind) {
        self.leaves.push(Leaf {
            path: self.path.clone(),
            value,
            origin: self.origin.clone(),
        });
    }

    fn wrong(&mut self, value: &ValueKind, expected: String, secret: bool) {
        self.problems.push(Problem::WrongValue {
            key: dotted(&self.path),
            value: if secret {
                MASK.to_owned()
            } else {
                shown(value)
            },
            origin: self.origin.clone(),
            expected,
        });
    }
}

/// Checks the environment: every `FAIRLANE__...` variable, and the agreed names of other tools.
///
/// `below` is what the file said: a map key spelled `SONNET_4_X` means the existing `sonnet-4.x`.
pub(crate) fn from_env(
    nodes: &'static [Node],
    env: Vec<(String, String)>,
    below: &Layer,
    problems: &mut Vec<Problem>,
) -> Layer {
    let mut relevant: Vec<(String, String, &'static str)> = Vec::new();
    for (name, value) in env {
        if name.starts_with(ENV_PREFIX) {
            relevant.push((name, value, ""));
        } else if let Some((_, meaning)) = ENV_ALIASES.iter().find(|(alias, _)| *alias == name) {
            relevant.push((name, value, meaning));
        }
    }
    // The order of an environment is not defined. Aliases first, so that our own names win over them.
    relevant.sort_by(|a, b| (a.2.is_empty(), &a.0).cmp(&(b.2.is_empty(), &b.0)));

    let mut layer = Layer::default();
    for (name, value, meaning) in relevant {
        let spelled = if meaning.is_empty() { &name } else { meaning };
        let segments: Vec<String> = spelled[ENV_PREFIX.len()..]
            .split(ENV_SEPARATOR)
            .map(str::to_owned)
            .collect();
        let origin = Origin::Env(name);
        match find(nodes, &segments, Spelling::Env(below)) {
            Ok((path, kind)) => text_leaf(path, kind, &value, origin, &mut layer, problems),
            Err(NotFound { at, nodes }) => {
                let path: KeyPath = at.iter().map(|part| part.to_ascii_lowercase()).collect();
                problems.push(unknown(&path, nodes, &origin));
            }
        }
    }
    layer
}

/// Variables that are a key of ours but for the number of underscores. They cannot be refused: Kubernetes makes
/// variables like `FAIRLANE_NATS_PORT` for every service in the namespace.
pub(crate) fn near_misses(nodes: &'static [Node], env: &[(String, String)]) -> Vec<String> {
    let squeezed = |name: &str| name.replace('_', "").to_ascii_uppercase();
    let known: BTreeMap<String, String> = suggest::leaf_paths(nodes)
        .iter()
        .map(|path| suggest::variable(path))
        .map(|variable| (squeezed(&variable), variable))
        .collect();
    let mut warnings: Vec<String> = env
        .iter()
        .filter(|(name, _)| name.starts_with("FAIRLANE_") && !name.starts_with(ENV_PREFIX))
        .filter_map(|(name, _)| {
            let right = known.get(&squeezed(name))?;
            Some(format!(
                "the variable {name} is not read; did you mean {right}?"
            ))
        })
        .collect();
    warnings.sort_unstable();
    warnings
}

/// Checks flags given as (dotted key, text).
pub(crate) fn from_flags(
    nodes: &'static [Node],
    flags: &[(String, String)],
    problems: &mut Vec<Problem>,
) -> Layer {
    let mut layer = Layer::default();
    for (key, value) in flags {
        let segments: Vec<String> = key.split('.').map(str::to_owned).collect();
        match find(nodes, &segments, Spelling::Dotted) {
            Ok((path, kind)) => text_leaf(path, kind, value, Origin::Flag, &mut layer, problems),
            Err(NotFound { at, nodes }) => problems.push(unknown(&at, nodes, &Origin::Flag)),
        }
    }
    layer
}

fn text_leaf(
    path: KeyPath,
    kind: Kind,
    text: &str,
    origin: Origin,
    layer: &mut Layer,
    problems: &mut Vec<Problem>,
) {
    let parsed = match kind {
        Kind::Optional(_) if text.trim().is_empty() => Ok(ValueKind::Nil),
        Kind::Leaf(rule) | Kind::Optional(rule) => rule
            .parse(text)
            .map_err(|Mismatch| (rule.expected(), rule.is_secret())),
        Kind::Table(nodes) | Kind::Map(nodes) => Err((
            format!("one of the keys inside it: {}", suggest::names(nodes)),
            false,
        )),
    };
    match parsed {
        Ok(value) => layer.leaves.push(Leaf {
            path,
            value,
            origin,
        }),
        Err((expected, secret)) => problems.push(Problem::WrongValue {
            key: dotted(&path),
            value: if secret {
                MASK.to_owned()
            } else {
                quoted(text)
            },
            origin,
            expected,
        }),
    }
}

/// How the names in a path are written.
#[derive(Clone, Copy)]
enum Spelling<'a> {
    /// Exactly; a map key may contain dots, because what follows it is a single name.
    Dotted,
    /// Upper case, with `_` for every character a variable name cannot have.
    Env(&'a Layer),
}

struct NotFound {
    /// The path up to and including the segment that does not exist.
    at: KeyPath,
    /// The names that exist there.
    nodes: &'static [Node],
}

fn find(
    root: &'static [Node],
    segments: &[String],
    spelling: Spelling<'_>,
) -> Result<(KeyPath, Kind), NotFound> {
    let mut path = KeyPath::new();
    let mut nodes = root;
    let mut rest = segments;
    loop {
        let Some((segment, tail)) = rest.split_first() else {
            return Ok((path, Kind::Table(nodes)));
        };
        let wanted = match spelling {
            Spelling::Dotted => segment.clone(),
            Spelling::Env(_) => segment.to_ascii_lowercase(),
        };
        let found = nodes.iter().find(|node| node.name == wanted);
        path.push(wanted);
        let Some(node) = found else {
            return Err(NotFound { at: path, nodes });
        };
        match node.kind {
            Kind::Leaf(_) | Kind::Optional(_) if tail.is_empty() => return Ok((path, node.kind)),
            Kind::Leaf(_) | Kind::Optional(_) => {
                path.extend(tail.iter().cloned());
                return Err(NotFound { at: path, nodes });
            }
            Kind::Table(inner) => {
                nodes = inner;
                rest = tail;
            }
            Kind::Map(inner) => {
                let Some((last, key)) = tail.split_last().filter(|(_, key)| !key.is_empty()) else {
                    return Ok((path, node.kind));
                };
                let key = match spelling {
                    Spelling::Dotted => key.join("."),
                    Spelling::Env(below) => map_key(below, &path, &key.join(ENV_SEPARATOR)),
                };
                path.push(key);
                nodes = inner;
                rest = std::slice::from_ref(last);
            }
        }
    }
}

/// The map key an environment variable means: an existing one that looks the same in a variable name, else the
/// spelling itself (lower case if it was all upper case, as variables usually are).
fn map_key(below: &Layer, map: &[String], spelled: &str) -> String {
    let existing: BTreeMap<&str, String> = below
        .leaves
        .iter()
        .filter(|leaf| leaf.path.starts_with(map))
        .filter_map(|leaf| leaf.path.get(map.len()))
        .map(|key| (key.as_str(), as_variable(key)))
        .collect();
    if existing.contains_key(spelled) {
        return spelled.to_owned();
    }
    let wanted = as_variable(spelled);
    let mut alike = existing.iter().filter(|(_, variable)| **variable == wanted);
    match (alike.next(), alike.next()) {
        (Some((key, _)), None) => (*key).to_owned(),
        (_, _) if spelled.bytes().any(|b| b.is_ascii_lowercase()) => spelled.to_owned(),
        (_, _) => spelled.to_ascii_lowercase(),
    }
}

fn as_variable(key: &str) -> String {
    key.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

fn unknown(path: &[String], nodes: &'static [Node], origin: &Origin) -> Problem {
    Problem::UnknownKey {
        key: dotted(path),
        origin: origin.clone(),
        hint: suggest::hint(path, nodes, origin),
    }
}

fn sorted(table: &Map<String, Value>) -> BTreeMap<&String, &Value> {
    table.iter().collect()
}

/// `limits.pools.sonnet-4.x.requests_per_minute`.
pub(crate) fn dotted(path: &[String]) -> String {
    path.join(".")
}

fn shown(value: &ValueKind) -> String {
    match value {
        ValueKind::String(text) => quoted(text),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::Boolean(_)
        | ValueKind::I64(_)
        | ValueKind::I128(_)
        | ValueKind::U64(_)
        | ValueKind::U128(_)
        | ValueKind::Float(_) => value.to_string(),
    }
}

/// The text in quotes. An address with a password in it is refused as a value, so it must not be repeated either.
fn quoted(text: &str) -> String {
    match text.split_once('@') {
        Some((before, host)) if before.contains(':') => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("\"{scheme}://{MASK}@{host}\"")
        }
        Some(_) | None => format!("{text:?}"),
    }
}

/// Whether `rule`'s values may be shown; kept here beside the other masking.
pub(crate) fn shown_value(rule: Rule, value: &ValueKind) -> Option<String> {
    match value {
        ValueKind::Nil => None,
        _ if rule.is_secret() => Some(MASK.to_owned()),
        other => Some(other.to_string()),
    }
}
