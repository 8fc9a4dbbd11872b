//! The Intents table: how a hold is taken and given back. The rules that judge a refused write are in the domain.
//!
//! Invariant: at any time at most one holder has an intent, and whoever was told "yes" is the one in the row. A hold is
//! one conditional update (one request, one write unit); a guarded type writes its guard in the same transaction.

use umavez_domain::intents::{GuardRow, Hold, IntentRow, Released, Standing, Status, judge_release};
use umavez_domain::keys::{self, INTENT_PREFIX, Key};
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
    /// The release's own `Idempotency-Key`.
    pub key: Option<&'a str>,
}

/// What came of a release.
#[derive(Debug)]
pub enum Freed {
    Now(Box<IntentRow>),
    Already(Box<IntentRow>),
    NotFound,
    HeldByAnother,
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
            Condition::is("status", "RELEASED"),
        ]);
        let mut write = Write::update(&self.table, hold.key.clone())
            .set_row(&hold.row, &["version", "last_release"])?
            .increment("version")
            .remove("released_at");
        for (name, given) in [("reference_id", hold.row.reference_id.is_some()), ("guard", hold.row.guard.is_some())] {
            if !given {
                write = write.remove(name);
            }
        }
        let mut writes = vec![write.when(free)];
        if let Some((key, guard)) = &hold.guard {
            // Nobody's window covers the moment that is asked for.
            let open = Condition::any([Condition::Absent, Condition::at_most("window_until", hold.row.at.seconds())]);
            writes.push(Write::put(&self.table, key.clone(), guard)?.when(open));
        }
        Ok(writes)
    }

    /// Gives an intent back. Doing it again changes nothing, also when somebody else holds it by then.
    pub async fn release(&self, invocation: &Invocation, release: &Release<'_>) -> Result<Freed, StoreError> {
        let now = invocation.now;
        let key = keys::intent(release.client, release.fingerprint);
        let unguarded = Condition::all([still_held(release, now), Condition::has_not("guard")]);
        let write = self.release_write(&key, release, now).when(unguarded);
        let mut met = match self.store.update_returning(invocation, write).await? {
            Returned::Row(item) => return Ok(Freed::Now(Box::new(read_row(item)?))),
            Returned::Refused(item) => item.map(read_row::<IntentRow>).transpose()?,
        };
        // With a guard, both rows change together. Each round is conditional on the holder that the last one met.
        loop {
            let row = match judge_release(met, release.holder, release.key, now) {
                Released::NotFound => return Ok(Freed::NotFound),
                Released::Already(row) => return Ok(Freed::Already(row)),
                Released::HeldByAnother => return Ok(Freed::HeldByAnother),
                Released::Guarded(row) => row,
            };
            match self.release_guarded(invocation, &key, release, &row).await? {
                None => {
                    let row = IntentRow { status: Status::Released, released_at: Some(now), ..*row };
                    return Ok(Freed::Now(Box::new(row)));
                }
                Some(item) => met = item.map(read_row::<IntentRow>).transpose()?,
            }
        }
    }

    /// `None` when it is done, or the intent's row as it stood when its condition did not hold.
    async fn release_guarded(
        &self,
        invocation: &Invocation,
        key: &Key,
        release: &Release<'_>,
        seen: &IntentRow,
    ) -> Result<Option<Option<Item>>, StoreError> {
        let same_hold = || Condition::all([still_held(release, invocation.now), Condition::is("holder", &seen.holder)]);
        let row = || self.release_write(key, release, invocation.now).when(same_hold());
        if let Some(guard) = &seen.guard {
            let guard = Key { pk: key.pk.clone(), sk: guard.clone() };
            // The guard of this very hold: another may have it since its window ended.
            let same_guard = Condition::any([Condition::Absent, Condition::is("holder", &seen.holder)]);
            let writes = vec![row(), Write::delete(&self.table, guard).when(same_guard)];
            match self.store.transact(invocation, writes).await? {
                Transacted::Done => return Ok(None),
                Transacted::Refused(refusals) => {
                    if let Some(Some(refusal)) = refusals.into_iter().next() {
                        return Ok(Some(refusal.item));
                    }
                }
            }
        }
        match self.store.write(invocation, row()).await? {
            Written::New | Written::Mine => Ok(None),
            Written::Refused(item) => Ok(Some(item)),
        }
    }

    fn release_write(&self, key: &Key, release: &Release<'_>, now: Timestamp) -> Write {
        let write = Write::update(&self.table, key.clone())
            .set("status", "RELEASED")
            .set("released_at", now.to_string())
            .set("updated_at", now.to_string())
            .increment("version");
        match release.key {
            Some(release_key) => write.set("last_release", release_key),
            None => write,
        }
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

/// The intent is held, by the one to release, and this very release has not been made before.
fn still_held(release: &Release<'_>, now: Timestamp) -> Condition {
    let mut parts = vec![Condition::is("status", "HELD"), Condition::more_than("expires_at", now.seconds())];
    if let Some(holder) = release.holder {
        parts.push(Condition::is("holder", holder));
    }
    if let Some(key) = release.key {
        parts.push(Condition::any([Condition::has_not("last_release"), Condition::is_not("last_release", key)]));
    }
    Condition::all(parts)
}

fn standing(row: Option<Item>, guard: Option<Item>) -> Result<Held, StoreError> {
    let row = row.map(read_row::<IntentRow>).transpose()?;
    let guard = guard.map(read_row::<GuardRow>).transpose()?;
    Ok(Held::Refused(Box::new(Standing { row, guard })))
}
