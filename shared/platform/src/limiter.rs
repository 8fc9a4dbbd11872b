//! Rate limits as rows: each grant is one conditional update.
//!
//! Invariant: two grants of a bucket are at least its interval apart, because each grant moves
//! `free_at_us` forward by the interval, from the value that the condition checked. A parked bucket
//! grants nothing before its time. If the next slot of a bucket is further ahead than a grant can
//! move it ([`Limit::furthest_us`]), a process with a wrong clock used the bucket, and it counts as
//! idle.

use umavez_domain::keys::Key;
use umavez_domain::senders::limiter::{Ask, Bucket, FREE_AT_US, Limit, PARKED_UNTIL, ask, at_us};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Returned, Store, StoreError, Write, Written, read_row};

#[derive(Debug, Clone)]
pub struct Limiter {
    pub store: Store,
    pub table: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// A slot: send at this time, not earlier.
    At(Timestamp),
    /// No slot within reach. Ask again at this time.
    Later(Timestamp),
}

/// The number of tries to take a slot while others are faster. After that, a later delivery tries
/// again.
const ROUNDS: usize = 5;

impl Limiter {
    /// Takes this many consecutive slots of a bucket with one write. The first one is at most
    /// `reach_ms` ahead.
    pub async fn grant(
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
        // Usually other senders use the bucket, and its next slot is a little ahead.
        let mut next = Ask::Next;
        for _ in 0..ROUNDS {
            let refused = match next {
                Ask::Next => {
                    // The next slot is ahead, within reach, and the bucket is not parked.
                    let within_reach = Condition::all([
                        Condition::more_than(FREE_AT_US, now_us),
                        Condition::at_most(FREE_AT_US, now_us + reach_ms * 1_000),
                        not_parked_beyond(now),
                    ]);
                    let write = self.bucket(key, now).add(FREE_AT_US, taken_us);
                    match self.store.update_returning(invocation, write.when(within_reach)).await? {
                        Returned::Row(item) => {
                            return Ok(Grant::At(at_us(read_row::<Bucket>(item)?.free_at_us - taken_us)));
                        }
                        Returned::Refused(item) => item,
                    }
                }
                Ask::Now => {
                    // The bucket was never used, or not for a while, or only by a process with a
                    // wrong clock.
                    let idle = Condition::any([
                        Condition::has_not(FREE_AT_US),
                        Condition::at_most(FREE_AT_US, now_us),
                        Condition::more_than(FREE_AT_US, now_us.saturating_add(limit.furthest_us())),
                    ]);
                    let write = self.bucket(key, now).set_number(FREE_AT_US, now_us + taken_us);
                    match self
                        .store
                        .write(invocation, write.when(Condition::all([idle, not_parked_beyond(now)])))
                        .await?
                    {
                        Written::New | Written::Mine => return Ok(Grant::At(now)),
                        Written::Refused(item) => item,
                    }
                }
                Ask::Later(at) => return Ok(Grant::Later(at)),
            };
            next = ask(refused.map_or(Ok(Bucket::default()), read_row)?, limit, reach_ms, now);
        }
        Ok(Grant::Later(now.plus_ms(reach_ms)))
    }

    /// Returns when a slot may be within reach; `None` if one may be within reach now. A read costs
    /// a fraction of a refused write.
    pub async fn look(
        &self,
        invocation: &Invocation,
        key: &Key,
        limit: Limit,
        reach_ms: i64,
    ) -> Result<Option<Timestamp>, StoreError> {
        let bucket = self.store.get(invocation, &self.table, key).await?.unwrap_or_default();
        match ask(bucket, limit, reach_ms, invocation.current()) {
            Ask::Later(at) => Ok(Some(at)),
            Ask::Now | Ask::Next => Ok(None),
        }
    }

    /// Parks a bucket because the provider asked to wait: it grants no slot before `until`. A
    /// shorter wait does not shorten a longer one.
    pub async fn park(&self, invocation: &Invocation, key: &Key, until: Timestamp) -> Result<(), StoreError> {
        let write = self.bucket(key, until).set_number(PARKED_UNTIL, until.millis());
        self.store.write(invocation, write.when(not_parked_beyond(until))).await.map(drop)
    }

    /// Starts a write to a bucket. TTL removes an unused bucket after a day, when it no longer
    /// limits anything.
    fn bucket(&self, key: &Key, used_at: Timestamp) -> Write {
        Write::update(&self.table, key.clone()).set_number("expires_at", used_at.plus_days(1).seconds())
    }
}

/// The bucket is not parked, or not for longer than this.
fn not_parked_beyond(time: Timestamp) -> Condition {
    Condition::any([Condition::has_not(PARKED_UNTIL), Condition::at_most(PARKED_UNTIL, time.millis())])
}
