//! The views of conversations that callers get.

use serde_json::{Value, json};

use super::course::Phase;
use super::rows::{BatchRow, ConversationRow, StoredMessage};
use crate::codes::codes;
use crate::senders::instances::Timing;
use crate::time::Timestamp;

codes! {
    /// The status of a conversation.
    ConversationStatus {
        /// Every message is answered.
        Idle = "idle",
        /// Messages wait for their burst to end.
        Pending = "pending",
        /// The responder is asked about a batch, or its reply is being sent.
        Processing = "processing",
        /// A person holds the conversation, so that the bot does not write.
        Held = "held",
        /// The responder did not answer: a person is needed.
        NeedsHuman = "needs_human",
    }
}

codes! {
    /// The state of a message.
    Fate {
        /// It waits for its burst to end.
        Pending = "pending",
        /// It is part of the batch in process.
        Processing = "processing",
        /// The reply was sent.
        Answered = "answered",
        /// The responder had nothing to say.
        NothingToSay = "nothing_to_say",
        /// A person answered it.
        AnsweredByPerson = "answered_by_person",
        /// The reply was not delivered.
        NotDelivered = "not_delivered",
        /// The message is stored only: it is too old, or a person on our side wrote it.
        NotForAnswer = "not_for_answer",
    }
}

impl ConversationRow {
    /// Returns the conversation as callers see it. `timing` is needed to say when the pending
    /// messages will be claimed.
    pub fn view(&self, timing: Option<&Timing>, now: Timestamp) -> Value {
        let course = &self.course;
        let processing = self.batch().map(|batch| {
            json!({
                "batch_id": batch.to_string(),
                "from": course.answered + 1,
                "to": course.claimed,
                "phase": course.phase,
                "attempts": course.attempts,
                // When the responder is asked again, or when we stop waiting for its late answer.
                "next_at": course.not_before.map(Timestamp::from_millis),
            })
        });
        let hold = course.hold.filter(|_| course.is_held(now)).map(|hold| {
            let until = hold.until.map(Timestamp::from_millis);
            json!({"by": hold.by, "since": Timestamp::from_millis(hold.since), "until": until})
        });
        let due = timing.filter(|_| course.phase == Phase::Idle && course.is_pending() && !course.is_held(now));
        let mut view = json!({
            "conversation_id": self.id,
            "channel": self.channel,
            "instance": self.instance,
            "contact": self.contact,
            "status": status(self, now),
            "received": course.received,
            "answered": course.answered,
            "pending": course.received - course.claimed.max(course.settled),
            // Since when the contact has waited for an answer.
            "unanswered_since": course.unanswered_since().map(Timestamp::from_millis),
            "due_at": due.and_then(|timing| course.due(timing)),
            "processing": processing,
            "hold": hold,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        });
        if let Some(name) = &self.name {
            view["name"] = json!(name);
        }
        view
    }
}

pub fn status(row: &ConversationRow, now: Timestamp) -> ConversationStatus {
    let course = &row.course;
    match course.phase {
        Phase::Stuck => ConversationStatus::NeedsHuman,
        _ if course.is_held(now) => ConversationStatus::Held,
        Phase::Idle if course.is_pending() => ConversationStatus::Pending,
        Phase::Idle => ConversationStatus::Idle,
        _ => ConversationStatus::Processing,
    }
}

impl BatchRow {
    /// Returns the batch of this conversation as callers see it.
    pub fn view(&self, conversation: &ConversationRow) -> Value {
        json!({
            "batch_id": conversation.batch_id(self.batch).to_string(),
            "from": self.from,
            "to": self.batch,
            "reply": self.reply,
            "answered_by": self.answered_by,
            "attempts": self.attempts,
            "message_ids": self.messages,
            "outcome": self.outcome,
            "replied_at": self.replied_at,
            "finished_at": self.finished_at,
        })
    }
}

impl StoredMessage {
    /// Returns the message of this conversation as callers see it. `batches` are the batches that
    /// it may belong to.
    pub fn view(&self, conversation: &ConversationRow, batches: &[BatchRow]) -> Value {
        let batch = self.number.and_then(|number| batches.iter().find(|b| (b.from..=b.batch).contains(&number)));
        let course = &conversation.course;
        let in_process = |number: u64| number > course.answered && number <= course.claimed;
        let fate = match (self.number, batch) {
            (None, _) => Fate::NotForAnswer,
            (Some(number), _) if number > course.claimed.max(course.settled) => Fate::Pending,
            (Some(number), _) if in_process(number) => Fate::Processing,
            (Some(_), None) => Fate::AnsweredByPerson,
            (Some(_), Some(batch)) => answered(batch),
        };
        let ends_batch = match (batch, self.number) {
            (Some(batch), _) => Some(batch.batch),
            (None, Some(number)) if in_process(number) => Some(course.claimed),
            _ => None,
        };
        let mut view = json!({
            "number": self.number,
            "message_id": self.message_id,
            "author": self.author,
            "kind": self.kind,
            "text": self.text,
            "sent_at": self.sent_at,
            "received_at": self.received_at,
            "fate": fate,
            "batch_id": ends_batch.map(|number| conversation.batch_id(number).to_string()),
        });
        if let Some(media) = &self.media {
            view["media"] = json!(media);
        }
        view
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
