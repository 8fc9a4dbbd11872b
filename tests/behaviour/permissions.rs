//! Functions may do what the template grants their roles; every other call is denied as on AWS.

use std::time::Duration;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::presigning::PresigningConfig;
use reqwest::Method;
use serde_json::json;
use umavez_platform::aws::Aws;
use umavez_tests::{Expected, Setup, World, play_with};

const PROBE: &str = include_str!("../fixtures/probe.yaml");

async fn create(world: &World) -> u16 {
    world.send(world.request(Method::POST, "/jobs").json(&json!({"id": "a"}))).await.status
}

#[tokio::test]
async fn a_call_that_the_role_does_not_grant_is_denied_and_has_no_effect() {
    let without = PROBE.replace("Action: [dynamodb:PutItem, dynamodb:GetItem]", "Action: dynamodb:GetItem");
    let expected = Expected { refused: 1, server_errors: 1, ..Expected::default() };
    play_with(Setup::of_template(&without).expecting(expected), async |world| {
        assert!(create(world).await >= 500);
        assert_eq!(world.rows("JobsTable").await.len(), 0);
        let refusals = world.stack.permissions().refusals();
        assert_eq!((refusals[0].function.as_str(), refusals[0].action.as_str()), ("probe-api", "dynamodb:PutItem"));
        assert!(refusals[0].resource.ends_with(":table/probe-jobs"));
    })
    .await;
}

#[tokio::test]
async fn a_deny_overrides_an_allow() {
    let grant = "              - Effect: Allow\n                # Some of its";
    let denial = "              - {Effect: Deny, Action: 'dynamodb:*', Resource: !GetAtt Jobs.Arn}\n";
    let denied = PROBE.replace(grant, &format!("{denial}{grant}"));
    let expected = Expected { refused: 1, server_errors: 1, ..Expected::default() };
    play_with(Setup::of_template(&denied).expecting(expected), async |world| {
        assert!(create(world).await >= 500);
        let reason = world.stack.permissions().refusals()[0].to_string();
        assert!(reason.ends_with("with an explicit deny in an identity-based policy"), "{reason}");
    })
    .await;
}

/// Returns the status and the code of a call that must fail.
macro_rules! refusal {
    ($call:expr) => {{
        let error = $call.send().await.err().expect("refused");
        let status = error.raw_response().map(|response| response.status().as_u16());
        (status.expect("an answer"), error.code().unwrap_or_default().to_owned())
    }};
}

