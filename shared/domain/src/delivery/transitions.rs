//! A delivery and all its transitions, as pure functions.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::outcome::{HELD_WAIT_MS, MAX_ATTEMPTS, Outcome, backoff_ms, code};
use super::state::State;
use super::verdict::{Again, UnknownPolicy, Verdict};
use crate::absent::is_default;
use crate::change::{Fence, Next, Row};
use crate::channels::Channel;
use crate::keys::{Key, Wake};
use crate::outbox::Emit;
use crate::time::Timestamp;
use crate::work::Work;

/// The part of a row that contains the state of its delivery.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Delivery {
    pub state: State,
    /// The last attempt that began; 0 if there was none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// The number of attempts that do not count as tries: those that reached a rate limit, and
    /// those before an order to send the delivery again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tries_from: u32,
    /// Attempts that may have been sent. While there are any, the delivery does not end as one that
    /// was not sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<u32>,
    /// Attempts that are known to have been sent. `provider_id` is the id of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent_attempts: Vec<u32>,
    /// Attempts that the provider accepted and then refused to send. Later proof that they were
    /// sent does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<u32>,
    /// The attempt that was under way when the delivery was canceled.
    pub recalled: Option<u32>,
    /// The earliest time of the next attempt.
    pub not_before: Option<Timestamp>,
    /// The time, in milliseconds, by which an attempt needs an outcome. Without one it is lost
    /// then.
    pub deadline: Option<i64>,
    /// The token of the claim that began the attempt under way.
    pub claim: Option<String>,
    /// The reason for the current state, as a code.
    pub reason: Option<String>,
    /// The provider's id of the message.
    pub provider_id: Option<String>,
    pub sent_at: Option<Timestamp>,
}

fn unless_empty(attempts: &Vec<u32>) -> Option<&Vec<u32>> {
    Some(attempts).filter(|attempts| !attempts.is_empty())
}

/// A row that embeds a delivery.
pub trait Delivered: Row {
    fn delivery(&self) -> &Delivery;
}

/// The times between which the delivery may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    pub not_before: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
}

impl Window {
    /// Returns whether it is too late to send.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.not_after.is_some_and(|not_after| not_after < now)
    }
}

/// The next step of a sender that received a delivery from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Begin this attempt, and then call the provider.
    Claim { attempt: u32 },
    /// It is too early: keep the delivery hidden in the queue until then.
    Wait { until: Timestamp },
    /// It is too late to send: end the delivery as `EXPIRED`.
    Expire,
    /// Another sender has the delivery, or the delivery has ended.
    Leave,
}

/// The beginning of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub attempt: u32,
    /// Unique, so that a sender recognizes its own claim if the reply to the write was lost.
    pub token: String,
    pub deadline: Timestamp,
}

/// Another condition for the beginning of an attempt. The transaction of the claim checks it.
#[derive(Debug, Clone, PartialEq)]
pub enum Gate {
    /// The suppression list does not contain the address, or contains it only for other senders.
    NotSuppressed { channel: Channel, to: String, sender: String },
    /// Another row of the same table has not changed since it was read.
    Unchanged { key: Key, fence: Fence },
}

/// The effect of an outcome, or of proof about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled<D> {
    /// Write this.
    Now(D),
    /// The row already contains this.
    Already,
    /// The outcome or the proof arrived too late to count.
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

    /// Returns the decision of a rule: commit the row, if there is one to write.
    pub fn into_next(self) -> Next<D, Settled<()>> {
        match self {
            Self::Now(row) => Next::Commit(row, Settled::Now(())),
            Self::Already => Next::Stop(Settled::Already),
            Self::TooLate => Next::Stop(Settled::TooLate),
        }
    }
}

/// The result of recovery for a delivery that no sender claimed in time, or whose sender did not
/// report an outcome in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery<R> {
    /// The delivery is enqueued again.
    Emitted(R),
    /// The attempt was given up. The delivery is now unknown, unless an earlier attempt is known to
    /// have been sent.
    GivenUp(R),
    /// Nothing about the delivery is overdue.
    Nothing,
}

