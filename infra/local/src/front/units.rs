//! The capacity that a call to DynamoDB consumed.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::statements::{self, Statement, Verb};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Units {
    pub(super) read: f64,
    pub(super) write: f64,
}

/// Adds a request for the consumed capacity. The SDK of the caller ignores it in the answer.
pub(super) fn with_capacity(request: &Value, body: &Bytes) -> Bytes {
    const ASK: &[u8] = br#","ReturnConsumedCapacity":"TOTAL"}"#;
    let asks = |fields: &Map<String, Value>| fields.is_empty() || fields.contains_key("ReturnConsumedCapacity");
    // Edits the text: a batch can be long, and the emulator parses all of it again anyway.
    match (request.as_object(), body.trim_ascii_end().strip_suffix(b"}")) {
        (Some(fields), Some(open)) if !asks(fields) => Bytes::from([open, ASK].concat()),
        _ => body.clone(),
    }
}

/// Returns the capacity that a request consumed. AWS also charges for a failed condition, but its
/// error does not contain the capacity, so such a write is counted by the size of the existing row.
/// A batch of statements whose statements on a table all failed does not contain the capacity of
/// that table either; these are counted by the size of what they would have written.
pub(super) fn units(operation: &str, request: &Value, answer: &[u8]) -> Units {
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return Units::default() };
    let consumed = match &answer["ConsumedCapacity"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["CapacityUnits"].as_f64()).sum(),
        one => one["CapacityUnits"].as_f64().unwrap_or(0.0),
    };
    let kind = answer["__type"].as_str().unwrap_or_default();
    if kind.ends_with("ConditionalCheckFailedException") {
        return Units { read: 0.0, write: kilobytes(item_size(&answer["Item"])) };
    }
    if kind.ends_with("TransactionCanceledException") {
        let reasons = answer["CancellationReasons"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_one = |reason: &Value| 2.0 * kilobytes(item_size(&reason["Item"]));
        return Units { read: 0.0, write: reasons.iter().map(of_one).sum() };
    }
    let selects = || {
        let first = statements::texts(request).into_iter().find_map(Statement::read);
        first.is_some_and(|statement| statement.verb == Verb::Select)
    };
    match operation {
        "GetItem" | "BatchGetItem" | "Query" | "Scan" | "TransactGetItems" => Units { read: consumed, write: 0.0 },
        "ExecuteStatement" | "BatchExecuteStatement" | "ExecuteTransaction" if selects() => {
            Units { read: consumed, write: 0.0 }
        }
        "BatchExecuteStatement" => Units { read: 0.0, write: consumed + unsaid(request, &answer) },
        _ => Units { read: 0.0, write: consumed },
    }
}

/// Returns the cost of the failed statements of a batch whose table is missing in the consumed
/// capacity of the answer.
fn unsaid(request: &Value, answer: &Value) -> f64 {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let said: Vec<_> = list(&answer["ConsumedCapacity"]).iter().map(|part| part["TableName"].clone()).collect();
    let is_refused = |code: &Value| code == "DuplicateItem" || code == "ConditionalCheckFailed";
    let each = list(&request["Statements"]).into_iter().zip(list(&answer["Responses"]));
    let refused = each.filter(|(_, one)| is_refused(&one["Error"]["Code"]) && !said.contains(&one["TableName"]));
    refused.map(|(statement, _)| kilobytes(attempted_size(&statement))).sum()
}

/// Returns the size of what a statement would have written: the strings in it, and its parameters.
fn attempted_size(statement: &Value) -> usize {
    let quoted = statement["Statement"].as_str().unwrap_or_default().split('\'').skip(1).step_by(2);
    let parameters = statement["Parameters"].as_array().into_iter().flatten();
    quoted.map(str::len).sum::<usize>() + parameters.map(value_size).sum::<usize>()
}

fn kilobytes(size: usize) -> f64 {
    (size as f64 / 1024.0).ceil().max(1.0)
}

/// Returns the size of a row as DynamoDB counts it: names and values, without the JSON syntax.
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_condition_costs_the_size_of_the_existing_row() {
        let row = "x".repeat(1_500);
        let units = |operation: &str, answer: &Value| units(operation, &json!({}), answer.to_string().as_bytes());
        let refused = json!({"__type": "com.amazonaws#ConditionalCheckFailedException", "Item": {"a": {"S": row}}});
        assert_eq!(units("PutItem", &refused).write, 2.0);
        let put = json!({"ConsumedCapacity": {"CapacityUnits": 1.0}});
        assert_eq!(units("PutItem", &put).write, 1.0);
        assert_eq!(units("GetItem", &put).read, 1.0);
    }

    #[test]
    fn the_cost_of_a_batch_includes_written_and_failed_statements() {
        let statement = |text: &str, size: usize| json!({"Statement": text, "Parameters": [{"S": "x".repeat(size)}]});
        let insert = |size| statement("INSERT INTO \"t\" VALUE {'pk': ?}", size);
        let refused = |code: &str| json!({"Error": {"Code": code}, "TableName": "t"});
        let units = |statements: Value, answer: Value| {
            units("BatchExecuteStatement", &json!({"Statements": statements}), answer.to_string().as_bytes())
        };
        let consumed = json!([{"TableName": "t", "CapacityUnits": 3.0}]);
        let both = json!({"Responses": [{"TableName": "t"}, refused("DuplicateItem")], "ConsumedCapacity": consumed});
        assert_eq!(units(json!([insert(9), insert(1_500)]), both).write, 3.0, "the emulator counted both");
        let none = json!({"Responses": [refused("DuplicateItem"), refused("DuplicateItem")]});
        assert_eq!(units(json!([insert(9), insert(1_500)]), none).write, 3.0);
        assert_eq!(units(json!([insert(9)]), json!({"Responses": [refused("ThrottlingError")]})).write, 0.0);
        let select = statement("SELECT * FROM \"t\" WHERE pk = ?", 9);
        let read = json!({"Responses": [{}], "ConsumedCapacity": [{"TableName": "t", "CapacityUnits": 0.5}]});
        assert_eq!(units(json!([select]), read), Units { read: 0.5, write: 0.0 });
    }

    #[test]
    fn the_capacity_is_requested_unless_the_caller_requests_it() {
        let asked = |text: &'static str| {
            let body = Bytes::from_static(text.as_bytes());
            with_capacity(&serde_json::from_slice(&body).unwrap_or(Value::Null), &body)
        };
        let expected = r#"{"TableName":"t","ReturnConsumedCapacity":"TOTAL"}"#;
        assert_eq!(asked("{\"TableName\":\"t\"}\n"), expected);
        for as_it_is in ["{}", "[]", "nonsense", "", r#"{"ReturnConsumedCapacity":"INDEXES"}"#] {
            assert_eq!(asked(as_it_is), as_it_is);
        }
    }
}
