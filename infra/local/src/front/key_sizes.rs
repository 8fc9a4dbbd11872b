//! Rejects keys that are too long for AWS. The emulator does not check the keys of indexes.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::model::Table;

const LONGEST_HASH: usize = 2_048;
const LONGEST_RANGE: usize = 1_024;

/// The keys of every table and of its indexes.
#[derive(Debug, Default)]
pub struct KeySizes {
    tables: HashMap<String, Vec<Keys>>,
}

/// The keys of a table, or of one of its indexes.
#[derive(Debug)]
struct Keys {
    index: Option<String>,
    hash: String,
    range: Option<String>,
}

impl KeySizes {
    pub fn of(tables: &[Table]) -> Self {
        let tables = tables.iter().map(|table| (table.name.clone(), keys_of(&table.create)));
        Self { tables: tables.collect() }
    }

    /// Returns the error message of AWS for a request with a key that is too long, either in the
    /// key condition of a query or in an item that is put.
    pub(super) fn refusal(&self, operation: &str, request: &Value) -> Option<&'static str> {
        let keys = self.tables.get(request["TableName"].as_str()?)?;
        match operation {
            "Query" => {
                let index = request["IndexName"].as_str();
                let keys = keys.iter().find(|keys| keys.index.as_deref() == index)?;
                compared(request).into_iter().find_map(|(name, value)| keys.refusal(name, value))
            }
            "PutItem" => {
                let item = request["Item"].as_object()?;
                keys.iter().find_map(|keys| item.iter().find_map(|(name, value)| keys.refusal(name, value)))
            }
            _ => None,
        }
    }
}

impl Keys {
    fn refusal(&self, name: &str, value: &Value) -> Option<&'static str> {
        let size = size(value);
        if name == self.hash && size > LONGEST_HASH {
            Some(
                "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 bytes",
            )
        } else if self.range.as_deref() == Some(name) && size > LONGEST_RANGE {
            Some(
                "One or more parameter values were invalid: Aggregated size of all range keys has exceeded the size limit of 1024 bytes",
            )
        } else {
            None
        }
    }
}

fn keys_of(create: &Value) -> Vec<Keys> {
    let indexes = ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"].into_iter();
    let indexes = indexes.flat_map(|kind| create[kind].as_array().into_iter().flatten());
    let of = |index: Option<&str>, schema: &Value| {
        let attribute = |kind: &str| {
            let mut parts = schema.as_array().into_iter().flatten();
            parts.find(|part| part["KeyType"] == kind)?["AttributeName"].as_str().map(str::to_owned)
        };
        Some(Keys { index: index.map(str::to_owned), hash: attribute("HASH")?, range: attribute("RANGE") })
    };
    let own = of(None, &create["KeySchema"]);
    own.into_iter().chain(indexes.filter_map(|index| of(index["IndexName"].as_str(), &index["KeySchema"]))).collect()
}

/// Returns the attributes of a key condition, each with a value that it is compared with.
fn compared(request: &Value) -> Vec<(&str, &Value)> {
    let expression = request["KeyConditionExpression"].as_str().unwrap_or_default();
    let (mut attribute, mut found) = ("", Vec::new());
    for word in expression.split(|c: char| c.is_whitespace() || "()=<>,".contains(c)).filter(|word| !word.is_empty()) {
        match word.to_ascii_uppercase().as_str() {
            "AND" | "BETWEEN" | "BEGINS_WITH" => {}
            _ if word.starts_with(':') => found.push((attribute, &request["ExpressionAttributeValues"][word])),
            _ if word.starts_with('#') => {
                attribute = request["ExpressionAttributeNames"][word].as_str().unwrap_or_default();
            }
            _ => attribute = word,
        }
    }
    found
}

/// Returns the size of a string or binary value in bytes. A number is never too long, so it counts
/// as 0.
fn size(value: &Value) -> usize {
    let binary = || value["B"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    value["S"].as_str().map(str::len).or_else(|| binary().map(|bytes| bytes.len())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sizes() -> KeySizes {
        let schema = |hash: &str, range: &str| json!([{"AttributeName": hash, "KeyType": "HASH"}, {"AttributeName": range, "KeyType": "RANGE"}]);
        let create = json!({
            "KeySchema": schema("pk", "sk"),
            "GlobalSecondaryIndexes": [{"IndexName": "by-time", "KeySchema": schema("wake", "wake_at")}],
        });
        let (logical_id, name) = ("Rows".to_owned(), "rows".to_owned());
        KeySizes::of(&[Table { logical_id, name, create, ttl_attribute: None, streams: false }])
    }

    fn query(index: Option<&str>, expression: &str, hash: usize, range: usize) -> Value {
        json!({
            "TableName": "rows", "IndexName": index, "KeyConditionExpression": expression,
            "ExpressionAttributeNames": {"#h": "wake", "#r": "wake_at"},
            "ExpressionAttributeValues": {":h": {"S": "x".repeat(hash)}, ":r": {"S": "x".repeat(range)}, ":a": {"S": "a"}},
        })
    }

    #[test]
    fn a_key_condition_may_not_be_longer_than_a_key() {
        let sizes = sizes();
        for range in ["#r > :r", "#r BETWEEN :a AND :r", "begins_with(#r, :r)", "#r>=:r"] {
            let expression = format!("#h = :h AND ({range})");
            let refused = |hash, size| {
                let refused = sizes.refusal("Query", &query(Some("by-time"), &expression, hash, size));
                refused.map(|text| text.contains("hashkey"))
            };
            assert_eq!(refused(2_048, 1_024), None, "{range}");
            assert_eq!(refused(2_049, 1), Some(true), "{range}");
            assert_eq!(refused(1, 1_025), Some(false), "{range}");
        }
        let of_table = query(None, "pk = :h AND sk > :r", 1, 1_025);
        assert!(sizes.refusal("Query", &of_table).is_some(), "the keys of the table are checked too");
        assert_eq!(sizes.refusal("GetItem", &of_table), None);
        assert_eq!(sizes.refusal("Query", &json!({"TableName": "other"})), None);
    }

    #[test]
    fn an_item_may_not_have_an_index_key_that_is_too_long() {
        let put = |name: &str, size: usize| {
            let item = json!({"pk": {"S": "a"}, "sk": {"S": "b"}, name: {"S": "x".repeat(size)}});
            sizes().refusal("PutItem", &json!({"TableName": "rows", "Item": item})).is_some()
        };
        assert!(put("wake", 2_049) && put("wake_at", 1_025));
        assert!(!put("wake", 2_048) && !put("wake_at", 1_024) && !put("text", 5_000));
    }
}
