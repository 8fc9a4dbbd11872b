//! Messages: accepted once, one call per attempt, never lost, and the intent is kept or released as
//! the outcome requires.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_tests::Setup;

use crate::run::{Point, Run};
use crate::scenario::Scenario;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";

pub fn scenarios() -> Vec<Scenario> {
    let scenario = |name, play, audit, strikes| Scenario {
        name,
        setup: Setup::default,
        play,
        audit,
        concurrent: false,
        swept: true,
        strikes,
    };
    vec![
        scenario(
            "a telegram message is sent",
            |run| Box::pin(send(run, telegram())),
            |run| Box::pin(sent_or_unknown(run)),
            // One query of recovery represents all of them.
            |point| point.function != "recovery" || point.operation != "Query" || point.nth == 1,
        ),
        // The steps before the provider are the same for every channel.
        scenario(
            "a whatsapp message is sent",
            |run| Box::pin(send(run, whatsapp())),
            |run| Box::pin(sent_or_unknown(run)),
            |point| point.service == "evolution",
        ),
        scenario(
            "a mail is sent, and its events confirm it",
            |run| Box::pin(send(run, email())),
            |run| Box::pin(reconciled(run)),
            |point| point.service == "ses" || point.function == "delivery-events" || is_outcome(point),
        ),
        scenario(
            "a message is scheduled and sent at its time",
            |run| Box::pin(schedule(run)),
            |run| Box::pin(sent_or_unknown(run)),
            |point| point.function == "outbound-sweep" && (point.operation != "Query" || point.nth == 1),
        ),
        scenario(
            "a message is cancelled",
            |run| Box::pin(cancel(run)),
            |run| Box::pin(canceled(run)),
            |point| point.function == "outbound-api" && point.nth > 1 || point.operation == "GetItem",
        ),
        scenario(
            "a user has blocked the bot",
            |run| Box::pin(blocked(run, "a", "default")),
            |run| Box::pin(suppressed(run)),
            |point| point.function == "outbound-sender" && point.operation == "TransactWriteItems",
        ),
        scenario(
            "an operator resends an unknown message",
            |run| Box::pin(resend(run)),
            |run| Box::pin(resent_once(run)),
            |point| point.function == "outbound-api" && point.nth > 1 || point.function == "outbox-relay",
        ),
        scenario(
            "a sender times out",
            |run| Box::pin(abandon(run)),
            |run| Box::pin(unknown(run)),
            |point| point.function == "recovery" && (point.operation != "Query" || point.nth == 1),
        ),
        Scenario {
            concurrent: true,
            ..scenario(
                "rivals with one intent",
                |run| Box::pin(rivals(run)),
                |run| Box::pin(one_of_them(run)),
                |point| point.function == "outbound-api",
            )
        },
    ]
}

fn is_outcome(point: &Point) -> bool {
    point.function == "outbound-sender" && point.operation == "UpdateItem" && point.nth > 1
}

fn with_intent(mut body: Value) -> Value {
    body["intent"] = json!({"client_id": CLIENT, "intent_type": "reactivation_nudge"});
    body
}

fn telegram() -> Value {
    json!({"channel": "telegram", "to": "987654321", "content": {"text": "Oi"}})
}

fn whatsapp() -> Value {
    json!({"channel": "whatsapp", "to": "5511912345678", "content": {"text": "Oi"}})
}

fn email() -> Value {
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    json!({"channel": "email", "to": "ana@example.com", "content": content})
}

async fn accept(run: &Run, key: &str, body: Value) -> String {
    let answer = run.ask(&format!("send {key}"), key, "/outbound/messages", &with_intent(body)).await;
    assert_eq!(answer.status, 202, "a message was refused: {}", answer.body);
    answer.text("/message_id")
}

async fn send(run: &Run, body: Value) {
    accept(run, "a", body).await;
}

async fn schedule(run: &Run) {
    let mut body = telegram();
    body["send_at"] = json!(run.world.now().plus_ms(3_600_000).to_string());
    accept(run, "a", body).await;
    run.world.drain().await;
    run.world.advance(Duration::from_secs(3_000)).await;
    run.world.tick("OutboundSweep").await;
    run.world.advance(Duration::from_secs(700)).await;
}

