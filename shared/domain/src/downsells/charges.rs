//! The charges of a contact. A charge only moves forward: `unpaid < expired < paid`.
//!
//! The row of a contact holds its open charges and the number of its payments. The row of a
//! transaction holds its owner and its status, also if events arrive in the wrong order. Gateway
//! and id identify a transaction, because an expiry names nothing else. A payment that names no
//! contact is stored with its transaction, and counts as soon as the contact is named.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::offer::ContactId;
use crate::change::{Fence, Row};
use crate::codes::codes;
use crate::keys::{self, Key, Wake};
use crate::time::Timestamp;
use crate::work::Work;

codes! {
    ChargeStatus {
        /// It can be paid.
        Unpaid = "unpaid",
        /// It expired before a payment was reported.
        Expired = "expired",
        /// It was paid.
        Paid = "paid",
    }
}

/// How long a charge is open if no expiry is given.
pub const OPEN_DAYS: i64 = 30;
/// The maximum number of open charges of one contact. One more is refused: to drop another would
/// cancel the offers that were promised with it.
pub const MOST_OPEN: usize = 50;
/// How long after a payment or an expiry recovery checks that everything that follows from it was
/// done.
const LOOK_AFTER_MS: i64 = 60_000;

/// The gateway of a webhook that names none.
pub const DEFAULT_GATEWAY: &str = "default";

/// Returns the name of a transaction within a deployment: its id at the gateway, after the name of
/// the gateway unless that is the default one. Ids contain no spaces, so no two transactions have
/// the same name.
pub fn transaction_name(gateway: &str, id: &str) -> String {
    if gateway == DEFAULT_GATEWAY { id.to_owned() } else { format!("{gateway} {id}") }
}

/// Returns the gateway of a transaction and its id there.
pub fn gateway_and_id(transaction: &str) -> (&str, &str) {
    transaction.split_once(' ').unwrap_or((DEFAULT_GATEWAY, transaction))
}

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
    #[serde(flatten)]
    pub work: Work,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
}

