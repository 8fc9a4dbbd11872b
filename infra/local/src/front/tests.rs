//! Calls to DynamoDB as the SDK makes them, and to a responder: how they are recorded, and how
//! faults affect them.

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
  Sorted:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: sorted
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions:
        - {AttributeName: pk, AttributeType: S}
        - {AttributeName: sk, AttributeType: S}
        - {AttributeName: at, AttributeType: N}
      KeySchema: [{AttributeName: pk, KeyType: HASH}, {AttributeName: sk, KeyType: RANGE}]
      LocalSecondaryIndexes:
        - IndexName: by-time
          KeySchema: [{AttributeName: pk, KeyType: HASH}, {AttributeName: at, KeyType: RANGE}]
          Projection: {ProjectionType: KEYS_ONLY}
";

async fn started() -> Stack {
    Stack::start(Options::in_memory(TEMPLATE)).await.unwrap()
}

/// Returns status and body; `None` if the reply is lost.
async fn call(stack: &Stack, operation: &str, body: &Value) -> Option<(u16, Value)> {
    let scope = "test/20260101/us-east-1/dynamodb/aws4_request";
    let credential = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    let request = client().post(stack.front_url()).header("authorization", credential).body(body.to_string());
    let request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-date", "20260101T000000Z");
    let request = request.header("x-amz-target", format!("DynamoDB_20120810.{operation}"));
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.ok()?))
}

/// Inserts rows of these sizes. Returns the error code of each statement, or `null`.
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

