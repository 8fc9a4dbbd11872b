//! What an `Idempotency-Key` means: the same key with the same body is the same request.

use std::collections::BTreeMap;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::access::KeyId;

/// The longest key that is accepted, in bytes.
pub const MAX_KEY: usize = 255;

/// A key that can be stored and shown: visible ASCII, 1 to 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=MAX_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What distinguishes a request from others of the same caller on the same path.
#[derive(Debug, Clone, Copy)]
pub enum KnownBy<'a> {
    /// The `Idempotency-Key` that the caller sent: the same key is the same request.
    Key(&'a IdempotencyKey),
    /// The id that the request got on arrival: each request is a separate one.
    Request(&'a str),
}

/// Returns the key under which a request is stored. It is a hash of the API key's id, the route,
/// the parameters of the path and the `Idempotency-Key`. The same key from two callers, on two
/// routes or for two resources is therefore two requests. An `Idempotency-Key` that looks like a
/// request id still counts as a key.
pub fn request_key(caller: &KeyId, route: &str, path: &BTreeMap<&str, &str>, known_by: KnownBy<'_>) -> String {
    let (kind, text) = match known_by {
        KnownBy::Key(key) => ("key", key.as_str()),
        KnownBy::Request(id) => ("request", id),
    };
    // Join the parts as JSON, because callers choose the text of paths and keys: no two different
    // requests result in the same text.
    body_hash(json!([caller, route, path, kind, text]).to_string().as_bytes())
}

/// How a stored record relates to a request with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The same request again: answer as before.
    Same,
    /// The key was used for another request.
    OtherBody,
}

impl Replay {
    /// Compares the hash of the stored body with the hash of the requested body.
    pub fn of(stored_hash: &str, asked_hash: &str) -> Self {
        if stored_hash == asked_hash { Self::Same } else { Self::OtherBody }
    }
}

/// Returns the hash that identifies a body: 128 bits of its SHA-256, as hex. It compares bytes, not
/// meaning.
pub fn body_hash(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;

    #[test]
    fn an_idempotency_key_is_visible_ascii_of_limited_length() {
        assert!(IdempotencyKey::parse("order-77/É").is_none());
        assert!(IdempotencyKey::parse("").is_none());
        assert!(IdempotencyKey::parse("a b").is_none());
        assert!(IdempotencyKey::parse(&"k".repeat(256)).is_none());
        assert_eq!(IdempotencyKey::parse(&"k".repeat(255)).map(|key| key.as_str().len()), Some(255));
    }

    #[test]
    fn a_request_is_identified_by_caller_path_and_key() {
        let (a, b) = (PresentedKey::of("a").id, PresentedKey::of("b").id);
        let key = IdempotencyKey::parse("order-77").expect("a key");
        let of =
            |caller, route, id: &str| request_key(caller, route, &BTreeMap::from([("id", id)]), KnownBy::Key(&key));
        let stored = of(&a, "POST /mailings/{id}/test", "1");
        assert_eq!(stored, "5188265691fc1978e04ba622778c483e");
        for other in [
            of(&b, "POST /mailings/{id}/test", "1"),
            of(&a, "POST /mailings/{id}/retry_failed", "1"),
            of(&a, "POST /mailings/{id}/test", "2"),
            request_key(&a, "POST /mailings/{id}/test", &BTreeMap::from([("id", "1")]), KnownBy::Request("order-77")),
        ] {
            assert_ne!(other, stored);
        }
    }

    #[test]
    fn a_replay_must_have_the_same_body_bytes() {
        assert_eq!(Replay::of(&body_hash(b"{}"), &body_hash(b"{}")), Replay::Same);
        assert_eq!(Replay::of(&body_hash(b"{}"), &body_hash(b"{ }")), Replay::OtherBody);
    }
}
