//! Responders that fail, people who take over, workers that die, bursts that do not end.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{Answer, KEY, World, play, play_with};

use crate::conversations::{CHAT, answers_with, conversation, hears, instance, questions, replies, says, seconds};
use crate::outbound::sending;

pub async fn order(world: &World, id: &str, what: &str, body: &Value) -> Answer {
    world.post(&format!("/conversations/{id}/{what}"), body).await
}

pub async fn id(world: &World) -> String {
    conversation(world).await["conversation"]["conversation_id"].as_str().expect("an id").to_owned()
}

async fn listed(world: &World, status: &str) -> Vec<Value> {
    let answer = world.get(&format!("/conversations?status={status}")).await;
    answer.body["conversations"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_failing_responder_is_retried_with_the_same_batch_and_then_a_person_is_needed() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({"responder_attempts": 3})).await;
        answers_with(world, 500, json!({}), 3).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        let shown = conversation(world).await;
        assert_eq!(shown["conversation"]["processing"]["attempts"], 1, "{shown}");
        hears(world, CHAT, 2, "two").await;
        seconds(world, 6).await;
        seconds(world, 12).await;
        let shown = conversation(world).await;
        assert_eq!(shown["conversation"]["status"], "needs_human", "{shown}");
        let fates: Vec<_> = shown["messages"].as_array().expect("a list").iter().map(|m| m["fate"].clone()).collect();
        assert_eq!(fates, ["pending", "processing"], "its messages are listed as open");
        assert_eq!(listed(world, "needs_human").await.len(), 1);
        seconds(world, 3_600).await;
        world.tick("Recovery").await;
        let asked: Vec<_> =
            world.stack.calls().since(0).into_iter().filter(|call| call.service == "responder").collect();
        assert_eq!(asked.len(), 3, "the responder is not asked forever");
        assert!(!world.events("CONVERSATION_NEEDS_HUMAN").is_empty());
        let oldest = world.metrics("OldestUnansweredSeconds");
        let waited = oldest.last().and_then(|line| line["OldestUnansweredSeconds"].as_f64());
        assert!(waited >= Some(3_600.0), "{oldest:?}");

        let id = id(world).await;
        assert_eq!(order(world, &id, "release", &json!({})).await.status, 200);
        world.drain().await;
        seconds(world, 6).await;
        assert_eq!(questions(world)[0]["batch_id"], format!("{id}-1"), "the same batch");
        assert_eq!(listed(world, "needs_human").await, Vec::<Value>::new());
        seconds(world, 30).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one", "two"], "the next batch follows without an order");
    })
    .await;
}

#[tokio::test]
async fn a_late_reply_is_accepted_once_and_only_for_its_own_batch() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        answers_with(world, 202, json!({}), 1).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        let id = id(world).await;
        let reply = |batch: String, reply: Value| json!({"batch_id": batch, "reply": reply});
        let mine = format!("{id}-1");
        order(world, &id, "replies", &reply(format!("{id}-2"), json!("x"))).await.assert_problem(404, "not_found", &[]);
        order(world, &id, "replies", &json!({"batch_id": mine})).await.assert_problem(
            422,
            "invalid_request",
            &["reply"],
        );
        let other = "conv_00000000000000000000000000000000";
        let foreign = order(world, &id, "replies", &reply(format!("{other}-1"), json!("x"))).await;
        foreign.assert_problem(422, "invalid_request", &["batch_id"]);
        let nobody = order(world, other, "replies", &reply(format!("{other}-1"), json!("x"))).await;
        nobody.assert_problem(404, "not_found", &[]);
        assert_eq!(order(world, &id, "replies", &reply(mine.clone(), json!("Oi"))).await.status, 202);
        let again = order(world, &id, "replies", &reply(mine.clone(), json!("Oi"))).await;
        assert!(again.status == 202 && again.is_replayed(), "{}", again.body);
        order(world, &id, "replies", &reply(mine.clone(), json!("Tchau"))).await.assert_problem(
            409,
            "already_answered",
            &[],
        );
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["Oi"]);
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["batches"][0]["answered_by"], &shown["batches"][0]["outcome"]),
            (&json!("callback"), &json!("SENT"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_responder_whose_late_reply_does_not_arrive_is_asked_again() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({"callback_seconds": 60})).await;
        answers_with(world, 202, json!({}), 1).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        seconds(world, 50).await;
        world.tick("Recovery").await;
        assert_eq!(questions(world).len(), 0, "the responder still has time to answer");
        seconds(world, 20).await;
        world.tick("Recovery").await;
        assert_eq!(questions(world).len(), 1);
        assert_eq!(questions(world)[0]["attempt"], 2);
        assert_eq!(replies(world, &CHAT.to_string()), ["one"]);
    })
    .await;
}

