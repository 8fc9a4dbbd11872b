//! Answers of providers, or none, and the outcome for the message, its intent and its address.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::delivery::{Again, Claim, Settled, State, Verdict};
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_local::faults::{Action, CallFault, DeliveryAction, DeliveryFault, Fault, Scripted};
use umavez_platform::delivery::Claimed;
use umavez_platform::intents::Intents;
use umavez_platform::messages::Messages;
use umavez_tests::{Answer, Expected, KEY, Setup, World, play, play_with};

use crate::outbound::{accept, ask, codes, intent, message, sending, sent, telegram, with};

/// Arms a fault at the calls to a provider.
async fn at_provider(world: &World, service: &str, fault: CallFault) {
    let fault = CallFault { service: Some(service.to_owned()), ..fault };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

async fn answer_with(world: &World, service: &str, status: u16, body: Value) {
    let answer = Scripted { status, headers: Default::default(), body };
    at_provider(world, service, CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) }).await;
}

fn blocked() -> Value {
    json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"})
}

fn too_many(seconds: u64) -> Value {
    let description = format!("Too Many Requests: retry after {seconds}");
    json!({"ok": false, "error_code": 429, "description": description, "parameters": {"retry_after": seconds}})
}

/// Returns the number of calls to a provider.
fn calls_to(world: &World, service: &str) -> usize {
    world.stack.calls().since(0).iter().filter(|call| call.service == service).count()
}

async fn order(world: &World, id: &str, what: &str) -> Answer {
    let request = world.request(Method::POST, &format!("/outbound/messages/{id}/{what}")).bearer_auth(KEY);
    world.send(request).await
}

async fn status(world: &World, id: &str) -> String {
    message(world, id).await["status"].as_str().expect("a status").to_owned()
}

#[tokio::test]
async fn a_deactivated_user_is_suppressed_for_all_bots() {
    play(async |world| {
        let tokens = json!({"telegram": {"default": "1:a", "loja-2": "2:b"}});
        world.stack.secrets().set("Senders", &tokens).expect("set");
        let gone = json!({"ok": false, "error_code": 403, "description": "Forbidden: user is deactivated"});
        answer_with(world, "telegram", 403, gone).await;
        let first = accept(world, "a", &telegram("Oi")).await;
        world.drain().await;
        assert_eq!(message(world, &first).await["reason_code"], "user_deactivated");
        let listed = world.get("/suppressions?channel=telegram").await.body;
        assert_eq!(listed["suppressions"][0]["senders"], json!([]), "the suppression applies to all bots");
        let of_another = accept(world, "b", &with(telegram("Oi"), json!({"sender": "loja-2"}))).await;
        world.drain().await;
        assert_eq!(status(world, &of_another).await, "SUPPRESSED");
    })
    .await;
}

