//! The representations of a message for callers.

use serde::Serialize;
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::MessageId;
use super::ledger::Entry;
use super::row::{IntentRef, MessageRow};
use crate::channels::Channel;
use crate::codes::Reason;
use crate::delivery::State;
use crate::intents::BlockedBy;
use crate::queue::Priority;
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

/// The response of `GET /outbound/messages/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessageView {
    pub message_id: MessageId,
    pub status: State,
    pub reason_code: Option<String>,
    pub channel: Channel,
    pub sender: String,
    pub to: String,
    pub priority: Priority,
    pub attempts: u32,
    pub send_at: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
    pub intent: Option<IntentRef>,
    pub metadata: Option<Value>,
    pub provider_id: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub sent_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
    pub bounced_at: Option<Timestamp>,
    pub complained_at: Option<Timestamp>,
    pub rejected_at: Option<Timestamp>,
    pub decisions: Vec<Entry>,
}

impl From<MessageRow> for MessageView {
    fn from(row: MessageRow) -> Self {
        Self {
            message_id: row.id,
            status: row.delivery.state,
            reason_code: row.delivery.reason,
            channel: row.channel,
            sender: row.sender,
            to: row.to,
            priority: row.priority,
            attempts: row.delivery.attempt,
            send_at: row.send_at,
            not_after: row.not_after,
            intent: row.intent,
            metadata: row.metadata.and_then(|text| serde_json::from_str(&text).ok()),
            provider_id: row.delivery.provider_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
            sent_at: row.delivery.sent_at,
            delivered_at: row.marks.delivered_at,
            bounced_at: row.marks.bounced_at,
            complained_at: row.marks.complained_at,
            rejected_at: row.marks.rejected_at,
            decisions: row.ledger,
        }
    }
}
