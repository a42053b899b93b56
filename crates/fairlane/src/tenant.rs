//! `fairlane tenant`: what holds for tenants, changed while the fleet runs.
//!
//! A record in the tenants bucket stands over the configuration, field by field. The leading scheduler
//! watches the bucket, so a change acts at once, on jobs that are queued too.

mod keys;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use fairlane_core::TenantId;
use fairlane_nats::watch::Event;
use fairlane_nats::{Bucket, Content, Nats, Revision, WriteError};
use fairlane_wire::fleet::TENANTS_MAX;
use fairlane_wire::{FleetRecord, TenantRecord, TenantRecordError, WhyRequest};
use serde_json::{Map, Value, json};

use crate::cli::{Format, Globals, TenantCommand, TenantSetArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::target::Target;
use crate::text;
use crate::why::ask;

/// How often a change is tried again when somebody else changes the record at the same time.
const TRIES: u32 = 5;
/// How long all records may take to be read.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the trace of a removed record stays, for those who look away for a moment.
const TRACE_KEEP: Duration = Duration::from_secs(3_600);

pub(crate) async fn run(globals: &Globals, command: TenantCommand) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("tenant")?;
    let nats = target.connect("tenant").await?;
    let records = Tenants {
        bucket: nats.bucket(&nats.names.tenants_bucket()),
    };
    let (tenant, format, dry, record) = match command {
        TenantCommand::Key(command) => return keys::run(&records, command).await,
        TenantCommand::Ls(args) if args.all => return all(&nats, args.output.format).await,
        TenantCommand::Ls(args) => return list(&records, args.output.format).await,
        TenantCommand::Show(args) => {
            let record = records.read(&args.tenant).await?.usable(&args.tenant)?;
            (args.tenant, args.output.format, false, record)
        }
        TenantCommand::Set(args) => {
            let change = changes(&args)?;
            let alter = |record: &TenantRecord| altered(record, &change);
            let dry = args.dry.dry_run;
            let record = records.update(&args.tenant, dry, alter).await?;
            (args.tenant, args.output.format, dry, record)
        }
        TenantCommand::Demote(args) => {
            let until = json!(now_ms().saturating_add(args.duration.0));
            let change = Map::from_iter([("demoted_until_ms".to_owned(), until)]);
            let alter = |record: &TenantRecord| altered(record, &change);
            let dry = args.dry.dry_run;
            let record = records.update(&args.tenant, dry, alter).await?;
            (args.tenant, args.output.format, dry, record)
        }
        TenantCommand::Restore(args) => {
            let restore = |record: &TenantRecord| {
                Ok(TenantRecord {
                    demoted_until_ms: None,
                    ..record.clone()
                })
            };
            let dry = args.dry.dry_run;
            let record = records.update(&args.tenant, dry, restore).await?;
            (args.tenant, args.output.format, dry, record)
        }
        TenantCommand::Unset(args) => {
            let dry = args.consent.dry_run;
            if !dry {
                // Whether there is anything to take away is told before anybody is asked.
                records.remove(&args.tenant, true).await?;
                let what = format!(
                    "All settings of {} but its keys will be taken away.",
                    args.tenant
                );
                args.consent.ask(&what, "nothing was changed")?;
            }
            let record = records.remove(&args.tenant, dry).await?;
            (args.tenant, args.output.format, dry, record)
        }
    };
    if dry {
        say("nothing was changed; without --dry-run this would hold:");
    }
    match format {
        Format::Table => print(described(&tenant, &record))?,
        Format::Json | Format::Jsonl => print_json(&document(&tenant, &Ok(record)))?,
    }
    Ok(Exit::Ok)
}

/// What the flags say, as fields of a record: null takes a value away.
fn changes(args: &TenantSetArgs) -> Result<Map<String, Value>, Stop> {
    let given = [
        ("plan", &args.plan),
        ("weight", &args.weight),
        ("daily_input_tokens", &args.daily_input_tokens),
        ("in_flight_max", &args.in_flight_max),
    ];
    let given = given
        .into_iter()
        .filter_map(|(field, text)| Some((field.to_owned(), field_value(field, text.as_ref()?))));
    let change: Map<String, Value> = given.collect();
    if change.is_empty() {
        return Err(Stop::saying(
            Exit::Usage,
            "nothing to set: give --plan, --weight, --daily-input-tokens or --in-flight-max",
        ));
    }
    // Wrong usage is told before anything is read or written.
    TenantRecord::from_fields(&change).map_err(|error| Stop::new(Exit::Usage, error))?;
    Ok(change)
}