impl Row for ChargesRow {
    fn key(&self) -> Key {
        keys::charges(&ContactId::of(&self.bot, self.telegram_id))
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
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
            work: Work::default(),
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

    /// Adds an open charge. `None` if the contact already has [`MOST_OPEN`] that can be paid.
    fn created(&self, transaction: &str, charge: OpenCharge, now: Timestamp) -> Option<Self> {
        let mut next = self.next(now);
        if next.open.len() >= MOST_OPEN {
            next.open.retain(|_, charge| charge.until > now.millis());
            // Their offers still have to end, or to be passed on.
            next.look_at = Some(now.plus_ms(LOOK_AFTER_MS).millis());
        }
        let has_room = next.open.len() < MOST_OPEN;
        next.open.insert(transaction.to_owned(), charge);
        has_room.then(|| next.waiting())
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
    pub fn checked(&self, now: Timestamp) -> Self {
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
        match self.wakes_at().map(Timestamp::from_millis) {
            Some(at) => self.work.wait_until(Wake::Check, contact.as_str(), at),
            None => self.work.rest(),
        }
        self
    }
}

/// The owner and the status of a transaction. A transaction that was over before its contact was
/// named has no owner.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransactionRow {
    /// See [`transaction_name`].
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

impl Row for TransactionRow {
    fn key(&self) -> Key {
        keys::transaction(&self.transaction_id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl TransactionRow {
    /// Returns the row of a transaction that nothing is known about. Version zero means that it is
    /// not stored.
    pub fn unknown(transaction_id: &str, now: Timestamp) -> Self {
        Self {
            transaction_id: transaction_id.to_owned(),
            bot: None,
            telegram_id: None,
            status: ChargeStatus::Unpaid,
            open_until: None,
            pay_epoch: None,
            created_at: now,
            updated_at: now,
            version: 0,
            expires_at: None,
        }
    }

    /// Returns the status at this time: an unpaid charge expires when its time has passed.
    pub fn status_at(&self, now: Timestamp) -> ChargeStatus {
        match (self.status, self.open_until) {
            (ChargeStatus::Unpaid, Some(until)) if until <= now.millis() => ChargeStatus::Expired,
            (status, _) => status,
        }
    }

    /// Returns the transaction with its owner. `None` if the owner is not known.
    pub fn charge(&self) -> Option<Charge<'_>> {
        let (bot, telegram_id) = (self.bot.as_deref()?, self.telegram_id?);
        Some(Charge { bot, telegram_id, transaction_id: &self.transaction_id })
    }

    /// Returns whether the transaction was paid and its owner is not known yet.
    pub fn is_unplaced_payment(&self) -> bool {
        self.status == ChargeStatus::Paid && self.charge().is_none()
    }

    fn belongs_to_another(&self, of: &Charge<'_>) -> bool {
        self.charge().is_some_and(|charge| charge != *of)
    }

    fn moved(&self, status: ChargeStatus, now: Timestamp) -> Self {
        let expires_at = Some(now.plus_days(KEEP_DAYS).seconds());
        Self { status, updated_at: now, version: self.version + 1, expires_at, ..self.clone() }
    }

    fn owned(&self, of: &Charge<'_>, status: ChargeStatus, now: Timestamp) -> Self {
        Self { bot: Some(of.bot.to_owned()), telegram_id: Some(of.telegram_id), ..self.moved(status, now) }
    }
}

/// A transaction and the contact that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge<'a> {
    pub bot: &'a str,
    pub telegram_id: i64,
    /// See [`transaction_name`].
    pub transaction_id: &'a str,
}

impl Charge<'_> {
    pub fn contact(&self) -> ContactId {
        ContactId::of(self.bot, self.telegram_id)
    }
}

/// What an event changes about a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChargeChange {
    /// Write both rows.
    Both { charges: Box<ChargesRow>, transaction: Box<TransactionRow> },
    /// The charge was over before it was reported as made. Write only this row.
    Transaction(Box<TransactionRow>),
    /// The event was known. The status of the charge does not change.
    Known(ChargeStatus),
    /// The transaction belongs to another contact.
    OtherContact,
    /// The contact has [`MOST_OPEN`] open charges already.
    TooMany,
}

impl ChargeChange {
    fn both(charges: ChargesRow, transaction: TransactionRow) -> Self {
        Self::Both { charges: Box::new(charges), transaction: Box::new(transaction) }
    }
}

/// Records that a charge was made. A charge that is known to be over stays over.
pub fn created(
    charges: &ChargesRow,
    known: &TransactionRow,
    of: &Charge<'_>,
    open: OpenCharge,
    now: Timestamp,
) -> ChargeChange {
    let over = |status| ChargeChange::Transaction(Box::new(known.owned(of, status, now)));
    match known.version {
        _ if known.belongs_to_another(of) => ChargeChange::OtherContact,
        0 if open.until <= now.millis() => over(ChargeStatus::Expired),
        0 => {
            let transaction = known.owned(of, ChargeStatus::Unpaid, now);
            let kept = Timestamp::from_millis(open.until).plus_days(KEEP_DAYS).seconds();
            let transaction = TransactionRow { open_until: Some(open.until), expires_at: Some(kept), ..transaction };
            let charges = charges.created(of.transaction_id, open, now);
            charges.map_or(ChargeChange::TooMany, |charges| ChargeChange::both(charges, transaction))
        }
        // The charge was reported as over before it was reported as made. Its status stays, and its
        // owner is known from now on.
        _ if known.charge().is_none() => over(known.status),
        _ => ChargeChange::Known(known.status_at(now)),
    }
}

/// Records that a charge was paid: offers that were scheduled for its contact until now are no
/// longer sent. A payment that was stored before its contact was named counts now.
pub fn paid(charges: &ChargesRow, known: &TransactionRow, of: &Charge<'_>, now: Timestamp) -> ChargeChange {
    if known.belongs_to_another(of) {
        return ChargeChange::OtherContact;
    }
    if known.status == ChargeStatus::Paid && !known.is_unplaced_payment() {
        return ChargeChange::Known(ChargeStatus::Paid);
    }
    let charges = charges.paid(of.transaction_id, now);
    let pay_epoch = Some(charges.pay_epoch);
    ChargeChange::both(charges, TransactionRow { pay_epoch, ..known.owned(of, ChargeStatus::Paid, now) })
}

/// Records that a charge with a known owner can no longer be paid. A paid charge stays paid.
pub fn expired(charges: &ChargesRow, known: &TransactionRow, now: Timestamp) -> ChargeChange {
    if known.status != ChargeStatus::Unpaid || known.charge().is_none() {
        return ChargeChange::Known(known.status);
    }
    ChargeChange::both(charges.without(&known.transaction_id, now), known.moved(ChargeStatus::Expired, now))
}

/// Returns the row of a transaction that is over and whose contact is not known. `None` if `known`
/// already has this status or a later one.
pub fn unplaced(known: &TransactionRow, status: ChargeStatus, now: Timestamp) -> Option<TransactionRow> {
    (known.status < status).then(|| known.moved(status, now))
}

#[cfg(test)]
mod tests;
