//! What a contact was asked to pay. A charge only moves forward: `unpaid < expired < paid`.
//!
//! The row of a contact has what is open, and how many payments there were; the row of a transaction says whose it is and
//! how far it has come, also when it comes in the wrong order. Transactions are known by their id alone, so ids must be
//! unique over all gateways. A payment that names no contact is stored with its transaction and counts as soon as the
//! contact is named.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::offer::ContactId;
use crate::codes::codes;
use crate::keys::{self, Wake};
use crate::time::Timestamp;

codes! {
    ChargeStatus {
        Unpaid = "unpaid",
        Expired = "expired",
        Paid = "paid",
    }
}

/// A charge that nobody said the end of is open for so long.
pub const OPEN_DAYS: i64 = 30;
/// Open charges of one contact. With one more, the earlier one that ends first is dropped.
pub const MOST_OPEN: usize = 50;
/// After a payment or an expiry, recovery looks whether all that follows from it was done.
const LOOK_AFTER_MS: i64 = 60_000;

/// A charge that can be paid. Both times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenCharge {
    pub made_at: i64,
    pub until: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChargesRow {
    pub bot: String,
    pub telegram_id: i64,
    /// By their transactions.
    pub open: BTreeMap<String, OpenCharge>,
    /// One more with each payment.
    pub pay_epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid_at: Option<Timestamp>,
    /// Milliseconds; offers that are outdated were ended, or are by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl ChargesRow {
    /// Of a contact that has none: version zero is not stored.
    pub fn none(bot: &str, telegram_id: i64, now: Timestamp) -> Self {
        Self {
            bot: bot.to_owned(),
            telegram_id,
            open: BTreeMap::new(),
            pay_epoch: 0,
            paid_at: None,
            look_at: None,
            wake: None,
            wake_at: None,
            created_at: now,
            updated_at: now,
            version: 0,
        }
    }

    pub fn is_open(&self, transaction: &str, now: Timestamp) -> bool {
        self.open.get(transaction).is_some_and(|charge| charge.until > now.millis())
    }

    pub fn any_open(&self, now: Timestamp) -> bool {
        self.open.values().any(|charge| charge.until > now.millis())
    }

    /// The transaction that was made last of those that can be paid, and when it was made.
    pub fn newest_open(&self, now: Timestamp) -> Option<(&str, Timestamp)> {
        let open = self.open.iter().filter(|(_, charge)| charge.until > now.millis());
        let newest = open.max_by_key(|(transaction, charge)| (charge.made_at, *transaction))?;
        Some((newest.0, Timestamp::from_millis(newest.1.made_at)))
    }

    fn created(&self, transaction: &str, charge: OpenCharge, now: Timestamp) -> Self {
        let mut next = self.next(now);
        while next.open.len() >= MOST_OPEN {
            let first = next.open.iter().min_by_key(|(_, charge)| charge.until).map(|(first, _)| first.clone());
            first.and_then(|first| next.open.remove(&first));
        }
        next.open.insert(transaction.to_owned(), charge);
        next.waiting()
    }

    fn paid(&self, transaction: &str, now: Timestamp) -> Self {
        let next = self.without(transaction, now);
        Self { pay_epoch: self.pay_epoch + 1, paid_at: Some(now), ..next }.waiting()
    }

    fn without(&self, transaction: &str, now: Timestamp) -> Self {
        let mut next = self.next(now);
        next.open.remove(transaction);
        next.look_at = Some(now.plus_ms(LOOK_AFTER_MS).millis());
        next.waiting()
    }

    /// Everything that follows from it was done: what has passed is forgotten.
    pub fn looked_after(&self, now: Timestamp) -> Self {
        let mut next = self.next(now);
        next.open.retain(|_, charge| charge.until > now.millis());
        next.look_at = None;
        next.waiting()
    }

    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.wakes_at().is_some_and(|at| at <= now.millis())
    }

    fn next(&self, now: Timestamp) -> Self {
        Self { updated_at: now, version: self.version + 1, ..self.clone() }
    }

    fn wakes_at(&self) -> Option<i64> {
        self.open.values().map(|charge| charge.until).chain(self.look_at).min()
    }

    fn waiting(mut self) -> Self {
        let contact = ContactId::of(&self.bot, self.telegram_id);
        let at = self.wakes_at().map(Timestamp::from_millis);
        self.wake = at.map(|_| keys::wake(Wake::Check, keys::wake_shard(contact.as_str())));
        self.wake_at = at.map(|at| keys::at_time(at, contact.as_str()));
        self
    }
}

