//! Guards of intents: scheduled messages are accepted and canceled, and the guard lists exactly the
//! current holds.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_tests::Setup;

use crate::run::{Point, Run, body};
use crate::scenario::Scenario;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";

pub fn scenarios() -> Vec<Scenario> {
    let guarded = || {
        let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
        Setup::default().parameter("IntentTypeOptions", &options.to_string())
    };
    vec![
        Scenario {
            name: "scheduled messages under one guard are cancelled",
            setup: guarded,
            play: |run| Box::pin(cancel_scheduled(run)),
            audit: |run| Box::pin(only_the_sent_one_is_held(run)),
            concurrent: false,
            swept: false,
            strikes: |point| point.function == "outbound-api",
        },
        Scenario {
            name: "holds are taken and released under one guard concurrently",
            setup: guarded,
            play: |run| Box::pin(change_at_once(run)),
            audit: |run| Box::pin(held_days_are(run, &[17, 25])),
            concurrent: true,
            swept: false,
            strikes: |point| point.function == "outbound-api" && point.operation == "TransactWriteItems",
        },
        Scenario {
            name: "a guarded message fails",
            setup: guarded,
            play: |run| Box::pin(fail(run)),
            audit: |run| Box::pin(held_unless_failed(run)),
            concurrent: false,
            swept: true,
            strikes: |point| point.function == "outbound-sender" && is_change_of_guard(point),
        },
        Scenario {
            name: "a scheduled message waits for the window of a late one",
            setup: guarded,
            play: |run| Box::pin(wait_for_a_late_one(run)),
            audit: |run| Box::pin(sent_a_week_apart(run)),
            concurrent: false,
            swept: true,
            strikes: |point| point.function == "outbound-sender" && is_change_of_guard(point),
        },
        Scenario {
            name: "a guarded mail is rejected",
            setup: guarded,
            play: |run| Box::pin(reject(run)),
            audit: |run| Box::pin(held_unless_failed(run)),
            concurrent: false,
            swept: true,
            strikes: |point| point.function == "delivery-events" && is_change_of_guard(point),
        },
        Scenario {
            name: "a guarded mail that was called unsent is proved to be sent",
            setup: guarded,
            play: |run| Box::pin(prove(run)),
            audit: |run| Box::pin(held_days_are(run, &[0, 9])),
            concurrent: false,
            swept: true,
            strikes: |point| point.function == "delivery-events" && is_change_of_guard(point),
        },
    ]
}

fn reference(campaign: i64) -> String {
    format!("1e2feb89-7ed4-4c2c-9cc4-a6ce78e510{campaign:02}")
}

fn is_change_of_guard(point: &Point) -> bool {
    point.operation == "TransactWriteItems" || point.operation == "GetItem" && point.target.ends_with("-intents")
}

/// Schedules a message of a separate campaign, to be sent in `days` days.
async fn schedule(run: &Run, days: i64) -> String {
    let message = json!({
        "channel": "telegram", "to": "987654321", "content": {"text": "Oi"},
        // The whole second of the run's day, so that a repeated request has the same body.
        "send_at": run.world.now().plus_days(days).to_string()[..11].to_owned() + "23:00:00Z",
    });
    accept(run, days, message).await
}

/// Accepts a message under the guard. Returns its id.
async fn accept(run: &Run, days: i64, mut message: Value) -> String {
    message["intent"] =
        body(&[("client_id", CLIENT), ("intent_type", "discovery_first_touch"), ("reference_id", &reference(days))]);
    let answer = run.ask(&format!("schedule {days}"), &format!("d{days}"), "/outbound/messages", &message).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("QUEUED")), "{}", answer.body);
    answer.text("/message_id")
}

async fn cancel(run: &Run, id: &str) {
    let answer = run.ask(&format!("cancel {id}"), id, &format!("/outbound/messages/{id}/cancel"), &json!({})).await;
    assert_eq!((answer.status, &answer.body["status"]), (200, &json!("CANCELED")), "{}", answer.body);
}

async fn check(run: &Run, key: &str, campaign: i64) -> Value {
    let asked = body(&[
        ("client_id", CLIENT),
        ("intent_type", "discovery_first_touch"),
        ("reference_id", &reference(campaign)),
    ]);
    run.ask(&format!("check by {key}"), key, "/intents", &asked).await.body["can_send"].clone()
}

async fn cancel_scheduled(run: &Run) {
    assert_eq!(check(run, "a", 0).await, true);
    let (second, third) = (schedule(run, 9).await, schedule(run, 17).await);
    cancel(run, &third).await;
    cancel(run, &second).await;
    assert_eq!(check(run, "b", 1).await, false, "two holds in one window");
}

async fn change_at_once(run: &Run) {
    let first = schedule(run, 9).await;
    tokio::join!(cancel(run, &first), schedule(run, 17), schedule(run, 25));
}

