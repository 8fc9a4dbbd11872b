//! A guard with several holds: scheduled messages of one intent type to one contact, accepted and
//! canceled in any order.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::keys;
use umavez_domain::messages::MessageId;
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::store::Write;
use umavez_tests::{Answer, KEY, Setup, World, play_with};

use crate::intents::CLIENT;
use crate::outbound::{accept, ask, codes, message, sending, telegram, with};

const DAY: u64 = 86_400;

/// One first touch per contact and rolling week, whatever the campaign.
fn guarded(setup: Setup) -> Setup {
    let options = json!({"discovery_first_touch": {"window": "rolling", "scope": "contact"}});
    setup.parameter("IntentTypeOptions", &options.to_string())
}

/// Returns the late evening of a day, in whole seconds: the same value at any time of the test.
fn evening(world: &World, days: i64) -> Timestamp {
    let day = world.now().plus_days(days).to_string();
    Timestamp::parse(&format!("{}T23:00:00Z", &day[..10])).expect("a time")
}

/// Returns a message of a separate campaign, to be sent in the evening in `days` days, or now.
fn touch(world: &World, campaign: u8, days: Option<i64>) -> Value {
    let reference = format!("1e2feb89-7ed4-4c2c-9cc4-a6ce78e510{campaign:02}");
    let intent = json!({"client_id": CLIENT, "intent_type": "discovery_first_touch", "reference_id": reference});
    let message = with(telegram("Oi"), json!({"intent": intent}));
    match days {
        Some(days) => with(message, json!({"send_at": evening(world, days)})),
        None => message,
    }
}

async fn cancel(world: &World, id: &str) {
    let request = world.request(Method::POST, &format!("/outbound/messages/{id}/cancel")).bearer_auth(KEY);
    assert_eq!(world.send(request).await.body["canceled"], true);
}

async fn ask_again(world: &World, key: &str, campaign: u8) -> Answer {
    ask(world, key, &touch(world, campaign, None)).await
}

#[tokio::test]
async fn a_message_that_was_sent_keeps_its_window_after_two_scheduled_ones_are_cancelled() {
    play_with(guarded(sending(1)), async |world| {
        let sent = accept(world, "a", &touch(world, 1, None)).await;
        let second = accept(world, "b", &touch(world, 2, Some(9))).await;
        let third = accept(world, "c", &touch(world, 3, Some(17))).await;
        cancel(world, &third).await;
        cancel(world, &second).await;
        let again = ask_again(world, "d", 4).await;
        assert_eq!(again.body["status"], "DEDUPED", "{}", again.body);
        assert_eq!(again.body["blocked_by"]["holder"], format!("message:{sent}"));
    })
    .await;
}

#[tokio::test]
async fn cancelled_messages_block_no_other_in_any_order_of_cancelling() {
    for first_is_cancelled_first in [true, false] {
        play_with(guarded(sending(1)), async |world| {
            let first = accept(world, "a", &touch(world, 1, Some(200))).await;
            let second = accept(world, "b", &touch(world, 2, Some(300))).await;
            let (one, other) = if first_is_cancelled_first { (&first, &second) } else { (&second, &first) };
            cancel(world, one).await;
            cancel(world, other).await;
            let now = ask_again(world, "d", 4).await;
            assert_eq!(now.body["status"], "QUEUED", "{}", now.body);
        })
        .await;
    }
}

