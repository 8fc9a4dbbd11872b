//! Offers follow a /start or a charge, wait for their time, are sent once, and only while something
//! is unpaid.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::channels::Channel;
use umavez_domain::keys;
use umavez_domain::suppression::SuppressionRow;
use umavez_domain::webhooks::standard::{key_bytes, sign};
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::due;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Write;
use umavez_tests::{Answer, KEY, Setup, World, play, play_with};

use crate::conversations::update;
use crate::outbound::sending;

pub const CHAT: i64 = 987_654_321;
const SECRET: &str = "whsec_bG9jYWwtcGF5bWVudC1zZWNyZXQtMDAwMQ==";
const DOWNSELLS: &str = "/api/admin/bots/default/downsells";
const QUEUE: &str = "/api/admin/bots/default/queue";

pub async fn bot(world: &World) {
    let answer = world.post("/api/admin/bots", &json!({"slug": "default"})).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

/// Creates a downsell with these fields beside its name and its text. Returns its number.
pub async fn downsell(world: &World, more: &Value) -> u64 {
    let mut body = json!({"name": "Oferta", "content": {"text": "Ainda está aí?"}, "delay_minutes": 1});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = world.post(DOWNSELLS, &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body["downsell"]["id"].as_u64().expect("a number")
}

pub async fn put(world: &World, path: &str, body: &Value) -> Answer {
    world.send(world.request(Method::PUT, path).bearer_auth(KEY).json(body)).await
}

/// Delivers a /start of a contact with the current time.
pub async fn starts(world: &World, chat: i64, update_id: u64) -> Answer {
    let body = update(chat, update_id, "/start promo-7", world.now().seconds());
    let header = ("x-telegram-bot-api-secret-token", "local-telegram-secret");
    let request = world.request(Method::POST, "/webhooks/telegram/default").header(header.0, header.1).json(&body);
    world.send(request).await
}

/// Delivers a webhook of the default gateway, signed now. `what` may have a query.
pub async fn gateway(world: &World, what: &str, body: &Value) -> Answer {
    let text = body.to_string();
    let signed = sign(&[&key_bytes(SECRET)], "evt_1", world.now(), text.as_bytes());
    let request = world
        .request(Method::POST, &format!("/api/payment/webhook/{what}"))
        .header("content-type", "application/json")
        .header("webhook-id", signed.id)
        .header("webhook-timestamp", signed.timestamp.to_string())
        .header("webhook-signature", signed.signature);
    world.send(request.body(text)).await
}

pub fn charge(transaction: &str) -> Value {
    json!({"bot_slug": "default", "telegram_id": CHAT, "transaction_id": transaction})
}

pub async fn charged(world: &World, transaction: &str) -> Answer {
    let answer = gateway(world, "pix-created", &charge(transaction)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

pub async fn pays(world: &World, transaction: &str) -> Answer {
    let answer = gateway(world, "payment-approved", &charge(transaction)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

/// Returns the answer to a payment or an expiry whose contact is known: canceled, in flight,
/// already sent and passed on.
pub fn withdrawn(charge: &str, [canceled, in_flight, already_sent, passed_on]: [u32; 4]) -> Value {
    json!({
        "ok": true, "charge": charge, "canceled": canceled, "in_flight": in_flight, "already_sent": already_sent,
        "passed_on": passed_on, "differs": [], "owner_known": true,
    })
}

pub async fn seconds(world: &World, seconds: u64) {
    world.advance(Duration::from_secs(seconds)).await;
}

/// Returns the offers of the bot, the newest first.
pub async fn queue(world: &World) -> Vec<Value> {
    world.get(QUEUE).await.body["queue"].as_array().expect("a queue").clone()
}

/// Returns the only offer.
pub async fn offer(world: &World) -> Value {
    let queue = queue(world).await;
    assert_eq!(queue.len(), 1, "not one offer: {queue:?}");
    queue[0].clone()
}

/// Returns the number of messages that were sent to the contact.
pub fn offers(world: &World) -> usize {
    world.stack.catcher().sent(Some("telegram"), Some(&CHAT.to_string())).len()
}

pub async fn at_telegram(world: &World, fault: CallFault) {
    let fault = CallFault { service: Some("telegram".to_owned()), ..fault };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

fn refusal(status: u16, body: Value) -> CallFault {
    let answer = Scripted { status, headers: Default::default(), body };
    CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) }
}

#[tokio::test]
async fn an_offer_follows_a_start_when_a_charge_is_unpaid() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": true, "after_pix": false})).await;
        let answer = starts(world, CHAT, 1).await;
        assert_eq!((answer.status, &answer.body["scheduled"]), (200, &json!(1)), "{}", answer.body);
        assert_eq!(charged(world, "tx-1").await.body["scheduled"], 0, "the downsell is only for a /start");
        seconds(world, 55).await;
        assert_eq!(offers(world), 0, "sent before its delay was over");
        seconds(world, 10).await;
        assert_eq!(offers(world), 1);
        let offer = offer(world).await;
        assert_eq!(
            (&offer["status"], &offer["trigger"], &offer["attempts"]),
            (&json!("sent"), &json!("start"), &json!(1))
        );
        assert_eq!(offer["event_id"], format!("default:{CHAT}:1:start:7001"));
        assert_eq!(offer["meta"], json!({"payload": "promo-7"}));
        let started = world.events("START_HANDLED");
        assert_eq!((started.len(), &started[0]["scheduled"]), (1, &json!(1)));
        assert_eq!(
            offer["correlation_id"], started[0]["request_id"],
            "the request id, because no correlation id was given"
        );
        for (event, count) in [("DOWNSELL_SCHEDULED", 1), ("DOWNSELL_SENT", 1), ("DOWNSELL_SKIPPED", 0)] {
            assert_eq!(world.events(event).len(), count, "{event}");
        }
        let words = &world.stack.catcher().sent(Some("telegram"), None)[0].body["text"];
        assert_eq!(words, "Ainda está aí?");
    })
    .await;
}

#[tokio::test]
async fn an_offer_follows_a_charge() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        let mut body = charge("tx-test-123");
        body["correlation_id"] = json!("req-xyz");
        let answer = gateway(world, "pix-created", &body).await;
        let expected = json!({
            "ok": true, "charge": "unpaid", "scheduled": 1, "duplicates": 0, "already_pending": 0, "upgraded": 0,
            "not_rearmed": 0,
        });
        assert_eq!(answer.body, expected);
        seconds(world, 65).await;
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["trigger"]), (&json!("sent"), &json!("pix")));
        assert_eq!((&offer["transaction_id"], &offer["correlation_id"]), (&json!("tx-test-123"), &json!("req-xyz")));
        assert_eq!(world.events("DOWNSELL_SCHEDULED")[0]["correlation_id"], "req-xyz");
    })
    .await;
}

