//! Tests of buckets, through the SDK and through presigned URLs.

use std::time::{Duration, UNIX_EPOCH};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use umavez_platform::aws::{Aws, PresignedPost};

use super::presigned::from_basic;
use crate::calls::Needed;
use crate::faults::Fault;
use crate::{Options, Stack};

const TEMPLATE: &str = "
Resources:
  Files:
    Type: AWS::S3::Bucket
    Properties:
      BucketName: files
      NotificationConfiguration:
        EventBridgeConfiguration: {EventBridgeEnabled: true}
        QueueConfigurations:
          - Event: s3:ObjectCreated:*
            Queue: !GetAtt Told.Arn
            Filter: {S3Key: {Rules: [{Name: prefix, Value: in/}, {Name: suffix, Value: .csv}]}}
          - Event: s3:ObjectCreated:*
            Queue: !GetAtt Others.Arn
            Filter: {S3Key: {Rules: [{Name: prefix, Value: back/}]}}
      CorsConfiguration:
        CorsRules: [{AllowedOrigins: ['https://*.example.com'], AllowedMethods: [PUT, POST], AllowedHeaders: ['*'],
          ExposedHeaders: [ETag], MaxAge: 60}]
      LifecycleConfiguration: {Rules: [{Status: Enabled, Prefix: in/, ExpirationInDays: 2}]}
  Other: {Type: AWS::S3::Bucket, Properties: {BucketName: other}}
  Told: {Type: AWS::SQS::Queue, Properties: {QueueName: told}}
  Others: {Type: AWS::SQS::Queue, Properties: {QueueName: others}}
  Ruled: {Type: AWS::SQS::Queue, Properties: {QueueName: ruled}}
  Posts:
    Type: AWS::Events::Rule
    Properties:
      EventPattern: {source: [aws.s3], detail-type: [Object Created], detail: {reason: [POST Object], bucket: {name: [files]}}}
      Targets: [{Id: q, Arn: !GetAtt Ruled.Arn}]
";

