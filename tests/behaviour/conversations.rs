//! Every burst gets one reply, and no message stays unanswered: from the webhook to the request to
//! the provider.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_tests::{Answer, KEY, Setup, World, play, play_with};

use crate::outbound::sending;

pub const CHAT: i64 = 987_654_321;
pub const TELEGRAM_SECRET: &str = "local-telegram-secret";
const EVOLUTION_TOKEN: &str = "local-evolution-token";
pub const PHONE: &str = "5511912345678";

/// Sets up an instance with these settings.
pub async fn instance(world: &World, channel: &str, settings: &Value) {
    let path = format!("/instances/{channel}/default");
    let answer = world.send(world.request(Method::PUT, &path).bearer_auth(KEY).json(settings)).await;
    assert!([200, 201].contains(&answer.status), "{}", answer.body);
}

pub fn update(chat: i64, message_id: u64, text: &str, at: i64) -> Value {
    json!({"update_id": 7_000 + message_id, "message": {
        "message_id": message_id,
        "from": {"id": chat, "is_bot": false, "first_name": "Ana"},
        "chat": {"id": chat, "type": "private", "first_name": "Ana"},
        "date": at,
        "text": text,
    }})
}

pub async fn webhook(world: &World, path: &str, header: (&str, &str), body: &Value) -> Answer {
    world.send(world.request(Method::POST, path).header(header.0, header.1).json(body)).await
}

/// Delivers a message of a chat with the current time.
pub async fn says(world: &World, chat: i64, message_id: u64, text: &str) -> Answer {
    let body = update(chat, message_id, text, world.now().seconds());
    webhook(world, "/webhooks/telegram/default", ("x-telegram-bot-api-secret-token", TELEGRAM_SECRET), &body).await
}

pub async fn hears(world: &World, chat: i64, message_id: u64, text: &str) {
    let answer = says(world, chat, message_id, text).await;
    assert_eq!((answer.status, &answer.body["stored"]), (200, &json!(1)), "{}", answer.body);
}

pub fn upsert(id: &str, text: &str, from_me: bool, at: i64) -> Value {
    json!({
        "event": "messages.upsert",
        "instance": "default",
        "data": {
            "key": {"remoteJid": format!("{PHONE}@s.whatsapp.net"), "fromMe": from_me, "id": id},
            "pushName": "Ana",
            "message": {"conversation": text},
            "messageType": "conversation",
            "messageTimestamp": at,
        },
        "sender": "5511000000000@s.whatsapp.net",
        "apikey": "canary-of-the-api-key",
    })
}

pub async fn whatsapp(world: &World, body: &Value) -> Answer {
    webhook(world, "/webhooks/evolution/default", ("x-webhook-token", EVOLUTION_TOKEN), body).await
}

