//! What a backfill and its lines are known by.

use serde::{Deserialize, Serialize};

use crate::access::KeyId;
use crate::id::hash_id;
use crate::keys::short_hash;

hash_id! {
    /// A backfill.
    BackfillId = "bf_", 32
}

impl BackfillId {
    /// By whoever asks and the request's `Idempotency-Key` (or its own id, without one): the same request is the same
    /// job.
    pub fn of(caller: &KeyId, key: &str) -> Self {
        Self::hash(&format!("{caller}:{key}"))
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

    /// A request that brings a key: with the same bytes on the same route it is the same one.
    pub fn of_request(caller: &KeyId, route: &str, key: &str, body_hash: &str) -> Self {
        Self(format!("req_{}", short_hash(&format!("{caller}\n{route}\n{body_hash}\n{key}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;

    #[test]
    fn the_same_request_is_the_same_job() {
        let (a, b) = (PresentedKey::of("a").id, PresentedKey::of("b").id);
        let id = BackfillId::of(&a, "import-7");
        assert_eq!(BackfillId::of(&a, "import-7"), id);
        assert_ne!(BackfillId::of(&b, "import-7"), id);
        assert_eq!(BackfillId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(BackfillId::parse("bf_7"), None);
        assert_ne!(LineRef::of(&id, 1), LineRef::of(&id, 11));
    }
}
