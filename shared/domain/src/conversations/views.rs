//! The views of conversations that callers get.

use serde::Serialize;

use super::course::{Hold, Phase};
use super::identity::BatchId;
use super::inbound::{Kind, Media};
use super::rows::{Author, BatchRow, ConversationRow, StoredMessage};
use crate::codes::codes;
use crate::messages::MessageId;
use crate::senders::instances::Timing;
use crate::time::Timestamp;

codes! {
    /// The status of a conversation.
    Status {
        /// Every message is answered.
        Idle = "idle",
        /// Messages wait for their burst to end.
        Pending = "pending",
        /// The responder is asked about a batch, or its reply is being sent.
        Processing = "processing",
        /// Somebody holds the conversation, so that the bot does not write.
        Held = "held",
        NeedsHuman = "needs_human",
    }
}

codes! {
    /// The state of a message.
    Fate {
        Pending = "pending",
        Processing = "processing",
        Answered = "answered",
        /// The responder had nothing to say.
        NothingToSay = "nothing_to_say",
        AnsweredByPerson = "answered_by_person",
        /// The reply was not delivered.
        NotDelivered = "not_delivered",
        /// The message is stored only: it is too old, or a person on our side wrote it.
        NotForAnswer = "not_for_answer",
    }
}

#[derive(Debug, Serialize)]
pub struct ConversationView {
    pub conversation_id: String,
    pub channel: String,
    pub instance: String,
    pub contact: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub status: Status,
    pub received: u64,
    pub answered: u64,
    pub pending: u64,
    /// Since when the contact has waited for an answer.
    pub unanswered_since: Option<Timestamp>,
    /// When the pending messages will be claimed.
    pub due_at: Option<Timestamp>,
    pub processing: Option<ProcessingView>,
    pub hold: Option<HoldView>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Serialize)]
pub struct ProcessingView {
    pub batch_id: String,
    pub from: u64,
    pub to: u64,
    pub phase: Phase,
    pub attempts: u32,
    /// When the responder is asked again, or when we stop waiting for its late answer.
    pub next_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
pub struct HoldView {
    pub by: super::course::HeldBy,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
}

impl HoldView {
    fn of(hold: &Hold) -> Self {
        let until = hold.until.map(Timestamp::from_millis);
        Self { by: hold.by, since: Timestamp::from_millis(hold.since), until }
    }
}

impl ConversationView {
    pub fn of(row: &ConversationRow, timing: Option<&Timing>, now: Timestamp) -> Self {
        let course = &row.course;
        let processing = row.batch().map(|batch| ProcessingView {
            batch_id: batch.to_string(),
            from: course.answered + 1,
            to: course.claimed,
            phase: course.phase,
            attempts: course.attempts,
            next_at: course.not_before.map(Timestamp::from_millis),
        });
        let due = timing.filter(|_| course.phase == Phase::Idle && course.is_pending() && !course.is_held(now));
        Self {
            conversation_id: row.id.to_string(),
            channel: row.channel.to_string(),
            instance: row.instance.clone(),
            contact: row.contact.clone(),
            name: row.name.clone(),
            status: status(row, now),
            received: course.received,
            answered: course.answered,
            pending: course.received - course.claimed.max(course.settled),
            unanswered_since: course.unanswered_since().map(Timestamp::from_millis),
            due_at: due.and_then(|timing| course.due(timing)),
            processing,
            hold: course.hold.filter(|_| course.is_held(now)).as_ref().map(HoldView::of),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

pub fn status(row: &ConversationRow, now: Timestamp) -> Status {
    let course = &row.course;
    match course.phase {
        Phase::Stuck => Status::NeedsHuman,
        _ if course.is_held(now) => Status::Held,
        Phase::Idle if course.is_pending() => Status::Pending,
        Phase::Idle => Status::Idle,
        _ => Status::Processing,
    }
}

#[derive(Debug, Serialize)]
pub struct BatchView {
    pub batch_id: String,
    pub from: u64,
    pub to: u64,
    pub reply: Option<String>,
    pub answered_by: super::rows::Answer,
    pub attempts: u32,
    pub message_ids: Vec<MessageId>,
    pub outcome: Option<String>,
    pub replied_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl BatchView {
    pub fn of(conversation: &ConversationRow, row: &BatchRow) -> Self {
        let id = BatchId { conversation: conversation.id.clone(), number: row.batch };
        Self {
            batch_id: id.to_string(),
            from: row.from,
            to: row.batch,
            reply: row.reply.clone(),
            answered_by: row.answered_by,
            attempts: row.attempts,
            message_ids: row.messages.clone(),
            outcome: row.outcome.clone(),
            replied_at: row.replied_at,
            finished_at: row.finished_at,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct MessageView {
    pub number: Option<u64>,
    pub message_id: String,
    pub author: Author,
    pub kind: Kind,
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media: Option<Media>,
    pub sent_at: Option<Timestamp>,
    pub received_at: Timestamp,
    pub fate: Fate,
    pub batch_id: Option<String>,
}

impl MessageView {
    /// Builds the view. `batches` are the batches that the message may belong to.
    pub fn of(conversation: &ConversationRow, batches: &[BatchRow], row: StoredMessage) -> Self {
        let batch = row.number.and_then(|number| batches.iter().find(|b| (b.from..=b.batch).contains(&number)));
        let course = &conversation.course;
        let in_process = |number: u64| number > course.answered && number <= course.claimed;
        let fate = match (row.number, batch) {
            (None, _) => Fate::NotForAnswer,
            (Some(number), _) if number > course.claimed.max(course.settled) => Fate::Pending,
            (Some(number), _) if in_process(number) => Fate::Processing,
            (Some(_), None) => Fate::AnsweredByPerson,
            (Some(_), Some(batch)) => answered(batch),
        };
        let number = match (batch, row.number) {
            (Some(batch), _) => Some(batch.batch),
            (None, Some(number)) if in_process(number) => Some(course.claimed),
            _ => None,
        };
        let id = |number| BatchId { conversation: conversation.id.clone(), number }.to_string();
        let batch_id = number.map(id);
        let StoredMessage { number, message_id, author, kind, text, media, sent_at, received_at, .. } = row;
        Self { number, message_id, author, kind, text, media, sent_at, received_at, fate, batch_id }
    }
}

fn answered(batch: &BatchRow) -> Fate {
    match batch.outcome.as_deref() {
        _ if batch.reply.is_none() => Fate::NothingToSay,
        // A person answered while the reply was withheld.
        None => Fate::AnsweredByPerson,
        Some("FAILED" | "CANCELED" | "EXPIRED" | "SUPPRESSED") => Fate::NotDelivered,
        Some(_) => Fate::Answered,
    }
}
