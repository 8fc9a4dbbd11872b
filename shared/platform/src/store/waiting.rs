//! Rows that wait for something. Every table with such rows has them in an index of the same form,
//! with a few partitions for each kind of wake-up.

use umavez_domain::keys::index::BY_TIME;
use umavez_domain::keys::{self, WAKE_SHARDS, Wake};
use umavez_domain::time::Timestamp;

use super::read::Found;
use super::{Query, Store, StoreError};
use crate::invocation::Invocation;

impl<'a> Query<'a> {
    /// Selects the rows of one shard that wait for `wake`, the earliest first.
    pub fn waiting(table: &'a str, wake: Wake, shard: u32) -> Self {
        Self::index(table, BY_TIME, keys::wake(wake, shard))
    }

    /// Keeps only rows that wait until this time or an earlier one.
    pub fn until(self, at: impl Into<Option<Timestamp>>) -> Self {
        self.before(at.into().map(keys::until_time))
    }
}

impl Store {
    /// Reads a page over all shards, the longest waiting first. Returns it with the place after
    /// which the next page starts.
    pub async fn waiting_page(
        &self,
        invocation: &Invocation,
        table: &str,
        wake: Wake,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Found>, Option<String>), StoreError> {
        let shards = (0..WAKE_SHARDS).map(|shard| async move {
            let query = Query::waiting(table, wake, shard).after(after.map(str::to_owned)).limit(limit + 1);
            self.nominate(invocation, &query).await
        });
        let mut found: Vec<_> = futures::future::try_join_all(shards).await?.into_iter().flatten().collect();
        found.sort_by(|a, b| a.place.cmp(&b.place));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().map(|found| found.place.clone()).filter(|_| more);
        Ok((found, next))
    }
}
