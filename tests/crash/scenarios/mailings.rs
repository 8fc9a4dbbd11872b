//! Mailings: a file becomes a mailing once, each recipient gets one call per attempt and is
//! settled, and totals add up.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::aws::Aws;
use umavez_tests::{Answer, Setup};

use crate::run::{Point, Run};
use crate::scenario::{LOOKS, Scenario};

/// Slots are so far apart that one mail is settled before the next is claimed, even on a loaded
/// machine. So the calls come in the same order every time, and a fault hits one of them.
fn setup() -> Setup {
    Setup::default().parameter("SendRates", r#"{"email": {"sender": "2/1s"}}"#)
}

const FILE: &str = "email,nome\nana@example.com,Ana\nbia@example.com,Bia\nANA@example.com,Ana\nnot an address,X\n";
/// More lines than there are between two checkpoints.
const MANY: usize = 2_100;

pub fn scenarios() -> Vec<Scenario> {
    let scenario =
        |name, play, audit, strikes| Scenario { name, setup, play, audit, concurrent: false, swept: true, strikes };
    vec![
        scenario(
            "a mailing is uploaded, imported and sent",
            |run| Box::pin(send(run)),
            |run| Box::pin(sent_or_unknown(run)),
            |point| {
                point.function.starts_with("mailing") && is_effect(point)
                    || point.function == "delivery-events" && point.nth <= 2
            },
        ),
        scenario(
            "a mailing of more than one checkpoint is imported",
            |run| Box::pin(import_many(run)),
            |run| Box::pin(imported_many(run)),
            |point| {
                let first_or_last = point.nth <= 2 || point.nth == MANY.div_ceil(25) as u64;
                let insert = point.operation == "BatchExecuteStatement" && first_or_last;
                point.function == "mailing-importer"
                    && (insert
                        || point.operation == "GetObject" && point.nth == 1
                        || point.operation == "UpdateItem" && (2..=3).contains(&point.nth))
            },
        ),
        scenario(
            "a mailing is paused, resumed, and its failures are retried",
            |run| Box::pin(orders(run)),
            |run| Box::pin(all_sent(run)),
            |point| {
                let order = point.function == "mailings-api" && point.operation == "UpdateItem";
                // The first two take the turn of the import, which must be over before the orders.
                let handed = point.function == "mailing-importer" && point.operation == "UpdateItem" && point.nth > 2;
                let again = point.function == "mailing-sender" && is_effect(point) && point.nth > 10;
                order || handed || again
            },
        ),
        scenario(
            "a mailing that SES holds is resumed",
            |run| Box::pin(held(run)),
            |run| Box::pin(all_sent(run)),
            |point| point.function == "mailing-sender" && is_effect(point) && point.nth <= 8,
        ),
        scenario(
            "a mailing is canceled",
            |run| Box::pin(cancel(run)),
            |run| Box::pin(canceled(run)),
            |point| {
                let sends = point.function == "mailing-sender" && is_effect(point);
                // The first two take the turn of the import, which must be over before the orders.
                let handed = point.function == "mailing-importer" && point.operation == "UpdateItem" && point.nth > 2;
                sends || handed || point.function == "mailings-api" && point.operation == "UpdateItem"
            },
        ),
        scenario(
            "a failed upload releases its name",
            |run| Box::pin(bad_upload(run)),
            |run| Box::pin(given_free(run)),
            |point| {
                point.function == "mailing-importer" && is_effect(point) && point.operation != "BatchExecuteStatement"
            },
        ),
        scenario(
            "a sender of a mailing times out",
            |run| Box::pin(abandon(run)),
            |run| Box::pin(sent_or_unknown(run)),
            |point| {
                point.function == "recovery"
                    && point.target.contains("mailings")
                    && (point.operation != "Query" || point.nth == 1)
            },
        ),
        scenario(
            "events settle a mail of a mailing whose answer was lost",
            |run| Box::pin(settled_by_events(run)),
            |run| Box::pin(known_by_events(run)),
            |point| point.function == "delivery-events" && point.operation == "TransactWriteItems",
        ),
        Scenario {
            concurrent: true,
            ..scenario(
                "rivals with one file name",
                |run| Box::pin(rivals(run)),
                |run| Box::pin(one_mailing(run)),
                |point| point.function == "mailings-api" && is_effect(point),
            )
        },
        Scenario {
            concurrent: true,
            ..scenario(
                "rivals with one file under two names",
                |run| Box::pin(rivals_with_one_file(run)),
                |run| Box::pin(one_mailing(run)),
                |point| point.function == "mailings-api" && is_effect(point),
            )
        },
    ]
}

/// Returns whether the call changes something or is the first read of its kind: between two reads
/// nothing can be half done.
fn is_effect(point: &Point) -> bool {
    !LOOKS.contains(&point.operation.as_str()) || point.nth == 1
}

const BOUNDARY: &str = "a-boundary";

async fn upload(run: &Run, key: &str, name: &str, file: &str, content: bool) -> String {
    let answer = upload_to(run, "/mailings", key, name, file, content).await;
    assert!(answer.status < 300, "an upload was refused: {}", answer.body);
    answer.text("/mailingId")
}

async fn upload_to(run: &Run, path: &str, key: &str, name: &str, file: &str, content: bool) -> Answer {
    let mut body = String::new();
    let fields = [("subject", "Oi"), ("text", "Oi {{nome}}"), ("from", "loja@example.com")];
    for (field, value) in fields.iter().filter(|_| content) {
        body.push_str(&format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n"));
    }
    let head = format!("Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"");
    body.push_str(&format!("--{BOUNDARY}\r\n{head}\r\n\r\n{file}\r\n--{BOUNDARY}--\r\n"));
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    run.ask_with("upload", key, Method::POST, path, &kind, body.into_bytes()).await
}

async fn order(run: &Run, id: &str, what: &str) {
    let answer = run.ask(what, what, &format!("/mailings/{id}/{what}"), &json!({})).await;
    assert!(answer.status < 300, "{what}: {}", answer.body);
}

async fn send(run: &Run) {
    upload(run, "a", "a.csv", FILE, true).await;
    run.world.drain().await;
}

async fn import_many(run: &Run) {
    let rows: String = (0..MANY).map(|n| format!("user{}@example.com\n", n % (MANY - 50))).collect();
    upload(run, "a", "many.csv", &format!("email\n{rows}"), false).await;
    run.world.drain().await;
}

async fn orders(run: &Run) {
    let rejected = [("x-amzn-errortype".to_owned(), "MessageRejected".to_owned())].into();
    let answer = Scripted { status: 400, headers: rejected, body: json!({"message": "no"}) };
    let fault = CallFault { service: Some("ses".to_owned()), answer: Some(answer), ..CallFault::first(Action::Answer) };
    let id = upload(run, "a", "a.csv", FILE, false).await;
    run.world.drain().await;
    order(run, &id, "pause").await;
    let content = json!({"subject": "Oi", "text": "Oi {{nome}}", "from": "loja@example.com"}).to_string();
    let path = format!("/mailings/{id}/content");
    let put = run.ask_with("content", "c", Method::PUT, &path, "application/json", content.into_bytes()).await;
    assert_eq!(put.status, 200, "{}", put.body);
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
    order(run, &id, "resume").await;
    run.world.drain().await;
    order(run, &id, "retry-failed").await;
    run.world.drain().await;
    // Entries that a fault kept from failing in time are retried again.
    run.world.advance(Duration::from_secs(700)).await;
    run.world.tick("Recovery").await;
    let answer = run.ask("again", "again", &format!("/mailings/{id}/retry-failed"), &json!({})).await;
    assert!(answer.status < 300 || answer.status == 409, "{}", answer.body);
    run.world.drain().await;
}

async fn held(run: &Run) {
    let paused = [("x-amzn-errortype".to_owned(), "SendingPausedException".to_owned())].into();
    let answer = Scripted { status: 400, headers: paused, body: json!({"message": "no"}) };
    let fault = CallFault {
        service: Some("ses".to_owned()),
        answer: Some(answer),
        times: 3,
        ..CallFault::first(Action::Answer)
    };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
    let id = upload(run, "a", "a.csv", FILE, true).await;
    for _ in 0..5 {
        run.world.drain().await;
        // The message of a killed function is redelivered by then.
        run.world.advance(Duration::from_secs(800)).await;
        order(run, &id, "resume").await;
    }
    run.world.drain().await;
}

async fn cancel(run: &Run) {
    let id = upload(run, "a", "a.csv", FILE, false).await;
    run.world.drain().await;
    order(run, &id, "cancel").await;
    run.world.drain().await;
}

async fn bad_upload(run: &Run) {
    let body = json!({"filename": "a.csv", "subject": "Oi", "text": "Oi", "from": "loja@example.com"});
    let answer = run.ask("bad upload", "a", "/mailings/uploads", &body).await;
    let id = answer.text("/mailingId");
    let s3 = Aws::at_endpoint(run.world.stack.front_url(), "test").s3();
    let bucket = run.world.stack.output("UploadsBucket").expect("a bucket");
    let put = s3.put_object().bucket(bucket).key(format!("mailings/uploads/{id}.csv"));
    put.body(b"email\n\"ana@example.com\n".to_vec().into()).send().await.expect("put");
    run.world.drain().await;
    // The message of a killed function is redelivered by then.
    run.world.advance(Duration::from_secs(700)).await;
    run.world.tick("Recovery").await;
    run.world.advance(Duration::from_secs(5_500)).await;
    upload(run, "b", "a.csv", "email,nome\nbia@example.com,Bia\n", true).await;
    run.world.drain().await;
}

async fn abandon(run: &Run) {
    let fault = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::KillBefore) };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
    upload(run, "a", "a.csv", FILE, true).await;
    run.world.drain().await;
    run.world.advance(Duration::from_secs(60)).await;
    run.world.tick("Recovery").await;
}

async fn settled_by_events(run: &Run) {
    run.world.stack.email_events().switch(false);
    let fault = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::DropReply) };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
    upload(run, "a", "a.csv", FILE, true).await;
    run.world.drain().await;
    // The events of SES arrive when the mailing has ended, each of them twice.
    for sent in run.world.stack.catcher().sent(Some("email"), None) {
        let tags: Value = sent.body["EmailTags"]
            .as_array()
            .expect("tags")
            .iter()
            .map(|tag| (tag["Name"].as_str().unwrap_or_default().to_owned(), json!([tag["Value"]])))
            .collect();
        let at = run.world.now().to_string();
        let mail = json!({"timestamp": at, "messageId": "0100-x", "destination": sent.to, "tags": tags});
        let detail = json!({"eventType": "Send", "mail": mail, "send": {}});
        let body = json!({"source": "aws.ses", "detail": detail}).to_string();
        for _ in 0..2 {
            run.world.send_to_queue("umavez-dev-delivery-events", &body).await;
            run.world.drain().await;
        }
    }
}

