//! A delivery and every change that it can go through, as pure functions.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::outcome::{HELD_WAIT_MS, MAX_ATTEMPTS, Outcome, backoff_ms, code};
use super::state::State;
use super::verdict::{Again, UnknownPolicy, Verdict};
use crate::absent::is_default;
use crate::change::{Fence, Row};
use crate::channels::Channel;
use crate::keys::{Key, Wake};
use crate::outbox::Emit;
use crate::time::Timestamp;
use crate::work::Work;

/// The part of a row that says how far its delivery is.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Delivery {
    pub state: State,
    /// The last attempt that was begun; 0 if none was.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Attempts that do not count as tries: those that met a limit, and those before an order to
    /// send it again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tries_from: u32,
    /// Attempts that may have been sent. While there are any, the delivery does not end as one that
    /// was not sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<u32>,
    /// Attempts that are known to have been sent. `provider_id` is that of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent_attempts: Vec<u32>,
    /// Attempts that the provider accepted and then refused to send: nothing proves them sent any
    /// more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<u32>,
    /// The attempt that was under way when the delivery was canceled.
    pub recalled: Option<u32>,
    /// The next attempt is not made before this.
    pub not_before: Option<Timestamp>,
    /// Milliseconds: an attempt without an outcome by then is lost.
    pub deadline: Option<i64>,
    /// Which claim began the attempt that is under way.
    pub claim: Option<String>,
    /// Why it stands as it does: a code.
    pub reason: Option<String>,
    /// What the provider calls it.
    pub provider_id: Option<String>,
    pub sent_at: Option<Timestamp>,
}

fn unless_empty(attempts: &Vec<u32>) -> Option<&Vec<u32>> {
    Some(attempts).filter(|attempts| !attempts.is_empty())
}

/// A row whose delivery is embedded in it.
pub trait Delivered: Row {
    fn delivery(&self) -> &Delivery;
}

/// The times between which a delivery may be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    pub not_before: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
}

impl Window {
    /// Whether it is too late to send.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.not_after.is_some_and(|not_after| not_after < now)
    }
}

/// What a sender does next with a delivery that it was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Begin this attempt, and then call the provider.
    Claim { attempt: u32 },
    /// It is early: leave it hidden until then.
    Wait { until: Timestamp },
    /// It is too late to send it: end it as `EXPIRED`.
    Expire,
    /// Another sender has it, or it has ended.
    Leave,
}

/// The beginning of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub attempt: u32,
    /// Unique, so that a claim whose reply was lost is recognized.
    pub token: String,
    pub deadline: Timestamp,
}

/// What else must hold when an attempt is begun. The claim's own transaction checks it.
#[derive(Debug, Clone, PartialEq)]
pub enum Gate {
    /// The address is not on the suppression list, or not for this sender.
    NotSuppressed { channel: Channel, to: String, sender: String },
    /// Another row of the same table is as it was read.
    Unchanged { key: Key, fence: Fence },
}

/// The effect of an outcome, or of proof about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled<D> {
    /// Write this.
    Now(D),
    /// The row says so already.
    Already,
    /// It came too late to count.
    TooLate,
}

impl<D> Settled<D> {
    pub fn map<R>(self, row: impl FnOnce(D) -> R) -> Settled<R> {
        match self {
            Self::Now(delivery) => Settled::Now(row(delivery)),
            Self::Already => Settled::Already,
            Self::TooLate => Settled::TooLate,
        }
    }
}

/// What recovery does with a delivery that was not taken on, or whose sender was not heard of, in
/// time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery<R> {
    /// It is handed to its queue again.
    Emitted(R),
    /// Its attempt was given up: unknown from now on, unless an earlier one is known to have been
    /// sent.
    GivenUp(R),
    /// It waits for nothing that is overdue.
    Nothing,
}

/// What a request to cancel can still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// It was queued, and is canceled.
    Now,
    Already,
    /// An attempt is under way and is the last one, or nobody knows whether it was sent.
    InFlight,
    AlreadySent,
    /// It ended without being sent.
    Ended,
}

/// What a change of a delivery rests on, in a row that has no version of its own.
#[derive(Serialize)]
struct DeliveryFence<'a> {
    state: State,
    attempt: Option<u32>,
    doubts: Option<&'a Vec<u32>>,
    sent_attempts: Option<&'a Vec<u32>>,
    rejected: Option<&'a Vec<u32>>,
    recalled: Option<u32>,
}

