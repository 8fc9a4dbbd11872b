//! Reads one row, or the rows of a [`Query`] page by page.

use serde::de::DeserializeOwned;
use umavez_domain::keys::Key;

use super::query::{Expressions, Query};
use super::{Condition, Item, Store, StoreError, key_item, read_row};
use crate::invocation::Invocation;

/// Some rows, and where the next ones start.
#[derive(Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The place after which the next page starts, if there may be more.
    pub next: Option<String>,
}

impl Page<Item> {
    pub fn read<T: DeserializeOwned>(self) -> Result<Page<T>, StoreError> {
        Ok(Page { rows: read_all(self.rows)?, next: self.next })
    }
}

/// A row that an index found. An index only nominates rows: its data may be stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub key: Key,
    pub place: String,
}

impl Store {
    /// Reads a row, strongly consistent.
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
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::from_sdk(&error))?;
        Ok(found.item)
    }

    /// Reads one page. It sends requests until the page reaches its limit, even if the filter
    /// removes many rows, unless that takes more requests than the query allows.
    pub async fn page<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
    ) -> Result<Page<T>, StoreError> {
        self.page_items(invocation, query).await?.read()
    }

    /// Works as [`Self::page`], for rows of more than one type.
    pub async fn page_items(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Page<Item>, StoreError> {
        // Read one row more than the limit, to know whether there is a next page.
        let enough = query.limit.saturating_add(1);
        let (mut rows, last) = self.collect(invocation, query, enough, |missing| query.page_read(missing)).await?;
        let more = rows.len() > query.limit;
        rows.truncate(query.limit);
        let seen = if more { rows.last() } else { last.as_ref() };
        Ok(Page { next: seen.and_then(|item| text(item, query.sort())).cloned(), rows })
    }

    /// Reads the rows up to the limit, without checking whether there are more.
    pub async fn rows<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
    ) -> Result<Vec<T>, StoreError> {
        let (rows, _) = self.collect(invocation, query, query.limit, |missing| missing).await?;
        read_all(rows)
    }

    /// Reads some rows in one request. The request evaluates as many rows as the limit says, or as
    /// many as DynamoDB reads at once (1 MB). The next slice starts after the last row that was
    /// evaluated.
    pub async fn slice(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Page<Item>, StoreError> {
        // Zero rows are enough, so `collect` stops after the first request.
        let (rows, last) = self.collect(invocation, query, 0, |_| query.limit).await?;
        Ok(Page { rows, next: last.as_ref().and_then(|key| text(key, query.sort())).cloned() })
    }

    /// Reads the keys and places of rows from an index, up to the limit. The rows themselves may
    /// have changed since.
    pub async fn nominate(&self, invocation: &Invocation, query: &Query<'_>) -> Result<Vec<Found>, StoreError> {
        // Read one row more than is missing, because `includes` may exclude an end of the range.
        let looked_at = |missing: usize| missing.saturating_add(1);
        let (mut rows, _) = self.collect(invocation, query, query.limit, looked_at).await?;
        rows.truncate(query.limit);
        Ok(rows.iter().filter_map(|item| nominated(item, query.sort())).collect())
    }

    /// Reads every row whose partition key starts with `prefix`. Use it only for small tables and
    /// rare reads.
    pub async fn scan_prefix<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        table: &str,
        prefix: &str,
    ) -> Result<Vec<T>, StoreError> {
        self.rows(invocation, &Query::table(table).only(Condition::begins_with("pk", prefix))).await
    }

    /// Sends requests until it has `enough` rows, there is nothing more to read, or the query
    /// allows no more requests. Returns the rows and, if there may be more, the key of the last row
    /// that was evaluated. `looked_at` maps the number of missing rows to the number that a request
    /// evaluates.
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

    /// Sends one request. Returns the rows that passed the filter and, if there may be more, the
    /// key of the last row that was evaluated.
    async fn request(
        &self,
        invocation: &Invocation,
        query: &Query<'_>,
        looked_at: usize,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let Expressions { keys, filter, names, values } = query.expressions();
        // A number that does not fit in a limit means no limit.
        let (limit, consistent) = (i32::try_from(looked_at.max(1)).ok(), query.is_consistent());
        if keys.is_none() {
            let call = self.client.scan().table_name(query.table).set_filter_expression(filter);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            let call = call.set_limit(limit).set_exclusive_start_key(start).consistent_read(consistent);
            let found = invocation.within(call.send()).await?.map_err(|error| StoreError::from_sdk(&error))?;
            return Ok((found.items.unwrap_or_default(), found.last_evaluated_key));
        }
        let call = self.client.query().table_name(query.table).set_index_name(query.index.map(|at| at.name.to_owned()));
        let call = call.set_key_condition_expression(keys).set_filter_expression(filter);
        let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
        let call = call.set_limit(limit).set_exclusive_start_key(start).consistent_read(consistent);
        let call = call.scan_index_forward(!query.newest_first);
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::from_sdk(&error))?;
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
