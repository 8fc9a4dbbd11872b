//! The Intents table: how a hold is taken and given back. The rules that judge a refused write are in the domain.
//!
//! Invariant: at any time at most one holder has an intent, and whoever was told "yes" is the one in the row. A hold is
//! one conditional update (one request, one write unit); a guarded type writes its guard in the same transaction.

use aws_sdk_dynamodb::types::AttributeValue;
use umavez_domain::fields::parse_uuid;
use umavez_domain::idempotency::body_hash;
use umavez_domain::intents::{GuardRow, Hold, IntentRow, Released, Standing, judge_release};
use umavez_domain::keys::{self, INTENT_PREFIX, Key};
use umavez_domain::outbound::message::IntentRef;
use umavez_domain::time::Timestamp;
use uuid::Uuid;

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Page, PageOf, Returned, Store, StoreError, Transacted, Write, Written, read_row};

#[derive(Debug, Clone)]
pub struct Intents {
    pub store: Store,
    pub table: String,
}

/// What came of asking for an intent.
#[derive(Debug)]
pub enum Held {
    /// It is the asker's from now on.
    Now,
    /// These rows stood in the way.
    Refused(Box<Standing>),
}

/// A release, as it is asked.
#[derive(Debug)]
pub struct Release<'a> {
    pub client: Uuid,
    pub fingerprint: &'a str,
    /// Release only this holder's; none: whoever holds it.
    pub holder: Option<&'a str>,
    /// What this release is known by: a hash of its `Idempotency-Key`, or of its request. The SDK's own retry, or a late
    /// first attempt, must not hit the next holder either.
    pub key: &'a str,
    pub body_hash: &'a str,
}

/// What came of a release.
#[derive(Debug)]
pub enum Freed {
    Now(Box<IntentRow>),
    /// Nothing was changed; the row says why.
    Judged(Released),
}

