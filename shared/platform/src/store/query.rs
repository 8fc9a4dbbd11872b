//! Describes which rows to read: a partition of a table or of one of its indexes, and which of its
//! rows. [`super::Store`] reads them as a page, a slice, all rows, or the keys that an index
//! nominates.

use std::collections::HashMap;

use umavez_domain::keys::Key;
use umavez_domain::keys::index::Index;

use super::condition::{Condition, Placeholders};
use super::{Item, key_item};

/// The minimum number of rows that one request for a page of a table evaluates.
const SMALLEST_READ: usize = 100;
/// The number of rows that one request for a page of an index evaluates if the query has a filter.
const FILTERED_READ: usize = 1_000;

/// Which rows to read, in which order, and how many. A place is a value of the sort key.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    pub(super) table: &'a str,
    pub(super) index: Option<Index>,
    /// `None` reads every row of the table.
    partition: Option<String>,
    prefix: &'a str,
    between: Option<(String, String)>,
    before: Option<String>,
    after: Option<String>,
    only: Option<Condition>,
    pub(super) newest_first: bool,
    pub(super) limit: usize,
    pub(super) requests: usize,
}

impl<'a> Query<'a> {
    /// Selects the rows of one partition of a table, in the order of the table's own sort key.
    pub fn partition(table: &'a str, pk: impl Into<String>) -> Self {
        Self { partition: Some(pk.into()), ..Self::table(table) }
    }

    /// Selects the rows of one partition of an index, in the order of the sort key of the index.
    pub fn index(table: &'a str, index: Index, partition: impl Into<String>) -> Self {
        Self { index: Some(index), ..Self::partition(table, partition) }
    }

    /// Selects every row of a table, in no order. This scans the whole table.
    pub(super) fn table(table: &'a str) -> Self {
        Self {
            table,
            index: None,
            partition: None,
            prefix: "",
            between: None,
            before: None,
            after: None,
            only: None,
            newest_first: false,
            limit: usize::MAX,
            requests: usize::MAX,
        }
    }

    /// Keeps only places that start with this prefix. A query takes either a prefix or bounds, not
    /// both.
    pub fn prefix(self, prefix: &'a str) -> Self {
        Self { prefix, ..self }
    }

    /// Keeps only places between these two, both inclusive.
    pub fn between(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { between: Some((from.into(), to.into())), ..self }
    }

    /// Keeps only places before this one.
    pub fn before(self, place: impl Into<Option<String>>) -> Self {
        Self { before: place.into(), ..self }
    }

    /// Keeps only places after this one, in reading order.
    pub fn after(self, place: impl Into<Option<String>>) -> Self {
        Self { after: place.into(), ..self }
    }

    /// Keeps only rows for which the condition holds. DynamoDB still reads, and bills, the rows
    /// that it filters out.
    pub fn only(self, condition: impl Into<Option<Condition>>) -> Self {
        Self { only: condition.into(), ..self }
    }

    /// Reads from the last place to the first.
    pub fn newest_first(self) -> Self {
        Self { newest_first: true, ..self }
    }

    /// Returns at most this many rows. For a slice, it is the number of rows that DynamoDB
    /// evaluates.
    pub fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Limits the number of requests for a page. If few rows pass the filter, the page is then
    /// short, and its `next` says where the next page starts.
    pub fn requests(self, requests: usize) -> Self {
        Self { requests, ..self }
    }

    /// Returns the name of the sort key.
    pub(super) fn sort(&self) -> &'static str {
        self.index.map_or("sk", |index| index.sort)
    }

    /// Returns whether the read is strongly consistent. Only a table and its local indexes support
    /// that.
    pub(super) fn is_consistent(&self) -> bool {
        self.index.is_none_or(|index| index.is_local())
    }

    /// Returns the key after which to read a table. Its row need not exist. An index would need all
    /// keys of that row, and a place is only one of them, so for an index the key condition
    /// contains the place.
    pub(super) fn start(&self) -> Option<Item> {
        let (pk, sk) = self.partition.clone().zip(self.after.clone().filter(|_| self.index.is_none()))?;
        Some(key_item(&Key { pk, sk }))
    }

    /// Returns whether the query wants a row at this place. A `BETWEEN` includes its ends, so this
    /// excludes `before` and `after`.
    pub(super) fn includes(&self, place: Option<&String>) -> bool {
        place.is_none() || (place != self.before.as_ref() && place != self.after.as_ref())
    }

    /// Returns how many rows a request for a page evaluates when `missing` rows are still needed:
    /// many if a filter may remove some, and for an index without a filter only the missing ones.
    pub(super) fn page_read(&self, missing: usize) -> usize {
        match (self.index, &self.only) {
            (None, _) => self.limit.saturating_add(1).max(SMALLEST_READ),
            (Some(_), Some(_)) => FILTERED_READ,
            (Some(_), None) => missing,
        }
    }

    pub(super) fn expressions(&self) -> Expressions {
        let mut placeholders = Placeholders::default();
        let keys = self.partition.as_deref().map(|partition| self.key_condition(partition, &mut placeholders));
        let filter = self.only.as_ref().map(|only| only.render(&mut placeholders));
        let (names, values) = placeholders.into_parts();
        Expressions { keys, filter, names, values }
    }

    fn key_condition(&self, partition: &str, into: &mut Placeholders) -> String {
        let partition_name = self.index.map_or("pk", |index| index.partition);
        let keys = format!("{} = {}", into.name(partition_name), into.text(partition));
        match self.sort_condition(into) {
            Some(places) => format!("{keys} AND {places}"),
            None => keys,
        }
    }

    /// Builds the part of the key condition for the sort key. DynamoDB accepts one comparison, or
    /// two bounds as a `BETWEEN`.
    fn sort_condition(&self, into: &mut Placeholders) -> Option<String> {
        let sort = self.sort();
        // DynamoDB does not accept an empty string as a key value, not even in a comparison.
        if !self.prefix.is_empty() {
            return Some(format!("begins_with({}, {})", into.name(sort), into.text(self.prefix)));
        }
        let (from, to) = self.between.as_ref().map(|(from, to)| (from, to)).unzip();
        let (before, after) = (self.before.as_ref(), self.after.as_ref().filter(|_| self.index.is_some()));
        let (lower, upper) = match self.newest_first {
            false => (after.or(from), before.or(to)),
            true => (from, after.or(before).or(to)),
        };
        match (lower, upper) {
            (Some(lower), Some(upper)) => {
                Some(format!("{} BETWEEN {} AND {}", into.name(sort), into.text(lower), into.text(upper)))
            }
            (Some(lower), None) => Some(format!("{} > {}", into.name(sort), into.text(lower))),
            (None, Some(upper)) => Some(format!("{} < {}", into.name(sort), into.text(upper))),
            (None, None) => None,
        }
    }
}

