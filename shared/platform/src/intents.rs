//! The Intents table: taking and releasing a hold. The rules that judge a refused write are in the
//! domain.
//!
//! Invariant: an intent has at most one holder at any time, and the caller that got the answer
//! "yes" is the holder in the row. A hold is one conditional update (one request, one write unit).
//! A guarded type reads its guard and writes it in the same transaction: see [`guards`].

mod guards;

use umavez_domain::fields::parse_uuid;
use umavez_domain::idempotency::body_hash;
use umavez_domain::intents::{Hold, IntentRow, Released, Standing, judge_release};
use umavez_domain::keys::{self, INTENT_PREFIX, Key};
use umavez_domain::messages::IntentRef;
use umavez_domain::time::Timestamp;
use uuid::Uuid;

pub use guards::{GuardRelease, Holding};

use crate::invocation::Invocation;
use crate::store::{Condition, Page, Query, Returned, Store, StoreError, Write, Written, read_row};

#[derive(Debug, Clone)]
pub struct Intents {
    pub store: Store,
    pub table: String,
}

/// The outcome of a hold.
#[derive(Debug)]
pub enum Held {
    /// The caller holds the intent from now on.
    Now,
    /// This row or guard refused the hold.
    Refused(Box<Standing>),
    /// The guard has no room for another hold at a later time.
    Full,
}

/// A request to release an intent.
#[derive(Debug)]
pub struct Release<'a> {
    pub client: Uuid,
    pub fingerprint: &'a str,
    /// Release only this holder's hold. `None` releases the hold of any holder.
    pub holder: Option<&'a str>,
    /// Identifies this release: a hash of its `Idempotency-Key`, or of its request. It keeps the
    /// SDK's own retry, or a late first attempt, from releasing the hold of the next holder.
    pub key: &'a str,
    pub body_hash: &'a str,
}

/// The outcome of a release.
#[derive(Debug)]
pub enum Freed {
    Now(Box<IntentRow>),
    /// The release changed nothing; the row says why.
    Judged(Released),
}

impl Intents {
    /// Takes the intent for its holder, or returns the row or guard that refuses it.
    pub async fn hold(&self, invocation: &Invocation, hold: &Hold) -> Result<Held, StoreError> {
        if hold.guard.is_some() {
            return Ok(match self.transact_holding(invocation, &[], hold).await? {
                Holding::Done => Held::Now,
                Holding::Standing(standing) => Held::Refused(standing),
                Holding::Full => Held::Full,
                Holding::Refused(_) => return Err(StoreError::Corrupt("a refused hold without a failed condition")),
            });
        }
        match self.store.write(invocation, self.hold_write(hold, invocation.now)?).await? {
            Written::New | Written::Mine => Ok(Held::Now),
            Written::Refused(item) => {
                let item = item.ok_or(StoreError::Corrupt("a refused hold without a failed condition"))?;
                Ok(Held::Refused(Box::new(Standing::Row(Box::new(read_row(item)?)))))
            }
        }
    }

