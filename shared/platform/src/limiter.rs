//! Rate limits as rows: one conditional update a grant.
//!
//! Invariant: two grants of one bucket are never nearer than its interval, because each moves
//! `free_at_us` forward by it, from what the condition saw. A bucket that was parked grants nothing
//! before its time. A bucket whose next slot lies further ahead than a grant can put it
//! ([`Limit::furthest_us`]) was used by a clock that was wrong, and counts as idle.

use serde::Deserialize;
use umavez_domain::keys::Key;
use umavez_domain::senders::limiter::{Ask, Bucket, Limit, ask, at_us};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Returned, Store, StoreError, Write, Written, read_row};

#[derive(Debug, Clone)]
pub struct Limiter {
    pub store: Store,
    pub table: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// A slot: send at this time and no earlier.
    At(Timestamp),
    /// No slot within reach; ask again from then on.
    Later(Timestamp),
}

/// Buckets are asked this often before it is left to a later delivery: others were faster.
const ROUNDS: usize = 5;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    free_at_us: i64,
    parked_until: i64,
}

impl Limiter {
    /// Takes a slot of a bucket, within reach of now.
    pub async fn grant(
        &self,
        invocation: &Invocation,
        key: &Key,
        limit: Limit,
        reach_ms: i64,
    ) -> Result<Grant, StoreError> {
        self.grant_row(invocation, key, limit, reach_ms, 1).await
    }

    /// Takes so many slots in a row, the first of them within reach of now: one write for all of
    /// them.
    pub async fn grant_row(
        &self,
        invocation: &Invocation,
        key: &Key,
        limit: Limit,
        reach_ms: i64,
        slots: i64,
    ) -> Result<Grant, StoreError> {
        let taken_us = limit.interval_us.saturating_mul(slots.max(1));
        let now = invocation.current();
        let now_us = now.millis() * 1_000;
        // The usual bucket is one that others use: its next slot lies a little ahead.
        let mut next = Ask::Next;
        for _ in 0..ROUNDS {
            let refused = match next {
                Ask::Next => {
                    // Its next slot lies ahead, within reach, and it is not parked.
                    let within_reach = Condition::all([
                        Condition::more_than("free_at_us", now_us),
                        Condition::at_most("free_at_us", now_us + reach_ms * 1_000),
                        not_parked(now),
                    ]);
                    let write = self.bucket(key, now).add("free_at_us", taken_us);
                    match self.store.update_returning(invocation, write.when(within_reach)).await? {
                        Returned::Row(item) => return Ok(Grant::At(at_us(seen(item)?.free_at_us - taken_us))),
                        Returned::Refused(item) => item,
                    }
                }
                Ask::Now => {
                    // It has not been used for a while, or ever, or only by a clock that was wrong.
                    let idle = Condition::any([
                        Condition::has_not("free_at_us"),
                        Condition::at_most("free_at_us", now_us),
                        Condition::more_than("free_at_us", now_us.saturating_add(limit.furthest_us())),
                    ]);
                    let write = self.bucket(key, now).set_number("free_at_us", now_us + taken_us);
                    match self.store.write(invocation, write.when(Condition::all([idle, not_parked(now)]))).await? {
                        Written::New | Written::Mine => return Ok(Grant::At(now)),
                        Written::Refused(item) => item,
                    }
                }
                Ask::Later(at) => return Ok(Grant::Later(at)),
            };
            next = ask(refused.map_or(Ok(Bucket { free_at_us: 0, parked_until: 0 }), seen)?, limit, reach_ms, now);
        }
        Ok(Grant::Later(now.plus_ms(reach_ms)))
    }

    /// When there may be a slot within reach; none if there may be one now. A look costs a fraction
    /// of a refusal.
    pub async fn look(
        &self,
        invocation: &Invocation,
        key: &Key,
        limit: Limit,
        reach_ms: i64,
    ) -> Result<Option<Timestamp>, StoreError> {
        let row: Option<Row> = self.store.get(invocation, &self.table, key).await?;
        let Row { free_at_us, parked_until } = row.unwrap_or_default();
        match ask(Bucket { free_at_us, parked_until }, limit, reach_ms, invocation.current()) {
            Ask::Later(at) => Ok(Some(at)),
            Ask::Now | Ask::Next => Ok(None),
        }
    }

    /// A provider said to wait: no slot of this bucket before `until`. A shorter wait does not
    /// shorten a longer one.
    pub async fn park(&self, invocation: &Invocation, key: &Key, until: Timestamp) -> Result<(), StoreError> {
        let sooner =
            Condition::any([Condition::has_not("parked_until"), Condition::at_most("parked_until", until.millis())]);
        let write = self.bucket(key, until).set_number("parked_until", until.millis());
        self.store.write(invocation, write.when(sooner)).await.map(drop)
    }

    /// A bucket that nobody uses says nothing any more: TTL removes it a day after.
    fn bucket(&self, key: &Key, used_at: Timestamp) -> Write {
        Write::update(&self.table, key.clone()).set_number("expires_at", used_at.plus_days(1).seconds())
    }
}

fn not_parked(now: Timestamp) -> Condition {
    Condition::any([Condition::has_not("parked_until"), Condition::at_most("parked_until", now.millis())])
}

fn seen(item: Item) -> Result<Bucket, StoreError> {
    let Row { free_at_us, parked_until } = read_row(item)?;
    Ok(Bucket { free_at_us, parked_until })
}
