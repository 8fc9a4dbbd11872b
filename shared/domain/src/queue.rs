//! The queues: the name of each, the bodies of its messages, and how rows emit them.
//!
//! Bodies are tagged and versioned, because a message may stay in a queue during a deployment. They
//! name rows and contain no data about the people behind them. The queues of backfills and imports
//! also receive S3 notifications about uploaded files.

use serde::{Deserialize, Serialize};

use crate::codes::codes;
use crate::conversations::ConversationId;
use crate::downsells::{ContactId, OfferId};
use crate::ingest::{BackfillId, backfill_of_object};
use crate::keys;
use crate::mailings::MailingId;
use crate::mailings::files::mailing_of_object;
use crate::messages::MessageId;
use crate::outbox::Emit;
use crate::time::Timestamp;
use crate::uploaded::{Uploaded, uploads};

/// The names of the queues, as rows store them. See [`queue`] for those of the send queues.
pub const BACKFILL_QUEUE: &str = "backfill";
pub const CONVERSATIONS_QUEUE: &str = "conversations";
pub const MAILING_IMPORT_QUEUE: &str = "mailing-import";
pub const MAILING_SEND_QUEUE: &str = "mailing-send";

/// The reader does not know the kind or version of a record from a queue or a stream. The error
/// says what was expected and never repeats the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be read as {0}")]
pub struct Unreadable(pub &'static str);

codes! {
    Priority {
        Start = "start",
        Shot = "shot",
        Downsell = "downsell",
    }
}

/// Returns the name of a priority's queue, as rows store it.
pub const fn queue(priority: Priority) -> &'static str {
    match priority {
        Priority::Start => "outbound-start",
        Priority::Shot => "outbound-shot",
        Priority::Downsell => "outbound-downsell",
    }
}

/// The bodies of all messages that rows emit.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Body {
    Message { v: u32, id: MessageId },
    Offer { v: u32, contact: ContactId, id: OfferId },
    Wake { v: u32, conversation_id: ConversationId, received: u64 },
    Backfill { v: u32, id: BackfillId },
    Import { v: u32, mailing_id: MailingId },
    HandOut { v: u32, mailing_id: MailingId },
    Shard { v: u32, mailing_id: MailingId, shard: u32, seq: Option<u64> },
}

impl Body {
    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Emits the body from a row, to be delivered no earlier than `not_before`. `seq` must be
    /// greater than that of any earlier emission of the row.
    fn emit(&self, queue: &str, seq: u64, not_before: Option<i64>, id: String) -> Emit {
        Emit { seq, queue: queue.to_owned(), not_before, id, body: self.text() }
    }
}

/// A message of the three send queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendJob {
    /// Send the message with this id, if it is still to be sent.
    Message { id: MessageId },
    /// Send the offer of a downsell with this id, if it may still be sent.
    Offer { contact: ContactId, id: OfferId },
}

impl SendJob {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(Body::Message { v: 1, id }) => Ok(Self::Message { id }),
            Ok(Body::Offer { v: 1, contact, id }) => Ok(Self::Offer { contact, id }),
            _ => Err(Unreadable("a send job")),
        }
    }
}

/// Enqueues a message. `seq` must be greater than that of any earlier emission of the row.
pub fn emit_message(id: &MessageId, priority: Priority, seq: u64, not_before: Option<i64>) -> Emit {
    Body::Message { v: 1, id: id.clone() }.emit(queue(priority), seq, not_before, format!("{id}/{seq}"))
}

/// Enqueues an offer. `seq` must be greater than that of any earlier emission of the row.
pub fn emit_offer(contact: &ContactId, id: &OfferId, seq: u64, not_before: Option<i64>) -> Emit {
    let body = Body::Offer { v: 1, contact: contact.clone(), id: id.clone() };
    body.emit(queue(Priority::Downsell), seq, not_before, format!("{id}/{seq}"))
}

/// A message of the conversations queue: check a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUp {
    pub conversation: ConversationId,
    /// How many messages the conversation had received when the wake-up was scheduled. If it has
    /// received more since, one of those schedules a later wake-up.
    pub received: u64,
}

