//! Guards: a hold is taken or released together with its place in the list of its guard.
//!
//! The guard is read, the domain's rule computes the next guard from it, and the transaction of the
//! intent's row writes that on the version that was read. If the write loses the race, the rule
//! decides again with the guard that won.

use umavez_domain::intents::{GuardRequest, GuardRow, HoldRequest, IntentRow, TakeOutcome};
use umavez_domain::keys::{self, Key};
use umavez_domain::messages::IntentRef;

use super::{HoldOutcome, Intents};
use crate::invocation::Invocation;
use crate::store::{Beside, Condition, Conflicts, Item, StoreError, Transacted, Write, read_row};

impl Intents {
    /// Makes the caller's writes and takes the intent, in one transaction.
    pub async fn transact_holding(
        &self,
        invocation: &Invocation,
        before: &[Write],
        hold: &HoldRequest,
    ) -> Result<HoldOutcome, StoreError> {
        let now = invocation.now;
        let mut seen: Option<GuardRow> = match &hold.guard {
            Some(asked) => self.store.get(invocation, &self.table, &asked.key).await?,
            None => None,
        };
        let mut conflicts = Conflicts::default();
        loop {
            let mut writes = before.to_vec();
            writes.push(self.hold_write(hold, now)?);
            if let Some(asked) = &hold.guard {
                let guard = seen.clone().unwrap_or_else(|| GuardRow::empty(now));
                match guard.take(asked, now) {
                    TakeOutcome::Yes(next) => writes.push(guard_write(&self.table, &asked.key, seen.as_ref(), &next)?),
                    TakeOutcome::Conflicting(conflict) => return Ok(HoldOutcome::Conflicting(conflict)),
                    TakeOutcome::Full => return Ok(HoldOutcome::Full),
                }
            }
            let Transacted::Refused(mut refusals) = self.store.transact(invocation, writes).await? else {
                return Ok(HoldOutcome::Done);
            };
            let own = refusals.split_off(before.len());
            if refusals.iter().any(Option::is_some) {
                return Ok(HoldOutcome::Refused(refusals));
            }
            let mut own = own.into_iter();
            if let Some(Some(refusal)) = own.next() {
                return HoldOutcome::conflicting(refusal.item);
            }
            // Only the guard has changed since it was read.
            let Some(Some(refusal)) = own.next() else {
                return Err(StoreError::Corrupt("a refused hold without a failed condition"));
            };
            seen = refusal.item.map(read_row).transpose()?;
            conflicts.wait(invocation, StoreError::Conflict).await?;
        }
    }

    /// Returns the write that puts a hold back into the guard of its intent. `None` if the intent
    /// has no guard, or another hold overlaps it.
    pub(super) async fn retaking_guard(
        &self,
        invocation: &Invocation,
        intent: &Key,
        row: &IntentRow,
    ) -> Result<Option<Write>, StoreError> {
        let Some(guard) = &row.guard else { return Ok(None) };
        let (key, now) = (keys::beside(intent, guard), invocation.current());
        let seen: Option<GuardRow> = self.store.get(invocation, &self.table, &key).await?;
        let current = seen.clone().unwrap_or_else(|| GuardRow::empty(now));
        match current.take(&GuardRequest::again(key.clone(), row), now) {
            TakeOutcome::Yes(next) => guard_write(&self.table, &key, seen.as_ref(), &next).map(Some),
            TakeOutcome::Conflicting(_) | TakeOutcome::Full => Ok(None),
        }
    }

    /// Returns the write that releases a holder's place in the guard of an intent, for the
    /// transaction that releases the intent. `None` if the intent has no guard, or the guard does
    /// not contain the hold.
    pub(super) async fn releasing_guard(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
    ) -> Result<Option<Beside>, StoreError> {
        let Some(guard) = &intent.guard else { return Ok(None) };
        let key = keys::beside(&keys::intent(&intent.client_id, &intent.fingerprint), guard);
        let stored = self.store.get_item(invocation, &self.table, &key).await?;
        let (table, now) = (self.table.clone(), invocation.now);
        let (holder, fingerprint) = (holder.to_owned(), intent.fingerprint.clone());
        let rule = move |stored: Option<Item>| {
            let Some(seen) = stored.map(read_row::<GuardRow>).transpose()? else { return Ok(None) };
            let Some(next) = seen.give_back(&holder, &fingerprint, now) else { return Ok(None) };
            guard_write(&table, &key, Some(&seen), &next).map(Some)
        };
        Ok(rule(stored)?.map(|first| Beside::by_rule(first, rule)))
    }
}

fn guard_write(table: &str, key: &Key, seen: Option<&GuardRow>, next: &GuardRow) -> Result<Write, StoreError> {
    // The guard has not changed since it was read.
    let as_read = match seen {
        Some(seen) => Condition::version(seen.version),
        None => Condition::Absent,
    };
    Ok(Write::update(table, key.clone()).set_row(next, &[])?.when(as_read))
}
