//! Calls to DynamoDB as the SDK makes them: what is noted of them, and what can go wrong.

use serde_json::{Value, json};

use crate::calls::{Call, Needed};
use crate::{Options, Stack};

const TEMPLATE: &str = "
Resources:
  Rows:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: rows
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: pk, AttributeType: S}]
      KeySchema: [{AttributeName: pk, KeyType: HASH}]
";

async fn started() -> Stack {
    Stack::start(Options::in_memory(TEMPLATE)).await.unwrap()
}

/// Status and body, or nothing if the reply is lost.
async fn call(stack: &Stack, operation: &str, body: &Value) -> Option<(u16, Value)> {
    let scope = "test/20260101/us-east-1/dynamodb/aws4_request";
    let credential = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(stack.front_url()).header("authorization", credential).body(body.to_string());
    let request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-date", "20260101T000000Z");
    let request = request.header("x-amz-target", format!("DynamoDB_20120810.{operation}"));
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.ok()?))
}

/// Inserts rows of so many bytes; the code of each statement's error, or `null`.
async fn insert(stack: &Stack, rows: &[(&str, usize)]) -> Option<Vec<Value>> {
    let statement = |(key, size): &(&str, usize)| {
        let parameters = json!([{"S": key}, {"S": "x".repeat(*size)}]);
        json!({"Statement": "INSERT INTO \"rows\" VALUE {'pk': ?, 'a': ?}", "Parameters": parameters})
    };
    let batch = json!({"Statements": rows.iter().map(statement).collect::<Vec<_>>()});
    let (status, answer) = call(stack, "BatchExecuteStatement", &batch).await?;
    let responses = answer["Responses"].as_array().filter(|_| status == 200)?;
    Some(responses.iter().map(|response| response["Error"]["Code"].clone()).collect())
}

/// The keys that are there, of those that are asked for.
async fn found(stack: &Stack, keys: &[&str]) -> Vec<String> {
    let keys: Vec<_> = keys.iter().map(|key| json!({"pk": {"S": key}})).collect();
    let (_, answer) = call(stack, "BatchGetItem", &json!({"RequestItems": {"rows": {"Keys": keys}}})).await.unwrap();
    let rows = answer["Responses"]["rows"].as_array().unwrap();
    let mut found: Vec<_> = rows.iter().map(|row| row["pk"]["S"].as_str().unwrap().to_owned()).collect();
    found.sort();
    found
}

fn last(stack: &Stack) -> Call {
    stack.calls().since(0).pop().unwrap()
}

fn needed(action: &str) -> Vec<Needed> {
    vec![Needed { action: action.to_owned(), on: "rows".to_owned() }]
}

#[tokio::test]
async fn a_batch_is_noted_with_its_table_its_actions_and_its_cost() {
    let stack = started().await;
    assert_eq!(insert(&stack, &[("a", 10), ("b", 2_000)]).await.unwrap(), [Value::Null, Value::Null]);
    let noted = last(&stack);
    assert_eq!((noted.operation.as_str(), noted.target.as_str()), ("BatchExecuteStatement", "rows"));
    assert_eq!((noted.actions, noted.read_units, noted.write_units), (needed("dynamodb:PartiQLInsert"), 0.0, 3.0));

    assert_eq!(insert(&stack, &[("a", 10), ("c", 10)]).await.unwrap(), [json!("DuplicateItem"), Value::Null]);
    assert_eq!(last(&stack).write_units, 2.0, "a refused row costs too");
    assert_eq!(insert(&stack, &[("a", 10), ("b", 10)]).await.unwrap(), ["DuplicateItem", "DuplicateItem"]);
    assert!(last(&stack).write_units >= 2.0, "also where none was written");

    assert_eq!(found(&stack, &["a", "b", "x"]).await, ["a", "b"]);
    let noted = last(&stack);
    assert_eq!((noted.operation.as_str(), noted.target.as_str()), ("BatchGetItem", "rows"));
    assert_eq!((noted.actions, noted.write_units), (needed("dynamodb:BatchGetItem"), 0.0));
    assert!(noted.read_units >= 1.0);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn faults_strike_a_batch_of_statements_as_any_other_call() {
    let stack = started().await;
    let fault = |action: &str| {
        let call = json!({"operation": "BatchExecuteStatement", "target": "rows", "action": action, "delay_ms": 1});
        serde_json::from_value(json!({"call": call})).unwrap()
    };
    for (action, key, answered, written) in [
        ("throttle", "a", None, false),
        ("drop_reply", "b", None, true),
        ("kill_before", "c", None, false),
        ("kill_after", "d", None, true),
        ("error_after", "e", None, true),
        ("delay_before", "f", Some(vec![Value::Null]), true),
    ] {
        stack.add_fault(fault(action)).await.unwrap();
        assert_eq!(insert(&stack, &[(key, 10)]).await, answered, "{action}");
        assert_eq!(last(&stack).fault.as_deref(), Some(action));
        assert_eq!(found(&stack, &[key]).await.len(), usize::from(written), "{action}");
    }
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn of_a_batch_that_is_throttled_in_part_the_first_half_happens() {
    let stack = started().await;
    let fault = json!({"call": {"operation": "BatchExecuteStatement", "times": 2, "action": "partial"}});
    stack.add_fault(serde_json::from_value(fault).unwrap()).await.unwrap();
    let throttled = json!("ThrottlingError");
    let answered = insert(&stack, &[("a", 10), ("b", 10), ("c", 10)]).await.unwrap();
    assert_eq!(answered, [Value::Null, throttled.clone(), throttled.clone()]);
    let noted = last(&stack);
    assert_eq!((noted.status, noted.fault.as_deref(), noted.write_units), (200, Some("partial"), 1.0));
    assert_eq!(insert(&stack, &[("d", 10)]).await.unwrap(), [throttled]);
    assert_eq!(found(&stack, &["a", "b", "c", "d"]).await, ["a"]);
    assert_eq!(insert(&stack, &[("b", 10), ("c", 10)]).await.unwrap(), [Value::Null, Value::Null]);
    stack.stop().await.unwrap();
}