    /// Returns the write that takes an intent's row for its holder.
    fn hold_write(&self, hold: &Hold, now: Timestamp) -> Result<Write, StoreError> {
        // The intent is free: it was never taken, its row has expired and TTL has not removed it
        // yet, or it was released.
        let free = Condition::any([
            Condition::Absent,
            Condition::at_most("expires_at", now.seconds()),
            // A first attempt of this write that arrives after its own hold was released does not
            // take the intent again.
            Condition::all([Condition::is("status", "RELEASED"), Condition::not_stamped("hold")]),
        ]);
        let mut write = Write::update(&self.table, hold.key.clone())
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

    /// Returns the write that releases the intent of a message, for the transaction that ends the
    /// message. The write is refused if another holder has the intent by now, or if it was released
    /// by hand: then there is nothing to release.
    pub fn give_back_write(&self, held: &IntentRef, holder: &str, now: Timestamp) -> Option<Write> {
        let client = parse_uuid(&held.client_id)?;
        let key = keys::intent(client, &held.fingerprint);
        let release_key = body_hash(holder.as_bytes());
        let release = Release {
            client,
            fingerprint: &held.fingerprint,
            holder: Some(holder),
            key: &release_key,
            body_hash: &release_key,
        };
        let mine = Condition::all([
            Condition::is("status", "HELD"),
            Condition::is("holder", holder),
            Condition::more_than("expires_at", now.seconds()),
        ]);
        Some(self.release_write(&key, &release, now).when(mine))
    }

    /// Releases an intent. Repeating a release is a no-op, even if another holder has the intent by
    /// then.
    pub async fn release(&self, invocation: &Invocation, release: &Release<'_>) -> Result<Freed, StoreError> {
        let key = keys::intent(release.client, release.fingerprint);
        // If the release names the holder and the hold has no guard, one write is enough. All other
        // releases read the row first.
        let mut met = match release.holder {
            Some(holder) => {
                let unguarded =
                    Condition::all([still_held(release, holder, invocation.now), Condition::has_not("guard")]);
                let write = self.release_write(&key, release, invocation.now).when(unguarded);
                match self.store.update_returning(invocation, write).await? {
                    Returned::Row(item) => return Ok(Freed::Now(Box::new(read_row(item)?))),
                    Returned::Refused(item) => item.map(read_row).transpose()?,
                }
            }
            None => self.store.get(invocation, &self.table, &key).await?,
        };
        // Each round is conditional on the holder that the previous round found.
        loop {
            let judged = judge_release(met, release.holder, release.key, release.body_hash, invocation.now);
            let Released::Held(row) = judged else { return Ok(Freed::Judged(judged)) };
            match self.release_seen(invocation, &key, release, &row).await? {
                Returned::Row(item) => return Ok(Freed::Now(Box::new(read_row(item)?))),
                Returned::Refused(item) => met = item.map(read_row).transpose()?,
            }
        }
    }

    /// Releases the hold that was read, with its guard if the guard still contains it.
    async fn release_seen(
        &self,
        invocation: &Invocation,
        key: &Key,
        release: &Release<'_>,
        seen: &IntentRow,
    ) -> Result<Returned, StoreError> {
        let now = invocation.now;
        let row = || {
            let write = self.release_write(key, release, now);
            // The hold is the one that was read. A hold that was released and taken again since is
            // a different hold, with its own place in a guard.
            let same_hold = Condition::version(seen.version);
            write.when(Condition::all([still_held(release, &seen.holder, now), same_hold]))
        };
        let beside = match GuardRelease::of(key, seen) {
            Some(guard) => self.releasing_guard(invocation, guard).await?,
            None => None,
        };
        let Some(guard) = beside else { return self.store.update_returning(invocation, row()).await };
        match self.store.write_with(invocation, row(), vec![guard]).await? {
            Written::New | Written::Mine => match self.store.get_item(invocation, &self.table, key).await? {
                Some(item) => Ok(Returned::Row(item)),
                None => Ok(Returned::Refused(None)),
            },
            Written::Refused(item) => Ok(Returned::Refused(item)),
        }
    }

    fn release_write(&self, key: &Key, release: &Release<'_>, now: Timestamp) -> Write {
        Write::update(&self.table, key.clone())
            .set("status", "RELEASED")
            .set("released_at", now.to_string())
            .set("updated_at", now.to_string())
            .set("last_release", release.key)
            .set("last_release_body", release.body_hash)
            .set("last_release_at", now.to_string())
            .increment("version")
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
            .only(Condition::more_than("expires_at", invocation.now.seconds()))
            .after(after.map(|fingerprint| keys::intent(client, fingerprint).sk))
            .limit(limit);
        let page = self.store.page::<IntentRow>(invocation, &query).await?;
        let next = page.next.and_then(|sk| sk.strip_prefix(INTENT_PREFIX).map(str::to_owned));
        Ok(Page { rows: page.rows, next })
    }
}

/// This holder still holds the intent, and this release was not made before.
fn still_held(release: &Release<'_>, holder: &str, now: Timestamp) -> Condition {
    let not_made = Condition::any([Condition::has_not("last_release"), Condition::is_not("last_release", release.key)]);
    Condition::all([
        Condition::is("status", "HELD"),
        Condition::is("holder", holder),
        Condition::more_than("expires_at", now.seconds()),
        not_made,
    ])
}
