//! Conversations: every message is stored once and in one batch, a batch has one reply, no message
//! is lost, and no conversation is stuck.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::conversations::ConversationId;
use umavez_domain::delivery::{Again, Claim, Settled, State, Verdict};
use umavez_domain::keys;
use umavez_domain::messages::MessageId;
use umavez_domain::time::Timestamp;
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::delivery::Claimed;
use umavez_platform::due;
use umavez_platform::intents::Intents;
use umavez_platform::messages::Messages;
use umavez_platform::store::Found;
use umavez_tests::{Answer, Setup};

use crate::run::{Point, Run};
use crate::scenario::Scenario;

const CHAT: i64 = 987_654_321;
const PHONE: &str = "5511912345678";
/// How often a provider retries a webhook that was not accepted.
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
            "a burst is answered, and messages that arrive meanwhile too",
            |run| Box::pin(burst(run)),
            |run| Box::pin(answered(run)),
            |point| {
                // The second reply is stored and settled in the same way as the first.
                let written = point.operation == "TransactWriteItems" && point.nth == 2;
                let worker = point.function == "conversation-worker" && (point.nth == 1 || written);
                let intake = point.function == "webhook-intake" && point.nth == 1;
                worker || intake || point.function == "outbox-relay" && point.nth == 1
            },
        ),
        scenario(
            "a responder answers later",
            |run| Box::pin(later(run)),
            |run| Box::pin(answered(run)),
            |point| point.function == "conversations-api" && is_of_conversations(point) || is_second_update(point),
        ),
        scenario(
            "a person holds a conversation and lets it go",
            |run| Box::pin(held(run)),
            |run| Box::pin(answered(run)),
            |point| {
                let order = point.function == "conversations-api" && is_of_conversations(point);
                order || point.function == "conversation-worker" && point.operation == "TransactWriteItems"
            },
        ),
        scenario(
            "a conversation worker times out",
            |run| Box::pin(abandoned(run)),
            |run| Box::pin(answered(run)),
            |point| point.function == "recovery" && is_of_conversations(point) && point.nth <= 2,
        ),
        scenario(
            "our own message comes back and settles an unknown one",
            |run| Box::pin(echoed(run)),
            |run| Box::pin(reconciled(run)),
            |point| point.function == "webhook-intake" && point.target.contains("outbound"),
        ),
        scenario(
            "a person answers while a reply waits",
            |run| Box::pin(taken_over(run)),
            |run| Box::pin(left_to_the_person(run)),
            |point| {
                // The burst scenario covers how a first message is stored.
                let stored =
                    ["BatchGetItem", "TransactWriteItems", "GetSecretValue"].contains(&point.operation.as_str());
                let person = point.function == "webhook-intake" && !(stored && point.nth == 1);
                person || is_end_of_reply(point)
            },
        ),
        scenario(
            "a conversation is held while its reply is sent, and the attempt fails",
            |run| Box::pin(held_while_sending(run)),
            |run| Box::pin(said_once(run)),
            |point| {
                let order = point.function == "conversations-api" && point.operation != "BatchGetItem";
                order || is_end_of_reply(point)
            },
        ),
        Scenario {
            setup: || Setup::default().parameter("MessageRetentionDays", "31"),
            ..scenario(
                "messages of a held conversation are kept beyond their retention",
                |run| Box::pin(kept(run)),
                |run| Box::pin(answered(run)),
                // What else recovery does is covered by other scenarios.
                |point| point.function == "recovery" && point.target.contains("conversations"),
            )
        },
        Scenario {
            setup: || Setup::default().parameter("UnknownPolicies", r#"{"telegram": "resend"}"#),
            ..scenario(
                "a conversation is held while its reply is sent, and its sender times out",
                |run| Box::pin(held_and_abandoned(run)),
                |run| Box::pin(unknown_and_not_repeated(run)),
                |point| {
                    let of_message = point.target.contains("outbound") && point.operation != "Query";
                    of_message && ["recovery", "conversations-api"].contains(&point.function.as_str())
                },
            )
        },
    ]
}

fn is_of_conversations(point: &Point) -> bool {
    point.target.contains("conversations") || point.operation == "TransactWriteItems"
}

/// Returns whether the call is a write about an enqueued reply: the first such write enqueues it.
fn is_end_of_reply(point: &Point) -> bool {
    point.function == "conversation-worker" && point.operation == "TransactWriteItems" && point.nth > 1
}

/// Returns whether the call is the write that records that the responder answers later.
fn is_second_update(point: &Point) -> bool {
    point.function == "conversation-worker" && point.operation == "UpdateItem" && point.nth == 2
}

