//! What is rejected, by the limits alone and by a stack. With `infra/independent-check`, the
//! answers of the stack are compared with those of DynamoDB Local.

use serde_json::json;

use super::*;
use crate::{Options, Stack};

const TEMPLATE: &str = "
Resources:
  Rows:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: rows
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions:
        - {AttributeName: pk, AttributeType: S}
        - {AttributeName: sk, AttributeType: S}
        - {AttributeName: wake, AttributeType: S}
        - {AttributeName: wake_at, AttributeType: S}
        - {AttributeName: mark, AttributeType: B}
      KeySchema: [{AttributeName: pk, KeyType: HASH}, {AttributeName: sk, KeyType: RANGE}]
      GlobalSecondaryIndexes:
        - IndexName: by-time
          KeySchema: [{AttributeName: wake, KeyType: HASH}, {AttributeName: wake_at, KeyType: RANGE}]
          Projection: {ProjectionType: KEYS_ONLY}
        - IndexName: by-mark
          KeySchema: [{AttributeName: wake, KeyType: HASH}, {AttributeName: mark, KeyType: RANGE}]
          Projection: {ProjectionType: KEYS_ONLY}
";

fn text(size: usize) -> Value {
    json!({"S": "x".repeat(size)})
}

fn query(index: Option<&str>, condition: &str, hash: Value, range: Value) -> Value {
    let mut query = json!({
        "TableName": "rows", "KeyConditionExpression": condition,
        "ExpressionAttributeValues": {":h": hash, ":r": range},
    });
    if let Some(index) = index {
        query["IndexName"] = json!(index);
    }
    query
}

fn item(key: &str, more: &Value) -> Value {
    let mut item = json!({"pk": {"S": key}, "sk": {"S": key}});
    item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    item
}

async fn started() -> Stack {
    Stack::start(Options::in_memory(TEMPLATE)).await.unwrap()
}

/// Returns the status, and the type and the message of an error.
async fn call(stack: &Stack, operation: &str, body: &Value) -> (u16, String, Value) {
    let scope = "test/20260101/us-east-1/dynamodb/aws4_request";
    let credential = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    let request = reqwest::Client::builder().no_proxy().build().unwrap().post(stack.front_url());
    let request = request.header("authorization", credential).header("x-amz-date", "20260101T000000Z");
    let request = request.header("x-amz-target", format!("DynamoDB_20120810.{operation}"));
    let response = request.header("content-type", "application/x-amz-json-1.0").body(body.to_string()).send();
    let response = response.await.unwrap();
    let status = response.status().as_u16();
    let answer: Value = response.json().await.unwrap();
    let kind = answer["__type"].as_str().unwrap_or_default().rsplit('#').next().unwrap_or_default().to_owned();
    (status, kind, answer)
}

fn refused(answered: &(u16, String, Value), message: &str) {
    let (status, kind, answer) = answered;
    assert_eq!((*status, kind.as_str()), (400, "ValidationException"), "{answer}");
    assert_eq!(answer["message"], message);
}