/// Whose a transaction is, and how far it has come. One that was over before its contact was named has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransactionRow {
    pub transaction_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telegram_id: Option<i64>,
    pub status: ChargeStatus,
    /// Milliseconds; how long it can be paid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_until: Option<i64>,
    /// The contact's payments with this one: what was scheduled before has a smaller number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pay_epoch: Option<u64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// Long after a gateway has stopped telling of a transaction.
const KEEP_DAYS: i64 = 400;

impl TransactionRow {
    /// The status with what time makes of it.
    pub fn status_at(&self, now: Timestamp) -> ChargeStatus {
        match (self.status, self.open_until) {
            (ChargeStatus::Unpaid, Some(until)) if until <= now.millis() => ChargeStatus::Expired,
            (status, _) => status,
        }
    }

    /// Whose it is, if that is known.
    pub fn owner(&self) -> Option<(&str, i64)> {
        Some((self.bot.as_deref()?, self.telegram_id?))
    }

    /// Whether it was paid and the payment counts for nobody yet.
    pub fn is_unplaced_payment(&self) -> bool {
        self.status == ChargeStatus::Paid && self.owner().is_none()
    }

    fn belongs(&self, bot: &str, telegram_id: i64) -> bool {
        self.owner().is_none_or(|owner| owner == (bot, telegram_id))
    }

    fn moved(before: Option<&Self>, of: &Charge<'_>, status: ChargeStatus, now: Timestamp) -> Self {
        Self {
            transaction_id: of.transaction_id.to_owned(),
            bot: Some(of.bot.to_owned()),
            telegram_id: Some(of.telegram_id),
            status,
            open_until: before.and_then(|row| row.open_until),
            pay_epoch: before.and_then(|row| row.pay_epoch),
            created_at: before.map_or(now, |row| row.created_at),
            updated_at: now,
            version: before.map_or(1, |row| row.version + 1),
            expires_at: Some(now.plus_days(KEEP_DAYS).seconds()),
        }
    }
}

/// A charge as a webhook tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge<'a> {
    pub bot: &'a str,
    pub telegram_id: i64,
    pub transaction_id: &'a str,
}

/// What a webhook changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Write both.
    New { charges: Box<ChargesRow>, transaction: Box<TransactionRow> },
    /// It was over before anybody told of it. Write this.
    Over(Box<TransactionRow>),
    /// It was known; the charge stands as it stood.
    Known(ChargeStatus),
    /// The transaction is somebody else's.
    Another,
}

impl Told {
    fn of(charges: ChargesRow, transaction: TransactionRow) -> Self {
        Self::New { charges: Box::new(charges), transaction: Box::new(transaction) }
    }
}

/// A charge was made. What is known to be over stays over.
pub fn created(
    charges: &ChargesRow,
    known: Option<&TransactionRow>,
    of: &Charge<'_>,
    open: OpenCharge,
    now: Timestamp,
) -> Told {
    match known {
        Some(known) if !known.belongs(of.bot, of.telegram_id) => Told::Another,
        Some(known) => Told::Known(known.status_at(now)),
        None if open.until <= now.millis() => {
            Told::Over(Box::new(TransactionRow::moved(None, of, ChargeStatus::Expired, now)))
        }
        None => {
            let transaction = TransactionRow::moved(None, of, ChargeStatus::Unpaid, now);
            let kept = Timestamp::from_millis(open.until).plus_days(KEEP_DAYS).seconds();
            Told::of(
                charges.created(of.transaction_id, open, now),
                TransactionRow { open_until: Some(open.until), expires_at: Some(kept), ..transaction },
            )
        }
    }
}

/// A charge was paid: whatever was scheduled for its contact until now is not sent any more. A payment that was stored
/// before its contact was named counts now.
pub fn paid(charges: &ChargesRow, known: Option<&TransactionRow>, of: &Charge<'_>, now: Timestamp) -> Told {
    match known {
        Some(known) if !known.belongs(of.bot, of.telegram_id) => Told::Another,
        Some(known) if known.status == ChargeStatus::Paid && !known.is_unplaced_payment() => {
            Told::Known(ChargeStatus::Paid)
        }
        known => {
            let charges = charges.paid(of.transaction_id, now);
            let transaction = TransactionRow::moved(known, of, ChargeStatus::Paid, now);
            let transaction = TransactionRow { pay_epoch: Some(charges.pay_epoch), ..transaction };
            Told::of(charges, transaction)
        }
    }
}

