//! The rows of the tables.

use std::collections::BTreeMap;

use serde_json::Value;

/// The rows of some tables, by their keys. A table has the name of its resource in the template.
#[derive(Debug, Default)]
pub struct Rows(BTreeMap<String, BTreeMap<(String, String), Value>>);

impl Rows {
    /// Stores a row. Returns the row that was there before.
    pub fn put(&mut self, table: &str, row: Value) -> Option<Value> {
        let key = (crate::text(&row, "pk").to_owned(), crate::text(&row, "sk").to_owned());
        self.0.entry(table.to_owned()).or_default().insert(key, row)
    }

    pub fn remove(&mut self, table: &str, pk: &str, sk: &str) -> Option<Value> {
        self.0.get_mut(table)?.remove(&(pk.to_owned(), sk.to_owned()))
    }

    pub fn get(&self, table: &str, pk: &str, sk: &str) -> Option<&Value> {
        self.0.get(table)?.get(&(pk.to_owned(), sk.to_owned()))
    }

    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the partition keys of a table.
    pub fn partitions(&self, table: &str) -> Vec<&str> {
        let mut partitions: Vec<_> = self.table(table).map(|row| crate::text(row, "pk")).collect();
        partitions.dedup();
        partitions
    }

    pub fn table(&self, table: &str) -> impl Iterator<Item = &Value> {
        self.0.get(table).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the rows of a partition whose sort key begins with a text, in their order.
    pub fn partition(&self, table: &str, pk: &str, prefix: &str) -> impl Iterator<Item = &Value> + use<'_> {
        let (pk, prefix) = (pk.to_owned(), prefix.to_owned());
        let from = (pk.clone(), prefix.clone());
        let rows = self.0.get(table).into_iter().flat_map(move |rows| rows.range(from.clone()..));
        rows.take_while(move |((of, sk), _)| *of == pk && sk.starts_with(&prefix)).map(|(_, row)| row)
    }
}