impl WakeUp {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(Body::Wake { v: 1, conversation_id, received }) => Ok(Self { conversation: conversation_id, received }),
            _ => Err(Unreadable("a wake-up")),
        }
    }

    /// Returns the body of the queue message.
    pub fn body(&self) -> String {
        self.to_body().text()
    }

    /// Emits the wake-up from a row, under this name. `seq` must be greater than that of any
    /// earlier emission of the row.
    pub fn emit(&self, name: &str, seq: u64, not_before: Timestamp) -> Emit {
        let id = format!("{}/{name}/{seq}", self.conversation);
        self.to_body().emit(CONVERSATIONS_QUEUE, seq, Some(not_before.millis()), id)
    }

    fn to_body(&self) -> Body {
        Body::Wake { v: 1, conversation_id: self.conversation.clone(), received: self.received }
    }
}

/// A message of the backfill queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackfillJob {
    /// Insert the lines of this backfill, resuming at its last checkpoint.
    Work(BackfillId),
    /// S3 notifies that lines were uploaded.
    Uploaded(Vec<Uploaded<BackfillId>>),
}

impl BackfillJob {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        if let Some(uploads) = uploads(body, backfill_of_object) {
            return Ok(Self::Uploaded(uploads));
        }
        match serde_json::from_str(body) {
            Ok(Body::Backfill { v: 1, id }) => Ok(Self::Work(id)),
            _ => Err(Unreadable("a backfill job")),
        }
    }
}

/// Enqueues a backfill for its worker.
pub fn emit_backfill(id: &BackfillId, seq: u64) -> Emit {
    Body::Backfill { v: 1, id: id.clone() }.emit(BACKFILL_QUEUE, seq, None, format!("{id}/{seq}"))
}

/// A message of the import queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportJob {
    /// Read the file, resuming at its last checkpoint.
    Import(MailingId),
    /// Enqueue the shards of the mailing.
    HandOut(MailingId),
    /// S3 notifies that files were uploaded.
    Uploaded(Vec<Uploaded<MailingId>>),
}

impl ImportJob {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        if let Some(uploads) = uploads(body, mailing_of_object) {
            return Ok(Self::Uploaded(uploads));
        }
        match serde_json::from_str(body) {
            Ok(Body::Import { v: 1, mailing_id }) => Ok(Self::Import(mailing_id)),
            Ok(Body::HandOut { v: 1, mailing_id }) => Ok(Self::HandOut(mailing_id)),
            _ => Err(Unreadable("an import job")),
        }
    }
}

/// Enqueues the import of a mailing. `seq` must be greater than that of any earlier emission of the
/// mailing's row.
pub fn emit_import(id: &MailingId, seq: u64) -> Emit {
    let body = Body::Import { v: 1, mailing_id: id.clone() };
    body.emit(MAILING_IMPORT_QUEUE, seq, None, format!("{id}/{seq}"))
}

/// Enqueues the handing out of a mailing's shards. `seq` is as in [`emit_import`], for the same
/// row.
pub fn emit_hand_out(id: &MailingId, seq: u64) -> Emit {
    let body = Body::HandOut { v: 1, mailing_id: id.clone() };
    body.emit(MAILING_IMPORT_QUEUE, seq, None, format!("{id}/{seq}"))
}

/// A message of the mailing queue: one shard of one mailing, for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardJob {
    pub mailing: MailingId,
    pub shard: u32,
    /// The number of the emission. Once the row has a later emission, this job is a no-op.
    pub seq: u64,
}

impl ShardJob {
    pub fn read(body: &str) -> Result<Self, Unreadable> {
        match serde_json::from_str(body) {
            Ok(Body::Shard { v: 1, mailing_id, shard, seq }) => {
                Ok(Self { mailing: mailing_id, shard, seq: seq.unwrap_or_default() })
            }
            _ => Err(Unreadable("a shard job")),
        }
    }
}

/// Enqueues a shard for a worker. `id` identifies the work to an operator who inspects the queue;
/// recovery passes an id of its own.
pub fn emit_shard(
    mailing: &MailingId,
    shard: u32,
    seq: u64,
    not_before: Option<Timestamp>,
    id: Option<String>,
) -> Emit {
    let id = id.unwrap_or_else(|| format!("{}/{seq}", keys::mailing_shard_id(mailing, shard)));
    let body = Body::Shard { v: 1, mailing_id: mailing.clone(), shard, seq: Some(seq) };
    body.emit(MAILING_SEND_QUEUE, seq, not_before.map(Timestamp::millis), id)
}

#[cfg(test)]
mod tests;
