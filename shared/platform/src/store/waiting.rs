//! What waits: every table that has such rows has them in an index of the same form, in a few partitions for each thing that
//! is waited for.

use umavez_domain::keys::{self, WAKE_SHARDS, Wake};
use umavez_domain::time::Timestamp;

use super::read::{Found, IndexOf};
use super::{Store, StoreError};
use crate::invocation::Invocation;

/// The index, as the template has it.
const BY_TIME: &str = "by-time";

/// Rows of one shard that wait for something.
#[derive(Debug)]
pub struct WaitingOf<'a> {
    pub table: &'a str,
    pub wake: Wake,
    pub shard: u32,
    /// Only what lies at or before this.
    pub until: Option<Timestamp>,
    pub after: Option<String>,
    pub limit: usize,
}

impl Store {
    /// The earliest first.
    pub async fn waiting(&self, invocation: &Invocation, of: WaitingOf<'_>) -> Result<Vec<Found>, StoreError> {
        let of = IndexOf {
            table: of.table,
            index: BY_TIME,
            partition: ("wake", keys::wake(of.wake, of.shard)),
            place: "wake_at",
            after: of.after,
            before: of.until.map(keys::until_time),
            newest_first: false,
            limit: of.limit,
        };
        self.indexed(invocation, of).await
    }

    /// A page over all shards, the longest waiting first, and where the next begins.
    pub async fn waiting_page(
        &self,
        invocation: &Invocation,
        table: &str,
        wake: Wake,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Found>, Option<String>), StoreError> {
        let shards = (0..WAKE_SHARDS).map(|shard| {
            let after = after.map(str::to_owned);
            self.waiting(invocation, WaitingOf { table, wake, shard, until: None, after, limit: limit + 1 })
        });
        let mut found: Vec<_> = futures::future::try_join_all(shards).await?.into_iter().flatten().collect();
        found.sort_by(|a, b| a.place.cmp(&b.place));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().map(|found| found.place.clone()).filter(|_| more);
        Ok((found, next))
    }
}
