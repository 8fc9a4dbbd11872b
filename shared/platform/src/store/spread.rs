//! Lists that are spread over several partitions, read as one.

use serde::de::DeserializeOwned;

use super::{Condition, Page, PageOf, Store, StoreError};
use crate::invocation::Invocation;

/// A place in such a list: a partition by its number, and the sort key after which to go on, empty at its beginning.
pub type SpreadPlace = (u32, String);

/// The rows of these partitions, one after the other, that `only` lets through.
#[derive(Debug)]
pub struct SpreadOf<'a> {
    pub table: &'a str,
    pub pks: Vec<String>,
    pub only: Option<Condition>,
    pub after: Option<SpreadPlace>,
    pub limit: usize,
}

impl Store {
    /// One page, and where the next begins if there may be more.
    pub async fn page_spread<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: SpreadOf<'_>,
    ) -> Result<(Vec<T>, Option<SpreadPlace>), StoreError> {
        let (first, place) = of.after.unwrap_or_default();
        let mut after = Some(place).filter(|place| !place.is_empty());
        let mut rows = Vec::new();
        let mut partitions = (0..).zip(of.pks).skip_while(|(shard, _)| *shard < first).peekable();
        while let Some((shard, pk)) = partitions.next() {
            let (table, prefix, only, limit) = (of.table, "", of.only.clone(), of.limit - rows.len());
            let page = PageOf { table, pk, prefix, only, after: after.take(), limit };
            let page: Page<T> = self.page(invocation, page).await?;
            rows.extend(page.rows);
            if let Some(next) = page.next {
                return Ok((rows, Some((shard, next))));
            }
            if let Some((next, _)) = partitions.peek().filter(|_| rows.len() == of.limit) {
                return Ok((rows, Some((*next, String::new()))));
            }
        }
        Ok((rows, None))
    }
}
