//! The Intents table: taking and releasing a hold. The rules that decide after a refused write
//! are in the domain.
//!
//! Invariant: an intent has at most one holder at any time, and the caller that got the answer
//! "yes" is the holder in the row. A hold is one conditional update (one request, one write unit).
//! A guarded type reads its guard and writes it in the same transaction: see [`guards`].

mod guards;

pub use guards::Begin;
use umavez_domain::change::{Next, Row as _};
use umavez_domain::idempotency::body_hash;
use umavez_domain::intents::{Conflict, HoldRequest, IntentRow, LastRelease, Released};
use umavez_domain::keys::{self, INTENT_PREFIX, Key};
use umavez_domain::messages::IntentRef;
use umavez_domain::time::Timestamp;
use uuid::Uuid;

use crate::invocation::Invocation;
use crate::store::{
    Beside, Condition, Decided, Item, Page, Query, Refusal, Returned, Start, Store, StoreError, Write, Written,
    read_row,
};

#[derive(Debug, Clone)]
pub struct Intents {
    pub store: Store,
    pub table: String,
}

/// The outcome of a request for a hold.
#[derive(Debug)]
pub enum HoldOutcome {
    /// The caller holds the intent from now on.
    Done,
    /// Other writes of the caller's transaction were refused. Contains one entry per write, in
    /// order.
    Refused(Vec<Option<Refusal>>),
    /// A hold of the intent, or of its guard, is in the way.
    Conflicting(Box<Conflict>),
    /// The guard has no room for another hold at a later time.
    Full,
}

impl HoldOutcome {
    /// Returns the conflict with the row that refused a hold.
    fn conflicting(stored: Option<Item>) -> Result<Self, StoreError> {
        let stored = stored.ok_or(StoreError::Corrupt("a refused hold without a failed condition"))?;
        Ok(Self::Conflicting(Box::new(Conflict::from(&read_row::<IntentRow>(stored)?))))
    }
}

impl Intents {
    /// Takes the intent for its holder, or returns the hold that refuses it.
    pub async fn hold(&self, invocation: &Invocation, hold: &HoldRequest) -> Result<HoldOutcome, StoreError> {
        if hold.guard.is_some() {
            return self.transact_holding(invocation, &[], hold).await;
        }
        match self.store.write(invocation, self.hold_write(hold, invocation.now)?).await? {
            Written::New | Written::Mine => Ok(HoldOutcome::Done),
            Written::Refused(stored) => HoldOutcome::conflicting(stored),
        }
    }

    /// Returns the write that takes an intent's row for its holder.
    fn hold_write(&self, hold: &HoldRequest, now: Timestamp) -> Result<Write, StoreError> {
        // The intent is free: it was never taken, its row has expired and TTL has not removed it
        // yet, or it was released.
        let free = Condition::any([
            Condition::Absent,
            Condition::expired(now),
            // A first attempt of this write that arrives after its own hold was released does not
            // take the intent again, not even if another hold was taken and released meanwhile.
            Condition::all([Condition::is("status", "RELEASED"), Condition::not_stamped("hold")]),
        ]);
        let mut write = Write::update(&self.table, hold.row.key())
            .set_row(&hold.row, &["version"])?
            .increment("version")
            .remove("released_at")
            .stamp("hold");
        for (name, given) in [("reference_id", hold.row.reference_id.is_some()), ("guard", hold.row.guard.is_some())] {
            if !given {
                write = write.remove(name);
            }
        }
        Ok(write.when(free))
    }

    /// Returns the writes that release the intent of a message and its place in a guard, for the
    /// transaction that ends the message. A write is left out if another holder has the intent by
    /// now, or if it was released by hand: then there is nothing to release.
    pub async fn give_back(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
    ) -> Result<Vec<Beside>, StoreError> {
        let (key, now) = (body_hash(holder.as_bytes()), invocation.current());
        let release = LastRelease { last_release: key.clone(), last_release_body: key, last_release_at: now };
        let write = self.release_write(keys::intent(&intent.client_id, &intent.fingerprint), &release)?;
        let mut writes = vec![write.when(held_by(holder, now)).into()];
        writes.extend(self.releasing_guard(invocation, intent, holder).await?);
        Ok(writes)
    }

