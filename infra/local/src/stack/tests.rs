//! Tests of a stack without functions: how its services behave for callers.

use serde_json::{Value, json};

use super::*;

const TEMPLATE: &str = "
Resources:
  Keys: {Type: AWS::SecretsManager::Secret, Properties: {Name: keys, SecretString: '{\"a\": 1}'}}
  Set: {Type: AWS::SES::ConfigurationSet, Properties: {Name: set}}
  Destination:
    Type: AWS::SES::ConfigurationSetEventDestination
    Properties:
      ConfigurationSetName: !Ref Set
      EventDestination:
        Enabled: true
        MatchingEventTypes: [SEND, BOUNCE, COMPLAINT]
        EventBridgeDestination:
          EventBusArn: !Sub 'arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:event-bus/default'
  Silent: {Type: AWS::SES::ConfigurationSet, Properties: {Name: silent}}
  All:
    Type: AWS::Events::Rule
    Properties: {EventPattern: {source: [aws.ses]}, Targets: [{Id: q, Arn: !GetAtt AllQueue.Arn}]}
  Bounces:
    Type: AWS::Events::Rule
    Properties:
      EventPattern: {source: [aws.ses], detail-type: [Email Bounced], detail: {mail: {tags: {'ses:configuration-set': [set]}}}}
      Targets: [{Id: q, Arn: !GetAtt BouncesQueue.Arn}]
  AllQueue: {Type: AWS::SQS::Queue, Properties: {QueueName: all}}
  BouncesQueue: {Type: AWS::SQS::Queue, Properties: {QueueName: bounces}}
";
const ARN: &str = "arn:aws:secretsmanager:us-east-1:000000000000:secret:keys-local0";

async fn started() -> Stack {
    Stack::start(Options::in_memory(TEMPLATE)).await.unwrap()
}

/// Makes a call as the SDK of that service does. Returns status and body; `None` if the reply is
/// lost.
async fn call(stack: &Stack, service: &str, path: &str, target: &str, body: &Value) -> Option<(u16, Value)> {
    let credential = format!("AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, Signature=0");
    let request = client().post(format!("{}{path}", stack.front_url())).header("authorization", credential);
    let request = request.header("x-amz-target", target).body(body.to_string());
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.ok()?))
}

async fn secret(stack: &Stack, operation: &str, body: Value) -> (u16, Value) {
    call(stack, "secretsmanager", "/", &format!("secretsmanager.{operation}"), &body).await.unwrap()
}

