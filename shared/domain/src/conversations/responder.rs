//! Builds the request to a responder about a batch, and the messages of its reply.

use serde_json::{Value, json};

use super::identity::{BatchId, Via};
use super::rows::{ConversationRow, StoredMessage};
use crate::channels::content::{Telegram, Whatsapp};
use crate::channels::{Content, HttpCall};
use crate::idempotency::body_hash;
use crate::messages::NewMessage;
use crate::messages::Then;
use crate::queue::{CONVERSATIONS_QUEUE, Priority, WakeUp};
use crate::senders::instances::InstanceRow;
use crate::time::Timestamp;
use crate::webhooks::standard;

/// The `caller` of a message that is a reply. Other messages have the id of an API key there.
const CALLER: &str = "conversation";

/// Returns the request about a batch with these messages, in this order, signed as Standard
/// Webhooks specifies. Its id is the id of the batch, so a retry has the same id.
pub fn question(
    conversation: &ConversationRow,
    batch: &BatchId,
    messages: &[StoredMessage],
    settings: &InstanceRow,
    keys: &[&[u8]],
    now: Timestamp,
) -> HttpCall {
    let body = json!({
        "conversation_id": batch.conversation.as_str(),
        "batch_id": batch.to_string(),
        "channel": conversation.channel,
        "instance": conversation.instance,
        "contact": conversation.contact,
        "name": conversation.name,
        "messages": messages.iter().map(message).collect::<Vec<_>>(),
        "history_limit": settings.history_limit,
        "attempt": conversation.course.attempts,
    })
    .to_string();
    let signed = standard::sign(keys, &batch.to_string(), now, body.as_bytes());
    let headers = vec![
        ("content-type", "application/json".to_owned()),
        ("webhook-id", signed.id),
        ("webhook-timestamp", signed.timestamp.to_string()),
        ("webhook-signature", signed.signature),
    ];
    HttpCall { method: "POST", path: String::new(), headers, body }
}

/// Returns the number of bytes of JSON that a message adds to a question, with the comma before it.
pub(super) fn size(stored: &StoredMessage) -> usize {
    message(stored).to_string().len() + 1
}

fn message(stored: &StoredMessage) -> Value {
    json!({
        "number": stored.number,
        "message_id": stored.message_id,
        "kind": stored.kind,
        "text": stored.text,
        "media": stored.media,
        "sent_at": stored.sent_at,
        "received_at": stored.received_at,
    })
}

/// Returns the message for a part of a reply: the `handed`-th message that this batch hands over.
/// The end of the message wakes the conversation. `None` if the channel is `Api`: the caller who
/// submitted the messages takes the reply.
pub fn reply_message(conversation: &ConversationRow, batch: &BatchId, handed: u32, text: &str) -> Option<NewMessage> {
    let text = Some(text.to_owned());
    let content = match conversation.channel {
        Via::Telegram => Content::Telegram(Telegram { text, parse_mode: None, media: None, buttons: None }),
        Via::Whatsapp => Content::Whatsapp(Whatsapp { text, media: None }),
        Via::Api => return None,
    };
    let wake = WakeUp { conversation: conversation.id.clone(), received: conversation.course.received };
    let metadata = json!({"conversation_id": conversation.id, "batch_id": batch.to_string()}).to_string();
    Some(NewMessage {
        id: batch.message_id(handed),
        caller: CALLER.to_owned(),
        body_hash: body_hash(metadata.as_bytes()),
        sender: conversation.instance.clone(),
        to: conversation.contact.clone(),
        content,
        // The contact waits for the reply.
        priority: Priority::Start,
        hold: None,
        send_at: None,
        not_after: None,
        metadata: Some(metadata),
        then: Some(Then { queue: CONVERSATIONS_QUEUE.to_owned(), body: wake.body() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::inbound::MessageKind;
    use crate::conversations::{Author, ConversationRow};

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn stored() -> StoredMessage {
        StoredMessage {
            message_id: "7".into(),
            place: "IN#0000000001".into(),
            number: Some(1),
            author: Author::Contact,
            kind: MessageKind::Text,
            text: Some("Oi".into()),
            media: None,
            sent_at: None,
            received_at: NOW,
            emit: None,
            expires_at: 0,
        }
    }

    fn asked(key: &[u8], messages: &[StoredMessage]) -> HttpCall {
        let mut row = ConversationRow::new(Via::Telegram, "default", "42", NOW);
        row.course.claimed = 1;
        let batch = BatchId { conversation: row.id.clone(), number: 1 };
        let settings = InstanceRow::by_default(Via::Telegram, "default", NOW);
        question(&row, &batch, messages, &settings, &[key], NOW)
    }

    #[test]
    fn a_request_to_the_responder_is_signed_and_has_its_batch_id() {
        let call = asked(b"key", &[stored()]);
        let header = |name: &str| call.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str());
        let (id, at, signature) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
        let (id, at, signature) = (id.expect("an id"), at.expect("a time"), signature.expect("a signature"));
        let verify = |key: &[u8]| standard::verify(&[key], id, at, signature, call.body.as_bytes(), NOW, 300);
        assert!(verify(b"key") && !verify(b"other"));
        let body: Value = serde_json::from_str(&call.body).expect("JSON");
        assert_eq!(body["batch_id"], id);
        assert_eq!(body["messages"][0]["text"], "Oi");
    }

    #[test]
    fn each_further_message_makes_the_request_longer_by_exactly_its_size() {
        let length = |messages: &[StoredMessage]| asked(b"key", messages).body.len();
        assert_eq!(length(&[stored(), stored()]), length(&[stored()]) + size(&stored()));
    }

    #[test]
    fn a_reply_is_sent_by_its_instance_except_in_a_conversation_of_the_api() {
        let mut row = ConversationRow::new(Via::Whatsapp, "loja", "5511912345678", NOW);
        let batch = BatchId { conversation: row.id.clone(), number: 1 };
        let message = reply_message(&row, &batch, 1, "Oi").expect("a message");
        assert_eq!((message.sender.as_str(), message.to.as_str()), ("loja", "5511912345678"));
        assert_eq!((message.id, message.then.is_some()), (batch.message_id(1), true));
        row.channel = Via::Api;
        assert!(reply_message(&row, &batch, 1, "Oi").is_none());
    }
}