fn field_value(field: &str, text: &str) -> Value {
    match text.trim() {
        "" => Value::Null,
        word if field == "plan" => json!(word),
        // What is no number is refused by name where the record is checked.
        number => serde_json::from_str(&number.replace('_', "")).unwrap_or_else(|_| json!(number)),
    }
}

fn altered(
    record: &TenantRecord,
    change: &Map<String, Value>,
) -> Result<TenantRecord, TenantRecordError> {
    let mut fields = match json!(record) {
        Value::Object(fields) => fields,
        other => unreachable!("a record is an object, not {other}"),
    };
    fields.extend(change.clone());
    TenantRecord::from_fields(&fields)
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// All records of tenants that are usable, for commands that look at what holds.
pub(crate) async fn records(nats: &Nats) -> anyhow::Result<BTreeMap<TenantId, TenantRecord>> {
    let bucket = nats.bucket(&nats.names.tenants_bucket());
    let all = Tenants { bucket }.all().await?;
    let usable = all.into_iter().filter_map(|(tenant, record)| {
        let tenant = TenantId::parse(&tenant).ok()?;
        Some((tenant, record.ok()?))
    });
    Ok(usable.collect())
}

struct Tenants {
    bucket: Bucket,
}

/// A tenant's key as it is stored.
struct Stored {
    revision: Revision,
    /// None: nothing is stored.
    record: Option<Result<TenantRecord, TenantRecordError>>,
}

impl Stored {
    fn usable(self, tenant: &TenantId) -> Result<TenantRecord, Stop> {
        self.record.transpose().map(Option::unwrap_or_default).map_err(|error| {
            let text = format!(
                "the settings of {tenant} are not usable: {error}; put them right, or take them away with `fairlane tenant unset {tenant}`"
            );
            Stop::saying(Exit::Failed, text)
        })
    }
}

impl Tenants {
    async fn read(&self, tenant: &TenantId) -> Result<Stored, Stop> {
        let entry = self.bucket.get(tenant.as_str()).await;
        let entry = entry.context("cannot read the tenant's settings; has `fairlane init` run?")?;
        Ok(match entry {
            Some(entry) => Stored {
                revision: entry.revision,
                record: entry.value().map(|value| TenantRecord::parse(value)),
            },
            None => Stored {
                revision: Revision::ABSENT,
                record: None,
            },
        })
    }

    /// Changes a record and returns it; `dry`: without storing it.
    async fn update(
        &self,
        tenant: &TenantId,
        dry: bool,
        alter: impl Fn(&TenantRecord) -> Result<TenantRecord, TenantRecordError>,
    ) -> Result<TenantRecord, Stop> {
        for _ in 0..TRIES {
            let stored = self.read(tenant).await?;
            let revision = stored.revision;
            let record = alter(&stored.usable(tenant)?);
            let record = record.map_err(|error| Stop::new(Exit::Usage, error))?;
            if dry {
                return Ok(record);
            }
            let value = record.to_bytes().into();
            let key = tenant.as_str();
            match self.bucket.put_if(key, value, revision, None).await {
                Ok(_) => return Ok(record),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(not_stored(error)),
            }
        }
        Err(busy(tenant))
    }

    /// Takes away all that is set but the keys, and returns what is left; `dry`: without storing it.
    async fn remove(&self, tenant: &TenantId, dry: bool) -> Result<TenantRecord, Stop> {
        for _ in 0..TRIES {
            let stored = self.read(tenant).await?;
            if stored.record.is_none() {
                return Err(Stop::saying(
                    Exit::NotFound,
                    format!("{tenant} has no settings of its own; the configuration decides"),
                ));
            }
            let (key, expected) = (tenant.as_str(), stored.revision);
            // Whoever wants the defaults back does not mean to lock the tenant's programs out.
            let keys = match &stored.record {
                Some(Ok(record)) => record.keys.clone(),
                Some(Err(_)) | None => Vec::new(),
            };
            let rest = TenantRecord {
                keys,
                ..TenantRecord::default()
            };
            if dry {
                return Ok(rest);
            }
            if !rest.keys.is_empty() {
                match self
                    .bucket
                    .put_if(key, rest.to_bytes().into(), expected, None)
                    .await
                {
                    Ok(_) => return Ok(rest),
                    Err(WriteError::Conflict { .. }) => continue,
                    Err(error) => return Err(not_stored(error)),
                }
            }
            let removed = self
                .bucket
                .tombstone_if(key, expected, Default::default(), TRACE_KEEP);
            match removed.await {
                Ok(_) => return Ok(rest),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(not_stored(error)),
            }
        }
        Err(busy(tenant))
    }

    async fn all(
        &self,
    ) -> anyhow::Result<BTreeMap<String, Result<TenantRecord, TenantRecordError>>> {
        let mut all = BTreeMap::new();
        let mut watch = self.bucket.watch();
        let read = async {
            while let Some(event) = watch.next().await {
                match event {
                    Event::Change(entry) => match entry.content {
                        Content::Live(value) => {
                            all.insert(entry.key, TenantRecord::parse(&value));
                        }
                        Content::Deleted(_) | Content::Expired => {
                            all.remove(&entry.key);
                        }
                    },
                    Event::Current => break,
                    Event::Stale => {}
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.context("the tenants' settings cannot be read; has `fairlane init` run?")?;
        Ok(all)
    }
}

fn not_stored(error: WriteError) -> Stop {
    let error = anyhow::Error::new(error)
        .context("the change may not be stored; look with `fairlane tenant show`");
    Stop::new(Exit::Failed, error)
}

fn busy(tenant: &TenantId) -> Stop {
    Stop::saying(
        Exit::Failed,
        format!("somebody else keeps changing the settings of {tenant}; try again"),
    )
}

/// All tenants that the leader has seen, with what holds for them.
async fn all(nats: &Nats, format: Format) -> Outcome {
    let tenants_max = TENANTS_MAX;
    let fleet: FleetRecord = ask(nats, &WhyRequest::Fleet { tenants_max }).await?;
    match format {
        Format::Table => print(fleet_table(&fleet))?,
        Format::Json | Format::Jsonl => print_json(&fleet.tenants)?,
    }
    Ok(Exit::Ok)
}

fn fleet_table(fleet: &FleetRecord) -> String {
    let head = [
        "TENANT",
        "WEIGHT",
        "IN LINE",
        "RUNNING",
        "MAX",
        "TODAY",
        "BUDGET",
        "DEMOTED UNTIL",
    ];
    let rows = fleet.tenants.iter().map(|tenant| {
        let dash = || "-".to_owned();
        let demoted = tenant.demoted.as_ref();
        [
            tenant.tenant.to_string(),
            (f64::from(tenant.weight) / 1_000.0).to_string(),
            tenant.queued.iter().sum::<u64>().to_string(),
            tenant.in_flight.to_string(),
            tenant.in_flight_max.to_string(),
            tenant.input_tokens_today.to_string(),
            tenant
                .daily_input_tokens
                .map_or_else(dash, |budget| budget.to_string()),
            demoted.map_or_else(dash, |demoted| text::instant(demoted.until_ms)),
        ]
    });
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned))
        .chain(rows)
        .collect();
    text::columns(&rows, true)
}

async fn list(records: &Tenants, format: Format) -> Outcome {
    let all = records.all().await?;
    match format {
        Format::Table => print(table(&all))?,
        Format::Json | Format::Jsonl => {
            let documents = all.iter().map(|(tenant, record)| document(tenant, record));
            print_json(&documents.collect::<Vec<_>>())?;
        }
    }
    Ok(Exit::Ok)
}

const COLUMNS: [&str; 6] = [
    "TENANT",
    "PLAN",
    "WEIGHT",
    "DAILY INPUT TOKENS",
    "IN FLIGHT MAX",
    "DEMOTED UNTIL",
];

fn table(all: &BTreeMap<String, Result<TenantRecord, TenantRecordError>>) -> String {
    if all.is_empty() {
        return "no tenant has settings of its own; the configuration decides".to_owned();
    }
    let rows: Vec<[String; 6]> = all
        .iter()
        .filter_map(|(tenant, record)| Some(row(tenant, record.as_ref().ok()?)))
        .collect();
    let header = COLUMNS.map(str::to_owned);
    let lines = std::iter::once(&header).chain(&rows);
    let width = |column: usize| {
        lines
            .clone()
            .map(|row| row[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        line.join("  ").trim_end().to_owned()
    };
    let lines = lines.clone().map(line);
    let unusable = all.iter().filter_map(|(tenant, record)| {
        let error = record.as_ref().err()?;
        Some(format!("{tenant}: not usable: {error}"))
    });
    lines.chain(unusable).collect::<Vec<_>>().join("\n")
}

fn row(tenant: &str, record: &TenantRecord) -> [String; 6] {
    let [plan, weight, budget, cap, demoted] = cells(record);
    [tenant.to_owned(), plan, weight, budget, cap, demoted]
}

/// What is set, and a dash for what is not.
fn cells(record: &TenantRecord) -> [String; 5] {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    [
        shown(record.plan.map(|plan| plan.as_str().to_owned())),
        shown(record.weight.map(|weight| weight.to_string())),
        shown(record.daily_input_tokens.map(|tokens| tokens.to_string())),
        shown(record.in_flight_max.map(|jobs| jobs.to_string())),
        shown(record.demoted_until_ms.map(text::instant)),
    ]
}

fn described(tenant: &TenantId, record: &TenantRecord) -> String {
    let names = [
        "plan",
        "weight",
        "daily input tokens",
        "in flight max",
        "demoted until",
    ];
    let lines = names.into_iter().zip(cells(record));
    let lines = lines.map(|(name, cell)| format!("  {name:<18}  {cell}"));
    format!(
        "{tenant}\n{}\n- is not set here: the configuration decides",
        lines.collect::<Vec<_>>().join("\n")
    )
}

/// A record with its tenant; an unusable one with what is wrong.
fn document(
    tenant: &(impl std::fmt::Display + ?Sized),
    record: &Result<TenantRecord, TenantRecordError>,
) -> Value {
    let mut document = match record {
        Ok(record) => json!(record),
        Err(error) => json!({"error": error.to_string()}),
    };
    document["tenant"] = json!(tenant.to_string());
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_is_set_and_what_is_wrong() {
        let good = TenantRecord::parse(
            br#"{"plan": "pro", "weight": 2.5, "demoted_until_ms": 1700000000000}"#,
        );
        let wrong = TenantRecord::parse(br#"{"weight": 0}"#);
        let all = BTreeMap::from([
            ("acme".to_owned(), good),
            ("b".to_owned(), TenantRecord::parse(b"{}")),
            ("c".to_owned(), wrong),
        ]);
        assert_eq!(
            table(&all),
            "\
TENANT  PLAN  WEIGHT  DAILY INPUT TOKENS  IN FLIGHT MAX  DEMOTED UNTIL
acme    pro   2.5     -                   -              2023-11-14T22:13:20Z
b       -     -       -                   -              -
c: not usable: field weight is 0; use a number from 0.01 to 1000"
        );
        assert!(table(&BTreeMap::new()).starts_with("no tenant"));
    }

    #[test]
    fn an_empty_text_takes_a_value_away_and_the_rest_stays() {
        let record = TenantRecord::parse(br#"{"plan": "pro", "weight": 2}"#).unwrap();
        let change = Map::from_iter([
            ("weight".to_owned(), field_value("weight", "")),
            (
                "in_flight_max".to_owned(),
                field_value("in_flight_max", "1_000"),
            ),
        ]);
        let altered = altered(&record, &change).unwrap();
        assert_eq!(
            altered.to_bytes(),
            br#"{"plan":"pro","in_flight_max":1000}"#
        );
    }
}