/// Returns the texts that were sent to a contact, in order.
pub fn replies(world: &World, to: &str) -> Vec<String> {
    let sent = world.stack.catcher().sent(None, Some(to));
    sent.iter().map(|sent| sent.body["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Returns the requests to the responder, in order.
pub fn questions(world: &World) -> Vec<Value> {
    world.stack.catcher().sent(Some("responder"), None).into_iter().map(|sent| sent.body).collect()
}

pub async fn answers_with(world: &World, status: u16, body: Value, times: u64) {
    let answer = Scripted { status, headers: Default::default(), body };
    let fault = CallFault {
        service: Some("responder".to_owned()),
        answer: Some(answer),
        times,
        ..CallFault::first(Action::Answer)
    };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

/// Returns the only conversation.
pub async fn conversation(world: &World) -> Value {
    let rows = world.rows("ConversationsTable").await;
    let rows: Vec<_> = rows.iter().filter(|row| row["sk"] == "STATE").collect();
    assert_eq!(rows.len(), 1, "not one conversation");
    let id = rows[0]["id"].as_str().expect("an id");
    world.get(&format!("/conversations/{id}")).await.body
}

async fn id(world: &World) -> String {
    conversation(world).await["conversation"]["conversation_id"].as_str().expect("an id").to_owned()
}

pub async fn seconds(world: &World, seconds: u64) {
    world.advance(Duration::from_secs(seconds)).await;
}

#[tokio::test]
async fn a_burst_gets_one_reply_and_a_message_during_the_reply_gets_its_own() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({})).await;
        answers_with(world, 202, json!({}), 1).await;
        hears(world, CHAT, 1, "one").await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 4).await;
        assert_eq!(questions(world).len(), 0, "the responder was asked before the burst ended");
        seconds(world, 2).await;
        let shown = conversation(world).await;
        assert_eq!(shown["conversation"]["status"], "processing", "{shown}");
        assert_eq!(shown["conversation"]["processing"]["phase"], "awaiting");
        hears(world, CHAT, 3, "three").await;
        seconds(world, 6).await;
        let (batch, id) = (shown["conversation"]["processing"]["batch_id"].clone(), id(world).await);
        let reply = json!({"batch_id": batch, "reply": "to one and two"});
        assert_eq!(world.post(&format!("/conversations/{id}/replies"), &reply).await.status, 202);
        world.drain().await;
        seconds(world, 6).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["to one and two", "three"]);
        let shown = conversation(world).await;
        assert_eq!(shown["conversation"]["status"], "idle", "{shown}");
        let fates: Vec<_> = shown["messages"].as_array().expect("a list").iter().map(|m| m["fate"].clone()).collect();
        assert_eq!(fates, ["answered", "answered", "answered"]);
        let batches = shown["batches"].as_array().expect("a list");
        assert_eq!((&batches[1]["from"], &batches[1]["to"]), (&json!(1), &json!(2)), "{shown}");
        assert_eq!(
            (&batches[0]["from"], &batches[0]["to"], &batches[0]["outcome"]),
            (&json!(3), &json!(3), &json!("SENT"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_responder_gets_the_messages_in_order_signed_and_with_their_batch_id() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({"history_limit": 7})).await;
        hears(world, CHAT, 1, "one").await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 6).await;
        let asked = world.stack.catcher().sent(Some("responder"), None);
        assert_eq!(asked.len(), 1);
        let question = &asked[0].body;
        assert_eq!((&question["history_limit"], &question["attempt"]), (&json!(7), &json!(1)), "{question}");
        assert_eq!((&question["contact"], &question["name"]), (&json!(CHAT.to_string()), &json!("Ana")));
        let texts: Vec<_> =
            question["messages"].as_array().expect("a list").iter().map(|m| m["text"].clone()).collect();
        assert_eq!(texts, ["one", "two"]);
        assert_eq!(question["batch_id"], format!("{}-2", question["conversation_id"].as_str().expect("an id")));
        assert_eq!(asked[0].headers["webhook-id"], question["batch_id"].as_str().expect("an id"));
        assert!(asked[0].headers.contains_key("webhook-signature"), "{:?}", asked[0].headers);
    })
    .await;
}

#[tokio::test]
async fn an_unverified_webhook_is_refused_and_stores_nothing() {
    play(async |world| {
        instance(world, "telegram", &json!({})).await;
        instance(world, "whatsapp", &json!({})).await;
        let (body, path) = (update(CHAT, 1, "one", world.now().seconds()), "/webhooks/telegram/default");
        let header = "x-telegram-bot-api-secret-token";
        for secret in ["", "local-telegram-secre", "local-telegram-secret2", "LOCAL-TELEGRAM-SECRET"] {
            webhook(world, path, (header, secret), &body).await.assert_problem(401, "unverified", &[]);
        }
        webhook(world, path, ("x-other", TELEGRAM_SECRET), &body).await.assert_problem(401, "unverified", &[]);
        // The request is refused before its body is read: a body that is not JSON gets the same
        // answer.
        let unread = world.request(Method::POST, path).header(header, "wrong").body("{not json");
        world.send(unread).await.assert_problem(401, "unverified", &[]);
        let body = upsert("A1", "one", false, world.now().seconds());
        let path = "/webhooks/evolution/default";
        webhook(world, path, ("x-webhook-token", "wrong"), &body).await.assert_problem(401, "unverified", &[]);
        for token in ["Bearer x.y.z", "Bearer ", "Basic local-evolution-token"] {
            webhook(world, path, ("authorization", token), &body).await.assert_problem(401, "unverified", &[]);
        }
        assert_eq!(world.rows("ConversationsTable").await, Vec::<Value>::new());
    })
    .await;
}

