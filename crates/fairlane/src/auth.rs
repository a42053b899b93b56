//! `fairlane auth`: keys for the roles and for tenants, and the configuration of a NATS server that lets
//! in those alone, each with what it needs. A tenant whose key is there stays; to shut one out, delete its key.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use fairlane_core::TenantId;
use fairlane_nats::auth::{self, User};
use fairlane_wire::Namespace;

use crate::cli::{AuthArgs, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::print;
use crate::target::Target;

pub(crate) fn run(globals: &Globals, args: &AuthArgs) -> Outcome {
    let target = Target::load(globals)?;
    let names = Namespace::parse(&target.settings().nats.namespace)
        .map_err(|error| Stop::new(Exit::Usage, error))?;
    let written = write(&names, args)?;
    print(written)?;
    Ok(Exit::Ok)
}

/// Writes what is missing; says what is there now.
fn write(names: &Namespace, args: &AuthArgs) -> anyhow::Result<String> {
    let dir = &args.out;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut tenants = tenants_of(dir)?;
    tenants.extend(args.tenant.iter().cloned());
    let tenants = tenants.into_iter().map(User::Tenant);
    let mut users = Vec::new();
    let mut lines = Vec::new();
    for user in User::ROLES.into_iter().chain(tenants) {
        let path = dir.join(format!("{}.nk", user.name()));
        let (key, what) = key(&path)?;
        lines.push(format!("{what:5} {}", path.display()));
        users.push((user, key));
    }
    let path = dir.join("auth.conf");
    fs::write(&path, auth::render(names, &users))
        .with_context(|| format!("cannot write {}", path.display()))?;
    lines.push(format!("wrote {}", path.display()));
    Ok(lines.join("\n"))
}

/// Tenants that have a key in this directory.
fn tenants_of(dir: &Path) -> anyhow::Result<BTreeSet<TenantId>> {
    let files = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let tenant = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        let name = name.strip_prefix("tenant-")?.strip_suffix(".nk")?;
        TenantId::parse(name).ok()
    };
    Ok(files.flatten().filter_map(tenant).collect())
}

/// The public key of the seed in a file; of a new one if there is no such file.
fn key(path: &Path) -> anyhow::Result<(String, &'static str)> {
    let (seed, key) = auth::new_key();
    let mut options = File::options();
    // Only for its owner from the first byte on.
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            writeln!(file, "{seed}").with_context(|| format!("cannot write {}", path.display()))?;
            Ok((key, "wrote"))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let seed = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let key = auth::public_key(&seed)
                .with_context(|| format!("{} is not the seed of a user's nkey", path.display()))?;
            Ok((key, "kept"))
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_kept_and_secret_and_every_user_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let args = |tenants: &[&str]| AuthArgs {
            out: dir.path().join("keys"),
            tenant: tenants
                .iter()
                .map(|name| TenantId::parse(name).unwrap())
                .collect(),
        };
        write(&Namespace::default(), &args(&["acme"])).unwrap();
        let seed = |name: &str| fs::read_to_string(dir.path().join("keys").join(name)).unwrap();
        let first = seed("worker.nk");
        // The other tenant has a key already, and stays.
        let told = write(&Namespace::default(), &args(&["wayne"])).unwrap();
        assert_eq!(seed("worker.nk"), first);
        assert!(told.contains("kept  ") && told.contains("wrote "), "{told}");
        let conf = seed("auth.conf");
        for name in [
            "operator",
            "producer",
            "scheduler",
            "worker",
            "tenant-acme",
            "tenant-wayne",
        ] {
            let file = format!("{name}.nk");
            let key = auth::public_key(&seed(&file)).unwrap();
            assert!(conf.contains(&format!("nkey: {key}\n")), "{name}");
            let mode = fs::metadata(dir.path().join("keys").join(&file)).unwrap();
            assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        }
        fs::write(dir.path().join("keys/worker.nk"), "nonsense").unwrap();
        let error = write(&Namespace::default(), &args(&[])).unwrap_err();
        assert!(error.to_string().contains("not the seed"), "{error}");
    }
}