#[tokio::test]
async fn a_payment_cancels_the_pending_offers_and_nothing_is_sent() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": true})).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 30})).await;
        starts(world, CHAT, 1).await;
        charged(world, "tx-1").await;
        let answer = pays(world, "tx-1").await;
        let expected = withdrawn("paid", [2, 0, 0, 0]);
        assert_eq!(answer.body, expected);
        assert_eq!(pays(world, "tx-1").await.body, expected, "a redelivered payment gets the same answer");
        seconds(world, 40 * 60).await;
        world.tick("DownsellSweep").await;
        assert_eq!(offers(world), 0);
        for offer in queue(world).await {
            assert_eq!((&offer["status"], &offer["cancel_reason"]), (&json!("canceled"), &json!("paid")));
        }
        assert_eq!(world.events("DOWNSELL_CANCELED").len(), 2);
        let counted = world.metrics("DownsellsCanceledPaid");
        assert!(!counted.is_empty(), "an embedded metric");
    })
    .await;
}

#[tokio::test]
async fn offers_sent_earlier_are_reported_even_if_their_downsell_was_offered_again() {
    play_with(sending(2), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_pix": true})).await;
        starts(world, CHAT, 1).await;
        charged(world, "tx-1").await;
        seconds(world, 65).await;
        assert_eq!(offers(world), 1, "the offer of a start, upgraded to the charge");
        charged(world, "tx-2").await;
        seconds(world, 65).await;
        charged(world, "tx-3").await;
        let expected =
            |charge: &str, canceled: u32, already_sent: u32| withdrawn(charge, [canceled, 0, already_sent, 0]);
        let expiry = |transaction: &str| json!({"transaction_id": transaction});
        assert_eq!(
            gateway(world, "pix-expired", &expiry("tx-1")).await.body,
            expected("expired", 0, 1),
            "upgraded and sent"
        );
        assert_eq!(
            gateway(world, "pix-expired", &expiry("tx-2")).await.body,
            expected("expired", 0, 1),
            "created and sent"
        );
        assert_eq!(pays(world, "tx-3").await.body, expected("paid", 1, 2));
        assert_eq!(pays(world, "tx-3").await.body, expected("paid", 1, 2), "redelivered");
        charged(world, "tx-4").await;
        assert_eq!(
            pays(world, "tx-4").await.body,
            expected("paid", 1, 0),
            "the first payment has already reported the earlier offers"
        );
        seconds(world, 70).await;
    })
    .await;
}

