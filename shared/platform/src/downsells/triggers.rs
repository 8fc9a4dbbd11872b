//! A /start or a charge. The decision covers all downsells of the bot, and one transaction writes
//! it.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::downsells::views::Scheduled;
use umavez_domain::downsells::{Asked, Contact, ContactId, OfferRow, Plan, Step, plan};
use umavez_domain::keys;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write};

/// The result of a trigger.
#[derive(Debug, Default)]
pub struct Triggered {
    pub told: Scheduled,
    pub offers: Vec<OfferRow>,
    /// Offers that the trigger ended because they were outdated.
    pub ended: Vec<OfferRow>,
}

impl Triggered {
    pub(super) fn of(plan: Plan) -> Self {
        let told = Scheduled::of(&plan);
        let (mut offers, mut ended) = (Vec::new(), Vec::new());
        for step in plan.steps {
            if let Step::Schedule { offer, stale, .. } = step {
                offers.push(*offer);
                ended.extend(stale.map(|stale| stale.1));
            }
        }
        Self { told, offers, ended }
    }
}

impl Downsells {
    /// Handles a contact's /start.
    pub async fn started(&self, invocation: &Invocation, asked: &Asked<'_>) -> Result<Triggered, StoreError> {
        let id = ContactId::of(asked.bot, asked.telegram_id);
        let downsells = self.downsells(invocation, asked.bot).await?;
        let step = || async {
            let contact = self.contact(invocation, &id, &asked.events(&downsells)).await?;
            let plan = plan(asked, &downsells, &contact, invocation.now);
            if plan.steps.is_empty() {
                return Ok(Break(Triggered::of(plan)));
            }
            // Nobody has paid since the contact was read: an offer stores how many payments there
            // were when it was created.
            let unpaid_since = Self::charges_as_read(contact.charges.as_ref());
            let base = vec![Write::check(&self.table, keys::charges(&id), unpaid_since)];
            let made = self.make(invocation, &id, base, &plan).await?;
            Ok(if made { Break(Triggered::of(plan)) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }

    /// Commits a plan in one transaction with the writes that it depends on. Returns `false` if a
    /// row has changed since it was read.
    pub(super) async fn make(
        &self,
        invocation: &Invocation,
        id: &ContactId,
        base: Vec<Write>,
        plan: &Plan,
    ) -> Result<bool, StoreError> {
        let mut writes = base;
        for step in &plan.steps {
            self.step_writes(id, step, &mut writes)?;
        }
        Ok(self.store.transact(invocation, writes).await? == Transacted::Done)
    }

    fn step_writes(&self, id: &ContactId, step: &Step, writes: &mut Vec<Write>) -> Result<(), StoreError> {
        // This event is not stored yet.
        let first_told = |write: Write| write.when(Condition::Absent);
        match step {
            Step::Schedule { offer, slot, slot_before, stale } => {
                writes.push(first_told(Write::put(&self.table, keys::offer(id, &offer.id), offer)?));
                // No other trigger has taken the slot.
                let as_read = match slot_before {
                    Some(before) => Condition::version(before.version),
                    None => Condition::Absent,
                };
                let key = keys::offer_slot(id, slot.downsell_id);
                writes.push(Write::put(&self.table, key, slot)?.when(as_read));
                if let Some(stale) = stale {
                    writes.push(self.offer_write(&stale.0, &stale.1)?);
                }
            }
            Step::Refuse { event, pending } => {
                writes.push(first_told(Write::put(&self.table, keys::offer(id, &event.id), event)?));
                if let Some(slot) = pending {
                    // The offer in the slot is still pending.
                    let as_read = Condition::version(slot.version);
                    writes.push(Write::check(&self.table, keys::offer_slot(id, slot.downsell_id), as_read));
                }
            }
            Step::Join { before, after, event } => {
                writes.push(self.offer_write(before, after)?);
                writes.push(first_told(Write::put(&self.table, keys::offer(id, &event.id), event)?));
            }
        }
        Ok(())
    }

    /// Returns the contact with the charges that a new charge leads to, as the input of a plan.
    pub(super) fn with_charges(contact: &Contact, charges: Option<umavez_domain::downsells::ChargesRow>) -> Contact {
        Contact { charges: charges.or_else(|| contact.charges.clone()), ..contact.clone() }
    }
}
