//! The identity of a message.

use crate::access::KeyId;
use crate::id::hash_id;

hash_id! {
    /// The id of a message.
    MessageId = "msg_", 32
}

impl MessageId {
    /// Hashes the caller's id together with the caller's own key for the message, so the same key
    /// from two callers names two messages.
    pub fn of(caller: &KeyId, key: &str) -> Self {
        Self::hash(&format!("{caller}:{key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;

    #[test]
    fn the_same_key_from_two_callers_is_two_messages() {
        let (a, b) = (PresentedKey::of("a").id, PresentedKey::of("b").id);
        assert_eq!(MessageId::of(&a, "order-77"), MessageId::of(&a, "order-77"));
        assert_ne!(MessageId::of(&a, "order-77"), MessageId::of(&b, "order-77"));
        assert_eq!(MessageId::of(&a, "x").as_str().len(), 36);
    }
}
