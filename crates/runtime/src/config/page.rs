//! The page of all keys, `deploy/config.md`, made from the description that sources are checked against.

use std::fmt::Write as _;

use config::{Map, Value, ValueKind};

use super::layer::{ENV_ALIASES, KeyPath, dotted, shown_value};
use super::schema::{Described, Kind, Node, Rule, alternatives};
use super::settings::Settings;
use super::{merge, suggest};

/// Stands for a name that the user chooses: of a pool, a model, a tenant.
const ENTRY: &str = "NAME";

const HEAD: &str = "\
# Configuration: every key

This page is made from `crates/runtime/src/config/settings.rs`; a test keeps it that way (`UPDATE=1 cargo test -p
fairlane-runtime page`). A commented file with all keys is
[fairlane.example.toml](../crates/runtime/fairlane.example.toml).

A key is given in the file (`fairlane.toml`, or `--config FILE`), by its variable, which wins over the file, or by a flag such
as `--set worker.slots=128`, which wins over both. A variable that another tool has named too is read if ours is not set. What is
unknown or out of range stops the start with its name and what would be right. The empty text takes an optional key away.
`fairlane config show` prints every value and where it comes from; secrets are never shown. `NAME` is a name of yours; in variables
it is in upper case, with `_` for what a variable cannot have.
";

/// The page: Markdown, a table per section, a line per key.
///
/// # Panics
/// If the description contradicts itself, which a test would notice.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let defaults = defaults();
    section(
        &mut page,
        Settings::NODES,
        &defaults,
        &mut KeyPath::new(),
        "",
    );
    page
}

/// The tree of all defaults, with one entry in each map, so that those of entries are there too.
fn defaults() -> Map<String, Value> {
    let mut text = String::new();
    entries(Settings::NODES, &mut KeyPath::new(), &mut text);
    let loaded = merge(
        Some((std::path::Path::new("page"), &text)),
        std::iter::empty(),
        &[],
    )
    .expect("empty entries are allowed");
    let tree = config::Config::try_from(&loaded.settings);
    let tree = tree.expect("settings are plain values");
    match tree.cache.kind {
        ValueKind::Table(table) => table,
        _ => Map::new(),
    }
}

fn entries(nodes: &'static [Node], path: &mut KeyPath, text: &mut String) {
    for node in nodes {
        path.push(node.name.to_owned());
        match node.kind {
            Kind::Leaf(_) | Kind::Optional(_) => {}
            Kind::Table(inner) => entries(inner, path, text),
            Kind::Map(_) => {
                writeln!(text, "[{}.{ENTRY}]", dotted(path)).expect(WRITES);
            }
        }
        path.pop();
    }
}

const WRITES: &str = "writing into a string does not fail";

/// The keys of one section as a table, then the sections inside it.
fn section(
    page: &mut String,
    nodes: &'static [Node],
    values: &Map<String, Value>,
    path: &mut KeyPath,
    about: &str,
) {
    let is_leaf = |node: &&Node| matches!(node.kind, Kind::Leaf(_) | Kind::Optional(_));
    if nodes.iter().any(|node| is_leaf(&node)) {
        let name = dotted(path);
        writeln!(page, "\n## `[{name}]`\n\n{about}\n").expect(WRITES);
        page.push_str(
            "| key | takes | default | unit | meaning | variable |\n|---|---|---|---|---|---|\n",
        );
        for node in nodes.iter().filter(is_leaf) {
            path.push(node.name.to_owned());
            row(page, node, values.get(node.name), path);
            path.pop();
        }
    }
    let none = Map::new();
    for node in nodes {
        let inside = |value: Option<&Value>| match value.map(|value| &value.kind) {
            Some(ValueKind::Table(table)) => table.clone(),
            _ => none.clone(),
        };
        let inner = inside(values.get(node.name));
        path.push(node.name.to_owned());
        match node.kind {
            Kind::Leaf(_) | Kind::Optional(_) => {}
            Kind::Table(nodes) => section(page, nodes, &inner, path, &words(node)),
            Kind::Map(nodes) => {
                path.push(ENTRY.to_owned());
                let entry = inside(inner.get(ENTRY));
                section(page, nodes, &entry, path, &words(node));
                path.pop();
            }
        }
        path.pop();
    }
}