impl Delivery {
    /// Nothing about the attempts has changed since it was read.
    pub fn fence(&self) -> Fence {
        Fence::same(&DeliveryFence {
            state: self.state,
            attempt: Some(self.attempt).filter(|attempt| *attempt > 0),
            doubts: unless_empty(&self.doubts),
            sent_attempts: unless_empty(&self.sent_attempts),
            rejected: unless_empty(&self.rejected),
            recalled: self.recalled,
        })
    }

    /// The first attempt that is known to have been sent.
    pub fn sent_attempt(&self) -> Option<u32> {
        self.sent_attempts.first().copied()
    }

    /// Whether an attempt is under way.
    pub fn is_sending(&self, attempt: u32) -> bool {
        self.state == State::Sending && self.attempt == attempt
    }

    /// Whether the sender of the attempt that is under way was not heard of in time.
    pub fn is_lost(&self, now: Timestamp) -> bool {
        self.state == State::Sending && self.deadline.is_none_or(|deadline| deadline <= now.millis())
    }

    /// What a sender does next. `window` is that of the message itself.
    pub fn next(&self, window: Window, now: Timestamp) -> NextStep {
        if self.state != State::Queued {
            return NextStep::Leave;
        }
        if window.is_over(now) {
            return NextStep::Expire;
        }
        match window.not_before.max(self.not_before) {
            Some(until) if until > now => NextStep::Wait { until },
            _ => NextStep::Claim { attempt: self.attempt + 1 },
        }
    }

    /// Begins an attempt. `None` if this is not the next one, or the delivery is not queued.
    pub fn claimed(&self, claim: &Claim) -> Option<Self> {
        let is_next = self.state == State::Queued && claim.attempt == self.attempt + 1;
        is_next.then(|| Self {
            state: State::Sending,
            attempt: claim.attempt,
            deadline: Some(claim.deadline.millis()),
            claim: Some(claim.token.clone()),
            not_before: None,
            ..self.clone()
        })
    }

