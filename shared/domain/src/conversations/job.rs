//! What the queue of conversations carries: tagged and versioned, because a message may be in a queue over a deployment.

use serde::{Deserialize, Serialize};

use super::identity::ConversationId;
use crate::outbox::Emit;
use crate::queue::Unreadable;
use crate::time::Timestamp;

/// The queue's name, as rows say it.
pub const QUEUE: &str = "conversations";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Body {
    Wake { v: u32, conversation_id: String, received: u64 },
}

/// Look at a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUp {
    pub conversation: ConversationId,
    /// How many messages had been received when it was decided on: once there are more, one of them wakes later.
    pub received: u64,
}

const UNREADABLE: Unreadable = Unreadable("a wake-up");

impl WakeUp {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(Body::Wake { v: 1, conversation_id, received }) => {
                let conversation = ConversationId::parse(&conversation_id).ok_or(UNREADABLE)?;
                Ok(Self { conversation, received })
            }
            _ => Err(UNREADABLE),
        }
    }

    /// As a queue carries it.
    pub fn body(&self) -> String {
        let conversation_id = self.conversation.as_str();
        serde_json::json!({"kind": "wake", "v": 1, "conversation_id": conversation_id, "received": self.received})
            .to_string()
    }

    /// Emitted by a row under this name; `seq` is greater than that of any emission of the row before.
    pub fn emit(&self, name: &str, seq: u64, not_before: Timestamp) -> Emit {
        Emit {
            seq,
            queue: QUEUE.to_owned(),
            not_before: Some(not_before.millis()),
            id: format!("{}/{name}/{seq}", self.conversation),
            body: self.body(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_released_form_is_read() {
        let conversation = ConversationId::parse("conv_0123456789abcdef0123456789abcdef").expect("an id");
        let v1 = r#"{"kind":"wake","v":1,"conversation_id":"conv_0123456789abcdef0123456789abcdef","received":7}"#;
        let wake = WakeUp { conversation, received: 7 };
        assert_eq!(WakeUp::read(v1), Ok(wake.clone()));
        assert_eq!(WakeUp::read(&wake.body()), Ok(wake.clone()));
        let emit = wake.emit("state", 3, Timestamp::from_millis(5));
        assert_eq!((emit.seq, emit.queue.as_str(), emit.not_before), (3, QUEUE, Some(5)));
        assert_eq!(emit.id, "conv_0123456789abcdef0123456789abcdef/state/3");
    }

    #[test]
    fn a_form_of_the_future_is_not_guessed_at() {
        for body in ["", "{}", r#"{"kind":"wake","v":2,"conversation_id":"conv_0","received":1}"#] {
            assert_eq!(WakeUp::read(body), Err(UNREADABLE), "{body}");
        }
    }
}
