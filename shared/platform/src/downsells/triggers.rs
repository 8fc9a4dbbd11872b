//! A /start or a charge. The decision covers all downsells of the bot, and one transaction writes
//! it.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::change::Row;
use umavez_domain::downsells::{ContactId, Plan, PlanStep, RefusedRow, TriggerEvent, plan};
use umavez_domain::keys;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write};

impl Downsells {
    /// Handles a contact's /start. Returns what was written.
    pub async fn started(&self, invocation: &Invocation, event: &TriggerEvent<'_>) -> Result<Plan, StoreError> {
        let id = ContactId::of(event.bot, event.telegram_id);
        let downsells = self.downsells(invocation, event.bot).await?;
        let step = || async {
            let contact = self.contact(invocation, &id, &event.events(&downsells)).await?;
            let plan = plan(event, &downsells, &contact, invocation.now);
            if plan.steps.is_empty() {
                return Ok(Break(plan));
            }
            // The contact has not paid since it was read: an offer stores the number of payments at
            // its creation.
            let unpaid_since = self.charges_unchanged(&id, contact.charges.as_ref());
            let committed = self.commit_plan(invocation, &id, vec![unpaid_since], &plan).await?;
            Ok(if committed { Break(plan) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }

    /// Commits a plan in one transaction with the writes that it depends on. Returns `false` if a
    /// row has changed since it was read.
    pub(super) async fn commit_plan(
        &self,
        invocation: &Invocation,
        id: &ContactId,
        mut writes: Vec<Write>,
        plan: &Plan,
    ) -> Result<bool, StoreError> {
        for step in &plan.steps {
            self.step_writes(id, step, &mut writes)?;
        }
        Ok(self.store.transact(invocation, writes).await? == Transacted::Done)
    }

    fn step_writes(&self, id: &ContactId, step: &PlanStep, writes: &mut Vec<Write>) -> Result<(), StoreError> {
        match step {
            PlanStep::Schedule { offer, slot, slot_before, stale } => {
                // This event is not stored yet.
                writes.push(Write::put(&self.table, offer.key(), offer)?.when(Condition::Absent));
                // No other trigger has taken the slot.
                let as_read = Condition::version(slot_before.as_ref().map_or(0, |before| before.version));
                let key = keys::offer_slot(id, slot.downsell_id);
                writes.push(Write::put(&self.table, key, slot)?.when(as_read));
                if let Some(stale) = stale {
                    writes.push(Write::of_change(&self.table, &stale.0, &stale.1)?);
                }
            }
            PlanStep::Refuse { event, pending } => {
                writes.push(self.refused_write(id, event)?);
                if let Some(slot) = pending {
                    // The offer in the slot is still pending.
                    let as_read = Condition::version(slot.version);
                    writes.push(Write::check(&self.table, keys::offer_slot(id, slot.downsell_id), as_read));
                }
            }
            PlanStep::Join { before, after, event } => {
                writes.push(Write::of_change(&self.table, &**before, &**after)?);
                writes.push(self.refused_write(id, event)?);
            }
        }
        Ok(())
    }

    fn refused_write(&self, id: &ContactId, event: &RefusedRow) -> Result<Write, StoreError> {
        // This event is not stored yet.
        Ok(Write::put(&self.table, keys::offer(id, &event.id), event)?.when(Condition::Absent))
    }
}
