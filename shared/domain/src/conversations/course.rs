//! The course of a conversation: three watermarks, one phase, and every way in which they move.
//!
//! Messages are numbered as they are received. `answered <= claimed <= received` holds always: what
//! lies above `claimed` is pending, what lies between `answered` and `claimed` is the one batch in
//! process. Two pendings or two batches cannot be written down. Each change is computed from the
//! row as it was read and written on the condition that its version has not changed, so the store
//! refuses whoever decided on an older row, and the model in the tests is this very code.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::batch::Portion;
use crate::absent::is_default;
use crate::codes::codes;
use crate::senders::instances::Timing;
use crate::time::Timestamp;

codes! {
    /// Where the batch in process stands.
    Phase {
        /// There is none.
        Idle = "idle",
        /// A worker asks the responder, under its lease, or will when it is time to try again.
        Asking = "asking",
        /// The responder said that it answers later.
        Awaiting = "awaiting",
        /// There is a reply, and it is not to be sent while somebody holds the conversation.
        Replied = "replied",
        /// A part of the reply is with outbound.
        Sending = "sending",
        /// The responder was asked in vain. A person is needed, or a late answer.
        Stuck = "stuck",
    }
}

codes! {
    /// Who keeps the bot silent.
    HeldBy {
        Operator = "operator",
        /// Somebody who answered from the phone.
        Person = "person",
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    pub by: HeldBy,
    /// Milliseconds.
    pub since: i64,
    /// Milliseconds; none is until it is released.
    pub until: Option<i64>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Course {
    pub received: u64,
    pub claimed: u64,
    pub answered: u64,
    /// A person answered up to here while a reply was on its way: done with as soon as that is
    /// settled.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settled: u64,
    pub phase: Phase,
    /// Milliseconds: when the first pending message came, and the last.
    pub pending_since: Option<i64>,
    pub last_at: Option<i64>,
    /// Milliseconds, by the provider's clock: when the contact's latest message was sent, of those
    /// that say so.
    pub last_sent_at: Option<i64>,
    /// Milliseconds: when the first message of the batch in process came.
    pub batch_since: Option<i64>,
    /// Grows with each turn of a worker: what an earlier one says of its batch is not heard.
    pub epoch: u64,
    /// Milliseconds: how long the worker of this turn is waited for.
    pub lease_until: Option<i64>,
    /// How often the responder was asked about this batch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempts: u32,
    /// Milliseconds: the responder is not asked again before this, or its late answer is waited for
    /// until then.
    pub not_before: Option<i64>,
    /// The part of the reply that is on its way, or is next, of so many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub part: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub parts: u32,
    /// How often a part was handed to outbound: names the message that it became.
    #[serde(default, skip_serializing_if = "is_default")]
    pub handed: u32,
    /// The message that whoever holds the conversation has called back: if it had not left, it is
    /// said after the hold.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recalled: u32,
    pub hold: Option<Hold>,
}

/// What a worker that was woken does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is nothing to do, or somebody else will see to it.
    Rest,
    /// Nothing is to be done before then.
    Wait(Timestamp),
    /// Read the first pending messages, write [`Course::claim`] of what one batch takes of them,
    /// then ask the responder.
    Claim,
    /// Write this course, then ask the responder about its batch, which was claimed before.
    Ask(Course),
    /// Write this course, and with it the next part of the reply as a message.
    HandOver(Course),
    /// See what became of the message that is on its way.
    Look,
    /// Write this course: it was asked often enough.
    GiveUp(Course),
}

/// How the message of a part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartEnd {
    /// Sent, or nobody knows: what may have been read is not said again.
    Sent,
    NotSent,
    Canceled,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            received: 0,
            claimed: 0,
            answered: 0,
            settled: 0,
            phase: Phase::Idle,
            pending_since: None,
            last_at: None,
            last_sent_at: None,
            batch_since: None,
            epoch: 0,
            lease_until: None,
            attempts: 0,
            not_before: None,
            part: 0,
            parts: 0,
            handed: 0,
            recalled: 0,
            hold: None,
        }
    }
}

