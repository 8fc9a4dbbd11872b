//! What an `Idempotency-Key` means: the same key with the same body is the same request.

use sha2::{Digest, Sha256};

/// Longest key that is taken, in bytes.
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

/// What a stored record says to a request that brings the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The same request again: answer as before.
    Same,
    /// The key was used for something else.
    OtherBody,
}

pub fn judge(stored_hash: &str, asked_hash: &str) -> Replay {
    if stored_hash == asked_hash { Replay::Same } else { Replay::OtherBody }
}

/// The identity of a body: 128 bits of its SHA-256, as hex. Bytes are compared, not meanings.
pub fn body_hash(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii_of_bounded_length() {
        assert!(IdempotencyKey::parse("order-77/É").is_none());
        assert!(IdempotencyKey::parse("").is_none());
        assert!(IdempotencyKey::parse("a b").is_none());
        assert!(IdempotencyKey::parse(&"k".repeat(256)).is_none());
        assert_eq!(IdempotencyKey::parse(&"k".repeat(255)).map(|key| key.as_str().len()), Some(255));
    }

    #[test]
    fn the_same_bytes_are_the_same_request() {
        assert_eq!(judge(&body_hash(b"{}"), &body_hash(b"{}")), Replay::Same);
        assert_eq!(judge(&body_hash(b"{}"), &body_hash(b"{ }")), Replay::OtherBody);
    }
}
