//! How many calls may be open at the same time: in all, and of one tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairlane_core::TenantId;

use crate::error::{ApiError, Kind, Result};

/// Counts open calls.
#[derive(Debug)]
pub(crate) struct Gate {
    calls_max: u32,
    of_tenant_max: u32,
    open: Mutex<Open>,
}

/// Tenants without an open call are not kept.
#[derive(Debug, Default)]
struct Open {
    all: u32,
    of_tenant: HashMap<TenantId, u32>,
}

/// An open call, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    tenant: TenantId,
}

impl Gate {
    pub(crate) fn new(calls_max: u32, of_tenant_max: u32) -> Arc<Self> {
        Arc::new(Self {
            calls_max,
            of_tenant_max,
            open: Mutex::default(),
        })
    }

    /// Lets a call in.
    ///
    /// # Errors
    /// `rate_limit_error` if the tenant has too many open calls, `overloaded_error` if all have.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &TenantId) -> Result<Permit> {
        let mut open = self.open();
        let of_tenant = open.of_tenant.get(tenant).copied().unwrap_or(0);
        if of_tenant >= self.of_tenant_max {
            let text = format!(
                "{tenant} has {of_tenant} calls open here, which is the most; wait for some to end"
            );
            return Err(ApiError::new(Kind::RateLimit, text).retry_after(1));
        }
        if open.all >= self.calls_max {
            let text = "too many calls are open; try again";
            return Err(ApiError::new(Kind::Overloaded, text).retry_after(1));
        }
        open.all += 1;
        *open.of_tenant.entry(tenant.clone()).or_default() += 1;
        Ok(Permit {
            gate: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // A panic elsewhere cannot leave a count half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.gate.open();
        open.all -= 1;
        if let Some(count) = open.of_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                open.of_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_the_room_of_others_and_ended_calls_leave_nothing() {
        let gate = Gate::new(3, 2);
        let tenant = |name: &str| TenantId::parse(name).unwrap();
        let (a, b) = (tenant("a"), tenant("b"));
        let first = gate.enter(&a).unwrap();
        let _second = gate.enter(&a).unwrap();
        assert_eq!(gate.enter(&a).unwrap_err().kind, Kind::RateLimit);
        let third = gate.enter(&b).unwrap();
        assert_eq!(gate.enter(&b).unwrap_err().kind, Kind::Overloaded);
        drop((first, third));
        assert!(gate.enter(&b).is_ok());
        assert_eq!(gate.open().of_tenant.len(), 1);
    }
}