    /// Returns the writes that take the intent of a message again, with its place in a guard, for
    /// the transaction that records proof that the message was sent. There are none if another
    /// holder has taken the intent since the message released it, or has sent in its window.
    /// All of them are required: if a row changes meanwhile, the caller decides again.
    pub async fn take_back(
        &self,
        invocation: &Invocation,
        intent: &IntentRef,
        holder: &str,
    ) -> Result<Vec<Beside>, StoreError> {
        let key = keys::intent(&intent.client_id, &intent.fingerprint);
        let stored: Option<IntentRow> = self.store.get(invocation, &self.table, &key).await?;
        let taken = stored.and_then(|row| Some((row.take_back(holder, invocation.current())?, row)));
        let Some((after, row)) = taken else { return Ok(Vec::new()) };
        let mut writes = vec![Beside::required(Write::of_change(&self.table, &row, &after)?)];
        if row.guard.is_some() {
            let Some(guard) = self.retaking_guard(invocation, &key, &after).await? else { return Ok(Vec::new()) };
            writes.push(Beside::required(guard));
        }
        Ok(writes)
    }

    /// Releases an intent; with `holder`, only the hold of that holder. Repeating a release is a
    /// no-op, even if another holder has the intent by then.
    pub async fn release(
        &self,
        invocation: &Invocation,
        key: Key,
        holder: Option<&str>,
        release: &LastRelease,
    ) -> Result<Released, StoreError> {
        // If the release names the holder and the hold has no guard, one write is enough. All other
        // releases read the row first.
        let start = match holder {
            Some(holder) => {
                let not_made_before = Condition::any([
                    Condition::has_not("last_release"),
                    Condition::is_not("last_release", &release.last_release),
                ]);
                let unguarded =
                    Condition::all([held_by(holder, invocation.now), not_made_before, Condition::has_not("guard")]);
                let write = self.release_write(key, release)?.when(unguarded);
                match self.store.update_returning(invocation, write).await? {
                    Returned::Row(item) => return Ok(Released::Now(Box::new(read_row(item)?))),
                    Returned::Refused(Some(item)) => Start::Row(read_row(item)?),
                    Returned::Refused(None) => return Ok(Released::NotFound),
                }
            }
            None => Start::Key(key),
        };
        // The version of the row is the condition: a hold that was released and taken again since
        // it was read is a different hold, with its own place in a guard.
        let rule = |row: IntentRow| async move {
            let (after, out) = match row.release(holder, release) {
                Next::Stop(out) => return Ok(Decided::Stop(out)),
                Next::Commit(after, out) => (after, out),
            };
            let guard = self.releasing_guard(invocation, &IntentRef::from(&row), &row.holder).await?;
            Ok(Decided::Commit { row: after, with: guard.into_iter().collect(), out })
        };
        let released = self.store.change_with(invocation, &self.table, start, rule).await?;
        Ok(released.out().unwrap_or(Released::NotFound))
    }

    fn release_write(&self, key: Key, release: &LastRelease) -> Result<Write, StoreError> {
        Ok(Write::update(&self.table, key).set_row(&release.attributes(), &[])?.increment("version"))
    }

    pub async fn get(
        &self,
        invocation: &Invocation,
        client: Uuid,
        fingerprint: &str,
    ) -> Result<Option<IntentRow>, StoreError> {
        let row: Option<IntentRow> =
            self.store.get(invocation, &self.table, &keys::intent(client, fingerprint)).await?;
        Ok(row.filter(|row| row.is_alive(invocation.now)))
    }

    /// Returns a page of a client's intents, ordered by fingerprint. `after` is the last
    /// fingerprint of the previous page.
    pub async fn page(
        &self,
        invocation: &Invocation,
        client: Uuid,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<IntentRow>, StoreError> {
        let query = Query::partition(&self.table, keys::intents_of_client(client))
            .prefix(INTENT_PREFIX)
            .only(Condition::alive(invocation.now))
            .after(after.map(|fingerprint| keys::intent(client, fingerprint).sk))
            .limit(limit);
        let page = self.store.page::<IntentRow>(invocation, &query).await?;
        let next = page.next.and_then(|sk| sk.strip_prefix(INTENT_PREFIX).map(str::to_owned));
        Ok(Page { rows: page.rows, next })
    }
}

/// This holder holds the intent, and the hold has not expired.
fn held_by(holder: &str, now: Timestamp) -> Condition {
    Condition::all([Condition::is("status", "HELD"), Condition::is("holder", holder), Condition::alive(now)])
}