async fn started() -> (Stack, Client, Aws) {
    let stack = Stack::start(Options::in_memory(TEMPLATE)).await.unwrap();
    let aws = Aws::at_endpoint(stack.front_url(), "test");
    (stack, aws.s3(), aws)
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

async fn put(client: &Client, key: &str, body: &[u8]) -> String {
    let put = client.put_object().bucket("files").key(key).body(ByteStream::from(body.to_vec()));
    put.send().await.unwrap().e_tag.unwrap()
}

async fn get(client: &Client, key: &str) -> Option<Vec<u8>> {
    let got = client.get_object().bucket("files").key(key).send().await;
    match got {
        Ok(got) => Some(got.body.collect().await.unwrap().to_vec()),
        Err(error) if error.as_service_error().is_some_and(|error| error.is_no_such_key()) => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn status<E: std::fmt::Debug>(result: Result<impl std::fmt::Debug, SdkError<E>>) -> u16 {
    result.unwrap_err().raw_response().unwrap().status().as_u16()
}

/// Returns queue and body of every message since the last call.
async fn messages(stack: &Stack) -> Vec<(String, Value)> {
    let read = |message: &Value| {
        let body = serde_json::from_str(message["body"].as_str().unwrap()).unwrap();
        (message["queue"].as_str().unwrap().to_owned(), body)
    };
    stack.queues().export().await.unwrap().iter().map(read).collect()
}

#[tokio::test]
async fn an_object_is_put_listed_read_in_ranges_and_deleted() {
    let (stack, client, _) = started().await;
    let first = put(&client, "in/a b.csv", b"0123456789").await;
    put(&client, "out", b"x").await;
    let listed = client.list_objects_v2().bucket("files").prefix("in/").send().await.unwrap();
    let keys: Vec<_> = listed.contents().iter().map(|object| (object.key().unwrap(), object.size().unwrap())).collect();
    assert_eq!(keys, [("in/a b.csv", 10)]);

    let object = || client.get_object().bucket("files").key("in/a b.csv");
    let part = object().range("bytes=2-4").if_match(&first).send().await.unwrap();
    assert_eq!((part.content_range(), part.e_tag()), (Some("bytes 2-4/10"), Some(first.as_str())));
    assert_eq!(part.body.collect().await.unwrap().to_vec(), b"234");
    assert_eq!(status(object().range("bytes=10-").send().await), 416);

    let second = put(&client, "in/a b.csv", b"other").await;
    assert_ne!(first, second);
    assert_eq!(status(object().range("bytes=2-4").if_match(&first).send().await), 412);
    assert_eq!(status(object().if_none_match(&second).send().await), 304);
    let head = client.head_object().bucket("files").key("in/a b.csv").send().await.unwrap();
    assert_eq!((head.content_length(), head.e_tag()), (Some(5), Some(second.as_str())));
    let only_new =
        client.put_object().bucket("files").key("out").if_none_match("*").body(ByteStream::from_static(b"y"));
    assert_eq!(status(only_new.send().await), 412);

    client.delete_object().bucket("files").key("in/a b.csv").send().await.unwrap();
    assert_eq!((get(&client, "in/a b.csv").await, get(&client, "in").await), (None, None));
    assert_eq!(get(&client, "out").await.unwrap(), b"x");
    assert_eq!(status(client.get_object().bucket("none").key("a").send().await), 404);
    assert_eq!(status(client.create_bucket().bucket("mine").send().await), 501);
    assert_eq!(status(client.get_object().bucket("files").key("../other/x").send().await), 400);

    let calls = stack.calls().since(0);
    let needed = |action: &str, on: &str| vec![Needed { action: action.into(), on: on.into() }];
    assert_eq!((calls[0].caller.as_str(), calls[0].operation.as_str()), ("test", "PutObject"));
    assert_eq!((calls[0].target.as_str(), &calls[0].actions), ("files", &needed("s3:PutObject", "files/in/a b.csv")));
    assert_eq!((calls[2].operation.as_str(), &calls[2].actions), ("ListObjectsV2", &needed("s3:ListBucket", "files")));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn an_upload_in_parts_is_one_object_and_one_event() {
    let (stack, client, _) = started().await;
    let begun = client.create_multipart_upload().bucket("files").key("in/big.csv").send().await.unwrap();
    let id = begun.upload_id().unwrap();
    let mut parts = Vec::new();
    for (number, body) in [(1, vec![b'a'; 5 << 20]), (2, b"end".to_vec())] {
        let part = client.upload_part().bucket("files").key("in/big.csv").upload_id(id).part_number(number);
        let tag = part.body(ByteStream::from(body)).send().await.unwrap().e_tag.unwrap();
        parts.push(CompletedPart::builder().part_number(number).e_tag(tag).build());
    }
    assert_eq!(messages(&stack).await, []);
    let all = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = client.complete_multipart_upload().bucket("files").key("in/big.csv").upload_id(id);
    complete.multipart_upload(all).send().await.unwrap();
    let sent = messages(&stack).await;
    let [(queue, event)] = &sent[..] else { panic!("one event: {sent:?}") };
    assert_eq!(
        (queue.as_str(), &event["Records"][0]["eventName"]),
        ("told", &json!("ObjectCreated:CompleteMultipartUpload"))
    );
    assert_eq!(event["Records"][0]["s3"]["object"]["size"], (5 << 20) + 3);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_queue_gets_the_notification_of_an_object_in_the_format_of_s3() {
    let (stack, client, _) = started().await;
    let tag = put(&client, "in/a b+ç.csv", b"12345").await;
    put(&client, "in/a.txt", b"").await;
    put(&client, "out/a.csv", b"").await;
    let sent = messages(&stack).await;
    let [(queue, event)] = &sent[..] else { panic!("one event: {sent:?}") };
    let record = &event["Records"][0];
    assert_eq!(
        (queue.as_str(), &record["eventVersion"], &record["eventSource"]),
        ("told", &json!("2.1"), &json!("aws:s3"))
    );
    assert_eq!((&record["eventName"], &record["awsRegion"]), (&json!("ObjectCreated:Put"), &json!("us-east-1")));
    assert_eq!(
        (&record["s3"]["bucket"]["name"], &record["s3"]["bucket"]["arn"]),
        (&json!("files"), &json!("arn:aws:s3:::files"))
    );
    let object = &record["s3"]["object"];
    assert_eq!((&object["key"], &object["size"]), (&json!("in/a+b%2B%C3%A7.csv"), &json!(5)));
    assert_eq!(object["eTag"], tag.trim_matches('"'));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn each_queue_gets_notifications_of_the_objects_under_its_prefix() {
    let (stack, client, _) = started().await;
    for key in ["in/a.csv", "back/a.csv", "back/b", "elsewhere"] {
        put(&client, key, b"1").await;
    }
    let sent = messages(&stack).await;
    let mut sent: Vec<_> = sent
        .iter()
        .map(|(queue, event)| (queue.as_str(), event["Records"][0]["s3"]["object"]["key"].as_str().unwrap()))
        .collect();
    sent.sort();
    assert_eq!(sent, [("others", "back/a.csv"), ("others", "back/b"), ("told", "in/a.csv")]);

    client.delete_object().bucket("files").key("back/b").send().await.unwrap();
    assert_eq!(get(&client, "back/b").await, None);
    assert_eq!(messages(&stack).await, [], "a deletion sends no notification");
    let calls = stack.calls().since(4);
    for (call, action) in calls.iter().zip(["s3:DeleteObject", "s3:GetObject"]) {
        assert_eq!(call.actions, [Needed { action: action.into(), on: "files/back/b".into() }]);
    }
    stack.stop().await.unwrap();
}

async fn presigned_put(client: &Client, key: &str, length: Option<i64>) -> String {
    let valid = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let put = client.put_object().bucket("files").key(key).set_content_length(length);
    put.presigned(valid).await.unwrap().uri().to_owned()
}

#[tokio::test]
async fn a_presigned_url_accepts_uploads_until_it_expires() {
    let (stack, client, _) = started().await;
    let url = presigned_put(&client, "in/x.csv", None).await;
    let answer = http().put(&url).header("origin", "https://a.example.com").body("hello").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://a.example.com");
    assert_eq!(get(&client, "in/x.csv").await.unwrap(), b"hello");
    assert_eq!(messages(&stack).await.len(), 1);
    let call = stack.calls().since(0).remove(0);
    assert_eq!(
        (call.caller.as_str(), call.signer.as_deref(), call.operation.as_str()),
        ("presigned", Some("test"), "PutObject")
    );

    let tampered = url.replace("in/x.csv", "in/y.csv");
    assert_eq!(http().put(tampered).body("hello").send().await.unwrap().status(), 403);
    let naked = format!("{}/files/in/x.csv", stack.front_url());
    assert_eq!(http().put(&naked).body("hello").send().await.unwrap().status(), 403);
    assert_eq!(http().get(&naked).send().await.unwrap().status(), 403);
    let bounded = presigned_put(&client, "in/z.csv", Some(5)).await;
    assert_eq!(http().put(&bounded).body("hello!").send().await.unwrap().status(), 403);
    assert_eq!(http().put(&bounded).body("hello").send().await.unwrap().status(), 200);

    stack.advance(Duration::from_secs(120), false).await.unwrap();
    let late = http().put(&url).body("late").send().await.unwrap();
    assert_eq!(late.status(), 403);
    assert!(late.text().await.unwrap().contains("Request has expired"));
    assert_eq!(get(&client, "in/x.csv").await.unwrap(), b"hello");
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn an_upload_with_a_wrong_checksum_changes_nothing() {
    let (stack, client, _) = started().await;
    put(&client, "a", b"old").await;
    for key in ["a", "b"] {
        let put = client.put_object().bucket("files").key(key).checksum_crc32("AAAAAA==");
        assert_eq!(status(put.body(ByteStream::from_static(b"new")).send().await), 400);
    }
    assert_eq!((get(&client, "a").await, get(&client, "b").await), (Some(b"old".to_vec()), None));
    put(&client, "a", b"new").await;
    assert_eq!(get(&client, "a").await.unwrap(), b"new");
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_function_signs_with_its_session_credentials() {
    let (stack, client, _) = started().await;
    let of_function = Credentials::new("local-some-function", "local", Some("a/token+=".into()), None, "test");
    let client = Client::from_conf(client.config().to_builder().credentials_provider(of_function).build());
    put(&client, "a", b"1").await;
    let url = presigned_put(&client, "b", None).await;
    assert!(url.contains("X-Amz-Security-Token="));
    assert_eq!(http().put(&url).body("2").send().await.unwrap().status(), 200);
    assert_eq!(get(&client, "b").await.unwrap(), b"2");
    let forger = Credentials::new("local-some-function", "guessed", None, None, "test");
    let client = Client::from_conf(client.config().to_builder().credentials_provider(forger).build());
    assert_eq!(status(client.get_object().bucket("files").key("b").send().await), 403);
    stack.stop().await.unwrap();
}

async fn post(form: &PresignedPost, more: &[(&str, &str)], file: &str) -> (u16, String) {
    let mut body = String::new();
    let fields = form.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in fields.chain(more.iter().copied()) {
        body += &format!("--XYZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    body += "--XYZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.csv\"\r\nContent-Type: text/csv\r\n";
    body += &format!("\r\n{file}\r\n--XYZ--\r\n");
    let request = http().post(&form.url).header("content-type", "multipart/form-data; boundary=XYZ");
    let response = request.body(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_form_uploads_what_its_policy_allows() {
    let (stack, client, aws) = started().await;
    let form = aws.presigned_post(
        "files",
        "in/p q.csv",
        3..=10,
        &[("Content-Type", "text/csv".to_owned())],
        Duration::from_secs(60),
    );
    for (file, expected) in [("12", "EntityTooSmall"), ("12345678901", "EntityTooLarge")] {
        let (status, text) = post(&form, &[], file).await;
        assert!(status == 400 && text.contains(expected), "{text}");
    }
    assert_eq!(get(&client, "in/p q.csv").await, None);
    let other_key = PresignedPost {
        fields: form
            .fields
            .iter()
            .map(|(name, value)| (name.clone(), value.replace("in/p q.csv", "in/r.csv")))
            .collect(),
        ..form.clone()
    };
    for (form, more, expected) in
        [(&other_key, &[][..], "Policy Condition failed"), (&form, &[("x-amz-meta-a", "b")], "Extra input fields")]
    {
        let (status, text) = post(form, more, "12345").await;
        assert!(status == 403 && text.contains(expected), "{text}");
    }
    let mut forged = form.clone();
    forged.fields.iter_mut().find(|field| field.0 == "x-amz-signature").unwrap().1 = "0".repeat(64);
    let (status, text) = post(&forged, &[], "12345").await;
    assert!(status == 403 && text.contains("SignatureDoesNotMatch"), "{text}");
    assert_eq!(messages(&stack).await, []);

    assert_eq!(post(&form, &[], "12345").await, (204, String::new()));
    let got = client.get_object().bucket("files").key("in/p q.csv").send().await.unwrap();
    assert_eq!(got.content_type(), Some("text/csv"));
    assert_eq!(got.body.collect().await.unwrap().to_vec(), b"12345");
    let calls = stack.calls().since(0);
    let call = calls.iter().find(|call| call.status == 204).unwrap();
    assert_eq!((call.caller.as_str(), call.signer.as_deref()), ("presigned", Some("test")));
    assert_eq!(call.actions, [Needed { action: "s3:PutObject".into(), on: "files/in/p q.csv".into() }]);
    let sent = messages(&stack).await;
    let [(_, ruled), (_, record)] = &sent[..] else { panic!("two messages: {sent:?}") };
    assert_eq!(
        (&ruled["detail-type"], &ruled["detail"]["object"]["key"]),
        (&json!("Object Created"), &json!("in/p q.csv"))
    );
    assert_eq!(ruled["resources"], json!(["arn:aws:s3:::files"]));
    assert_eq!(record["Records"][0]["eventName"], "ObjectCreated:Post");

    stack.advance(Duration::from_secs(120), false).await.unwrap();
    let (status, text) = post(&form, &[], "12345").await;
    assert!(status == 403 && text.contains("Policy expired"), "{text}");
    stack.stop().await.unwrap();
}

/// Returns the form with one more field, whose value the policy requires, signed again.
fn demanding(form: &PresignedPost, name: &str, value: &str) -> PresignedPost {
    let of = |name: &str| form.fields.iter().find(|field| field.0 == name).unwrap().1.clone();
    let mut policy: Value = serde_json::from_slice(&STANDARD.decode(of("policy")).unwrap()).unwrap();
    policy["conditions"].as_array_mut().unwrap().push(json!(["eq", format!("${name}"), value]));
    let policy = STANDARD.encode(policy.to_string());
    let at = UNIX_EPOCH + Duration::from_secs(from_basic(&of("x-amz-date")).unwrap().seconds().try_into().unwrap());
    let signing_key = generate_signing_key("none", at, "us-east-1", "s3");
    let signature = calculate_signature(signing_key, policy.as_bytes());
    let signed = ["policy", "x-amz-signature"];
    let mut fields: Vec<_> = form.fields.iter().filter(|field| !signed.contains(&field.0.as_str())).cloned().collect();
    let more = [(name, value.to_owned()), ("policy", policy), ("x-amz-signature", signature)];
    fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
    PresignedPost { fields, ..form.clone() }
}

#[tokio::test]
async fn a_form_with_a_checksum_accepts_only_that_file() {
    const OF_12345: &str = "WZRHGrsBESr8wYFZ9sx0tPURuZgG2lmzyvWpwXPKz8U=";
    let (stack, client, aws) = started().await;
    let form = aws.presigned_post("files", "in/p.csv", 3..=10, &[], Duration::from_secs(60));
    let form = demanding(&form, "x-amz-checksum-sha256", OF_12345);
    let without = PresignedPost {
        fields: form.fields.iter().filter(|field| field.0 != "x-amz-checksum-sha256").cloned().collect(),
        ..form.clone()
    };
    let (status, text) = post(&without, &[], "12345").await;
    assert!(status == 403 && text.contains("Policy Condition failed"), "{text}");
    let (status, text) = post(&form, &[], "54321").await;
    assert!(status == 400 && text.contains("<Code>BadDigest</Code>"), "{text}");
    assert_eq!((get(&client, "in/p.csv").await, messages(&stack).await), (None, vec![]));

    assert_eq!(post(&form, &[], "12345").await.0, 204);
    assert_eq!(messages(&stack).await.len(), 2);
    assert_eq!(post(&form, &[], "54321").await.0, 400);
    assert_eq!((get(&client, "in/p.csv").await.unwrap(), messages(&stack).await), (b"12345".to_vec(), vec![]));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_preflight_request_is_answered_by_the_cors_rules() {
    let (stack, ..) = started().await;
    let ask = |origin: &'static str, method: &'static str| {
        let url = format!("{}/files/in/x.csv", stack.front_url());
        let request = http().request(reqwest::Method::OPTIONS, url).header("origin", origin);
        let request = request.header("access-control-request-headers", "content-type");
        request.header("access-control-request-method", method).send()
    };
    let allowed = ask("https://a.example.com", "PUT").await.unwrap();
    assert_eq!(
        (allowed.status().as_u16(), &allowed.headers()["access-control-max-age"]),
        (200, &"60".parse().unwrap())
    );
    assert_eq!(allowed.headers()["access-control-allow-headers"], "content-type");
    assert_eq!(ask("https://a.example.com", "DELETE").await.unwrap().status(), 403);
    assert_eq!(ask("https://elsewhere.org", "PUT").await.unwrap().status(), 403);
    stack.stop().await.unwrap();
}

fn fault(operation: &str, action: &str, times: u64) -> Fault {
    let call = json!({"service": "s3", "operation": operation, "action": action, "times": times, "target": "files"});
    serde_json::from_value(json!({"call": call})).unwrap()
}

#[tokio::test]
async fn faults_apply_to_calls_to_s3() {
    let (stack, client, _) = started().await;
    put(&client, "a", b"12345").await;
    // The SDK retries each of these.
    for (operation, action) in [("GetObject", "drop_reply"), ("GetObject", "error_before"), ("GetObject", "throttle")] {
        let before = stack.calls().position();
        stack.add_fault(fault(operation, action, 1)).await.unwrap();
        assert_eq!(get(&client, "a").await.unwrap(), b"12345");
        let calls = stack.calls().since(before);
        assert_eq!((calls.len(), calls[0].fault.as_deref(), calls[1].status), (2, Some(action), 200), "{action}");
    }
    let before = stack.calls().position();
    stack.add_fault(fault("HeadObject", "drop_reply", 1)).await.unwrap();
    assert_eq!(client.head_object().bucket("files").key("a").send().await.unwrap().content_length(), Some(5));
    assert_eq!(stack.calls().since(before).len(), 2);
    // A put whose response is lost has taken effect.
    stack.add_fault(fault("PutObject", "drop_reply", 9)).await.unwrap();
    assert!(
        client.put_object().bucket("files").key("in/b.csv").body(ByteStream::from_static(b"1")).send().await.is_err()
    );
    assert_eq!(get(&client, "in/b.csv").await.unwrap(), b"1");
    assert_eq!(messages(&stack).await.len(), 3);
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn objects_survive_a_restart_and_expire_by_age() {
    let directory = std::env::temp_dir().join(format!("umavez-stack-s3-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let options = Options { data: Some(directory.clone()), ..Options::in_memory(TEMPLATE) };
    let stack = Stack::start(options.clone()).await.unwrap();
    let client = Aws::at_endpoint(stack.front_url(), "test").s3();
    let tag = put(&client, "in/old.csv", b"old").await;
    put(&client, "out", b"out").await;
    stack.advance(Duration::from_secs(86_400), true).await.unwrap();
    put(&client, "in/new.csv", b"new").await;
    stack.stop().await.unwrap();

    let stack = Stack::start(options).await.unwrap();
    let client = Aws::at_endpoint(stack.front_url(), "test").s3();
    let head = client.head_object().bucket("files").key("in/old.csv").send().await.unwrap();
    assert_eq!((head.e_tag(), get(&client, "in/old.csv").await), (Some(tag.as_str()), Some(b"old".to_vec())));
    stack.advance(Duration::from_secs(86_400), true).await.unwrap();
    assert_eq!(get(&client, "in/old.csv").await, None);
    assert_eq!(get(&client, "in/new.csv").await.unwrap(), b"new");
    assert_eq!(get(&client, "out").await.unwrap(), b"out");
    stack.stop().await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn an_object_may_exceed_the_size_limit_of_other_requests() {
    let (stack, client, _) = started().await;
    let large: Vec<u8> = (0..24 << 20).map(|n: u32| n.to_le_bytes()[0]).collect();
    let url = presigned_put(&client, "large", None).await;
    assert_eq!(http().put(&url).body(large.clone()).send().await.unwrap().status(), 200);
    let range = format!("bytes={}-", large.len() - 3);
    let got = client.get_object().bucket("files").key("large").range(range).send().await.unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), [253, 254, 255]);
    assert!(get(&client, "large").await.unwrap() == large);
    stack.stop().await.unwrap();
}