#[tokio::test]
async fn a_webhook_secret_can_be_rotated_while_both_are_valid() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({})).await;
        hears(world, CHAT, 1, "one").await;
        let secrets = json!({"telegram": {"default": ["new-secret", TELEGRAM_SECRET]}, "responder": "k"});
        world.stack.secrets().set("WebhookSecrets", &secrets).expect("set");
        seconds(world, 6).await;
        let body = update(CHAT, 2, "two", world.now().seconds());
        let header = "x-telegram-bot-api-secret-token";
        let path = "/webhooks/telegram/default";
        assert_eq!(webhook(world, path, (header, "new-secret"), &body).await.status, 200);
        hears(world, CHAT, 3, "three").await;
        seconds(world, 6).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one", "two\nthree"]);
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_webhook_is_refused_by_field_and_an_irrelevant_one_is_counted() {
    play(async |world| {
        let header = ("x-telegram-bot-api-secret-token", TELEGRAM_SECRET);
        let path = "/webhooks/telegram/default";
        webhook(world, path, header, &update(CHAT, 1, "one", world.now().seconds()))
            .await
            .assert_problem(404, "not_found", &[]);
        webhook(world, "/webhooks/telegram/nobody", header, &json!({})).await.assert_problem(404, "not_found", &[]);
        instance(world, "telegram", &json!({})).await;
        let not_json = world.request(Method::POST, path).header(header.0, header.1).body("{not json");
        world.send(not_json).await.assert_problem(400, "invalid_json", &[]);
        webhook(world, path, header, &json!({"message": {}})).await.assert_problem(422, "invalid_request", &["update_id"]);
        let large = json!({"update_id": 1, "x": "x".repeat(300_000)});
        webhook(world, path, header, &large).await.assert_problem(413, "body_too_large", &[]);
        let packed = world.request(Method::POST, path).header(header.0, header.1).header("content-encoding", "gzip");
        world.send(packed.body("x")).await.assert_problem(415, "unsupported_media_type", &[]);
        for body in [
            json!({"update_id": 1, "callback_query": {"id": "1"}}),
            json!({"update_id": 2, "edited_message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "text": "x"}}),
            update(CHAT, 3, "/start campaign", world.now().seconds()),
            json!({"update_id": 4, "message": {"message_id": 1, "date": 1, "chat": {"id": -100, "type": "supergroup"}, "text": "x"}}),
        ] {
            let answer = webhook(world, path, header, &body).await;
            assert_eq!((answer.status, &answer.body["ignored"]), (200, &json!(1)), "{body} {}", answer.body);
        }
        assert!(world.metrics("WebhooksIgnored").len() >= 4, "ignored webhooks are counted");
        assert_eq!(world.rows("ConversationsTable").await, Vec::<Value>::new());
    })
    .await;
}

#[tokio::test]
async fn a_redelivered_message_is_a_duplicate() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        hears(world, CHAT, 1, "one").await;
        for _ in 0..3 {
            let again = says(world, CHAT, 1, "one").await;
            assert_eq!((again.status, &again.body["duplicate"], &again.body["stored"]), (200, &json!(1), &json!(0)));
        }
        seconds(world, 6).await;
        assert_eq!(says(world, CHAT, 1, "one").await.body["duplicate"], 1, "it is a duplicate after the answer, too");
        seconds(world, 60).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"]);
    })
    .await;
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_is_redelivered_and_then_answered() {
    let expected = umavez_tests::Expected { sent: 1, server_errors: 1, ..Default::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        instance(world, "telegram", &json!({})).await;
        let broken = CallFault {
            function: Some("webhook-intake".to_owned()),
            operation: Some("TransactWriteItems".to_owned()),
            times: 3,
            ..CallFault::first(Action::ErrorBefore)
        };
        world.stack.add_fault(Fault::Call(broken)).await.expect("armed");
        assert_eq!(says(world, CHAT, 1, "one").await.status, 503, "the provider must retry");
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"]);
    })
    .await;
}

#[tokio::test]
async fn whatsapp_messages_come_one_or_many_at_a_time_and_their_api_key_is_not_stored() {
    play_with(sending(1), async |world| {
        world.canary("canary-of-the-api-key");
        instance(world, "whatsapp", &json!({})).await;
        let now = world.now().seconds();
        assert_eq!(whatsapp(world, &upsert("A1", "one", false, now)).await.body["stored"], 1);
        let mut many = upsert("A2", "two", false, now);
        let three = upsert("A3", "three", false, now)["data"].clone();
        let reaction =
            json!({"key": three["key"], "message": {"reactionMessage": {"text": "👍"}}, "messageTimestamp": now});
        many["data"] = json!([many["data"], three, reaction]);
        let answer = whatsapp(world, &many).await;
        assert_eq!((&answer.body["stored"], &answer.body["ignored"]), (&json!(2), &json!(1)), "{}", answer.body);
        seconds(world, 6).await;
        assert_eq!(replies(world, PHONE), ["one\ntwo\nthree"]);
        for row in world.rows("ConversationsTable").await {
            assert!(!row.to_string().contains("canary-of-the-api-key"), "{row}");
        }
    })
    .await;
}

