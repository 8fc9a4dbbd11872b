//! What a message is known by.

use sha2::{Digest, Sha256};

use crate::access::KeyId;

/// The caller's own key for the message, hashed with the caller: the same key from two callers is two messages.
pub fn message_id(caller: &KeyId, key: &str) -> String {
    let hash = Sha256::digest(format!("{caller}:{key}").as_bytes());
    format!("msg_{}", hex::encode(&hash[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;

    #[test]
    fn one_key_of_two_callers_is_two_messages() {
        let (a, b) = (PresentedKey::of("a").id, PresentedKey::of("b").id);
        assert_eq!(message_id(&a, "order-77"), message_id(&a, "order-77"));
        assert_ne!(message_id(&a, "order-77"), message_id(&b, "order-77"));
        assert_eq!(message_id(&a, "x").len(), 36);
    }
}
