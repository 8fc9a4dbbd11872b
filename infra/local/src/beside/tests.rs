//! A stack with a second emulator beside it, which can be changed behind its back.

use serde_json::json;

use super::*;
use crate::clock::Clock;
use crate::dynamo::Dynamo;
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
      TimeToLiveSpecification: {AttributeName: expires_at, Enabled: true}
      StreamSpecification: {StreamViewType: NEW_AND_OLD_IMAGES}
";

async fn second() -> Dynamo {
    Dynamo::start(None, &[], Clock::new(0), &[], None).await.unwrap()
}

async fn started(second: &Dynamo, change: impl FnOnce(&mut Options, &mut Settings)) -> Stack {
    let mut settings = Settings { url: url(second), answers: false, log: None };
    let mut options = Options::in_memory(TEMPLATE);
    change(&mut options, &mut settings);
    Stack::start(Options { beside: Some(settings), ..options }).await.unwrap()
}

fn url(dynamo: &Dynamo) -> String {
    format!("http://{}", dynamo.address)
}

async fn call(url: &str, operation: &str, body: &Value) -> Value {
    let scope = "test/20260101/us-east-1/dynamodb/aws4_request";
    let credential = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    let request = reqwest::Client::builder().no_proxy().build().unwrap().post(url).header("authorization", credential);
    let request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-date", "20260101T000000Z");
    let request = request.header("x-amz-target", format!("DynamoDB_20120810.{operation}"));
    request.body(body.to_string()).send().await.unwrap().json().await.unwrap()
}

fn put(key: &str, text: &str) -> Value {
    json!({"TableName": "rows", "Item": {"pk": {"S": key}, "text": {"S": text}}})
}

fn get(key: &str) -> Value {
    json!({"TableName": "rows", "Key": {"pk": {"S": key}}})
}

/// Returns the operations of the differences.
fn differences(stack: &Stack) -> Vec<String> {
    let differences = stack.beside().unwrap().differences();
    differences.iter().map(|difference| difference["operation"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn both_get_every_call_and_a_planted_difference_is_reported() {
    let second = second().await;
    let stack = started(&second, |_, _| {}).await;
    call(stack.front_url(), "PutItem", &put("a", "first")).await;
    assert_eq!(call(&url(&second), "GetItem", &get("a")).await["Item"]["text"]["S"], "first");
    assert_eq!(call(stack.front_url(), "GetItem", &get("a")).await["Item"]["text"]["S"], "first");
    assert!(differences(&stack).is_empty());

    call(&url(&second), "PutItem", &put("a", "planted")).await;
    assert_eq!(call(stack.front_url(), "GetItem", &get("a")).await["Item"]["text"]["S"], "first");
    assert_eq!(differences(&stack), ["GetItem"]);
    let difference = &stack.beside().unwrap().differences()[0];
    assert_eq!(difference["request"], get("a"));
    assert_eq!(difference["different"]["emulator"]["Item"]["text"]["S"], "first");
    assert_eq!(difference["different"]["beside"]["Item"]["text"]["S"], "planted");

    call(&url(&second), "DeleteItem", &get("a")).await;
    let mut only_if_new = put("a", "second");
    only_if_new["ConditionExpression"] = json!("attribute_not_exists(pk)");
    call(stack.front_url(), "PutItem", &only_if_new).await;
    assert_eq!(differences(&stack), ["GetItem", "PutItem"]);
    assert_eq!(stack.beside().unwrap().differences()[1]["statuses"], json!([400, 200]));
    stack.stop().await.unwrap();
    let tables = call(&url(&second), "ListTables", &json!({})).await;
    assert_eq!(tables["TableNames"], json!([]), "a stack that stops leaves no tables");
}

#[tokio::test]
async fn a_second_dynamodb_that_ended_is_a_difference() {
    let second = second().await;
    let stack = started(&second, |_, _| {}).await;
    second.stop();
    call(stack.front_url(), "PutItem", &put("a", "first")).await;
    assert_eq!(differences(&stack), ["PutItem"]);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn the_second_dynamodb_can_answer() {
    let second = second().await;
    let stack = started(&second, |_, settings| settings.answers = true).await;
    call(stack.front_url(), "PutItem", &put("a", "first")).await;
    call(&url(&second), "PutItem", &put("a", "planted")).await;
    assert_eq!(call(stack.front_url(), "GetItem", &get("a")).await["Item"]["text"]["S"], "planted");
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn rows_that_ttl_removes_are_removed_from_both() {
    let second = second().await;
    let stack = started(&second, |_, _| {}).await;
    for (key, expires_at) in [("old", "1"), ("new", "99999999999")] {
        let mut put = put(key, "x");
        put["Item"]["expires_at"] = json!({"N": expires_at});
        call(stack.front_url(), "PutItem", &put).await;
    }
    assert_eq!(stack.sweep_ttl().await.unwrap(), 1);
    let left = call(&url(&second), "Scan", &json!({"TableName": "rows"})).await;
    assert_eq!((&left["Count"], &left["Items"][0]["pk"]["S"]), (&json!(1), &json!("new")));
    assert!(differences(&stack).is_empty());
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn persisted_rows_are_copied_at_the_start() {
    let directory = std::env::temp_dir().join(format!("umavez-beside-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let with_data = |options: &mut Options, _: &mut Settings| options.data = Some(directory.join("data"));
    let first = second().await;
    let stack = started(&first, with_data).await;
    for number in 0..30 {
        call(stack.front_url(), "PutItem", &put(&format!("row-{number}"), "x")).await;
    }
    stack.stop().await.unwrap();
    let second = second().await;
    let stack = started(&second, with_data).await;
    let found = call(stack.front_url(), "Scan", &json!({"TableName": "rows"})).await;
    assert_eq!(found["Count"], 30);
    assert!(differences(&stack).is_empty());
    stack.stop().await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn every_call_is_in_the_log_of_its_stack() {
    let directory = std::env::temp_dir().join(format!("umavez-beside-log-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let second = second().await;
    let stack = started(&second, |_, settings| settings.log = Some(directory.clone())).await;
    call(stack.front_url(), "PutItem", &put("a", "first")).await;
    call(&url(&second), "DeleteItem", &get("a")).await;
    call(stack.front_url(), "GetItem", &get("a")).await;
    stack.stop().await.unwrap();
    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["stack"].as_str().unwrap().ends_with("every_call_is_in_the_log_of_its_stack"));
    assert_eq!((&lines[1]["operation"], &lines[1]["statuses"]), (&json!("PutItem"), &json!([200, 200])));
    assert_eq!(lines[1].get("different"), None);
    assert_eq!(lines[2]["different"]["emulator"]["Item"]["text"]["S"], "first");
    assert_eq!(lines[2]["different"]["beside"].get("Item"), None);
    assert_eq!(lines.len(), 3);
    std::fs::remove_dir_all(&directory).unwrap();
}
