//! Guards: a hold is taken or released together with its place in the list of its guard.
//!
//! The guard is read, the domain's rule computes the next guard from it, and the transaction of the
//! intent's row writes that on the version that was read. If the write loses the race, the rule
//! decides again with the guard that won.

use umavez_domain::intents::{GuardRow, Hold, IntentRow, Standing, Taken};
use umavez_domain::keys::{self, Key};
use umavez_domain::messages::IntentRef;
use umavez_domain::time::Timestamp;

use super::Intents;
use crate::invocation::Invocation;
use crate::store::{Beside, Condition, Conflicts, Item, Refusal, StoreError, Transacted, Write, read_row};

/// The outcome of a transaction that takes an intent.
#[derive(Debug)]
pub enum Holding {
    Done,
    /// Writes of the caller were refused. Contains one entry per write, in order.
    Refused(Vec<Option<Refusal>>),
    /// This row or guard refused the hold.
    Standing(Box<Standing>),
    /// The guard has no room for another hold at a later time.
    Full,
}

/// A hold whose place in a guard is released.
#[derive(Debug, Clone)]
pub struct GuardRelease {
    key: Key,
    holder: String,
    fingerprint: String,
}

impl GuardRelease {
    /// Creates it from an intent's row; `None` if the intent has no guard.
    pub(super) fn of(intent: &Key, row: &IntentRow) -> Option<Self> {
        let key = keys::beside(intent, row.guard.as_ref()?);
        Some(Self { key, holder: row.holder.clone(), fingerprint: row.fingerprint.clone() })
    }

    /// Creates it from the intent that a message holds; `None` if the intent has no guard.
    pub fn of_message(held: &IntentRef, holder: &str) -> Option<Self> {
        let client = umavez_domain::fields::parse_uuid(&held.client_id)?;
        let key = keys::beside(&keys::intent(client, &held.fingerprint), held.guard.as_ref()?);
        Some(Self { key, holder: holder.to_owned(), fingerprint: held.fingerprint.clone() })
    }

    /// Returns the write that removes this hold from the guard as it was read. `None` if the guard
    /// does not contain the hold.
    fn write(&self, table: &str, seen: Option<GuardRow>, now: Timestamp) -> Result<Option<Write>, StoreError> {
        let Some(seen) = seen else { return Ok(None) };
        let Some(next) = seen.give_back(&self.holder, &self.fingerprint, now) else { return Ok(None) };
        guard_write(table, &self.key, Some(&seen), &next).map(Some)
    }
}

impl Intents {
    /// Makes the caller's writes and takes the intent, in one transaction.
    pub async fn transact_holding(
        &self,
        invocation: &Invocation,
        before: &[Write],
        hold: &Hold,
    ) -> Result<Holding, StoreError> {
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
                    Taken::Yes(next) => writes.push(guard_write(&self.table, &asked.key, seen.as_ref(), &next)?),
                    Taken::Conflicting(conflict) => {
                        return Ok(Holding::Standing(Box::new(Standing::Guard(conflict))));
                    }
                    Taken::Full => return Ok(Holding::Full),
                }
            }
            let Transacted::Refused(mut refusals) = self.store.transact(invocation, writes).await? else {
                return Ok(Holding::Done);
            };
            let own = refusals.split_off(before.len());
            if refusals.iter().any(Option::is_some) {
                return Ok(Holding::Refused(refusals));
            }
            let mut own = own.into_iter();
            if let Some(Some(Refusal { item: Some(item) })) = own.next() {
                return Ok(Holding::Standing(Box::new(Standing::Row(Box::new(read_row(item)?)))));
            }
            // Only the guard has changed since it was read.
            let Some(Some(refusal)) = own.next() else {
                return Err(StoreError::Corrupt("a refused hold without a failed condition"));
            };
            seen = refusal.item.map(read_row).transpose()?;
            conflicts.wait(invocation, StoreError::Conflict).await?;
        }
    }

    /// Returns the write that releases a place in a guard, for the transaction that releases the
    /// intent. `None` if the guard does not contain the hold.
    pub async fn releasing_guard(
        &self,
        invocation: &Invocation,
        release: GuardRelease,
    ) -> Result<Option<Beside>, StoreError> {
        let seen = self.store.get(invocation, &self.table, &release.key).await?;
        let Some(first) = release.write(&self.table, seen, invocation.now)? else { return Ok(None) };
        let (table, now) = (self.table.clone(), invocation.now);
        let rule = move |item: Option<Item>| release.write(&table, item.map(read_row).transpose()?, now);
        Ok(Some(Beside::by_rule(first, rule)))
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