#[tokio::test]
async fn an_offer_that_cannot_be_enqueued_is_enqueued_at_the_next_tick() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 20})).await;
        charged(world, "tx-1").await;
        seconds(world, 10 * 60).await;
        let throttled = CallFault {
            function: Some("downsell-sweep".to_owned()),
            operation: Some("UpdateItem".to_owned()),
            times: 10,
            ..CallFault::first(Action::Throttle)
        };
        world.stack.add_fault(Fault::Call(throttled)).await.expect("armed");
        world.tick("DownsellSweep").await;
        assert_eq!(world.metrics("DownsellsNotEnqueued").len(), 1);
        world.stack.clear_faults();
        world.tick("DownsellSweep").await;
        seconds(world, 10 * 60).await;
        assert_eq!(offers(world), 1);
    })
    .await;
}

#[tokio::test]
async fn a_sweep_that_runs_out_of_time_is_continued_by_the_next_one() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 20})).await;
        charged(world, "tx-1").await;
        seconds(world, 10 * 60).await;
        let table = world.stack.output("DownsellsTable").expect("a table").to_owned();
        let sweep_within = async |time_left: u64| {
            let invocation = Invocation::new("sweep", world.now(), Duration::from_secs(time_left));
            due::sweep(&world.store, &invocation, &table, async |_| Ok(true)).await
        };
        let swept = sweep_within(4).await;
        assert_eq!((swept.found, swept.finished), (0, false), "there is no time to enqueue anything");
        let swept = sweep_within(30).await;
        assert_eq!((swept.found, swept.done, swept.finished), (1, 1, true));
        pays(world, "tx-1").await;
    })
    .await;
}

#[tokio::test]
async fn without_an_unpaid_charge_the_offer_of_a_start_is_skipped() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({})).await;
        starts(world, CHAT, 1).await;
        seconds(world, 65).await;
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["cancel_reason"]), (&json!("skipped"), &json!("no_unpaid_pix")));
        let skipped = world.events("DOWNSELL_SKIPPED");
        assert_eq!((skipped.len(), &skipped[0]["reason"]), (1, &json!("no_unpaid_pix")));
    })
    .await;
}

#[tokio::test]
async fn a_long_delay_is_swept_and_a_missed_or_repeated_tick_changes_nothing() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 60})).await;
        charged(world, "tx-1").await;
        world.tick("DownsellSweep").await;
        assert_eq!(world.events("DOWNSELL_ENQUEUED").len(), 0, "it is not due soon");
        // No tick for three quarters of an hour.
        seconds(world, 50 * 60).await;
        world.tick("DownsellSweep").await;
        world.tick("DownsellSweep").await;
        let enqueued = world.events("DOWNSELL_ENQUEUED");
        assert_eq!((enqueued.len(), &enqueued[0]["offer_id"]), (1, &offer(world).await["id"]));
        assert_eq!(enqueued[0]["correlation_id"], offer(world).await["correlation_id"]);
        assert_eq!(world.events("DOWNSELLS_SWEPT")[0]["emitted"], 1);
        assert_eq!(offers(world), 0, "it is not due yet");
        seconds(world, 9 * 60 + 50).await;
        assert_eq!(offers(world), 0, "it is not due yet");
        seconds(world, 12).await;
        world.tick("DownsellSweep").await;
        assert_eq!(offers(world), 1);
        let row = &world.rows("DownsellsTable").await.into_iter().find(|row| row["late_ms"].is_number());
        let late_ms = row.as_ref().and_then(|row| row["late_ms"].as_i64()).expect("sent");
        assert!(late_ms < 5_000, "{late_ms} ms late");
    })
    .await;
}

