//! What may become of an offer. Each function takes the row as it was read and gives the row to write in its place, on the
//! condition that its version has not changed; the gate takes the charges as they were read, on the same condition.
//!
//! Invariants. An attempt is begun only from `QUEUED`, with the gate open on charges that have not changed until the claim
//! is made: so none is begun after a payment was written. `SENDING` is never begun again: its exits are the outcome and
//! `UNKNOWN`. What may have been sent does not end as unsent. An offer whose charge expired does not end while its contact
//! has another unpaid charge: it is passed on to the newest one. So an unpaid charge that found an offer pending is not left
//! without one.

use super::charges::ChargesRow;
use super::definition::DownsellRow;
use super::offer::{Delivery, OfferRow, Status, Trigger, Why};
use super::passing::Outdated;
use crate::delivery::{Again, Outcome, Progress, State, UnknownPolicy, Verdict, code, settle};
use crate::keys::{self, Wake};
use crate::messages::check_after_ms;
use crate::senders::bots::BotRow;
use crate::time::Timestamp;

/// How an offer ends that is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Canceled(Why),
    Skipped(Why),
    Expired,
}

impl End {
    /// Whether it follows from what the contact was asked to pay: then it holds only while that has not changed.
    pub const fn rests_on_charges(self) -> bool {
        matches!(self, Self::Canceled(Why::Paid | Why::Expired) | Self::Skipped(Why::NoUnpaidPix))
    }
}

/// Whether an offer may leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    Open,
    Closed(End),
    /// Not as it is: its charge expired. Write this, and decide again.
    PassedOn(Box<OfferRow>),
}

/// What a cancel can still do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancel {
    /// Write this.
    Now(Box<OfferRow>),
    /// An attempt is under way, or nobody knows how it ended.
    InFlight,
    AlreadySent,
    /// It ended without being sent.
    Ended,
}

/// What a sender's outcome does to the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learned {
    /// Write this.
    New(Box<OfferRow>),
    /// The row says so already.
    Already,
    /// It came too late to count.
    TooLate,
}

/// What becomes of an offer that was not heard of for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recalled {
    /// Handed to its queue again.
    Emitted(Box<OfferRow>),
    /// Its attempt is known no more.
    Unknown(Box<OfferRow>),
    /// It waits for nothing that is overdue.
    Left,
}

impl OfferRow {
    /// Why this offer must not be sent any more, whatever its time: its contact paid, or its charge is no longer open.
    pub fn outdated(&self, charges: Option<&ChargesRow>, now: Timestamp) -> Option<End> {
        if charges.map_or(0, |charges| charges.pay_epoch) != self.pay_epoch {
            return Some(End::Canceled(Why::Paid));
        }
        let transaction = self.transaction_id.as_deref().filter(|_| self.trigger == Trigger::Pix)?;
        let open = charges.is_some_and(|charges| charges.is_open(transaction, now));
        (!open).then_some(End::Canceled(Why::Expired))
    }

    /// Whether it may leave now: by its transaction, or by any open charge of its contact.
    pub fn gate(
        &self,
        bot: Option<&BotRow>,
        downsell: Option<&DownsellRow>,
        charges: Option<&ChargesRow>,
        now: Timestamp,
    ) -> Gate {
        match self.follow_charges(charges, downsell, now) {
            Some(Outdated::Ends(end)) => return Gate::Closed(end),
            Some(Outdated::PassedOn(row)) => return Gate::PassedOn(row),
            None => {}
        }
        if !bot.is_some_and(|bot| bot.active) {
            return Gate::Closed(End::Skipped(Why::BotInactive));
        }
        match downsell {
            None => return Gate::Closed(End::Canceled(Why::Deleted)),
            Some(downsell) if !downsell.active => return Gate::Closed(End::Skipped(Why::Inactive)),
            Some(_) => {}
        }
        match charges.is_some_and(|charges| charges.any_open(now)) {
            true => Gate::Open,
            false => Gate::Closed(End::Skipped(Why::NoUnpaidPix)),
        }
    }

    /// As the rules of attempts see it.
    pub fn progress(&self) -> Progress {
        let state = match (self.status, self.delivery) {
            (Status::Pending, Some(Delivery::Sending)) => State::Sending,
            (Status::Pending, Some(Delivery::Unknown)) => State::Unknown,
            (Status::Pending, _) => State::Queued,
            (Status::Sent, _) => State::Sent,
            (Status::Failed, _) => State::Failed,
            (Status::Expired, _) => State::Expired,
            (Status::Canceled | Status::Skipped, _) => State::Canceled,
        };
        Progress {
            state,
            attempt: self.attempts,
            tries_from: self.tries_from,
            send_at: Some(self.not_before.map_or(self.scheduled_at, |at| at.max(self.scheduled_at))),
            not_after: Some(self.not_after),
        }
    }