#[tokio::test]
async fn history_is_stored_and_not_answered() {
    play(async |world| {
        instance(world, "whatsapp", &json!({"answer_within_seconds": 600})).await;
        let old = world.now().seconds() - 601;
        let answer = whatsapp(world, &upsert("A1", "last week", false, old)).await;
        assert_eq!(answer.body["history"], 1, "{}", answer.body);
        assert_eq!(whatsapp(world, &upsert("A1", "last week", false, old)).await.body["duplicate"], 1);
        seconds(world, 60).await;
        let shown = conversation(world).await;
        assert_eq!((&shown["conversation"]["status"], &shown["messages"]), (&json!("idle"), &json!([])), "{shown}");
        assert_eq!(
            (&shown["asides"][0]["text"], &shown["asides"][0]["fate"]),
            (&json!("last week"), &json!("not_for_answer"))
        );
        assert_eq!(questions(world).len(), 0);
    })
    .await;
}

#[tokio::test]
async fn an_echo_of_our_own_message_is_recognized_and_settles_an_unknown_message() {
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        let now = world.now().seconds();
        whatsapp(world, &upsert("A1", "one", false, now)).await;
        seconds(world, 6).await;
        let shown = conversation(world).await;
        assert_eq!(shown["batches"][0]["outcome"], "UNKNOWN", "{shown}");
        let echo = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(echo.body["ours"], 1, "{}", echo.body);
        world.drain().await;
        let message_id = shown["batches"][0]["message_ids"][0].as_str().expect("an id");
        let message = world.get(&format!("/outbound/messages/{message_id}")).await.body;
        assert_eq!((&message["status"], &message["provider_id"]), (&json!("SENT"), &json!("3EB0AA")), "{message}");
        let again = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(again.body["ours"], 1, "recognized by its id: {}", again.body);
        assert_eq!(conversation(world).await["conversation"]["status"], "idle", "no person has taken over");
    })
    .await;
}

#[tokio::test]
async fn a_reply_of_a_person_by_phone_counts_as_the_answer_and_holds_the_conversation_for_a_while() {
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({"person_hold_seconds": 600})).await;
        let now = world.now().seconds();
        whatsapp(world, &upsert("A1", "one", false, now)).await;
        let person = whatsapp(world, &upsert("P1", "I am here", true, now + 1)).await;
        assert_eq!(person.body["person"], 1, "{}", person.body);
        seconds(world, 30).await;
        let shown = conversation(world).await;
        assert_eq!(shown["conversation"]["status"], "held", "{shown}");
        assert_eq!(shown["messages"][0]["fate"], "answered_by_person");
        assert_eq!(shown["asides"][0]["author"], "person");
        whatsapp(world, &upsert("A2", "two", false, world.now().seconds())).await;
        seconds(world, 60).await;
        assert_eq!(questions(world).len(), 0, "the bot does not answer");
        seconds(world, 600).await;
        world.tick("Recovery").await;
        assert_eq!(replies(world, PHONE), ["two"], "the person has not answered it, so the bot does");
    })
    .await;
}

#[tokio::test]
async fn a_long_reply_is_sent_in_parts_that_keep_their_order() {
    play_with(sending(3), async |world| {
        instance(world, "telegram", &json!({})).await;
        let parts = ["a".repeat(3_000), "b".repeat(3_000), "c".repeat(3_000)];
        answers_with(world, 200, json!({"reply": parts.join("\n\n")}), 1).await;
        hears(world, CHAT, 1, "tell me everything").await;
        seconds(world, 6).await;
        seconds(world, 10).await;
        assert_eq!(replies(world, &CHAT.to_string()), parts);
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["batches"][0]["outcome"]),
            (&json!("idle"), &json!("SENT"))
        );
        assert_eq!(shown["batches"][0]["message_ids"].as_array().map(Vec::len), Some(3), "{shown}");
    })
    .await;
}

#[tokio::test]
async fn an_empty_reply_ends_a_batch_without_a_message() {
    play(async |world| {
        instance(world, "telegram", &json!({})).await;
        answers_with(world, 200, json!({"reply": null}), 1).await;
        hears(world, CHAT, 1, "thanks!").await;
        seconds(world, 6).await;
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["messages"][0]["fate"]),
            (&json!("idle"), &json!("nothing_to_say"))
        );
    })
    .await;
}

#[tokio::test]
async fn an_undeliverable_reply_is_reported_and_the_conversation_continues() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        let body = json!({"ok": false, "error_code": 400, "description": "Bad Request: chat not found"});
        let answer = Scripted { status: 400, headers: Default::default(), body };
        let service = Some("telegram".to_owned());
        let fault = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["messages"][0]["fate"], &shown["batches"][0]["outcome"]),
            (&json!("not_delivered"), &json!("FAILED"))
        );
        let list = world
            .send(world.request(Method::DELETE, &format!("/suppressions?channel=telegram&to={CHAT}")).bearer_auth(KEY));
        list.await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 6).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["two"]);
    })
    .await;
}