#[tokio::test]
async fn a_held_conversation_gets_no_reply_and_its_messages_are_answered_after_the_release() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({})).await;
        hears(world, CHAT, 1, "one").await;
        let id = id(world).await;
        let held = order(world, &id, "hold", &json!({})).await;
        assert_eq!((held.status, &held.body["held"], &held.body["in_flight"]), (200, &json!(true), &Value::Null));
        seconds(world, 60).await;
        world.tick("Recovery").await;
        assert_eq!(questions(world).len(), 0, "the responder was asked during the hold");
        assert_eq!(listed(world, "held").await.len(), 1);
        assert_eq!(order(world, &id, "release", &json!({})).await.body["held"], false);
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"]);

        // If the conversation is held while the responder works, the reply is stored and sent after
        // the release.
        answers_with(world, 202, json!({}), 1).await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 6).await;
        order(world, &id, "hold", &json!({})).await;
        let reply = json!({"batch_id": format!("{id}-2"), "reply": "to two"});
        assert_eq!(order(world, &id, "replies", &reply).await.status, 202);
        seconds(world, 60).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"], "the reply was sent during the hold");
        assert_eq!(conversation(world).await["conversation"]["processing"]["phase"], "replied");
        order(world, &id, "release", &json!({})).await;
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one", "to two"]);
    })
    .await;
}

#[tokio::test]
async fn a_hold_recalls_an_unsent_reply_and_reports_one_in_flight() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({})).await;
        // Telegram asks the bot to wait, so its reply stays in the queue.
        let answer = umavez_local::faults::Scripted {
            status: 429,
            headers: Default::default(),
            body: json!({"ok": false, "error_code": 429, "description": "Too Many Requests: retry after 600", "parameters": {"retry_after": 600}}),
        };
        let service = Some("telegram".to_owned());
        let fault = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        let id = id(world).await;
        assert_eq!(conversation(world).await["conversation"]["processing"]["phase"], "sending");
        let held = order(world, &id, "hold", &json!({"seconds": 86_400})).await;
        assert_eq!(held.body["in_flight"], Value::Null, "{}", held.body);
        world.drain().await;
        seconds(world, 1_200).await;
        assert_eq!(replies(world, &CHAT.to_string()), Vec::<String>::new(), "the reply was recalled in time");
        order(world, &id, "release", &json!({})).await;
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"], "the reply is sent after the release");

        let lost = CallFault { service: Some("telegram".to_owned()), ..CallFault::first(Action::KillAfter) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        hears(world, CHAT, 2, "two").await;
        seconds(world, 6).await;
        let held = order(world, &id, "hold", &json!({})).await;
        assert!(held.body["in_flight"].is_string(), "it may have been sent: {}", held.body);
        order(world, &id, "release", &json!({"answer_pending": false})).await;
        seconds(world, 60).await;
        world.tick("Recovery").await;
        let shown = conversation(world).await;
        assert_eq!((&shown["conversation"]["status"], &shown["batches"][0]["outcome"]), (&json!("idle"), &json!("UNKNOWN")));
        // The job of the dead sender is redelivered, and there is nothing left to do.
        seconds(world, 5_600).await;
    })
    .await;
}

#[tokio::test]
async fn a_release_can_mark_the_pending_messages_as_handled() {
    play(async |world| {
        instance(world, "telegram", &json!({})).await;
        hears(world, CHAT, 1, "one").await;
        let id = id(world).await;
        order(world, &id, "hold", &json!({})).await;
        order(world, &id, "release", &json!({"answer_pending": false})).await;
        seconds(world, 60).await;
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["messages"][0]["fate"]),
            (&json!("idle"), &json!("answered_by_person"))
        );
        assert_eq!(questions(world).len(), 0);
        for what in ["hold", "release"] {
            let other = "conv_00000000000000000000000000000000";
            order(world, other, what, &json!({})).await.assert_problem(404, "not_found", &[]);
        }
        order(world, &id, "hold", &json!({"seconds": 0})).await.assert_problem(422, "invalid_request", &["seconds"]);
    })
    .await;
}