#[tokio::test]
async fn a_key_condition_may_not_be_longer_than_a_key() {
    let stack = started().await;
    for (index, hash, range) in [(None, "pk", "sk"), (Some("by-time"), "wake", "wake_at")] {
        for condition in ["{} > :r", "{} BETWEEN :h AND :r", "begins_with({}, :r)", "({}>=:r)", "{} = :r"] {
            let condition = format!("{hash} = :h AND {}", condition.replace("{}", range));
            let ask =
                async |hash, range| call(&stack, "Query", &query(index, &condition, text(hash), text(range))).await;
            assert_eq!(ask(1, 1_024).await.0, 200, "{condition}");
            refused(&ask(1, 1_025).await, RANGE_TOO_LONG);
        }
        let of_hash = |size| query(index, &format!("{hash} = :h AND {range} < :r"), text(size), text(1));
        assert_eq!(call(&stack, "Query", &of_hash(2_048)).await.0, 200);
        refused(&call(&stack, "Query", &of_hash(2_049)).await, HASH_TOO_LONG);
    }
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_key_condition_may_not_be_empty() {
    let stack = started().await;
    let of_table = "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain \
                    an empty string value. Key: sk";
    let of_index = "One or more parameter values are not valid. A value specified for a secondary index key is not \
                    supported. The AttributeValue for a key attribute cannot contain an empty string value. \
                    IndexName: by-time, IndexKey: wake_at";
    let named = [(None, "pk", "sk", of_table), (Some("by-time"), "wake", "wake_at", of_index)];
    for (index, hash, range, message) in named {
        for condition in ["{} > :r", "{} <= :r", "begins_with({}, :r)", "{} = :r", "{} BETWEEN :r AND :h"] {
            let condition = format!("{hash} = :h AND {}", condition.replace("{}", range));
            refused(&call(&stack, "Query", &query(index, &condition, text(1), text(0))).await, message);
        }
        let upper = format!("{hash} = :h AND {range} BETWEEN :h AND :r");
        let (status, kind, answer) = call(&stack, "Query", &query(index, &upper, text(1), text(0))).await;
        assert_eq!((status, kind.as_str()), (400, "ValidationException"));
        assert!(answer.to_string().contains("upper bound to be greater"), "{answer}");
    }
    let empty = json!({"B": ""});
    let by_mark = query(Some("by-mark"), "wake = :h AND mark > :r", text(1), empty);
    let of_binary = of_index.replace("string", "binary").replace("by-time", "by-mark").replace("wake_at", "mark");
    refused(&call(&stack, "Query", &by_mark).await, &of_binary);
    stack.stop().await.unwrap();
}

/// Returns requests of every operation that leave a row with this attribute.
/// `key` is the key of the row.
fn writes(key: &str, name: &str, value: &Value) -> Vec<(&'static str, Value)> {
    let put = json!({"TableName": "rows", "Item": item(key, &json!({name: value}))});
    let update = |expression: &str| {
        json!({
            "TableName": "rows", "Key": item(key, &json!({})), "UpdateExpression": expression,
            "ExpressionAttributeNames": {"#a": name}, "ExpressionAttributeValues": {":v": value},
        })
    };
    let insert = format!("INSERT INTO \"rows\" VALUE {{'pk': '{key}', 'sk': ?, '{name}': ?}}");
    let insert = json!({"Statement": insert, "Parameters": [{"S": key}, value]});
    let set = format!("UPDATE \"rows\" SET {name} = ? WHERE pk = '{key}' AND sk = '{key}'");
    vec![
        ("PutItem", put.clone()),
        ("TransactWriteItems", json!({"TransactItems": [{"Put": put}]})),
        ("BatchWriteItem", json!({"RequestItems": {"rows": [{"PutRequest": {"Item": put["Item"]}}]}})),
        ("UpdateItem", update("SET #a = :v")),
        ("UpdateItem", update("SET #a = if_not_exists(#a, :v)")),
        ("TransactWriteItems", json!({"TransactItems": [{"Update": update("SET #a = :v")}]})),
        ("ExecuteStatement", insert.clone()),
        ("ExecuteTransaction", json!({"TransactStatements": [insert]})),
        ("ExecuteStatement", json!({"Statement": set, "Parameters": [value]})),
    ]
}

#[tokio::test]
async fn no_write_leaves_a_row_with_an_index_key_that_is_too_long() {
    let stack = started().await;
    let bytes = |size: usize| json!({"B": BASE64_STANDARD.encode("x".repeat(size))});
    for (name, longest, too_long, message) in [
        ("wake", text(2_048), text(2_049), HASH_TOO_LONG),
        ("wake_at", text(1_024), text(1_025), RANGE_TOO_LONG),
        ("wake_at", json!({"S": "é".repeat(512)}), json!({"S": "é".repeat(513)}), RANGE_TOO_LONG),
        ("mark", bytes(1_024), bytes(1_025), RANGE_TOO_LONG),
    ] {
        for (position, (operation, request)) in writes("a", name, &too_long).into_iter().enumerate() {
            let is_update_statement = position == 8;
            if is_update_statement {
                let there = json!({"TableName": "rows", "Item": item("a", &json!({}))});
                assert_eq!(call(&stack, "PutItem", &there).await.0, 200);
            }
            refused(&call(&stack, operation, &request).await, message);
            let get = json!({"TableName": "rows", "Key": item("a", &json!({})), "ConsistentRead": true});
            let (_, _, left) = call(&stack, "GetItem", &get).await;
            assert_eq!(left["Item"].get(name), None, "{operation} {position} wrote the row");
        }
        let delete = json!({"TableName": "rows", "Key": item("a", &json!({}))});
        for (operation, request) in writes("a", name, &longest) {
            let (status, _, answer) = call(&stack, operation, &request).await;
            assert_eq!(status, 200, "{operation} {request} {answer}");
            if operation != "ExecuteTransaction" {
                assert_eq!(call(&stack, "DeleteItem", &delete).await.0, 200);
            }
        }
        assert_eq!(call(&stack, "DeleteItem", &delete).await.0, 200);
    }
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn only_the_statement_with_the_long_key_fails() {
    let stack = started().await;
    let insert = |key: &str, size: usize| {
        let statement = format!("INSERT INTO \"rows\" VALUE {{'pk': '{key}', 'sk': 'a', 'wake_at': ?}}");
        json!({"Statement": statement, "Parameters": [text(size)]})
    };
    let batch = json!({"Statements": [insert("a", 1_025), insert("b", 1_024)]});
    let (status, _, answer) = call(&stack, "BatchExecuteStatement", &batch).await;
    let codes: Vec<_> = list(&answer["Responses"]).map(|response| &response["Error"]["Code"]).collect();
    assert_eq!((status, codes), (200, vec![&json!("ValidationError"), &Value::Null]));
    assert_eq!(answer["Responses"][0]["Error"]["Message"], RANGE_TOO_LONG);
    let (_, _, found) = call(&stack, "Scan", &json!({"TableName": "rows"})).await;
    assert_eq!((&found["Count"], &found["Items"][0]["pk"]["S"]), (&json!(1), &json!("b")));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn an_update_is_checked_after_its_condition_and_by_its_result() {
    let stack = started().await;
    let update = |expression: &str, condition: &str| {
        json!({
            "TableName": "rows", "Key": item("a", &json!({})), "UpdateExpression": expression,
            "ConditionExpression": condition, "ExpressionAttributeValues": {":v": text(1_025)},
        })
    };
    let failed = call(&stack, "UpdateItem", &update("SET wake_at = :v", "attribute_exists(pk)")).await;
    assert_eq!((failed.0, failed.1.as_str()), (400, "ConditionalCheckFailedException"));
    // A text of any length may be stored under another name, and one that is not stored is no key.
    let long = update("SET note = :v", "attribute_not_exists(pk)");
    assert_eq!(call(&stack, "UpdateItem", &long).await.0, 200);
    let mut copied = update("SET wake_at = note", "attribute_exists(pk)");
    copied.as_object_mut().unwrap().remove("ExpressionAttributeValues");
    refused(&call(&stack, "UpdateItem", &copied).await, RANGE_TOO_LONG);
    let kept = json!({"TableName": "rows", "Item": item("a", &json!({"wake_at": {"S": "there"}}))});
    assert_eq!(call(&stack, "PutItem", &kept).await.0, 200);
    let unused = update("SET wake_at = if_not_exists(wake_at, :v)", "attribute_exists(pk)");
    assert_eq!(call(&stack, "UpdateItem", &unused).await.0, 200);
    stack.stop().await.unwrap();
}

#[test]
fn names_of_attributes_and_unknown_tables_are_read() {
    let create = json!({
        "AttributeDefinitions": [],
        "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    });
    let (logical_id, name) = ("Rows".to_owned(), "rows".to_owned());
    let limits = KeyLimits::of(&[Table { logical_id, name, create, ttl_attribute: None, streams: false }]);
    let mut aliased = query(None, "#h = :h AND #r > :r", text(1), text(1_025));
    aliased["ExpressionAttributeNames"] = json!({"#h": "pk", "#r": "sk"});
    assert_eq!(limits.refusal("Query", &aliased).as_deref(), Some(RANGE_TOO_LONG));
    assert_eq!(limits.refusal("GetItem", &aliased), None);
    aliased["TableName"] = json!("other");
    assert_eq!(limits.refusal("Query", &aliased), None);
    assert_eq!(limits.triggers(), "", "the emulator checks the keys of tables");
}