/// Returns those of the keys that exist.
async fn found(stack: &Stack, keys: &[&str]) -> Vec<String> {
    let keys: Vec<_> = keys.iter().map(|key| json!({"pk": {"S": key}})).collect();
    let (_, answer) = call(stack, "BatchGetItem", &json!({"RequestItems": {"rows": {"Keys": keys}}})).await.unwrap();
    let rows = answer["Responses"]["rows"].as_array().unwrap();
    let mut found: Vec<_> = rows.iter().map(|row| row["pk"]["S"].as_str().unwrap().to_owned()).collect();
    found.sort();
    found
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn last(stack: &Stack) -> Call {
    stack.calls().since(0).pop().unwrap()
}

fn needed(action: &str) -> Vec<Needed> {
    vec![Needed { action: action.to_owned(), on: "rows".to_owned() }]
}

#[tokio::test]
async fn a_batch_is_recorded_with_its_table_its_actions_and_its_cost() {
    let stack = started().await;
    assert_eq!(insert(&stack, &[("a", 10), ("b", 2_000)]).await.unwrap(), [Value::Null, Value::Null]);
    let noted = last(&stack);
    assert_eq!((noted.operation.as_str(), noted.target.as_str()), ("BatchExecuteStatement", "rows"));
    assert_eq!((noted.actions, noted.read_units, noted.write_units), (needed("dynamodb:PartiQLInsert"), 0.0, 3.0));

    assert_eq!(insert(&stack, &[("a", 10), ("c", 10)]).await.unwrap(), [json!("DuplicateItem"), Value::Null]);
    assert_eq!(last(&stack).write_units, 2.0, "a rejected row costs too");
    assert_eq!(insert(&stack, &[("a", 10), ("b", 10)]).await.unwrap(), ["DuplicateItem", "DuplicateItem"]);
    assert!(last(&stack).write_units >= 2.0, "even if no row was written");

    assert_eq!(found(&stack, &["a", "b", "x"]).await, ["a", "b"]);
    let noted = last(&stack);
    assert_eq!((noted.operation.as_str(), noted.target.as_str()), ("BatchGetItem", "rows"));
    assert_eq!((noted.actions, noted.write_units), (needed("dynamodb:BatchGetItem"), 0.0));
    assert!(noted.read_units >= 1.0);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn faults_affect_a_batch_of_statements_like_any_other_call() {
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
async fn a_partially_throttled_batch_carries_out_its_first_half() {
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

fn sorted(key: &str, at: Option<u32>) -> Value {
    let mut row = json!({"pk": {"S": "p"}, "sk": {"S": key}});
    if let Some(at) = at {
        row["at"] = json!({"N": at.to_string()});
    }
    row
}

/// Returns the keys in the order of the local index, newest first. `more` is added to the query.
async fn newest(stack: &Stack, more: Value) -> Vec<String> {
    let mut query = json!({
        "TableName": "sorted", "IndexName": "by-time", "KeyConditionExpression": "pk = :p",
        "ExpressionAttributeValues": {":p": {"S": "p"}}, "ScanIndexForward": false,
    });
    query.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = call(stack, "Query", &query).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let rows = answer["Items"].as_array().unwrap();
    rows.iter().map(|row| row["sk"]["S"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_local_index_sorts_its_rows_and_follows_them() {
    let stack = started().await;
    for (key, at) in [("a", Some(10)), ("b", Some(9)), ("c", Some(30)), ("d", None)] {
        let put = json!({"TableName": "sorted", "Item": sorted(key, at)});
        assert_eq!(call(&stack, "PutItem", &put).await.unwrap().0, 200);
    }
    assert_eq!(newest(&stack, json!({})).await, ["c", "a", "b"]);
    assert_eq!(last(&stack).actions[0].on, "sorted/index/by-time");
    assert_eq!(last(&stack).read_units, 0.5);
    assert_eq!(newest(&stack, json!({"Limit": 1})).await, ["c"]);
    assert_eq!(newest(&stack, json!({"ExclusiveStartKey": sorted("c", Some(30))})).await, ["a", "b"]);

    let put = json!({"Put": {"TableName": "sorted", "Item": sorted("b", Some(40))}});
    let delete = json!({"Delete": {"TableName": "sorted", "Key": sorted("a", None)}});
    let both = json!({"TransactItems": [put, delete]});
    assert_eq!(call(&stack, "TransactWriteItems", &both).await.unwrap().0, 200);
    assert_eq!(newest(&stack, json!({"ConsistentRead": true})).await, ["b", "c"]);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn the_cost_of_a_write_includes_its_local_index() {
    let put = |key: &str, at| json!({"TableName": "sorted", "Item": sorted(key, at)});
    let transaction = |key: &str, at| json!({"TransactItems": [{"Put": put(key, at)}]});
    let insert = |key: &str, at: &str| {
        let text = format!("INSERT INTO \"sorted\" VALUE {{'pk': 'p', 'sk': '{key}'{at}}}");
        json!({"Statements": [{"Statement": text}]})
    };
    for asked in [None, Some("TOTAL"), Some("INDEXES")] {
        let stack = started().await;
        for (operation, mut request, units) in [
            ("PutItem", put("a", None), 1.0),
            ("PutItem", put("b", Some(1)), 2.0),
            // The old index entry and the new one.
            ("PutItem", put("b", Some(2)), 3.0),
            ("DeleteItem", json!({"TableName": "sorted", "Key": sorted("b", None)}), 2.0),
            // A transaction doubles the cost of the table but not of the index.
            ("TransactWriteItems", transaction("c", None), 2.0),
            ("TransactWriteItems", transaction("d", Some(1)), 3.0),
            ("BatchExecuteStatement", insert("e", ""), 1.0),
            ("BatchExecuteStatement", insert("f", ", 'at': 1"), 2.0),
        ] {
            if let Some(asked) = asked {
                request["ReturnConsumedCapacity"] = json!(asked);
            }
            let (status, answer) = call(&stack, operation, &request).await.unwrap();
            assert_eq!(status, 200, "{answer}");
            assert_eq!((last(&stack).write_units, last(&stack).read_units), (units, 0.0), "{operation} {request}");
        }
        stack.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_frozen_local_index_lags_except_for_consistent_reads() {
    let stack = started().await;
    let put = |key: &str, at| json!({"TableName": "sorted", "Item": sorted(key, Some(at))});
    assert_eq!(call(&stack, "PutItem", &put("a", 1)).await.unwrap().0, 200);
    stack.add_fault(serde_json::from_value(json!({"frozen_indexes": {}})).unwrap()).await.unwrap();
    assert_eq!(call(&stack, "PutItem", &put("b", 2)).await.unwrap().0, 200);
    assert_eq!(newest(&stack, json!({})).await, ["a"]);
    assert_eq!(newest(&stack, json!({"ConsistentRead": true})).await, ["b", "a"]);
    stack.clear_faults();
    assert_eq!(newest(&stack, json!({})).await, ["b", "a"]);
    stack.stop().await.unwrap();
}

/// Calls the responder as a function would. Returns status and body; `None` if the reply is lost.
async fn ask(stack: &Stack, path: &str) -> Option<(u16, Value)> {
    let url = format!("{}{path}", super::provider_base(stack.front_url(), "test"));
    let body = json!({"batch_id": "b", "messages": [{"text": "olá"}, {"kind": "image"}]});
    let response = client().post(url).json(&body).send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.ok()?))
}

fn asked(stack: &Stack) -> usize {
    stack.catcher().sent(Some("responder"), Some("b")).len()
}

#[tokio::test]
async fn a_responder_answers_at_every_path_and_is_listed_only_on_request() {
    let stack = started().await;
    for path in ["responder", "responder/", "responder/a/b?c=d"] {
        assert_eq!(ask(&stack, path).await.unwrap(), (200, json!({"reply": "olá\n[image]"})), "{path}");
        let noted = last(&stack);
        let named = (noted.caller.as_str(), noted.service.as_str(), noted.operation.as_str(), noted.target.as_str());
        assert_eq!(named, ("test", "responder", "Ask", ""), "{path}");
    }
    let listed = async |query: &str| {
        let answer = client().get(format!("{}/_local/sent{query}", stack.url())).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["sent"].as_array().unwrap().len()
    };
    assert_eq!((listed("").await, listed("?channel=responder").await), (0, 3));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn faults_affect_a_responder_like_any_other_provider() {
    let stack = started().await;
    let fault = |action: &str| {
        let answer = json!({"status": 503, "headers": {"retry-after": "1"}, "body": {"later": true}});
        let call = json!({
            "function": "test", "service": "responder", "operation": "Ask",
            "action": action, "delay_ms": 1, "answer": answer,
        });
        serde_json::from_value(json!({"call": call})).unwrap()
    };
    let replied = || Some((200, json!({"reply": "olá\n[image]"})));
    for (action, answered, reached) in [
        ("answer", Some((503, json!({"later": true}))), 0),
        ("throttle", Some((429, json!({"error": "too many requests"}))), 0),
        ("kill_before", None, 0),
        ("kill_after", None, 1),
        ("drop_reply", None, 1),
        ("delay_before", replied(), 1),
        ("delay_after", replied(), 1),
    ] {
        let before = asked(&stack);
        stack.add_fault(fault(action)).await.unwrap();
        assert_eq!(ask(&stack, "responder").await, answered, "{action}");
        assert_eq!(last(&stack).fault.as_deref(), Some(action));
        assert_eq!(asked(&stack) - before, reached, "{action}");
    }
    assert_eq!(ask(&stack, "responder").await, replied());
    stack.stop().await.unwrap();
}
