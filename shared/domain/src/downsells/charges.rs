//! The charges of a contact. A charge only moves forward: `unpaid < expired < paid`.
//!
//! The row of a contact holds its open charges and the number of its payments. The row of a
//! transaction holds its owner and its status, also if events arrive in the wrong order. The
//! transaction id alone identifies a transaction, so ids must be unique over all gateways. A
//! payment that names no contact is stored with its transaction, and counts as soon as the contact
//! is named.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

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

/// How long a charge is open if no expiry is given.
pub const OPEN_DAYS: i64 = 30;
/// The maximum number of open charges of one contact. One more drops the earlier charge that ends
/// first.
pub const MOST_OPEN: usize = 50;
/// How long after a payment or an expiry recovery checks that everything that follows from it was
/// done.
const LOOK_AFTER_MS: i64 = 60_000;

/// A charge that can be paid. Both times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenCharge {
    pub made_at: i64,
    pub until: i64,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChargesRow {
    pub bot: String,
    pub telegram_id: i64,
    /// The open charges, by transaction.
    pub open: BTreeMap<String, OpenCharge>,
    /// The number of payments: each payment increases it by one.
    pub pay_epoch: u64,
    pub paid_at: Option<Timestamp>,
    /// Milliseconds: when recovery checks that outdated offers have ended.
    pub look_at: Option<i64>,
    pub wake: Option<String>,
    pub wake_at: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl ChargesRow {
    /// Returns the row of a contact that has no charges. Version zero means that it is not stored.
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

    /// Returns the newest transaction that can still be paid, and when it was made.
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

    /// Returns the row after everything that follows from it was done. Charges whose time has
    /// passed are removed.
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

/// The owner and the status of a transaction. A transaction that was over before its contact was
/// named has no owner.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransactionRow {
    pub transaction_id: String,
    pub bot: Option<String>,
    pub telegram_id: Option<i64>,
    pub status: ChargeStatus,
    /// Milliseconds: until when the transaction can be paid.
    pub open_until: Option<i64>,
    /// The number of the contact's payments, including this one. Offers that were scheduled before
    /// it have a smaller number.
    pub pay_epoch: Option<u64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    pub expires_at: Option<i64>,
}

/// How long a transaction is kept: long after a gateway has stopped sending events about it.
const KEEP_DAYS: i64 = 400;

impl TransactionRow {
    /// Returns the status at this time: an unpaid charge expires when its time has passed.
    pub fn status_at(&self, now: Timestamp) -> ChargeStatus {
        match (self.status, self.open_until) {
            (ChargeStatus::Unpaid, Some(until)) if until <= now.millis() => ChargeStatus::Expired,
            (status, _) => status,
        }
    }

    /// Returns the bot and the Telegram id of the owner, if known.
    pub fn owner(&self) -> Option<(&str, i64)> {
        Some((self.bot.as_deref()?, self.telegram_id?))
    }

    /// Returns whether the transaction was paid and its owner is not known yet.
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

/// A charge as a webhook reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge<'a> {
    pub bot: &'a str,
    pub telegram_id: i64,
    pub transaction_id: &'a str,
}

/// What a webhook changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Write both rows.
    New { charges: Box<ChargesRow>, transaction: Box<TransactionRow> },
    /// The charge was over before it was reported as made. Write this row.
    Over(Box<TransactionRow>),
    /// The event was known. The status of the charge does not change.
    Known(ChargeStatus),
    /// The transaction belongs to another contact.
    Another,
}

impl Told {
    fn of(charges: ChargesRow, transaction: TransactionRow) -> Self {
        Self::New { charges: Box::new(charges), transaction: Box::new(transaction) }
    }
}

/// Records that a charge was made. A charge that is known to be over stays over.
pub fn created(
    charges: &ChargesRow,
    known: Option<&TransactionRow>,
    of: &Charge<'_>,
    open: OpenCharge,
    now: Timestamp,
) -> Told {
    match known {
        Some(known) if !known.belongs(of.bot, of.telegram_id) => Told::Another,
        // The charge was reported as over before it was reported as made. Its status stays, and its
        // owner is known from now on.
        Some(known) if known.owner().is_none() => {
            Told::Over(Box::new(TransactionRow::moved(Some(known), of, known.status, now)))
        }
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

/// Records that a charge was paid: offers that were scheduled for its contact until now are no
/// longer sent. A payment that was stored before its contact was named counts now.
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

/// Records that a charge can no longer be paid. A paid charge stays paid.
pub fn expired(charges: &ChargesRow, known: &TransactionRow, now: Timestamp) -> Told {
    let Some((bot, telegram_id)) = known.owner() else { return Told::Known(known.status) };
    if known.status != ChargeStatus::Unpaid {
        return Told::Known(known.status);
    }
    let of = Charge { bot, telegram_id, transaction_id: &known.transaction_id };
    let transaction = TransactionRow::moved(Some(known), &of, ChargeStatus::Expired, now);
    Told::of(charges.without(&known.transaction_id, now), transaction)
}

/// Returns the row of a transaction that is over and whose contact is not known. `None` if `known`
/// already has this status or a later one.
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
mod tests;
