//! A guard with several holds: scheduled messages of one intent type to one contact, accepted and
//! canceled in any order.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_tests::{Answer, KEY, Setup, World, play_with};

use crate::intents::CLIENT;
use crate::outbound::{accept, ask, message, sending, telegram, with};

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
