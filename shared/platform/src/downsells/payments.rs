//! Charges that were made, paid, or can no longer be paid; and what that does to the offers of their contact.

use umavez_domain::downsells::bots::BotRow;
use umavez_domain::downsells::charges::{self, Told};
use umavez_domain::downsells::views::Withdrawn;
use umavez_domain::downsells::webhook::{Expiry, PaymentEvent};
use umavez_domain::downsells::{
    Asked, Cancel, ChargeStatus, ChargesRow, Contact, ContactId, OfferRow, Status, TransactionRow, Trigger, Why,
    offer_of_charge, plan,
};
use umavez_domain::keys;

use super::contact::{Committed, pause};
use super::triggers::Triggered;
use super::{Downsells, ROUNDS, tell};
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write, Written, read_row};

/// What came of a charge that was made.
#[derive(Debug)]
pub enum Charged {
    Made {
        charge: ChargeStatus,
        triggered: Triggered,
    },
    /// The transaction is somebody else's.
    Another,
}

impl Downsells {
    /// A charge was made: it is put down, and its offers with it.
    pub async fn charged(
        &self,
        invocation: &Invocation,
        bot: &BotRow,
        event: &PaymentEvent,
        correlation_id: &str,
    ) -> Result<Charged, StoreError> {
        let id = ContactId::of(&event.bot, event.telegram_id);
        // The charge counts also while the bot is put to rest; its offers would only be skipped.
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
        for tries in 0..ROUNDS {
            let known = self.transaction(invocation, &event.transaction_id).await?;
            let contact = self.contact(invocation, &id, &asked.events(&downsells)).await?;
            let before = contact.charges.clone();
            let none = ChargesRow::none(&event.bot, event.telegram_id, invocation.now);
            let now_open = before.as_ref().unwrap_or(&none);
            let told = charges::created(now_open, known.as_ref(), &event.charge(), event.open_until, invocation.now);
            let (base, after) = match told {
                Told::Another => return Ok(Charged::Another),
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
                    match self.store.write(invocation, self.transaction_write(known.as_ref(), &transaction)?).await? {
                        Written::New | Written::Mine => {
                            let charge = transaction.status;
                            return Ok(Charged::Made { charge, triggered: Triggered::default() });
                        }
                        Written::Refused(_) => continue,
                    }
                }
                // Nothing follows from a charge that is over.
                Told::Known(charge) => return Ok(Charged::Made { charge, triggered: Triggered::default() }),
                Told::New { charges, transaction } => {
                    let writes = vec![
                        self.charges_write(before.as_ref(), &charges)?,
                        self.transaction_write(known.as_ref(), &transaction)?,
                    ];
                    (writes, Some(*charges))
                }
            };
            let is_new = after.is_some();
            let plan = plan(&asked, &downsells, &Self::with_charges(&contact, after), invocation.now);
            let charge = ChargeStatus::Unpaid;
            let nothing_to_write = plan.steps.is_empty() && !is_new;
            if nothing_to_write || self.make(invocation, &id, base, &plan).await? {
                return Ok(Charged::Made { charge, triggered: Triggered::of(plan) });
            }
            pause(invocation, tries).await?;
        }
        Err(StoreError::Conflict)
    }

    /// A charge was paid. One write closes the gate; what is still queued then ends one by one. `None`: the transaction is
    /// somebody else's.
    pub async fn paid(&self, invocation: &Invocation, event: &PaymentEvent) -> Result<Option<Withdrawn>, StoreError> {
        let id = ContactId::of(&event.bot, event.telegram_id);
        for tries in 0..ROUNDS {
            let known = self.transaction(invocation, &event.transaction_id).await?;
            let before = self.charges(invocation, &id).await?;
            let none = ChargesRow::none(&event.bot, event.telegram_id, invocation.now);
            let now_open = before.as_ref().unwrap_or(&none);
            let epoch = match charges::paid(now_open, known.as_ref(), &event.charge(), invocation.now) {
                Told::Another => return Ok(None),
                Told::Known(_) | Told::Over(_) => known.and_then(|row| row.pay_epoch).unwrap_or(0),
                Told::New { charges, transaction } => {
                    if !self.told(invocation, before.as_ref(), &charges, known.as_ref(), &transaction).await? {
                        pause(invocation, tries).await?;
                        continue;
                    }
                    charges.pay_epoch
                }
            };
            // Read after the payment was written, by whomever: what is not in it was made later, or has ended.
            let contact = self.contact(invocation, &id, &[]).await?;
            // Those of before an earlier payment were answered for by that one.
            let concerns =
                |offer: &OfferRow| offer.pay_epoch + 1 == epoch || (offer.is_pending() && offer.pay_epoch < epoch);
            let mut withdrawn = self.withdraw(invocation, &contact, ChargeStatus::Paid, concerns).await?;
            withdrawn.already_sent +=
                epoch.checked_sub(1).map_or(0, |before| contact.sent_before_those_in_slots(before));
            return Ok(Some(withdrawn));
        }
        Err(StoreError::Conflict)
    }

    /// A charge can no longer be paid: its offers end.
    pub async fn expired(&self, invocation: &Invocation, expiry: &Expiry) -> Result<Withdrawn, StoreError> {
        for tries in 0..ROUNDS {
            let Some(known) = self.transaction(invocation, &expiry.transaction_id).await? else {
                let row = charges::tombstone(&expiry.transaction_id, invocation.now);
                match self.store.write(invocation, self.transaction_write(None, &row)?).await? {
                    Written::New | Written::Mine => return Ok(Withdrawn::of(ChargeStatus::Expired)),
                    Written::Refused(_) => continue,
                }
            };
            let Some((bot, telegram_id)) = known.owner() else {
                return Ok(Withdrawn::of(known.status));
            };
            let id = ContactId::of(bot, telegram_id);
            let before = self.charges(invocation, &id).await?;
            let none = ChargesRow::none(bot, telegram_id, invocation.now);
            let charge = match charges::expired(before.as_ref().unwrap_or(&none), &known, invocation.now) {
                Told::Known(charge) => charge,
                Told::Another | Told::Over(_) => return Err(StoreError::Corrupt("a transaction of two contacts")),
                Told::New { charges, transaction } => {
                    if !self.told(invocation, before.as_ref(), &charges, Some(&known), &transaction).await? {
                        pause(invocation, tries).await?;
                        continue;
                    }
                    ChargeStatus::Expired
                }
            };
            let contact = self.contact_of_charge(invocation, &id, (bot, telegram_id), &expiry.transaction_id).await?;
            let concerns = |offer: &OfferRow| {
                offer.trigger == Trigger::Pix && offer.transaction_id.as_deref() == Some(&expiry.transaction_id)
            };
            return self.withdraw(invocation, &contact, charge, concerns).await;
        }
        Err(StoreError::Conflict)
    }

    async fn transaction(&self, invocation: &Invocation, id: &str) -> Result<Option<TransactionRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::transaction(id)).await
    }

    async fn charges(&self, invocation: &Invocation, id: &ContactId) -> Result<Option<ChargesRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::charges(id)).await
    }

    /// As [`Self::contact`], with the offers of a charge that have left their slots to others.
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
        // A charge that joined an offer is in the offer's row.
        let joined = unread.iter().filter_map(|event| contact.refused.get(event)?.by.clone());
        let joined: Vec<_> = joined.filter(|offer| !contact.offers.contains_key(offer)).collect();
        self.read_offers(invocation, id, &joined, &mut contact).await?;
        Ok(contact)
    }

    /// The charge and its transaction move together. Whether nobody was faster.
    async fn told(
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
            Some(row) => Condition::is_number("version", row.version),
            None => Condition::Absent,
        }
    }

    /// Ends those offers of a charge that is over which can still be ended, and tells how all of them stand.
    async fn withdraw(
        &self,
        invocation: &Invocation,
        contact: &Contact,
        charge: ChargeStatus,
        concerns: impl Fn(&OfferRow) -> bool,
    ) -> Result<Withdrawn, StoreError> {
        // Of a charge that was paid after all, it is the payment that has ended its offers.
        let why = if charge == ChargeStatus::Paid { Why::Paid } else { Why::Expired };
        let mut answer = Withdrawn::of(charge);
        for offer in contact.offers.values().filter(|offer| concerns(offer)) {
            let stands = self.cancel_offer(invocation, offer.clone(), why).await?;
            match stands.map(|row| (row.status, row.cancel_reason)) {
                Some((Status::Canceled, Some(reason))) if reason == why => answer.canceled += 1,
                Some((Status::Pending, _)) => answer.in_flight += 1,
                Some((Status::Sent, _)) => answer.already_sent += 1,
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Cancels an offer that was read as `offer`, if it has not left. As it stands then; nothing if it is gone.
    async fn cancel_offer(
        &self,
        invocation: &Invocation,
        offer: OfferRow,
        why: Why,
    ) -> Result<Option<OfferRow>, StoreError> {
        let mut offer = offer;
        for _ in 0..ROUNDS {
            let Cancel::Now(after) = offer.cancel(why, invocation.current(), self.keep_days) else {
                return Ok(Some(offer));
            };
            match self.commit(invocation, &offer, &after, Vec::new()).await? {
                Committed::Done => {
                    tell_ended(invocation, &after);
                    return Ok(Some(*after));
                }
                Committed::Lost(Some(met)) => offer = *met,
                Committed::Lost(None) => return Ok(None),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Sees to what follows from the charges of a contact: offers that are outdated end. Whether there was anything to see to.
    pub async fn look_after(&self, invocation: &Invocation, id: &ContactId) -> Result<bool, StoreError> {
        let contact = self.contact(invocation, id, &[]).await?;
        let now = invocation.current();
        let Some(charges) = contact.charges.as_ref().filter(|charges| charges.is_overdue(now)) else {
            return Ok(false);
        };
        for offer in contact.offers.values().filter(|offer| offer.is_queued()) {
            let Some(end) = offer.outdated(Some(charges), now) else { continue };
            // What has changed meanwhile is another's to see to, and found again if it is not.
            match self.end(invocation, offer, Some(charges), end).await? {
                Some(after) => tell_ended(invocation, &after),
                None => return Ok(true),
            }
        }
        let after = charges.looked_after(now);
        // Who changed them meanwhile has put them where they are found.
        match self.store.write(invocation, self.charges_write(Some(charges), &after)?).await? {
            Written::New | Written::Mine => {}
            Written::Refused(item) => drop(item.map(read_row::<ChargesRow>).transpose()?),
        }
        Ok(true)
    }
}

/// As soon as it has ended: whoever is told of it again finds it ended.
fn tell_ended(invocation: &Invocation, offer: &OfferRow) {
    if !offer.is_pending() {
        tell::changed(invocation, offer);
    }
}
