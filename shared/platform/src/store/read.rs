//! Reads: one row, or the rows of a partition page by page.

use aws_sdk_dynamodb::types::AttributeValue;
use serde::de::DeserializeOwned;
use umavez_domain::keys::Key;

use super::condition::{Condition, Placeholders};
use super::{Item, Store, StoreError, key_item, read_row};
use crate::invocation::Invocation;

/// Rows that one query looks at, at least.
const SMALLEST_READ: usize = 100;

/// Which rows of a partition: those whose sort key begins with `prefix`, if there is one, after `after`, that `only` lets through.
#[derive(Debug)]
pub struct PageOf<'a> {
    pub table: &'a str,
    pub pk: String,
    pub prefix: &'a str,
    pub only: Option<Condition>,
    pub after: Option<String>,
    pub limit: usize,
}

/// A page of rows and where the next begins.
#[derive(Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// The sort key of the last row, if there may be more.
    pub next: Option<String>,
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

    /// One page, filled up to its limit even when many rows are filtered out on the way.
    pub async fn page<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: PageOf<'_>,
    ) -> Result<Page<T>, StoreError> {
        let page = self.page_items(invocation, &of).await?;
        let rows = page.rows.into_iter().map(read_row).collect::<Result<_, _>>()?;
        Ok(Page { rows, next: page.next })
    }

    /// As [`Self::page`], for rows of more than one kind.
    pub async fn page_items(&self, invocation: &Invocation, of: &PageOf<'_>) -> Result<Page<Item>, StoreError> {
        let mut items: Vec<Item> = Vec::new();
        let mut start = of.after.as_ref().map(|sk| key_item(&Key { pk: of.pk.clone(), sk: sk.clone() }));
        loop {
            let mut names = Placeholders::default();
            let filter = of.only.as_ref().map(|only| only.render(&mut names));
            let mut keys = format!("{} = {}", names.name("pk"), names.value(AttributeValue::S(of.pk.clone())));
            // An empty text is no value of a key, not even to compare one with.
            if !of.prefix.is_empty() {
                let prefix = names.value(AttributeValue::S(of.prefix.to_owned()));
                keys.push_str(&format!(" AND begins_with({}, {prefix})", names.name("sk")));
            }
            let (names, values) = names.into_parts();
            let call = self.client.query().table_name(of.table).key_condition_expression(keys);
            let call = call.set_filter_expression(filter).set_exclusive_start_key(start.take()).consistent_read(true);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            // One more than asked for tells whether there is a next page; many at once, because some are filtered out.
            let call = call.limit(i32::try_from((of.limit + 1).max(SMALLEST_READ)).unwrap_or(i32::MAX));
            let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
            items.extend(found.items.unwrap_or_default());
            start = found.last_evaluated_key;
            if items.len() > of.limit || start.is_none() {
                break;
            }
        }
        let more = items.len() > of.limit;
        items.truncate(of.limit);
        let last = items.last().and_then(|item| item.get("sk")).and_then(|sk| sk.as_s().ok()).cloned();
        Ok(Page { rows: items, next: last.filter(|_| more) })
    }
}

/// Some rows of a partition, in one request: at most `looked_at` are read, of which `only` lets some through.
#[derive(Debug)]
pub struct SliceOf<'a> {
    pub table: &'a str,
    pub pk: String,
    pub prefix: &'a str,
    pub only: Option<Condition>,
    pub after: Option<String>,
    pub looked_at: usize,
}

#[derive(Debug)]
pub struct Slice {
    pub rows: Vec<Item>,
    /// The sort key of the last row that was looked at, if there may be more.
    pub next: Option<String>,
}

impl Store {
    pub async fn slice(&self, invocation: &Invocation, of: &SliceOf<'_>) -> Result<Slice, StoreError> {
        let mut names = Placeholders::default();
        let filter = of.only.as_ref().map(|only| only.render(&mut names));
        let mut keys = format!("{} = {}", names.name("pk"), names.value(AttributeValue::S(of.pk.clone())));
        if !of.prefix.is_empty() {
            let prefix = names.value(AttributeValue::S(of.prefix.to_owned()));
            keys.push_str(&format!(" AND begins_with({}, {prefix})", names.name("sk")));
        }
        let (names, values) = names.into_parts();
        let start = of.after.as_ref().map(|sk| key_item(&Key { pk: of.pk.clone(), sk: sk.clone() }));
        let call = self.client.query().table_name(of.table).key_condition_expression(keys);
        let call = call.set_filter_expression(filter).set_exclusive_start_key(start).consistent_read(true);
        let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
        let call = call.limit(i32::try_from(of.looked_at.max(1)).unwrap_or(i32::MAX));
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
        let last = found.last_evaluated_key.as_ref().and_then(|key| key.get("sk")).and_then(|sk| sk.as_s().ok());
        Ok(Slice { next: last.cloned(), rows: found.items.unwrap_or_default() })
    }
}

