//! Who a line belongs to. Everything else about it is for the producer to judge.

use bytes::Bytes;
use fairlane_core::{JobId, TenantId};
use fairlane_wire::{DeadReason, Failure, letter, peek, submission};

/// A line that can be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) line: u64,
    pub(crate) tenant: TenantId,
    pub(crate) job: JobId,
    /// True if `job` is our invention, because the line has no id that can be read and used.
    pub(crate) is_named_by_us: bool,
    pub(crate) body: Bytes,
}

/// A line that cannot, as far as it says who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) line: u64,
    pub(crate) id: Option<String>,
    pub(crate) failure: Failure,
}

/// True for a line that holds nothing.
pub(crate) fn is_blank(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

/// Finds the tenant and the id of a line, even if what follows them is broken. `new_id` makes an id for a line
/// without one.
///
/// # Errors
/// The [`Refusal`] of a line that names no usable tenant.
pub(crate) fn address(
    line: u64,
    body: Bytes,
    default_tenant: Option<&TenantId>,
    new_id: impl FnOnce() -> JobId,
) -> Result<Parcel, Box<Refusal>> {
    let seen = peek(&body);
    let tenant = match (&seen.tenant, default_tenant) {
        (Some(name), _) => TenantId::parse(name).map_err(|error| {
            Failure::new(DeadReason::InvalidTenant, error.to_string())
                .field("tenant")
                .fix("correct the name of the tenant")
        }),
        (None, Some(tenant)) => Ok(tenant.clone()),
        (None, None) => Err(no_tenant(&body)),
    };
    let tenant = tenant.map_err(|failure| {
        Box::new(Refusal {
            line,
            id: seen.id.clone(),
            failure,
        })
    })?;
    let own_id = seen.id.as_deref().and_then(|id| JobId::parse(id).ok());
    Ok(Parcel {
        line,
        tenant,
        is_named_by_us: own_id.is_none(),
        job: own_id.unwrap_or_else(new_id),
        body,
    })
}

/// The refusal of a line that is too long to look into.
pub(crate) fn too_long(line: u64, bytes: u64, bytes_max: usize) -> Refusal {
    let message = format!("the line has {bytes} bytes; at most {bytes_max} are read");
    Refusal {
        line,
        id: None,
        failure: Failure::new(DeadReason::Oversize, message).fix("split the job"),
    }
}

/// Why a line without a tenant has none: it is no JSON, or it does not say.
fn no_tenant(body: &[u8]) -> Failure {
    match submission::parse(body, &letter::unknown_tenant()) {
        Err(failure) if failure.reason == DeadReason::Undecodable => failure,
        Ok(_) | Err(_) => Failure::new(DeadReason::InvalidTenant, "the line names no tenant")
            .field("tenant")
            .fix("add \"tenant\" to the line, or give --tenant"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> JobId {
        JobId::parse("ours").unwrap()
    }

    fn addressed(body: &str, default_tenant: Option<&str>) -> Result<(String, String), String> {
        let default_tenant = default_tenant.map(|name| TenantId::parse(name).unwrap());
        let body = Bytes::copy_from_slice(body.as_bytes());
        match address(7, body.clone(), default_tenant.as_ref(), ours) {
            Ok(parcel) => {
                assert_eq!((parcel.line, parcel.body), (7, body));
                assert_eq!(parcel.is_named_by_us, parcel.job == ours());
                Ok((parcel.tenant.to_string(), parcel.job.to_string()))
            }
            Err(refusal) => Err(refusal.failure.line()),
        }
    }

    fn to(tenant: &str, job: &str) -> Result<(String, String), String> {
        Ok((tenant.to_owned(), job.to_owned()))
    }

    #[test]
    fn a_line_goes_to_the_tenant_it_names_even_if_it_is_broken_further_on() {
        assert_eq!(
            addressed(r#"{"id":"j1","tenant":"acme"}"#, None),
            to("acme", "j1")
        );
        assert_eq!(
            addressed(
                r#"{"id":"j1","tenant":"acme","request":{"mod"#,
                Some("other")
            ),
            to("acme", "j1")
        );
    }

    #[test]
    fn a_line_without_a_usable_id_gets_one_of_ours() {
        assert_eq!(addressed(r#"{"tenant":"acme"}"#, None), to("acme", "ours"));
        assert_eq!(
            addressed(r#"{"tenant":"acme","id":"a b"}"#, None),
            to("acme", "ours")
        );
        assert_eq!(addressed("not JSON", Some("acme")), to("acme", "ours"));
    }

    #[test]
    fn a_line_nobody_can_be_told_about_is_refused_with_the_reason() {
        let refused = |body| addressed(body, None).unwrap_err();
        assert_eq!(
            refused("wp-0017;broken;export"),
            "undecodable: not JSON: expected value at byte 0; publish one JSON object"
        );
        assert!(
            refused(r#"{"origin":"scheduled"}"#)
                .starts_with("invalid_tenant: the line names no tenant; add \"tenant\"")
        );
        let traversal = r#"{"id":"j1","tenant":"Wallpaper Pro/../*>"}"#;
        let told = addressed(traversal, Some("acme")).unwrap_err();
        assert!(
            told.contains("contains ' '; a tenant is 1 to 63 letters"),
            "{told}"
        );
    }

    #[test]
    fn a_refusal_keeps_the_id_that_could_be_read() {
        let refusal = address(1, r#"{"id":"j1","tenant":""}"#.into(), None, ours).unwrap_err();
        assert_eq!(refusal.id.as_deref(), Some("j1"));
    }

    #[test]
    fn only_white_space_is_blank() {
        assert!(is_blank(b" \t\r"));
        assert!(!is_blank(b" x"));
    }
}