async fn set_up(run: &Run, channel: &str) {
    let path = format!("/instances/{channel}/default");
    let answer = run.ask_with("set up", "i", Method::PUT, &path, "application/json", b"{}".to_vec()).await;
    assert!(answer.status < 300, "{}", answer.body);
}

/// Delivers a webhook of a provider until it is accepted.
async fn deliver_webhook(run: &Run, path: &str, header: (&str, &str), body: &Value) -> Answer {
    for _ in 0..TRIES {
        let request = run.world.request(Method::POST, path).header(header.0, header.1).json(body);
        let answer = run.world.send(request).await;
        if answer.status < 500 {
            assert_eq!(answer.status, 200, "a message was refused: {}", answer.body);
            return answer;
        }
    }
    panic!("a message was not accepted in {TRIES} tries");
}

async fn says(run: &Run, message_id: u64, text: &str) {
    let chat = json!({"id": CHAT, "type": "private", "first_name": "Ana"});
    let at = run.world.now().seconds();
    let message = json!({"message_id": message_id, "from": {"id": CHAT, "is_bot": false, "first_name": "Ana"}, "chat": chat, "date": at, "text": text});
    let body = json!({"update_id": message_id, "message": message});
    let header = ("x-telegram-bot-api-secret-token", "local-telegram-secret");
    deliver_webhook(run, "/webhooks/telegram/default", header, &body).await;
}

async fn whatsapp(run: &Run, id: &str, text: &str, from_me: bool) -> Answer {
    let key = json!({"remoteJid": format!("{PHONE}@s.whatsapp.net"), "fromMe": from_me, "id": id});
    let at = run.world.now().seconds();
    let data = json!({"key": key, "pushName": "Ana", "message": {"conversation": text}, "messageTimestamp": at});
    let body = json!({"event": "messages.upsert", "instance": "default", "data": data});
    deliver_webhook(run, "/webhooks/evolution/default", ("x-webhook-token", "local-evolution-token"), &body).await
}

async fn responder(run: &Run, fault: CallFault) {
    let fault = CallFault { service: Some("responder".to_owned()), ..fault };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

async fn seconds(run: &Run, seconds: u64) {
    run.world.drain().await;
    run.world.advance(Duration::from_secs(seconds)).await;
}

async fn burst(run: &Run) {
    set_up(run, "telegram").await;
    says(run, 1, "one").await;
    says(run, 2, "two").await;
    seconds(run, 6).await;
    says(run, 3, "three").await;
    seconds(run, 6).await;
}

async fn id(run: &Run) -> String {
    let rows = run.world.rows("ConversationsTable").await;
    let row = rows.iter().find(|row| row["sk"] == "STATE").expect("a conversation");
    row["id"].as_str().expect("an id").to_owned()
}

async fn later(run: &Run) {
    set_up(run, "telegram").await;
    let answer = Scripted { status: 202, headers: Default::default(), body: json!({}) };
    responder(run, CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) }).await;
    says(run, 1, "one").await;
    seconds(run, 6).await;
    let id = id(run).await;
    let reply = json!({"batch_id": format!("{id}-1"), "reply": "one"});
    let answer = run.ask("reply", "r", &format!("/conversations/{id}/replies"), &reply).await;
    // If the first answer was lost, the responder may have been asked again and have replied
    // itself.
    assert!(answer.status == 202 || answer.status == 409, "{}", answer.body);
    run.world.drain().await;
}

