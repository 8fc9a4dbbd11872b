//! Leases on rows: taken when free or over, renewed by their epoch, and named by every write under
//! them.

use umavez_domain::keys::Key;
use umavez_domain::lease::{EPOCH, Lease, OWNER, UNTIL};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Store, StoreError, Write, Written, read_row};

/// A lease that this worker has. Every write under it carries [`Held::fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub owner: String,
    pub epoch: u64,
    pub until: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    Held(Held),
    /// Somebody works on it until then.
    Busy(Lease),
    /// There is no such row to work on.
    NoRow,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    Held(Held),
    /// Another has taken over: stop, and write nothing.
    Lost,
}

impl Held {
    /// Moves the end of the lease with a write under it. A worker that is done ends it now, so that
    /// the next one need not wait.
    pub fn ending(&self, write: Write, until: Timestamp) -> Write {
        write.set_number(UNTIL, until.millis())
    }

    /// The row is still worked on by this turn of this owner.
    pub fn fence(&self) -> Condition {
        Condition::all([Condition::is(OWNER, &self.owner), Condition::is_number(EPOCH, self.epoch)])
    }
}

/// Nobody has the lease of a row any more.
pub fn is_free(now: Timestamp) -> Condition {
    Condition::any([Condition::has_not(UNTIL), Condition::at_most(UNTIL, now.millis())])
}

/// Takes the lease on an existing row if it is free or over. `owner` is this invocation's own:
/// nobody else uses it. The next epoch comes from the row as it is now: the taking write is
/// conditional on it, so two takers cannot both have it.
pub async fn take(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    owner: &str,
    for_ms: i64,
) -> Result<Taken, StoreError> {
    // A row that was never leased: most first takes need no read.
    let mut asked = held(owner, 1, invocation.current(), for_ms);
    let mut condition = Condition::all([Condition::exists(), Condition::has_not(EPOCH)]);
    // Each round is conditional on what the last one saw; losing it means that another took it, who
    // is then busy.
    loop {
        let refused = match store.write(invocation, lease_write(table, key, &asked).when(condition)).await? {
            Written::New | Written::Mine => return Ok(Taken::Held(asked)),
            Written::Refused(item) => item,
        };
        let Some(seen) = leased(refused)? else { return Ok(Taken::NoRow) };
        // The SDK's first attempt took it, and somebody else has written to the row since.
        let now = invocation.current();
        if seen.lease_owner == asked.owner && seen.lease_epoch == asked.epoch && !seen.is_over(now) {
            return Ok(Taken::Held(Held { until: Timestamp::from_millis(seen.lease_until), ..asked }));
        }
        if !seen.is_over(now) {
            return Ok(Taken::Busy(seen));
        }
        asked = held(owner, seen.lease_epoch + 1, now, for_ms);
        // Over, and still as it was seen.
        condition =
            Condition::all([Condition::is_number(EPOCH, seen.lease_epoch), Condition::at_most(UNTIL, now.millis())]);
    }
}

/// Extends a lease that is still this worker's.
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
