//! Downsells: a trigger creates each offer once, an offer is sent once and only while something is
//! unpaid, and the answer to a payment stays true.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::webhooks::standard::{key_bytes, sign};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{Answer, Setup};

use crate::run::{Point, Run};
use crate::scenario::Scenario;
use crate::scenarios::outbound;

const CHAT: i64 = 987_654_321;
const SECRET: &str = "whsec_bG9jYWwtcGF5bWVudC1zZWNyZXQtMDAwMQ==";
const DOWNSELLS: &str = "/api/admin/bots/default/downsells";
/// How often a gateway retries a webhook that was not accepted.
const TRIES: usize = 8;

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
            "a charge schedules an offer, a sweep enqueues it, and it is sent",
            |run| Box::pin(swept(run)),
            |run| Box::pin(sent_once(run)),
            |point| {
                let intake = point.function == "webhook-intake" && is_of_downsells(point);
                let sweep = point.function == "downsell-sweep" && (point.operation == "UpdateItem" || point.nth == 1);
                let relay = point.function == "outbox-relay" && point.nth == 1;
                // The second transaction ends the offer together with its slot.
                let sender = point.function == "outbound-sender"
                    && (is_of_downsells(point) || point.service == "telegram")
                    && point.nth <= 2;
                intake || sweep || relay || sender
            },
        ),
        scenario(
            "a start schedules an offer, and a payment cancels it",
            |run| Box::pin(paid(run)),
            |run| Box::pin(nothing_sent(run)),
            |point| point.function == "webhook-intake" && is_of_downsells(point),
        ),
        scenario(
            "a charge expires, reported or not, and its offers end",
            |run| Box::pin(expired(run)),
            |run| Box::pin(nothing_sent(run)),
            |point| {
                let reported = point.function == "webhook-intake"
                    && (point.operation == "TransactWriteItems" && point.nth > 2 || point.operation == "PutItem");
                reported || point.function == "recovery" && is_of_downsells(point) && point.nth <= 3
            },
        ),
        scenario(
            "a sender of an offer times out",
            |run| Box::pin(abandoned(run)),
            |run| Box::pin(unknown_once(run)),
            |point| point.function == "recovery" && is_of_downsells(point) && point.nth <= 2,
        ),
        scenario(
            "a payment recalls an offer whose attempt is in progress",
            |run| Box::pin(paid_under_way(run)),
            |run| Box::pin(recalled(run)),
            |point| point.function == "webhook-intake" && point.operation == "UpdateItem",
        ),
        scenario(
            "a start lifts a block, a charge joins its offer, and it is sent",
            |run| Box::pin(joined(run)),
            |run| Box::pin(sent_for_the_charge(run)),
            |point| {
                let is_write = matches!(point.operation.as_str(), "UpdateItem" | "TransactWriteItems");
                point.function == "webhook-intake" && is_write
            },
        ),
        scenario(
            "payments of downsells with odd bodies",
            |run| Box::pin(odd_bodies(run)),
            |run| Box::pin(nothing_sent(run)),
            |point| point.function == "webhook-intake" && is_of_downsells(point),
        ),
        scenario(
            "a charge expires, reported or not, and its offer goes to the next one",
            |run| Box::pin(passed_on(run)),
            |run| Box::pin(sent_for_the_last(run)),
            |point| {
                let reported = point.function == "webhook-intake" && is_of_downsells(point) && point.nth > 2;
                reported || point.function == "recovery" && is_of_downsells(point) && point.nth <= 3
            },
        ),
        scenario(
            "a sender finds the charge of an offer expired and passes it on",
            |run| Box::pin(passed_on_by_sender(run)),
            |run| Box::pin(sent_for_the_last(run)),
            |point| point.function == "outbound-sender" && is_of_downsells(point) && point.nth <= 3,
        ),
        scenario(
            "an operator settles an offer",
            |run| Box::pin(settled(run)),
            |run| Box::pin(failed_for_good(run)),
            |point| point.function == "admin" && point.operation == "TransactWriteItems",
        ),
        scenario(
            "a downsell is created, changed, tested and deleted",
            |run| Box::pin(set_up_and_down(run)),
            |run| Box::pin(is_gone(run)),
            |point| point.function == "admin",
        ),
    ]
}

fn is_of_downsells(point: &Point) -> bool {
    point.target.contains("downsells") || point.operation == "TransactWriteItems"
}

