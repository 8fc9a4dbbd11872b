//! Reads a list that is spread over several partitions as one list.

use serde::de::DeserializeOwned;

use super::{Page, Query, Store, StoreError};
use crate::invocation::Invocation;

/// A place in such a list: the number of a partition, and the sort key after which to continue. The
/// sort key is empty at the start of the partition.
pub type SpreadPlace = (u32, String);

impl Store {
    /// Reads one page of these partitions, one after the other. Returns the rows and, if there may
    /// be more, where the next page starts.
    pub async fn page_spread<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        partitions: Vec<Query<'_>>,
        after: Option<SpreadPlace>,
        limit: usize,
    ) -> Result<(Vec<T>, Option<SpreadPlace>), StoreError> {
        let (first, place) = after.unwrap_or_default();
        let mut after = Some(place).filter(|place| !place.is_empty());
        let mut rows = Vec::new();
        let mut partitions = (0..).zip(partitions).skip(first as usize).peekable();
        while let Some((shard, query)) = partitions.next() {
            let query = query.after(after.take()).limit(limit - rows.len());
            let page: Page<T> = self.page(invocation, &query).await?;
            rows.extend(page.rows);
            if let Some(next) = page.next {
                return Ok((rows, Some((shard, next))));
            }
            if let Some((next, _)) = partitions.peek().filter(|_| rows.len() == limit) {
                return Ok((rows, Some((*next, String::new()))));
            }
        }
        Ok((rows, None))
    }
}
