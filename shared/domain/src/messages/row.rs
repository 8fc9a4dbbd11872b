//! The row of a message, and what callers see of it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::absent::is_default;
use crate::channels::Channel;
use crate::channels::content::Content;
use crate::codes::{Decision, Reason};
use crate::delivery::{Progress, State};
use crate::intents::{BlockedBy, CheckAnswer};
use crate::keys::{self, Wake};
use crate::messages::ledger::Entry;
use crate::messages::{MessageId, NewMessage};
use crate::outbox::Emit;
use crate::queue;
use crate::queue::Priority;
use crate::time::Timestamp;
use crate::work::{Due, due};

/// Content up to this many bytes of JSON is in the message's own row; more is in a row of its own, because every change
/// of state pays for the whole row.
pub const INLINE_CONTENT: usize = 2 * 1024;

/// A message that was handed to its queue is looked for when nobody has taken it on for this long.
pub const CHECK_AFTER_MS: i64 = 10 * 60 * 1_000;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageRow {
    pub id: MessageId,
    /// The API key that asked for it.
    pub caller: String,
    pub body_hash: String,
    pub channel: Channel,
    pub sender: String,
    pub to: String,
    pub priority: Priority,
    /// `None`: in a row of its own.
    pub content: Option<Content>,
    /// The caller's own, as JSON text.
    pub metadata: Option<String>,
    pub state: State,
    /// The last attempt that was begun.
    pub attempt: u32,
    /// Attempts that do not count as tries: those that met a limit, and those before an order to send it again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tries_from: u32,
    /// An earlier attempt that may have been sent, though there was another after it. While there is one, the message cannot
    /// end as one that was not sent.
    pub doubt: Option<u32>,
    /// An earlier attempt that was sent, as its provider told while a later one was under way.
    pub sent_attempt: Option<u32>,
    /// The attempt that was under way when the message was canceled. There is no other attempt after it, unless an operator
    /// orders to send it again.
    pub recalled: Option<u32>,
    /// The attempt that its provider took and then did not send: nothing proves it sent any more.
    pub rejected_attempt: Option<u32>,
    pub send_at: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
    /// The next attempt is not made before this, whoever asks for it.
    pub not_before: Option<Timestamp>,
    pub intent: Option<IntentRef>,
    pub deduped: Option<Deduped>,
    /// Why it stands as it does: a code.
    pub reason: Option<String>,
    /// What the provider calls it.
    pub provider_id: Option<String>,
    pub sent_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
    pub bounced_at: Option<Timestamp>,
    pub complained_at: Option<Timestamp>,
    pub rejected_at: Option<Timestamp>,
    /// Milliseconds; an attempt without an answer by then is unknown.
    pub deadline: Option<i64>,
    /// Which sender began the attempt.
    pub claim: Option<String>,
    /// Only while nobody has taken it on: rows without one do not wake the relay.
    pub emit: Option<Emit>,
    /// What a sweep will emit when its time has come.
    pub later: Option<Emit>,
    /// Who is told when it is settled, or when nobody knows what became of it.
    pub then: Option<Then>,
    /// The sequence number of its last emission, made or prepared.
    pub emits: u64,
    /// The index by time: what it waits for, and since or until when.
    pub wake: Option<String>,
    pub wake_at: Option<String>,
    /// How often it had to be handed to its queue again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recoveries: u32,
    /// The indexes by recipient and by client, both in the order of acceptance.
    pub recipient: String,
    pub client: Option<String>,
    pub asked_at: String,
    /// The orders to send it again: which requests they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resends: Vec<Resend>,
    pub ledger: Vec<Entry>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    /// Seconds; when TTL may remove it. Only what is settled for good has one.
    pub expires_at: Option<i64>,
}

/// Work that follows from the end of a message, whatever that is: the write that ends it emits it.
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

/// The intent that a message holds, and what it takes to take it again.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRef {
    pub client_id: String,
    pub intent_type: String,
    pub reference_id: Option<String>,
    pub fingerprint: String,
    /// The sort key of the guard row that was taken with it.
    pub guard: Option<String>,
}

/// An order to send a message again. Hashes, because callers choose the text of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resend {
    pub key: String,
    pub body: String,
    /// The attempt that it came after.
    pub after: u32,
}

/// Content in a row of its own. It outlasts its message, and is gone some day even if nobody settles that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRow {
    #[serde(flatten)]
    pub content: Content,
    pub expires_at: i64,
}

