//! A lease with an epoch: who works on a row, until when, and in which epoch.
//!
//! Correctness comes from the epoch: every write under a lease is conditional on it, so a holder
//! that lost its lease changes nothing. Time only decides when another worker may try.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The attributes of a row that store its lease.
pub const OWNER: &str = "lease_owner";
pub const EPOCH: &str = "lease_epoch";
pub const UNTIL: &str = "lease_until";

/// The lease attributes of a row. `lease_until` is in milliseconds, because conditions compare it
/// as a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub lease_owner: String,
    pub lease_epoch: u64,
    pub lease_until: i64,
}

impl Lease {
    /// Returns whether another worker may take the lease. The condition of the write that takes it
    /// is the same.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.lease_until <= now.millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_at_its_time_and_not_before() {
        let lease = Lease { lease_owner: "a".into(), lease_epoch: 1, lease_until: 1_000 };
        assert!(!lease.is_over(Timestamp::from_millis(999)));
        assert!(lease.is_over(Timestamp::from_millis(1_000)));
    }
}
