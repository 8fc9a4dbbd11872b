//! The rows of a conversation: its state, its messages, and the reply of each batch.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::course::{ConversationHold, Course, HeldBy, Phase};
use super::identity::{BatchId, ConversationId, Via};
use super::inbound::{Inbound, Media, MessageKind};
use crate::change::{Fence, Row};
use crate::codes::codes;
use crate::keys::{self, Key, Wake};
use crate::messages::MessageId;
use crate::outbox::Emit;
use crate::queue::WakeUp;
use crate::senders::instances::{InstanceRow, Timing};
use crate::time::{DAY_MS, SECOND_MS, Timestamp};
use crate::work::Work;

/// How long unanswered messages are kept beyond the retention period: as long as the
/// longest hold.
pub const UNANSWERED_DAYS: i64 = 366;
/// Unanswered messages that expire within the first of these times are kept
/// until the second one. The first leaves recovery enough time; the second bounds how much longer
/// they are kept after an answer.
const EXPIRES_WITHIN_DAYS: i64 = 2;
const KEPT_DAYS: i64 = 9;
/// The delay before recovery checks a conversation again. It doubles with each recovery.
const RECOVERED_AGAIN_MS: i64 = 60_000;

/// The state of a conversation. The row outlives the messages, because their numbers continue from
/// it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRow {
    pub id: ConversationId,
    pub channel: Via,
    pub instance: String,
    pub contact: String,
    /// The name that the contact uses for itself.
    pub name: Option<String>,
    #[serde(flatten)]
    pub course: Course,
    #[serde(flatten)]
    pub work: Work,
    /// Milliseconds: recovery wakes the conversation if it has not changed by then.
    pub check_at: Option<i64>,
    /// Seconds: until when the unanswered messages are kept, if that is longer than
    /// the retention period.
    pub kept_until: Option<i64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl Row for ConversationRow {
    fn key(&self) -> Key {
        keys::conversation(&self.id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl ConversationRow {
    pub fn new(via: Via, instance: &str, contact: &str, now: Timestamp) -> Self {
        Self {
            id: ConversationId::of(via, instance, contact),
            channel: via,
            instance: instance.to_owned(),
            contact: contact.to_owned(),
            name: None,
            course: Course::default(),
            work: Work::default(),
            check_at: None,
            kept_until: None,
            created_at: now,
            updated_at: now,
            version: 0,
        }
    }

    /// Returns the row after a change of its course. The row emits a wake-up if [`Course::wake_up`]
    /// returns a time.
    pub fn moved(&self, course: Course, now: Timestamp, timing: &Timing) -> Self {
        let mut next = self.with(course, now, timing);
        if let Some(at) = next.course.wake_up(now, timing) {
            next.hand_on(at);
        }
        next
    }

    /// Returns the row after a message arrived. Unlike in [`Self::moved`], the row of the message
    /// emits the wake-up.
    pub fn received(&self, message: &Inbound, now: Timestamp, timing: &Timing) -> Self {
        let mut next = self.with(self.course.receive(now, message.sent_at), now, timing);
        next.name = message.name.clone().or(next.name);
        next
    }

    /// Returns the row after a recovery. The row emits a wake-up, and recovery checks it again
    /// after a longer delay than the last time.
    pub fn recovered(&self, now: Timestamp, timing: &Timing) -> Self {
        let mut next = self.with(Course { hold: None, ..self.course.clone() }, now, timing);
        next.work.recoveries = self.work.recoveries + 1;
        next.check_at = Some(now.plus_ms(RECOVERED_AGAIN_MS << self.work.recoveries.min(6)).millis());
        next.hand_on(now);
        next
    }

    fn with(&self, course: Course, now: Timestamp, timing: &Timing) -> Self {
        let since = course.unanswered_since().map(Timestamp::from_millis);
        let hold = course.hold.filter(|_| course.is_held(now));
        let course = Course { hold, ..course };
        let mut work = Work { emits: self.work.emits, ..Work::default() };
        match (hold, since) {
            (Some(hold), _) => {
                work.wait_until(
                    Wake::Held,
                    self.id.as_str(),
                    hold.until.map_or(Timestamp::NEVER, Timestamp::from_millis),
                );
            }
            (None, Some(since)) if course.phase == Phase::Stuck => {
                work.wait_until(Wake::Human, self.id.as_str(), since);
            }
            (None, Some(since)) => work.wait_until(Wake::Check, self.id.as_str(), since),
            (None, None) => {}
        }
        let check_at = course.recovery_check_at(now, timing).map(Timestamp::millis);
        // Other messages are the oldest ones now.
        let is_same = course.unanswered_since() == self.course.unanswered_since();
        let kept_until = self.kept_until.filter(|_| is_same);
        Self { course, work, check_at, kept_until, updated_at: now, version: self.version + 1, ..self.clone() }
    }

    /// Keeps unanswered messages for another period if they are about to expire.
    /// `None` if they are kept for long enough, or as long as they may be.
    pub fn keeping_messages(&self, now: Timestamp, retention_days: i64) -> Option<KeptMessages> {
        let since = self.course.unanswered_since().map(Timestamp::from_millis)?;
        let until = self.kept_until.unwrap_or(since.plus_days(retention_days).seconds());
        let expires_soon = until <= now.plus_days(EXPIRES_WITHIN_DAYS).seconds();
        if !expires_soon || since > unanswered_before(now, retention_days) {
            return None;
        }
        let last = since.plus_days(retention_days + UNANSWERED_DAYS).seconds();
        let next = now.plus_days(KEPT_DAYS).seconds().min(last);
        let row = Self { kept_until: Some(next), version: self.version + 1, ..self.clone() };
        (next > until).then_some(KeptMessages { row, until: next, is_last: next == last })
    }

    fn hand_on(&mut self, at: Timestamp) {
        let wake = WakeUp { conversation: self.id.clone(), received: self.course.received };
        self.work.emits += 1;
        self.work.emit = Some(wake.emit("state", self.work.emits, at));
    }

    /// Returns whether recovery must wake the conversation.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.check_at.is_some_and(|at| at <= now.millis())
    }

    /// Returns the batch in process, if any.
    pub fn batch(&self) -> Option<BatchId> {
        (self.course.phase != Phase::Idle).then(|| self.batch_id(self.course.claimed))
    }

    /// Returns the id of the batch that ends with this message.
    pub fn batch_id(&self, number: u64) -> BatchId {
        BatchId { conversation: self.id.clone(), number }
    }
}

/// Returns the time before which a message must have arrived for it to be kept longer than the
/// retention period: it has waited for half of it.
pub fn unanswered_before(now: Timestamp, retention_days: i64) -> Timestamp {
    now.plus_ms(-retention_days * DAY_MS / 2)
}

/// Unanswered messages are kept until `until`, in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMessages {
    pub row: ConversationRow,
    pub until: i64,
    /// They are not kept any longer.
    pub is_last: bool,
}

codes! {
    /// Who wrote a message.
    Author {
        /// The contact.
        Contact = "contact",
        /// A person who answered from the phone.
        Person = "person",
    }
}

codes! {
    /// What was done with a message that a provider delivered.
    ReceiveOutcome {
        /// The message is stored and will be answered.
        Stored = "stored",
        /// The message was stored before.
        Duplicate = "duplicate",
        /// The message is stored, but is too old to be answered.
        History = "history",
        /// A person answered.
        Person = "person",
        /// This system sent the message.
        Ours = "ours",
    }
}

/// A message of a conversation. Its key is the provider's id of the message.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMessage {
    pub message_id: String,
    /// The position of the message in the index of messages.
    pub place: String,
    /// `None` if the message belongs to no batch.
    pub number: Option<u64>,
    pub author: Author,
    pub kind: MessageKind,
    pub text: Option<String>,
    pub media: Option<Media>,
    pub sent_at: Option<Timestamp>,
    pub received_at: Timestamp,
    pub emit: Option<Emit>,
    /// Seconds.
    pub expires_at: i64,
}