    /// Attempt n is begun. Only from `QUEUED`, after attempt n - 1.
    pub fn claimed(&self, attempt: u32, claim: &str, deadline: Timestamp, now: Timestamp) -> Option<Self> {
        if !self.is_queued() || self.attempts + 1 != attempt {
            return None;
        }
        let next = self.next_version(now).not_waiting();
        // It is looked for soon after the deadline: where that is so already, its place in the index stays, and costs nothing.
        let check = keys::wake(Wake::Check, keys::wake_shard(self.id.as_str()));
        let stays = self.wake.as_ref() == Some(&check)
            && self.wake_at.as_deref().and_then(keys::time_of).is_some_and(|at| soon_after(deadline, at));
        let wake_at = match &self.wake_at {
            Some(wake_at) if stays => wake_at.clone(),
            _ => keys::at_time(deadline, self.id.as_str()),
        };
        Some(Self {
            delivery: Some(Delivery::Sending),
            attempts: attempt,
            last_attempt_at: Some(now),
            deadline: Some(deadline.millis()),
            claim: Some(claim.to_owned()),
            wake: Some(check),
            wake_at: Some(wake_at),
            ..next
        })
    }

    /// What came of attempt n. "Sent" is true whoever says it and whenever; anything else counts only while n is under way.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp, keep_days: i64) -> Learned {
        let under_way = self.delivery == Some(Delivery::Sending) && self.attempts == attempt;
        let new = |row: Self| Learned::New(Box::new(row));
        match verdict {
            Verdict::Sent { .. } if self.status == Status::Sent => Learned::Already,
            Verdict::Sent { provider_id } if self.is_pending() && self.attempts >= attempt => {
                let late_ms = (now.millis() - self.scheduled_at.millis()).max(0);
                new(Self {
                    sent_at: Some(now),
                    late_ms: Some(late_ms),
                    provider_id: Some(provider_id.clone()),
                    code: None,
                    cancel_reason: None,
                    doubt: None,
                    ..self.over(Status::Sent, now, keep_days)
                })
            }
            _ if !under_way => Learned::TooLate,
            Verdict::Sent { .. } => Learned::TooLate,
            Verdict::Failed { code, .. } => new(self.unsent(Status::Failed, None, Some(code), now, keep_days)),
            Verdict::Expired { code } => new(self.unsent(Status::Expired, None, Some(code), now, keep_days)),
            Verdict::Unknown { code } => new(self.in_the_dark(Some(code), now)),
            Verdict::Again { why, code, not_before } => new(self.again(attempt, *why, code, *not_before, now)),
        }
    }

    /// There will be another attempt, with the gate before it.
    fn again(&self, attempt: u32, why: Again, code: &str, not_before: Timestamp, now: Timestamp) -> Self {
        let next = self.next_version(now).not_waiting();
        let next = Self {
            delivery: Some(Delivery::Queued),
            code: Some(code.to_owned()),
            not_before: Some(not_before),
            tries_from: self.tries_from + u32::from(why == Again::Throttled),
            doubt: if why == Again::Policy { Some(attempt) } else { self.doubt },
            ..next
        };
        next.handed_over(not_before, now)
    }

    /// Ends it unsent, if it is still to be sent.
    pub fn ended(&self, end: End, now: Timestamp, keep_days: i64) -> Option<Self> {
        let (status, why) = match end {
            End::Canceled(why) => (Status::Canceled, Some(why)),
            End::Skipped(why) => (Status::Skipped, Some(why)),
            End::Expired => (Status::Expired, None),
        };
        self.is_queued().then(|| self.unsent(status, why, None, now, keep_days))
    }

    /// What a cancel can still do.
    pub fn cancel(&self, why: Why, now: Timestamp, keep_days: i64) -> Cancel {
        match (self.status, self.ended(End::Canceled(why), now, keep_days)) {
            (Status::Pending, Some(row)) => Cancel::Now(Box::new(row)),
            (Status::Pending, None) => Cancel::InFlight,
            (Status::Sent, _) => Cancel::AlreadySent,
            _ => Cancel::Ended,
        }
    }

    /// A person knows what nobody else does: whether an unknown offer was sent.
    pub fn declared(&self, was_sent: bool, now: Timestamp, keep_days: i64) -> Option<Self> {
        let unknown = self.delivery == Some(Delivery::Unknown);
        let certain = Self { doubt: None, ..self.clone() };
        unknown.then(|| match was_sent {
            true => Self { sent_at: Some(now), cancel_reason: None, ..certain.over(Status::Sent, now, keep_days) },
            false => certain.unsent(Status::Failed, None, None, now, keep_days),
        })
    }

    /// It waited too long for whoever was told of it.
    pub fn recalled(&self, policy: UnknownPolicy, now: Timestamp, jitter: u32, keep_days: i64) -> Recalled {
        match self.delivery {
            Some(Delivery::Queued) if self.emit.is_some() => {
                let again = Self { recoveries: self.recoveries + 1, ..self.next_version(now) };
                let again = again.handed_over(self.not_before.unwrap_or(now).max(now), now);
                let next = now.plus_ms(check_after_ms(again.recoveries));
                Recalled::Emitted(Box::new(Self {
                    wake_at: Some(keys::at_time(next, self.id.as_str())),
                    wake: Some(keys::wake(Wake::Check, keys::wake_shard(self.id.as_str()))),
                    ..again
                }))
            }
            Some(Delivery::Sending) if self.deadline.is_some_and(|deadline| deadline <= now.millis()) => {
                let lost = Outcome::Unknown { code: code::SENDER_LOST };
                let verdict = settle(&self.progress(), lost, policy, now, jitter);
                match (self.settled(self.attempts, &verdict, now, keep_days), verdict) {
                    (Learned::New(row), Verdict::Again { .. }) => Recalled::Emitted(row),
                    (Learned::New(row), _) => Recalled::Unknown(row),
                    _ => Recalled::Left,
                }
            }
            _ => Recalled::Left,
        }
    }

    /// It goes back to its queue to wait until then, and is not to be looked for before. One that waits for a sweep is left to
    /// that.
    pub fn waits_until(&self, until: Timestamp, now: Timestamp) -> Option<Self> {
        let check = keys::wake(Wake::Check, keys::wake_shard(self.id.as_str()));
        let in_check = self.wake.as_ref() == Some(&check);
        let looked_for = self.wake_at.as_deref().filter(|_| in_check).and_then(keys::time_of)?;
        let next = until.max(now).plus_ms(check_after_ms(0));
        let soon = looked_for.millis() <= until.millis() + check_after_ms(0) / 2;
        (self.is_queued() && soon)
            .then(|| Self { wake_at: Some(keys::at_time(next, self.id.as_str())), ..self.next_version(now) })
    }

    /// A pending /start offer gains the charge that was made meanwhile; the earlier time stands.
    pub fn joined(&self, transaction: &str, scheduled_at: Timestamp, now: Timestamp) -> Option<Self> {
        if !self.is_queued() || self.trigger != Trigger::Start || self.attempts > 0 {
            return None;
        }
        let joined = Self {
            trigger: Trigger::Pix,
            transaction_id: Some(transaction.to_owned()),
            scheduled_at: self.scheduled_at.min(scheduled_at),
            ..self.next_version(now)
        };
        Some(match joined.scheduled_at < self.scheduled_at {
            true => joined.handed_over(scheduled_at, now),
            false => joined,
        })
    }

    /// Ended without being sent, unless an earlier attempt may have been.
    fn unsent(&self, status: Status, why: Option<Why>, code: Option<&str>, now: Timestamp, keep_days: i64) -> Self {
        if self.doubt.is_some() {
            return Self { cancel_reason: why, ..self.in_the_dark(code, now) };
        }
        let code = code.map(str::to_owned).or_else(|| self.code.clone());
        Self { cancel_reason: why, code, ..self.over(status, now, keep_days) }
    }

    fn over(&self, status: Status, now: Timestamp, keep_days: i64) -> Self {
        let next = self.next_version(now).not_waiting();
        Self { status, delivery: None, unknown: false, expires_at: Some(now.plus_days(keep_days).seconds()), ..next }
    }

    /// It waits for a person who knows.
    fn in_the_dark(&self, code: Option<&str>, now: Timestamp) -> Self {
        let next = self.next_version(now).not_waiting();
        Self {
            delivery: Some(Delivery::Unknown),
            unknown: true,
            code: code.map(str::to_owned).or_else(|| self.code.clone()),
            wake: Some(keys::wake(Wake::Unknown, keys::wake_shard(self.id.as_str()))),
            wake_at: Some(keys::at_time(now, self.id.as_str())),
            ..next
        }
    }
}

fn soon_after(deadline: Timestamp, at: Timestamp) -> bool {
    at >= deadline && at <= deadline.plus_ms(check_after_ms(0))
}

#[cfg(test)]
mod tests;