async fn control(stack: &Stack, path: &str, body: Value) -> (u16, Value) {
    let response = client().post(format!("{}{path}", stack.url())).json(&body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn a_secret_is_returned_to_callers_and_recorded_without_its_value() {
    let stack = started().await;
    let (status, got) = secret(&stack, "GetSecretValue", json!({"SecretId": ARN})).await;
    assert_eq!((status, &got["SecretString"]), (200, &json!("{\"a\": 1}")));
    let (status, none) = secret(&stack, "GetSecretValue", json!({"SecretId": "nothing"})).await;
    assert_eq!((status, &none["__type"]), (400, &json!("com.amazonaws#ResourceNotFoundException")));

    let put = json!({"SecretId": "keys", "SecretString": "canary-1"});
    assert_eq!(secret(&stack, "PutSecretValue", put).await.0, 200);
    assert_eq!(secret(&stack, "GetSecretValue", json!({"SecretId": ARN})).await.1["SecretString"], "canary-1");
    let (status, set) = control(&stack, "/_local/secrets", json!({"name": "Keys", "value": {"b": "canary-2"}})).await;
    assert_eq!((status, &set["name"]), (200, &json!("Keys")));
    let got = secret(&stack, "GetSecretValue", json!({"SecretId": ARN})).await.1;
    assert_eq!((&got["SecretString"], &got["VersionId"]), (&json!("{\"b\":\"canary-2\"}"), &set["version_id"]));
    assert_eq!(control(&stack, "/_local/secrets", json!({"name": "none", "value": 1})).await.0, 422);

    for path in ["", "/secrets", "/calls", "/logs", "/sent"] {
        let body = client().get(format!("{}/_local{path}", stack.url())).send().await.unwrap().text().await.unwrap();
        assert!(!body.contains("canary"), "{path} reveals a value");
    }
    let calls = stack.calls().since(0);
    assert_eq!(calls[0].actions[0].action, "secretsmanager:GetSecretValue");
    assert_eq!((calls[0].target.as_str(), calls[1].target.as_str()), ("keys", "nothing"));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_value_put_into_a_secret_survives_a_restart() {
    let directory = std::env::temp_dir().join(format!("umavez-stack-secrets-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let values = directory.join("values.json");
    std::fs::write(&values, r#"{"Keys": {"a": 2}, "Unknown": {}}"#).unwrap();
    let options = Options { data: Some(directory.join("data")), secrets: Some(values), ..Options::in_memory(TEMPLATE) };
    for (found, then) in [("{\"a\":2}", "one"), ("one", "two")] {
        let stack = Stack::start(options.clone()).await.unwrap();
        let got = secret(&stack, "GetSecretValue", json!({"SecretId": "keys"})).await.1;
        assert_eq!(got["SecretString"], found);
        stack.secrets().set("Keys", &json!(then)).unwrap();
        stack.stop().await.unwrap();
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn a_persisted_table_with_other_indexes_is_rejected() {
    let directory = std::env::temp_dir().join(format!("umavez-stack-indexes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let keys = |range: &str| {
        format!("KeySchema: [{{AttributeName: pk, KeyType: HASH}}, {{AttributeName: {range}, KeyType: RANGE}}]")
    };
    let table = |indexes: &[(&str, &str)]| {
        let defined = |name: &str| format!("{{AttributeName: {name}, AttributeType: S}}");
        let index = |(name, range): &(&str, &str)| {
            format!("{{IndexName: {name}, {}, Projection: {{ProjectionType: ALL}}}}", keys(range))
        };
        let names = ["pk", "sk"].into_iter().chain(indexes.iter().map(|(_, range)| *range));
        let definitions: Vec<_> = names.map(defined).collect();
        let local = match indexes {
            [] => String::new(),
            all => format!(", LocalSecondaryIndexes: [{}]", all.iter().map(index).collect::<Vec<_>>().join(", ")),
        };
        let template = format!(
            "Resources: {{T: {{Type: AWS::DynamoDB::Table, Properties: {{TableName: rows, \
             BillingMode: PAY_PER_REQUEST, AttributeDefinitions: [{}], {}{local}}}}}}}",
            definitions.join(", "),
            keys("sk"),
        );
        Options { data: Some(directory.clone()), ..Options::in_memory(template) }
    };
    let refused = "the table rows was made by another template; choose another directory with --data, or delete it";
    let start = async |indexes: &[(&str, &str)]| match Stack::start(table(indexes)).await {
        Ok(stack) => stack.stop().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(start(&[]).await, Ok(()));
    assert_eq!(start(&[("by-at", "at")]).await, Err(refused.to_owned()));
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(start(&[("by-at", "at"), ("by-name", "name")]).await, Ok(()));
    assert_eq!(start(&[("by-name", "name"), ("by-at", "at")]).await, Ok(()), "in any order");
    for other in [&[][..], &[("by-at", "at")], &[("by-at", "at"), ("by-name", "other")]] {
        assert_eq!(start(other).await, Err(refused.to_owned()), "{other:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

async fn send(stack: &Stack, to: &str, set: &str) -> Option<(u16, Value)> {
    let email = json!({
        "FromEmailAddress": "a@example.com", "Destination": {"ToAddresses": [to]}, "ConfigurationSetName": set,
        "Content": {"Simple": {"Subject": {"Data": "s"}}}, "EmailTags": [{"Name": "n", "Value": "v"}],
    });
    call(stack, "ses", "/v2/email/outbound-emails", "", &email).await
}

/// The queue and the event of every message since the last call: an export leaves the messages
/// hidden.
async fn published(stack: &Stack) -> Vec<(String, Value)> {
    let messages = stack.queues().export().await.unwrap();
    let event = |message: &Value| {
        let body = serde_json::from_str(message["body"].as_str().unwrap()).unwrap();
        (message["queue"].as_str().unwrap().to_owned(), body)
    };
    messages.iter().map(event).collect()
}

async fn kinds(stack: &Stack) -> Vec<(String, String)> {
    let kind = |(queue, event): (String, Value)| (queue, event["detail-type"].as_str().unwrap().to_owned());
    published(stack).await.into_iter().map(kind).collect()
}

fn sent_and_bounced() -> Vec<(String, String)> {
    let all = [("all", "Email Sent"), ("all", "Email Bounced"), ("bounces", "Email Bounced")];
    all.map(|(queue, kind)| (queue.to_owned(), kind.to_owned())).to_vec()
}

#[tokio::test]
async fn the_events_of_an_email_are_published_to_the_queues_of_the_rules() {
    let stack = started().await;
    let (_, answer) = send(&stack, "ana@example.com", "set").await.unwrap();
    // The email is also delivered, but the configuration set does not publish that event.
    let events = published(&stack).await;
    let [(queue, event)] = &events[..] else { panic!("expected one event: {events:?}") };
    assert_eq!(queue, "all");
    assert_eq!((&event["version"], &event["source"]), (&json!("0"), &json!("aws.ses")));
    assert_eq!(event["detail-type"], "Email Sent");
    assert_eq!(event["resources"], json!(["arn:aws:ses:us-east-1:000000000000:configuration-set/set"]));
    assert_eq!(event["detail"]["mail"]["messageId"], answer["MessageId"]);
    assert_eq!(event["detail"]["mail"]["tags"]["n"], json!(["v"]));

    send(&stack, "bounce+1@simulator.amazonses.com", "set").await.unwrap();
    assert_eq!(kinds(&stack).await, sent_and_bounced());
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn an_email_whose_reply_is_lost_was_sent_and_a_rejected_one_was_not() {
    let stack = started().await;
    let fault = |action: &str| {
        let fault = json!({"call": {"function": "test", "service": "ses", "action": action}});
        serde_json::from_value(fault).unwrap()
    };
    stack.add_fault(fault("drop_reply")).await.unwrap();
    assert_eq!(send(&stack, "bounce@simulator.amazonses.com", "set").await, None);
    assert_eq!(kinds(&stack).await, sent_and_bounced());
    stack.clear_faults();
    stack.add_fault(fault("throttle")).await.unwrap();
    assert_eq!(send(&stack, "ana@example.com", "set").await.unwrap().0, 429);
    let empty = json!({"ConfigurationSetName": "set"});
    assert_eq!(call(&stack, "ses", "/v2/email/outbound-emails", "", &empty).await.unwrap().0, 400);
    assert_eq!(kinds(&stack).await, []);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn no_event_is_published_without_a_destination_or_while_events_are_switched_off() {
    let stack = started().await;
    for set in ["silent", "unknown"] {
        assert_eq!(send(&stack, "ana@example.com", set).await.unwrap().0, 200);
    }
    assert_eq!(control(&stack, "/_local/ses", json!({"events": false})).await, (200, json!({"events": false})));
    send(&stack, "ana@example.com", "set").await.unwrap();
    assert_eq!(kinds(&stack).await, []);
    stack.email_events().switch(true);
    send(&stack, "ana@example.com", "set").await.unwrap();
    assert_eq!(kinds(&stack).await.len(), 1);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_rule_with_an_unsupported_pattern_is_rejected() {
    let template = TEMPLATE.replace("{source: [aws.ses]}", "{source: [{wildcard: 'aws.*'}]}");
    let error = Stack::start(Options::in_memory(template)).await.err().unwrap().to_string();
    assert_eq!(error, r#"the local stack does not know the filter matcher {"wildcard":"aws.*"}"#);
}