    /// Judges the outcome of the attempt that is under way. `jitter` is in thousandths, because
    /// rules have no dice.
    pub fn verdict(
        &self,
        window: Window,
        outcome: Outcome,
        policy: UnknownPolicy,
        now: Timestamp,
        jitter: u32,
    ) -> Verdict {
        let tries = self.attempt.saturating_sub(self.tries_from);
        let again = |why: Again, code: &'static str, wait_ms: i64| {
            let not_before = now.plus_ms(wait_ms);
            match window.is_over(not_before) {
                true => Verdict::Expired { code },
                false => Verdict::Again { why, code, not_before },
            }
        };
        // A delivery that was canceled is not sent again, whatever the channel's policy is.
        let resends = policy == UnknownPolicy::Resend && self.recalled.is_none() && tries < MAX_ATTEMPTS;
        match outcome {
            Outcome::Sent { provider_id } => Verdict::Sent { provider_id },
            Outcome::Permanent { code, suppress } => Verdict::Failed { code, suppress },
            Outcome::Unknown { code } if resends => match again(Again::Policy, code, backoff_ms(tries, jitter)) {
                // It is too late to send it again, but it may have been sent.
                Verdict::Expired { code } => Verdict::Unknown { code },
                verdict => verdict,
            },
            Outcome::Unknown { code } => Verdict::Unknown { code },
            // A limit is not the message's fault: it does not use up a try, and is honoured however
            // long it is.
            Outcome::Throttled { retry_after_ms, .. } => again(Again::Throttled, code::THROTTLED, retry_after_ms),
            // Nor does a hold on the sender.
            Outcome::Held { why } => again(Again::Throttled, why.as_str(), HELD_WAIT_MS),
            Outcome::Transient { code } if tries >= MAX_ATTEMPTS => Verdict::Failed { code, suppress: false },
            Outcome::Transient { code } => again(Again::Retry, code, backoff_ms(tries, jitter)),
        }
    }

    /// Gives up the attempt that is under way, if its sender was not heard of in time. `None` if it
    /// is not overdue.
    pub fn lost(&self, window: Window, policy: UnknownPolicy, now: Timestamp, jitter: u32) -> Option<Verdict> {
        let lost = Outcome::Unknown { code: code::SENDER_LOST };
        self.is_lost(now).then(|| self.verdict(window, lost, policy, now, jitter))
    }

    /// Settles an attempt. "Sent" counts from anybody and at any time. Any other outcome counts
    /// while the attempt is under way; after it was given up as lost, the sender's own word that it
    /// was not sent still resolves the doubt.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        if let Verdict::Sent { provider_id } = verdict {
            return self.confirmed(attempt, provider_id, now);
        }
        if !self.is_sending(attempt) {
            return self.settled_late(attempt, verdict);
        }
        if !self.sent_attempts.is_empty() {
            // An earlier attempt was sent, and this one is over: the delivery was sent. This one
            // may have been sent too, which counts if the provider rejects the earlier one.
            let may_be_sent = matches!(verdict, Verdict::Unknown { .. } | Verdict::Again { why: Again::Policy, .. });
            let next = if may_be_sent { self.with_doubt() } else { self.clone() };
            return Settled::Now(next.over(State::Sent, None));
        }
        Settled::Now(match verdict {
            Verdict::Sent { .. } => return Settled::TooLate,
            Verdict::Failed { code, .. } => self.unsent(State::Failed, Some(code)),
            Verdict::Expired { code } => self.unsent(State::Expired, Some(code)),
            Verdict::Unknown { code } => self.with_doubt().over(State::Unknown, Some(code)),
            Verdict::Again { why, code, not_before } => self.again(*why, code, *not_before),
        })
    }

    /// There is another attempt, unless the delivery was canceled while this one was under way.
    fn again(&self, why: Again, code: &str, not_before: Timestamp) -> Self {
        let next = match why {
            Again::Retry => self.clone(),
            Again::Throttled => Self { tries_from: self.tries_from + 1, ..self.clone() },
            Again::Policy => self.with_doubt(),
        };
        match (self.recalled, next.doubts.is_empty()) {
            (Some(_), true) => next.over(State::Canceled, None),
            (Some(_), false) => next.over(State::Unknown, Some(code)),
            (None, _) => Self { not_before: Some(not_before), ..next.over(State::Queued, Some(code)) },
        }
    }

    fn settled_late(&self, attempt: u32, verdict: &Verdict) -> Settled<Self> {
        let (code, says_so) = match verdict {
            Verdict::Sent { .. } => return Settled::TooLate,
            Verdict::Unknown { .. } => return self.already(attempt, self.state == State::Unknown),
            Verdict::Again { why: Again::Policy, .. } => return Settled::TooLate,
            Verdict::Again { code, .. } => (code, self.state == State::Queued),
            Verdict::Failed { code, .. } => (code, self.state == State::Failed),
            Verdict::Expired { code } => (code, self.state == State::Expired),
        };
        match self.doubts.contains(&attempt) {
            true => Settled::Now(self.without_doubt(attempt, code)),
            false => self.already(attempt, says_so),
        }
    }

    fn already(&self, attempt: u32, says_so: bool) -> Settled<Self> {
        if self.attempt == attempt && says_so { Settled::Already } else { Settled::TooLate }
    }

    /// Proof that an attempt was sent, from the sender, an event or our own echo. It also moves a
    /// delivery that was given up, or that an operator settled: the provider knows better.
    pub fn confirmed(&self, attempt: u32, provider_id: &str, now: Timestamp) -> Settled<Self> {
        let is_over = matches!(self.state, State::Canceled | State::Suppressed | State::Expired | State::Deduped);
        if is_over || attempt == 0 || attempt > self.attempt || self.rejected.contains(&attempt) {
            return Settled::TooLate;
        }
        if self.sent_attempts.contains(&attempt) {
            return Settled::Already;
        }
        let mut next = self.clone();
        next.doubts.retain(|doubt| *doubt != attempt);
        next.sent_attempts.push(attempt);
        if self.sent_attempts.is_empty() {
            next.provider_id = Some(provider_id.to_owned());
        }
        next.sent_at = self.sent_at.or(Some(now));
        // A later attempt that is under way goes on: whatever its outcome is, the delivery was
        // sent.
        let goes_on = self.state == State::Sent || self.state == State::Sending && self.attempt != attempt;
        Settled::Now(if goes_on { next } else { next.over(State::Sent, None) })
    }

    /// The provider accepted an attempt and then refused to send it. That is recorded whatever the
    /// state is, because proof of the attempt may come later, and does not count then.
    pub fn rejected(&self, attempt: u32, code: &str) -> Settled<Self> {
        if attempt == 0 || attempt > self.attempt {
            return Settled::TooLate;
        }
        if self.rejected.contains(&attempt) {
            return Settled::Already;
        }
        let mut next = self.clone();
        next.rejected.push(attempt);
        next.doubts.retain(|doubt| *doubt != attempt);
        next.sent_attempts.retain(|sent| *sent != attempt);
        // An operator's word that it was sent stands while there is an attempt that it may be
        // about.
        let is_operators_word = self.sent_attempts.is_empty() && !next.doubts.is_empty();
        let was_sent = !next.sent_attempts.is_empty() || self.state == State::Sent && is_operators_word;
        next.sent_at = next.sent_at.filter(|_| was_sent);
        Settled::Now(match self.state {
            State::Sent if was_sent => next,
            State::Sending if self.attempt == attempt && was_sent => next.over(State::Sent, None),
            State::Sent => next.unsent(State::Failed, Some(code)),
            State::Sending if self.attempt == attempt => next.unsent(State::Failed, Some(code)),
            _ => self.resolved(next, code),
        })
    }

    /// An attempt that may have been sent is known not to have been.
    fn without_doubt(&self, attempt: u32, code: &str) -> Self {
        let doubts = self.doubts.iter().copied().filter(|doubt| *doubt != attempt).collect();
        self.resolved(Self { doubts, ..self.clone() }, code)
    }

    /// A delivery that was unknown for attempts that were all not sent has failed, or was canceled
    /// in time. It is not sent again by itself: somebody may have acted on it.
    fn resolved(&self, next: Self, code: &str) -> Self {
        match (self.state == State::Unknown && next.doubts.is_empty(), self.recalled) {
            (true, None) => next.over(State::Failed, Some(code)),
            (true, Some(_)) => next.over(State::Canceled, None),
            (false, _) => next,
        }
    }

    /// Ends a delivery that is not to be sent. `None` if it is not queued.
    pub fn ended(&self, state: State, reason: Option<&str>) -> Option<Self> {
        (self.state == State::Queued).then(|| self.unsent(state, reason))
    }

    /// Cancels it: at once if it is queued; during an attempt there will be no other. The second
    /// part is what to write, if anything.
    pub fn cancel(&self) -> (Cancel, Option<Self>) {
        match self.state {
            State::Queued => {
                let next = self.unsent(State::Canceled, None);
                (if next.state == State::Unknown { Cancel::InFlight } else { Cancel::Now }, Some(next))
            }
            State::Sending if self.recalled.is_none() => {
                (Cancel::InFlight, Some(Self { recalled: Some(self.attempt), ..self.clone() }))
            }
            State::Sending | State::Unknown => (Cancel::InFlight, None),
            State::Canceled => (Cancel::Already, None),
            State::Sent => (Cancel::AlreadySent, None),
            State::Failed | State::Deduped | State::Suppressed | State::Expired => (Cancel::Ended, None),
        }
    }

    /// Queues it again by an operator's order. Attempts that may have been sent stay in doubt.
    /// `None` if it is neither `FAILED` nor `UNKNOWN`.
    pub fn resent(&self) -> Option<Self> {
        matches!(self.state, State::Failed | State::Unknown).then(|| Self {
            tries_from: self.attempt,
            // The order to send it again is the later one.
            recalled: None,
            ..self.over(State::Queued, None)
        })
    }

    /// Settles an unknown delivery on an operator's word. `None` if it is not unknown.
    pub fn declared(&self, was_sent: bool, now: Timestamp) -> Option<Self> {
        (self.state == State::Unknown).then(|| {
            match was_sent {
                // Which attempt it was is not known: if the provider rejects one, it may have been
                // another.
                true => Self { sent_at: Some(now), ..self.over(State::Sent, None) },
                false => Self { doubts: Vec::new(), ..self.over(State::Failed, None) },
            }
        })
    }

    fn with_doubt(&self) -> Self {
        let mut next = self.clone();
        if !next.doubts.contains(&self.attempt) {
            next.doubts.push(self.attempt);
        }
        next
    }

    /// Ended without being sent, unless an attempt may have been.
    fn unsent(&self, state: State, reason: Option<&str>) -> Self {
        self.over(if self.doubts.is_empty() { state } else { State::Unknown }, reason)
    }

    /// The attempt, if there was one, is over.
    fn over(&self, state: State, reason: Option<&str>) -> Self {
        let reason = reason.map(str::to_owned);
        Self { state, reason, not_before: None, deadline: None, claim: None, ..self.clone() }
    }
}

impl Work {
    /// What a delivery waits for after a change: its time, its sender, a person, or nothing. `emit`
    /// makes the job that is handed to a sender.
    pub fn follow(
        &mut self,
        delivery: &Delivery,
        id: &str,
        now: Timestamp,
        emit: impl FnOnce(u64, Option<i64>) -> Emit,
    ) {
        self.later = None;
        match delivery.state {
            State::Queued => self.schedule(id, delivery.not_before, now, emit),
            State::Sending => self.taken_on(id, delivery.deadline.map_or(now, Timestamp::from_millis)),
            State::Unknown => {
                self.emit = None;
                self.wait_until(Wake::Unknown, id, now);
            }
            _ => self.rest(),
        }
    }
}

#[cfg(test)]
mod tests;
