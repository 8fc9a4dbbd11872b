//! The ids of a backfill and of its lines.

use serde::{Deserialize, Serialize};

use crate::id::hash_id;
use crate::keys::short_hash;

hash_id! {
    /// The id of a backfill.
    BackfillId = "bf_", 32
}

impl BackfillId {
    /// Derives the id from the key of the request that started the job, see
    /// [`request_key`](crate::idempotency::request_key). The same request gets the same job.
    pub fn of(request: &str) -> Self {
        Self::hash(request)
    }
}

/// Identifies one line of one backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LineRef(String);

impl LineRef {
    pub fn of(backfill: &BackfillId, line: u64) -> Self {
        Self(format!("{backfill}:{line}"))
    }

    /// Identifies a request that has an idempotency key, by its request key and the hash of its
    /// body. Both are hex digits. A retry with the same bytes gets the same value.
    pub fn of_request(request: &str, body_hash: &str) -> Self {
        Self(format!("req_{}", short_hash(&format!("{request}:{body_hash}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_gives_the_same_job_id() {
        let id = BackfillId::of("import-7");
        assert_eq!(BackfillId::of("import-7"), id);
        assert_ne!(BackfillId::of("import-8"), id);
        assert_eq!(BackfillId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(BackfillId::parse("bf_7"), None);
        assert_ne!(LineRef::of(&id, 1), LineRef::of(&id, 11));
    }
}