#[tokio::test]
async fn only_a_free_week_between_scheduled_messages_can_be_used() {
    play_with(guarded(sending(0)), async |world| {
        let ids = [
            accept(world, "a", &touch(world, 1, Some(20))).await,
            accept(world, "b", &touch(world, 2, Some(40))).await,
            // Before both, and between them.
            accept(world, "c", &touch(world, 3, Some(2))).await,
            accept(world, "d", &touch(world, 4, Some(30))).await,
        ];
        for (days, key) in [(14, "e"), (26, "f"), (34, "g"), (46, "h")] {
            let refused = ask(world, key, &touch(world, 5, Some(days))).await;
            assert_eq!(refused.body["status"], "DEDUPED", "in {days} days: {}", refused.body);
        }
        let last = ask(world, "i", &touch(world, 5, Some(47))).await;
        assert_eq!(last.body["status"], "QUEUED", "{}", last.body);
        for id in ids.iter().chain([&last.text("/message_id")]) {
            cancel(world, id).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_that_fails_frees_its_week_and_leaves_the_others() {
    play_with(guarded(sending(1)), async |world| {
        let blocked = json!({"ok": false, "error_code": 400, "description": "Bad Request: chat not found"});
        let answer = Some(Scripted { status: 400, headers: Default::default(), body: blocked });
        let fault = CallFault { service: Some("telegram".to_owned()), answer, ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let later = accept(world, "a", &touch(world, 1, Some(9))).await;
        let failed = accept(world, "b", &touch(world, 2, None)).await;
        world.drain().await;
        assert_eq!(message(world, &failed).await["status"], "FAILED");
        let other = with(touch(world, 3, None), json!({"to": "123456789"}));
        assert_eq!(ask(world, "c", &other).await.body["status"], "QUEUED");
        let near = ask(world, "d", &touch(world, 4, Some(8))).await;
        assert_eq!(near.body["blocked_by"]["holder"], format!("message:{later}"), "{}", near.body);
        cancel(world, &later).await;
    })
    .await;
}

/// Makes Telegram ask to wait for so many days, once.
async fn throttle(world: &World, days: u64) {
    let body = json!({"ok": false, "error_code": 429, "description": "Too Many Requests",
        "parameters": {"retry_after": days * DAY}});
    let answer = Some(Scripted { status: 429, headers: Default::default(), body });
    let fault = CallFault { service: Some("telegram".to_owned()), answer, ..CallFault::first(Action::Answer) };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

/// Returns a message of a separate campaign, to be sent in exactly so many days, by a channel that
/// does not wait for Telegram.
fn touch_by_mail(world: &World, campaign: u8, days: i64) -> Value {
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    let send_at = world.now().plus_days(days);
    let mail = json!({"channel": "email", "to": "ana@example.com", "content": content, "send_at": send_at});
    with(touch(world, campaign, None), mail)
}

fn sent_at(message: &Value) -> Timestamp {
    message["sent_at"].as_str().and_then(Timestamp::parse).unwrap_or_else(|| panic!("not sent: {message}"))
}

/// Waits until a message was tried: a slow process may lose its slot, and takes a later one.
async fn until_tried(world: &World, id: &str) {
    for _ in 0..20 {
        world.drain().await;
        // On a busy machine an attempt may end before its call, because its slot is over.
        let is_called = world.stack.calls().since(0).iter().any(|call| call.service == "telegram");
        if is_called && message(world, id).await["attempts"] != 0 {
            return;
        }
        world.advance(Duration::from_secs(5)).await;
    }
    panic!("{id} was never tried");
}

/// Lets so many days pass, and a minute, and enqueues what is due then.
async fn days(world: &World, days: u64) {
    world.advance(Duration::from_secs(days * DAY + 60)).await;
    world.tick("OutboundSweep").await;
}

#[tokio::test]
async fn a_rolling_window_counts_from_the_send_and_not_from_the_acceptance() {
    play_with(guarded(sending(2)), async |world| {
        throttle(world, 2).await;
        let late = accept(world, "a", &touch(world, 1, None)).await;
        until_tried(world, &late).await;
        assert_eq!(message(world, &late).await["status"], "QUEUED");
        days(world, 2).await;
        let sent = message(world, &late).await;
        assert_eq!(sent["status"], "SENT", "{sent}");
        days(world, 6).await;
        let early = ask_again(world, "b", 2).await;
        assert_eq!(early.body["blocked_by"]["holder"], format!("message:{late}"), "{}", early.body);
        let sent_at = sent_at(&sent);
        let next = Timestamp::parse(&early.text("/next_eligible_at")).expect("a time");
        assert!(next >= sent_at.plus_days(7) && next <= sent_at.plus_days(7).plus_ms(30_000), "{next}");
        let fingerprint = sent["intent"]["fingerprint"].as_str().expect("a fingerprint");
        let intent = world.get(&format!("/intents/{fingerprint}?client_id={CLIENT}")).await;
        assert_eq!(intent.body["next_eligible_at"], json!(next), "{}", intent.body);
        days(world, 1).await;
        assert_eq!(ask_again(world, "c", 3).await.body["status"], "QUEUED");
        world.drain().await;
    })
    .await;
}

#[tokio::test]
async fn a_scheduled_message_waits_until_the_window_of_a_late_one_is_over() {
    play_with(guarded(sending(2)), async |world| {
        throttle(world, 3).await;
        let late = accept(world, "a", &touch(world, 1, None)).await;
        until_tried(world, &late).await;
        let scheduled = accept(world, "b", &touch_by_mail(world, 2, 8)).await;
        days(world, 3).await;
        assert_eq!(message(world, &late).await["status"], "SENT");
        days(world, 6).await;
        let deferred = message(world, &scheduled).await;
        assert_eq!((&deferred["status"], &deferred["attempts"]), (&json!("QUEUED"), &json!(0)), "{deferred}");
        assert_eq!(deferred["reason_code"], "intent_duplicate", "{deferred}");
        assert!(codes(&deferred).contains(&"deferred"), "{deferred}");
        days(world, 1).await;
        let times = [message(world, &late).await, message(world, &scheduled).await].map(|sent| sent_at(&sent));
        assert!(times[1] >= times[0].plus_days(7), "{times:?}");
        assert!(times[1] <= times[0].plus_days(7).plus_ms(180_000), "{times:?}");
        // The events of the mail arrive.
        days(world, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_message_that_was_not_sent_delays_no_other_and_then_waits_its_turn() {
    play_with(guarded(sending(2)), async |world| {
        throttle(world, 12).await;
        let tried = accept(world, "a", &touch(world, 1, None)).await;
        until_tried(world, &tried).await;
        let attempts = message(world, &tried).await["attempts"].clone();
        let scheduled = accept(world, "b", &touch_by_mail(world, 2, 8)).await;
        days(world, 8).await;
        let sent = message(world, &scheduled).await;
        assert_eq!(sent["status"], "SENT", "{sent}");
        days(world, 4).await;
        let waiting = message(world, &tried).await;
        assert_eq!((&waiting["status"], &waiting["attempts"]), (&json!("QUEUED"), &attempts), "{waiting}");
        assert_eq!(codes(&waiting).last(), Some(&"deferred"), "{waiting}");
        // It has the next place.
        let refused = ask(world, "c", &touch_by_mail(world, 3, 8)).await;
        assert_eq!(refused.body["blocked_by"]["holder"], format!("message:{tried}"), "{}", refused.body);
        days(world, 4).await;
        assert_eq!(message(world, &tried).await["status"], "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_deferred_message_expires_if_the_window_ends_too_late_for_it() {
    play_with(guarded(sending(1)), async |world| {
        throttle(world, 3).await;
        let late = accept(world, "a", &touch(world, 1, None)).await;
        until_tried(world, &late).await;
        let body = with(touch_by_mail(world, 2, 8), json!({"not_after": world.now().plus_days(9)}));
        let scheduled = accept(world, "b", &body).await;
        days(world, 3).await;
        days(world, 5).await;
        assert_eq!(message(world, &scheduled).await["status"], "QUEUED");
        days(world, 1).await;
        let expired = message(world, &scheduled).await;
        assert_eq!(expired["status"], "EXPIRED", "{expired}");
        assert!(codes(&expired).contains(&"deferred"), "{expired}");
    })
    .await;
}

/// The window of the check stands again after the message behind it is cancelled.
#[tokio::test]
async fn a_restored_hold_answers_its_own_caller_as_before() {
    play_with(guarded(Setup::default()), async |world| {
        let reference = json!({"client_id": CLIENT, "intent_type": "discovery_first_touch",
            "reference_id": "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51001"});
        let first = world.post_with_key("mine", "/intents", &reference).await;
        assert_eq!(first.body["can_send"], true, "{}", first.body);
        let scheduled = accept(world, "b", &touch(world, 2, Some(9))).await;
        cancel(world, &scheduled).await;
        // Six days are enough to be in the next bucket or not; the answer is the same.
        for _ in 0..2 {
            days(world, 3).await;
            let again = world.post_with_key("mine", "/intents", &reference).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
        }
    })
    .await;
}

/// The parameters do not allow a retention shorter than the life of an intent, so the test removes
/// the row.
#[tokio::test]
async fn a_key_whose_message_is_gone_is_refused_with_another_body_while_its_intent_is_held() {
    play_with(guarded(Setup::default()), async |world| {
        let id = accept(world, "a", &touch(world, 1, Some(3))).await;
        let table = world.stack.output("OutboundTable").expect("a table");
        let key = keys::message(&MessageId::parse(&id).expect("an id"));
        world.store.write(&world.invocation(), Write::delete(table, key)).await.expect("a store");
        let reused = ask(world, "a", &with(touch(world, 1, Some(3)), json!({"content": {"text": "other"}}))).await;
        reused.assert_problem(422, "idempotency_key_reused", &[]);
    })
    .await;
}

/// Two requests carry out one order. The second one finds the message's own hold in the guard,
/// which does not block it.
#[tokio::test]
async fn two_concurrent_orders_to_resend_are_one_order() {
    play_with(guarded(sending(1)), async |world| {
        let refused = json!({"ok": false, "error_code": 400, "description": "Bad Request: chat not found"});
        let answer = Some(Scripted { status: 400, headers: Default::default(), body: refused });
        let fault = CallFault { service: Some("telegram".to_owned()), answer, ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let id = accept(world, "a", &touch(world, 1, None)).await;
        world.drain().await;
        assert_eq!(message(world, &id).await["status"], "FAILED");
        let path = format!("/outbound/messages/{id}/resend");
        // The first request that reads the guard is delayed until the other one has carried out the
        // order.
        let delay = CallFault {
            function: Some("outbound-api".to_owned()),
            operation: Some("GetItem".to_owned()),
            target: Some("umavez-dev-intents".to_owned()),
            delay_ms: 1_000,
            ..CallFault::first(Action::DelayBefore)
        };
        world.stack.add_fault(Fault::Call(delay)).await.expect("armed");
        let body = json!({});
        for answer in join_all((0..2).map(|_| world.post_with_key("again", &path, &body))).await {
            assert_eq!(answer.status, 202, "{}", answer.body);
        }
    })
    .await;
}

#[tokio::test]
async fn concurrent_messages_under_one_guard_get_one_week_each() {
    play_with(guarded(sending(0)), async |world| {
        // Ten messages want five weeks, two of them each week.
        let asked: Vec<_> = (0..10).map(|n| touch(world, n, Some(7 + 7 * i64::from(n / 2)))).collect();
        let keys: Vec<_> = (0..10).map(|n| format!("k{n}")).collect();
        let answers = join_all(keys.iter().zip(&asked).map(|(key, body)| ask(world, key, body))).await;
        let accepted: Vec<_> = answers.iter().filter(|answer| answer.body["status"] == "QUEUED").collect();
        assert_eq!(accepted.len(), 5, "not one message per week");
        join_all(accepted.iter().map(|answer| cancel(world, answer.body["message_id"].as_str().expect("an id")))).await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_message_names_the_next_time_with_a_whole_free_window() {
    play_with(guarded(sending(1)), async |world| {
        accept(world, "a", &touch(world, 1, None)).await;
        // There are five free days between the two windows, too few for one more.
        let scheduled = accept(world, "b", &touch(world, 2, Some(12))).await;
        let refused = ask_again(world, "c", 3).await;
        assert_eq!(refused.body["next_eligible_at"], json!(evening(world, 19)), "{}", refused.body);
        world.drain().await;
        cancel(world, &scheduled).await;
        world.advance(Duration::from_secs(7 * DAY + 1)).await;
    })
    .await;
}

#[tokio::test]
async fn a_contact_has_a_limited_number_of_scheduled_messages_of_one_intent_type() {
    play_with(guarded(sending(1)), async |world| {
        let mut ids = Vec::new();
        for number in 0..32 {
            ids.push(accept(world, &format!("k{number}"), &touch(world, 1, Some(8 + 8 * number))).await);
        }
        let refused = ask(world, "too-many", &touch(world, 2, Some(8 + 8 * 32))).await;
        refused.assert_problem(409, "too_many_scheduled", &[]);
        assert_eq!(world.rows("OutboundTable").await.len(), 32, "a refused message leaves nothing behind");
        // A message for now does not count as scheduled.
        assert_eq!(ask_again(world, "now", 3).await.body["status"], "QUEUED");
        cancel(world, &ids[7]).await;
        let next = ask(world, "next", &touch(world, 4, Some(8 + 8 * 32))).await;
        assert_eq!(next.body["status"], "QUEUED", "{}", next.body);
        ids.push(next.text("/message_id"));
        ids.remove(7);
        for id in &ids {
            cancel(world, id).await;
        }
    })
    .await;
}