#[tokio::test]
async fn a_group_that_forbids_the_bot_to_write_ends_the_message_and_is_not_suppressed() {
    play_with(Setup::default().expecting(Expected { sent: 1, ..Expected::default() }), async |world| {
        let forbidden = json!({"ok": false, "error_code": 400, "description": "Bad Request: CHAT_WRITE_FORBIDDEN"});
        answer_with(world, "telegram", 400, forbidden).await;
        let first = accept(world, "a", &telegram("Oi")).await;
        let second = accept(world, "b", &telegram("Oi de novo")).await;
        world.drain().await;
        assert_eq!(message(world, &first).await["reason_code"], "bot_has_no_rights");
        assert_eq!(status(world, &second).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_user_who_blocked_the_bot_is_suppressed_until_the_suppression_is_removed() {
    play_with(sending(1), async |world| {
        answer_with(world, "telegram", 403, blocked()).await;
        let first = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        let shown = message(world, &first).await;
        assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("FAILED"), &json!("bot_blocked")));
        let listed = world.get("/suppressions?channel=telegram").await.body;
        assert_eq!(listed["suppressions"][0]["to"], "987654321");
        assert_eq!(listed["suppressions"][0]["reason"], "bot_blocked");
        assert_eq!(listed["suppressions"][0]["source"], "provider");
        assert_eq!(listed["suppressions"][0]["message_id"], first.as_str());
        // The intent was released, so the next message takes it, and releases it because the
        // address is suppressed.
        let second = accept(world, "b", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        let shown = message(world, &second).await;
        assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("SUPPRESSED"), &json!("bot_blocked")));
        assert_eq!(codes(&shown), ["accepted", "suppressed"]);
        assert_eq!(calls_to(world, "telegram"), 1);
        let remove = || world.request(Method::DELETE, "/suppressions?channel=telegram&to=987654321").bearer_auth(KEY);
        assert_eq!(world.send(remove()).await.body["removed"], true);
        assert_eq!(world.send(remove()).await.body["removed"], false);
        let third = accept(world, "c", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        assert_eq!(status(world, &third).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_rate_limit_of_telegram_delays_the_whole_bot_to_the_second() {
    play_with(sending(3), async |world| {
        answer_with(world, "telegram", 429, too_many(33)).await;
        let first = accept(world, "a", &telegram("a")).await;
        world.drain().await;
        let shown = message(world, &first).await;
        assert_eq!((&shown["status"], codes(&shown)), (&json!("QUEUED"), vec!["accepted", "claimed", "throttled"]));
        // Another chat with the highest priority: the whole bot is parked.
        let body = with(telegram("b"), json!({"to": "42", "priority": "start"}));
        let second = accept(world, "b", &body).await;
        let other_bot = json!({"channel": "whatsapp", "to": "5511912345678", "content": {"text": "c"}});
        let third = accept(world, "c", &other_bot).await;
        world.drain().await;
        assert_eq!(status(world, &third).await, "SENT", "another sender is not limited");
        world.advance(Duration::from_secs(31)).await;
        assert_eq!(calls_to(world, "telegram"), 1, "not before its time");
        world.advance(Duration::from_secs(6)).await;
        for id in [&first, &second] {
            assert_eq!(status(world, id).await, "SENT");
        }
        assert_eq!(message(world, &first).await["attempts"], 2);
    })
    .await;
}

#[tokio::test]
async fn a_rate_limit_of_a_group_parks_the_group_and_not_the_bot() {
    play_with(sending(2), async |world| {
        answer_with(world, "telegram", 429, too_many(600)).await;
        let group = accept(world, "a", &with(telegram("a"), json!({"to": "-1001234567890"}))).await;
        world.drain().await;
        let person = accept(world, "b", &telegram("b")).await;
        world.drain().await;
        assert_eq!((status(world, &person).await, status(world, &group).await), ("SENT".into(), "QUEUED".into()));
        world.advance(Duration::from_secs(605)).await;
        assert_eq!(status(world, &group).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_rate_limit_of_an_hour_is_kept() {
    play_with(sending(1), async |world| {
        answer_with(world, "telegram", 429, too_many(3_600)).await;
        let id = accept(world, "a", &telegram("a")).await;
        world.drain().await;
        world.advance(Duration::from_secs(3_000)).await;
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(590)).await;
        assert_eq!(calls_to(world, "telegram"), 1);
        world.advance(Duration::from_secs(15)).await;
        assert_eq!(status(world, &id).await, "SENT");
    })
    .await;
}

fn channels() -> [(&'static str, Value); 3] {
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    [
        ("telegram", telegram("Oi")),
        ("evolution", json!({"channel": "whatsapp", "to": "5511912345678", "content": {"text": "Oi"}})),
        ("ses", json!({"channel": "email", "to": "ana@example.com", "content": content})),
    ]
}

#[tokio::test]
async fn a_lost_answer_leaves_a_message_unknown_after_one_call_with_its_intent_held() {
    for (service, body) in channels() {
        play_with(sending(1), async |world| {
            world.stack.email_events().switch(false);
            at_provider(world, service, CallFault::first(Action::DropReply)).await;
            let id = accept(world, "a", &with(body.clone(), intent())).await;
            world.drain().await;
            world.advance(Duration::from_secs(7_200)).await;
            world.tick("Recovery").await;
            let shown = message(world, &id).await;
            assert_eq!((&shown["status"], &shown["attempts"]), (&json!("UNKNOWN"), &json!(1)), "{service}: {shown}");
            assert_eq!(calls_to(world, service), 1, "{service}");
            assert_eq!(ask(world, "b", &with(telegram("de novo"), intent())).await.body["status"], "DEDUPED");
            let listed = world.get("/outbound/unknown").await.body;
            assert_eq!(listed["messages"][0]["message_id"], id.as_str());
            let canceled = order(world, &id, "cancel").await.body;
            let answer = json!([canceled["canceled"], canceled["in_flight"], canceled["already_sent"]]);
            assert_eq!(answer, json!([false, true, false]));
        })
        .await;
    }
}

#[tokio::test]
async fn a_stalled_provider_leaves_a_message_unknown_after_one_call() {
    let setup = sending(3).parameter("ProviderTimeoutSeconds", "1");
    play_with(setup, async |world| {
        world.stack.email_events().switch(false);
        for (service, body) in channels() {
            let stall = CallFault { delay_ms: 2_500, ..CallFault::first(Action::DelayAfter) };
            at_provider(world, service, stall).await;
            let id = accept(world, service, &body).await;
            world.drain().await;
            let shown = message(world, &id).await;
            assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("UNKNOWN"), &json!("provider_timed_out")));
            assert_eq!(calls_to(world, service), 1, "{service}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_error_leaves_a_message_unknown_and_an_operator_may_resend_it_once() {
    play_with(sending(2), async |world| {
        at_provider(world, "telegram", CallFault::first(Action::ErrorAfter)).await;
        let id = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        assert_eq!(status(world, &id).await, "UNKNOWN");
        let path = format!("/outbound/messages/{id}/resend");
        let wrong = world.post_with_key("r0", &path, &json!({"attempt": 7})).await;
        assert_eq!((wrong.status, wrong.code()), (409, "not_resendable"));
        let first = world.post_with_key("r1", &path, &json!({"attempt": 1})).await;
        assert_eq!((first.status, &first.body["status"]), (202, &json!("QUEUED")), "{}", first.body);
        world.drain().await;
        let again = world.post_with_key("r1", &path, &json!({"attempt": 1})).await;
        assert_eq!((again.status, &again.body, again.is_replayed()), (202, &first.body, true));
        assert_eq!(world.post_with_key("r1", &path, &json!({"attempt": 2})).await.code(), "idempotency_key_reused");
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("SENT"), &json!(2)));
        assert_eq!(codes(&shown), ["accepted", "claimed", "unknown", "resent", "claimed", "sent"]);
        assert_eq!(order(world, &id, "resend").await.code(), "not_resendable");
        assert!(world.get("/outbound/unknown").await.body["messages"].as_array().expect("a list").is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_channel_with_the_resend_policy_does_not_wait_for_an_operator() {
    let setup = sending(2).parameter("UnknownPolicies", r#"{"telegram": "resend"}"#);
    play_with(setup, async |world| {
        at_provider(world, "telegram", CallFault::first(Action::DropReply)).await;
        let id = accept(world, "a", &telegram("Oi")).await;
        world.drain().await;
        world.advance(Duration::from_secs(10)).await;
        let shown = message(world, &id).await;
        assert_eq!(
            (&shown["status"], codes(&shown)),
            (&json!("SENT"), vec!["accepted", "claimed", "resent", "claimed", "sent"])
        );
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_provider_is_retried_until_the_message_fails() {
    // No server listens there: no byte is sent.
    let setup = Setup::default().parameter("TelegramUrl", "http://127.0.0.1:9");
    play_with(setup, async |world| {
        let id = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("QUEUED"), &json!("provider_not_connected")));
        for _ in 0..9 {
            world.advance(Duration::from_secs(300)).await;
        }
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("FAILED"), &json!(8)), "{shown}");
        let next = ask(world, "b", &with(telegram("Oi"), intent())).await;
        assert_eq!(next.body["status"], "QUEUED", "its intent was not released");
        let taken = order(world, &id, "resend").await;
        assert_eq!((taken.status, taken.code()), (409, "intent_duplicate"));
        let next = next.body["message_id"].as_str().expect("an id").to_owned();
        assert_eq!(order(world, &next, "cancel").await.body["canceled"], true);
        assert_eq!(order(world, &id, "resend").await.status, 202);
        let third = ask(world, "c", &with(telegram("Oi"), intent())).await;
        assert_eq!(
            third.body["blocked_by"]["holder"],
            format!("message:{id}"),
            "the resent message does not hold its intent"
        );
        for _ in 0..9 {
            world.advance(Duration::from_secs(300)).await;
        }
        assert_eq!(message(world, &id).await["attempts"], 16, "the resent message does not have all of its attempts");
    })
    .await;
}

#[tokio::test]
async fn a_message_is_not_sent_after_its_not_after_time() {
    play_with(Setup::default(), async |world| {
        let at = |seconds: i64| world.now().plus_ms(seconds * 1_000).to_string();
        let times = json!({"send_at": at(300), "not_after": at(400)});
        let id = accept(world, "a", &with(with(telegram("Oi"), intent()), times)).await;
        let late = DeliveryFault {
            source: "umavez-dev-outbound-shot".to_owned(),
            nth: 1,
            times: 1,
            action: DeliveryAction::Late,
            seconds: 3_600,
        };
        world.stack.add_fault(Fault::Delivery(late)).await.expect("armed");
        world.drain().await;
        world.advance(Duration::from_secs(310)).await;
        assert_eq!(status(world, &id).await, "QUEUED");
        world.advance(Duration::from_secs(3_600)).await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], codes(&shown)), (&json!("EXPIRED"), vec!["accepted", "expired"]));
        assert_eq!(
            ask(world, "b", &with(telegram("Oi"), json!({"intent": intent()["intent"], "send_at": at(900)})))
                .await
                .status,
            202
        );
        let next = world.get("/explain?to=987654321").await.body["messages"][0]["message_id"].clone();
        assert_eq!(order(world, next.as_str().expect("an id"), "cancel").await.body["canceled"], true);
        world.advance(Duration::from_secs(1_000)).await;
    })
    .await;
}

#[tokio::test]
async fn a_message_that_its_queue_delays_is_recovered_and_sent_once() {
    play_with(sending(1), async |world| {
        let late = DeliveryFault {
            source: "umavez-dev-outbound-shot".to_owned(),
            nth: 1,
            times: 1,
            action: DeliveryAction::Late,
            seconds: 7_200,
        };
        world.stack.add_fault(Fault::Delivery(late)).await.expect("armed");
        let id = accept(world, "a", &telegram("Oi")).await;
        world.drain().await;
        world.tick("Recovery").await;
        assert_eq!(codes(&message(world, &id).await), ["accepted"], "not before its time");
        world.advance(Duration::from_secs(700)).await;
        world.tick("Recovery").await;
        world.tick("Recovery").await;
        assert_eq!(codes(&message(world, &id).await), ["accepted", "recovered", "claimed", "sent"]);
        world.advance(Duration::from_secs(7_200)).await;
        assert_eq!(sent(world).len(), 1, "the late delivery sent it again");
    })
    .await;
}

/// Returns the messages of the stack, as functions see them.
pub fn messages(world: &World) -> Messages {
    let table = |name| world.stack.output(name).expect("a table").to_owned();
    let intents = Intents { store: world.store.clone(), table: table("IntentsTable") };
    Messages { store: world.store.clone(), table: table("OutboundTable"), intents, retention_days: 90 }
}

/// Returns the row of a message by its id in the API.
async fn stored(world: &World, messages: &Messages, id: &str) -> MessageRow {
    let id = MessageId::parse(id).expect("a message id");
    messages.get(&world.invocation(), &id).await.expect("a store").expect("a row")
}

/// Returns a message whose attempt was started by a sender that timed out.
async fn abandoned(world: &World, messages: &Messages, key: &str) -> MessageRow {
    let stopped = json!({"send_at": world.now().plus_ms(600_000).to_string()});
    let id = accept(world, key, &with(with(telegram("Oi"), intent()), stopped)).await;
    world.drain().await;
    let row = stored(world, messages, &id).await;
    let claim = |token: &str| Claim { attempt: 1, token: token.to_owned(), deadline: world.now().plus_ms(25_000) };
    let claimed = messages.claim(&world.invocation(), &row, &claim("a"), &row.sender).await.expect("a store");
    let Claimed::Yes(claimed) = claimed else { panic!("not claimed: {claimed:?}") };
    let second = messages.claim(&world.invocation(), &row, &claim("b"), &row.sender).await.expect("a store");
    assert!(matches!(second, Claimed::Lost(Some(stored)) if stored.delivery.state == State::Sending), "claimed twice");
    world.tick("Recovery").await;
    assert_eq!(status(world, &id).await, "SENDING", "its sender may still answer");
    world.advance(Duration::from_secs(30)).await;
    world.tick("Recovery").await;
    assert_eq!(status(world, &id).await, "UNKNOWN");
    claimed
}

#[tokio::test]
async fn a_late_outcome_settles_its_own_attempt_and_never_queues_the_message_again() {
    play_with(Setup::default(), async |world| {
        let messages = messages(world);
        let row = abandoned(world, &messages, "a").await;
        let settle = async |verdict: &Verdict| {
            messages.settle(&world.invocation(), &row, 1, verdict, &row.sender).await.expect("a store")
        };
        assert_eq!(settle(&Verdict::Unknown { code: "provider_timed_out" }).await, Settled::Already);
        let not_before = world.now().plus_ms(2_000);
        let not_sent = Verdict::Again { why: Again::Retry, code: "provider_not_connected", not_before };
        assert!(matches!(settle(&not_sent).await, Settled::Now(_)), "the late outcome is not accepted");
        let shown = message(world, row.id.as_str()).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("FAILED"), &json!(1)), "{shown}");
        assert_eq!(settle(&Verdict::Failed { code: "c", suppress: true }).await, Settled::Already, "only once");
        let said = Verdict::Sent { provider_id: "42".to_owned() };
        assert!(matches!(settle(&said).await, Settled::Now(_)), "a late proof of sending is not accepted");
        assert_eq!(settle(&said).await, Settled::Already);
        let shown = message(world, row.id.as_str()).await;
        assert_eq!((&shown["status"], &shown["provider_id"]), (&json!("SENT"), &json!("42")));
        assert!(
            world.get("/suppressions?channel=telegram").await.body["suppressions"]
                .as_array()
                .expect("a list")
                .is_empty()
        );
        world.advance(Duration::from_secs(700)).await;
    })
    .await;
}

#[tokio::test]
async fn a_late_proof_of_sending_revokes_the_order_to_resend() {
    play_with(Setup::default(), async |world| {
        let messages = messages(world);
        let row = abandoned(world, &messages, "a").await;
        let hold_back =
            CallFault { function: Some("outbox-relay".to_owned()), times: 3, ..CallFault::first(Action::ErrorBefore) };
        world.stack.add_fault(Fault::Call(hold_back)).await.expect("armed");
        assert_eq!(order(world, row.id.as_str(), "resend").await.status, 202);
        let said = Verdict::Sent { provider_id: "42".to_owned() };
        let settled = messages.settle(&world.invocation(), &row, 1, &said, &row.sender).await.expect("a store");
        assert!(matches!(settled, Settled::Now(_)), "{settled:?}");
        world.drain().await;
        world.advance(Duration::from_secs(700)).await;
        let shown = message(world, row.id.as_str()).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("SENT"), &json!(1)), "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_message_waits_for_missing_credentials_and_uses_a_rotated_token() {
    play_with(sending(2), async |world| {
        let both = json!({"telegram": {"loja-2": "2:SECRET-CANARY", "default": "1:SECRET-CANARY"}});
        world.canary("SECRET-CANARY");
        world.stack.secrets().set("Senders", &both).expect("set");
        // It is accepted while there is a credential, and is due after the credential was removed.
        let due = world.now().plus_ms(60_000).to_string();
        let id = accept(world, "a", &with(telegram("Oi"), json!({"sender": "loja-2", "send_at": due}))).await;
        world.stack.secrets().set("Senders", &json!({"telegram": {"default": "1:SECRET-CANARY"}})).expect("set");
        world.advance(Duration::from_secs(61)).await;
        assert_eq!(message(world, &id).await["reason_code"], "sender_unknown");
        assert!(!world.metrics("CredentialsMissing").is_empty(), "an alarm watches this metric");
        world.stack.secrets().set("Senders", &both).expect("set");
        world.advance(Duration::from_secs(10)).await;
        assert_eq!(status(world, &id).await, "SENT");
        answer_with(world, "telegram", 401, json!({"ok": false, "error_code": 401, "description": "Unauthorized"}))
            .await;
        let id = accept(world, "b", &with(telegram("Oi"), json!({"to": "42"}))).await;
        world.drain().await;
        assert_eq!(message(world, &id).await["reason_code"], "bot_unauthorized");
        world.advance(Duration::from_secs(10)).await;
        assert_eq!(status(world, &id).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_job_goes_to_the_dead_letter_queue_alone() {
    let expected = Expected { dead_letters: 1, sent: 1, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        let queue = "umavez-dev-outbound-start";
        world.send_to_queue(queue, "not json").await;
        let id = accept(world, "a", &with(telegram("Oi"), json!({"priority": "start"}))).await;
        world.drain().await;
        assert_eq!(status(world, &id).await, "SENT");
        for _ in 0..3 {
            world.advance(Duration::from_secs(60)).await;
        }
        let gone = json!({"kind": "message", "v": 1, "id": "msg_00000000000000000000000000000000"});
        world.send_to_queue(queue, &gone.to_string()).await;
    })
    .await;
}

#[tokio::test]
async fn a_cancel_gets_a_true_answer_in_every_state() {
    play_with(sending(1), async |world| {
        let later = json!({"send_at": world.now().plus_ms(3_600_000).to_string()});
        let id = accept(world, "a", &with(with(telegram("Oi"), intent()), later)).await;
        world.drain().await;
        let facts = |answer: Answer| {
            let body = answer.body;
            (body["status"].clone(), body["canceled"] == true, body["in_flight"] == true, body["already_sent"] == true)
        };
        assert_eq!(facts(order(world, &id, "cancel").await), (json!("CANCELED"), true, false, false));
        assert_eq!(facts(order(world, &id, "cancel").await), (json!("CANCELED"), true, false, false));
        let other = accept(world, "b", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        assert_eq!(facts(order(world, &other, "cancel").await), (json!("SENT"), false, false, true));
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(3_700)).await;
        assert_eq!(order(world, &format!("msg_{}", "0".repeat(32)), "cancel").await.status, 404);
    })
    .await;
}

/// Starts the next attempt of a message, as a sender does. Returns its row.
async fn claimed(world: &World, messages: &Messages, id: &str) -> MessageRow {
    let row = stored(world, messages, id).await;
    let deadline = world.now().plus_ms(25_000);
    let claim = Claim { attempt: row.delivery.attempt + 1, token: "test".to_owned(), deadline };
    match messages.claim(&world.invocation(), &row, &claim, &row.sender).await.expect("a store") {
        Claimed::Yes(claimed) => claimed,
        other => panic!("not claimed: {other:?}"),
    }
}

#[tokio::test]
async fn a_cancel_during_an_attempt_prevents_every_later_attempt() {
    play_with(sending(1), async |world| {
        let messages = messages(world);
        let later = json!({"send_at": world.now().plus_ms(3_600_000).to_string()});
        let id = accept(world, "a", &with(with(telegram("Oi"), intent()), later)).await;
        world.drain().await;
        let row = claimed(world, &messages, &id).await;
        for _ in 0..2 {
            let canceled = order(world, &id, "cancel").await.body;
            let answer = json!([canceled["status"], canceled["canceled"], canceled["in_flight"]]);
            assert_eq!(answer, json!(["SENDING", false, true]));
        }
        let again =
            Verdict::Again { why: Again::Throttled, code: "throttled", not_before: world.now().plus_ms(600_000) };
        let settled = messages.settle(&world.invocation(), &row, 1, &again, &row.sender).await.expect("a store");
        assert!(matches!(settled, Settled::Now(_)), "{settled:?}");
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("CANCELED"), &json!(1)), "{shown}");
        assert_eq!(
            codes(&shown),
            ["accepted", "claimed", "recalled", "canceled"],
            "a repeated cancel is recorded again"
        );
        assert_eq!(order(world, &id, "cancel").await.body["canceled"], true, "a later cancel gets another answer");
        world.advance(Duration::from_secs(4_000)).await;
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(700)).await;
        assert_eq!(calls_to(world, "telegram"), 0);
        // Its intent was released.
        let next = accept(world, "b", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        assert_eq!(status(world, &next).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_cancel_during_an_attempt_overrides_the_resend_policy() {
    let setup = Setup::default().parameter("UnknownPolicies", r#"{"telegram": "resend"}"#);
    play_with(setup, async |world| {
        let messages = messages(world);
        let later = json!({"send_at": world.now().plus_ms(3_600_000).to_string()});
        // One sender reports an unknown outcome; the other one times out.
        for key in ["a", "b"] {
            let id = accept(world, key, &with(telegram(key), later.clone())).await;
            world.drain().await;
            let row = claimed(world, &messages, &id).await;
            assert_eq!(order(world, &id, "cancel").await.body["in_flight"], true);
            if key == "a" {
                let not_before = world.now().plus_ms(2_000);
                let again = Verdict::Again { why: Again::Policy, code: "provider_timed_out", not_before };
                let settled =
                    messages.settle(&world.invocation(), &row, 1, &again, &row.sender).await.expect("a store");
                assert!(matches!(settled, Settled::Now(_)), "{settled:?}");
            }
            world.advance(Duration::from_secs(60)).await;
            world.tick("Recovery").await;
            assert_eq!(status(world, &id).await, "UNKNOWN", "it may have been sent");
        }
        world.advance(Duration::from_secs(3_600)).await;
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(700)).await;
        assert_eq!(calls_to(world, "telegram"), 0);
    })
    .await;
}

#[tokio::test]
async fn an_order_to_resend_revokes_an_earlier_cancel() {
    play_with(sending(1), async |world| {
        let messages = messages(world);
        let later = json!({"send_at": world.now().plus_ms(600_000).to_string()});
        let id = accept(world, "a", &with(telegram("Oi"), later)).await;
        world.drain().await;
        let row = claimed(world, &messages, &id).await;
        assert_eq!(order(world, &id, "cancel").await.body["in_flight"], true);
        let unknown = Verdict::Unknown { code: "provider_timed_out" };
        messages.settle(&world.invocation(), &row, 1, &unknown, &row.sender).await.expect("a store");
        world.advance(Duration::from_secs(700)).await;
        answer_with(world, "telegram", 429, too_many(30)).await;
        assert_eq!(order(world, &id, "resend").await.status, 202);
        world.drain().await;
        assert_eq!(status(world, &id).await, "QUEUED", "it is not retried");
        world.advance(Duration::from_secs(40)).await;
        assert_eq!(status(world, &id).await, "SENT");
    })
    .await;
}

#[tokio::test]
async fn a_message_that_may_have_been_sent_stays_unknown_after_a_later_failed_attempt() {
    play_with(sending(1), async |world| {
        at_provider(world, "telegram", CallFault::first(Action::DropReply)).await;
        let id = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        // It is resent by order, and this attempt is known not to have been sent.
        answer_with(world, "telegram", 403, blocked()).await;
        assert_eq!(order(world, &id, "resend").await.status, 202);
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("UNKNOWN"), &json!("bot_blocked")), "{shown}");
        assert_eq!(
            ask(world, "b", &with(telegram("Oi"), intent())).await.body["status"],
            "DEDUPED",
            "it does not keep its intent"
        );
        // It is queued again and canceled: a message that may have been sent does not become
        // canceled.
        let hold_back =
            CallFault { function: Some("outbox-relay".to_owned()), times: 3, ..CallFault::first(Action::ErrorBefore) };
        world.stack.add_fault(Fault::Call(hold_back)).await.expect("armed");
        assert_eq!(order(world, &id, "resend").await.status, 202);
        let canceled = order(world, &id, "cancel").await.body;
        assert_eq!(canceled["status"], "UNKNOWN", "{canceled}");
        let answer = json!([canceled["canceled"], canceled["in_flight"], canceled["already_sent"]]);
        assert_eq!(answer, json!([false, true, false]));
        world.drain().await;
        assert_eq!(world.get("/outbound/unknown").await.body["messages"][0]["message_id"], id.as_str());
    })
    .await;
}

#[tokio::test]
async fn an_operator_settles_an_unknown_message() {
    play_with(sending(2), async |world| {
        let settle = |id: String, sent: bool| async move {
            world.post(&format!("/outbound/messages/{id}/settle"), &json!({"sent": sent})).await
        };
        let mut ids = Vec::new();
        for (key, to) in [("a", "1001"), ("b", "1002")] {
            at_provider(world, "telegram", CallFault::first(Action::DropReply)).await;
            ids.push(accept(world, key, &with(telegram("Oi"), json!({"to": to}))).await);
            world.drain().await;
        }
        let (first, second) = (ids[0].clone(), ids[1].clone());
        assert_eq!(settle(first.clone(), true).await.body["status"], "SENT");
        assert_eq!(settle(first.clone(), true).await.status, 200, "repeated");
        assert_eq!(settle(first, false).await.code(), "not_unknown");
        assert_eq!(settle(second.clone(), false).await.body["status"], "FAILED");
        assert!(world.get("/outbound/unknown").await.body["messages"].as_array().expect("a list").is_empty());
        let path = format!("/outbound/messages/{second}/settle");
        world.post(&path, &json!({"sent": "yes"})).await.assert_problem(422, "invalid_request", &["sent"]);
        assert_eq!(settle(format!("msg_{}", "0".repeat(32)), true).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn a_duplicate_job_does_not_start_the_next_attempt_early() {
    let setup = Setup::default().parameter("TelegramUrl", "http://127.0.0.1:9");
    play_with(setup, async |world| {
        let id = accept(world, "a", &telegram("Oi")).await;
        world.drain().await;
        assert_eq!(message(world, &id).await["attempts"], 1);
        let copy = json!({"kind": "message", "v": 1, "id": id}).to_string();
        for _ in 0..3 {
            world.send_to_queue("umavez-dev-outbound-shot", &copy).await;
        }
        world.drain().await;
        assert_eq!(message(world, &id).await["attempts"], 1, "retried before its time");
        assert_eq!(order(world, &id, "cancel").await.body["canceled"], true);
        world.advance(Duration::from_secs(30)).await;
    })
    .await;
}

#[tokio::test]
async fn recovery_does_not_enqueue_messages_that_wait_for_their_bot() {
    play_with(sending(4), async |world| {
        answer_with(world, "telegram", 429, too_many(3_600)).await;
        accept(world, "first", &telegram("a")).await;
        world.drain().await;
        let mut ids = Vec::new();
        for n in 0..3 {
            ids.push(
                accept(world, &format!("k{n}"), &with(telegram("b"), json!({"to": format!("{}", 100 + n)}))).await,
            );
        }
        world.drain().await;
        for _ in 0..5 {
            world.advance(Duration::from_secs(700)).await;
            world.tick("Recovery").await;
            world.tick("OutboundSweep").await;
        }
        world.advance(Duration::from_secs(200)).await;
        for id in ids {
            assert_eq!(codes(&message(world, &id).await), ["accepted", "claimed", "sent"]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_of_an_unconfigured_channel_waits_with_its_reason_and_is_not_unknown() {
    let setup = Setup::default().parameter("EvolutionUrl", "");
    play_with(setup, async |world| {
        let body = json!({"channel": "whatsapp", "to": "5511912345678", "content": {"text": "Oi"}});
        let id = accept(world, "a", &body).await;
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("QUEUED"), &json!("channel_not_configured")));
        assert_eq!(order(world, &id, "cancel").await.body["canceled"], true);
        world.advance(Duration::from_secs(30)).await;
    })
    .await;
}

#[tokio::test]
async fn a_deduped_message_with_large_content_can_be_read() {
    play_with(sending(1), async |world| {
        accept(world, "a", &with(telegram("Oi"), intent())).await;
        let long = with(with(telegram("x"), json!({"content": {"text": "a".repeat(4_000)}})), intent());
        let id = ask(world, "b", &long).await.text("/message_id");
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["content"]), (&json!("DEDUPED"), &Value::Null));
        world.drain().await;
    })
    .await;
}

#[tokio::test]
async fn settled_messages_and_their_content_expire() {
    play_with(sending(1), async |world| {
        let long = with(telegram("x"), json!({"content": {"text": "a".repeat(4_000)}}));
        accept(world, "a", &long).await;
        world.drain().await;
        world.advance(Duration::from_secs(91 * 86_400)).await;
        let left = world.rows("OutboundTable").await;
        assert!(left.iter().all(|row| row["sk"] == "CONTENT"), "{left:?}");
        world.advance(Duration::from_secs(40 * 86_400)).await;
        assert!(world.rows("OutboundTable").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn cancelling_a_scheduled_message_keeps_the_earlier_hold_of_its_intent() {
    let options = json!({"reactivation_nudge": {"window": "rolling"}}).to_string();
    play_with(sending(1).parameter("IntentTypeOptions", &options), async |world| {
        accept(world, "a", &with(telegram("hoje"), intent())).await;
        world.drain().await;
        let in_days = |days: i64| json!({"send_at": world.now().plus_days(days).to_string()});
        let later = accept(world, "b", &with(with(telegram("depois"), intent()), in_days(9))).await;
        assert_eq!(order(world, &later, "cancel").await.body["canceled"], true);
        world.advance(Duration::from_secs(3 * 86_400)).await;
        let between = ask(world, "c", &with(telegram("no meio"), intent())).await;
        assert_eq!(between.body["status"], "DEDUPED", "the window of the first one is still open: {}", between.body);
        let after = ask(world, "d", &with(with(telegram("depois"), intent()), in_days(5))).await;
        assert_eq!(after.body["status"], "QUEUED", "{}", after.body);
        let id = after.text("/message_id");
        assert_eq!(order(world, &id, "cancel").await.body["canceled"], true);
    })
    .await;
}

#[tokio::test]
async fn a_message_without_a_valid_credential_waits_for_an_operator_and_does_not_fail() {
    play_with(sending(2), async |world| {
        let both = json!({"telegram": {"loja-2": "2:SECRET-CANARY", "default": "1:SECRET-CANARY"}});
        world.canary("SECRET-CANARY");
        world.stack.secrets().set("Senders", &both).expect("set");
        let due = world.now().plus_ms(60_000).to_string();
        let id = accept(world, "a", &with(telegram("Oi"), json!({"sender": "loja-2", "send_at": due}))).await;
        world.stack.secrets().set("Senders", &json!({"telegram": {"default": "1:SECRET-CANARY"}})).expect("set");
        let refused = umavez_local::faults::Scripted {
            status: 401,
            headers: Default::default(),
            body: json!({"ok": false, "error_code": 401, "description": "Unauthorized"}),
        };
        let service = Some("telegram".to_owned());
        let fault = CallFault { service, answer: Some(refused), times: 1_000, ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let revoked = accept(world, "b", &with(telegram("Oi"), json!({"to": "42"}))).await;
        // An hour is longer than eight attempts take.
        for _ in 0..12 {
            world.advance(Duration::from_secs(300)).await;
            world.tick("OutboundSweep").await;
        }
        for (id, reason) in [(&id, "sender_unknown"), (&revoked, "bot_unauthorized")] {
            let shown = message(world, id).await;
            assert_eq!((&shown["status"], &shown["reason_code"]), (&json!("QUEUED"), &json!(reason)), "{shown}");
        }
        world.stack.clear_faults();
        world.stack.secrets().set("Senders", &both).expect("set");
        for _ in 0..2 {
            world.advance(Duration::from_secs(300)).await;
            world.tick("OutboundSweep").await;
        }
        world.drain().await;
        assert_eq!(status(world, &id).await, "SENT");
        assert_eq!(status(world, &revoked).await, "SENT");
    })
    .await;
}