/// The result of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The delivery was queued and is now canceled.
    Now,
    Already,
    /// An attempt is under way and is the last one, or it is unknown whether the delivery was sent.
    InFlight,
    AlreadySent,
    /// The delivery ended without being sent.
    Ended,
}

/// The fields that must not have changed when a delivery changes, in a row that has no version of
/// its own.
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
    /// Nothing about the attempts has changed since the row was read.
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

    /// Returns the first attempt that is known to have been sent.
    pub fn sent_attempt(&self) -> Option<u32> {
        self.sent_attempts.first().copied()
    }

    /// Returns whether an attempt that has ended was sent, or may have been sent.
    pub fn may_be_sent(&self) -> bool {
        !self.sent_attempts.is_empty() || !self.doubts.is_empty()
    }

    /// Returns whether `attempt` is under way.
    pub fn is_sending(&self, attempt: u32) -> bool {
        self.state == State::Sending && self.attempt == attempt
    }

    /// Returns whether the attempt under way has passed its deadline without an outcome.
    pub fn is_lost(&self, now: Timestamp) -> bool {
        self.state == State::Sending && self.deadline.is_none_or(|deadline| deadline <= now.millis())
    }

    /// Returns the next step of a sender. `window` is the window of the message itself.
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

    /// Begins an attempt. `None` if this is not the next attempt, or the delivery is not queued.
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

    /// Puts the next attempt off. `None` if the delivery is not queued.
    pub fn deferred(&self, not_before: Timestamp, reason: &str) -> Option<Self> {
        (self.state == State::Queued).then(|| Self {
            not_before: Some(not_before),
            reason: Some(reason.to_owned()),
            ..self.clone()
        })
    }

    /// Decides what follows from the outcome of the attempt under way. `jitter` is in thousandths;
    /// the caller passes it in, because rules use no randomness.
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
        // A canceled delivery is not sent again, whatever the channel's policy is.
        let resends = policy == UnknownPolicy::Resend && self.recalled.is_none() && tries < MAX_ATTEMPTS;
        match outcome {
            Outcome::Sent { provider_id } => Verdict::Sent { provider_id },
            Outcome::Permanent { code, suppress } => Verdict::Failed { code, suppress },
            Outcome::Unknown { code } if resends => match again(Again::Policy, code, backoff_ms(tries, jitter)) {
                // It is too late to send the message again, but it may have been sent.
                Verdict::Expired { code } => Verdict::Unknown { code },
                verdict => verdict,
            },
            Outcome::Unknown { code } => Verdict::Unknown { code },
            // The message did not cause the rate limit, so the attempt does not count as a try. The
            // wait is kept, however long it is.
            Outcome::Throttled { retry_after_ms, .. } => again(Again::Throttled, code::THROTTLED, retry_after_ms),
            // Neither a rate limit of our own nor a hold on the sender counts as a try.
            Outcome::NoSlot { wait_ms } => again(Again::Throttled, code::NOT_CALLED, wait_ms),
            Outcome::Held { why } => again(Again::Throttled, why.as_str(), HELD_WAIT_MS),
            Outcome::Transient { code } if tries >= MAX_ATTEMPTS => Verdict::Failed { code, suppress: false },
            // It is tried again soon at first, because a credential that was just rotated may be
            // cached, and then at long intervals. It never fails for this.
            Outcome::Unauthorized { code } if tries >= MAX_ATTEMPTS => again(Again::Throttled, code, HELD_WAIT_MS),
            Outcome::Transient { code } | Outcome::Unauthorized { code } => {
                again(Again::Retry, code, backoff_ms(tries, jitter))
            }
        }
    }

    /// Gives up the attempt under way if its sender did not report an outcome in time. `None` if
    /// the attempt is not overdue.
    pub fn lost(&self, window: Window, policy: UnknownPolicy, now: Timestamp, jitter: u32) -> Option<Verdict> {
        let lost = Outcome::Unknown { code: code::SENDER_LOST };
        self.is_lost(now).then(|| self.verdict(window, lost, policy, now, jitter))
    }

    /// Settles an attempt. "Sent" counts from every source and at any time. Any other outcome
    /// counts while the attempt is under way. After the attempt was given up as lost, a report of
    /// the sender that it was not sent still resolves the doubt.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        if let Verdict::Sent { provider_id } = verdict {
            return self.confirmed(attempt, provider_id, now);
        }
        if !self.is_sending(attempt) {
            return self.settled_late(attempt, verdict);
        }
        if !self.sent_attempts.is_empty() {
            // An earlier attempt was sent, and this one is over, so the delivery was sent. This
            // attempt may have been sent too, which counts if the provider rejects the earlier one.
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

    /// Queues another attempt, unless the delivery was canceled during this one.
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

    /// Records proof that an attempt was sent, from the sender, an event or our own echo. The proof
    /// also changes a delivery that was given up or that an operator settled, because the
    /// provider's information is more reliable.
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
        // A later attempt that is under way continues. The delivery was sent, whatever the outcome
        // of that attempt is.
        let goes_on = self.state == State::Sent || self.state == State::Sending && self.attempt != attempt;
        Settled::Now(if goes_on { next } else { next.over(State::Sent, None) })
    }

    /// Records that the provider accepted an attempt and then refused to send it. The rejection is
    /// recorded in every state, because proof that the attempt was sent may arrive later and must
    /// not count then.
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
        // If an operator declared the delivery sent, that remains valid while there is an attempt
        // that the operator may have meant.
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

    /// Removes an attempt from the doubts, because it is known not to have been sent.
    fn without_doubt(&self, attempt: u32, code: &str) -> Self {
        let doubts = self.doubts.iter().copied().filter(|doubt| *doubt != attempt).collect();
        self.resolved(Self { doubts, ..self.clone() }, code)
    }

    /// Ends an unknown delivery after all attempts in doubt proved not sent: it ends as canceled if
    /// it was recalled, and as failed otherwise. It is not queued again automatically, because
    /// an operator or a client may have acted on the unknown state.
    fn resolved(&self, next: Self, code: &str) -> Self {
        match (self.state == State::Unknown && next.doubts.is_empty(), self.recalled) {
            (true, None) => next.over(State::Failed, Some(code)),
            (true, Some(_)) => next.over(State::Canceled, None),
            (false, _) => next,
        }
    }

    /// Ends a delivery that must not be sent. `None` if it is not queued.
    pub fn ended(&self, state: State, reason: Option<&str>) -> Option<Self> {
        (self.state == State::Queued).then(|| self.unsent(state, reason))
    }

    /// Cancels the delivery. A queued delivery ends at once; if an attempt is under way, no other
    /// attempt follows. The second part is the delivery to write, `None` if nothing changes.
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

    /// Queues the delivery again by an operator's order. Attempts that may have been sent stay in
    /// doubt. `None` if the delivery is neither `FAILED` nor `UNKNOWN`.
    pub fn resent(&self) -> Option<Self> {
        matches!(self.state, State::Failed | State::Unknown).then(|| Self {
            tries_from: self.attempt,
            // The order to send again is newer than the recall.
            recalled: None,
            ..self.over(State::Queued, None)
        })
    }

    /// Settles an unknown delivery as an operator declares. `None` if it is not unknown.
    pub fn declared(&self, was_sent: bool, now: Timestamp) -> Option<Self> {
        (self.state == State::Unknown).then(|| {
            match was_sent {
                // The operator does not say which attempt was sent: if the provider rejects one,
                // another may have been sent. So the doubts stay.
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

    /// Ends the delivery as not sent, or as `UNKNOWN` if an attempt may have been sent.
    fn unsent(&self, state: State, reason: Option<&str>) -> Self {
        self.over(if self.doubts.is_empty() { state } else { State::Unknown }, reason)
    }

    /// Moves the delivery to `state` and clears the data of the attempt, if there was one.
    fn over(&self, state: State, reason: Option<&str>) -> Self {
        let reason = reason.map(str::to_owned);
        Self { state, reason, not_before: None, deadline: None, claim: None, ..self.clone() }
    }
}

impl Work {
    /// Schedules the work that follows from the new state of a delivery: it waits for its time, for
    /// its sender or for an operator, or nothing follows. `emit` builds the job that is enqueued
    /// for a sender.
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