#[tokio::test]
async fn the_batch_of_a_dead_worker_is_taken_over_after_its_lease() {
    play_with(sending(2), async |world| {
        instance(world, "telegram", &json!({"responder_timeout_seconds": 20})).await;
        let killed = CallFault { service: Some("responder".to_owned()), ..CallFault::first(Action::KillAfter) };
        world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 10).await;
        world.tick("Recovery").await;
        assert_eq!(questions(world).len(), 1, "its lease has not expired");
        seconds(world, 30).await;
        world.tick("Recovery").await;
        assert_eq!(questions(world)[0]["batch_id"], questions(world)[1]["batch_id"], "not the same batch");
        seconds(world, 6).await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one", "two"], "once each, in order");
        // The job of the dead worker is redelivered, and there is nothing left to do.
        seconds(world, 600).await;
    })
    .await;
}

#[tokio::test]
async fn a_message_every_two_seconds_for_ten_minutes_is_answered_in_bounded_batches() {
    play_with(sending(0), async |world| {
        instance(world, "api", &json!({"debounce_seconds": 5, "max_wait_seconds": 30})).await;
        for number in 1..=300 {
            let body = json!({"message_id": format!("m{number}"), "text": number.to_string()});
            let answer = world.post("/conversations/ana/messages", &body).await;
            assert_eq!((answer.status, &answer.body["number"]), (202, &json!(number)), "{}", answer.body);
            seconds(world, 2).await;
        }
        seconds(world, 40).await;
        let asked = questions(world);
        assert!(asked.len() >= 20, "{} batches", asked.len());
        let texts = |question: &Value| -> Vec<u64> {
            let messages = question["messages"].as_array().expect("a list");
            messages.iter().map(|m| m["text"].as_str().and_then(|text| text.parse().ok()).expect("a number")).collect()
        };
        let all: Vec<u64> = asked.iter().flat_map(texts).collect();
        assert_eq!(all, (1..=300).collect::<Vec<_>>(), "each once, in order");
        for question in &asked {
            let messages = question["messages"].as_array().expect("a list");
            assert!(messages.len() <= 17, "a batch took longer than the longest wait: {}", messages.len());
        }
        let shown = world.get("/conversations/ana").await.body;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["conversation"]["answered"]),
            (&json!("idle"), &json!(300))
        );
    })
    .await;
}

#[tokio::test]
async fn many_concurrent_webhooks_delivered_three_times_store_every_message_once() {
    play(async |world| {
        instance(world, "telegram", &json!({})).await;
        answers_with(world, 200, json!({"reply": null}), 50).await;
        let deliver = |number: u64| async move {
            loop {
                let answer = says(world, CHAT, number, &number.to_string()).await;
                // A provider retries a webhook that could not be stored.
                if answer.status != 503 {
                    return answer.body["stored"].as_u64().expect("a count");
                }
            }
        };
        let stored_counts = futures::future::join_all((0..150).map(|n| deliver(n % 50 + 1))).await;
        assert_eq!(stored_counts.iter().sum::<u64>(), 50, "each is stored once");
        seconds(world, 40).await;
        seconds(world, 40).await;
        let id = id(world).await;
        let shown = world.get(&format!("/conversations/{id}?limit=100")).await.body;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["conversation"]["answered"]),
            (&json!("idle"), &json!(50))
        );
        let messages = shown["messages"].as_array().expect("a list");
        let texts: BTreeSet<_> = messages.iter().filter_map(|message| message["text"].as_str()).collect();
        assert_eq!((messages.len(), texts.len()), (50, 50), "every message has a number");
        assert!(
            messages.iter().all(|message| message["fate"] == "nothing_to_say"),
            "a message is in no batch: {shown}"
        );
    })
    .await;
}

