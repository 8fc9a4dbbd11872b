//! Reads: one row, or the rows of a [`Query`] page by page.

use serde::de::DeserializeOwned;
use umavez_domain::keys::Key;

use super::query::{Expressions, Query};
use super::{Condition, Item, Store, StoreError, key_item, read_row};
use crate::invocation::Invocation;

/// Some rows, and where the next ones begin.
#[derive(Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The place after which the next page begins, if there may be more.
    pub next: Option<String>,
}

impl Page<Item> {
    pub fn read<T: DeserializeOwned>(self) -> Result<Page<T>, StoreError> {
        Ok(Page { rows: read_all(self.rows)?, next: self.next })
    }
}

/// A row that an index found. An index only nominates: what it says may be old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub key: Key,
    pub place: String,
}

impl Store {
    /// The row, as of the last write.
    pub async fn get<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        table: &str,
        key: &Key,
    ) -> Result<Option<T>, StoreError> {
        self.get_item(invocation, table, key).await?.map(read_row).transpose()
    }

    pub async fn get_item(&self, invocation: &Invocation, table: &str, key: &Key) -> Result<Option<Item>, StoreError> {
        let call = self.client.get_item().table_name(table).set_key(Some(key_item(key))).consistent_read(true);
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
        Ok(found.item)
    }

    /// Reads one page, filled up to its limit even when many rows are filtered out on the way,
    /// unless it takes more requests than it may.
    pub async fn page<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
    ) -> Result<Page<T>, StoreError> {
        self.page_items(invocation, query).await?.read()
    }

    /// As [`Self::page`], for rows of more than one kind.
    pub async fn page_items(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Page<Item>, StoreError> {
        // One more than asked for tells whether there is a next page.
        let enough = query.limit.saturating_add(1);
        let (mut rows, last) = self.collect(invocation, query, enough, |missing| query.page_read(missing)).await?;
        let more = rows.len() > query.limit;
        rows.truncate(query.limit);
        let seen = if more { rows.last() } else { last.as_ref() };
        Ok(Page { next: seen.and_then(|item| text(item, query.sort())).cloned(), rows })
    }

    /// Reads the rows up to the limit, without asking whether there are more.
    pub async fn rows<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
    ) -> Result<Vec<T>, StoreError> {
        let (rows, _) = self.collect(invocation, query, query.limit, |missing| missing).await?;
        read_all(rows)
    }

    /// Reads some rows in one request: it looks at as many as the limit says, or as DynamoDB reads
    /// at once (1 MB). The next slice begins after the last row that was looked at.
    pub async fn slice(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Page<Item>, StoreError> {
        // However few rows the first request finds, they are enough.
        let (rows, last) = self.collect(invocation, query, 0, |_| query.limit).await?;
        Ok(Page { rows, next: last.as_ref().and_then(|key| text(key, query.sort())).cloned() })
    }

    /// Reads the keys and places of rows from an index, up to the limit. The rows themselves may
    /// have changed since.
    pub async fn nominate(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Vec<Found>, StoreError> {
        // One more than is missing: an end of the range may have to be left out.
        let looked_at = |missing: usize| missing.saturating_add(1);
        let (mut rows, _) = self.collect(invocation, query, query.limit, looked_at).await?;
        rows.truncate(query.limit);
        Ok(rows.iter().filter_map(|item| nominated(item, query.sort())).collect())
    }

    /// Reads every row whose partition begins with `prefix`. For small tables and rare questions.
    pub async fn scan_prefix<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        table: &str,
        prefix: &str,
    ) -> Result<Vec<T>, StoreError> {
        self.rows(invocation, &Query::table(table).only(Condition::begins_with("pk", prefix))).await
    }

    /// Sends requests until there are `enough` rows, no more to read, or no more requests to make.
    /// Returns the rows and the key of the last one that was looked at, if there may be more.
    /// `looked_at` says how many rows a request looks at when so many are missing.
    async fn collect(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
        enough: usize,
        looked_at: impl Fn(usize) -> usize,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let (mut rows, mut start) = (Vec::new(), query.start());
        let mut requests = 0;
        loop {
            let looked_at = looked_at(enough.saturating_sub(rows.len()));
            let (found, last) = self.request(invocation, query, looked_at, start).await?;
            rows.extend(found.into_iter().filter(|item| query.includes(text(item, query.sort()))));
            start = last;
            requests += 1;
            if rows.len() >= enough || start.is_none() || requests >= query.requests {
                return Ok((rows, start));
            }
        }
    }

    /// Sends one request. Returns the rows that passed the filter, and the key of the last row that
    /// was looked at, if there may be more.
    async fn request(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
        looked_at: usize,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let Expressions { keys, filter, names, values } = query.expressions();
        // What is too large for a limit is none.
        let (limit, consistent) = (i32::try_from(looked_at.max(1)).ok(), query.is_consistent());
        if keys.is_none() {
            let call = self.client.scan().table_name(query.table).set_filter_expression(filter);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            let call = call.set_limit(limit).set_exclusive_start_key(start).consistent_read(consistent);
            let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
            return Ok((found.items.unwrap_or_default(), found.last_evaluated_key));
        }
        let call = self.client.query().table_name(query.table).set_index_name(query.index.map(|at| at.name.to_owned()));
        let call = call.set_key_condition_expression(keys).set_filter_expression(filter);
        let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
        let call = call.set_limit(limit).set_exclusive_start_key(start).consistent_read(consistent);
        let call = call.scan_index_forward(!query.newest_first);
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
        Ok((found.items.unwrap_or_default(), found.last_evaluated_key))
    }
}

fn read_all<T: DeserializeOwned>(rows: Vec<Item>) -> Result<Vec<T>, StoreError> {
    rows.into_iter().map(read_row).collect()
}

fn text<'a>(item: &'a Item, name: &str) -> Option<&'a String> {
    item.get(name).and_then(|value| value.as_s().ok())
}

fn nominated(item: &Item, sort: &str) -> Option<Found> {
    let text = |name| text(item, name).cloned();
    Some(Found { key: Key { pk: text("pk")?, sk: text("sk")? }, place: text(sort)? })
}
