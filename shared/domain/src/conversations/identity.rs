//! The ids of conversations, batches and replies.

use std::fmt;

use crate::codes::codes;
use crate::id::hash_id;
use crate::messages::MessageId;

codes! {
    /// The channel of a conversation.
    Via {
        Telegram = "telegram",
        Whatsapp = "whatsapp",
        /// Any other channel: a caller submits the messages and takes the replies.
        Api = "api",
    }
}

hash_id! {
    /// Identifies a conversation: one contact of one instance of one channel.
    ConversationId = "conv_", 32
}

impl ConversationId {
    /// Hashes the contact, because contacts come from outside and are personal data. Names of
    /// instances contain no separator.
    pub fn of(via: Via, instance: &str, contact: &str) -> Self {
        Self::hash(&format!("{via}/{instance}/{contact}"))
    }
}

/// Identifies a batch by the number of its last message: no two batches end with the same message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchId {
    pub conversation: ConversationId,
    pub number: u64,
}

impl BatchId {
    pub fn parse(text: &str) -> Option<Self> {
        let (conversation, number) = text.split_once('-')?;
        // Accept one form only, so that each id has exactly one text.
        let plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
        let number = number.parse().ok().filter(|_| plain)?;
        Some(Self { conversation: ConversationId::parse(conversation)?, number })
    }

    /// Returns the id of the message that the batch hands over as its `handed`-th, for a part of
    /// its reply.
    pub fn message_id(&self, handed: u32) -> MessageId {
        MessageId::hash(&format!("reply/{self}/{handed}"))
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.conversation, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_ids() {
        let id = ConversationId::of(Via::Whatsapp, "loja", "5511912345678");
        assert_eq!(id.as_str(), "conv_c331add7b09dd89c70f5e43c7445deec");
        let batch = BatchId { conversation: id, number: 12 };
        assert_eq!(batch.to_string(), "conv_c331add7b09dd89c70f5e43c7445deec-12");
        assert_eq!(batch.message_id(1).as_str(), "msg_32080810d20f3dcf39e0b620876c420d");
    }

    #[test]
    fn only_the_canonical_form_of_an_id_is_parsed() {
        let id = ConversationId::of(Via::Telegram, "default", "987654321");
        assert_eq!(ConversationId::parse(id.as_str()), Some(id.clone()));
        let batch = BatchId { conversation: id.clone(), number: 3 };
        assert_eq!(BatchId::parse(&batch.to_string()), Some(batch));
        for text in [format!("{id}-"), format!("{id}-03"), format!("{id}-+3"), format!("{id}-x"), "conv_0-1".to_owned()]
        {
            assert_eq!(BatchId::parse(&text), None, "{text}");
        }
        assert_eq!(ConversationId::parse("conv_ABCDEFABCDEFABCDEFABCDEFABCDEFAB"), None);
    }

    #[test]
    fn each_instance_of_a_channel_has_its_own_conversation() {
        let id = ConversationId::of(Via::Whatsapp, "loja", "5511912345678");
        assert_ne!(id, ConversationId::of(Via::Whatsapp, "loja2", "5511912345678"));
        assert_ne!(id, ConversationId::of(Via::Telegram, "loja", "5511912345678"));
    }
}
