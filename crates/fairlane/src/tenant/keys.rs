//! `fairlane tenant key`: who may speak for a tenant to the HTTP API.
//!
//! Of a secret only its hash is stored, in the tenant's record; producers watch those records, so a
//! change acts at once.

use fairlane_core::TenantId;
use fairlane_wire::tenant::KEYS_MAX;
use fairlane_wire::{TenantKey, TenantRecord};
use serde_json::{Value, json};

use super::{Tenants, now_ms};
use crate::cli::{Format, TenantKeyCommand};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::text;

pub(super) async fn run(records: &Tenants, command: TenantKeyCommand) -> Outcome {
    match command {
        TenantKeyCommand::Create(args) => {
            let secret = TenantKey::secret(rand::random());
            let key = TenantKey::of(&secret, now_ms(), args.note);
            add(records, &args.tenant, &key).await?;
            match args.output.format {
                Format::Table => print(&secret)?,
                Format::Json | Format::Jsonl => {
                    let mut document = shown(&args.tenant, &key);
                    document["secret"] = json!(secret);
                    print_json(&document)?;
                }
            }
        }
        TenantKeyCommand::Ls(args) => {
            let record = records.read(&args.tenant).await?.usable(&args.tenant)?;
            match args.output.format {
                Format::Table => print(table(&args.tenant, &record.keys))?,
                Format::Json | Format::Jsonl => {
                    let keys = record.keys.iter().map(|key| shown(&args.tenant, key));
                    print_json(&keys.collect::<Vec<_>>())?;
                }
            }
        }
        TenantKeyCommand::Revoke(args) => {
            let key = records.key(&args.tenant, &args.key).await?;
            let note = key.note.as_deref().unwrap_or("no note");
            let what = format!(
                "Key {} of {} ({note}) will be refused for good.",
                key.id, args.tenant
            );
            let told = if args.consent.dry_run {
                say("nothing was changed; without --dry-run:");
                what
            } else {
                args.consent.ask(&what, "nothing was changed")?;
                revoke(records, &args.tenant, &key.id).await?;
                format!("{}: key {} is revoked", args.tenant, key.id)
            };
            match args.output.format {
                Format::Table => print(told)?,
                Format::Json | Format::Jsonl => print_json(&shown(&args.tenant, &key))?,
            }
        }
    }
    Ok(Exit::Ok)
}

async fn add(records: &Tenants, tenant: &TenantId, key: &TenantKey) -> Result<(), Stop> {
    let found = records.read(tenant).await?.usable(tenant)?;
    if found.keys.len() >= KEYS_MAX {
        let text = format!("{tenant} has {KEYS_MAX} keys, which is the most; revoke one first");
        return Err(Stop::saying(Exit::Failed, text));
    }
    let with_key = |record: &TenantRecord| {
        let mut record = record.clone();
        record.keys.push(key.clone());
        Ok(record)
    };
    records.update(tenant, false, with_key).await?;
    Ok(())
}

impl Tenants {
    /// A key of a tenant, by its id.
    async fn key(&self, tenant: &TenantId, id: &str) -> Result<TenantKey, Stop> {
        let found = self.read(tenant).await?.usable(tenant)?;
        found
            .keys
            .into_iter()
            .find(|key| key.id == id)
            .ok_or_else(|| {
                let text =
                    format!("{tenant} has no key {id}; see `fairlane tenant key ls {tenant}`");
                Stop::saying(Exit::NotFound, text)
            })
    }
}

async fn revoke(records: &Tenants, tenant: &TenantId, id: &str) -> Result<(), Stop> {
    let without_key = |record: &TenantRecord| {
        let mut record = record.clone();
        record.keys.retain(|key| key.id != id);
        Ok(record)
    };
    records.update(tenant, false, without_key).await?;
    Ok(())
}

fn table(tenant: &TenantId, keys: &[TenantKey]) -> String {
    if keys.is_empty() {
        return format!(
            "{tenant} has no keys; make one with `fairlane tenant key create {tenant}`"
        );
    }
    let lines = keys.iter().map(|key| {
        let note = key.note.as_deref().unwrap_or("-");
        format!("{:<12}  {}  {note}", key.id, text::instant(key.created_ms))
    });
    let header = "KEY           CREATED               NOTE".to_owned();
    std::iter::once(header)
        .chain(lines)
        .collect::<Vec<_>>()
        .join("\n")
}

fn shown(tenant: &TenantId, key: &TenantKey) -> Value {
    json!({"tenant": tenant.as_str(), "id": key.id, "created_ms": key.created_ms, "note": key.note})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_without_their_hashes() {
        let tenant = TenantId::parse("acme").unwrap();
        let key = TenantKey::of("flk_x", 1_700_000_000_000, Some("shop".to_owned()));
        let text = table(&tenant, std::slice::from_ref(&key));
        assert!(
            text.contains(&format!("{}  2023-11-14T22:13:20Z  shop", key.id)),
            "{text}"
        );
        assert!(
            !text.contains(&key.sha256) && !shown(&tenant, &key).to_string().contains(&key.sha256)
        );
        assert!(table(&tenant, &[]).contains("key create acme"));
    }
}