async fn rivals(run: &Run) {
    let ask = |key: &'static str, file: &'static str| async move { upload(run, key, "a.csv", file, true).await };
    let (a, b) = tokio::join!(ask("a", FILE), ask("b", "email,nome\nbia@example.com,Bia\nana@example.com,Ana\n"));
    assert_eq!(a, b, "the two requests got different mailings");
    run.world.drain().await;
}

async fn rivals_with_one_file(run: &Run) {
    let ask = |key: &'static str, name: &'static str| upload_to(run, "/mailings?mode=strict", key, name, FILE, true);
    let (a, b) = tokio::join!(ask("a", "a.csv"), ask("b", "b.csv"));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 409], "not exactly one of them has the file: {} {}", a.body, b.body);
    run.world.drain().await;
}

/// The rows of the only mailing that did not fail: the mailing, its shards, its entries.
struct Rows {
    mailing: Value,
    shards: Vec<Value>,
    entries: Vec<Value>,
}

async fn the_one(run: &Run) -> Rows {
    let rows = run.world.rows("MailingsTable").await;
    let of = |prefix: &str| -> Vec<Value> {
        rows.iter().filter(|row| row["sk"].as_str().is_some_and(|sk| sk.starts_with(prefix))).cloned().collect()
    };
    let mailings: Vec<_> = of("MAILING").into_iter().filter(|row| row["state"] != "FAILED").collect();
    assert_eq!(mailings.len(), 1, "not one mailing: {mailings:?}");
    let names = of("NAME");
    assert_eq!(names.len(), 1, "not one name");
    assert_eq!(names[0]["mailing_id"], mailings[0]["mailing_id"], "the name belongs to another mailing");
    let mailing = mailings.into_iter().next().expect("one");
    let entries = of("ENTRY#").into_iter().filter(|row| {
        row["pk"].as_str().is_some_and(|pk| pk.contains(mailing["mailing_id"].as_str().unwrap_or_default()))
    });
    let shards = of("SHARD#").into_iter().filter(|row| row["mailing_id"] == mailing["mailing_id"]);
    Rows { shards: shards.collect(), entries: entries.collect(), mailing }
}

