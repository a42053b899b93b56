//! `fairlane config show`: every key, its value, and where that comes from.

use std::collections::BTreeMap;

use fairlane_runtime::config::Row;
use serde_json::{Value, json};

use crate::cli::{Format, Globals, Output};
use crate::exit::{Exit, Outcome};
use crate::out::{print, print_json, say};
use crate::target::{Target, URL_KEY, UrlFrom};

pub(crate) fn run(globals: &Globals, output: Output) -> Outcome {
    let target = Target::load(globals)?;
    for warning in &target.loaded.warnings {
        say(format_args!("warning: {warning}"));
    }
    let rows: Vec<Shown> = target
        .loaded
        .explain()
        .into_iter()
        .map(|row| shown(row, &target))
        .collect();
    match output.format {
        Format::Table => print(text(&rows))?,
        Format::Json | Format::Jsonl => print_json(&document(&rows))?,
    }
    Ok(Exit::Ok)
}

#[derive(Debug)]
struct Shown {
    key: String,
    value: Option<String>,
    from: String,
}

/// The address of NATS may come from where the configuration does not look.
fn shown(row: Row, target: &Target) -> Shown {
    let mut shown = Shown {
        from: row.origin.to_string(),
        key: row.key,
        value: row.value,
    };
    if shown.key == URL_KEY {
        match &target.url_from {
            UrlFrom::RunningDev | UrlFrom::Context(_) => {
                shown.value = Some(target.settings().nats.url.clone());
                shown.from = target.url_from.to_string();
            }
            UrlFrom::Variable => shown.from = format!("env {}", target.url_from),
            UrlFrom::Flag | UrlFrom::Config(_) | UrlFrom::Default => {}
        }
    }
    shown
}

fn text(rows: &[Shown]) -> String {
    let width = |of: fn(&Shown) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let key_width = width(|row| row.key.chars().count());
    let value_width = width(|row| value(row).chars().count()).min(60);
    let lines = rows.iter().map(|row| {
        let (key, value, from) = (&row.key, value(row), &row.from);
        format!("{key:key_width$}  {value:value_width$}  {from}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn value(row: &Shown) -> &str {
    row.value.as_deref().unwrap_or("-")
}

fn document(rows: &[Shown]) -> BTreeMap<&str, Value> {
    rows.iter()
        .map(|row| {
            let entry = json!({"value": row.value, "from": row.from});
            (row.key.as_str(), entry)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_values_and_sources_stand_in_columns() {
        let row = |key: &str, value: Option<&str>, from: &str| Shown {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            from: from.to_owned(),
        };
        let rows = [
            row("nats.url", Some("nats://n:1"), "--nats-url"),
            row(
                "claude.api_key",
                Some("***"),
                "env FAIRLANE__CLAUDE__API_KEY",
            ),
            row("nats.user", None, "default"),
        ];
        assert_eq!(
            text(&rows),
            "nats.url        nats://n:1  --nats-url\n\
             claude.api_key  ***         env FAIRLANE__CLAUDE__API_KEY\n\
             nats.user       -           default"
        );
        assert_eq!(document(&rows)["nats.user"]["value"], Value::Null);
    }
}
