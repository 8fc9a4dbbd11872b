//! A lease with an epoch: who works on a row, until when, and in which epoch.
//!
//! Correctness comes from the epoch: every write under a lease is conditional on it, so a holder
//! that lost its lease changes nothing. Time only decides when another worker may try.

use serde::{Deserialize, Serialize};

use crate::change::Fence;
use crate::time::Timestamp;

/// The attributes of a row that store its lease.
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
    /// The lease of the next turn, if the row's current lease is over. `Err` contains the end of
    /// the current lease.
    pub fn taken(current: Option<&Self>, owner: &str, now: Timestamp, for_ms: i64) -> Result<Self, Timestamp> {
        match current {
            Some(current) if !current.is_over(now) => Err(current.until()),
            current => Ok(Self {
                lease_owner: owner.to_owned(),
                lease_epoch: current.map_or(0, |current| current.lease_epoch) + 1,
                lease_until: now.plus_ms(for_ms).millis(),
            }),
        }
    }

    /// The same turn with another end. A worker that is done ends it now, so that the next one need
    /// not wait.
    pub fn ending(&self, until: Timestamp) -> Self {
        Self { lease_until: until.millis(), ..self.clone() }
    }

    /// Returns whether another worker may take the lease: the same rule as the condition of the
    /// write that takes it.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.lease_until <= now.millis()
    }

    pub fn until(&self) -> Timestamp {
        Timestamp::from_millis(self.lease_until)
    }

    /// Returns whether both are the same turn of the same worker.
    pub fn is_same_turn(&self, other: &Self) -> bool {
        self.lease_owner == other.lease_owner && self.lease_epoch == other.lease_epoch
    }

    /// The row is still in this turn of this worker.
    pub fn fence(&self) -> Fence {
        #[derive(Serialize)]
        struct Turn<'a> {
            lease_owner: &'a str,
            lease_epoch: u64,
        }
        Fence::same(&Turn { lease_owner: &self.lease_owner, lease_epoch: self.lease_epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_over_at_its_end_time_and_not_before() {
        let lease = Lease { lease_owner: "a".into(), lease_epoch: 1, lease_until: 1_000 };
        assert!(!lease.is_over(Timestamp::from_millis(999)));
        assert!(lease.is_over(Timestamp::from_millis(1_000)));
    }
}