/// An inbound message of an instance, and how long it is kept.
#[derive(Debug, Clone)]
pub struct Received<'a> {
    pub instance: &'a InstanceRow,
    pub message: &'a Inbound,
    pub retention_days: i64,
}

impl Received<'_> {
    pub fn conversation(&self) -> ConversationId {
        ConversationId::of(self.instance.channel, &self.instance.instance, &self.message.contact)
    }

    /// Returns what to do with a message that this system did not send.
    pub fn outcome(&self, now: Timestamp) -> ReceiveOutcome {
        match self.message.from_me {
            // A phone that is linked again reports its history: it gets no answer and is none.
            _ if self.instance.is_old(self.message.sent_at, now) => ReceiveOutcome::History,
            true => ReceiveOutcome::Person,
            false => ReceiveOutcome::Stored,
        }
    }

    /// Returns the conversation after the message, and the message to store.
    pub fn apply(&self, row: &ConversationRow, now: Timestamp) -> (ConversationRow, StoredMessage) {
        let timing = self.instance.timing();
        match self.outcome(now) {
            ReceiveOutcome::Stored => {
                let next = row.received(self.message, now, &timing);
                let stored = self.numbered(&next, now, &timing);
                (next, stored)
            }
            ReceiveOutcome::Person => {
                let settled = row.course.answered_by_person(self.message.sent_at);
                let silent_ms = i64::from(self.instance.person_hold_seconds) * SECOND_MS;
                let hold =
                    ConversationHold { by: HeldBy::Person, since: now.millis(), until: Some(now.millis() + silent_ms) };
                let course = if silent_ms > 0 { settled.hold(hold) } else { settled };
                (row.moved(course, now, &timing), self.aside(now))
            }
            _ => (row.clone(), self.aside(now)),
        }
    }

    /// Returns a message to be answered: the last that `row` counts. It wakes a worker when its
    /// burst is due according to the current row.
    fn numbered(&self, row: &ConversationRow, now: Timestamp, timing: &Timing) -> StoredMessage {
        let number = row.course.received;
        let wake = WakeUp { conversation: row.id.clone(), received: number };
        let due = row.course.due(timing).unwrap_or(now);
        let mut stored = self.stored(keys::conversation_place(number), Author::Contact, now);
        stored.number = Some(number);
        stored.emit = Some(wake.emit("message", number, due));
        stored
    }

    /// Returns a message that will not be answered.
    fn aside(&self, now: Timestamp) -> StoredMessage {
        let at = self.message.sent_at.unwrap_or(now);
        let author = if self.message.from_me { Author::Person } else { Author::Contact };
        self.stored(keys::conversation_aside(at, &self.message.message_id), author, now)
    }

    fn stored(&self, place: String, author: Author, now: Timestamp) -> StoredMessage {
        let Inbound { message_id, kind, text, media, sent_at, .. } = self.message.clone();
        let expires_at = now.plus_days(self.retention_days).seconds();
        let (received_at, number, emit) = (now, None, None);
        StoredMessage { message_id, place, number, author, kind, text, media, sent_at, received_at, emit, expires_at }
    }
}