#[tokio::test]
async fn a_redelivered_start_is_a_duplicate_a_second_one_is_already_pending_and_other_texts_are_ignored() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"delay_minutes": 30})).await;
        let counts = |answer: &Answer| {
            ["scheduled", "duplicates", "already_pending"].map(|name| answer.body[name].as_u64().unwrap_or(99))
        };
        assert_eq!(counts(&starts(world, CHAT, 1).await), [1, 0, 0]);
        seconds(world, 61).await;
        let mut late = update(CHAT, 1, "/start promo-7", world.now().seconds());
        late["message"]["date"] = json!(world.now().seconds() + 5);
        assert_eq!(counts(&starts(world, CHAT, 1).await), [0, 1, 0], "a duplicate at any time");
        assert_eq!(counts(&starts(world, CHAT, 2).await), [0, 0, 1]);
        assert_eq!(counts(&starts(world, CHAT, 2).await), [0, 1, 0]);
        let header = ("x-telegram-bot-api-secret-token", "local-telegram-secret");
        for noise in [
            json!({"update_id": 9, "edited_message": update(CHAT, 9, "/start", 1)["message"]}),
            json!({"update_id": 9, "message": {"message_id": 9, "text": "/start", "chat": {"id": -5, "type": "group"}}}),
            update(CHAT, 9, "/help", world.now().seconds()),
            update(CHAT, 10, "Oi", world.now().seconds()),
        ] {
            let request = world.request(Method::POST, "/webhooks/telegram/default").header(header.0, header.1);
            let answer = world.send(request.json(&noise)).await;
            assert_eq!((answer.status, &answer.body["ignored"]), (200, &json!(1)), "{}", answer.body);
            assert!(answer.body.get("scheduled").is_none_or(|scheduled| scheduled == 0), "{}", answer.body);
        }
        assert_eq!(queue(world).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_pending_offer_of_a_start_is_upgraded_to_the_charge_and_ends_with_it() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_pix": true, "delay_minutes": 20})).await;
        starts(world, CHAT, 1).await;
        seconds(world, 60).await;
        let answer = charged(world, "tx-1").await;
        assert_eq!((&answer.body["scheduled"], &answer.body["upgraded"]), (&json!(0), &json!(1)), "{}", answer.body);
        assert_eq!(charged(world, "tx-1").await.body["duplicates"], 1);
        let joined = offer(world).await;
        assert_eq!((&joined["trigger"], &joined["transaction_id"]), (&json!("pix"), &json!("tx-1")));
        charged(world, "tx-2").await;
        let answer = gateway(world, "pix-expired", &json!({"transaction_id": "tx-1"})).await;
        assert_eq!(answer.body, withdrawn("expired", [0, 0, 0, 1]), "it is passed on to the second charge");
        let answer = gateway(world, "pix-expired", &json!({"transaction_id": "tx-2"})).await;
        assert_eq!(answer.body, withdrawn("expired", [1, 0, 0, 0]));
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["cancel_reason"]), (&json!("canceled"), &json!("expired")));
        assert_eq!(world.events("DOWNSELL_CANCELED").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_charge_expires_at_its_own_time_without_a_webhook() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 10})).await;
        let mut body = charge("tx-1");
        body["expires_at"] = json!(world.now().plus_ms(300_000).to_string());
        assert_eq!(gateway(world, "pix-created", &body).await.body["scheduled"], 1);
        seconds(world, 310).await;
        world.tick("Recovery").await;
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["cancel_reason"]), (&json!("canceled"), &json!("expired")));
        seconds(world, 600).await;
        assert_eq!(offers(world), 0);
        assert_eq!(gateway(world, "pix-created", &body).await.body["charge"], "expired");
    })
    .await;
}

#[tokio::test]
async fn a_downsell_offered_once_is_never_offered_again_and_a_cooldown_ends() {
    play_with(sending(4), async |world| {
        bot(world).await;
        let ever = downsell(world, &json!({"after_start": false, "after_pix": true, "rearm": "once_ever"})).await;
        let cool = json!({"after_start": false, "after_pix": true, "rearm": "cooldown_days", "cooldown_days": 2});
        downsell(world, &cool).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        assert_eq!(offers(world), 2);
        let answer = charged(world, "tx-2").await;
        assert_eq!((&answer.body["scheduled"], &answer.body["not_rearmed"]), (&json!(0), &json!(2)), "{}", answer.body);
        seconds(world, 2 * 86_400).await;
        let answer = charged(world, "tx-3").await;
        assert_eq!((&answer.body["scheduled"], &answer.body["not_rearmed"]), (&json!(1), &json!(1)), "{}", answer.body);
        seconds(world, 70).await;
        assert_eq!(offers(world), 3);
        put(world, &format!("{DOWNSELLS}/{ever}"), &json!({"rearm": "once_per_trigger"})).await;
        assert_eq!(charged(world, "tx-4").await.body["scheduled"], 1, "the current policy applies");
        seconds(world, 70).await;
    })
    .await;
}

