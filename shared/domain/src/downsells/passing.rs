//! Passes an offer whose charge expired on to the newest unpaid charge of its contact: people make
//! a new code when the old one has expired.
//!
//! Invariant. An offer whose charge expired does not end while its contact has another unpaid
//! charge. So an unpaid charge that found a pending offer is not left without one.
//!
//! Passing on is one write of the offer. Its condition: the offer and the charges have not changed
//! since they were read. The slot does not change, because it is the same offer. Races:
//!
//! - With a claim or a cancel: the version of the offer lets one of them through, and the other
//!   decides again.
//! - With a payment: the payment changes the charges, so the offer is not passed on after it. If
//!   the offer was passed on before, it has kept its `pay_epoch`, and the payment of any charge
//!   cancels it.
//! - With the expiry of the other charge: the expiry changes the charges too. If it comes after the
//!   passing on, it finds the offer as its own.
//! - With the same expiry, redelivered: the offer has the other transaction by then, and
//!   `passed_from` names the earlier one, so the second answer is the same as the first.
//! - With a trigger: a charge that is made later changes the charges. If its trigger still saw the
//!   first charge open, the new charge is the newest when the offer is passed on. If not, the
//!   trigger ends the offer and makes its own.

use super::charges::ChargesRow;
use super::definition::DownsellRow;
use super::offer::{CancelReason, OfferRow, Trigger};
use super::transitions::OfferEnd;
use crate::time::Timestamp;

/// The maximum number of transactions that an offer keeps in `passed_from`.
const MOST_PASSED: usize = 20;

/// Why an offer cannot be sent as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClosedGate {
    Ends(OfferEnd),
    /// Its charge expired. Write this row, which is the offer of another charge, and decide again.
    PassedOn(Box<OfferRow>),
}

impl OfferRow {
    /// Returns whether this is the offer of this charge, or was passed on from it.
    pub fn was_of(&self, transaction: &str) -> bool {
        let of_charge = self.trigger == Trigger::Pix;
        of_charge && self.passed_from.iter().chain(&self.transaction_id).any(|its| its == transaction)
    }

    /// Returns what the charges require for this offer: it ends, or it is passed on. `None` if
    /// nothing is to be done.
    pub fn follow_charges(
        &self,
        charges: Option<&ChargesRow>,
        downsell: Option<&DownsellRow>,
        now: Timestamp,
    ) -> Option<ClosedGate> {
        let end = self.outdated(charges, now).filter(|_| self.is_queued())?;
        let expired = end == OfferEnd::Canceled(CancelReason::Expired);
        let passed_on = charges.filter(|_| expired).and_then(|charges| self.passed_on(charges, downsell, now));
        Some(passed_on.map_or(ClosedGate::Ends(end), |row| ClosedGate::PassedOn(Box::new(row))))
    }

