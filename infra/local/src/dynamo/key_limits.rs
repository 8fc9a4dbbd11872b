//! Rejects keys that AWS rejects and the emulator accepts: keys of indexes that are too long, and
//! key conditions that are too long or empty. DynamoDB Local gives the same answers, except where a
//! comment says otherwise.
//!
//! What a request contains in full is checked before the emulator sees it. The result of an update
//! or of a statement is known only to the emulator, so triggers in its database check that.

use std::collections::{BTreeSet, HashMap};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::Answered;
use crate::model::Table;

const LONGEST_HASH: usize = 2_048;
const LONGEST_RANGE: usize = 1_024;
/// The messages of AWS. DynamoDB Local has them for key conditions; for items it has others.
pub const HASH_TOO_LONG: &str =
    "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 bytes";
pub const RANGE_TOO_LONG: &str = "One or more parameter values were invalid: Aggregated size of all range keys has exceeded the size limit of 1024 bytes";

/// The keys of every table and of its indexes.
#[derive(Debug, Default)]
pub struct KeyLimits {
    tables: HashMap<String, Vec<Keys>>,
}

/// The keys of a table, or of one of its indexes.
#[derive(Debug)]
struct Keys {
    index: Option<String>,
    hash: Attribute,
    range: Option<Attribute>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Attribute {
    name: String,
    /// `S`, `B` or `N`.
    kind: String,
}

impl KeyLimits {
    pub fn of(tables: &[Table]) -> Self {
        let tables = tables.iter().map(|table| (table.name.clone(), keys_of(&table.create)));
        Self { tables: tables.collect() }
    }

    /// Returns the error message of AWS for a request with a key condition that is too long or
    /// empty, or with an item whose index key is too long. Returns `None` for all other requests;
    /// the emulator itself checks the keys of tables.
    pub fn refusal(&self, operation: &str, request: &Value) -> Option<String> {
        let too_long = match operation {
            "Query" => return self.of_query(request),
            "PutItem" => self.of_put(request),
            "TransactWriteItems" => list(&request["TransactItems"]).find_map(|part| self.of_put(&part["Put"])),
            "BatchWriteItem" => {
                request["RequestItems"].as_object().into_iter().flatten().find_map(|(table, writes)| {
                    list(writes).find_map(|write| self.of_item(table, &write["PutRequest"]["Item"]))
                })
            }
            _ => None,
        };
        too_long.map(str::to_owned)
    }

    fn of_put(&self, put: &Value) -> Option<&'static str> {
        self.of_item(put["TableName"].as_str()?, &put["Item"])
    }

    fn of_item(&self, table: &str, item: &Value) -> Option<&'static str> {
        let mut indexes = self.tables.get(table)?.iter().filter(|keys| keys.index.is_some());
        let item = item.as_object()?;
        indexes.find_map(|keys| item.iter().find_map(|(name, value)| keys.too_long(name, value)))
    }

    /// AWS also rejects a partition key of more than 2,048 bytes in a condition; DynamoDB Local
    /// does not.
    fn of_query(&self, request: &Value) -> Option<String> {
        let index = request["IndexName"].as_str();
        let keys = self.tables.get(request["TableName"].as_str()?)?;
        let keys = keys.iter().find(|keys| keys.index.as_deref() == index)?;
        let compared = compared(request);
        let too_long = compared.iter().find_map(|(name, value)| keys.too_long(name, value));
        too_long.map(str::to_owned).or_else(|| compared.iter().find_map(|(name, value)| keys.empty(name, value)))
    }

    /// Returns the SQL of the triggers that fail a write whose result has an index key that is too
    /// long. The message of the failure is that of AWS.
    pub(super) fn triggers(&self) -> String {
        let indexed = self.tables.iter().map(|(table, keys)| (table, indexed(keys)));
        indexed.filter(|(_, limits)| !limits.is_empty()).map(|(table, limits)| trigger(table, &limits)).collect()
    }

    /// Turns a failure of a trigger into the answer of AWS. Like DynamoDB Local, it rejects a
    /// whole transaction without reasons.
    pub fn as_aws(answered: Answered) -> Answered {
        let failed = |text: &str| [HASH_TOO_LONG, RANGE_TOO_LONG].into_iter().find(|message| text.contains(message));
        let Some(message) = std::str::from_utf8(&answered.body).ok().and_then(failed) else { return answered };
        if answered.status == StatusCode::INTERNAL_SERVER_ERROR {
            return Answered::validation_exception(message);
        }
        let Ok(mut body) = serde_json::from_slice::<Value>(&answered.body) else { return answered };
        for response in body["Responses"].as_array_mut().into_iter().flatten() {
            let text = response["Error"]["Message"].as_str().unwrap_or_default();
            if let Some(message) = failed(text) {
                response["Error"]["Code"] = json!("ValidationError");
                response["Error"]["Message"] = json!(message);
            }
        }
        let mut headers = answered.headers;
        // The checksum is of the emulator's body.
        headers.remove("x-amz-crc32");
        Answered { status: answered.status, headers, body: Bytes::from(body.to_string()) }
    }
}

impl Keys {
    fn is_range(&self, name: &str) -> bool {
        self.range.as_ref().is_some_and(|range| range.name == name)
    }