#[tokio::test]
async fn an_offer_of_an_inactive_or_deleted_downsell_is_not_sent() {
    play(async |world| {
        bot(world).await;
        let off = downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        let gone = downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        charged(world, "tx-1").await;
        put(world, &format!("{DOWNSELLS}/{off}"), &json!({"active": false})).await;
        let delete = world.request(Method::DELETE, &format!("{DOWNSELLS}/{gone}")).bearer_auth(KEY);
        assert_eq!(world.send(delete).await.body, json!({"ok": true, "deleted": gone}));
        seconds(world, 70).await;
        let fates: Vec<_> = queue(world)
            .await
            .iter()
            .map(|offer| (offer["downsell_id"].clone(), offer["status"].clone(), offer["cancel_reason"].clone()))
            .collect();
        assert!(fates.contains(&(json!(off), json!("skipped"), json!("inactive"))), "{fates:?}");
        assert!(fates.contains(&(json!(gone), json!("canceled"), json!("deleted"))), "{fates:?}");
        put(world, "/api/admin/bots/default", &json!({"active": false})).await;
        assert_eq!(charged(world, "tx-2").await.body["scheduled"], 0, "an inactive bot offers nothing");
        let answer = starts(world, CHAT, 9).await;
        assert_eq!((answer.status, &answer.body["scheduled"]), (200, &json!(0)), "{}", answer.body);
    })
    .await;
}