    /// Returns the offer as an offer of the newest unpaid charge of its contact. The offer leaves
    /// no earlier than before, and no earlier than the delay after that charge. `None` if there is
    /// no such charge, if the downsell no longer follows charges, or if an earlier attempt may have
    /// been sent.
    fn passed_on(&self, charges: &ChargesRow, downsell: Option<&DownsellRow>, now: Timestamp) -> Option<Self> {
        let downsell = downsell.filter(|row| row.active && row.after_pix && self.delivery.doubts.is_empty())?;
        let (transaction, made_at) = charges.newest_open(now)?;
        let scheduled_at = self.scheduled_at.max(downsell.scheduled_at(made_at));
        let mut passed_from = self.passed_from.clone();
        passed_from.extend(self.transaction_id.clone());
        passed_from.drain(..passed_from.len().saturating_sub(MOST_PASSED));
        let passed = Self {
            transaction_id: Some(transaction.to_owned()),
            passed_from,
            scheduled_at,
            not_after: self.not_after.max(downsell.not_after(scheduled_at)),
            ..self.next_version(now)
        };
        // The offer already waits for the right time, unless that time has moved.
        Some(match scheduled_at > self.scheduled_at {
            true => passed.scheduled(self.delivery.not_before.map_or(scheduled_at, |at| at.max(scheduled_at)), now),
            false => passed,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::delivery::{Delivery, State};
    use crate::downsells::charges::OpenCharge;
    use crate::downsells::offer::OfferStatus;
    use crate::downsells::schedule::tests::{after_payment, downsell, minutes, offer, open, pix, start};
    use crate::keys::{self, Wake};

    /// Returns an offer that is due five minutes after now.
    fn of_first() -> OfferRow {
        offer(&pix("t1"), open(&["t1"]))
    }

    /// Builds charges from their transactions: when each was made and until when it can be paid, in
    /// minutes.
    fn charges(of: &[(&str, i64, i64)]) -> ChargesRow {
        let open_charge = |(transaction, made, until): &(&str, i64, i64)| {
            let charge = OpenCharge { made_at: minutes(*made).millis(), until: minutes(*until).millis() };
            ((*transaction).to_owned(), charge)
        };
        ChargesRow { open: of.iter().map(open_charge).collect(), ..open(&[]) }
    }

    fn plain() -> DownsellRow {
        downsell(12, &json!({}))
    }

    fn passed(row: &OfferRow, charges: &ChargesRow, at: Timestamp) -> OfferRow {
        match row.follow_charges(Some(charges), Some(&plain()), at) {
            Some(ClosedGate::PassedOn(row)) => *row,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_offer_moves_to_the_newest_unpaid_charge_and_records_the_old_one() {
        let (before, of) = (of_first(), charges(&[("t2", 1, 60), ("t3", 2, 60), ("t4", 3, 4)]));
        let after = passed(&before, &of, minutes(4));
        assert_eq!((after.transaction_id.as_deref(), &after.passed_from[..]), (Some("t3"), &["t1".to_owned()][..]));
        assert_eq!((&after.id, after.version, after.status), (&before.id, before.version + 1, OfferStatus::Pending));
        assert_eq!(after.pay_epoch, before.pay_epoch);
        assert_eq!(after.follow_charges(Some(&of), Some(&plain()), minutes(4)), None, "its charge is open");
        let last = passed(&after, &charges(&[("t2", 1, 60)]), minutes(4));
        assert_eq!((last.transaction_id.as_deref(), last.passed_from.len()), (Some("t2"), 2));
    }

    #[test]
    fn an_offer_is_of_its_charge_and_of_those_that_it_was_passed_on_from() {
        let moved = passed(&of_first(), &charges(&[("t2", 1, 60)]), minutes(4));
        for (offer, transactions) in
            [(of_first(), &["t1"][..]), (moved, &["t1", "t2"]), (offer(&start("5001"), open(&["t1"])), &[])]
        {
            let its: Vec<_> = ["t1", "t2", "t3"].into_iter().filter(|its| offer.was_of(its)).collect();
            assert_eq!(its, transactions);
        }
    }

    #[test]
    fn a_moved_offer_is_due_at_the_later_of_both_times() {
        let after = passed(&of_first(), &charges(&[("t2", 3, 60)]), minutes(4));
        assert_eq!((after.scheduled_at, after.not_after), (minutes(8), plain().not_after(minutes(8))));
        assert_eq!(after.work.emit.as_ref().and_then(|emit| emit.not_before), Some(minutes(8).millis()));
        let earlier = charges(&[("t2", -3, 60)]);
        let after = passed(&of_first(), &earlier, minutes(4));
        let before = of_first();
        assert_eq!(
            (after.scheduled_at, after.not_after),
            (before.scheduled_at, before.not_after),
            "the offer is not sent before its original time"
        );
        assert_eq!(
            (&after.work.wake_at, &after.work.emit),
            (&before.work.wake_at, &before.work.emit),
            "its wake-up does not change"
        );
        let far = passed(&of_first(), &charges(&[("t2", 30, 90)]), minutes(30));
        let due = keys::wake(Wake::Due, keys::wake_shard(far.id.as_str()));
        let slow = downsell(12, &json!({"delay_minutes": 60}));
        let far = far.follow_charges(Some(&charges(&[("t3", 30, 99)])), Some(&slow), minutes(30));
        let Some(ClosedGate::PassedOn(far)) = far else { panic!("{far:?}") };
        assert_eq!(
            (far.work.wake.as_deref(), &far.work.emit),
            (Some(due.as_str()), &None),
            "an offer with a distant time is indexed for the sweep"
        );
        let delivery = Delivery { not_before: Some(minutes(20)), attempt: 1, ..Delivery::default() };
        let limited = OfferRow { delivery, ..of_first() };
        let after = passed(&limited, &charges(&[("t2", 3, 60)]), minutes(6));
        assert_eq!(after.work.emit.and_then(|emit| emit.not_before), Some(minutes(20).millis()), "the wait stays");
    }

    #[test]
    fn an_offer_ends_if_no_charge_is_open_or_its_downsell_is_not_for_charges() {
        let expired = Some(ClosedGate::Ends(OfferEnd::Canceled(CancelReason::Expired)));
        let follow = |row: &OfferRow, charges: Option<&ChargesRow>, change: Value| {
            row.follow_charges(charges, Some(&downsell(12, &change)), minutes(4))
        };
        let other = charges(&[("t2", 3, 60)]);
        assert_eq!(follow(&of_first(), Some(&charges(&[("t2", 1, 4)])), json!({})), expired, "t2 expired too");
        assert_eq!(follow(&of_first(), None, json!({})), expired);
        assert_eq!(follow(&of_first(), Some(&other), json!({"after_pix": false})), expired);
        assert_eq!(follow(&of_first(), Some(&other), json!({"active": false})), expired);
        assert_eq!(of_first().follow_charges(Some(&other), None, minutes(4)), expired, "its downsell was deleted");
        let delivery = Delivery { doubts: vec![1], attempt: 1, ..Delivery::default() };
        let in_doubt = OfferRow { delivery, ..of_first() };
        assert_eq!(follow(&in_doubt, Some(&other), json!({})), expired, "it may have been sent");
    }

    #[test]
    fn a_payment_outranks_an_expiry_and_an_offer_under_way_is_not_moved() {
        let paid = after_payment(&charges(&[("t2", 3, 60)]), "t9");
        let follow =
            |row: &OfferRow, charges: &ChargesRow| row.follow_charges(Some(charges), Some(&plain()), minutes(4));
        assert_eq!(follow(&of_first(), &paid), Some(ClosedGate::Ends(OfferEnd::Canceled(CancelReason::Paid))));
        let other = charges(&[("t2", 3, 60)]);
        for state in [State::Sending, State::Unknown] {
            let row = OfferRow { delivery: Delivery { state, ..Delivery::default() }, ..of_first() };
            assert_eq!(follow(&row, &other), None, "{state:?}");
        }
        let of_start = offer(&start("5001"), open(&["t1"]));
        assert_eq!(follow(&of_start, &other), None, "an offer of a start accepts any open charge");
    }

    #[test]
    fn an_offer_records_a_limited_number_of_former_charges() {
        let mut row = of_first();
        for n in 2..40 {
            let name = format!("t{n}");
            row = passed(&row, &charges(&[(name.as_str(), 1, 60)]), minutes(4));
        }
        assert_eq!((row.passed_from.len(), row.passed_from.last().map(String::as_str)), (MOST_PASSED, Some("t38")));
    }
}
