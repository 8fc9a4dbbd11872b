//! What a call to DynamoDB consumed.

use bytes::Bytes;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Units {
    pub(super) read: f64,
    pub(super) write: f64,
}

/// Asks for the capacity that a request consumes, which the caller's SDK does not mind in its answer.
pub(super) fn with_capacity(body: Bytes) -> Bytes {
    let Ok(Value::Object(mut request)) = serde_json::from_slice::<Value>(&body) else { return body };
    request.entry("ReturnConsumedCapacity").or_insert_with(|| json!("TOTAL"));
    Bytes::from(Value::Object(request).to_string())
}

/// What a request consumed. An answer that refuses a condition does not say, though AWS charges for it: such a write is
/// counted by the size of the row that it met.
pub(super) fn units(operation: &str, body: &[u8]) -> Units {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return Units::default() };
    let consumed = match &answer["ConsumedCapacity"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["CapacityUnits"].as_f64()).sum(),
        one => one["CapacityUnits"].as_f64().unwrap_or(0.0),
    };
    let kind = answer["__type"].as_str().unwrap_or_default();
    let kilobytes = |item: &Value| (item_size(item) as f64 / 1024.0).ceil().max(1.0);
    if kind.ends_with("ConditionalCheckFailedException") {
        return Units { read: 0.0, write: kilobytes(&answer["Item"]) };
    }
    if kind.ends_with("TransactionCanceledException") {
        let reasons = answer["CancellationReasons"].as_array().map(Vec::as_slice).unwrap_or_default();
        return Units { read: 0.0, write: reasons.iter().map(|reason| 2.0 * kilobytes(&reason["Item"])).sum() };
    }
    match operation {
        "GetItem" | "BatchGetItem" | "Query" | "Scan" | "TransactGetItems" => Units { read: consumed, write: 0.0 },
        _ => Units { read: 0.0, write: consumed },
    }
}

/// The size of a row as DynamoDB counts it: names and values, without the syntax of JSON.
fn item_size(item: &Value) -> usize {
    item.as_object().into_iter().flatten().map(|(name, value)| name.len() + value_size(value)).sum()
}

fn value_size(value: &Value) -> usize {
    let Some((kind, value)) = value.as_object().and_then(|typed| typed.iter().next()) else { return 0 };
    match (kind.as_str(), value) {
        ("S" | "B", Value::String(text)) => text.len(),
        ("N", Value::String(digits)) => digits.len().div_ceil(2) + 1,
        ("M", fields) => 3 + item_size(fields) + fields.as_object().map_or(0, serde_json::Map::len),
        ("L", Value::Array(items)) => 3 + items.iter().map(|item| value_size(item) + 1).sum::<usize>(),
        ("SS" | "NS" | "BS", Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::len).sum(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_condition_costs_what_the_row_it_met_weighs() {
        let row = "x".repeat(1_500);
        let refused = json!({"__type": "com.amazonaws#ConditionalCheckFailedException", "Item": {"a": {"S": row}}});
        assert_eq!(units("PutItem", refused.to_string().as_bytes()).write, 2.0);
        let put = json!({"ConsumedCapacity": {"CapacityUnits": 1.0}});
        assert_eq!(units("PutItem", put.to_string().as_bytes()).write, 1.0);
        assert_eq!(units("GetItem", put.to_string().as_bytes()).read, 1.0);
    }
}