/// The user has blocked the bot, so the message that is due now fails.
async fn fail(run: &Run) {
    schedule(run, 9).await;
    let body = json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"});
    let answer = Scripted { status: 403, headers: Default::default(), body };
    let service = Some("telegram".to_owned());
    let refused = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
    run.world.stack.add_fault(Fault::Call(refused)).await.expect("armed");
    accept(run, 0, json!({"channel": "telegram", "to": "987654321", "content": {"text": "Oi"}})).await;
    run.world.drain().await;
}

/// Telegram accepts a message after three days, so a mail in eight days has to wait.
async fn wait_for_a_late_one(run: &Run) {
    let body = json!({"ok": false, "error_code": 429, "description": "Too Many Requests",
        "parameters": {"retry_after": 3 * 86_400}});
    let answer = Scripted { status: 429, headers: Default::default(), body };
    let service = Some("telegram".to_owned());
    let throttled = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
    run.world.stack.add_fault(Fault::Call(throttled)).await.expect("armed");
    accept(run, 0, json!({"channel": "telegram", "to": "987654321", "content": {"text": "Oi"}})).await;
    run.world.drain().await;
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    let send_at = run.world.now().plus_days(8);
    let mail = json!({"channel": "email", "to": "ana@example.com", "content": content, "send_at": send_at});
    accept(run, 8, mail).await;
    for days in [3, 5, 1, 1, 1, 1, 7] {
        run.world.advance(Duration::from_secs(days * 86_400 + 60)).await;
        run.world.tick("OutboundSweep").await;
    }
}

/// Both messages are sent, or one of them is unknown. Two sends are at least a week apart.
async fn sent_a_week_apart(run: &Run) {
    let rows = run.world.rows("OutboundTable").await;
    let messages: Vec<_> = rows.iter().filter(|row| row["sk"] == "MESSAGE").collect();
    assert_eq!(messages.len(), 2);
    assert!(messages.iter().all(|row| row["state"] == "SENT" || row["state"] == "UNKNOWN"), "{messages:?}");
    let mut sends: Vec<_> =
        messages.iter().filter_map(|row| row["sent_at"].as_str().and_then(Timestamp::parse)).collect();
    sends.sort_unstable();
    assert!(sends.windows(2).all(|pair| pair[1] >= pair[0].plus_days(7)), "two sends in one week: {sends:?}");
}

/// SES accepts a mail and then rejects it.
async fn reject(run: &Run) {
    schedule(run, 9).await;
    run.world.stack.email_events().switch(false);
    let id = mail(run).await;
    run.world.drain().await;
    report(run, &id, "Reject").await;
}

/// The answer of SES is lost, an operator says that the mail was not sent, and SES delivers it.
async fn prove(run: &Run) {
    schedule(run, 9).await;
    run.world.stack.email_events().switch(false);
    let lost = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::DropReply) };
    run.world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
    let id = mail(run).await;
    run.world.drain().await;
    let path = format!("/outbound/messages/{id}/settle");
    let settled = run.ask("settle", "settle", &path, &json!({"sent": false})).await;
    assert_eq!((settled.status, &settled.body["status"]), (200, &json!("FAILED")), "{}", settled.body);
    report(run, &id, "Delivery").await;
}

async fn mail(run: &Run) -> String {
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    accept(run, 0, json!({"channel": "email", "to": "ana@example.com", "content": content})).await
}

/// SES reports what it did with the mail.
async fn report(run: &Run, id: &str, kind: &str) {
    let at = run.world.now().to_string();
    let tags = json!({"message_id": [id], "attempt": ["1"]});
    let mail = json!({"timestamp": at, "messageId": "0100-x", "destination": ["ana@example.com"], "tags": tags});
    let about = json!({"timestamp": at});
    let detail = json!({"eventType": kind, "mail": mail, (kind.to_lowercase()): about});
    let event = json!({"source": "aws.ses", "detail": detail});
    run.world.send_to_queue("umavez-dev-delivery-events", &event.to_string()).await;
    run.world.drain().await;
}

/// A message that failed has released its place in the guard. A message that is unknown keeps it.
async fn held_unless_failed(run: &Run) {
    let rows = run.world.rows("OutboundTable").await;
    let due = rows.iter().find(|row| row["intent"]["reference_id"] == reference(0)).expect("the message");
    match due["state"].as_str() {
        Some("FAILED") => held_days_are(run, &[9]).await,
        Some("UNKNOWN") => held_days_are(run, &[0, 9]).await,
        _ => panic!("neither failed nor unknown: {due}"),
    }
}

async fn only_the_sent_one_is_held(run: &Run) {
    held_days_are(run, &[0]).await;
}

/// The guard has the holds of these days, and no others.
async fn held_days_are(run: &Run, days: &[i64]) {
    let rows = run.world.rows("IntentsTable").await;
    let guards: Vec<_> = rows.iter().filter(|row| row["holds"].is_array()).collect();
    assert_eq!(guards.len(), 1, "one guard");
    let standing: Vec<_> =
        guards[0]["holds"].as_array().into_iter().flatten().map(|hold| &hold["reference_id"]).collect();
    let expected: Vec<_> = days.iter().map(|days| json!(reference(*days))).collect();
    assert_eq!(standing, expected.iter().collect::<Vec<_>>());
}
