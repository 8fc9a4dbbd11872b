//! The row of a message.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::absent::is_default;
use crate::channels::Channel;
use crate::channels::content::Content;
use crate::codes::{Decision, Reason};
use crate::delivery::{Delivery, Marks, State, Window};
use crate::intents::{BlockedBy, CheckAnswer, IntentRow};
use crate::keys;
use crate::messages::ledger::LedgerEntry;
use crate::messages::{MessageId, NewMessage};
use crate::outbox::Emit;
use crate::queue;
use crate::queue::Priority;
use crate::time::Timestamp;
use crate::work::Work;

/// Content of up to this many bytes of JSON is stored in the message's own row. Larger content has
/// a row of its own, because every change of state pays for the whole row.
pub const INLINE_CONTENT: usize = 2 * 1024;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageRow {
    pub id: MessageId,
    /// The API key that requested the message.
    pub caller: String,
    pub body_hash: String,
    pub channel: Channel,
    pub sender: String,
    pub to: String,
    pub priority: Priority,
    /// `None` if the content has a row of its own.
    pub content: Option<Content>,
    /// The caller's own data, as JSON text.
    pub metadata: Option<String>,
    #[serde(flatten)]
    pub delivery: Delivery,
    #[serde(flatten)]
    pub marks: Marks,
    pub send_at: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
    pub intent: Option<IntentRef>,
    pub deduped: Option<Deduped>,
    #[serde(flatten)]
    pub work: Work,
    /// The job to enqueue when the message is settled, or when its outcome becomes unknown.
    pub then: Option<Then>,
    /// The keys of the indexes by recipient and by client. Both are ordered by the time of
    /// acceptance.
    pub recipient: String,
    pub client: Option<String>,
    pub asked_at: String,
    /// The orders to send the message again, to recognize duplicates of their requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resends: Vec<Resend>,
    pub ledger: Vec<LedgerEntry>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    /// When TTL may remove the row, in seconds. Only a message that is settled for good has this.
    pub expires_at: Option<i64>,
}

/// The job that follows the end of a message, whatever the end is. The write that ends the message
/// emits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Then {
    pub queue: String,
    pub body: String,
}

impl Then {
    pub fn emit(&self, message_id: &MessageId, seq: u64) -> Emit {
        let id = format!("{message_id}/ended/{seq}");
        Emit { seq, queue: self.queue.clone(), not_before: None, id, body: self.body.clone() }
    }
}

/// The intent that a message holds, with the data that is needed to hold it again.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRef {
    pub client_id: String,
    pub intent_type: String,
    pub reference_id: Option<String>,
    pub fingerprint: String,
    /// The sort key of the guard row that was taken with it.
    pub guard: Option<String>,
    /// Whether the window counts from the send, so that a claim moves the hold in the guard.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rolling: bool,
}

impl From<&IntentRow> for IntentRef {
    fn from(row: &IntentRow) -> Self {
        Self {
            client_id: row.client_id.clone(),
            intent_type: row.intent_type.clone(),
            reference_id: row.reference_id.clone(),
            fingerprint: row.fingerprint.clone(),
            guard: row.guard.clone(),
            rolling: row.rolling,
        }
    }
}

/// An order to send a message again. Key and body are hashes, because callers choose the text of
/// their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resend {
    pub key: String,
    pub body: String,
    /// The last attempt before the order.
    pub after: u32,
}

/// Content in a row of its own. It is kept longer than its message, and expires even if the message
/// is never settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRow {
    #[serde(flatten)]
    pub content: Content,
    pub expires_at: i64,
}

/// The reason why a message was not accepted: another holder has its intent.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deduped {
    pub holder: String,
    pub fingerprint: String,
    pub reference_id: Option<String>,
    pub since: Timestamp,
    pub next_eligible_at: Timestamp,
}

impl MessageRow {
    /// Accepts a message at `now`. The message is enqueued, or put into the index of scheduled
    /// messages.
    pub fn accepted(new: &NewMessage, now: Timestamp) -> Self {
        let mut row = Self::blank(new, now);
        let entry = LedgerEntry::new(now, Decision::Accepted);
        let entry = match new.send_at.filter(|at| *at > now) {
            Some(at) => entry.rule("send_at").until(at),
            None => entry,
        };
        row.ledger.push(match &row.intent {
            Some(intent) => entry.matched(format!("intent:{}", intent.fingerprint)),
            None => entry,
        });
        row.schedule(new.send_at, now);
        row
    }

    /// Builds the row of a message that was not accepted, because another holder has its intent.
    pub fn deduped(new: &NewMessage, blocked: &CheckAnswer, retention_days: i64, now: Timestamp) -> Self {
        let mut row = Self::blank(new, now);
        row.delivery.state = State::Deduped;
        row.delivery.reason = Some(Reason::IntentDuplicate.as_str().to_owned());
        let by = blocked.blocked_by.clone().unwrap_or_else(|| BlockedBy {
            holder: blocked.holder.clone(),
            fingerprint: blocked.fingerprint.clone(),
            reference_id: blocked.reference_id.clone(),
            since: now,
        });
        let rule = format!("intent:{}:{}d", blocked.intent_type, blocked.window_days);
        row.ledger.push(
            LedgerEntry::new(now, Decision::Deduped)
                .reason(Reason::IntentDuplicate.as_str())
                .rule(rule)
                .matched(by.holder.clone())
                .until(blocked.next_eligible_at),
        );
        row.deduped = Some(Deduped {
            holder: by.holder,
            fingerprint: by.fingerprint,
            reference_id: by.reference_id,
            since: by.since,
            next_eligible_at: blocked.next_eligible_at,
        });
        row.expires_at = Some(now.plus_days(retention_days).seconds());
        row
    }

    fn blank(new: &NewMessage, now: Timestamp) -> Self {
        let hold = new.hold.as_ref().map(|hold| &hold.row);
        Self {
            id: new.id.clone(),
            caller: new.caller.clone(),
            body_hash: new.body_hash.clone(),
            channel: new.content.channel(),
            sender: new.sender.clone(),
            to: new.to.clone(),
            priority: new.priority,
            content: (!new.content_is_apart()).then(|| new.content.clone()),
            metadata: new.metadata.clone(),
            delivery: Delivery::default(),
            marks: Marks::default(),
            send_at: new.send_at,
            not_after: new.not_after,
            intent: hold.map(IntentRef::from),
            deduped: None,
            work: Work::default(),
            then: new.then.clone(),
            recipient: keys::recipient(new.content.channel().as_str(), &new.to),
            client: hold.map(|row| row.client_id.clone()),
            asked_at: keys::at_time(now, new.id.as_str()),
            resends: Vec::new(),
            ledger: Vec::new(),
            created_at: now,
            updated_at: now,
            version: 1,
            expires_at: None,
        }
    }

    /// Enqueues the message if `at` is near, or schedules it for later.
    pub(super) fn schedule(&mut self, at: Option<Timestamp>, now: Timestamp) {
        let (id, priority) = (&self.id, self.priority);
        self.work.schedule(id.as_str(), at, now, |seq, not_before| queue::emit_message(id, priority, seq, not_before));
    }

    /// Returns the times between which the caller wants the message to be sent.
    pub fn window(&self) -> Window {
        Window { not_before: self.send_at, not_after: self.not_after }
    }

    /// Returns the time from which the message could have been sent.
    pub fn due_since(&self) -> Timestamp {
        self.send_at.map_or(self.created_at, |at| at.max(self.created_at))
    }
}
