//! The state machine of a conversation: three watermarks, one phase, and all their transitions.
//!
//! Messages are numbered as they are received. `answered <= claimed <= received` always holds.
//! Messages above `claimed` are pending. Messages above `answered` and up to `claimed` are the one
//! batch in process. A row cannot represent two sets of pending messages or two batches. Each
//! change is computed from the row as it was read, and the write is conditional on an unchanged
//! version. So the store rejects a decision that was made on an older row. The model in the tests
//! is this same code.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::batch::Portion;
use crate::absent::is_default;
use crate::codes::codes;
use crate::senders::instances::Timing;
use crate::time::Timestamp;

codes! {
    /// The phase of the batch in process.
    #[derive(Default)]
    Phase {
        /// No batch is in process.
        #[default]
        Idle = "idle",
        /// A worker asks the responder under its lease, or a worker will ask when the backoff has
        /// passed.
        Asking = "asking",
        /// The responder replied that it will answer later.
        Awaiting = "awaiting",
        /// The reply is stored but not being sent, because the conversation is on hold.
        Replied = "replied",
        /// A part of the reply is with outbound.
        Sending = "sending",
        /// All attempts to ask the responder failed. The conversation needs a person or a late
        /// answer.
        Stuck = "stuck",
    }
}

codes! {
    /// Who holds the conversation, so that the bot does not write.
    HeldBy {
        /// An operator, by `POST /conversations/{id}/hold`.
        Operator = "operator",
        /// A person who answered from the phone.
        Person = "person",
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConversationHold {
    pub by: HeldBy,
    /// Milliseconds.
    pub since: i64,
    /// Milliseconds. `None` if the hold lasts until it is released.
    pub until: Option<i64>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Course {
    pub received: u64,
    pub claimed: u64,
    pub answered: u64,
    /// A person has answered the messages up to this number while a reply was being sent. They
    /// count as answered as soon as the message of that reply has ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settled: u64,
    pub phase: Phase,
    /// Milliseconds: when the first and the last pending message arrived.
    pub pending_since: Option<i64>,
    pub last_at: Option<i64>,
    /// Milliseconds, by the provider's clock: when the contact's latest message was sent, among the
    /// messages with a time.
    pub last_sent_at: Option<i64>,
    /// Milliseconds: when the first message of the batch in process arrived.
    pub batch_since: Option<i64>,
    /// Increases with each turn of a worker. What a worker reports from an earlier turn is ignored.
    pub epoch: u64,
    /// Milliseconds: the end of the lease of the worker whose turn it is.
    pub lease_until: Option<i64>,
    /// How often the responder has been asked about this batch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempts: u32,
    /// Milliseconds: the responder is not asked again before this time, or the timeout of its late
    /// answer.
    pub not_before: Option<i64>,
    /// The index of the part of the reply that is being sent or is next; `parts` is their number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub part: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub parts: u32,
    /// How often a part was handed to outbound. The id of the part's message contains this number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub handed: u32,
    /// The value of `handed` for the message that a hold recalled. If that message had not left, it
    /// is sent after the hold.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recalled: u32,
    pub hold: Option<ConversationHold>,
}

/// What a worker does after a wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerStep {
    /// Do nothing: there is no work, or another event will continue the conversation.
    Rest,
    /// Do nothing before this time.
    Wait(Timestamp),
    /// Read the first pending messages, write [`Course::claim`] with the portion that one batch
    /// takes, then ask the responder.
    Claim,
    /// Write this course, then ask the responder about its batch, which was claimed before.
    Ask(Course),
    /// Write this course, and with it the next part of the reply as a message.
    HandOver(Course),
    /// Read the state of the message that is being sent.
    CheckReply,
    /// Write this course: all attempts to ask the responder are used up.
    GiveUp(Course),
}

/// How the message of a part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartEnd {
    /// The message was sent, or its outcome is unknown. A part that the contact may have read is
    /// not sent again.
    Sent,
    NotSent,
    Canceled,
}

impl Course {
    /// Returns whether there are messages that no batch has claimed and no person has answered.
    pub fn is_pending(&self) -> bool {
        self.received > self.claimed.max(self.settled)
    }

    pub fn is_held(&self, now: Timestamp) -> bool {
        self.hold.is_some_and(|hold| hold.until.is_none_or(|until| until > now.millis()))
    }

    /// Returns when the pending messages are to be claimed: the debounce time after the last
    /// message, but no later than the maximum wait after the first.
    pub fn due(&self, timing: &Timing) -> Option<Timestamp> {
        let (first, last) = (self.pending_since?, self.last_at?);
        Some(Timestamp::from_millis((last + timing.debounce_ms).min(first + timing.max_wait_ms)))
    }

    /// Returns since when the contact has waited for an answer, in milliseconds.
    pub fn unanswered_since(&self) -> Option<i64> {
        self.batch_since.or(self.pending_since)
    }

    /// Counts a message that arrived and that was sent at `sent_at` according to its provider. The
    /// new value of `received` is the number of the message.
    pub fn receive(&self, now: Timestamp, sent_at: Option<Timestamp>) -> Self {
        let last_at = self.last_at.map_or(now.millis(), |last| last.max(now.millis()));
        let pending_since = if self.is_pending() { self.pending_since } else { Some(now.millis()) };
        // A time far ahead of ours comes from a wrong clock. It must not make every later answer of
        // a person look old.
        let sent_at = sent_at.map(|at| at.min(now.plus_ms(PROVIDER_SKEW_MS)).millis());
        let last_sent_at = self.last_sent_at.max(sent_at);
        Self { received: self.received + 1, pending_since, last_at: Some(last_at), last_sent_at, ..self.clone() }
    }

    pub fn next(&self, now: Timestamp, timing: &Timing) -> WorkerStep {
        let waits = |until: Option<i64>| until.filter(|until| *until > now.millis());
        match self.phase {
            Phase::Sending => WorkerStep::CheckReply,
            Phase::Stuck => WorkerStep::Rest,
            // A worker holds the lease (it may have crashed), or the responder answers later: wait
            // for them.
            Phase::Asking if waits(self.lease_until).is_some() => WorkerStep::Rest,
            Phase::Awaiting if waits(self.not_before).is_some() => WorkerStep::Rest,
            _ if self.is_held(now) => WorkerStep::Rest,
            Phase::Replied => WorkerStep::HandOver(self.handed_over()),
            Phase::Asking | Phase::Awaiting => match waits(self.not_before) {
                Some(until) => WorkerStep::Wait(Timestamp::from_millis(until)),
                None if self.attempts >= timing.attempts => WorkerStep::GiveUp(self.stuck()),
                None => WorkerStep::Ask(self.asking(now, timing)),
            },
            Phase::Idle => match self.due(timing).filter(|_| self.is_pending()) {
                None => WorkerStep::Rest,
                Some(due) if due > now => WorkerStep::Wait(due),
                Some(_) => WorkerStep::Claim,
            },
        }
    }

    /// Returns the course after a claim of this portion of the pending messages. The rest stays
    /// pending and becomes the next batch.
    pub fn claim(&self, portion: Portion, now: Timestamp, timing: &Timing) -> Self {
        let (last, rest_since) = match portion {
            Portion::UpTo { last, rest_since } => (last, rest_since),
            Portion::Expired { last } => (last, None),
        };
        let last = last.clamp(self.claimed, self.received);
        let since = rest_since.map(Timestamp::millis).or(self.pending_since);
        let pending_since = since.filter(|_| last < self.received);
        let claimed = Self { claimed: last, batch_since: self.pending_since, pending_since, ..self.clone() };
        match portion {
            Portion::UpTo { .. } => claimed.asking(now, timing),
            // There is nothing to ask about.
            Portion::Expired { .. } => claimed.finished(),
        }
    }

    fn asking(&self, now: Timestamp, timing: &Timing) -> Self {
        Self {
            phase: Phase::Asking,
            epoch: self.epoch + 1,
            lease_until: Some(now.millis() + timing.lease_ms),
            attempts: self.attempts + 1,
            not_before: None,
            ..self.clone()
        }
    }

    /// Returns whether a worker's turn is still the current one. Only then does its result count.
    pub fn is_turn(&self, batch: u64, epoch: u64) -> bool {
        self.phase == Phase::Asking && self.claimed == batch && self.epoch == epoch
    }

    /// Returns whether the batch still needs an answer, from the responder's response or from a
    /// callback.
    pub fn wants_reply(&self, batch: u64) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Awaiting | Phase::Stuck) && self.claimed == batch
    }

    /// Records that the responder failed. It is asked again after a backoff, or, after the last
    /// attempt, the conversation needs a person.
    pub fn failed(&self, now: Timestamp, timing: &Timing) -> Self {
        if self.attempts >= timing.attempts {
            return self.stuck();
        }
        let not_before = Some(now.millis() + timing.wait_ms(self.attempts));
        Self { lease_until: None, not_before, ..self.clone() }
    }

    /// Records that the responder answers later.
    pub fn awaiting(&self, now: Timestamp, timing: &Timing) -> Self {
        let not_before = Some(now.millis() + timing.callback_ms);
        Self { phase: Phase::Awaiting, lease_until: None, not_before, ..self.clone() }
    }

    fn stuck(&self) -> Self {
        Self { phase: Phase::Stuck, lease_until: None, not_before: None, ..self.clone() }
    }

    /// Records an answer that is sent as `parts` messages. Zero means that the responder has
    /// nothing to say.
    pub fn replied(&self, parts: u32, now: Timestamp) -> Self {
        let replied =
            Self { phase: Phase::Replied, lease_until: None, not_before: None, part: 0, parts, ..self.clone() };
        match parts {
            0 => self.finished(),
            _ if self.is_held(now) => replied,
            _ => replied.handed_over(),
        }
    }

    fn handed_over(&self) -> Self {
        Self { phase: Phase::Sending, handed: self.handed + 1, ..self.clone() }
    }

    /// Records how the message of the current part ended.
    pub fn part_ended(&self, end: PartEnd, now: Timestamp) -> Self {
        let withheld = |part| Self { phase: Phase::Replied, part, ..self.clone() };
        let next = self.part + 1;
        match end {
            // A person has answered in the meantime: send nothing more.
            _ if self.settled >= self.claimed => self.finished(),
            // The hold recalled the message before it left. It is sent after the release, which may
            // already have happened.
            PartEnd::Canceled if self.recalled == self.handed => withheld(self.part),
            PartEnd::Sent if next < self.parts && self.is_held(now) => withheld(next),
            PartEnd::Sent if next < self.parts => withheld(next).handed_over(),
            _ => self.finished(),
        }
    }

    /// Holds the conversation. Of two holds, the one that ends later applies.
    pub fn hold(&self, hold: ConversationHold) -> Self {
        let ends = |hold: &ConversationHold| hold.until.unwrap_or(i64::MAX);
        let hold = self.hold.filter(|before| ends(before) >= ends(&hold)).unwrap_or(hold);
        let recalled = if self.phase == Phase::Sending { self.handed } else { 0 };
        Self { hold: Some(hold), recalled, ..self.clone() }
    }

    /// Ends the hold, so that the bot may write again. If the conversation was stuck, the responder
    /// is asked again about its batch.
    pub fn release(&self) -> Self {
        let released = Self { hold: None, ..self.clone() };
        match self.phase {
            Phase::Stuck => Self { phase: Phase::Asking, attempts: 0, ..released },
            // The wake-up of the retry may have arrived during the hold and done nothing, so do not
            // wait for it. While a worker asks, `not_before` is not set.
            Phase::Asking => Self { not_before: None, ..released },
            _ => released,
        }
    }

    /// Records that a person wrote at `at`, by the provider's clock, and so answered everything
    /// that the contact sent before. If the contact's latest message was sent later or at the same
    /// time, everything stays pending. If the provider gave no time, the order of arrival decides.
    pub fn answered_by_person(&self, at: Option<Timestamp>) -> Self {
        let is_later = |(at, last): (Timestamp, i64)| at.millis() <= last;
        if at.zip(self.last_sent_at).is_some_and(is_later) { self.clone() } else { self.settle() }
    }

    /// Returns whether the reply that is being sent must be canceled: a hold recalled it, or a
    /// person has answered.
    pub fn is_recalled(&self) -> bool {
        self.phase == Phase::Sending && (self.settled >= self.claimed || self.recalled == self.handed)
    }

    /// Marks everything received so far as answered. If a reply is being sent, this takes effect
    /// when its message has ended.
    pub fn settle(&self) -> Self {
        match self.phase {
            Phase::Sending => Self { settled: self.received, pending_since: None, ..self.clone() },
            _ => Self { claimed: self.received, pending_since: None, epoch: self.epoch + 1, ..self.clone() }.finished(),
        }
    }

    /// Ends the batch. Everything about it returns to its initial value.
    fn finished(&self) -> Self {
        let done = self.claimed.max(self.settled);
        let Self { received, pending_since, last_at, last_sent_at, epoch, hold, .. } = *self;
        let kept = Self { received, pending_since, last_at, last_sent_at, epoch, hold, ..Self::default() };
        Self { claimed: done, answered: done, ..kept }
    }

    /// Returns when a wake-up must arrive for the conversation to continue. `None` if nothing is to
    /// be done, the conversation is on hold, or another event will continue it. A worker that waits
    /// puts its own wake-up back.
    pub fn wake_up(&self, now: Timestamp, timing: &Timing) -> Option<Timestamp> {
        if self.is_held(now) {
            return None;
        }
        match self.phase {
            Phase::Idle => self.due(timing).filter(|_| self.is_pending()),
            Phase::Replied => Some(now),
            Phase::Asking if self.lease_until.is_none() && self.not_before.is_none() => Some(now),
            _ => None,
        }
    }

    /// Returns when recovery must check the conversation if nothing happens before. `None` if
    /// nothing is to be checked: recovery does not watch a conversation that waits for a person.
    pub fn recovery_check_at(&self, now: Timestamp, timing: &Timing) -> Option<Timestamp> {
        if let Some(hold) = self.hold.filter(|_| self.is_held(now)) {
            return hold.until.map(Timestamp::from_millis);
        }
        let after = |at: i64| Timestamp::from_millis(at).plus_ms(LOST_AFTER_MS);
        match self.phase {
            Phase::Idle => self.due(timing).filter(|_| self.is_pending()).map(|due| after(due.millis())),
            Phase::Asking => Some(match (self.lease_until, self.not_before) {
                (Some(until), _) => Timestamp::from_millis(until),
                (None, until) => after(until.unwrap_or(now.millis())),
            }),
            Phase::Awaiting => self.not_before.map(Timestamp::from_millis),
            Phase::Replied => Some(after(now.millis())),
            Phase::Sending => Some(now.plus_ms(SENDING_LOST_AFTER_MS)),
            Phase::Stuck => None,
        }
    }
}

/// How late a wake-up may be before recovery stops waiting for it.
const LOST_AFTER_MS: i64 = 60_000;
/// How far a provider's clock may be ahead of ours.
const PROVIDER_SKEW_MS: i64 = 60_000;
/// How long a message may be with outbound before recovery checks it. Outbound sends a wake-up when
/// the message has ended, and has a recovery of its own.
const SENDING_LOST_AFTER_MS: i64 = 15 * 60_000;

#[cfg(test)]
mod tests;