    fn too_long(&self, name: &str, value: &Value) -> Option<&'static str> {
        let size = size(value);
        if name == self.hash.name && size > LONGEST_HASH {
            Some(HASH_TOO_LONG)
        } else if self.is_range(name) && size > LONGEST_RANGE {
            Some(RANGE_TOO_LONG)
        } else {
            None
        }
    }

    /// Returns the error message for a condition with an empty value.
    fn empty(&self, name: &str, value: &Value) -> Option<String> {
        if !is_empty(value) || !(self.hash.name == name || self.is_range(name)) {
            return None;
        }
        let kind = if value.get("B").is_some() { "binary" } else { "string" };
        let cannot = format!("The AttributeValue for a key attribute cannot contain an empty {kind} value.");
        Some(match &self.index {
            None => format!("One or more parameter values are not valid. {cannot} Key: {name}"),
            Some(index) => format!(
                "One or more parameter values are not valid. A value specified for a secondary index key is not \
                 supported. {cannot} IndexName: {index}, IndexKey: {name}"
            ),
        })
    }
}

fn keys_of(create: &Value) -> Vec<Keys> {
    let kind = |name: &str| {
        let defined = list(&create["AttributeDefinitions"]).find(|defined| defined["AttributeName"] == name);
        defined.and_then(|defined| defined["AttributeType"].as_str()).unwrap_or("S").to_owned()
    };
    let indexes = ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"].into_iter();
    let indexes = indexes.flat_map(|kind| list(&create[kind]));
    let of = |index: Option<&str>, schema: &Value| {
        let attribute = |key: &str| {
            let name = list(schema).find(|part| part["KeyType"] == key)?["AttributeName"].as_str()?;
            Some(Attribute { name: name.to_owned(), kind: kind(name) })
        };
        Some(Keys { index: index.map(str::to_owned), hash: attribute("HASH")?, range: attribute("RANGE") })
    };
    let own = of(None, &create["KeySchema"]);
    own.into_iter().chain(indexes.filter_map(|index| of(index["IndexName"].as_str(), &index["KeySchema"]))).collect()
}

/// Returns the key attributes of the indexes that can be too long, each with its limit.
fn indexed(keys: &[Keys]) -> BTreeSet<(&Attribute, usize, &'static str)> {
    let indexes = keys.iter().filter(|keys| keys.index.is_some());
    let both = indexes.flat_map(|keys| {
        let range = keys.range.as_ref().map(|range| (range, LONGEST_RANGE, RANGE_TOO_LONG));
        std::iter::once((&keys.hash, LONGEST_HASH, HASH_TOO_LONG)).chain(range)
    });
    both.filter(|(attribute, ..)| attribute.kind != "N").collect()
}

/// Returns the SQL of a trigger. A row of the emulator has the item as JSON; most items have too
/// few characters for a key that is too long.
fn trigger(table: &str, limits: &BTreeSet<(&Attribute, usize, &'static str)>) -> String {
    let check = |(attribute, limit, message): &(&Attribute, usize, &str)| {
        let value = format!("json_extract(NEW.item_json, '$.\"{}\".\"{}\"')", attribute.name, attribute.kind);
        let size = match attribute.kind.as_str() {
            "B" => format!("length(rtrim({value}, '=')) * 3 / 4"),
            _ => format!("length(CAST({value} AS BLOB))"),
        };
        format!("SELECT RAISE(ABORT, '{message}') WHERE {size} > {limit};\n")
    };
    let checks: String = limits.iter().map(check).collect();
    const LONGEST_CHARACTER: usize = 4;
    let fewest = LONGEST_RANGE / LONGEST_CHARACTER;
    format!(
        "CREATE TRIGGER IF NOT EXISTS \"_key_limits_{table}\" BEFORE INSERT ON \"{table}\" \
         WHEN length(NEW.item_json) > {fewest} BEGIN\n{checks}END;\n"
    )
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the attributes of a key condition, each with a value that it is compared with. The upper
/// bound of a BETWEEN is left out if it is empty: its range is rejected as reversed.
fn compared(request: &Value) -> Vec<(&str, &Value)> {
    let expression = request["KeyConditionExpression"].as_str().unwrap_or_default();
    let (mut attribute, mut found) = ("", Vec::new());
    for word in expression.split(|c: char| c.is_whitespace() || "()=<>,".contains(c)).filter(|word| !word.is_empty()) {
        match word.to_ascii_uppercase().as_str() {
            "AND" | "BETWEEN" | "BEGINS_WITH" => {}
            _ if word.starts_with(':') => {
                let value = &request["ExpressionAttributeValues"][word];
                let is_upper_bound = found.last().is_some_and(|(last, _)| *last == attribute);
                if !(is_upper_bound && is_empty(value)) {
                    found.push((attribute, value));
                }
            }
            _ if word.starts_with('#') => {
                attribute = request["ExpressionAttributeNames"][word].as_str().unwrap_or_default();
            }
            _ => attribute = word,
        }
    }
    found
}

fn is_empty(value: &Value) -> bool {
    value.get("S").or_else(|| value.get("B")).is_some_and(|text| text == "")
}

/// Returns the size of a string or binary value in bytes. A number is never too long, so it counts
/// as 0.
fn size(value: &Value) -> usize {
    let binary = || value["B"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    value["S"].as_str().map(str::len).or_else(|| binary().map(|bytes| bytes.len())).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
