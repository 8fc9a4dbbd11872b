//! The representations of a message for callers.

use serde::Serialize;
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::MessageId;
use super::row::MessageRow;
use crate::codes::Reason;
use crate::delivery::State;
use crate::intents::BlockedBy;
use crate::time::Timestamp;

/// The answer to `POST /outbound/messages`. A retry of the request gets the same answer.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptAnswer {
    pub message_id: MessageId,
    pub status: State,
    pub send_at: Option<Timestamp>,
    pub fingerprint: Option<String>,
    pub reason_code: Option<Reason>,
    pub blocked_by: Option<BlockedBy>,
    pub next_eligible_at: Option<Timestamp>,
}

impl AcceptAnswer {
    pub fn of(row: &MessageRow) -> Self {
        let fingerprint = row.intent.as_ref().map(|intent| intent.fingerprint.clone());
        let queued = Self {
            message_id: row.id.clone(),
            status: State::Queued,
            send_at: row.send_at,
            fingerprint,
            reason_code: None,
            blocked_by: None,
            next_eligible_at: None,
        };
        let Some(deduped) = &row.deduped else { return queued };
        Self {
            status: State::Deduped,
            send_at: None,
            reason_code: Some(Reason::IntentDuplicate),
            blocked_by: Some(BlockedBy {
                holder: deduped.holder.clone(),
                fingerprint: deduped.fingerprint.clone(),
                reference_id: deduped.reference_id.clone(),
                since: deduped.since,
            }),
            next_eligible_at: Some(deduped.next_eligible_at),
            ..queued
        }
    }

    /// Returns 202 if the message will be sent, and 200 if it was deduplicated and nothing will be
    /// sent.
    pub fn http_status(&self) -> u16 {
        if self.status == State::Deduped { 200 } else { 202 }
    }
}

impl MessageRow {
    /// Returns the message as `GET /outbound/messages/{id}` returns it, without its content.
    pub fn view(&self) -> Value {
        let metadata = self.metadata.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        json!({
            "message_id": self.id,
            "status": self.delivery.state,
            "reason_code": self.delivery.reason,
            "channel": self.channel,
            "sender": self.sender,
            "to": self.to,
            "priority": self.priority,
            "attempts": self.delivery.attempt,
            "send_at": self.send_at,
            "not_after": self.not_after,
            "intent": self.intent,
            "metadata": metadata,
            "provider_id": self.delivery.provider_id,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "sent_at": self.delivery.sent_at,
            "delivered_at": self.marks.delivered_at,
            "bounced_at": self.marks.bounced_at,
            "complained_at": self.marks.complained_at,
            "rejected_at": self.marks.rejected_at,
            "decisions": self.ledger,
        })
    }
}
