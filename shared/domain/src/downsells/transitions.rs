//! The transitions of an offer. Each function takes the row as it was read and returns the row to
//! write in its place. The write is conditional on an unchanged version. The gate takes the charges
//! as they were read, under the same condition.
//!
//! Invariants. An attempt starts only from `QUEUED`, with the gate open on charges that have not
//! changed until the claim is written. So no attempt starts after a payment was written. An attempt
//! in `SENDING` never starts again: its exits are the outcome and `UNKNOWN`. An offer that may have
//! been sent does not end as unsent. An offer whose charge expired does not end while its contact
//! has another unpaid charge: it is passed on to the newest one. So an unpaid charge that found a
//! pending offer is not left without one.

use super::charges::ChargesRow;
use super::definition::DownsellRow;
use super::offer::{CancelReason, OfferRow, OfferStatus, Trigger};
use super::passing::ClosedGate;
use crate::change::Fence;
use crate::channels::Channel;
use crate::delivery::{Cancel, Claim, Delivery, Gate, Recovery, Settled, State, UnknownPolicy, Verdict};
use crate::keys::{self, Wake};
use crate::queue::emit_offer;
use crate::senders::bots::BotRow;
use crate::time::Timestamp;
use crate::work::check_after_ms;

/// How an offer ends that is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfferEnd {
    Canceled(CancelReason),
    Skipped(CancelReason),
    Expired,
}

impl OfferEnd {
    /// Returns whether the end follows from the contact's charges. Such an end is valid only while
    /// the charges have not changed.
    pub const fn rests_on_charges(self) -> bool {
        matches!(
            self,
            Self::Canceled(CancelReason::Paid | CancelReason::Expired) | Self::Skipped(CancelReason::NoUnpaidPix)
        )
    }
}

impl OfferRow {
    /// Returns why this offer must no longer be sent, regardless of its time: its contact paid, or
    /// its charge is no longer open. `None` if neither is the case.
    pub fn outdated(&self, charges: Option<&ChargesRow>, now: Timestamp) -> Option<OfferEnd> {
        if charges.map_or(0, |charges| charges.pay_epoch) != self.pay_epoch {
            return Some(OfferEnd::Canceled(CancelReason::Paid));
        }
        let transaction = self.transaction_id.as_deref().filter(|_| self.trigger == Trigger::Pix)?;
        let open = charges.is_some_and(|charges| charges.is_open(transaction, now));
        (!open).then_some(OfferEnd::Canceled(CancelReason::Expired))
    }

    /// Decides whether the offer may be sent now: `None` if it may. The charge of its own
    /// transaction must be open, or any charge of its contact if the offer has no transaction.
    pub fn gate(
        &self,
        bot: Option<&BotRow>,
        downsell: Option<&DownsellRow>,
        charges: Option<&ChargesRow>,
        now: Timestamp,
    ) -> Option<ClosedGate> {
        self.follow_charges(charges, downsell, now).or_else(|| {
            let end = match downsell {
                _ if !bot.is_some_and(|bot| bot.active) => OfferEnd::Skipped(CancelReason::BotInactive),
                None => OfferEnd::Canceled(CancelReason::Deleted),
                Some(downsell) if !downsell.active => OfferEnd::Skipped(CancelReason::Inactive),
                Some(_) if charges.is_some_and(|charges| charges.any_open(now)) => return None,
                Some(_) => OfferEnd::Skipped(CancelReason::NoUnpaidPix),
            };
            Some(ClosedGate::Ends(end))
        })
    }

    /// Returns the conditions for the start of an attempt: the charges have not changed since they
    /// were read, and the address is not suppressed.
    pub fn gates(&self, charges: Option<&ChargesRow>, sender: &str) -> Vec<Gate> {
        let key = keys::charges(&self.contact());
        let fence = Fence::version(charges.map_or(0, |charges| charges.version));
        let to = self.telegram_id.to_string();
        vec![
            Gate::Unchanged { key, fence },
            Gate::NotSuppressed { channel: Channel::Telegram, to, sender: sender.to_owned() },
        ]
    }

    /// Starts an attempt. Returns `None` if it is not the next one, or if the offer is not queued.
    pub fn claimed(&self, claim: &Claim, now: Timestamp) -> Option<Self> {
        let delivery = self.delivery.claimed(claim)?;
        let mut row = Self { last_attempt_at: Some(now), ..self.with(delivery, now, 0) };
        // Recovery checks the offer soon after the deadline. If its index entry already has such a
        // time, the entry stays, because an unchanged entry costs nothing.
        let check_at = self.work.wakes_at(Wake::Check, self.id.as_str());
        if check_at.is_some_and(|at| is_soon_after(claim.deadline, at)) {
            (row.work.wake, row.work.wake_at) = (self.work.wake.clone(), self.work.wake_at.clone());
        }
        Some(row)
    }