/// Checks that the mailing has ended. The audit of every test checks the totals, and that calls
/// match attempts.
async fn ended(run: &Run, state: &str) -> Rows {
    let rows = the_one(run).await;
    assert_eq!(rows.mailing["state"], state, "accepted, and lost: {}", rows.mailing);
    assert_eq!(rows.mailing["import"], "DONE");
    rows
}

async fn sent_or_unknown(run: &Run) {
    let rows = ended(run, "COMPLETED").await;
    let progress = &rows.mailing["progress"];
    let counts = ["rows", "recipients", "duplicates", "invalid"].map(|name| progress[name].as_i64());
    assert_eq!(counts, [Some(4), Some(2), Some(1), Some(1)], "{progress}");
    assert_eq!(rows.entries.len(), 2);
    for entry in &rows.entries {
        let to = entry["email"].as_str().expect("an address");
        let mails = run.world.stack.catcher().sent(Some("email"), Some(to)).len();
        assert!(mails <= 1, "sent twice: {entry}");
        match entry["state"].as_str() {
            // An event reports every mail that SES accepted.
            Some("SENT") => assert_eq!(mails, 1, "{entry}"),
            Some("UNKNOWN") => assert_eq!(mails, 0, "unknown, but SES accepted it: {entry}"),
            _ => panic!("neither sent nor unknown: {entry}"),
        }
    }
    let unknown = rows.entries.iter().filter(|entry| entry["state"] == "UNKNOWN").count();
    let struck = run.world.stack.calls().since(0).into_iter().filter(|call| call.fault.is_some());
    let at_a_call = struck
        .filter(|call| call.caller == "mailing-sender" && (call.service == "ses" || call.operation == "UpdateItem"));
    assert!(unknown <= at_a_call.count(), "unknown for no reason: {:?}", rows.entries);
}