codes! {
    /// How a batch was answered.
    AnsweredBy {
        /// In the response to the request.
        Responder = "responder",
        /// Later, in a request of the responder's own.
        Callback = "callback",
    }
}

/// The one reply of a batch. The reply is stored before it is sent, and a batch never gets a second
/// one.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRow {
    pub batch: u64,
    /// The number of the first message of the batch.
    pub from: u64,
    /// `None` if the responder had nothing to say.
    pub reply: Option<String>,
    pub answered_by: AnsweredBy,
    pub attempts: u32,
    /// The outbound messages that carry the reply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageId>,
    /// How the last of these messages ended.
    pub outcome: Option<String>,
    pub replied_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Seconds. Only a finished batch expires.
    pub expires_at: Option<i64>,
}

/// What a change of a conversation writes to the row of its batch, which is not read for that.
/// Absent fields keep their values.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
pub struct BatchProgress<'a> {
    pub parts_ended: Option<u32>,
    pub outcome: Option<&'a str>,
    pub finished_at: Option<Timestamp>,
    pub expires_at: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::batch::Portion;

    const TIMING: Timing = Timing {
        debounce_ms: 5_000,
        max_wait_ms: 30_000,
        lease_ms: 45_000,
        callback_ms: 600_000,
        attempts: 3,
        backoff_ms: 5_000,
    };
    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn inbound() -> Inbound {
        Inbound {
            contact: "5511912345678".into(),
            message_id: "3EB0".into(),
            from_me: false,
            by_gateway: false,
            kind: MessageKind::Text,
            text: Some("Oi".into()),
            media: None,
            name: Some("Ana".into()),
            sent_at: Some(NOW),
        }
    }

    fn row() -> ConversationRow {
        ConversationRow::new(Via::Whatsapp, "loja", "5511912345678", NOW)
    }

    #[test]
    fn a_received_message_emits_the_wake_up_and_its_conversation_row_does_not() {
        let inbound = inbound();
        let instance = InstanceRow::by_default(Via::Whatsapp, "loja", NOW);
        let received = Received { instance: &instance, message: &inbound, retention_days: 90 };
        let (next, message) = received.apply(&row(), NOW);
        assert_eq!((next.work.emit.as_ref(), next.version, next.name.as_deref()), (None, 1, Some("Ana")));
        let emit = message.emit.expect("a wake-up");
        assert_eq!(emit.not_before, Some(NOW.plus_ms(5_000).millis()));
        assert_eq!((message.number, message.place.as_str()), (Some(1), "IN#0000000001"));
        assert_eq!(next.work.wake.as_deref().and_then(|wake| wake.split('#').next()), Some("CHECK"));
    }

    #[test]
    fn only_a_recent_message_of_the_contact_is_numbered_to_be_answered() {
        let instance = InstanceRow::by_default(Via::Whatsapp, "loja", NOW);
        let oldest = NOW.plus_days(-1);
        let too_old = oldest.plus_ms(-1);
        for (from_me, sent_at, outcome, author) in [
            (false, NOW, ReceiveOutcome::Stored, Author::Contact),
            (false, oldest, ReceiveOutcome::Stored, Author::Contact),
            (false, too_old, ReceiveOutcome::History, Author::Contact),
            (true, NOW, ReceiveOutcome::Person, Author::Person),
            (true, too_old, ReceiveOutcome::History, Author::Person),
        ] {
            let message = Inbound { from_me, sent_at: Some(sent_at), ..inbound() };
            let received = Received { instance: &instance, message: &message, retention_days: 90 };
            assert_eq!(received.outcome(NOW), outcome);
            let (next, stored) = received.apply(&row(), NOW);
            assert_eq!(stored.author, author, "{outcome}");
            let numbered = (outcome == ReceiveOutcome::Stored).then_some(1);
            assert_eq!((stored.number, next.course.received), (numbered, numbered.unwrap_or(0)), "{outcome}");
            assert_eq!(next == row(), outcome == ReceiveOutcome::History, "history does not change the conversation");
        }
    }

    #[test]
    fn a_message_of_a_person_holds_the_conversation_for_the_time_that_the_instance_sets() {
        let pending = row().received(&inbound(), NOW, &TIMING);
        let portion = Portion::UpTo { last: 1, rest_since: None };
        let sending = pending.moved(pending.course.claim(portion, NOW, &TIMING).replied(1, NOW), NOW, &TIMING);
        // It was sent before the message of the contact, so it does not answer that message.
        let earlier = Inbound { from_me: true, sent_at: Some(NOW.plus_ms(-1)), ..inbound() };
        for (person_hold_seconds, silent_ms) in [(0, None), (1, Some(1_000)), (1_800, Some(1_800_000))] {
            let instance = InstanceRow { person_hold_seconds, ..InstanceRow::by_default(Via::Whatsapp, "loja", NOW) };
            let received = Received { instance: &instance, message: &earlier, retention_days: 90 };
            let (next, _) = received.apply(&sending, NOW);
            let hold = silent_ms.map(|ms| {
                let until = Some(NOW.plus_ms(ms).millis());
                ConversationHold { by: HeldBy::Person, since: NOW.millis(), until }
            });
            assert_eq!(next.course.hold, hold, "{person_hold_seconds}");
            assert_eq!(next.course.is_recalled(), hold.is_some(), "only a hold recalls the reply");
        }
    }

    #[test]
    fn a_conversation_has_a_batch_in_process_from_the_claim_to_the_end_of_the_reply() {
        let pending = row().received(&inbound(), NOW, &TIMING);
        assert_eq!(pending.batch(), None);
        let claimed = pending.course.claim(Portion::UpTo { last: 1, rest_since: None }, NOW, &TIMING);
        let asking = pending.moved(claimed, NOW, &TIMING);
        assert_eq!(asking.batch(), Some(BatchId { conversation: row().id, number: 1 }));
        assert_eq!(asking.moved(asking.course.replied(0, NOW), NOW, &TIMING).batch(), None);
    }

    #[test]
    fn the_retention_of_unanswered_messages_is_extended_in_steps_up_to_a_limit() {
        let unanswered = row().received(&inbound(), NOW, &TIMING);
        assert_eq!(row().keeping_messages(NOW.plus_days(100), 30), None, "there are no unanswered messages");
        let expires_soon = NOW.plus_days(28);
        assert_eq!(unanswered.keeping_messages(expires_soon.plus_ms(-1), 30), None, "they do not expire soon");
        let step = unanswered.keeping_messages(expires_soon, 30).expect("they expire soon");
        assert_eq!((step.until, step.is_last), (expires_soon.plus_days(9).seconds(), false));
        let has_waited = NOW.plus_ms(DAY_MS / 2);
        assert_eq!(unanswered.keeping_messages(has_waited.plus_ms(-1), 1), None, "the messages are recent");
        assert!(unanswered.keeping_messages(has_waited, 1).is_some(), "they have waited for half of the retention");
        let (mut kept, mut now, mut steps) = (unanswered, NOW, 0);
        loop {
            now = now.plus_ms(3_600_000);
            let Some(next) = kept.keeping_messages(now, 30) else { continue };
            let expires = kept.kept_until.unwrap_or(NOW.plus_days(30).seconds());
            assert!(expires > now.plus_days(1).seconds() && next.until > expires, "a day is left to retry it");
            (kept, steps) = (next.row, steps + 1);
            if next.is_last {
                break;
            }
        }
        assert_eq!(kept.kept_until, Some(NOW.plus_days(30 + UNANSWERED_DAYS).seconds()));
        assert_eq!(kept.keeping_messages(now.plus_days(20), 30), None, "the limit is reached");
        assert!(steps < 60, "{steps} writes");
    }

    #[test]
    fn the_retention_of_answered_messages_is_not_extended() {
        let unanswered = row().received(&inbound(), NOW, &TIMING);
        let late = NOW.plus_days(29);
        let kept = unanswered.keeping_messages(late, 30).expect("they expire soon").row;
        let more = kept.received(&inbound(), late, &TIMING);
        assert_eq!(more.kept_until, kept.kept_until, "the first message still waits");
        let answered = more.moved(more.course.settle(), late, &TIMING);
        assert_eq!((answered.kept_until, answered.keeping_messages(late.plus_days(30), 30)), (None, None));
    }

    #[test]
    fn the_index_entry_does_not_change_while_a_batch_is_processed() {
        let one = row().received(&inbound(), NOW, &TIMING);
        let two = one.received(&inbound(), NOW.plus_ms(1_000), &TIMING);
        assert_eq!(
            (&one.work.wake, &one.work.wake_at),
            (&two.work.wake, &two.work.wake_at),
            "every change of the index costs a write"
        );
        let now = NOW.plus_ms(9_000);
        let portion = Portion::UpTo { last: 2, rest_since: None };
        let asking = two.moved(two.course.claim(portion, now, &TIMING), now, &TIMING);
        assert_eq!((&two.work.wake_at, asking.work.emit), (&asking.work.wake_at, None));
    }

    #[test]
    fn held_and_stuck_conversations_are_listed_and_answered_ones_are_not() {
        let pending = row().received(&inbound(), NOW, &TIMING);
        let word = |row: &ConversationRow| row.work.wake.clone().map(|wake| wake.split('#').next().map(str::to_owned));
        let hold = ConversationHold { by: HeldBy::Operator, since: NOW.millis(), until: None };
        let held = pending.moved(pending.course.hold(hold), NOW, &TIMING);
        assert_eq!(word(&held), Some(Some("HELD".into())));
        assert!(!held.is_overdue(NOW.plus_days(400)), "a hold without an end lasts until its release");
        let stuck = Course { phase: Phase::Stuck, batch_since: Some(NOW.millis()), ..pending.course.clone() };
        assert_eq!(word(&pending.moved(stuck, NOW, &TIMING)), Some(Some("HUMAN".into())));
        let settled = pending.moved(pending.course.settle(), NOW, &TIMING);
        assert_eq!((word(&settled), settled.check_at), (None, None));
    }

    #[test]
    fn a_release_wakes_a_conversation_and_recovery_waits_longer_each_time() {
        let pending = row().received(&inbound(), NOW, &TIMING);
        let hold =
            ConversationHold { by: HeldBy::Person, since: NOW.millis(), until: Some(NOW.plus_ms(60_000).millis()) };
        let held = pending.moved(pending.course.hold(hold), NOW, &TIMING);
        let released = held.moved(held.course.release(), NOW, &TIMING);
        assert_eq!(released.work.emit.as_ref().map(|emit| emit.seq), Some(1));
        assert!(!held.is_overdue(NOW.plus_ms(59_999)) && held.is_overdue(NOW.plus_ms(60_000)));
        let late = NOW.plus_ms(66_000);
        let once = held.recovered(late, &TIMING);
        assert_eq!((once.work.emit.as_ref().map(|emit| emit.seq), once.course.hold), (Some(1), None));
        assert_eq!(once.check_at, Some(late.plus_ms(60_000).millis()));
        let twice = once.recovered(late, &TIMING);
        assert_eq!((twice.work.emits, twice.check_at), (2, Some(late.plus_ms(120_000).millis())));
    }
}
