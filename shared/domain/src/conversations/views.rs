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

#[cfg(test)]
mod tests {
    use super::super::batch::Portion;
    use super::super::course::{ConversationHold, Course, HeldBy};
    use super::super::identity::Via;
    use super::super::inbound::{Media, MessageKind};
    use super::super::rows::{AnsweredBy, Author};
    use super::*;
    use crate::senders::instances::InstanceRow;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn conversation(course: Course) -> ConversationRow {
        ConversationRow { course, ..ConversationRow::new(Via::Whatsapp, "loja", "5511912345678", NOW) }
    }

    fn message(number: Option<u64>) -> StoredMessage {
        StoredMessage {
            message_id: "3EB0".into(),
            place: String::new(),
            number,
            author: Author::Contact,
            kind: MessageKind::Text,
            text: Some("Oi".into()),
            media: None,
            sent_at: Some(NOW),
            received_at: NOW,
            emit: None,
            expires_at: 0,
        }
    }

    /// Returns a batch of the messages 1 and 2.
    fn batch(reply: Option<&str>, outcome: Option<&str>) -> BatchRow {
        BatchRow {
            batch: 2,
            from: 1,
            reply: reply.map(str::to_owned),
            answered_by: AnsweredBy::Responder,
            attempts: 1,
            messages: Vec::new(),
            outcome: outcome.map(str::to_owned),
            replied_at: NOW,
            finished_at: None,
            expires_at: None,
        }
    }

    #[test]
    fn a_conversation_shows_its_status_and_when_its_pending_messages_are_due() {
        let timing = InstanceRow::by_default(Via::Whatsapp, "loja", NOW).timing();
        let held = |course: &Course, until: Option<Timestamp>| {
            let until = until.map(Timestamp::millis);
            course.hold(ConversationHold { by: HeldBy::Operator, since: NOW.millis(), until })
        };
        let idle = Course::default();
        let pending = idle.receive(NOW, None);
        let asking = pending.claim(Portion::UpTo { last: 1, rest_since: None }, NOW, &timing);
        let stuck = Course { phase: Phase::Stuck, ..asking.clone() };
        let due = Some(NOW.plus_ms(5_000));
        for (course, status, due_at, batch) in [
            (idle.clone(), "idle", None, None),
            (held(&idle, None), "held", None, None),
            (pending.clone(), "pending", due, None),
            (held(&pending, None), "held", None, None),
            (held(&pending, Some(NOW.plus_ms(1))), "held", None, None),
            (held(&pending, Some(NOW)), "pending", due, None),
            (asking.clone(), "processing", None, Some(1)),
            (asking.receive(NOW, None), "processing", None, Some(1)),
            (held(&asking, None), "held", None, Some(1)),
            (stuck.clone(), "needs_human", None, Some(1)),
            (held(&stuck, None), "needs_human", None, Some(1)),
        ] {
            let row = conversation(course);
            let view = row.view(Some(&timing), NOW);
            assert_eq!(view["status"], status, "{row:?}");
            assert_eq!(view["due_at"], json!(due_at), "{row:?}");
            let batch_id = batch.map(|number| row.batch_id(number).to_string());
            assert_eq!(view["processing"]["batch_id"], json!(batch_id), "{row:?}");
        }
    }

    #[test]
    fn the_name_of_a_contact_and_the_media_of_a_message_are_shown_only_if_they_are_known() {
        let unnamed = conversation(Course::default());
        assert_eq!(unnamed.view(None, NOW).get("name"), None);
        let named = ConversationRow { name: Some("Ana".into()), ..unnamed.clone() };
        assert_eq!(named.view(None, NOW)["name"], "Ana");

        assert_eq!(message(None).view(&unnamed, &[]).get("media"), None);
        let media = Media { mime_type: Some("image/jpeg".into()), file_name: None, reference: None };
        let image = StoredMessage { media: Some(media), ..message(None) };
        assert_eq!(image.view(&unnamed, &[])["media"], json!({"mime_type": "image/jpeg"}));
    }

    #[test]
    fn the_watermarks_decide_the_fate_and_the_batch_of_a_message() {
        let asking = Course { received: 6, claimed: 5, answered: 3, phase: Phase::Asking, ..Course::default() };
        let sending = Course { received: 7, settled: 6, phase: Phase::Sending, ..asking.clone() };
        for (course, number, fate, ends_batch) in [
            (&asking, None, Fate::NotForAnswer, None),
            (&asking, Some(1), Fate::Answered, Some(2)),
            (&asking, Some(2), Fate::Answered, Some(2)),
            (&asking, Some(3), Fate::AnsweredByPerson, None),
            (&asking, Some(4), Fate::Processing, Some(5)),
            (&asking, Some(5), Fate::Processing, Some(5)),
            (&asking, Some(6), Fate::Pending, None),
            // A person answered the sixth message while the reply was being sent.
            (&sending, Some(5), Fate::Processing, Some(5)),
            (&sending, Some(6), Fate::AnsweredByPerson, None),
            (&sending, Some(7), Fate::Pending, None),
        ] {
            let row = conversation(course.clone());
            let view = message(number).view(&row, &[batch(Some("Oi"), Some("SENT"))]);
            let batch_id = ends_batch.map(|number| row.batch_id(number).to_string());
            assert_eq!((&view["fate"], &view["batch_id"]), (&json!(fate), &json!(batch_id)), "{number:?}");
        }
    }

    #[test]
    fn the_reply_and_its_outcome_decide_the_fate_of_an_answered_message() {
        let row = conversation(Course { received: 2, claimed: 2, answered: 2, ..Course::default() });
        for (reply, outcome, fate) in [
            (None, None, Fate::NothingToSay),
            (Some("Oi"), None, Fate::AnsweredByPerson),
            (Some("Oi"), Some("SENT"), Fate::Answered),
            (Some("Oi"), Some("FAILED"), Fate::NotDelivered),
            (Some("Oi"), Some("CANCELED"), Fate::NotDelivered),
            (Some("Oi"), Some("EXPIRED"), Fate::NotDelivered),
            (Some("Oi"), Some("SUPPRESSED"), Fate::NotDelivered),
        ] {
            let view = message(Some(2)).view(&row, &[batch(reply, outcome)]);
            assert_eq!(view["fate"], json!(fate), "{reply:?} {outcome:?}");
        }
    }
}
