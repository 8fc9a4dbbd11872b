//! What a backfill and its lines are known by.

use serde::{Deserialize, Serialize};

use crate::id::hash_id;
use crate::keys::short_hash;

hash_id! {
    /// A backfill.
    BackfillId = "bf_", 32
}

impl BackfillId {
    /// By the key of the request that began it, see
    /// [`request_key`](crate::idempotency::request_key): the same request is the same job.
    pub fn of(request: &str) -> Self {
        Self::hash(request)
    }
}

/// One line of one backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LineRef(String);

impl LineRef {
    pub fn of(backfill: &BackfillId, line: u64) -> Self {
        Self(format!("{backfill}:{line}"))
    }

    /// A request that brings a key, by its own key and the hash of its body, both of which are hex
    /// digits: with the same bytes it is the same one.
    pub fn of_request(request: &str, body_hash: &str) -> Self {
        Self(format!("req_{}", short_hash(&format!("{request}:{body_hash}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_is_the_same_job() {
        let id = BackfillId::of("import-7");
        assert_eq!(BackfillId::of("import-7"), id);
        assert_ne!(BackfillId::of("import-8"), id);
        assert_eq!(BackfillId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(BackfillId::parse("bf_7"), None);
        assert_ne!(LineRef::of(&id, 1), LineRef::of(&id, 11));
    }
}