async fn held(run: &Run) {
    set_up(run, "telegram").await;
    says(run, 1, "one").await;
    run.world.drain().await;
    let id = id(run).await;
    let answer = run.ask("hold", "h", &format!("/conversations/{id}/hold"), &json!({})).await;
    assert_eq!((answer.status, &answer.body["held"]), (200, &json!(true)), "{}", answer.body);
    seconds(run, 60).await;
    assert_eq!(
        run.world.stack.catcher().sent(None, None).len(),
        0,
        "a message was sent while the conversation is held"
    );
    let answer = run.ask("release", "l", &format!("/conversations/{id}/release"), &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    run.world.drain().await;
}

/// Two messages wait for a person for 34 days, which is longer than messages are kept. Recovery
/// looks at the conversation in one minute of the hour.
async fn kept(run: &Run) {
    set_up(run, "telegram").await;
    says(run, 1, "one").await;
    let id = id(run).await;
    let typed = ConversationId::parse(&id).expect("an id");
    let answer = run.ask("hold", "h", &format!("/conversations/{id}/hold"), &json!({})).await;
    assert_eq!((answer.status, &answer.body["held"]), (200, &json!(true)), "{}", answer.body);
    says(run, 2, "two").await;
    seconds(run, 29 * 86_400).await;
    let found = Found { key: keys::conversation(&typed), place: String::new() };
    for _ in 0..2 {
        // The first second of a minute, so that the minute is not over before recovery runs.
        let now = run.world.now();
        let minute = |minutes: i64| Timestamp::from_seconds((now.seconds() / 60 + minutes) * 60 + 1);
        let next = (1..=60).map(minute).find(|at| due::is_of_this_minute(&found, *at)).expect("a minute");
        seconds(run, (next.seconds() - now.seconds()).unsigned_abs()).await;
        run.world.tick("Recovery").await;
    }
    seconds(run, 5 * 86_400).await;
    let answer = run.ask("release", "l", &format!("/conversations/{id}/release"), &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    run.world.drain().await;
}

async fn abandoned(run: &Run) {
    set_up(run, "telegram").await;
    responder(run, CallFault::first(Action::KillBefore)).await;
    says(run, 1, "one").await;
    seconds(run, 6).await;
    seconds(run, 60).await;
    run.world.tick("Recovery").await;
}

async fn echoed(run: &Run) {
    set_up(run, "whatsapp").await;
    let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
    run.world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
    whatsapp(run, "A1", "one", false).await;
    seconds(run, 6).await;
    let answer = whatsapp(run, "3EB0AA", "one", true).await;
    assert_eq!(answer.body["ours"], 1, "our own message was counted as a person's: {}", answer.body);
    run.world.drain().await;
}

/// The provider once asks to retry after a minute, so the reply stays in its queue.
async fn limited(run: &Run, service: &str) {
    let description = "Too Many Requests: retry after 60";
    let body = json!({"ok": false, "error_code": 429, "description": description, "parameters": {"retry_after": 60}});
    let answer = Scripted { status: 429, headers: [("retry-after".to_owned(), "60".to_owned())].into(), body };
    let service = Some(service.to_owned());
    let fault = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
    run.world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

async fn taken_over(run: &Run) {
    set_up(run, "whatsapp").await;
    limited(run, "evolution").await;
    whatsapp(run, "A1", "one", false).await;
    seconds(run, 6).await;
    whatsapp(run, "P1", "I am here", true).await;
    seconds(run, 90).await;
}

/// Returns the only outbound message.
async fn reply(run: &Run) -> Value {
    let rows = run.world.rows("OutboundTable").await;
    rows.into_iter().find(|row| row["sk"] == "MESSAGE").expect("a message")
}

async fn left_to_the_person(run: &Run) {
    let rows = run.world.rows("ConversationsTable").await;
    let state = rows.iter().find(|row| row["sk"] == "STATE").expect("a conversation");
    assert_eq!((&state["phase"], &state["answered"]), (&json!("idle"), &state["received"]), "stuck: {state}");
    let sent = run.world.stack.catcher().sent(None, None);
    assert_eq!(sent.len(), 0, "a reply was sent after the person's: {sent:?}");
    assert_eq!(reply(run).await["state"], "CANCELED");
}

fn messages(run: &Run) -> Messages {
    let table = |name| run.world.stack.output(name).expect("a table").to_owned();
    let store = run.world.store.clone();
    let intents = Intents { store: store.clone(), table: table("IntentsTable") };
    Messages { store, table: table("OutboundTable"), intents, retention_days: 90 }
}

/// A person takes the conversation while an attempt is in progress, and the provider does not
/// accept the message.
async fn held_while_sending(run: &Run) {
    set_up(run, "telegram").await;
    limited(run, "telegram").await;
    says(run, 1, "one").await;
    seconds(run, 6).await;
    let (world, messages, reply) = (&run.world, messages(run), reply(run).await);
    let message_id = reply["id"].as_str().expect("an id");
    let typed = MessageId::parse(message_id).expect("a message id");
    let row = messages.get(&world.invocation(), &typed).await.expect("a store").expect("a row");
    let claim = Claim { attempt: 2, token: "test/2".to_owned(), deadline: world.now().plus_ms(25_000) };
    let claimed = messages.claim(&world.invocation(), &row, &claim, &row.sender).await.expect("a store");
    let Claimed::Yes(row) = claimed else { panic!("not claimed: {claimed:?}") };
    let id = id(run).await;
    let held = run.ask("hold", "h", &format!("/conversations/{id}/hold"), &json!({})).await;
    assert_eq!(held.body["in_flight"], message_id, "{}", held.body);
    let again = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: world.now().plus_ms(60_000) };
    let settled = messages.settle(&world.invocation(), &row, 2, &again, &row.sender).await.expect("a store");
    assert!(matches!(&settled, Settled::Now(row) if row.delivery.state == State::Canceled), "{settled:?}");
    seconds(run, 700).await;
    world.tick("Recovery").await;
    assert_eq!(world.stack.catcher().sent(None, None).len(), 0, "a reply was sent during the hold");
    let answer = run.ask("release", "l", &format!("/conversations/{id}/release"), &json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.drain().await;
}

async fn said_once(run: &Run) {
    let rows = run.world.rows("ConversationsTable").await;
    let state = rows.iter().find(|row| row["sk"] == "STATE").expect("a conversation");
    assert_eq!((&state["phase"], &state["answered"]), (&json!("idle"), &state["received"]), "stuck: {state}");
    let sent = run.world.stack.catcher().sent(None, None);
    let texts: Vec<_> = sent.iter().filter_map(|sent| sent.body["text"].as_str()).collect();
    assert_eq!(texts, ["one"]);
}

/// A person takes the conversation after a sender died during its attempt.
async fn held_and_abandoned(run: &Run) {
    set_up(run, "telegram").await;
    let killed = CallFault { service: Some("telegram".to_owned()), ..CallFault::first(Action::KillBefore) };
    run.world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
    says(run, 1, "one").await;
    seconds(run, 6).await;
    let id = id(run).await;
    let held = run.ask("hold", "h", &format!("/conversations/{id}/hold"), &json!({})).await;
    assert!(held.body["in_flight"].is_string(), "{}", held.body);
    seconds(run, 60).await;
    run.world.tick("Recovery").await;
}

async fn unknown_and_not_repeated(run: &Run) {
    assert_eq!(reply(run).await["state"], "UNKNOWN");
    let calls = run.world.stack.calls().since(0).into_iter().filter(|call| call.service == "telegram").count();
    assert_eq!(calls, 1, "the reply was sent again during the hold");
}

/// Checks that every message of the contact is in one batch and that each batch has one reply.
async fn answered(run: &Run) {
    let rows = run.world.rows("ConversationsTable").await;
    let state = rows.iter().find(|row| row["sk"] == "STATE").expect("a conversation");
    assert_eq!((&state["phase"], &state["answered"]), (&json!("idle"), &state["received"]), "stuck: {state}");
    let outbound = run.world.rows("OutboundTable").await;
    let of_kind = |prefix: &'static str| {
        rows.iter().filter(move |row| row["sk"].as_str().is_some_and(|sk| sk.starts_with(prefix)))
    };
    let mut covered = BTreeSet::new();
    let mut expected = Vec::new();
    let mut batches: Vec<_> = of_kind("BATCH#").collect();
    batches.sort_by_key(|batch| batch["batch"].as_u64());
    let mut doubt = false;
    for batch in batches {
        let (from, to) = (batch["from"].as_u64().expect("a number"), batch["batch"].as_u64().expect("a number"));
        for number in from..=to {
            assert!(covered.insert(number), "in two batches: {number}");
        }
        let messages = batch["messages"].as_array().expect("handed over");
        assert_eq!(messages.len(), 1, "not one reply: {batch}");
        let message =
            outbound.iter().find(|row| row["id"] == messages[0] && row["sk"] == "MESSAGE").expect("a message");
        let outcome = message["state"].as_str().expect("a state");
        assert!(outcome == "SENT" || outcome == "UNKNOWN", "{message}");
        doubt |= outcome == "UNKNOWN";
        expected.push(batch["reply"].as_str().expect("a text").to_owned());
    }
    assert_eq!(covered.len() as u64, state["received"].as_u64().expect("a number"), "unanswered: {state}");
    let sent: Vec<_> = run.world.stack.catcher().sent(None, None);
    let texts: Vec<_> = sent.iter().filter_map(|sent| sent.body["text"].as_str().map(str::to_owned)).collect();
    if doubt {
        assert!(texts.len() <= expected.len(), "{texts:?} for {expected:?}");
    } else {
        assert_eq!(texts, expected, "not one reply per batch, in order");
    }
    // A repeated request for a batch has the same messages.
    let questions = run.world.stack.catcher().sent(Some("responder"), None);
    for question in &questions {
        for other in questions.iter().filter(|other| other.body["batch_id"] == question.body["batch_id"]) {
            assert_eq!(other.body["messages"], question.body["messages"], "a batch has changed");
        }
    }
}

async fn reconciled(run: &Run) {
    answered(run).await;
    let outbound = run.world.rows("OutboundTable").await;
    let message = outbound.iter().find(|row| row["sk"] == "MESSAGE").expect("a message");
    assert_eq!((&message["state"], &message["provider_id"]), (&json!("SENT"), &json!("3EB0AA")), "{message}");
}