#[tokio::test]
async fn storing_a_message_is_one_read_and_one_transaction_of_at_most_six_units() {
    play(async |world| {
        instance(world, "api", &json!({})).await;
        for number in 1..=40 {
            let body = json!({"message_id": format!("m{number}"), "text": "Oi, tudo bem?"});
            let measured = world.calls_of("conversations-api", world.post("/conversations/ana/messages", &body)).await;
            let operations: Vec<_> = measured.1.iter().map(|call| call.operation.as_str()).collect();
            assert_eq!(operations, ["BatchGetItem", "TransactWriteItems"], "message {number}");
            let units: f64 = measured.1.iter().map(|call| call.write_units).sum();
            // The first message of a burst puts the conversation into the index by time.
            let expected = if number == 1 { 6.0 } else { 5.0 };
            assert_eq!(units, expected, "message {number}");
        }
        seconds(world, 40).await;
        let asked = questions(world);
        assert_eq!(asked[0]["messages"].as_array().map(Vec::len), Some(40));
    })
    .await;
}

#[tokio::test]
async fn the_api_channel_posts_its_messages_and_reads_its_replies() {
    play(async |world| {
        let body = json!({"message_id": "m1", "text": "Oi"});
        world.post("/conversations/ana/messages", &body).await.assert_problem(404, "not_found", &[]);
        instance(world, "api", &json!({})).await;
        let answer = world.post("/conversations/ana/messages", &body).await;
        assert_eq!((answer.status, &answer.body["outcome"]), (202, &json!("stored")));
        let again = world.post("/conversations/ana/messages", &body).await;
        assert_eq!((again.status, &again.body["outcome"], again.is_replayed()), (200, &json!("duplicate"), true));
        seconds(world, 6).await;
        let id = answer.body["conversation_id"].as_str().expect("an id");
        let shown = world.get(&format!("/conversations/{id}")).await.body;
        assert_eq!(shown["batches"][0]["reply"], "Oi", "{shown}");
        assert_eq!(
            (&shown["batches"][0]["outcome"], &shown["messages"][0]["fate"]),
            (&json!("KEPT"), &json!("answered"))
        );
        assert_eq!(world.get("/conversations/ana").await.body, shown, "the contact's name finds it too");
        for (body, field) in [
            (json!({"text": "Oi"}), "message_id"),
            (json!({"message_id": "m2"}), "text"),
            (json!({"message_id": "m2", "text": "Oi", "x": 1}), "x"),
        ] {
            let refused = world.post("/conversations/ana/messages", &body).await;
            refused.assert_problem(422, "invalid_request", &[field]);
        }
        world.get("/conversations/nobody").await.assert_problem(404, "not_found", &[]);
        world.get("/conversations?status=strange").await.assert_problem(422, "invalid_request", &["status"]);
    })
    .await;
}

#[tokio::test]
async fn instances_are_created_and_listed_and_invalid_ones_are_refused() {
    play(async |world| {
        let put = |path: &'static str, body: Value| async move {
            world.send(world.request(Method::PUT, path).bearer_auth(KEY).json(&body)).await
        };
        let made = put("/instances/whatsapp/loja", json!({"debounce_seconds": 3})).await;
        assert_eq!(
            (made.status, &made.body["debounce_seconds"], &made.body["max_wait_seconds"]),
            (201, &json!(3), &json!(30))
        );
        let changed =
            put("/instances/whatsapp/loja", json!({"responder_url": "https://n8n.example.com/webhook/x"})).await;
        assert_eq!(
            (changed.status, &changed.body["version"], &changed.body["debounce_seconds"]),
            (200, &json!(2), &json!(5))
        );
        let listed = world.get("/instances").await.body;
        assert_eq!(listed["instances"].as_array().map(Vec::len), Some(1), "{listed}");
        assert_eq!(world.get("/instances/whatsapp/loja").await.body["instance"], "loja");
        world.get("/instances/whatsapp/other").await.assert_problem(404, "not_found", &[]);
        put("/instances/pigeon/loja", json!({})).await.assert_problem(404, "not_found", &[]);
        let refused = put("/instances/whatsapp/loja", json!({"responder_url": "http://169.254.169.254/"})).await;
        refused.assert_problem(422, "invalid_request", &["responder_url"]);
        let refused = put("/instances/whatsapp/loja", json!({"debounce_seconds": 31})).await;
        refused.assert_problem(422, "invalid_request", &["max_wait_seconds"]);
        let answer = says(world, CHAT, 1, "x").await;
        answer.assert_problem(404, "not_found", &[]);
    })
    .await;
}
