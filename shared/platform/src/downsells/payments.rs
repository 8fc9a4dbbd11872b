//! Charges that were created, were paid, or expired, and the effects on the offers of their
//! contact.
//!
//! The stored transaction decides which contact a payment or an expiry belongs to. The owner that
//! the request names counts only if the transaction has none.

use std::ops::ControlFlow::{self, Break, Continue};

use umavez_domain::downsells::charges::{self, Charge, Told};
use umavez_domain::downsells::views::Withdrawn;
use umavez_domain::downsells::webhook::{ChargeCreated, ChargeEnded};
use umavez_domain::downsells::{
    Asked, ChargeStatus, ChargesRow, Contact, ContactId, DownsellRow, OfferRow, TransactionRow, Trigger, Why,
    offer_of_charge, plan,
};
use umavez_domain::keys;
use umavez_domain::senders::bots::BotRow;

use super::Downsells;
use super::triggers::Triggered;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write, Written, read_row};

/// The outcome of a created charge.
#[derive(Debug)]
pub enum Charged {
    Made {
        charge: ChargeStatus,
        triggered: Triggered,
    },
    /// The transaction belongs to another contact.
    Another,
}

impl Downsells {
    /// Stores a created charge and schedules its offers in the same transaction.
    pub async fn charged(
        &self,
        invocation: &Invocation,
        bot: &BotRow,
        event: &ChargeCreated,
        correlation_id: &str,
    ) -> Result<Charged, StoreError> {
        // The charge counts even while the bot is inactive; its offers would only be skipped.
        let downsells = match bot.active {
            true => self.downsells(invocation, &event.bot).await?,
            false => Vec::new(),
        };
        let asked = Asked {
            bot: &event.bot,
            telegram_id: event.telegram_id,
            trigger: Trigger::Pix,
            source: &event.transaction_id,
            at: event.at,
            correlation_id,
            meta: None,
            keep_days: self.keep_days,
        };
        self.store.retry(invocation, || self.charged_once(invocation, event, &downsells, &asked)).await
    }

    async fn charged_once(
        &self,
        invocation: &Invocation,
        event: &ChargeCreated,
        downsells: &[DownsellRow],
        asked: &Asked<'_>,
    ) -> Result<ControlFlow<Charged>, StoreError> {
        let id = ContactId::of(&event.bot, event.telegram_id);
        let made = |charge: ChargeStatus, triggered: Triggered| Break(Charged::Made { charge, triggered });
        let known = self.transaction(invocation, &event.transaction_id).await?;
        if known.as_ref().is_some_and(TransactionRow::is_unplaced_payment) {
            // The payment arrived first, without a contact. It belongs to this contact.
            let paid = self.pay(invocation, &event.charge(), known.as_ref()).await?;
            return Ok(paid.map_or(Continue(()), |paid| made(paid.charge, Triggered::default())));
        }
        let contact = self.contact(invocation, &id, &asked.events(downsells)).await?;
        let before = contact.charges.clone();
        let none = ChargesRow::none(&event.bot, event.telegram_id, invocation.now);
        let now_open = before.as_ref().unwrap_or(&none);
        let (base, after) =
            match charges::created(now_open, known.as_ref(), &event.charge(), event.open(), invocation.now) {
                Told::Another => return Ok(Break(Charged::Another)),
                Told::Known(ChargeStatus::Unpaid) => {
                    let as_read = Self::charges_as_read(before.as_ref());
                    let still_unpaid = Self::transaction_as_read(known.as_ref());
                    let checks = vec![
                        Write::check(&self.table, keys::charges(&id), as_read),
                        Write::check(&self.table, keys::transaction(&event.transaction_id), still_unpaid),
                    ];
                    (checks, None)
                }
                Told::Over(transaction) => {
                    let write = self.transaction_write(known.as_ref(), &transaction)?;
                    return Ok(match self.store.write(invocation, write).await? {
                        Written::New | Written::Mine => made(transaction.status, Triggered::default()),
                        Written::Refused(_) => Continue(()),
                    });
                }
                // A charge that is over has no effect.
                Told::Known(charge) => return Ok(made(charge, Triggered::default())),
                Told::New { charges, transaction } => {
                    let writes = vec![
                        self.charges_write(before.as_ref(), &charges)?,
                        self.transaction_write(known.as_ref(), &transaction)?,
                    ];
                    (writes, Some(*charges))
                }
            };
        let is_new = after.is_some();
        let plan = plan(asked, downsells, &Self::with_charges(&contact, after), invocation.now);
        let nothing_to_write = plan.steps.is_empty() && !is_new;
        let committed = nothing_to_write || self.make(invocation, &id, base, &plan).await?;
        Ok(if committed { made(ChargeStatus::Unpaid, Triggered::of(plan)) } else { Continue(()) })
    }