impl Intents {
    /// Takes the intent for its holder, or tells what stands in the way.
    pub async fn hold(&self, invocation: &Invocation, hold: &Hold) -> Result<Held, StoreError> {
        let mut writes = self.hold_writes(hold, invocation.now)?;
        if writes.len() > 1 {
            return match self.store.transact(invocation, writes).await? {
                Transacted::Done => Ok(Held::Now),
                Transacted::Refused(refusals) => {
                    let mut items = refusals.into_iter().map(|refusal| refusal.and_then(|refusal| refusal.item));
                    standing(items.next().flatten(), items.next().flatten())
                }
            };
        }
        let Some(write) = writes.pop() else { return Ok(Held::Now) };
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(Held::Now),
            Written::Refused(item) => standing(item, None),
        }
    }

    /// The writes that take an intent, to stand in a transaction with others: the intent's row, then its guard.
    pub fn hold_writes(&self, hold: &Hold, now: Timestamp) -> Result<Vec<Write>, StoreError> {
        // Nobody has it: it was never taken, or its row has expired and TTL is late, or it was given back.
        let free = Condition::any([
            Condition::Absent,
            Condition::at_most("expires_at", now.seconds()),
            // A first attempt that comes late, after its own hold was given back, does not take it again.
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
        let mut writes = vec![write.when(free)];
        if let Some((key, guard)) = &hold.guard {
            // Nobody's window covers the moment that is asked for.
            let open = Condition::any([
                Condition::Absent,
                Condition::at_most("window_until", hold.row.at.seconds()),
                Condition::at_most("expires_at", now.seconds()),
            ]);
            // What it replaces may still be running: a hold for later stands before its own window, and is given back.
            let mut write = Write::update(&self.table, key.clone()).set_row(guard, &[])?;
            for (name, before) in GUARD_BEFORE {
                write = write.set_from(before, name, nothing(name));
            }
            if guard.reference_id.is_none() {
                write = write.remove("reference_id");
            }
            writes.push(write.when(open));
        }
        Ok(writes)
    }

    /// The rows that stood in the way of a hold which was asked for in a transaction of others.
    pub fn standing_of(&self, row: Option<Item>, guard: Option<Item>) -> Result<Standing, StoreError> {
        match standing(row, guard)? {
            Held::Refused(standing) => Ok(*standing),
            Held::Now => Err(StoreError::Corrupt("a hold that nothing refused")),
        }
    }

    /// The writes that give back what a message holds, to stand in the transaction that ends it: the intent's row, then
    /// its guard. Refused where it is another's by now, or was given back by hand: then there is nothing to give back.
    pub fn give_back_writes(&self, held: &IntentRef, holder: &str, now: Timestamp) -> Vec<Write> {
        let Some(client) = parse_uuid(&held.client_id) else { return Vec::new() };
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
        let mut writes = vec![self.release_write(&key, &release, now).when(mine)];
        if let Some(guard) = &held.guard {
            writes.push(self.guard_give_back(&key, guard, holder, &held.fingerprint));
        }
        writes
    }

    /// The guard of this very hold: since its window ended another may have it, also another hold of the same holder.
    fn guard_give_back(&self, key: &Key, guard: &str, holder: &str, fingerprint: &str) -> Write {
        let same_guard = Condition::all([Condition::is("holder", holder), Condition::is("fingerprint", fingerprint)]);
        // Whoever stood there before stands there again; nobody, where nobody did.
        let mut write = Write::update(&self.table, keys::beside(key, guard));
        for (name, before) in GUARD_BEFORE {
            write = write.set_from(name, before, nothing(name)).remove(before);
        }
        write.when(same_guard)
    }

    /// Gives an intent back. Doing it again changes nothing, also when somebody else holds it by then.
    pub async fn release(&self, invocation: &Invocation, release: &Release<'_>) -> Result<Freed, StoreError> {
        let key = keys::intent(release.client, release.fingerprint);
        // A hold without a guard whose holder is named is one write; the rest has to see the row first.
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
        // Each round is conditional on the holder that the last one met.
        loop {
            let judged = judge_release(met, release.holder, release.key, release.body_hash, invocation.now);
            let Released::Held(row) = judged else { return Ok(Freed::Judged(judged)) };
            match self.release_seen(invocation, &key, release, &row).await? {
                Returned::Row(item) => return Ok(Freed::Now(Box::new(read_row(item)?))),
                Returned::Refused(item) => met = item.map(read_row).transpose()?,
            }
        }
    }

    /// Releases the hold that was seen, with its guard if it still has one.
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
            write.when(still_held(release, &seen.holder, now))
        };
        let Some(guard) = &seen.guard else { return self.store.update_returning(invocation, row()).await };
        let delete = self.guard_give_back(key, guard, &seen.holder, &seen.fingerprint);
        match self.store.transact(invocation, vec![row(), delete]).await? {
            Transacted::Done => match self.store.get_item(invocation, &self.table, key).await? {
                Some(item) => Ok(Returned::Row(item)),
                None => Ok(Returned::Refused(None)),
            },
            Transacted::Refused(refusals) => match refusals.into_iter().next() {
                Some(Some(refusal)) => Ok(Returned::Refused(refusal.item)),
                // Only the guard was refused: it is another's, and stays.
                _ => self.store.update_returning(invocation, row()).await,
            },
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

    /// A client's intents, in the order of their fingerprints. `after` is the last fingerprint of the page before.
    pub async fn page(
        &self,
        invocation: &Invocation,
        client: Uuid,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<IntentRow>, StoreError> {
        let of = PageOf {
            table: &self.table,
            pk: keys::intents_of_client(client),
            prefix: INTENT_PREFIX,
            only: Some(Condition::more_than("expires_at", invocation.now.seconds())),
            after: after.map(|fingerprint| keys::intent(client, fingerprint).sk),
            limit,
        };
        let page = self.store.page::<IntentRow>(invocation, of).await?;
        let next = page.next.and_then(|sk| sk.strip_prefix(INTENT_PREFIX).map(str::to_owned));
        Ok(Page { rows: page.rows, next })
    }
}

/// What a guard remembers of the hold that it replaced.
const GUARD_BEFORE: [(&str, &str); 4] = [
    ("holder", "before_holder"),
    ("fingerprint", "before_fingerprint"),
    ("window_until", "before_until"),
    ("created_at", "before_created_at"),
];

/// The guard of nobody: its window is over.
fn nothing(name: &str) -> AttributeValue {
    match name {
        "window_until" => AttributeValue::N("0".to_owned()),
        "created_at" => AttributeValue::S("1970-01-01T00:00:00Z".to_owned()),
        _ => AttributeValue::S("nobody".to_owned()),
    }
}

/// The intent is held by this holder, and this very release has not been made before.
fn still_held(release: &Release<'_>, holder: &str, now: Timestamp) -> Condition {
    let not_made = Condition::any([Condition::has_not("last_release"), Condition::is_not("last_release", release.key)]);
    Condition::all([
        Condition::is("status", "HELD"),
        Condition::is("holder", holder),
        Condition::more_than("expires_at", now.seconds()),
        not_made,
    ])
}

fn standing(row: Option<Item>, guard: Option<Item>) -> Result<Held, StoreError> {
    let row = row.map(read_row::<IntentRow>).transpose()?;
    let guard = guard.map(read_row::<GuardRow>).transpose()?;
    let standing = Standing::of(row, guard).ok_or(StoreError::Corrupt("a hold that nothing refused"))?;
    Ok(Held::Refused(Box::new(standing)))
}
