//! What a backfill and its lines are known by.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::access::KeyId;
use sha2::{Digest, Sha256};

const PREFIX: &str = "bf_";

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackfillId(String);

impl BackfillId {
    /// By whoever asks and the request's `Idempotency-Key` (or its own id, without one): the same request is the same
    /// job.
    pub fn of(caller: &KeyId, key: &str) -> Self {
        let hash = Sha256::digest(format!("{caller}:{key}").as_bytes());
        Self(format!("{PREFIX}{}", hex::encode(&hash[..16])))
    }

    pub fn parse(text: &str) -> Option<Self> {
        let hash = text.strip_prefix(PREFIX)?;
        let shaped = hash.len() == 32 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        shaped.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackfillId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
        let hash = Sha256::digest(format!("{caller}\n{route}\n{body_hash}\n{key}").as_bytes());
        Self(format!("req_{}", hex::encode(&hash[..16])))
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
