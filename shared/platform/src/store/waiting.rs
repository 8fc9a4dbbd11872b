//! What waits: every table that has such rows has them in an index of the same form, in a few
//! partitions for each thing that is waited for.

use umavez_domain::keys::index::BY_TIME;
use umavez_domain::keys::{self, WAKE_SHARDS, Wake};
use umavez_domain::time::Timestamp;

use super::read::Found;
use super::{Query, Store, StoreError};
use crate::invocation::Invocation;

impl<'a> Query<'a> {
    /// The rows of one shard that wait for something, the earliest first.
    pub fn waiting(table: &'a str, wake: Wake, shard: u32) -> Self {
        Self::index(table, BY_TIME, keys::wake(wake, shard))
    }

    /// Only what lies at or before this time.
    pub fn until(self, at: impl Into<Option<Timestamp>>) -> Self {
        self.before(at.into().map(keys::until_time))
    }
}

impl Store {
    /// A page over all shards, the longest waiting first, and where the next begins.
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
