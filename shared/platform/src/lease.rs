//! Leases on rows. A worker takes a lease that is free or expired, and renews it under its epoch.
//! Every write under a lease is conditional on it.

use umavez_domain::keys::Key;
use umavez_domain::lease::{EPOCH, Lease, OWNER, UNTIL};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Store, StoreError, Write, Written, read_row};

/// A lease that this worker holds. Every write under it has the condition [`Held::fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub owner: String,
    pub epoch: u64,
    pub until: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    Held(Held),
    /// Another worker holds the lease until then.
    Busy(Lease),
    /// The row does not exist.
    NoRow,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    Held(Held),
    /// Another worker has taken the lease: stop, and write nothing.
    Lost,
}

impl Held {
    /// Adds a new end of the lease to a write under it. A worker that is done ends its lease now,
    /// so that the next one need not wait.
    pub fn ending(&self, write: Write, until: Timestamp) -> Write {
        write.set_number(UNTIL, until.millis())
    }

    /// This owner still holds the lease in this epoch.
    pub fn fence(&self) -> Condition {
        Condition::all([Condition::is(OWNER, &self.owner), Condition::is_number(EPOCH, self.epoch)])
    }
}

/// No worker holds the lease: it was never taken, or it has expired.
pub fn is_free(now: Timestamp) -> Condition {
    Condition::any([Condition::has_not(UNTIL), Condition::at_most(UNTIL, now.millis())])
}

/// Takes the lease on an existing row if it is free or expired. `owner` is unique to this
/// invocation. The next epoch is computed from the row as it was seen, and the write is conditional
/// on that row, so two workers cannot both take the lease.
pub async fn take(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    owner: &str,
    for_ms: i64,
) -> Result<Taken, StoreError> {
    // The row was never leased. With this guess, most first takes need no read.
    let mut asked = held(owner, 1, invocation.current(), for_ms);
    let mut condition = Condition::all([Condition::exists(), Condition::has_not(EPOCH)]);
    // Each round is conditional on the lease that the previous round saw. If a round loses, another
    // worker took the lease, and the lease is busy.
    loop {
        let refused = match store.write(invocation, lease_write(table, key, &asked).when(condition)).await? {
            Written::New | Written::Mine => return Ok(Taken::Held(asked)),
            Written::Refused(item) => item,
        };
        let Some(seen) = leased(refused)? else { return Ok(Taken::NoRow) };
        // The SDK's first attempt took the lease, and another writer has changed the row since.
        let now = invocation.current();
        if seen.lease_owner == asked.owner && seen.lease_epoch == asked.epoch && !seen.is_over(now) {
            return Ok(Taken::Held(Held { until: Timestamp::from_millis(seen.lease_until), ..asked }));
        }
        if !seen.is_over(now) {
            return Ok(Taken::Busy(seen));
        }
        asked = held(owner, seen.lease_epoch + 1, now, for_ms);
        // The lease has expired and has not changed since it was seen.
        condition =
            Condition::all([Condition::is_number(EPOCH, seen.lease_epoch), Condition::at_most(UNTIL, now.millis())]);
    }
}

/// Extends a lease if this worker still holds it.
pub async fn renew(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    mine: &Held,
    for_ms: i64,
) -> Result<Renewed, StoreError> {
    let next = held(&mine.owner, mine.epoch, invocation.current(), for_ms);
    match store.write(invocation, lease_write(table, key, &next).when(mine.fence())).await? {
        Written::New | Written::Mine => Ok(Renewed::Held(next)),
        Written::Refused(_) => Ok(Renewed::Lost),
    }
}

fn held(owner: &str, epoch: u64, now: Timestamp, for_ms: i64) -> Held {
    Held { owner: owner.to_owned(), epoch, until: now.plus_ms(for_ms) }
}

fn lease_write(table: &str, key: &Key, held: &Held) -> Write {
    Write::update(table, key.clone())
        .set(OWNER, &held.owner)
        .set_number(EPOCH, held.epoch)
        .set_number(UNTIL, held.until.millis())
}

fn leased(item: Option<Item>) -> Result<Option<Lease>, StoreError> {
    item.map(read_row).transpose()
}