async fn imported_many(run: &Run) {
    let rows = the_one(run).await;
    assert_eq!(
        (&rows.mailing["state"], &rows.mailing["import"]),
        (&json!("PENDING"), &json!("DONE")),
        "{}",
        rows.mailing
    );
    let progress = &rows.mailing["progress"];
    let (many, distinct) = (MANY as i64, MANY as i64 - 50);
    let counts = ["rows", "recipients", "duplicates"].map(|name| progress[name].as_i64());
    assert_eq!(counts, [Some(many), Some(distinct), Some(50)], "{progress}");
    assert_eq!(rows.entries.len() as i64, distinct);
    let pending: i64 = rows.shards.iter().filter_map(|shard| shard["pending"].as_i64()).sum();
    assert_eq!(pending, distinct, "the shards count another number of entries");
    let lines = run.world.rows("MailingsTable").await;
    let duplicates = lines.iter().filter(|row| row["reason"] == "duplicate").count();
    assert_eq!(duplicates, 50, "not one report line per duplicate line");
}

async fn all_sent(run: &Run) {
    let rows = ended(run, "COMPLETED").await;
    for entry in &rows.entries {
        let to = entry["email"].as_str().expect("an address");
        let mails = run.world.stack.catcher().sent(Some("email"), Some(to)).len();
        let unsettled = entry["state"] == "UNKNOWN" && mails == 0;
        assert!(entry["state"] == "SENT" && mails == 1 || unsettled, "{mails} mails: {entry}");
    }
}

async fn canceled(run: &Run) {
    let rows = ended(run, "CANCELED").await;
    assert!(rows.entries.iter().all(|entry| entry["state"] == "CANCELED"), "{:?}", rows.entries);
    assert!(run.world.stack.catcher().sent(None, None).is_empty());
}

async fn given_free(run: &Run) {
    let rows = ended(run, "COMPLETED").await;
    assert_eq!(rows.mailing["turn"], 1, "the name was not released exactly once");
    assert_eq!(rows.entries.len(), 1);
    assert_eq!(run.world.stack.catcher().sent(None, None).len(), 1);
}

async fn known_by_events(run: &Run) {
    let rows = ended(run, "COMPLETED").await;
    assert!(rows.entries.iter().all(|entry| entry["state"] == "SENT"), "{:?}", rows.entries);
    let of = |name: &str| rows.shards.iter().filter_map(|shard| shard[name].as_i64()).sum::<i64>();
    assert_eq!((of("sent"), of("unknown")), (2, 0), "{:?}", rows.shards);
}

async fn one_mailing(run: &Run) {
    let rows = ended(run, "COMPLETED").await;
    assert_eq!(rows.entries.len(), 2);
    let addresses: Vec<_> = run.world.stack.catcher().sent(None, None).into_iter().flat_map(|sent| sent.to).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
}