async fn set_up(run: &Run, more: Value) {
    let answer = run.ask("bot", "b", "/api/admin/bots", &json!({"slug": "default"})).await;
    assert!(answer.status < 300, "{}", answer.body);
    let mut body = json!({"name": "Oferta", "content": {"text": "Ainda está aí?"}});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = run.ask("downsell", "d", DOWNSELLS, &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

/// Delivers a webhook of a gateway until it is accepted.
async fn gateway(run: &Run, what: &str, body: &Value) -> Answer {
    let text = body.to_string();
    for _ in 0..TRIES {
        let signed = sign(&[&key_bytes(SECRET)], "evt_1", run.world.now(), text.as_bytes());
        let request = run
            .world
            .request(Method::POST, &format!("/api/payment/webhook/{what}"))
            .header("content-type", "application/json")
            .header("webhook-id", signed.id)
            .header("webhook-timestamp", signed.timestamp.to_string())
            .header("webhook-signature", signed.signature);
        let answer = run.world.send(request.body(text.clone())).await;
        if answer.status < 500 {
            assert_eq!(answer.status, 200, "refused: {}", answer.body);
            return answer;
        }
    }
    panic!("{what} was not accepted in {TRIES} tries");
}

fn charge(transaction: &str) -> Value {
    json!({"bot_slug": "default", "telegram_id": CHAT, "transaction_id": transaction})
}

async fn starts(run: &Run, update_id: u64) {
    let chat = json!({"id": CHAT, "type": "private", "first_name": "Ana"});
    let from = json!({"id": CHAT, "is_bot": false, "first_name": "Ana"});
    let date = run.world.now().seconds();
    let message = json!({"message_id": update_id, "from": from, "chat": chat, "date": date, "text": "/start"});
    let body = json!({"update_id": update_id, "message": message});
    for _ in 0..TRIES {
        let request = run.world.request(Method::POST, "/webhooks/telegram/default");
        let request = request.header("x-telegram-bot-api-secret-token", "local-telegram-secret").json(&body);
        let answer = run.world.send(request).await;
        if answer.status < 500 {
            assert_eq!(answer.status, 200, "refused: {}", answer.body);
            return;
        }
    }
    panic!("a start was not accepted in {TRIES} tries");
}

async fn seconds(run: &Run, seconds: u64) {
    run.world.drain().await;
    run.world.advance(Duration::from_secs(seconds)).await;
}

async fn swept(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 20})).await;
    gateway(run, "pix-created", &charge("tx-1")).await;
    seconds(run, 600).await;
    run.world.tick("DownsellSweep").await;
    seconds(run, 605).await;
}

async fn paid(run: &Run) {
    set_up(run, json!({"after_start": true, "delay_minutes": 10})).await;
    starts(run, 1).await;
    gateway(run, "pix-created", &charge("tx-1")).await;
    let answer = gateway(run, "payment-approved", &charge("tx-1")).await;
    assert_eq!((&answer.body["canceled"], &answer.body["in_flight"]), (&json!(1), &json!(0)), "{}", answer.body);
    seconds(run, 700).await;
}

async fn expired(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 30, "rearm": "once_ever"})).await;
    gateway(run, "pix-created", &charge("tx-1")).await;
    let answer = gateway(run, "pix-expired", &json!({"transaction_id": "tx-1"})).await;
    assert_eq!(answer.body["canceled"], 1, "{}", answer.body);
    let mut silent = charge("tx-2");
    silent["expires_at"] = json!(run.world.now().plus_ms(300_000).to_string());
    gateway(run, "pix-created", &silent).await;
    // Charges that had expired before their creation was reported.
    gateway(run, "pix-expired", &json!({"transaction_id": "tx-3"})).await;
    let mut over = charge("tx-4");
    over["expires_at"] = json!(run.world.now().plus_ms(-1_000).to_string());
    gateway(run, "pix-created", &over).await;
    for transaction in ["tx-3", "tx-4"] {
        let answer = gateway(run, "pix-created", &charge(transaction)).await;
        assert_eq!(
            (&answer.body["charge"], &answer.body["scheduled"]),
            (&json!("expired"), &json!(0)),
            "{}",
            answer.body
        );
    }
    seconds(run, 400).await;
    run.world.tick("Recovery").await;
    seconds(run, 1_800).await;
}

/// Returns a charge with these fields added or replaced; null fields are left out.
fn with(transaction: &str, more: &Value) -> Value {
    let mut body = charge(transaction);
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    fields.retain(|_, value| !value.is_null());
    body
}