async fn cancel(run: &Run) {
    let mut body = telegram();
    body["send_at"] = json!(run.world.now().plus_ms(600_000).to_string());
    let id = accept(run, "a", body).await;
    let answer = run.ask("cancel", "c", &format!("/outbound/messages/{id}/cancel"), &json!({})).await;
    assert_eq!(answer.body["canceled"], true, "{}", answer.body);
    accept(run, "b", telegram()).await;
    run.world.drain().await;
}

/// Arms a fault of the scenario's own at the provider.
async fn provider(run: &Run, fault: CallFault) {
    let fault = CallFault { service: Some("telegram".to_owned()), ..fault };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

/// Chat 987654321 has blocked a bot, and a message to it fails for that reason.
pub async fn blocked(run: &Run, key: &str, sender: &str) {
    let body = json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"});
    let answer = Scripted { status: 403, headers: Default::default(), body };
    provider(run, CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) }).await;
    let mut body = telegram();
    body["sender"] = json!(sender);
    accept(run, key, body).await;
    run.world.drain().await;
}

async fn resend(run: &Run) {
    provider(run, CallFault::first(Action::DropReply)).await;
    let id = accept(run, "a", telegram()).await;
    run.world.drain().await;
    let answer = run.ask("resend", "r", &format!("/outbound/messages/{id}/resend"), &json!({})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    run.world.drain().await;
}

async fn abandon(run: &Run) {
    provider(run, CallFault::first(Action::KillBefore)).await;
    accept(run, "a", telegram()).await;
    run.world.drain().await;
    run.world.advance(Duration::from_secs(60)).await;
    run.world.tick("Recovery").await;
}

async fn rivals(run: &Run) {
    let ask = |key: &'static str| async move {
        let answer = run.ask(key, key, "/outbound/messages", &with_intent(telegram())).await;
        (answer.status, answer.text("/status"))
    };
    let (a, b) = tokio::join!(ask("a"), ask("b"));
    let mut statuses = [a, b];
    statuses.sort();
    let expected = [(200, "DEDUPED".to_owned()), (202, "QUEUED".to_owned())];
    assert_eq!(statuses, expected, "not exactly one of two is sent");
}

async fn rows(run: &Run) -> Vec<Value> {
    let rows = run.world.rows("OutboundTable").await;
    let mut messages: Vec<_> = rows.into_iter().filter(|row| row["sk"] == "MESSAGE").collect();
    messages.sort_by_key(|row| row["asked_at"].to_string());
    for row in &messages {
        // I5: no attempt called the provider twice. I4: no message is still in progress.
        let attempts = row["attempt"].as_u64().unwrap_or(0) as usize;
        assert!(calls(run) <= attempts.max(1) * messages.len(), "more calls than attempts: {row}");
        let state = row["state"].as_str().expect("a state");
        assert!(state != "QUEUED" && state != "SENDING", "accepted, and lost: {row}");
        assert_eq!(
            row["wake"].is_string(),
            state == "UNKNOWN",
            "exactly unknown messages are in the index by time: {row}"
        );
        assert_eq!(row["expires_at"].is_number(), state != "UNKNOWN", "{row}");
    }
    messages
}

fn calls(run: &Run) -> usize {
    let providers = ["telegram", "evolution", "ses"];
    run.world.stack.calls().since(0).iter().filter(|call| providers.contains(&call.service.as_str())).count()
}

fn sends(run: &Run) -> usize {
    run.world.stack.catcher().sent(None, None).len()
}

async fn the_one(run: &Run) -> Value {
    let mut rows = rows(run).await;
    assert_eq!(rows.len(), 1, "not one message");
    rows.remove(0)
}