#[tokio::test]
async fn each_service_denies_with_its_own_error() {
    let expected = Expected { refused: 6, ..Expected::default() };
    play_with(Setup::of_template(PROBE).expecting(expected), async |world| {
        // Signs like the function's own processes.
        let aws = Aws::at_endpoint(world.stack.front_url(), "local-probe-api");
        let exception = "AccessDeniedException".to_owned();
        let key = || AttributeValue::S("JOB#a".to_owned());
        let delete = aws.dynamodb().delete_item().table_name("probe-jobs").key("pk", key()).key("sk", key());
        assert_eq!(refusal!(delete), (400, exception.clone()));
        let scan = aws.dynamodb().scan().table_name("probe-jobs").index_name("by-state");
        assert_eq!(refusal!(scan), (400, exception.clone()));
        let url = format!("{}/000000000000/probe-work-dlq", world.stack.front_url());
        let send = aws.sqs().send_message().queue_url(url).message_body("x");
        assert_eq!(refusal!(send).0, 403);
        let secret = aws.secretsmanager().get_secret_value().secret_id("nothing");
        assert_eq!(refusal!(secret), (400, exception.clone()));
        let scope = "local-probe-api/20260101/us-east-1/ses/aws4_request";
        let mail = world.outside(Method::POST, &format!("{}/v2/email/outbound-emails", world.stack.front_url()));
        let mail = mail.header("authorization", format!("AWS4-HMAC-SHA256 Credential={scope}, Signature=0"));
        let answer = mail.json(&json!({"FromEmailAddress": "Ana <ana@example.com>"})).send().await.expect("an answer");
        assert_eq!(answer.status(), 403);
        assert_eq!(answer.headers()["x-amzn-errortype"], "AccessDeniedException");
        let object = aws.s3().get_object().bucket("files").key("a.csv");
        assert_eq!(refusal!(object), (403, "AccessDenied".to_owned()));
        // The stack's own key is allowed everything.
        assert_eq!(world.rows("JobsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_transaction_needs_a_grant_for_each_of_its_parts() {
    let expected = Expected { refused: 1, ..Expected::default() };
    play_with(Setup::of_template(PROBE).expecting(expected), async |world| {
        use aws_sdk_dynamodb::types::{ConditionCheck, Put, TransactWriteItem};
        let text = |value: &str| AttributeValue::S(value.to_owned());
        let put = Put::builder().table_name("probe-jobs").item("pk", text("a")).item("sk", text("a"));
        let put = TransactWriteItem::builder().put(put.build().expect("a put")).build();
        let check = ConditionCheck::builder().table_name("probe-jobs").key("pk", text("b")).key("sk", text("b"));
        let check = check.condition_expression("attribute_not_exists(pk)").build().expect("a check");
        let check = TransactWriteItem::builder().condition_check(check).build();
        let client = Aws::at_endpoint(world.stack.front_url(), "local-probe-api").dynamodb();
        let both = client.transact_write_items().transact_items(put.clone()).transact_items(check);
        assert_eq!(refusal!(both), (400, "AccessDeniedException".to_owned()));
        assert_eq!(world.stack.permissions().refusals()[0].action, "dynamodb:ConditionCheckItem");
        assert_eq!(world.rows("JobsTable").await.len(), 0, "the denied transaction wrote a row");
        client.transact_write_items().transact_items(put).send().await.expect("granted");
        assert_eq!(world.rows("JobsTable").await.len(), 1);
    })
    .await;
}

/// Returns a client that signs like the processes of a function.
fn s3_of(world: &World, function: &str) -> aws_sdk_s3::Client {
    let signed = Credentials::new(format!("local-{function}"), "local", None, None, "test");
    let client = Aws::at_endpoint(world.stack.front_url(), "test").s3();
    aws_sdk_s3::Client::from_conf(client.config().to_builder().credentials_provider(signed).build())
}

#[tokio::test]
async fn a_missing_key_is_access_denied_without_the_right_to_list_the_bucket() {
    let narrower = Setup::default().template.replace("\"s3:prefix\": backfills/*", "\"s3:prefix\": backfills/a*");
    let setup = Setup { template: narrower, ..Setup::default() };
    play_with(setup.expecting(Expected { refused: 2, ..Expected::default() }), async |world| {
        let bucket = world.stack.output("UploadsBucket").expect("a bucket");
        let s3 = s3_of(world, "backfill-worker");
        let read = |key: &str| s3.get_object().bucket(bucket).key(key);
        assert_eq!(refusal!(read("backfills/a")), (404, "NoSuchKey".to_owned()));
        assert_eq!(refusal!(read("backfills/b")), (403, "AccessDenied".to_owned()));
        assert_eq!(refusal!(read("mailings/a")), (403, "AccessDenied".to_owned()));
    })
    .await;
}

#[tokio::test]
async fn a_presigned_url_or_form_has_the_rights_of_its_signer() {
    play_with(Setup::default().expecting(Expected { refused: 2, ..Expected::default() }), async |world| {
        let bucket = world.stack.output("UploadsBucket").expect("a bucket");
        // The clock of the stack may be a day ahead of this machine.
        let days = PresigningConfig::expires_in(Duration::from_secs(3 * 86_400)).expect("days");
        for (function, key, status) in
            [("ingest", "backfills/a", 200), ("ingest", "mailings/a", 403), ("authorizer", "backfills/a", 403)]
        {
            let put = s3_of(world, function).put_object().bucket(bucket).key(key);
            let url = put.presigned(days.clone()).await.expect("a URL").uri().to_owned();
            let answer = world.outside(Method::PUT, &url).body("x").send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), status, "{function} {key}");
        }
    })
    .await;
    let without = Setup::default().template.replace("${Uploads.Arn}/backfills/*", "${Uploads.Arn}/elsewhere/*");
    let setup = Setup { template: without, ..Setup::default() };
    play_with(setup.expecting(Expected { refused: 1, ..Expected::default() }), async |world| {
        let answer = world.post_with_key("a", "/backfills", &json!({"source": "telegram", "upload": true})).await;
        assert_eq!(world.post_form(&answer.body["upload"], b"{}").await, 403);
    })
    .await;
}