impl Course {
    /// Something was received that nobody has claimed, nor a person answered.
    pub fn is_pending(&self) -> bool {
        self.received > self.claimed.max(self.settled)
    }

    pub fn is_held(&self, now: Timestamp) -> bool {
        self.hold.is_some_and(|hold| hold.until.is_none_or(|until| until > now.millis()))
    }

    /// When what is pending is to be claimed: a while after the last message, and not longer after
    /// the first than is bearable.
    pub fn due(&self, timing: &Timing) -> Option<Timestamp> {
        let (first, last) = (self.pending_since?, self.last_at?);
        Some(Timestamp::from_millis((last + timing.debounce_ms).min(first + timing.max_wait_ms)))
    }

    /// Milliseconds: since when somebody waits for an answer.
    pub fn unanswered_since(&self) -> Option<i64> {
        self.batch_since.or(self.pending_since)
    }

    /// A message came, which its provider says was sent at `sent_at`: the next number is its own.
    pub fn receive(&self, now: Timestamp, sent_at: Option<Timestamp>) -> Self {
        let last_at = self.last_at.map_or(now.millis(), |last| last.max(now.millis()));
        let pending_since = if self.is_pending() { self.pending_since } else { Some(now.millis()) };
        // A time far ahead of ours is a wrong clock: it must not make every later answer of a
        // person look old.
        let sent_at = sent_at.map(|at| at.min(now.plus_ms(PROVIDER_SKEW_MS)).millis());
        let last_sent_at = self.last_sent_at.max(sent_at);
        Self { received: self.received + 1, pending_since, last_at: Some(last_at), last_sent_at, ..self.clone() }
    }

    pub fn next(&self, now: Timestamp, timing: &Timing) -> Step {
        let waits = |until: Option<i64>| until.filter(|until| *until > now.millis());
        match self.phase {
            Phase::Sending => Step::Look,
            Phase::Stuck => Step::Rest,
            // Whoever works on it, or answers later, or died, is waited for.
            Phase::Asking if waits(self.lease_until).is_some() => Step::Rest,
            Phase::Awaiting if waits(self.not_before).is_some() => Step::Rest,
            _ if self.is_held(now) => Step::Rest,
            Phase::Replied => Step::HandOver(self.handed_over()),
            Phase::Asking | Phase::Awaiting => match waits(self.not_before) {
                Some(until) => Step::Wait(Timestamp::from_millis(until)),
                None if self.attempts >= timing.attempts => Step::GiveUp(self.stuck()),
                None => Step::Ask(self.asking(now, timing)),
            },
            Phase::Idle => match self.due(timing).filter(|_| self.is_pending()) {
                None => Step::Rest,
                Some(due) if due > now => Step::Wait(due),
                Some(_) => Step::Claim,
            },
        }
    }

    /// The course after a claim of this portion of what is pending. The rest stays pending, and is
    /// the next batch.
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

    /// Whether a worker's turn is still the present one: what it learned counts.
    pub fn is_turn(&self, batch: u64, epoch: u64) -> bool {
        self.phase == Phase::Asking && self.claimed == batch && self.epoch == epoch
    }