    /// Records the outcome of attempt n.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp, keep_days: i64) -> Settled<Self> {
        self.delivery.settled(attempt, verdict, now).map(|delivery| self.with(delivery, now, keep_days))
    }

    /// Ends the offer unsent. Returns `None` if it is not queued.
    pub fn ended(&self, end: OfferEnd, now: Timestamp, keep_days: i64) -> Option<Self> {
        let (state, status, why) = match end {
            OfferEnd::Canceled(why) => (State::Canceled, OfferStatus::Canceled, Some(why)),
            OfferEnd::Skipped(why) => (State::Canceled, OfferStatus::Skipped, Some(why)),
            OfferEnd::Expired => (State::Expired, OfferStatus::Expired, None),
        };
        // Keep the result of the last attempt: it is still of interest.
        let delivery = self.delivery.ended(state, self.delivery.reason.as_deref())?;
        let row = Self { cancel_reason: why, ..self.with(delivery, now, keep_days) };
        Some(Self { status: if row.is_pending() { row.status } else { status }, ..row })
    }

    /// Cancels the offer. A queued offer is canceled at once. During an attempt, the cancel
    /// prevents further attempts. The second value is the row to write, if any.
    pub fn cancel(&self, why: CancelReason, now: Timestamp, keep_days: i64) -> (Cancel, Option<Self>) {
        if let Some(row) = self.ended(OfferEnd::Canceled(why), now, keep_days) {
            return (if row.is_pending() { Cancel::InFlight } else { Cancel::Now }, Some(row));
        }
        let (cancel, delivery) = self.delivery.cancel();
        (cancel, delivery.map(|delivery| Self { cancel_reason: Some(why), ..self.with(delivery, now, keep_days) }))
    }

    /// Settles an unknown offer as an operator declares it. Returns `None` if the offer is not
    /// unknown.
    pub fn declared(&self, was_sent: bool, now: Timestamp, keep_days: i64) -> Option<Self> {
        let delivery = self.delivery.declared(was_sent, now)?;
        let reason = self.delivery.reason.clone();
        Some(Self { cancel_reason: None, ..self.with(Delivery { reason, ..delivery }, now, keep_days) })
    }

    /// Hands the offer over again, or gives up its attempt, if it is overdue.
    pub fn recovered(&self, policy: UnknownPolicy, now: Timestamp, jitter: u32, keep_days: i64) -> Recovery<Self> {
        if let Some(verdict) = self.delivery.lost(self.window(), policy, now, jitter) {
            return match self.settled(self.delivery.attempt, &verdict, now, keep_days) {
                Settled::Now(row) if row.is_queued() => Recovery::Emitted(row),
                Settled::Now(row) => Recovery::GivenUp(row),
                Settled::Already | Settled::TooLate => Recovery::Nothing,
            };
        }
        if !self.is_queued() || self.work.wakes_at(Wake::Check, self.id.as_str()).is_none() {
            return Recovery::Nothing;
        }
        let mut row = self.next_version(now);
        row.work.recovered();
        let (contact, id, at) = (self.contact(), &self.id, self.delivery.not_before.filter(|at| *at > now));
        row.work.hand_over(id.as_str(), at, now, |seq| emit_offer(&contact, id, seq, at.map(Timestamp::millis)));
        Recovery::Emitted(row)
    }

    /// Postpones the recovery check, because the queue hides the job until `until`. Returns `None`
    /// if there is nothing to change.
    pub fn postponed(&self, until: Timestamp, now: Timestamp) -> Option<Self> {
        let work = self.work.postponed(self.id.as_str(), until, now).filter(|_| self.is_queued())?;
        Some(Self { work, ..self.next_version(now) })
    }

    /// Adds a charge that was made in the meantime to a pending /start offer. The earlier scheduled
    /// time applies. Returns `None` if this is not a queued /start offer without attempts.
    pub fn joined(&self, transaction: &str, scheduled_at: Timestamp, now: Timestamp) -> Option<Self> {
        if !self.is_queued() || self.trigger != Trigger::Start || self.delivery.attempt > 0 {
            return None;
        }
        let joined = Self {
            trigger: Trigger::Pix,
            transaction_id: Some(transaction.to_owned()),
            scheduled_at: self.scheduled_at.min(scheduled_at),
            ..self.next_version(now)
        };
        Some(match joined.scheduled_at < self.scheduled_at {
            true => joined.scheduled(scheduled_at, now),
            false => joined,
        })
    }

    /// Returns the row after a change of its delivery.
    fn with(&self, delivery: Delivery, now: Timestamp, keep_days: i64) -> Self {
        let state = delivery.state;
        let mut row = Self { delivery, ..self.next_version(now) };
        if state != self.delivery.state {
            let (contact, id) = (self.contact(), &self.id);
            row.work.follow(&row.delivery, id.as_str(), now, |seq, at| emit_offer(&contact, id, seq, at));
            row.work.later = None;
        }
        row.enqueued |= row.work.emit.is_some();
        row.status = match state {
            State::Queued | State::Sending | State::Unknown => OfferStatus::Pending,
            State::Sent => OfferStatus::Sent,
            State::Failed => OfferStatus::Failed,
            State::Expired => OfferStatus::Expired,
            State::Canceled | State::Suppressed | State::Deduped => OfferStatus::Canceled,
        };
        row.unknown = state == State::Unknown;
        // A cancel during an attempt is the reason only if the offer was not sent because of it.
        if !matches!(row.status, OfferStatus::Pending | OfferStatus::Canceled) {
            row.cancel_reason = None;
        }
        let sent = row.delivery.sent_at.filter(|_| row.delivery.sent_attempt().is_some());
        row.late_ms = sent.map(|at| (at.millis() - self.scheduled_at.millis()).max(0));
        row.expires_at = (!row.is_pending()).then(|| now.plus_days(keep_days).seconds());
        row
    }
}

fn is_soon_after(deadline: Timestamp, at: Timestamp) -> bool {
    at >= deadline && at <= deadline.plus_ms(check_after_ms(0))
}

#[cfg(test)]
mod tests;