/// Checks the intent of a message that ended in this state.
async fn intent_follows(run: &Run, row: &Value) {
    let intents = run.world.rows("IntentsTable").await;
    let intent = intents.iter().find(|intent| intent["fingerprint"] == row["intent"]["fingerprint"]);
    let intent = intent.expect("the intent was taken with the message");
    let ended_unsent = ["FAILED", "CANCELED", "EXPIRED", "SUPPRESSED"].contains(&row["state"].as_str().unwrap_or(""));
    let held_by_it =
        intent["status"] == "HELD" && intent["holder"] == format!("message:{}", row["id"].as_str().unwrap_or_default());
    assert_eq!(held_by_it, !ended_unsent, "{} and {}", row["state"], intent["status"]);
}

/// The message was sent once and is SENT, or it was sent at most once and is UNKNOWN.
async fn sent_or_unknown(run: &Run) {
    let row = the_one(run).await;
    match row["state"].as_str() {
        Some("SENT") => assert_eq!(sends(run), 1, "{row}"),
        Some("UNKNOWN") => assert!(sends(run) <= 1, "{row}"),
        _ => panic!("neither sent nor unknown: {row}"),
    }
    // Only faults at the claim, the call and the outcome may leave it unknown.
    let around = ["telegram", "evolution", "ses"];
    let struck = run.world.stack.calls().since(0).into_iter().filter(|call| call.fault.is_some());
    let at_the_call = struck.filter(|call| {
        let claim_or_outcome = ["TransactWriteItems", "UpdateItem"].contains(&call.operation.as_str());
        call.caller == "outbound-sender" && (around.contains(&call.service.as_str()) || claim_or_outcome)
    });
    assert!(row["state"] == "SENT" || at_the_call.count() > 0, "unknown for no reason: {row}");
    intent_follows(run, &row).await;
}

/// If the provider accepted the message, its events have proved it sent.
async fn reconciled(run: &Run) {
    let row = the_one(run).await;
    assert!(sends(run) <= 1, "{row}");
    if sends(run) == 1 {
        assert_eq!(row["state"], "SENT", "{row}");
        assert!(row["delivered_at"].is_string(), "{row}");
        let delivered = row["ledger"].as_array().into_iter().flatten().filter(|entry| entry["code"] == "delivered");
        assert!(delivered.count() <= 1, "{row}");
    } else {
        assert_eq!(row["state"], "UNKNOWN", "{row}");
    }
    intent_follows(run, &row).await;
}

async fn canceled(run: &Run) {
    let rows = rows(run).await;
    let states: Vec<_> = rows.iter().map(|row| row["state"].as_str().unwrap_or_default()).collect();
    assert_eq!(states, ["CANCELED", "SENT"], "one is canceled, and the other gets its intent");
    assert_eq!(sends(run), 1);
    intent_follows(run, &rows[1]).await;
}

async fn suppressed(run: &Run) {
    let row = the_one(run).await;
    assert_eq!(sends(run), 0);
    let listed = run.world.rows("OutboundTable").await;
    let listed = listed.iter().any(|row| row["status"] == "ACTIVE" && row["reason"] == "bot_blocked");
    match row["state"].as_str() {
        Some("FAILED") => assert!(listed, "failed, but not suppressed: {row}"),
        Some("UNKNOWN") => assert!(!listed, "{row}"),
        _ => panic!("neither failed nor unknown: {row}"),
    }
    intent_follows(run, &row).await;
}

async fn resent_once(run: &Run) {
    let row = the_one(run).await;
    assert_eq!(row["attempt"], 2, "not resent exactly once: {row}");
    assert_eq!((&row["state"], sends(run)), (&json!("SENT"), 2), "{row}");
    intent_follows(run, &row).await;
}

async fn unknown(run: &Run) {
    let row = the_one(run).await;
    assert_eq!((&row["state"], &row["attempt"], sends(run)), (&json!("UNKNOWN"), &json!(1), 0), "{row}");
    intent_follows(run, &row).await;
}

async fn one_of_them(run: &Run) {
    let rows = rows(run).await;
    let mut states: Vec<_> = rows.iter().map(|row| row["state"].as_str().unwrap_or_default()).collect();
    states.sort_unstable();
    assert_eq!(states, ["DEDUPED", "SENT"]);
    assert_eq!(sends(run), 1);
}