    /// Whether an answer to this batch is still wanted, whoever brings it.
    pub fn wants_reply(&self, batch: u64) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Awaiting | Phase::Stuck) && self.claimed == batch
    }

    /// The responder failed: it is asked again after a while, or a person is called.
    pub fn failed(&self, now: Timestamp, timing: &Timing) -> Self {
        if self.attempts >= timing.attempts {
            return self.stuck();
        }
        let not_before = Some(now.millis() + timing.wait_ms(self.attempts));
        Self { lease_until: None, not_before, ..self.clone() }
    }

    /// The responder answers later.
    pub fn awaiting(&self, now: Timestamp, timing: &Timing) -> Self {
        let not_before = Some(now.millis() + timing.callback_ms);
        Self { phase: Phase::Awaiting, lease_until: None, not_before, ..self.clone() }
    }

    fn stuck(&self) -> Self {
        Self { phase: Phase::Stuck, lease_until: None, not_before: None, ..self.clone() }
    }

    /// There is an answer, of so many messages; none is nothing to say.
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

    /// The message of the part that was on its way has ended.
    pub fn part_ended(&self, end: PartEnd, now: Timestamp) -> Self {
        let withheld = |part| Self { phase: Phase::Replied, part, ..self.clone() };
        let next = self.part + 1;
        match end {
            // A person has answered meanwhile: there is nothing more to say.
            _ if self.settled >= self.claimed => self.finished(),
            // Called back before it left: it is said when they let go, who may have done so by now.
            PartEnd::Canceled if self.recalled == self.handed => withheld(self.part),
            PartEnd::Sent if next < self.parts && self.is_held(now) => withheld(next),
            PartEnd::Sent if next < self.parts => withheld(next).handed_over(),
            _ => self.finished(),
        }
    }

    /// Who holds it for longer stays.
    pub fn hold(&self, hold: Hold) -> Self {
        let ends = |hold: &Hold| hold.until.unwrap_or(i64::MAX);
        let hold = self.hold.filter(|before| ends(before) >= ends(&hold)).unwrap_or(hold);
        let recalled = if self.phase == Phase::Sending { self.handed } else { 0 };
        Self { hold: Some(hold), recalled, ..self.clone() }
    }

    /// The bot may speak again. What it was stuck with it asks about once more.
    pub fn release(&self) -> Self {
        let released = Self { hold: None, ..self.clone() };
        match self.phase {
            Phase::Stuck => Self { phase: Phase::Asking, attempts: 0, ..released },
            // Its own wake-up may have come in vain meanwhile. While a worker asks, there is no
            // time to wait for.
            Phase::Asking => Self { not_before: None, ..released },
            _ => released,
        }
    }

    /// A person wrote at `at`, by the provider's clock, and has answered everything that the
    /// contact sent before. If the contact's latest message was sent later, or in the same moment,
    /// everything stays pending. Where the provider gave no time, the order of arrival decides.
    pub fn answered_by_person(&self, at: Option<Timestamp>) -> Self {
        let is_later = |(at, last): (Timestamp, i64)| at.millis() <= last;
        if at.zip(self.last_sent_at).is_some_and(is_later) { self.clone() } else { self.settle() }
    }

    /// Whether the reply that is on its way is to be canceled: somebody holds the conversation, or
    /// a person has answered.
    pub fn is_recalled(&self) -> bool {
        self.phase == Phase::Sending && (self.settled >= self.claimed || self.recalled == self.handed)
    }

    /// Everything so far is done with. A reply that is on its way is waited for.
    pub fn settle(&self) -> Self {
        match self.phase {
            Phase::Sending => Self { settled: self.received, pending_since: None, ..self.clone() },
            _ => Self { claimed: self.received, pending_since: None, epoch: self.epoch + 1, ..self.clone() }.finished(),
        }
    }

    fn finished(&self) -> Self {
        let done = self.claimed.max(self.settled);
        Self {
            claimed: done,
            answered: done,
            settled: 0,
            phase: Phase::Idle,
            batch_since: None,
            lease_until: None,
            attempts: 0,
            not_before: None,
            part: 0,
            parts: 0,
            handed: 0,
            recalled: 0,
            ..self.clone()
        }
    }

    /// When a wake-up has to come for the conversation to go on, unless somebody has it in hand. A
    /// worker that waits puts its own wake-up back.
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

    /// When it was lost sight of, if nothing happens until then. A person is not lost sight of.
    pub fn look_again(&self, now: Timestamp, timing: &Timing) -> Option<Timestamp> {
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

/// A wake-up that is so late is not waited for any longer.
const LOST_AFTER_MS: i64 = 60_000;
/// How far a provider's clock may be ahead of ours.
const PROVIDER_SKEW_MS: i64 = 60_000;
/// Outbound tells when a message is settled, and has a recovery of its own.
const SENDING_LOST_AFTER_MS: i64 = 15 * 60_000;

#[cfg(test)]
mod tests;
