//! The nearest right name for a wrong one.

use super::error::Origin;
use super::layer::{ENV_PREFIX, dotted};
use super::schema::{Described, Kind, Node};
use super::settings::Settings;

/// Words to follow an unknown key: the nearest sibling, else the same name in another section, else what exists here.
pub(crate) fn hint(path: &[String], siblings: &'static [Node], origin: &Origin) -> String {
    let Some((wrong, parents)) = path.split_last() else {
        return format!("known here: {}", names(siblings));
    };
    if let Some(name) = nearest(wrong, siblings) {
        let mut right = parents.to_vec();
        right.push(name.to_owned());
        return did_you_mean(&right, origin);
    }
    match elsewhere(wrong).as_slice() {
        [only] => did_you_mean(only, origin),
        _ => format!("known here: {}", names(siblings)),
    }
}

/// Names of a level, in the order they are described.
pub(crate) fn names(nodes: &[Node]) -> String {
    let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
    names.join(", ")
}

/// Closest name within a distance that is still a typing mistake: a third of the length, at least 2.
fn nearest(wrong: &str, nodes: &'static [Node]) -> Option<&'static str> {
    let wrong = wrong.to_ascii_lowercase().replace('-', "_");
    let contained =
        |name: &str| wrong.len() >= 3 && (name.contains(wrong.as_str()) || wrong.contains(name));
    nodes
        .iter()
        .map(|node| (strsim::damerau_levenshtein(&wrong, node.name), node.name))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3) || contained(name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Leaves of this exact name in any section: `slots` at the top is meant as `worker.slots`.
fn elsewhere(name: &str) -> Vec<Vec<String>> {
    let mut found = leaf_paths(Settings::NODES);
    found.retain(|path| path.last().is_some_and(|last| last == name));
    found
}

/// Paths of all leaves with a fixed name; the entries of maps have none.
pub(crate) fn leaf_paths(nodes: &'static [Node]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    collect(nodes, &mut Vec::new(), &mut found);
    found
}

fn collect(nodes: &'static [Node], path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for node in nodes {
        path.push(node.name.to_owned());
        match node.kind {
            Kind::Leaf(_) | Kind::Optional(_) => found.push(path.clone()),
            Kind::Table(inner) => collect(inner, path, found),
            Kind::Map(_) => {}
        }
        path.pop();
    }
}

/// The environment variable of a path.
pub(crate) fn variable(path: &[String]) -> String {
    format!("{ENV_PREFIX}{}", path.join("__").to_ascii_uppercase())
}

fn did_you_mean(path: &[String], origin: &Origin) -> String {
    match origin {
        Origin::Env(_) => format!("did you mean {}?", variable(path)),
        Origin::Default | Origin::File(_) | Origin::Flag => {
            format!("did you mean {:?}?", dotted(path))
        }
    }
}