/// Extra fields of the gateway, ids as text, another contact's id, and no owner at all.
async fn odd_bodies(run: &Run) {
    set_up(run, json!({"after_start": true, "after_pix": true, "delay_minutes": 10})).await;
    let as_text = json!({"telegram_id": CHAT.to_string(), "amount": 1990, "status": "pending"});
    gateway(run, "pix-created", &with("41", &as_text)).await;
    let odd = json!({"transaction_id": 41, "telegram_id": CHAT + 1, "bot_slug": null, "status": "approved"});
    let answer = gateway(run, "payment-approved", &with("41", &odd)).await;
    assert_eq!((&answer.body["canceled"], &answer.body["in_flight"]), (&json!(1), &json!(0)), "{}", answer.body);
    assert_eq!(answer.body["differs"], json!(["telegram_id"]), "{}", answer.body);
    // The charge identifies the owner of a payment that names none.
    starts(run, 1).await;
    let unplaced = json!({"transaction_id": "42", "amount": 1990});
    let answer = gateway(run, "payment-approved", &unplaced).await;
    assert_eq!(
        (&answer.body["charge"], &answer.body["owner_known"]),
        (&json!("paid"), &json!(false)),
        "{}",
        answer.body
    );
    let answer = gateway(run, "pix-created", &charge("42")).await;
    assert_eq!((&answer.body["charge"], &answer.body["scheduled"]), (&json!("paid"), &json!(0)), "{}", answer.body);
    seconds(run, 700).await;
}

async fn passed_on(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 30})).await;
    gateway(run, "pix-created", &charge("tx-1")).await;
    let short = json!({"expires_at": run.world.now().plus_ms(300_000).to_string()});
    gateway(run, "pix-created", &with("tx-2", &short)).await;
    for _ in 0..2 {
        let answer = gateway(run, "pix-expired", &json!({"transaction_id": "tx-1"})).await;
        assert_eq!((&answer.body["canceled"], &answer.body["passed_on"]), (&json!(0), &json!(1)), "{}", answer.body);
    }
    gateway(run, "pix-created", &charge("tx-3")).await;
    seconds(run, 400).await;
    run.world.tick("Recovery").await;
    seconds(run, 1_000).await;
    run.world.tick("DownsellSweep").await;
    seconds(run, 900).await;
}

async fn passed_on_by_sender(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 2})).await;
    let short = json!({"expires_at": run.world.now().plus_ms(90_000).to_string()});
    gateway(run, "pix-created", &with("tx-1", &short)).await;
    seconds(run, 60).await;
    gateway(run, "pix-created", &charge("tx-3")).await;
    seconds(run, 65).await;
    seconds(run, 65).await;
}

/// The offer was sent once, for the charge that can be paid, or its outcome is unknown.
async fn sent_for_the_last(run: &Run) {
    sent_once(run).await;
    assert_eq!(rows(run).await[0]["transaction_id"], "tx-3");
}

async fn abandoned(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 1})).await;
    let dies = CallFault { service: Some("telegram".to_owned()), ..CallFault::first(Action::KillBefore) };
    run.world.stack.add_fault(Fault::Call(dies)).await.expect("armed");
    gateway(run, "pix-created", &charge("tx-1")).await;
    seconds(run, 65).await;
    seconds(run, 660).await;
    run.world.tick("Recovery").await;
}

/// The payment arrives while the attempt of a dead sender is in progress.
async fn paid_under_way(run: &Run) {
    set_up(run, json!({"after_start": false, "after_pix": true, "delay_minutes": 1})).await;
    let dies = CallFault { service: Some("telegram".to_owned()), ..CallFault::first(Action::KillBefore) };
    run.world.stack.add_fault(Fault::Call(dies)).await.expect("armed");
    gateway(run, "pix-created", &charge("tx-1")).await;
    seconds(run, 65).await;
    let paid = gateway(run, "payment-approved", &charge("tx-1")).await;
    assert_eq!((&paid.body["canceled"], &paid.body["in_flight"]), (&json!(0), &json!(1)), "{}", paid.body);
    seconds(run, 660).await;
    run.world.tick("Recovery").await;
}

/// The attempt is unknown, the payment recalled it, and there is no other attempt.
async fn recalled(run: &Run) {
    unknown_once(run).await;
    let rows = rows(run).await;
    assert_eq!((&rows[0]["recalled"], &rows[0]["cancel_reason"]), (&json!(1), &json!("paid")), "{}", rows[0]);
}

async fn joined(run: &Run) {
    let tokens = json!({"telegram": {"default": "1:a", "second": "2:b"}});
    run.world.stack.secrets().set("Senders", &tokens).expect("set");
    outbound::blocked(run, "a", "default").await;
    outbound::blocked(run, "b", "second").await;
    assert_eq!(blocks(run).await, [json!(["default", "second"])]);
    set_up(run, json!({"after_start": true, "after_pix": true, "delay_minutes": 2})).await;
    starts(run, 1).await;
    gateway(run, "pix-created", &charge("tx-1")).await;
    seconds(run, 125).await;
}

