//! A lease with an epoch: who works on a row, until when, and which turn this is.
//!
//! Correctness comes from the epoch: every write under a lease names it, so a holder that lost its
//! lease changes nothing. Time only decides when another may try.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The attributes that a lease is stored as.
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
    /// Whether another may take it: the same words as the condition of the write that does.
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