#[tokio::test]
async fn an_offer_to_a_user_who_blocked_the_bot_fails_once_and_is_skipped_until_a_start() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        let blocked = json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"});
        at_telegram(world, refusal(403, blocked)).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        let failed = offer(world).await;
        assert_eq!((&failed["status"], &failed["code"]), (&json!("failed"), &json!("bot_blocked")));
        assert_eq!(world.events("DOWNSELL_FAILED")[0]["code"], "bot_blocked");
        charged(world, "tx-2").await;
        seconds(world, 70).await;
        let skipped = &queue(world).await[0];
        assert_eq!((&skipped["status"], &skipped["cancel_reason"]), (&json!("skipped"), &json!("blocked")));
        // A /start lifts the block.
        starts(world, CHAT, 1).await;
        charged(world, "tx-3").await;
        seconds(world, 70).await;
        assert_eq!(queue(world).await[0]["status"], "sent");
        // It also lifts an old block without the names of bots.
        let table = world.stack.output("OutboundTable").expect("a table");
        let row =
            SuppressionRow::new(Channel::Telegram, &CHAT.to_string(), "bot_blocked", "provider", None, world.now());
        let key = keys::suppression("telegram", &CHAT.to_string());
        let unnamed = Write::put(table, key, &row).expect("a row");
        world.store.write(&world.invocation(), unnamed).await.expect("written");
        // It does so for an inactive bot, too.
        put(world, "/api/admin/bots/default", &json!({"active": false})).await;
        starts(world, CHAT, 2).await;
        let listed = world.get(&format!("/suppressions?channel=telegram&to={CHAT}")).await;
        assert_eq!(listed.body["suppressions"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn a_user_who_blocked_one_bot_still_gets_offers_of_others() {
    play_with(sending(2), async |world| {
        let tokens = json!({"telegram": {"default": "1:a", "second": "2:b"}});
        world.stack.secrets().set("Senders", &tokens).expect("set");
        bot(world).await;
        let other = world.post("/api/admin/bots", &json!({"slug": "outro", "token_ref": "second"})).await;
        assert_eq!(other.status, 201, "{}", other.body);
        let content = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1, "after_pix": true});
        assert_eq!(world.post("/api/admin/bots/outro/downsells", &content).await.status, 201);
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        let blocked = json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"});
        at_telegram(world, refusal(403, blocked.clone())).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        let listed = async || {
            let answer = world.get(&format!("/suppressions?channel=telegram&to={CHAT}")).await;
            answer.body["suppressions"][0]["senders"].clone()
        };
        assert_eq!(listed().await, json!(["default"]));
        let of_other = json!({"bot_slug": "outro", "telegram_id": CHAT, "transaction_id": "tx-2"});
        assert_eq!(gateway(world, "pix-created", &of_other).await.body["scheduled"], 1);
        seconds(world, 70).await;
        assert_eq!(offers(world), 1, "the other bot was not blocked");
        // A message of the other bot finds that it is blocked too.
        at_telegram(world, refusal(403, blocked)).await;
        let say = async |key: &str, sender: &str| {
            let message =
                json!({"channel": "telegram", "sender": sender, "to": CHAT.to_string(), "content": {"text": "Oi"}});
            world.post_with_key(key, "/outbound/messages", &message).await.text("/message_id")
        };
        say("a", "second").await;
        world.drain().await;
        assert_eq!(listed().await, json!(["default", "second"]));
        starts(world, CHAT, 1).await;
        assert_eq!(listed().await, json!(["second"]), "a start lifts only the block of its own bot");
        let (heard, not_heard) = (say("b", "default").await, say("c", "second").await);
        seconds(world, 70).await;
        let status = async |id: &str| world.get(&format!("/outbound/messages/{id}")).await.text("/status");
        assert_eq!((status(&heard).await.as_str(), status(&not_heard).await.as_str()), ("SENT", "SUPPRESSED"));
        // A suppression by an operator applies to all bots.
        let everybody = world.post("/suppressions", &json!({"channel": "telegram", "to": CHAT.to_string()})).await;
        assert_eq!((everybody.status, &everybody.body["senders"]), (201, &json!([])), "{}", everybody.body);
        let not_heard = say("d", "default").await;
        seconds(world, 70).await;
        assert_eq!(status(&not_heard).await, "SUPPRESSED");
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_leaves_an_offer_pending_until_an_operator_settles_it() {
    let setup = sending(1).parameter("ProviderTimeoutSeconds", "1");
    play_with(setup, async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        at_telegram(world, CallFault::first(Action::DropReply)).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        let unknown = offer(world).await;
        assert_eq!((&unknown["status"], &unknown["delivery"]), (&json!("pending"), &json!("UNKNOWN")), "{unknown}");
        assert_eq!(world.get(&format!("{QUEUE}?delivery=UNKNOWN")).await.body["queue"][0]["id"], unknown["id"]);
        assert_eq!(charged(world, "tx-2").await.body["already_pending"], 1, "it may have been sent");
        let paid = pays(world, "tx-1").await;
        assert_eq!((&paid.body["canceled"], &paid.body["in_flight"]), (&json!(0), &json!(1)), "{}", paid.body);
        let path = format!("{QUEUE}/{}/settle", unknown["id"].as_str().expect("an id"));
        let answer = world.post(&path, &json!({"telegram_id": CHAT, "sent": true})).await;
        assert_eq!((answer.status, &answer.body["offer"]["status"]), (200, &json!("sent")), "{}", answer.body);
        assert_eq!(answer.body["offer"]["cancel_reason"], Value::Null);
        let other = world.post(&path, &json!({"telegram_id": CHAT, "sent": false})).await;
        other.assert_problem(409, "not_unknown", &[]);
        world.post(&path, &json!({"telegram_id": CHAT + 1, "sent": true})).await.assert_problem(404, "not_found", &[]);
        world.post(&path, &json!({"telegram_id": "x"})).await.assert_problem(
            422,
            "invalid_request",
            &["telegram_id", "sent"],
        );
    })
    .await;
}

#[tokio::test]
async fn an_offer_waits_for_a_rate_limit_and_its_gate_is_checked_again() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        let limited = json!({"ok": false, "error_code": 429, "description": "Too Many Requests: retry after 120",
            "parameters": {"retry_after": 120}});
        at_telegram(world, refusal(429, limited.clone())).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        assert_eq!((offers(world), &offer(world).await["status"]), (0, &json!("pending")));
        seconds(world, 130).await;
        assert_eq!(offers(world), 1);
        at_telegram(world, refusal(429, limited)).await;
        charged(world, "tx-2").await;
        seconds(world, 70).await;
        pays(world, "tx-2").await;
        seconds(world, 200).await;
        assert_eq!(offers(world), 1, "paid while it waited for its second attempt");
        let second = &queue(world).await[0];
        assert_eq!((&second["status"], &second["attempts"]), (&json!("canceled"), &json!(1)), "{second}");
    })
    .await;
}

