//! Finding one job by its id.

use std::time::Duration;

use anyhow::Context as _;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::Nats;
use fairlane_nats::records::Records;
use fairlane_wire::JobRecord;

use crate::cli::JobArgs;
use crate::exit::{Exit, Stop};

/// Tenants named when several have a job of the id.
const TENANTS_NAMED: usize = 5;
/// Links followed from a job to the one whose outcome it shares. One is the rule.
const LINKS_MAX: usize = 4;

/// A job, and the jobs it shares its outcome with.
#[derive(Debug)]
pub(crate) struct Found {
    /// As it was asked for.
    pub(crate) record: JobRecord,
    /// The one that has the outcome, if it is another one.
    pub(crate) owner: Option<JobRecord>,
}

impl Found {
    /// The record that tells the outcome.
    pub(crate) fn outcome(&self) -> &JobRecord {
        self.owner.as_ref().unwrap_or(&self.record)
    }
}

/// What was asked for: `id`, `tenant/id`, or `id` with `--tenant`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    tenant: Option<TenantId>,
    job: JobId,
}

fn wanted(text: &str, flag: Option<&TenantId>) -> Result<Wanted, String> {
    let (tenant, job) = match text.split_once('/') {
        Some((tenant, job)) => {
            let tenant = TenantId::parse(tenant).map_err(|error| error.to_string())?;
            if let Some(other) = flag.filter(|flag| **flag != tenant) {
                return Err(format!(
                    "{text} and --tenant {other} name two tenants; give one"
                ));
            }
            (Some(tenant), job)
        }
        None => (flag.cloned(), text),
    };
    let job = JobId::parse(job).map_err(|error| error.to_string())?;
    Ok(Wanted { tenant, job })
}

/// Finds the job that `args` name.
pub(crate) async fn find(nats: &Nats, args: &JobArgs) -> Result<Found, Stop> {
    let Wanted { tenant, job } =
        wanted(&args.job, args.tenant.as_ref()).map_err(|text| Stop::saying(Exit::Usage, text))?;
    let tenant = match tenant {
        Some(tenant) => tenant,
        None => only_tenant(nats, &job).await?,
    };
    let record = read(nats, &tenant, &job).await?.ok_or_else(|| {
        Stop::saying(
            Exit::NotFound,
            format!(
                "tenant {tenant} has no job {job} (records of ended jobs are kept for a while only)"
            ),
        )
    })?;
    let owner = owner(nats, &record).await?;
    Ok(Found { record, owner })
}

async fn read(nats: &Nats, tenant: &TenantId, job: &JobId) -> anyhow::Result<Option<JobRecord>> {
    // Only reads: how long records are kept does not matter.
    let slot = Records::new(nats, Duration::ZERO).get(tenant, job).await?;
    Ok(slot.record)
}

/// Follows `same_as` to the record that has the outcome.
async fn owner(nats: &Nats, record: &JobRecord) -> anyhow::Result<Option<JobRecord>> {
    let mut owner = None;
    for _ in 0..LINKS_MAX {
        let from = owner.as_ref().unwrap_or(record);
        let next = from.same_as.as_deref().and_then(|id| JobId::parse(id).ok());
        let Some(next) = next.filter(|id| *id != from.job) else {
            break;
        };
        match read(nats, &record.tenant, &next).await? {
            Some(found) => owner = Some(found),
            None => break,
        }
    }
    Ok(owner)
}

/// The one tenant that has a job of this id.
async fn only_tenant(nats: &Nats, job: &JobId) -> Result<TenantId, Stop> {
    let tenants = tenants_with(nats, job).await?;
    match &tenants[..] {
        [] => Err(Stop::saying(
            Exit::NotFound,
            format!("no tenant has a job {job} (records of ended jobs are kept for a while only)"),
        )),
        [only] => Ok(only.clone()),
        several => Err(Stop::saying(Exit::Usage, ambiguous(job, several))),
    }
}

fn ambiguous(job: &JobId, tenants: &[TenantId]) -> String {
    let named = tenants.iter().take(TENANTS_NAMED).map(TenantId::as_str);
    let more = match tenants.len().saturating_sub(TENANTS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.collect::<Vec<_>>().join(", ");
    format!(
        "several tenants have a job {job}: {named}{more}; say which with --tenant or TENANT/{job}"
    )
}

async fn tenants_with(nats: &Nats, job: &JobId) -> anyhow::Result<Vec<TenantId>> {
    let tenants = Records::new(nats, Duration::ZERO).tenants_with(job).await;
    tenants.context("run `fairlane init` or start a producer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn a_job_is_named_by_its_id_with_or_without_its_tenant() {
        let named = |text, flag: Option<&str>| {
            let flag = flag.map(tenant);
            wanted(text, flag.as_ref())
                .map(|w| (w.tenant.map(|t| t.to_string()), w.job.to_string()))
        };
        let expect = |tenant: Option<&str>| Ok((tenant.map(str::to_owned), "j1".to_owned()));
        assert_eq!(named("j1", None), expect(None));
        assert_eq!(named("j1", Some("acme")), expect(Some("acme")));
        assert_eq!(named("acme/j1", None), expect(Some("acme")));
        assert_eq!(named("acme/j1", Some("acme")), expect(Some("acme")));
        assert!(
            named("acme/j1", Some("other"))
                .unwrap_err()
                .contains("two tenants")
        );
        assert!(named("acme/", None).unwrap_err().contains("id is empty"));
        assert!(named("a.b/j1", None).unwrap_err().contains("contains '.'"));
    }

    #[test]
    fn an_ambiguous_id_names_some_of_its_tenants() {
        let tenants: Vec<_> = (1..=7).map(|n| tenant(&format!("t{n}"))).collect();
        let text = ambiguous(&JobId::parse("j1").unwrap(), &tenants);
        assert!(text.contains("t1, t2, t3, t4, t5 and 2 more"), "{text}");
        assert!(text.contains("TENANT/j1"), "{text}");
    }
}