/// Why a message was not taken in.
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
    /// A message that is taken in at `now`, and handed to its queue or to the index of what is due later.
    pub fn accepted(new: &NewMessage, now: Timestamp) -> Self {
        let mut row = Self::blank(new, now);
        let entry = Entry::new(now, Decision::Accepted);
        let entry = match new.send_at.filter(|at| *at > now) {
            Some(at) => entry.rule("send_at").until(at),
            None => entry,
        };
        row.ledger.push(match &row.intent {
            Some(intent) => entry.matched(format!("intent:{}", intent.fingerprint)),
            None => entry,
        });
        row.hand_over(due(new.send_at, now), now, 1);
        row
    }

    /// A message that was not taken in, because its intention is another's.
    pub fn deduped(new: &NewMessage, blocked: &CheckAnswer, retention_days: i64, now: Timestamp) -> Self {
        let mut row = Self::blank(new, now);
        row.state = State::Deduped;
        row.reason = Some(Reason::IntentDuplicate.as_str().to_owned());
        let by = blocked.blocked_by.clone().unwrap_or_else(|| BlockedBy {
            holder: blocked.holder.clone(),
            fingerprint: blocked.fingerprint.clone(),
            reference_id: blocked.reference_id.clone(),
            since: now,
        });
        let rule = format!("intent:{}:{}d", blocked.intent_type, blocked.window_days);
        row.ledger.push(
            Entry::new(now, Decision::Deduped)
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
            state: State::Queued,
            attempt: 0,
            tries_from: 0,
            doubt: None,
            sent_attempt: None,
            recalled: None,
            rejected_attempt: None,
            send_at: new.send_at,
            not_after: new.not_after,
            not_before: None,
            intent: hold.map(|row| IntentRef {
                client_id: row.client_id.clone(),
                intent_type: row.intent_type.clone(),
                reference_id: row.reference_id.clone(),
                fingerprint: row.fingerprint.clone(),
                guard: row.guard.clone(),
            }),
            deduped: None,
            reason: None,
            provider_id: None,
            sent_at: None,
            delivered_at: None,
            bounced_at: None,
            complained_at: None,
            rejected_at: None,
            deadline: None,
            claim: None,
            emit: None,
            later: None,
            then: new.then.clone(),
            emits: 0,
            wake: None,
            wake_at: None,
            recoveries: 0,
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

    /// Emits it now, or leaves it to the sweep; in both cases it is in the index by time.
    fn hand_over(&mut self, due: Due, now: Timestamp, seq: u64) {
        let handed = HandOver::of(&self.id, self.priority, due, now, seq);
        self.emits = seq;
        (self.emit, self.later) = (handed.emit, handed.later);
        (self.wake, self.wake_at) = (Some(handed.wake), Some(handed.wake_at));
    }

    pub fn progress(&self) -> Progress {
        Progress {
            state: self.state,
            attempt: self.attempt,
            tries_from: self.tries_from,
            send_at: self.send_at.max(self.not_before),
            not_after: self.not_after,
        }
    }

    /// Too late to be sent.
    pub fn is_late(&self, now: Timestamp) -> bool {
        self.not_after.is_some_and(|not_after| not_after < now)
    }

    /// Since when it could have been sent.
    pub fn due_since(&self) -> Timestamp {
        self.send_at.map_or(self.created_at, |at| at.max(self.created_at))
    }
}

/// How a message gets to its sender: emitted at once, or by a sweep at its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    pub emit: Option<Emit>,
    pub later: Option<Emit>,
    pub wake: String,
    pub wake_at: String,
}

impl HandOver {
    pub fn of(id: &MessageId, priority: Priority, due: Due, now: Timestamp, seq: u64) -> Self {
        let shard = keys::wake_shard(id.as_str());
        match due {
            Due::Emitted { not_before } => {
                let from = not_before.map_or(now, |at| now.max(Timestamp::from_millis(at)));
                Self {
                    emit: Some(queue::emit_message(id, priority, seq, not_before)),
                    later: None,
                    wake: keys::wake(Wake::Check, shard),
                    wake_at: keys::at_time(from.plus_ms(CHECK_AFTER_MS), id.as_str()),
                }
            }
            Due::Indexed { due_at } => Self {
                emit: None,
                later: Some(queue::emit_message(id, priority, seq, Some(due_at))),
                wake: keys::wake(Wake::Due, shard),
                wake_at: keys::at_time(Timestamp::from_millis(due_at), id.as_str()),
            },
        }
    }
}

/// When to look for a message again that was handed to its queue for the n-th time: each time later than before.
pub fn check_after_ms(recoveries: u32) -> i64 {
    CHECK_AFTER_MS << recoveries.min(6)
}

/// The answer to `POST /outbound/messages`, the same whenever it is asked again.
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

    /// 202: it will be sent. 200: it was decided, and nothing will be.
    pub fn http_status(&self) -> u16 {
        if self.status == State::Deduped { 200 } else { 202 }
    }
}

/// A message as `GET /outbound/messages/{id}` shows it.
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
            status: row.state,
            reason_code: row.reason,
            channel: row.channel,
            sender: row.sender,
            to: row.to,
            priority: row.priority,
            attempts: row.attempt,
            send_at: row.send_at,
            not_after: row.not_after,
            intent: row.intent,
            metadata: row.metadata.and_then(|text| serde_json::from_str(&text).ok()),
            provider_id: row.provider_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
            sent_at: row.sent_at,
            delivered_at: row.delivered_at,
            bounced_at: row.bounced_at,
            complained_at: row.complained_at,
            rejected_at: row.rejected_at,
            decisions: row.ledger,
        }
    }
}