#[tokio::test]
async fn an_offer_that_could_not_be_sent_for_too_long_expires() {
    play(async |world| {
        bot(world).await;
        let body = json!({"after_start": false, "after_pix": true, "delay_minutes": 30, "expires_after_minutes": 10});
        downsell(world, &body).await;
        charged(world, "tx-1").await;
        seconds(world, 45 * 60).await;
        world.tick("DownsellSweep").await;
        assert_eq!(offer(world).await["status"], "expired");
    })
    .await;
}

#[tokio::test]
async fn the_offer_of_a_worker_that_died_after_its_claim_is_unknown_and_can_be_settled() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        at_telegram(world, CallFault::first(Action::KillBefore)).await;
        charged(world, "tx-1").await;
        seconds(world, 70).await;
        let sending = offer(world).await;
        assert_eq!(sending["delivery"], "SENDING", "{sending}");
        seconds(world, 660).await;
        world.tick("Recovery").await;
        let unknown = offer(world).await;
        assert_eq!((&unknown["delivery"], &unknown["attempts"]), (&json!("UNKNOWN"), &json!(1)), "{unknown}");
        let path = format!("{QUEUE}/{}/settle", unknown["id"].as_str().expect("an id"));
        world.post(&path, &json!({"telegram_id": CHAT, "sent": false})).await;
        charged(world, "tx-2").await;
        seconds(world, 70).await;
        assert_eq!(offers(world), 1);
    })
    .await;
}

#[tokio::test]
async fn a_test_is_sent_at_once_and_is_not_counted() {
    play_with(sending(1), async |world| {
        bot(world).await;
        let id = downsell(world, &json!({"content": {"text": "*Oferta*", "parse_mode": "MarkdownV2"}})).await;
        let path = format!("{DOWNSELLS}/{id}/test");
        let answer = world.post_with_key("t1", &path, &json!({"telegram_id": CHAT})).await;
        assert_eq!((answer.status, &answer.body["test"]), (202, &json!(true)), "{}", answer.body);
        let again = world.post_with_key("t1", &path, &json!({"telegram_id": CHAT})).await;
        assert_eq!((again.header("idempotency-replayed"), &again.body), (Some("true"), &answer.body));
        let other = world.post_with_key("t1", &path, &json!({"telegram_id": CHAT + 1})).await;
        other.assert_problem(422, "idempotency_key_reused", &[]);
        world.drain().await;
        let message =
            world.get(&format!("/outbound/messages/{}", answer.body["message_id"].as_str().expect("an id"))).await;
        assert_eq!((&message.body["status"], &message.body["metadata"]["test"]), (&json!("SENT"), &json!(true)));
        assert_eq!(queue(world).await, [] as [Value; 0]);
        let numbers = world.get("/api/admin/bots/default/metrics").await.body;
        assert_eq!(numbers["metrics"]["downsells_sent"], 0);
        world.post(&path, &json!({"telegram_id": "987"})).await.assert_problem(
            422,
            "invalid_request",
            &["telegram_id"],
        );
    })
    .await;
}

#[tokio::test]
async fn a_claim_with_its_gate_is_one_transaction_of_at_most_six_units() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true})).await;
        charged(world, "7f0c5b6e-2a44-4d5b-9f7e-0d8c1f3a9b21").await;
        let (_, calls) = world.calls_of("outbound-sender", seconds(world, 70)).await;
        let of_offers: Vec<_> = calls.iter().filter(|call| call.target.contains("downsells")).collect();
        let claims: Vec<_> = of_offers.iter().filter(|call| call.operation == "TransactWriteItems").collect();
        assert_eq!(claims.len(), 2, "the claim, and the end with its slot");
        assert!(claims[0].write_units <= 6.0, "{} units", claims[0].write_units);
        let reads: Vec<_> = of_offers.iter().map(|call| call.operation.as_str()).collect();
        assert_eq!(reads, ["BatchGetItem", "Query", "TransactWriteItems", "TransactWriteItems"]);
    })
    .await;
}

#[tokio::test]
async fn concurrent_triggers_create_one_pending_offer() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"delay_minutes": 30})).await;
        let answers = futures::future::join_all((1..=6).map(|update_id| starts(world, CHAT, update_id))).await;
        let sum = |name: &str| answers.iter().filter_map(|answer| answer.body[name].as_u64()).sum::<u64>();
        assert_eq!((sum("scheduled"), sum("already_pending")), (1, 5));
        let answers = futures::future::join_all((0..4).map(|_| starts(world, CHAT, 9))).await;
        let sum = |name: &str| answers.iter().filter_map(|answer| answer.body[name].as_u64()).sum::<u64>();
        assert_eq!((sum("already_pending"), sum("duplicates")), (1, 3), "one event, delivered four times at once");
        assert_eq!(queue(world).await.len(), 1);
    })
    .await;
}

