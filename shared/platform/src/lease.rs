//! Leases on rows: a worker takes a lease when it is free or over and renews it under its epoch.
//! Every write under a lease is conditional on [`Lease::fence`].

use umavez_domain::change::Row;
use umavez_domain::keys::Key;
use umavez_domain::lease::{EPOCH, Lease, UNTIL};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Store, StoreError, Write, Written, read_row};

/// The outcome of an attempt to take a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseTaken {
    Mine(Lease),
    /// Another worker holds the lease until then.
    Busy(Timestamp),
    /// There is no such row to work on.
    NoRow,
}

/// The outcome of asking for a turn at a row.
#[derive(Debug)]
pub enum Turn<R> {
    /// This worker holds the lease. Contains the current row.
    Mine(Lease, Box<R>),
    Busy(Timestamp),
    NothingToDo,
    NoRow,
}

/// Takes the lease on a row if the row has work and no other worker does it.
pub async fn turn<R: Row>(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    for_ms: i64,
    has_work: impl Fn(&R) -> bool,
) -> Result<Turn<R>, StoreError> {
    match store.get::<R>(invocation, table, key).await? {
        Some(row) if has_work(&row) => {}
        Some(_) => return Ok(Turn::NothingToDo),
        None => return Ok(Turn::NoRow),
    }
    let held = match take(store, invocation, table, key, &invocation.request_id, for_ms).await? {
        LeaseTaken::Mine(held) => held,
        LeaseTaken::Busy(until) => return Ok(Turn::Busy(until)),
        LeaseTaken::NoRow => return Ok(Turn::NoRow),
    };
    // Read the row again, now that no other worker writes to it.
    let row = store.get(invocation, table, key).await?.filter(has_work);
    Ok(row.map_or(Turn::NothingToDo, |row| Turn::Mine(held, Box::new(row))))
}

/// Nobody holds the lease of a row.
pub fn is_free(now: Timestamp) -> Condition {
    Condition::any([Condition::has_not(UNTIL), Condition::at_most(UNTIL, now.millis())])
}

/// Takes the lease on an existing row if it is free or over. `owner` is unique to this invocation.
/// The next epoch comes from the row as it is now, and the write is conditional on it, so two
/// workers cannot both take the lease.
pub async fn take(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    owner: &str,
    for_ms: i64,
) -> Result<LeaseTaken, StoreError> {
    // The row was never leased. Most first takes need no read.
    let mut condition = Condition::all([Condition::exists(), Condition::has_not(EPOCH)]);
    let mut current: Option<Lease> = None;
    // Each try is conditional on what the last one read. If another worker takes the lease in
    // between, the lease is busy.
    loop {
        let now = invocation.current();
        let asked = match Lease::taken(current.as_ref(), owner, now, for_ms) {
            Ok(asked) => asked,
            Err(until) => return Ok(LeaseTaken::Busy(until)),
        };
        let write = Write::update(table, key.clone()).set_row(&asked, &[])?;
        let stored = match store.write(invocation, write.when(condition)).await? {
            Written::New | Written::Mine => return Ok(LeaseTaken::Mine(asked)),
            Written::Refused(Some(item)) => read_row::<Lease>(item)?,
            Written::Refused(None) => return Ok(LeaseTaken::NoRow),
        };
        // The SDK's first attempt took the lease, and another writer changed the row since.
        if stored.is_same_turn(&asked) && !stored.is_over(now) {
            return Ok(LeaseTaken::Mine(stored));
        }
        // The lease is over, and as it was read.
        condition =
            Condition::all([Condition::is_number(EPOCH, stored.lease_epoch), Condition::at_most(UNTIL, now.millis())]);
        current = Some(stored);
    }
}

/// Extends a lease that this worker still holds. Returns `None` if another worker has taken over:
/// stop then, and write nothing.
pub async fn renew(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    key: &Key,
    mine: &Lease,
    for_ms: i64,
) -> Result<Option<Lease>, StoreError> {
    let next = mine.ending(invocation.current().plus_ms(for_ms));
    let write = Write::changes(table, key.clone(), mine, &next)?.when(Condition::of(&mine.fence())?);
    let lost = matches!(store.write(invocation, write).await?, Written::Refused(_));
    Ok((!lost).then_some(next))
}