/// Returns the bots that the user has blocked, for each row.
async fn blocks(run: &Run) -> Vec<Value> {
    let listed = run.world.get(&format!("/suppressions?channel=telegram&to={CHAT}")).await;
    let listed = listed.body["suppressions"].as_array().expect("a list").clone();
    listed.iter().map(|one| one["senders"].clone()).collect()
}

async fn settled(run: &Run) {
    abandoned(run).await;
    run.world.drain().await;
    let rows = rows(run).await;
    let path = format!("/api/admin/bots/default/queue/{}/settle", rows[0]["id"].as_str().expect("an id"));
    let answer = run.ask("settle", "s", &path, &json!({"telegram_id": CHAT, "sent": false})).await;
    assert_eq!((answer.status, &answer.body["offer"]["status"]), (200, &json!("failed")), "{}", answer.body);
}

async fn set_up_and_down(run: &Run) {
    set_up(run, json!({"delay_minutes": 1})).await;
    let change = br#"{"name": "Loja"}"#.to_vec();
    let changed = run.ask_with("bot", "u", Method::PUT, "/api/admin/bots/default", "application/json", change).await;
    assert_eq!((changed.status, &changed.body["bot"]["name"]), (200, &json!("Loja")), "{}", changed.body);
    let path = format!("{DOWNSELLS}/1");
    let change = br#"{"name": "Outra"}"#.to_vec();
    let changed = run.ask_with("change", "c", Method::PUT, &path, "application/json", change).await;
    assert_eq!((changed.status, &changed.body["downsell"]["name"]), (200, &json!("Outra")), "{}", changed.body);
    let tried = run.ask("test", "t", &format!("{path}/test"), &json!({"telegram_id": CHAT})).await;
    assert_eq!(tried.status, 202, "{}", tried.body);
    run.world.drain().await;
    let deleted = run.ask_with("delete", "x", Method::DELETE, &path, "application/json", Vec::new()).await;
    assert!(deleted.status == 200 || deleted.status == 404, "{}", deleted.body);
}

async fn rows(run: &Run) -> Vec<Value> {
    let rows = run.world.rows("DownsellsTable").await;
    rows.into_iter().filter(|row| row["scheduled_at"].is_string()).collect()
}

fn sent(run: &Run) -> usize {
    run.world.stack.catcher().sent(Some("telegram"), None).len()
}

/// The offer was sent once; or its outcome is unknown, and it was sent at most once.
async fn sent_once(run: &Run) {
    let rows = rows(run).await;
    assert_eq!(rows.len(), 1, "not one offer for one event: {rows:?}");
    match (rows[0]["status"].as_str(), rows[0]["state"].as_str()) {
        (Some("sent"), Some("SENT")) => assert_eq!(sent(run), 1),
        (Some("pending"), Some("UNKNOWN")) => assert!(sent(run) <= 1),
        _ => panic!("neither sent nor unknown: {}", rows[0]),
    }
}

async fn nothing_sent(run: &Run) {
    assert_eq!(sent(run), 0, "sent after the charge was paid or expired");
    let rows = rows(run).await;
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(row["status"], "canceled", "{row}");
    }
}

async fn unknown_once(run: &Run) {
    let rows = rows(run).await;
    assert_eq!((rows.len(), &rows[0]["state"], &rows[0]["attempt"]), (1, &json!("UNKNOWN"), &json!(1)));
    assert_eq!(sent(run), 0);
}

async fn sent_for_the_charge(run: &Run) {
    sent_once(run).await;
    let rows = rows(run).await;
    assert_eq!((&rows[0]["trigger"], &rows[0]["transaction_id"]), (&json!("pix"), &json!("tx-1")), "{}", rows[0]);
    assert_eq!(blocks(run).await, [json!(["second"])], "a start lifts only the block of its own bot");
}

async fn failed_for_good(run: &Run) {
    let rows = rows(run).await;
    assert_eq!((rows.len(), &rows[0]["status"], &rows[0]["attempt"]), (1, &json!("failed"), &json!(1)), "{rows:?}");
    assert_eq!(sent(run), 0);
}

async fn is_gone(run: &Run) {
    let left = run.world.get(DOWNSELLS).await;
    assert_eq!(left.body["downsells"], json!([]), "{}", left.body);
    assert_eq!(sent(run), 1, "not one test message");
}