/// A query in the form that DynamoDB takes.
#[derive(Debug)]
pub(super) struct Expressions {
    pub(super) keys: Option<String>,
    pub(super) filter: Option<String>,
    pub(super) names: Option<HashMap<String, String>>,
    pub(super) values: Option<Item>,
}

#[cfg(test)]
mod tests {
    use umavez_domain::keys::index::{BY_PLACE, BY_TIME};

    use super::*;

    /// Returns the key condition with the values filled in.
    fn keys(query: &Query<'_>) -> String {
        let expressions = query.expressions();
        let values = expressions.values.unwrap_or_default();
        let filled = values.iter().fold(expressions.keys.unwrap_or_default(), |keys, (placeholder, value)| {
            keys.replace(placeholder, value.as_s().expect("a text"))
        });
        filled.replace('#', "")
    }

    fn place(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn a_partition_is_read_as_a_whole_by_prefix_or_between_two_bounds() {
        let all = Query::partition("t", "p");
        assert_eq!(keys(&all), "pk = p");
        assert_eq!(keys(&all.clone().prefix("")), "pk = p", "a key cannot be an empty text");
        assert_eq!(keys(&all.clone().prefix("E")), "pk = p AND begins_with(sk, E)");
        assert_eq!(keys(&all.clone().between("a", "b")), "pk = p AND sk BETWEEN a AND b");
        assert_eq!(keys(&all.before(place("b"))), "pk = p AND sk < b");
    }

    #[test]
    fn a_table_continues_after_a_key_and_an_index_after_a_sort_value() {
        let table = Query::partition("t", "p").prefix("E").after(place("E1"));
        assert_eq!(keys(&table), "pk = p AND begins_with(sk, E)");
        assert_eq!(table.start(), Some(key_item(&Key { pk: place("p"), sk: place("E1") })));
        let index = Query::index("t", BY_TIME, "DUE").after(place("a"));
        assert_eq!(keys(&index), "wake = DUE AND wake_at > a");
        assert_eq!(keys(&index.clone().newest_first()), "wake = DUE AND wake_at < a");
        assert_eq!(index.start(), None);
    }

    #[test]
    fn two_bounds_become_a_between_and_excluded_ends_are_dropped() {
        let both = Query::index("t", BY_TIME, "DUE").after(place("a")).before(place("c"));
        assert_eq!(keys(&both), "wake = DUE AND wake_at BETWEEN a AND c");
        assert_eq!(["a", "b", "c"].map(|at| both.includes(Some(&place(at)))), [false, true, false]);
        let ends = Query::index("t", BY_TIME, "DUE").between("a", "c");
        assert_eq!(["a", "b", "c"].map(|at| ends.includes(Some(&place(at)))), [true, true, true]);
        let later = ends.clone().after(place("b"));
        assert_eq!(keys(&later), "wake = DUE AND wake_at BETWEEN b AND c");
        assert_eq!(keys(&later.newest_first()), "wake = DUE AND wake_at BETWEEN a AND b");
    }

    #[test]
    fn a_filter_has_placeholders_of_its_own() {
        let found = Query::index("t", BY_PLACE, "p").between("a", "b").only(Condition::is("state", "x")).expressions();
        assert_eq!(found.keys.as_deref(), Some("#pk = :v0 AND #place BETWEEN :v1 AND :v2"));
        assert_eq!(found.filter.as_deref(), Some("#state = :v3"));
        assert_eq!((found.names.map(|names| names.len()), found.values.map(|values| values.len())), (Some(3), Some(4)));
        let scan = Query::table("t").only(Condition::begins_with("pk", "BOT")).expressions();
        assert_eq!((scan.keys, scan.filter.as_deref()), (None, Some("begins_with(#pk, :v0)")));
    }

    #[test]
    fn only_a_table_and_its_local_indexes_are_read_consistently() {
        assert!(Query::partition("t", "p").is_consistent());
        assert!(Query::index("t", BY_PLACE, "p").is_consistent());
        assert!(!Query::index("t", BY_TIME, "p").is_consistent());
    }

    #[test]
    fn a_page_reads_many_rows_only_if_some_may_be_filtered_out() {
        let table = Query::partition("t", "p");
        assert_eq!([20, 99, 100, 500].map(|limit| table.clone().limit(limit).page_read(1)), [100, 100, 101, 501]);
        let index = Query::index("t", BY_TIME, "p").limit(20);
        assert_eq!(index.page_read(7), 7);
        assert_eq!(index.only(Condition::has("a")).page_read(7), 1_000);
    }
}
