//! API keys and what they may do. The store holds a key's hash, never the key.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::id::hash_id;

hash_id! {
    /// The public id of a key: the first 16 hex digits of its hash.
    KeyId = "", 16
}

/// A key that a caller sent, reduced to what may be stored. Keys are long and random, so a single
/// hash is enough.
#[derive(Debug, Clone)]
pub struct PresentedKey {
    pub id: KeyId,
    pub hash: String,
}

impl PresentedKey {
    pub fn of(secret: &str) -> Self {
        Self { id: KeyId::hash(secret), hash: hex::encode(Sha256::digest(secret.as_bytes())) }
    }
}

/// Returns the token of `Authorization: Bearer <key>`. The case of the scheme does not matter (RFC
/// 9110).
pub fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The row of a key.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    pub key_id: KeyId,
    pub hash: String,
    pub scopes: Vec<String>,
    pub label: String,
    pub created_at: String,
    pub revoked_at: Option<String>,
}

impl KeyRecord {
    /// Returns whether the presented key is this one and is not revoked. It compares the hash in
    /// constant time.
    pub fn admits(&self, presented: &PresentedKey) -> bool {
        let same: bool = self.hash.as_bytes().ct_eq(presented.hash.as_bytes()).into();
        same && self.revoked_at.is_none()
    }
}

/// The permission that a route requires and a key has: a word such as `intents`, or `intents:read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope(pub &'static str);

/// The scopes that a key can have. A word covers its `:read`; `*` covers everything.
pub const SCOPES: &[&str] = &[
    "*",
    "intents",
    "intents:read",
    "outbound",
    "outbound:read",
    "ingest",
    "ingest:read",
    "mailings",
    "mailings:read",
    "conversations",
    "conversations:read",
    "downsells",
    "downsells:read",
    // For clients that report payments without signing their requests.
    "payments",
];

pub fn is_known_scope(scope: &str) -> bool {
    SCOPES.contains(&scope)
}

/// Returns whether one of the held scopes covers the needed one.
pub fn allows<'a>(held: impl IntoIterator<Item = &'a str>, needed: Scope) -> bool {
    let word = needed.0.strip_suffix(":read").unwrap_or(needed.0);
    held.into_iter().any(|scope| scope == "*" || scope == needed.0 || scope == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(secret: &str) -> KeyRecord {
        let presented = PresentedKey::of(secret);
        KeyRecord {
            key_id: presented.id,
            hash: presented.hash,
            scopes: vec!["intents".into()],
            label: "n8n".into(),
            created_at: "2026-01-01T00:00:00Z".into(),
            revoked_at: None,
        }
    }

    #[test]
    fn a_key_is_admitted_until_it_is_revoked() {
        let mut key = record("uv_secret");
        assert!(key.admits(&PresentedKey::of("uv_secret")));
        assert!(!key.admits(&PresentedKey::of("uv_secres")));
        key.revoked_at = Some("2026-01-02T00:00:00Z".into());
        assert!(!key.admits(&PresentedKey::of("uv_secret")));
    }

    #[test]
    fn the_stored_record_does_not_contain_the_key() {
        let kept = serde_json::to_string(&record("uv_secret")).expect("serializes");
        assert!(!kept.contains("uv_secret"));
    }

    #[test]
    fn a_scope_covers_its_read_scope_but_not_the_reverse() {
        assert!(allows(["intents"], Scope("intents")));
        assert!(allows(["intents"], Scope("intents:read")));
        assert!(allows(["intents:read"], Scope("intents:read")));
        assert!(!allows(["intents:read"], Scope("intents")));
        assert!(allows(["*"], Scope("intents")));
        assert!(!allows(["payments", "intent"], Scope("intents:read")));
        assert!(!allows([], Scope("intents")));
    }

    #[test]
    fn a_scope_is_known_only_in_the_spelling_of_the_list() {
        for scope in SCOPES {
            assert!(is_known_scope(scope), "{scope}");
        }
        for scope in ["", "intent", "Intents", "intents ", "intents:write", "payments:read", "*:read"] {
            assert!(!is_known_scope(scope), "{scope:?}");
        }
    }

    #[test]
    fn the_bearer_scheme_is_case_insensitive() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        for header in ["abc", "Basic abc", "Bearer", "Bearer ", ""] {
            assert_eq!(bearer(header), None, "{header}");
        }
    }

    #[test]
    fn a_key_id_is_sixteen_hex_digits() {
        assert!(KeyId::parse("0123456789abcdef").is_some());
        assert!(KeyId::parse("0123456789ABCDEF").is_none());
        assert!(KeyId::parse("0123").is_none());
    }
}