/// Rows of one partition between two places, both included, by the table's own sort key or by that of a local index, which
/// is as fresh as the table.
#[derive(Debug)]
pub struct RangeOf<'a> {
    pub table: &'a str,
    pub index: Option<&'a str>,
    pub pk: String,
    /// The name of the sort key.
    pub place: &'a str,
    pub from: String,
    pub to: String,
    pub newest_first: bool,
    pub limit: usize,
}

impl Store {
    pub async fn range<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: &RangeOf<'_>,
    ) -> Result<Vec<T>, StoreError> {
        let (mut rows, mut start) = (Vec::new(), None);
        loop {
            let (found, next) = self.range_request(invocation, of, of.limit - rows.len(), start).await?;
            rows.extend(found);
            start = next;
            if rows.len() >= of.limit || start.is_none() {
                return Ok(rows);
            }
        }
    }

    /// The first rows of the range, in one request: `limit` of them, or as many as DynamoDB reads at once (1 MB).
    pub async fn range_start<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: &RangeOf<'_>,
    ) -> Result<Vec<T>, StoreError> {
        self.range_request(invocation, of, of.limit, None).await.map(|(rows, _)| rows)
    }

    async fn range_request<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: &RangeOf<'_>,
        limit: usize,
        start: Option<Item>,
    ) -> Result<(Vec<T>, Option<Item>), StoreError> {
        let mut names = Placeholders::default();
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let (pk, place) = (names.name("pk"), names.name(of.place));
        let (is, from, to) = (names.value(text(&of.pk)), names.value(text(&of.from)), names.value(text(&of.to)));
        let keys = format!("{pk} = {is} AND {place} BETWEEN {from} AND {to}");
        let (names, values) = names.into_parts();
        let call = self.client.query().table_name(of.table).set_index_name(of.index.map(str::to_owned));
        let call = call.key_condition_expression(keys).scan_index_forward(!of.newest_first).consistent_read(true);
        let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
        let call = call.limit(i32::try_from(limit).unwrap_or(i32::MAX)).set_exclusive_start_key(start);
        let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
        let rows = found.items.unwrap_or_default().into_iter().map(read_row).collect::<Result<_, _>>()?;
        Ok((rows, found.last_evaluated_key))
    }
}

impl Store {
    /// Every row whose partition begins with `prefix`. For small tables and rare questions.
    pub async fn scan_prefix<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        table: &str,
        prefix: &str,
    ) -> Result<Vec<T>, StoreError> {
        let mut rows = Vec::new();
        let mut start = None;
        loop {
            let mut names = Placeholders::default();
            let prefix = AttributeValue::S(prefix.to_owned());
            let filter = format!("begins_with({}, {})", names.name("pk"), names.value(prefix));
            let (names, values) = names.into_parts();
            let call = self.client.scan().table_name(table).filter_expression(filter).set_exclusive_start_key(start);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            let found = invocation.within(call.consistent_read(true).send()).await?.map_err(|e| StoreError::of(&e))?;
            for item in found.items.unwrap_or_default() {
                rows.push(read_row(item)?);
            }
            start = found.last_evaluated_key;
            if start.is_none() {
                return Ok(rows);
            }
        }
    }
}

/// Which rows of an index: those of one partition, in the order of their places.
#[derive(Debug)]
pub struct IndexOf<'a> {
    pub table: &'a str,
    pub index: &'a str,
    /// The name of the index's partition key, and the partition.
    pub partition: (&'a str, String),
    /// The name of the index's sort key.
    pub place: &'a str,
    /// Beyond this place, in the order of reading.
    pub after: Option<String>,
    /// Places before this one only.
    pub before: Option<String>,
    pub newest_first: bool,
    pub limit: usize,
}

/// A row that an index found. An index only nominates: what it says may be old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub key: Key,
    pub place: String,
}