/// The sender is held before or after its nth call to the store or to Telegram while the contact
/// pays.
#[tokio::test]
async fn a_payment_at_any_point_of_the_sending_gets_a_true_answer() {
    for (service, nth, action) in [
        ("dynamodb", 1, Action::DelayBefore),
        ("dynamodb", 2, Action::DelayBefore),
        ("dynamodb", 4, Action::DelayBefore),
        ("dynamodb", 6, Action::DelayBefore),
        ("dynamodb", 7, Action::DelayBefore),
        ("dynamodb", 7, Action::DelayAfter),
        ("telegram", 1, Action::DelayBefore),
        ("telegram", 1, Action::DelayAfter),
        ("dynamodb", 8, Action::DelayBefore),
        ("dynamodb", 8, Action::DelayAfter),
    ] {
        let world = World::start(Setup::default()).await;
        bot(&world).await;
        downsell(&world, &json!({"after_start": false, "after_pix": true})).await;
        charged(&world, "tx-1").await;
        let fault = CallFault {
            function: Some("outbound-sender".to_owned()),
            service: Some(service.to_owned()),
            nth,
            delay_ms: 2_000,
            ..CallFault::first(action)
        };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let pay = async {
            // Polls with requests, so that nothing waits by the clock.
            while !world.stack.faults().waiting().is_empty() {
                world.request_health().await;
            }
            let shown = pays(&world, "tx-1").await.body;
            (shown, offers(&world))
        };
        let (_, (shown, before)) = futures::future::join(seconds(&world, 70), pay).await;
        world.drain().await;
        let (after, point) = (offers(&world), format!("{action:?} {service} {nth}"));
        let count = |name: &str| shown[name].as_u64().expect("a number");
        assert_eq!(count("canceled") + count("in_flight") + count("already_sent"), 1, "{point}: {shown}");
        let left_later = after > before;
        assert!(!left_later || count("in_flight") == 1, "{point}: sent after the answer {shown}");
        assert!(count("canceled") == 0 || after == 0, "{point}: canceled and sent");
        let status = offer(&world).await["status"].clone();
        assert_eq!(status == "sent", after == 1, "{point}: {status}");
        let expected = umavez_tests::Expected { sent: after, ..Default::default() };
        world.audit(expected).await;
        world.stack.stop().await.expect("the stack stops");
    }
}

#[tokio::test]
async fn an_offer_that_is_upgraded_while_it_waits_for_its_slot_is_still_sent() {
    play_with(sending(1), async |world| {
        bot(world).await;
        charged(world, "tx-0").await;
        downsell(world, &json!({"after_start": true, "after_pix": true})).await;
        starts(world, CHAT, 1).await;
        let fault = CallFault {
            function: Some("outbound-sender".to_owned()),
            operation: Some("UpdateItem".to_owned()),
            delay_ms: 2_000,
            ..CallFault::first(Action::DelayBefore)
        };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let gains = async {
            while !world.stack.faults().waiting().is_empty() {
                world.request_health().await;
            }
            charged(world, "tx-1").await.body["upgraded"].clone()
        };
        let (_, upgraded) = futures::future::join(seconds(world, 70), gains).await;
        assert_eq!(upgraded, 1);
        world.drain().await;
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["transaction_id"]), (&json!("sent"), &json!("tx-1")), "{offer}");
    })
    .await;
}

#[tokio::test]
async fn a_bot_keeps_its_own_rate_limit_whatever_its_token_is_called() {
    play_with(sending(2), async |world| {
        let slow = json!({"slug": "loja", "token_ref": "default", "messages_per_chat_per_minute": 1});
        assert_eq!(world.post("/api/admin/bots", &slow).await.status, 201);
        let body = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1, "after_pix": true});
        for _ in 0..2 {
            assert_eq!(world.post("/api/admin/bots/loja/downsells", &body).await.status, 201);
        }
        let mut of_loja = charge("tx-1");
        of_loja["bot_slug"] = json!("loja");
        assert_eq!(gateway(world, "pix-created", &of_loja).await.body["scheduled"], 2);
        seconds(world, 65).await;
        assert_eq!(offers(world), 1, "the other one waits for its slot");
        seconds(world, 90).await;
        assert_eq!(offers(world), 2);
    })
    .await;
}
