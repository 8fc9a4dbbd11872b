//! The holder of an intent. If the same holder asks again, it may send: a lost response does not
//! block its own caller.

use std::fmt;

use crate::access::KeyId;
use crate::idempotency::IdempotencyKey;
use crate::messages::MessageId;

/// The holder of an intent. Rows and responses have it as one text, whose first word is the kind of
/// holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A caller's `Idempotency-Key`, which is meaningful only together with the API key that sent
    /// it.
    IdempotencyKey { caller: KeyId, key: IdempotencyKey },
    /// One request without a key. No other request is this holder.
    Request(String),
    /// A message. It holds its intent from its acceptance on, and releases it if it ends without
    /// being sent.
    Message(MessageId),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdempotencyKey { caller, key } => write!(f, "key:{caller}:{}", key.as_str()),
            Self::Request(id) => write!(f, "request:{id}"),
            Self::Message(id) => write!(f, "message:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::PresentedKey;

    #[test]
    fn the_same_key_from_two_callers_is_two_holders() {
        let key = IdempotencyKey::parse("order-77").expect("a key");
        let holder =
            |secret| Holder::IdempotencyKey { caller: PresentedKey::of(secret).id, key: key.clone() }.to_string();
        assert_ne!(holder("a"), holder("b"));
        assert_eq!(holder("a"), holder("a"));
        assert!(holder("a").starts_with("key:") && holder("a").ends_with(":order-77"));
    }
}