impl Store {
    pub async fn indexed(&self, invocation: &Invocation, of: IndexOf<'_>) -> Result<Vec<Found>, StoreError> {
        let mut found = Vec::new();
        let mut start = None;
        loop {
            let mut names = Placeholders::default();
            let text = |text: &str| AttributeValue::S(text.to_owned());
            let (partition_name, partition) = &of.partition;
            let mut keys = format!("{} = {}", names.name(partition_name), names.value(text(partition)));
            // A key condition takes one comparison, or two as a `BETWEEN`, whose ends belong to it.
            let (lower, upper) = match of.newest_first {
                false => (of.after.as_deref(), of.before.as_deref()),
                true => (None, of.after.as_deref().or(of.before.as_deref())),
            };
            match (lower, upper) {
                (Some(lower), Some(upper)) => {
                    let (lower, upper) = (names.value(text(lower)), names.value(text(upper)));
                    keys.push_str(&format!(" AND {} BETWEEN {lower} AND {upper}", names.name(of.place)));
                }
                (Some(lower), None) => {
                    keys.push_str(&format!(" AND {} > {}", names.name(of.place), names.value(text(lower))));
                }
                (None, Some(upper)) => {
                    keys.push_str(&format!(" AND {} < {}", names.name(of.place), names.value(text(upper))));
                }
                (None, None) => {}
            }
            let (names, values) = names.into_parts();
            let call = self.client.query().table_name(of.table).index_name(of.index).key_condition_expression(keys);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            let call = call.scan_index_forward(!of.newest_first).set_exclusive_start_key(start.take());
            let call = call.limit(i32::try_from(of.limit - found.len() + 1).unwrap_or(i32::MAX));
            let page = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
            found.extend(page.items.unwrap_or_default().iter().filter_map(|item| nominated(item, of.place)));
            found.retain(|one| of.after.as_ref() != Some(&one.place) && of.before.as_ref() != Some(&one.place));
            start = page.last_evaluated_key;
            if found.len() >= of.limit || start.is_none() {
                found.truncate(of.limit);
                return Ok(found);
            }
        }
    }
}

fn nominated(item: &Item, place: &str) -> Option<Found> {
    let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
    Some(Found { key: Key { pk: text("pk")?, sk: text("sk")? }, place: text(place)? })
}

/// A page of what an index itself has of its rows, those only that `only` lets through, the newest first.
#[derive(Debug)]
pub struct IndexPageOf<'a> {
    pub table: &'a str,
    pub index: &'a str,
    pub partition: (&'a str, String),
    pub place: &'a str,
    /// Places in between, both included.
    pub from: String,
    pub to: String,
    pub only: Option<Condition>,
    pub limit: usize,
    /// Requests at most: what few rows pass is told in several pages.
    pub requests: usize,
}

impl Store {
    /// The rows, and the place after which the next page begins. An index only nominates: what it says may be old.
    pub async fn index_page<T: DeserializeOwned>(
        &self,
        invocation: &Invocation,
        of: &IndexPageOf<'_>,
    ) -> Result<Page<T>, StoreError> {
        let mut items: Vec<Item> = Vec::new();
        let (mut start, mut passed) = (None, None);
        for _ in 0..of.requests.max(1) {
            let mut names = Placeholders::default();
            let filter = of.only.as_ref().map(|only| only.render(&mut names));
            let text = |text: &str| AttributeValue::S(text.to_owned());
            let (partition, is) = (names.name(of.partition.0), names.value(text(&of.partition.1)));
            let (place, from, to) = (names.name(of.place), names.value(text(&of.from)), names.value(text(&of.to)));
            let keys = format!("{partition} = {is} AND {place} BETWEEN {from} AND {to}");
            let (names, values) = names.into_parts();
            let call = self.client.query().table_name(of.table).index_name(of.index).key_condition_expression(keys);
            let call = call.set_filter_expression(filter).scan_index_forward(false);
            let call = call.set_expression_attribute_names(names).set_expression_attribute_values(values);
            // Where nothing is filtered out, no more is read than is asked for.
            let looked_at = if of.only.is_some() { SMALLEST_READ * 10 } else { of.limit - items.len() + 1 };
            let call = call.limit(i32::try_from(looked_at).unwrap_or(i32::MAX)).set_exclusive_start_key(start);
            let found = invocation.within(call.send()).await?.map_err(|error| StoreError::of(&error))?;
            items.extend(found.items.unwrap_or_default());
            start = found.last_evaluated_key;
            passed = start.as_ref().and_then(|key| key.get(of.place)).and_then(|at| at.as_s().ok()).cloned();
            if items.len() > of.limit || start.is_none() {
                break;
            }
        }
        let next = if items.len() > of.limit {
            items.truncate(of.limit);
            items.last().and_then(|item| item.get(of.place)).and_then(|at| at.as_s().ok()).cloned()
        } else {
            passed
        };
        let rows = items.into_iter().map(read_row).collect::<Result<_, _>>()?;
        Ok(Page { rows, next })
    }
}
