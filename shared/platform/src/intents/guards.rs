//! Guards: a hold is taken or released together with its place in the list of its guard.
//!
//! The guard is read, the domain's rule computes the next guard from it, and the transaction of the
//! intent's row writes that on the version that was read. If the write loses the race, the rule
//! decides again with the guard that won.

use umavez_domain::delivery::Claim;
use umavez_domain::intents::{BeginOutcome, GuardRow, HoldRequest, IntentHold, IntentRow, TakeOutcome};
use umavez_domain::keys::{self, Key};
use umavez_domain::messages::IntentRef;
use umavez_domain::time::Timestamp;

use super::{HoldOutcome, Intents};
use crate::invocation::Invocation;
use crate::store::{Beside, Condition, Conflicts, Item, StoreError, Transacted, Write, read_row};

/// Whether the guard of a message's intent allows an attempt now.
#[derive(Debug)]
pub enum Begin {
    /// It does. The claim of the attempt makes these writes too.
    Now(Vec<Write>),
    /// The window of the hold `by` is not over. The write that defers the message makes these
    /// writes too.
    Later { by: Box<IntentHold>, writes: Vec<Beside> },
}

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
        let next = current.put_back(&row.hold(), now);
        next.map(|next| guard_write(&self.table, &key, seen.as_ref(), &next)).transpose()
    }

    /// Decides whether the guard of a message's intent allows the attempt of a claim, and moves the
    /// hold to the time of the attempt. A message whose intent was released by hand, or has
    /// expired, has no place in the guard and is not held back by it.
    pub async fn begin(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
        claim: &Claim,
    ) -> Result<Begin, StoreError> {
        let key = keys::intent(&intent.client_id, &intent.fingerprint);
        let Some(guard) = &intent.guard else { return Ok(Begin::Now(Vec::new())) };
        let guard_key = keys::beside(&key, guard);
        let (row, seen): (Option<IntentRow>, Option<GuardRow>) = futures::try_join!(
            self.store.get(invocation, &self.table, &key),
            self.store.get(invocation, &self.table, &guard_key)
        )?;
        let now = invocation.current();
        let begun = row.and_then(|row| Some((row.begun(holder, now, claim.deadline)?, row)));
        let Some((after, row)) = begun else { return Ok(Begin::Now(Vec::new())) };
        let current = seen.clone().unwrap_or_else(|| GuardRow::empty(now));
        match current.begin(&after.hold(), now) {
            BeginOutcome::Yes(next) => Ok(Begin::Now(vec![
                Write::of_change(&self.table, &row, &after)?,
                guard_write(&self.table, &guard_key, seen.as_ref(), &next)?,
            ])),
            BeginOutcome::Wait { by, guard } => {
                let write = guard_write(&self.table, &guard_key, seen.as_ref(), &guard)?;
                Ok(Begin::Later { by, writes: vec![Beside::required(write)] })
            }
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
        self.changing_guard(invocation, intent, holder, GuardRow::give_back).await
    }

    /// Returns the write that makes a message's hold pending, for the transaction that queues the
    /// message again because its attempt was not sent. `None` if the guard does not contain the
    /// hold.
    pub async fn suspend(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
    ) -> Result<Option<Beside>, StoreError> {
        self.changing_guard(invocation, intent, holder, GuardRow::suspend).await
    }

    /// Returns the write that changes a holder's place in the guard of an intent by a rule. `None`
    /// if there is no guard, or nothing to change.
    async fn changing_guard(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
        change: fn(&GuardRow, &str, &str, Timestamp) -> Option<GuardRow>,
    ) -> Result<Option<Beside>, StoreError> {
        let Some(guard) = &intent.guard else { return Ok(None) };
        let key = keys::beside(&keys::intent(&intent.client_id, &intent.fingerprint), guard);
        let stored = self.store.get_item(invocation, &self.table, &key).await?;
        let (table, now) = (self.table.clone(), invocation.now);
        let (holder, fingerprint) = (holder.to_owned(), intent.fingerprint.clone());
        let rule = move |stored: Option<Item>| {
            let Some(seen) = stored.map(read_row::<GuardRow>).transpose()? else { return Ok(None) };
            let Some(next) = change(&seen, &holder, &fingerprint, now) else { return Ok(None) };
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
