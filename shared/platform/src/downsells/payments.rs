//! Charges that were created, were paid, or expired, and the effects on the offers of their
//! contact.
//!
//! The stored transaction decides which contact a payment or an expiry belongs to. The owner that
//! the request names counts only if the transaction has none.

use std::ops::ControlFlow::{self, Break, Continue};

use umavez_domain::downsells::charges::{self, Charge, ChargeChange};
use umavez_domain::downsells::views::Withdrawn;
use umavez_domain::downsells::webhook::{ChargeCreated, ChargeEnded};
use umavez_domain::downsells::{
    CancelReason, ChargeStatus, ChargesRow, Contact, ContactId, DownsellRow, OfferRow, Plan, TransactionRow, Trigger,
    TriggerEvent, offer_of_charge, plan,
};
use umavez_domain::keys;
use umavez_domain::senders::bots::BotRow;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Beside, StoreError, Write};

/// The outcome of a created charge.
#[derive(Debug)]
pub enum Charged {
    Made {
        charge: ChargeStatus,
        plan: Plan,
    },
    /// The transaction belongs to another contact.
    OtherContact,
    /// The contact has the maximum number of open charges.
    TooMany,
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
        let downsells = self.downsells_if(invocation, &event.bot, bot.active).await?;
        let trigger = TriggerEvent {
            bot: &event.bot,
            telegram_id: event.telegram_id,
            trigger: Trigger::Pix,
            source: &event.transaction_id,
            at: event.at,
            correlation_id,
            meta: None,
            keep_days: self.keep_days,
        };
        self.store.retry(invocation, || self.charged_once(invocation, event, &downsells, &trigger)).await
    }

    async fn charged_once(
        &self,
        invocation: &Invocation,
        event: &ChargeCreated,
        downsells: &[DownsellRow],
        trigger: &TriggerEvent<'_>,
    ) -> Result<ControlFlow<Charged>, StoreError> {
        let (of, now) = (event.charge(), invocation.now);
        let made = |charge: ChargeStatus, plan: Plan| Break(Charged::Made { charge, plan });
        let known = self.transaction(invocation, &event.transaction_id).await?;
        if known.is_unplaced_payment() {
            // The payment arrived first, without a contact. It belongs to this contact.
            let paid = self.pay(invocation, &of, &known).await?;
            return Ok(paid.map_or(Continue(()), |paid| made(paid.charge, Plan::default())));
        }
        let id = of.contact();
        let contact = self.contact(invocation, &id, &trigger.events(downsells)).await?;
        let before = contact.charges.clone().unwrap_or_else(|| ChargesRow::none(of.bot, of.telegram_id, now));
        let (base, after) = match charges::created(&before, &known, &of, event.open(), now) {
            ChargeChange::OtherContact => return Ok(Break(Charged::OtherContact)),
            ChargeChange::TooMany => return Ok(Break(Charged::TooMany)),
            // The charge is still unpaid if neither row has changed since it was read.
            ChargeChange::Known(ChargeStatus::Unpaid) => {
                (vec![Write::unchanged(&self.table, &before)?, Write::unchanged(&self.table, &known)?], None)
            }
            // A charge that is over has no effect.
            ChargeChange::Known(charge) => return Ok(made(charge, Plan::default())),
            ChargeChange::Transaction(after) => {
                let committed = self.store.commit(invocation, &self.table, &known, &after, Vec::new()).await?;
                return Ok(if committed { made(after.status, Plan::default()) } else { Continue(()) });
            }
            ChargeChange::Both { charges, transaction } => {
                let of_charges = Write::of_change(&self.table, &before, &charges)?;
                (vec![of_charges, Write::of_change(&self.table, &known, &transaction)?], Some(*charges))
            }
        };
        let is_new = after.is_some();
        let contact = Contact { charges: after.or(contact.charges), ..contact };
        let plan = plan(trigger, downsells, &contact, now);
        let nothing_to_write = plan.steps.is_empty() && !is_new;
        let committed = nothing_to_write || self.commit_plan(invocation, &id, base, &plan).await?;
        Ok(if committed { made(ChargeStatus::Unpaid, plan) } else { Continue(()) })
    }

    /// Handles the end of a charge: it was paid, or it can no longer be paid. If the stored
    /// transaction names no contact, a payment belongs to the contact that the request names. An
    /// event that neither of them places is kept until its contact is known.
    pub async fn charge_ended(
        &self,
        invocation: &Invocation,
        event: &ChargeEnded,
        status: ChargeStatus,
    ) -> Result<Withdrawn, StoreError> {
        let is_paid = status == ChargeStatus::Paid;
        let step = || async {
            let known = self.transaction(invocation, &event.transaction_id).await?;
            let of = match known.charge() {
                None if is_paid => self.named_by(invocation, event).await?,
                of => of,
            };
            let withdrawn = match &of {
                Some(of) if is_paid => self.pay(invocation, of, &known).await?,
                Some(of) => self.expire(invocation, of, &known).await?,
                None => self.keep(invocation, &known, status).await?,
            };
            let differs = of.map(|of| event.differs(&of)).unwrap_or_default();
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
        known: &TransactionRow,
        status: ChargeStatus,
    ) -> Result<Option<Withdrawn>, StoreError> {
        let Some(after) = charges::unplaced(known, status, invocation.now) else {
            return Ok(Some(Withdrawn::unplaced(known.status)));
        };
        let committed = self.store.commit(invocation, &self.table, known, &after, Vec::new()).await?;
        Ok(committed.then(|| Withdrawn::unplaced(status)))
    }

    /// Handles the payment of a charge of this contact. One write closes the gate; offers that are
    /// still queued are then canceled one by one. Returns `None` if the transaction or the charges
    /// have changed since they were read.
    async fn pay(
        &self,
        invocation: &Invocation,
        of: &Charge<'_>,
        known: &TransactionRow,
    ) -> Result<Option<Withdrawn>, StoreError> {
        let before = self.charges(invocation, of).await?;
        let change = charges::paid(&before, known, of, invocation.now);
        let committed = self.commit_charge(invocation, &before, known, change).await?;
        let Some(transaction) = committed else { return Ok(None) };
        let epoch = transaction.pay_epoch.unwrap_or(0);
        // This read follows the write of the payment, whichever request made it. An offer that it
        // does not find was created later or has ended.
        let contact = self.contact(invocation, &of.contact(), &[]).await?;
        let mut withdrawn = Withdrawn::of(ChargeStatus::Paid);
        // Skip offers of earlier payments: the answers to those payments have counted them.
        let concerns =
            |offer: &&OfferRow| offer.pay_epoch + 1 == epoch || (offer.is_pending() && offer.pay_epoch < epoch);
        for offer in contact.offers.values().filter(concerns) {
            let current = self.cancel_offer(invocation, offer, CancelReason::Paid).await?;
            current.iter().for_each(|offer| withdrawn.count(offer, CancelReason::Paid));
        }
        withdrawn.already_sent +=
            epoch.checked_sub(1).map_or(0, |before| contact.sent_count_beyond_current_slots(before));
        Ok(Some(withdrawn))
    }

    /// Handles the expiry of a charge of this contact: its offers end, or go to the newest charge
    /// that can still be paid. Returns `None` if the transaction or the charges have changed since
    /// they were read.
    async fn expire(
        &self,
        invocation: &Invocation,
        of: &Charge<'_>,
        known: &TransactionRow,
    ) -> Result<Option<Withdrawn>, StoreError> {
        let before = self.charges(invocation, of).await?;
        let change = charges::expired(&before, known, invocation.now);
        let committed = self.commit_charge(invocation, &before, known, change).await?;
        let Some(TransactionRow { status: charge, .. }) = committed else { return Ok(None) };
        let contact = self.contact_of_charge(invocation, of).await?;
        let concerned: Vec<_> = contact.offers.values().filter(|offer| offer.was_of(of.transaction_id)).collect();
        let downsells = self.downsells_if(invocation, of.bot, concerned.iter().any(|offer| offer.is_queued())).await?;
        // If the charge was paid after all, the payment has ended its offers.
        let why = if charge == ChargeStatus::Paid { CancelReason::Paid } else { CancelReason::Expired };
        let mut withdrawn = Withdrawn::of(charge);
        for offer in concerned {
            let current = self.follow_until_current(invocation, offer, contact.charges.clone(), &downsells).await?;
            match current {
                Some(row)
                    if row.passed_from.iter().any(|from| from == of.transaction_id) && why == CancelReason::Expired =>
                {
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

    async fn transaction(&self, invocation: &Invocation, id: &str) -> Result<TransactionRow, StoreError> {
        let stored = self.store.get(invocation, &self.table, &keys::transaction(id)).await?;
        Ok(stored.unwrap_or_else(|| TransactionRow::unknown(id, invocation.now)))
    }

    async fn charges(&self, invocation: &Invocation, of: &Charge<'_>) -> Result<ChargesRow, StoreError> {
        let stored = self.store.get(invocation, &self.table, &keys::charges(&of.contact())).await?;
        Ok(stored.unwrap_or_else(|| ChargesRow::none(of.bot, of.telegram_id, invocation.now)))
    }

    /// Like [`Self::contact`], but also reads the offers of a charge that are no longer in their
    /// slots.
    async fn contact_of_charge(&self, invocation: &Invocation, of: &Charge<'_>) -> Result<Contact, StoreError> {
        let id = of.contact();
        let mut contact = self.contact(invocation, &id, &[]).await?;
        let event = |downsell: &u64| offer_of_charge(of.bot, of.telegram_id, *downsell, of.transaction_id);
        let events = contact.slots.keys().map(event);
        let unread: Vec<_> = events.filter(|event| !contact.offers.contains_key(event)).collect();
        let rows = unread.iter().map(|event| keys::offer(&id, event)).collect();
        self.add_rows(invocation, rows, &mut contact).await?;
        // If a charge joined an offer, that offer's row contains the charge.
        let joined = unread.iter().filter_map(|event| contact.refused.get(event)?.by.clone());
        let joined = joined.filter(|offer| !contact.offers.contains_key(offer));
        let rows = joined.map(|offer| keys::offer(&id, &offer)).collect();
        self.add_rows(invocation, rows, &mut contact).await?;
        Ok(contact)
    }

    /// Writes what an event changes about a charge of this contact: charges and transaction
    /// atomically. Returns the transaction after the event; `None` if either row has changed since
    /// it was read.
    async fn commit_charge(
        &self,
        invocation: &Invocation,
        before: &ChargesRow,
        known: &TransactionRow,
        change: ChargeChange,
    ) -> Result<Option<TransactionRow>, StoreError> {
        match change {
            ChargeChange::Known(_) => Ok(Some(known.clone())),
            ChargeChange::Both { charges, transaction } => {
                let with = vec![Beside::required(Write::of_change(&self.table, before, &charges)?)];
                let committed = self.store.commit(invocation, &self.table, known, &transaction, with).await?;
                Ok(committed.then_some(*transaction))
            }
            ChargeChange::OtherContact | ChargeChange::Transaction(_) | ChargeChange::TooMany => {
                Err(StoreError::Corrupt("a transaction of two contacts"))
            }
        }
    }

    /// Applies the charges of a contact to its offers, if the charges are overdue: outdated offers
    /// end or are passed on.
    pub(super) async fn check_charges(&self, invocation: &Invocation, id: &ContactId) -> Result<(), StoreError> {
        let contact = self.contact(invocation, id, &[]).await?;
        let now = invocation.current();
        let Some(charges) = contact.charges.as_ref().filter(|charges| charges.is_overdue(now)) else {
            return Ok(());
        };
        let outdated = |offer: &&OfferRow| offer.is_queued() && offer.outdated(Some(charges), now).is_some();
        let outdated: Vec<_> = contact.offers.values().filter(outdated).collect();
        let downsells = self.downsells_if(invocation, &charges.bot, !outdated.is_empty()).await?;
        for offer in outdated {
            let downsell = downsells.iter().find(|row| row.id == offer.downsell_id);
            let Some(closed) = offer.follow_charges(Some(charges), downsell, now) else { continue };
            // If a row changed meanwhile, another request has handled it, or the next run finds it
            // again.
            if self.follow(invocation, offer, Some(charges), closed).await?.is_none() {
                return Ok(());
            }
        }
        // A request that changed the charges meanwhile has put them back into the index.
        self.store.commit(invocation, &self.table, charges, &charges.checked(now), Vec::new()).await.map(drop)
    }
}
