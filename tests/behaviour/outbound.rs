//! Messages end to end: accepted, queued, sent by each channel, and the request to the provider.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_local::catcher::Sent;
use umavez_tests::{Answer, Expected, Setup, World, play, play_with};

use crate::limiter::{allowed, most_in_a_second};

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";

pub fn telegram(text: &str) -> Value {
    json!({"channel": "telegram", "to": "987654321", "content": {"text": text}})
}

pub fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

pub fn intent() -> Value {
    json!({"intent": {"client_id": CLIENT, "intent_type": "reactivation_nudge"}})
}

pub fn sending(sent: usize) -> Setup {
    Setup::default().expecting(Expected { sent, ..Expected::default() })
}

pub async fn ask(world: &World, key: &str, body: &Value) -> Answer {
    world.post_with_key(key, "/outbound/messages", body).await
}

/// Accepts a message and returns its id.
pub async fn accept(world: &World, key: &str, body: &Value) -> String {
    let answer = ask(world, key, body).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("QUEUED")), "{}", answer.body);
    answer.body["message_id"].as_str().expect("an id").to_owned()
}

pub async fn message(world: &World, id: &str) -> Value {
    let answer = world.get(&format!("/outbound/messages/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

pub fn codes(message: &Value) -> Vec<&str> {
    let decisions = message["decisions"].as_array().expect("decisions");
    decisions.iter().map(|decision| decision["code"].as_str().expect("a code")).collect()
}

pub fn sent(world: &World) -> Vec<Sent> {
    world.stack.catcher().sent(None, None)
}

#[tokio::test]
async fn a_telegram_message_is_sent_once_and_shown_as_sent() {
    play_with(sending(1), async |world| {
        let body = with(telegram("*Oi*"), json!({"content": {"text": "*Oi*", "parse_mode": "MarkdownV2"}}));
        let id = accept(world, "order-77", &body).await;
        world.drain().await;
        let message = message(world, &id).await;
        assert_eq!((&message["status"], &message["attempts"]), (&json!("SENT"), &json!(1)), "{message}");
        assert_eq!(codes(&message), ["accepted", "claimed", "sent"]);
        assert_eq!(message["content"], json!({"text": "*Oi*", "parse_mode": "MarkdownV2"}));
        let sent = &sent(world)[0];
        assert_eq!(sent.path, "/bot110201543:***/sendMessage");
        assert_eq!(sent.body, json!({"chat_id": 987654321, "text": "*Oi*", "parse_mode": "MarkdownV2"}));
        assert_eq!(message["provider_id"], sent.answer["result"]["message_id"].to_string());
    })
    .await;
}

#[tokio::test]
async fn a_whatsapp_message_is_sent_by_its_instance() {
    play_with(sending(2), async |world| {
        let text = json!({"channel": "whatsapp", "to": "+55 11 91234-5678", "content": {"text": "Oi"}});
        let media = json!({"kind": "image", "url": "https://cdn.example/p.jpg"});
        let photo = json!({"channel": "whatsapp", "to": "5511912345679", "content": {"text": "veja", "media": media}});
        let (a, b) = (accept(world, "a", &text).await, accept(world, "b", &photo).await);
        world.drain().await;
        for id in [a, b] {
            assert_eq!(message(world, &id).await["status"], "SENT");
        }
        let mut sent = sent(world);
        sent.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(sent[0].path, "/message/sendMedia/default");
        assert_eq!(sent[0].body["caption"], "veja");
        assert_eq!(sent[1].body, json!({"number": "5511912345678", "text": "Oi"}));
        assert_eq!(sent[1].headers["apikey"], "***");
    })
    .await;
}

fn email() -> Value {
    let content = json!({
        "from": "João <loja@example.com>", "subject": "Olá", "text": "Oi", "html": "<p>Oi</p>",
        "reply_to": "ajuda@example.com",
    });
    json!({"channel": "email", "to": "Ana@Example.com", "content": content})
}

#[tokio::test]
async fn a_mail_is_tagged_and_its_events_report_its_delivery() {
    play_with(sending(1), async |world| {
        let id = accept(world, "a", &email()).await;
        world.drain().await;
        let message = message(world, &id).await;
        assert_eq!(message["status"], "SENT", "{message}");
        assert!(message["delivered_at"].is_string(), "{message}");
        let sent = &sent(world)[0].body;
        assert_eq!(sent["FromEmailAddress"], "=?UTF-8?B?Sm/Do28=?= <loja@example.com>");
        assert_eq!(sent["Destination"]["ToAddresses"], json!(["ana@example.com"]));
        assert_eq!(sent["ReplyToAddresses"], json!(["ajuda@example.com"]));
        assert_eq!(sent["ConfigurationSetName"], "umavez-dev");
        assert_eq!(sent["Content"]["Simple"]["Subject"], json!({"Data": "Olá", "Charset": "UTF-8"}));
        assert_eq!(sent["Content"]["Simple"]["Body"]["Html"]["Data"], "<p>Oi</p>");
        let tags = json!([{"Name": "message_id", "Value": id}, {"Name": "attempt", "Value": "1"}]);
        assert_eq!(sent["EmailTags"], tags);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_request_is_the_same_message_whatever_its_outcome() {
    play_with(sending(1), async |world| {
        let body = with(telegram("Oi"), intent());
        let first = ask(world, "order-77", &body).await;
        let again = ask(world, "order-77", &body).await;
        world.drain().await;
        let after = ask(world, "order-77", &body).await;
        for answer in [&again, &after] {
            assert_eq!((answer.status, &answer.body), (202, &first.body));
            assert_eq!(answer.header("idempotency-replayed"), Some("true"));
        }
        let other = ask(world, "order-77", &telegram("Tchau")).await;
        assert_eq!((other.status, other.code()), (422, "idempotency_key_reused"));
        // A repeated request with a time that has passed meanwhile is still valid.
        let timed = with(telegram("x"), json!({"not_after": world.now().plus_ms(30_000).to_string()}));
        let timed = with(timed, json!({"send_at": world.now().plus_ms(1_000).to_string()}));
        assert_eq!(ask(world, "timed", &timed).await.status, 202);
        let id = ask(world, "timed", &timed).await.body["message_id"].as_str().expect("an id").to_owned();
        assert_eq!(world.post(&format!("/outbound/messages/{id}/cancel"), &json!({})).await.body["canceled"], true);
        world.advance(Duration::from_secs(3_600)).await;
        let late = ask(world, "timed", &timed).await;
        assert_eq!((late.status, late.header("idempotency-replayed")), (202, Some("true")), "{}", late.body);
        assert_eq!(ask(world, "new", &timed).await.status, 422);
    })
    .await;
}

#[tokio::test]
async fn the_same_intent_is_sent_once_and_the_other_message_is_deduped_with_a_reason() {
    play_with(sending(1), async |world| {
        let first = accept(world, "a", &with(telegram("Sentimos sua falta"), intent())).await;
        let deduped = ask(world, "b", &with(telegram("Volte!"), intent())).await;
        assert_eq!((deduped.status, &deduped.body["status"]), (200, &json!("DEDUPED")));
        assert_eq!(deduped.body["reason_code"], "intent_duplicate");
        assert_eq!(deduped.body["blocked_by"]["holder"], format!("message:{first}"));
        let again = ask(world, "b", &with(telegram("Volte!"), intent())).await;
        assert_eq!((again.status, &again.body), (200, &deduped.body));
        world.drain().await;
        let id = deduped.body["message_id"].as_str().expect("an id");
        let message = message(world, id).await;
        assert_eq!((&message["status"], codes(&message)), (&json!("DEDUPED"), vec!["deduped"]));
        assert_eq!(world.events("OUTBOUND_DEDUPED").len(), 1);
        assert_eq!(world.events("OUTBOUND_DEDUPED")[0]["reason_code"], "intent_duplicate");
    })
    .await;
}

#[tokio::test]
async fn of_many_concurrent_messages_with_one_intent_one_is_sent() {
    play_with(sending(1), async |world| {
        let bodies: Vec<_> = (0..12).map(|n| with(telegram(&format!("oi {n}")), intent())).collect();
        let asked = bodies.iter().enumerate().map(|(n, body)| async move { ask(world, &format!("k{n}"), body).await });
        let answers = futures::future::join_all(asked).await;
        let queued = answers.iter().filter(|answer| answer.status == 202).count();
        let deduped = answers.iter().filter(|answer| answer.body["status"] == "DEDUPED").count();
        assert_eq!((queued, deduped), (1, 11));
    })
    .await;
}

#[tokio::test]
async fn large_content_is_sent_like_small_content() {
    play_with(sending(1), async |world| {
        let text = "ação ".repeat(800);
        let id = accept(world, "a", &with(telegram("x"), json!({"content": {"text": text}}))).await;
        world.drain().await;
        assert_eq!(message(world, &id).await["content"]["text"], text.as_str());
        assert_eq!(sent(world)[0].body["text"], text.as_str());
        let rows = world.rows("OutboundTable").await;
        let row = rows.iter().find(|row| row["sk"] == "MESSAGE").expect("the message");
        assert!(row["content"].is_null(), "large content is not in the row of the message");
    })
    .await;
}

#[tokio::test]
async fn a_message_is_sent_at_its_time_minutes_or_months_ahead() {
    play_with(sending(2), async |world| {
        let at = |seconds: i64| json!({"send_at": world.now().plus_ms(seconds * 1_000).to_string()});
        let soon = accept(world, "soon", &with(telegram("a"), at(600))).await;
        let far = accept(world, "far", &with(telegram("b"), at(90 * 86_400))).await;
        world.drain().await;
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(590)).await;
        assert!(sent(world).is_empty(), "not before its time");
        world.advance(Duration::from_secs(12)).await;
        assert_eq!(message(world, &soon).await["status"], "SENT");
        world.advance(Duration::from_secs(90 * 86_400 - 602 - 700)).await;
        assert_eq!(message(world, &far).await["status"], "QUEUED");
        world.tick("OutboundSweep").await;
        world.drain().await;
        assert_eq!(codes(&message(world, &far).await), ["accepted", "due"]);
        world.tick("OutboundSweep").await;
        world.advance(Duration::from_secs(695)).await;
        assert_eq!(sent(world).len(), 1, "sent before its time");
        world.advance(Duration::from_secs(10)).await;
        let message = message(world, &far).await;
        assert_eq!((&message["status"], codes(&message)), (&json!("SENT"), vec!["accepted", "due", "claimed", "sent"]));
    })
    .await;
}

#[tokio::test]
async fn an_invalid_message_is_refused_by_field_and_leaves_nothing() {
    play(async |world| {
        let cases = [
            (json!({"channel": "sms", "to": "1", "content": {"text": "x"}}), "channel"),
            (json!({"channel": "email", "to": "nobody", "content": email()["content"]}), "to"),
            (json!({"channel": "telegram", "to": "42", "content": {}}), "content.text"),
            (json!({"channel": "telegram", "to": "42", "content": {"text": "a".repeat(5_000)}}), "content.text"),
            (
                json!({"channel": "telegram", "to": "42", "content": {"text": "a.", "parse_mode": "MarkdownV2"}}),
                "content.text",
            ),
            (with(telegram("x"), json!({"send_at": "2020-01-01T00:00:00Z"})), "send_at"),
            (with(telegram("x"), json!({"not_after": "2020-01-01T00:00:00Z"})), "not_after"),
            (with(telegram("x"), json!({"urgent": true})), "urgent"),
            (
                with(telegram("x"), json!({"intent": {"client_id": CLIENT, "intent_type": "offer_active"}})),
                "intent.reference_id",
            ),
        ];
        for (body, field) in cases {
            let answer = ask(world, "k", &body).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{}", answer.body);
            assert_eq!(answer.body["errors"][0]["field"], field);
        }
        let mut crlf = email();
        crlf["content"]["subject"] = json!("a\r\nBcc: x@example.com");
        assert_eq!(ask(world, "k", &crlf).await.body["errors"][0]["field"], "content.subject");
        let unknown = world.post("/outbound/messages", &telegram("x")).await;
        assert_eq!((unknown.status, unknown.code()), (400, "missing_identity"));
        let large = with(telegram("x"), json!({"metadata": {"x": "y".repeat(300_000)}}));
        assert_eq!(ask(world, "k", &large).await.status, 413);
        assert!(world.rows("OutboundTable").await.is_empty());
        assert!(world.rows("IntentsTable").await.is_empty());
        assert_eq!(world.get("/outbound/messages/x").await.status, 422);
        let nobody = format!("/outbound/messages/msg_{}", "0".repeat(32));
        assert_eq!(world.get(&nobody).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn a_text_with_whatsapp_audio_is_refused_because_audio_has_no_caption() {
    play_with(sending(1), async |world| {
        let media = json!({"kind": "audio", "url": "https://cdn.example/a.ogg"});
        let audio = json!({"channel": "whatsapp", "to": "5511912345678", "content": {"media": media}});
        let mut captioned = audio.clone();
        captioned["content"]["text"] = json!("ouve isso");
        ask(world, "a", &captioned).await.assert_problem(422, "invalid_request", &["content.text"]);
        let id = accept(world, "b", &audio).await;
        world.drain().await;
        assert_eq!(message(world, &id).await["status"], "SENT");
    })
    .await;
}

/// Returns the slots of one priority, sorted.
fn slots(world: &World, priority: Option<&str>) -> Vec<i64> {
    let sent = world.events("OUTBOUND_SENT");
    let of_class = sent.iter().filter(|line| priority.is_none_or(|priority| line["priority"] == priority));
    let mut slots: Vec<_> = of_class.map(|line| line["slot_ms"].as_i64().expect("a slot")).collect();
    slots.sort_unstable();
    slots
}

#[tokio::test]
async fn a_thousand_messages_of_one_bot_keep_its_limit_and_their_priorities() {
    play_with(sending(1_000), async |world| {
        let at = world.now().plus_ms(800_000);
        let classes = ["downsell", "shot", "start"];
        let ask_one = |n: usize| async move {
            let more = json!({"to": format!("{}", 1_000 + n), "priority": classes[n % 3], "send_at": at.to_string()});
            accept(world, &format!("k{n}"), &with(telegram("Oi"), more)).await;
        };
        futures::StreamExt::for_each_concurrent(futures::stream::iter(0..1_000), 16, ask_one).await;
        world.drain().await;
        let begin = world.now();
        let ahead = u64::try_from(at.millis() - begin.millis()).expect("there was time enough to ask");
        world.advance(Duration::from_millis(ahead)).await;
        // Messages over the limit wait in their queue and are redelivered.
        while slots(world, None).len() < 1_000 {
            world.advance(Duration::from_secs(1)).await;
        }
        let most = most_in_a_second(&sent(world));
        assert!(most <= allowed(30), "{most} calls in one second");
        let median = |priority| {
            let slots = slots(world, Some(priority));
            slots[slots.len() / 2] - at.millis()
        };
        let (start, shot, downsell) = (median("start"), median("shot"), median("downsell"));
        assert!(start < shot && start < downsell, "START is not first: {start} {shot} {downsell}");
        let last = slots(world, Some("downsell")).last().copied().unwrap_or_default() - at.millis();
        assert!(last < 120_000, "the lowest priority waited too long: {last} ms");
    })
    .await;
}