fn row(page: &mut String, node: &Node, value: Option<&Value>, path: &KeyPath) {
    let (rule, is_optional) = match node.kind {
        Kind::Leaf(rule) => (rule, false),
        Kind::Optional(rule) => (rule, true),
        Kind::Table(_) | Kind::Map(_) => return,
    };
    let default = value.and_then(|value| shown_value(rule, &value.kind));
    let default = match default {
        Some(value) => format!("`{value}`"),
        None => "not set".to_owned(),
    };
    let takes = takes(rule);
    let takes = match is_optional {
        true => format!("{takes}, or nothing"),
        false => takes,
    };
    let own = suggest::variable(path);
    let other = ENV_ALIASES.iter().filter(|(_, meaning)| *meaning == own);
    let mut variables = format!("`{own}`");
    for (alias, _) in other {
        write!(variables, ", `{alias}`").expect(WRITES);
    }
    writeln!(
        page,
        "| `{}` | {takes} | {default} | {} | {} | {variables} |",
        node.name,
        unit(node.name, rule),
        words(node),
    )
    .expect(WRITES);
}

/// What a value has to look like, in few words.
fn takes(rule: Rule) -> String {
    match rule {
        Rule::Text => "text".to_owned(),
        Rule::Token => "letters, digits, `_`, `-`".to_owned(),
        Rule::Url(schemes) => {
            let schemes = schemes.iter().map(|scheme| format!("`{scheme}://`"));
            format!("address with {}", alternatives(schemes))
        }
        Rule::Address => "`ip:port`".to_owned(),
        Rule::Path => "file path".to_owned(),
        Rule::Secret => "text, secret".to_owned(),
        Rule::Whole { min, max } => format!("whole number, {min} to {max}"),
        Rule::Number { min, max } => format!("number, {min} to {max}"),
        Rule::Choice(words) => alternatives(words.iter().map(|word| format!("`{word}`"))),
    }
}

/// The unit stands in the name, as everywhere in this program.
fn unit(name: &str, rule: Rule) -> &'static str {
    let is_number = matches!(rule, Rule::Whole { .. } | Rule::Number { .. });
    let has = |word: &str| name.split('_').any(|part| part == word);
    match () {
        () if !is_number => "",
        () if has("ms") => "ms",
        () if has("bytes") => "bytes",
        () if has("chars") => "characters",
        () if has("percent") => "%",
        () if name == "requests_per_minute" => "requests/min",
        () if name.ends_with("tokens_per_minute") => "tokens/min",
        () if name == "daily_input_tokens" => "tokens/day",
        () if name == "chars_per_token" => "characters/token",
        () if has("tokens") => "tokens",
        () if has("slots") => "slots",
        () if has("hour") => "hour of the day (UTC)",
        () => "",
    }
}

/// The documentation on one line, as it stands in a table.
fn words(node: &Node) -> String {
    let lines: Vec<&str> = node.docs.iter().map(|line| line.trim()).collect();
    lines.join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_from_the_description() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/config.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == page(),
            "deploy/config.md is not what the settings say; make it anew with: UPDATE=1 cargo test -p fairlane-runtime page"
        );
    }

    #[test]
    fn every_key_is_documented_and_says_its_unit_as_its_name_does() {
        fn check(nodes: &'static [Node], path: &mut KeyPath) {
            for node in nodes {
                path.push(node.name.to_owned());
                let (name, about) = (dotted(path), words(node));
                assert!(about.ends_with('.'), "{name}: {about:?}");
                match node.kind {
                    Kind::Leaf(rule) | Kind::Optional(rule) => {
                        let is_ms = node.name.ends_with("_ms");
                        assert!(!is_ms || unit(node.name, rule) == "ms", "{name}");
                        let says_ms = about.contains("milliseconds");
                        assert!(!says_ms || is_ms, "{name}: {about:?}");
                    }
                    Kind::Table(inner) | Kind::Map(inner) => check(inner, path),
                }
                path.pop();
            }
        }
        check(Settings::NODES, &mut KeyPath::new());
    }

    #[test]
    fn the_page_has_defaults_of_entries_and_variables_of_others() {
        let page = page();
        for part in [
            "## `[prices.NAME]`",
            "| `us_surcharge_percent` | whole number, 0 to 1000 | `10` | % |",
            "`FAIRLANE__TELEMETRY__OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_ENDPOINT`",
            "`FAIRLANE__LIMITS__POOLS__NAME__REQUESTS_PER_MINUTE`",
            "| `api_key` | text, secret, or nothing | not set |",
        ] {
            assert!(page.contains(part), "no {part:?}");
        }
    }
}