/// A charge can no longer be paid. One that was paid stays paid.
pub fn expired(charges: &ChargesRow, known: &TransactionRow, now: Timestamp) -> Told {
    let Some((bot, telegram_id)) = known.owner() else { return Told::Known(known.status) };
    if known.status != ChargeStatus::Unpaid {
        return Told::Known(known.status);
    }
    let of = Charge { bot, telegram_id, transaction_id: &known.transaction_id };
    let transaction = TransactionRow::moved(Some(known), &of, ChargeStatus::Expired, now);
    Told::of(charges.without(&known.transaction_id, now), transaction)
}

/// The row of a transaction that is over and whose contact is not known. `None`: `known` has come as far already.
pub fn unplaced(
    known: Option<&TransactionRow>,
    transaction_id: &str,
    status: ChargeStatus,
    now: Timestamp,
) -> Option<TransactionRow> {
    let of = Charge { bot: "", telegram_id: 0, transaction_id };
    let moves = known.is_none_or(|known| known.status < status);
    let row = || TransactionRow::moved(known, &of, status, now);
    moves.then(|| TransactionRow { bot: None, telegram_id: None, ..row() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_000_000)
    }

    fn of(transaction_id: &str) -> Charge<'_> {
        Charge { bot: "loja", telegram_id: 7, transaction_id }
    }

    fn none() -> ChargesRow {
        ChargesRow::none("loja", 7, now())
    }

    fn until(until: Timestamp) -> OpenCharge {
        OpenCharge { made_at: now().millis(), until: until.millis() }
    }

    fn both(told: Told) -> (ChargesRow, TransactionRow) {
        match told {
            Told::New { charges, transaction } => (*charges, *transaction),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_charge_is_open_until_its_end_and_no_longer() {
        let end = now().plus_ms(1_000);
        let (charges, transaction) = both(created(&none(), None, &of("t1"), until(end), now()));
        assert!(charges.is_open("t1", now()) && charges.any_open(now()));
        assert!(!charges.is_open("t1", end), "at its end it is over");
        assert_eq!(
            (transaction.status_at(now()), transaction.status_at(end)),
            (ChargeStatus::Unpaid, ChargeStatus::Expired)
        );
        assert_eq!(charges.wake_at, Some(keys::at_time(end, ContactId::of("loja", 7).as_str())));
    }

    #[test]
    fn a_charge_only_moves_forward() {
        let until = until(now().plus_days(1));
        let (charges, unpaid) = both(created(&none(), None, &of("t1"), until, now()));
        let (charges, expired_row) = both(expired(&charges, &unpaid, now()));
        assert_eq!(expired(&charges, &expired_row, now()), Told::Known(ChargeStatus::Expired));
        assert_eq!(created(&charges, Some(&expired_row), &of("t1"), until, now()), Told::Known(ChargeStatus::Expired));
        let (charges, paid_row) = both(paid(&charges, Some(&expired_row), &of("t1"), now()));
        assert_eq!((charges.pay_epoch, paid_row.pay_epoch), (1, Some(1)));
        assert_eq!(paid(&charges, Some(&paid_row), &of("t1"), now()), Told::Known(ChargeStatus::Paid));
        assert_eq!(expired(&charges, &paid_row, now()), Told::Known(ChargeStatus::Paid));
        assert_eq!(created(&charges, Some(&paid_row), &of("t1"), until, now()), Told::Known(ChargeStatus::Paid));
    }

    #[test]
    fn paid_before_created_is_paid() {
        let (charges, row) = both(paid(&none(), None, &of("t1"), now()));
        assert!(!charges.any_open(now()));
        let late = created(&charges, Some(&row), &of("t1"), until(now().plus_days(1)), now());
        assert_eq!(late, Told::Known(ChargeStatus::Paid));
    }

    #[test]
    fn expired_before_created_is_expired_and_can_still_be_paid() {
        let row = unplaced(None, "t1", ChargeStatus::Expired, now()).expect("it is new");
        let late = created(&none(), Some(&row), &of("t1"), until(now().plus_days(1)), now());
        assert_eq!(late, Told::Known(ChargeStatus::Expired));
        let (charges, row) = both(paid(&none(), Some(&row), &of("t1"), now()));
        assert_eq!((charges.pay_epoch, row.owner()), (1, Some(("loja", 7))));
    }

    #[test]
    fn a_charge_that_was_over_when_it_was_told_stays_over() {
        let Told::Over(row) = created(&none(), None, &of("t1"), until(now()), now()) else { panic!("it is over") };
        assert_eq!((row.status, row.owner()), (ChargeStatus::Expired, Some(("loja", 7))));
        let again = created(&none(), Some(&row), &of("t1"), until(now().plus_days(1)), now());
        assert_eq!(again, Told::Known(ChargeStatus::Expired));
    }

    #[test]
    fn a_transaction_has_one_owner() {
        let (_, row) = both(created(&none(), None, &of("t1"), until(now().plus_days(1)), now()));
        for other in [Charge { telegram_id: 8, ..of("t1") }, Charge { bot: "outra", ..of("t1") }] {
            let charges = ChargesRow::none(other.bot, other.telegram_id, now());
            assert_eq!(paid(&charges, Some(&row), &other, now()), Told::Another);
            let made = created(&charges, Some(&row), &other, until(now().plus_days(1)), now());
            assert_eq!(made, Told::Another);
        }
    }

    #[test]
    fn a_contact_has_a_bounded_number_of_open_charges() {
        let mut charges = none();
        for n in 0..=MOST_OPEN {
            let end = now().plus_ms(1_000 + i64::try_from(n).expect("small"));
            charges = charges.created(&format!("t{n}"), until(end), now());
        }
        assert_eq!(charges.open.len(), MOST_OPEN);
        assert!(!charges.open.contains_key("t0"), "the one that ends first");
        let charges = charges.created("short", until(now().plus_ms(1)), now());
        assert_eq!(charges.open.len(), MOST_OPEN);
        assert!(charges.open.contains_key("short") && !charges.open.contains_key("t1"), "not the new one itself");
    }

    #[test]
    fn the_newest_charge_is_the_one_that_was_made_last_of_those_that_can_be_paid() {
        let made = |made_at: i64, until: i64| OpenCharge { made_at, until: now().millis() + until };
        let charges = none().created("a", made(5, 90), now()).created("b", made(9, 10), now());
        let charges = charges.created("c", made(7, 20), now());
        let newest = |at: i64| charges.newest_open(now().plus_ms(at));
        assert_eq!(newest(9), Some(("b", Timestamp::from_millis(9))));
        assert_eq!(newest(10), Some(("c", Timestamp::from_millis(7))));
        assert_eq!((newest(20), newest(90)), (Some(("a", Timestamp::from_millis(5))), None));
        assert_eq!(none().newest_open(now()), None);
    }

    #[test]
    fn a_payment_that_names_nobody_counts_when_its_contact_is_named() {
        let expired = unplaced(None, "t1", ChargeStatus::Expired, now()).expect("it is new");
        assert!(!expired.is_unplaced_payment());
        let row = unplaced(Some(&expired), "t1", ChargeStatus::Paid, now()).expect("it moves forward");
        assert_eq!((row.status, row.owner(), row.version), (ChargeStatus::Paid, None, 2));
        assert_eq!(unplaced(Some(&row), "t1", ChargeStatus::Paid, now()), None, "told again");
        assert_eq!(unplaced(Some(&row), "t1", ChargeStatus::Expired, now()), None, "paid is paid");
        assert!(row.is_unplaced_payment());
        assert_eq!(expired_again(&row), Told::Known(ChargeStatus::Paid));
        let (charges, placed) = both(paid(&none(), Some(&row), &of("t1"), now()));
        assert_eq!((charges.pay_epoch, placed.pay_epoch, placed.owner()), (1, Some(1), Some(("loja", 7))));
        assert!(!placed.is_unplaced_payment());
        assert_eq!(paid(&charges, Some(&placed), &of("t1"), now()), Told::Known(ChargeStatus::Paid), "once");
    }

    fn expired_again(row: &TransactionRow) -> Told {
        expired(&none(), row, now())
    }

    #[test]
    fn what_was_looked_after_is_looked_for_at_its_next_end() {
        let (charges, _) = both(created(&none(), None, &of("t1"), until(now().plus_ms(1_000)), now()));
        let charges = charges.created("t2", until(now().plus_ms(9_000)), now());
        assert!(
            !charges.is_overdue(now().plus_ms(999)) && charges.is_overdue(now().plus_ms(1_000)),
            "at its first end"
        );
        let charges = charges.paid("t3", now());
        let later = now().plus_ms(5_000);
        assert!(charges.is_overdue(later), "one charge is over");
        let charges = charges.looked_after(later);
        assert_eq!(charges.wake_at, Some(keys::at_time(now().plus_ms(9_000), ContactId::of("loja", 7).as_str())));
        assert_eq!(charges.looked_after(now().plus_ms(9_000)).wake, None);
    }
}
