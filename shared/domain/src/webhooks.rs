//! Verifies requests from outside and signs our own requests.
//!
//! A request is verified over its raw bytes before anything reads them. While a secret is being
//! rotated, two secrets are valid at once. An empty secret matches nothing. The time that a
//! comparison takes reveals nothing about a secret.

pub mod jwt;
pub mod secrets;
pub mod standard;

pub use secrets::{Verified, WebhookSecrets};

use hmac::digest::Key;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// Returns HMAC-SHA256 with a key of any length, as RFC 2104 specifies: a key that is longer than a
/// block is hashed first.
fn mac(key: &[u8]) -> Hmac<Sha256> {
    let mut block = Key::<Hmac<Sha256>>::default();
    match block.get_mut(..key.len()) {
        Some(start) => start.copy_from_slice(key),
        None => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    Hmac::new(&block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_hmac_equals_the_hmac_crate_for_keys_of_any_length() {
        for length in [0, 1, 32, 63, 64, 65, 200] {
            let key = vec![7; length];
            let mut theirs = <Hmac<Sha256> as Mac>::new_from_slice(&key).expect("any length");
            let mut ours = mac(&key);
            theirs.update(b"Oi");
            ours.update(b"Oi");
            assert_eq!(ours.finalize().into_bytes(), theirs.finalize().into_bytes(), "{length}");
        }
    }
}