    /// Handles the payment of a charge. If neither the stored transaction nor the request names the
    /// contact, the payment is kept until one of them does.
    pub async fn paid(&self, invocation: &Invocation, event: &ChargeEnded) -> Result<Withdrawn, StoreError> {
        let step = || async {
            let known = self.transaction(invocation, &event.transaction_id).await?;
            let of = match known.as_ref().and_then(TransactionRow::owner) {
                Some(owner) => Some(event.charge_of(owner)),
                None => self.named_by(invocation, event).await?,
            };
            let withdrawn = match &of {
                Some(of) => self.pay(invocation, of, known.as_ref()).await?,
                None => self.keep(invocation, event, known.as_ref(), ChargeStatus::Paid).await?,
            };
            let differs = of.map(|of| event.differs(of.bot, of.telegram_id)).unwrap_or_default();
            Ok(withdrawn.map_or(Continue(()), |withdrawn| Break(Withdrawn { differs, ..withdrawn })))
        };
        self.store.retry(invocation, step).await
    }

    /// Returns the charge as the request describes it, if the request names a contact and an
    /// existing bot.
    async fn named_by<'a>(
        &self,
        invocation: &Invocation,
        event: &'a ChargeEnded,
    ) -> Result<Option<Charge<'a>>, StoreError> {
        let Some(named) = event.named() else { return Ok(None) };
        Ok(self.bots.get(invocation, named.bot).await?.map(|_| named))
    }

    /// Stores that a transaction without a contact is over. Returns `None` if its row has changed
    /// since it was read.
    async fn keep(
        &self,
        invocation: &Invocation,
        event: &ChargeEnded,
        known: Option<&TransactionRow>,
        status: ChargeStatus,
    ) -> Result<Option<Withdrawn>, StoreError> {
        let Some(row) = charges::unplaced(known, &event.transaction_id, status, invocation.now) else {
            return Ok(Some(Withdrawn::unplaced(known.map_or(status, |known| known.status))));
        };
        let written = self.store.write(invocation, self.transaction_write(known, &row)?).await?;
        Ok((!matches!(written, Written::Refused(_))).then(|| Withdrawn::unplaced(status)))
    }

    /// Handles the payment of a charge of this contact. One write closes the gate; offers that are
    /// still queued are then canceled one by one. Returns `None` if the transaction or the charges
    /// have changed since they were read.
    async fn pay(
        &self,
        invocation: &Invocation,
        of: &Charge<'_>,
        known: Option<&TransactionRow>,
    ) -> Result<Option<Withdrawn>, StoreError> {
        let id = ContactId::of(of.bot, of.telegram_id);
        let before = self.charges(invocation, &id).await?;
        let none = ChargesRow::none(of.bot, of.telegram_id, invocation.now);
        let epoch = match charges::paid(before.as_ref().unwrap_or(&none), known, of, invocation.now) {
            Told::Another => return Err(StoreError::Corrupt("a transaction of two contacts")),
            Told::Known(_) | Told::Over(_) => known.and_then(|row| row.pay_epoch).unwrap_or(0),
            Told::New { charges, transaction } => {
                if !self.commit_charge(invocation, before.as_ref(), &charges, known, &transaction).await? {
                    return Ok(None);
                }
                charges.pay_epoch
            }
        };
        // This read follows the write of the payment, whichever request made it. An offer that it
        // does not find was created later or has ended.
        let contact = self.contact(invocation, &id, &[]).await?;
        let mut withdrawn = Withdrawn::of(ChargeStatus::Paid);
        // Skip offers of earlier payments: the answers to those payments have counted them.
        let concerns =
            |offer: &&OfferRow| offer.pay_epoch + 1 == epoch || (offer.is_pending() && offer.pay_epoch < epoch);
        for offer in contact.offers.values().filter(concerns) {
            let stands = self.cancel_offer(invocation, offer, Why::Paid).await?;
            stands.iter().for_each(|offer| withdrawn.count(offer, Why::Paid));
        }
        withdrawn.already_sent +=
            epoch.checked_sub(1).map_or(0, |before| contact.sent_count_beyond_current_slots(before));
        Ok(Some(withdrawn))
    }

    /// Handles the expiry of a charge: its offers end, or go to the newest charge that can still be
    /// paid.
    pub async fn expired(&self, invocation: &Invocation, event: &ChargeEnded) -> Result<Withdrawn, StoreError> {
        let step = || async {
            let known = self.transaction(invocation, &event.transaction_id).await?;
            let owned = known.as_ref().and_then(|row| Some((row, row.owner()?)));
            let withdrawn = match owned {
                Some((known, (bot, telegram_id))) => {
                    let withdrawn = self.expire(invocation, known, (bot, telegram_id)).await?;
                    withdrawn.map(|withdrawn| Withdrawn { differs: event.differs(bot, telegram_id), ..withdrawn })
                }
                None => self.keep(invocation, event, known.as_ref(), ChargeStatus::Expired).await?,
            };
            Ok(withdrawn.map_or(Continue(()), Break))
        };
        self.store.retry(invocation, step).await
    }

    /// Expires a charge with a known owner. Returns `None` if the transaction or the charges have
    /// changed since they were read.
    async fn expire(
        &self,
        invocation: &Invocation,
        known: &TransactionRow,
        (bot, telegram_id): (&str, i64),
    ) -> Result<Option<Withdrawn>, StoreError> {
        let id = ContactId::of(bot, telegram_id);
        let before = self.charges(invocation, &id).await?;
        let none = ChargesRow::none(bot, telegram_id, invocation.now);
        let charge = match charges::expired(before.as_ref().unwrap_or(&none), known, invocation.now) {
            Told::Known(charge) => charge,
            Told::Another | Told::Over(_) => return Err(StoreError::Corrupt("a transaction of two contacts")),
            Told::New { charges, transaction } => {
                if !self.commit_charge(invocation, before.as_ref(), &charges, Some(known), &transaction).await? {
                    return Ok(None);
                }
                ChargeStatus::Expired
            }
        };
        let transaction_id = known.transaction_id.as_str();
        let contact = self.contact_of_charge(invocation, &id, (bot, telegram_id), transaction_id).await?;
        let concerned: Vec<_> = contact.offers.values().filter(|offer| offer.was_of(transaction_id)).collect();
        let downsells = self.downsells_if(invocation, bot, concerned.iter().any(|offer| offer.is_queued())).await?;
        // If the charge was paid after all, the payment has ended its offers.
        let why = if charge == ChargeStatus::Paid { Why::Paid } else { Why::Expired };
        let mut withdrawn = Withdrawn::of(charge);
        for offer in concerned {
            let stands = self.see_to(invocation, offer, contact.charges.clone(), &downsells).await?;
            match stands {
                Some(row) if row.passed_from.iter().any(|from| from == transaction_id) && why == Why::Expired => {
                    withdrawn.passed_on += 1;
                }
                Some(row) => withdrawn.count(&row, why),
                None => {}
            }
        }
        Ok(Some(withdrawn))
    }

    /// Returns the downsells of a bot if `needed`, otherwise none.
    async fn downsells_if(
        &self,
        invocation: &Invocation,
        bot: &str,
        needed: bool,
    ) -> Result<Vec<DownsellRow>, StoreError> {
        if needed { self.downsells(invocation, bot).await } else { Ok(Vec::new()) }
    }

    async fn transaction(&self, invocation: &Invocation, id: &str) -> Result<Option<TransactionRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::transaction(id)).await
    }

    async fn charges(&self, invocation: &Invocation, id: &ContactId) -> Result<Option<ChargesRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::charges(id)).await
    }

    /// Like [`Self::contact`], but also reads the offers of a charge that are no longer in their
    /// slots.
    async fn contact_of_charge(
        &self,
        invocation: &Invocation,
        id: &ContactId,
        (bot, telegram_id): (&str, i64),
        transaction_id: &str,
    ) -> Result<Contact, StoreError> {
        let mut contact = self.contact(invocation, id, &[]).await?;
        let events = contact.slots.keys().map(|downsell| offer_of_charge(bot, telegram_id, *downsell, transaction_id));
        let unread: Vec<_> = events.filter(|event| !contact.offers.contains_key(event)).collect();
        self.read_offers(invocation, id, &unread, &mut contact).await?;
        // If a charge joined an offer, that offer's row contains the charge.
        let joined = unread.iter().filter_map(|event| contact.refused.get(event)?.by.clone());
        let joined: Vec<_> = joined.filter(|offer| !contact.offers.contains_key(offer)).collect();
        self.read_offers(invocation, id, &joined, &mut contact).await?;
        Ok(contact)
    }

    /// Writes charges and transaction atomically. Returns `false` if either changed since it was
    /// read.
    async fn commit_charge(
        &self,
        invocation: &Invocation,
        before: Option<&ChargesRow>,
        charges: &ChargesRow,
        known: Option<&TransactionRow>,
        transaction: &TransactionRow,
    ) -> Result<bool, StoreError> {
        let writes = vec![self.charges_write(before, charges)?, self.transaction_write(known, transaction)?];
        Ok(self.store.transact(invocation, writes).await? == Transacted::Done)
    }

    fn transaction_write(&self, before: Option<&TransactionRow>, after: &TransactionRow) -> Result<Write, StoreError> {
        let key = keys::transaction(&after.transaction_id);
        Ok(Write::put(&self.table, key, after)?.when(Self::transaction_as_read(before)))
    }

    fn transaction_as_read(read: Option<&TransactionRow>) -> Condition {
        match read {
            Some(row) => Condition::version(row.version),
            None => Condition::Absent,
        }
    }

    /// Applies the charges of a contact to its offers: outdated offers end or are passed on.
    /// Returns whether there was anything to do.
    pub async fn look_after(&self, invocation: &Invocation, id: &ContactId) -> Result<bool, StoreError> {
        let contact = self.contact(invocation, id, &[]).await?;
        let now = invocation.current();
        let Some(charges) = contact.charges.as_ref().filter(|charges| charges.is_overdue(now)) else {
            return Ok(false);
        };
        let outdated = |offer: &&OfferRow| offer.is_queued() && offer.outdated(Some(charges), now).is_some();
        let outdated: Vec<_> = contact.offers.values().filter(outdated).collect();
        let downsells = self.downsells_if(invocation, &charges.bot, !outdated.is_empty()).await?;
        for offer in outdated {
            let downsell = downsells.iter().find(|row| row.id == offer.downsell_id);
            let Some(outdated) = offer.follow_charges(Some(charges), downsell, now) else { continue };
            // If a row changed meanwhile, another request has handled it, or the next run finds it
            // again.
            if self.follow(invocation, offer, Some(charges), outdated).await?.is_none() {
                return Ok(true);
            }
        }
        let after = charges.looked_after(now);
        // A request that changed the charges meanwhile has put them back into the index.
        match self.store.write(invocation, self.charges_write(Some(charges), &after)?).await? {
            Written::New | Written::Mine => {}
            Written::Refused(item) => drop(item.map(read_row::<ChargesRow>).transpose()?),
        }
        Ok(true)
    }
}
