//! A reply that a person or a hold stops before it is sent, and messages that a person has
//! answered.

use serde_json::{Value, json};
use umavez_domain::delivery::{Again, Claim, Verdict};
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::delivery::Claimed;
use umavez_tests::{World, play, play_with};

use crate::conversations::{
    CHAT, PHONE, answers_with, conversation, hears, instance, questions, replies, seconds, upsert, whatsapp,
};
use crate::conversations_course::{id, order};
use crate::outbound::{accept, ask, intent, sending, with};
use crate::outbound_outcomes::messages;

/// The provider once asks to retry after this many seconds.
async fn limited(world: &World, service: &str, wait: u64) {
    let body = json!({"ok": false, "error_code": 429, "description": format!("Too Many Requests: retry after {wait}"), "parameters": {"retry_after": wait}});
    let headers = [("retry-after".to_owned(), wait.to_string())].into();
    let answer = Scripted { status: 429, headers, body };
    let service = Some(service.to_owned());
    let fault = CallFault { service, answer: Some(answer), ..CallFault::first(Action::Answer) };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

/// Returns the only outbound message.
async fn reply(world: &World) -> MessageRow {
    let rows = world.rows("OutboundTable").await;
    let id = rows.iter().find(|row| row["sk"] == "MESSAGE").and_then(|row| row["id"].as_str()).expect("a message");
    let id = MessageId::parse(id).expect("a message id");
    messages(world).get(&world.invocation(), &id).await.expect("a store").expect("a row")
}

#[tokio::test]
async fn a_reply_whose_attempt_fails_during_a_hold_is_sent_after_the_release() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        limited(world, "telegram", 60).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        // A sender starts the next attempt, and the hold comes before the provider answers.
        let (messages, row) = (messages(world), reply(world).await);
        let claim = Claim { attempt: 2, token: "test/2".to_owned(), deadline: world.now().plus_ms(25_000) };
        let claimed = messages.claim(&world.invocation(), &row, &claim, &row.sender).await.expect("a store");
        let Claimed::Yes(row) = claimed else { panic!("not claimed: {claimed:?}") };
        let id = id(world).await;
        let held = order(world, &id, "hold", &json!({})).await;
        assert_eq!(held.body["in_flight"], json!(row.id), "{}", held.body);
        let not_before = world.now().plus_ms(600_000);
        let again = Verdict::Again { why: Again::Throttled, code: "throttled", not_before };
        messages.settle(&world.invocation(), &row, 2, &again, &row.sender).await.expect("a store");
        world.drain().await;
        for _ in 0..4 {
            seconds(world, 600).await;
            world.tick("OutboundSweep").await;
            world.tick("Recovery").await;
        }
        assert_eq!(replies(world, &CHAT.to_string()), Vec::<String>::new(), "a reply was sent during the hold");
        assert_eq!(conversation(world).await["conversation"]["processing"]["phase"], "replied");
        order(world, &id, "release", &json!({})).await;
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["one"], "the reply is not sent exactly once");
    })
    .await;
}

#[tokio::test]
async fn a_redelivered_message_of_a_person_cancels_the_reply_that_the_first_delivery_left_queued() {
    play(async |world| {
        instance(world, "whatsapp", &json!({"person_hold_seconds": 600})).await;
        limited(world, "evolution", 60).await;
        let now = world.now().seconds();
        whatsapp(world, &upsert("A1", "one", false, now)).await;
        seconds(world, 6).await;
        assert_eq!(reply(world).await.delivery.attempt, 1);
        // The intake dies between the two writes.
        let killed = CallFault {
            function: Some("webhook-intake".to_owned()),
            operation: Some("UpdateItem".to_owned()),
            ..CallFault::first(Action::KillBefore)
        };
        world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
        let person = upsert("P1", "I am here", true, world.now().seconds());
        assert!(whatsapp(world, &person).await.status >= 500);
        assert_eq!(whatsapp(world, &person).await.body["duplicate"], 1);
        seconds(world, 120).await;
        seconds(world, 1_200).await;
        world.tick("Recovery").await;
        assert_eq!(replies(world, PHONE), Vec::<String>::new(), "a person has answered");
        let shown = conversation(world).await;
        assert_eq!(
            (&shown["conversation"]["status"], &shown["messages"][0]["fate"]),
            (&json!("idle"), &json!("answered_by_person")),
            "{shown}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_person_who_wrote_before_the_last_message_does_not_cancel_its_reply() {
    play_with(sending(2), async |world| {
        instance(world, "whatsapp", &json!({"person_hold_seconds": 0})).await;
        limited(world, "evolution", 60).await;
        let now = world.now().seconds();
        whatsapp(world, &upsert("A1", "one", false, now)).await;
        seconds(world, 6).await;
        whatsapp(world, &upsert("A2", "two", false, now + 6)).await;
        let person = whatsapp(world, &upsert("P1", "I am here", true, now - 30)).await;
        assert_eq!(person.body["person"], 1, "{}", person.body);
        seconds(world, 90).await;
        assert_eq!(replies(world, PHONE), ["one", "two"], "a reply is lost");
    })
    .await;
}

#[tokio::test]
async fn the_providers_times_decide_what_a_person_answered_even_if_delivered_late() {
    play(async |world| {
        instance(world, "whatsapp", &json!({"person_hold_seconds": 60})).await;
        let now = world.now().seconds();
        whatsapp(world, &upsert("A1", "one", false, now - 300)).await;
        whatsapp(world, &upsert("P1", "I am here", true, now - 240)).await;
        seconds(world, 70).await;
        world.tick("Recovery").await;
        seconds(world, 70).await;
        assert_eq!(questions(world).len(), 0, "the person has answered, although both arrived late");
        assert_eq!(conversation(world).await["messages"][0]["fate"], "answered_by_person");
    })
    .await;
}

#[tokio::test]
async fn messages_after_the_persons_message_or_in_the_same_second_are_answered() {
    for after in [2, 0] {
        play_with(sending(1), async |world| {
            instance(world, "whatsapp", &json!({"person_hold_seconds": 60})).await;
            // The provider's clock is ahead of ours.
            let now = world.now().seconds() + 5;
            whatsapp(world, &upsert("A1", "one", false, now + after)).await;
            whatsapp(world, &upsert("P1", "I am here", true, now)).await;
            seconds(world, 70).await;
            world.tick("Recovery").await;
            assert_eq!(replies(world, PHONE), ["one"], "written {after} s after the person's message");
        })
        .await;
    }
}

#[tokio::test]
async fn a_stored_reply_is_finished_when_a_release_marks_its_messages_as_handled() {
    play(async |world| {
        instance(world, "telegram", &json!({})).await;
        answers_with(world, 202, json!({}), 1).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        let id = id(world).await;
        order(world, &id, "hold", &json!({})).await;
        let reply = json!({"batch_id": format!("{id}-1"), "reply": "to one"});
        assert_eq!(order(world, &id, "replies", &reply).await.status, 202);
        order(world, &id, "release", &json!({"answer_pending": false})).await;
        let shown = conversation(world).await;
        assert_eq!(shown["messages"][0]["fate"], "answered_by_person", "{shown}");
        assert!(shown["batches"][0]["finished_at"].is_string(), "{shown}");
        let rows = world.rows("ConversationsTable").await;
        let batch = rows.iter().find(|row| row["batch"].is_u64()).expect("a batch");
        assert!(batch["expires_at"].is_number(), "the batch has no TTL: {batch}");
    })
    .await;
}

#[tokio::test]
async fn a_late_echo_of_our_own_message_does_not_count_as_a_persons() {
    // The policy of the channel is to resend: the first attempt is proved to have been sent, so
    // there is no second one.
    let setup = sending(1).parameter("UnknownPolicies", r#"{"whatsapp": "resend"}"#);
    play_with(setup, async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        whatsapp(world, &upsert("A1", "one", false, world.now().seconds())).await;
        seconds(world, 5).await;
        let row = reply(world).await;
        assert_eq!((row.delivery.attempt, row.delivery.doubts), (1, vec![1]));
        let echo = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(echo.body["ours"], 1, "{}", echo.body);
        seconds(world, 30).await;
        assert_eq!(reply(world).await.delivery.provider_id.as_deref(), Some("3EB0AA"));
    })
    .await;
    // An operator has settled it, so the echo adds nothing.
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        whatsapp(world, &upsert("A1", "one", false, world.now().seconds())).await;
        seconds(world, 6).await;
        let path = format!("/outbound/messages/{}/settle", reply(world).await.id);
        assert_eq!(world.post(&path, &json!({"sent": true})).await.status, 200);
        let echo = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(echo.body["ours"], 1, "{}", echo.body);
        assert_eq!(conversation(world).await["conversation"]["hold"], Value::Null);
        // The same text an hour later is a person's.
        seconds(world, 3_600).await;
        let person = whatsapp(world, &upsert("P1", "one", true, world.now().seconds())).await;
        assert_eq!(person.body["person"], 1, "{}", person.body);
    })
    .await;
}

#[tokio::test]
async fn an_echo_is_recognized_after_an_operator_settled_the_message_as_not_sent() {
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        whatsapp(world, &upsert("A1", "one", false, world.now().seconds())).await;
        seconds(world, 6).await;
        let path = format!("/outbound/messages/{}/settle", reply(world).await.id);
        assert_eq!(world.post(&path, &json!({"sent": false})).await.body["status"], "FAILED");
        let echo = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(echo.body["ours"], 1, "{}", echo.body);
        let shown = world.get(path.trim_end_matches("/settle")).await.body;
        assert_eq!((&shown["status"], &shown["provider_id"]), (&json!("SENT"), &json!("3EB0AA")), "{shown}");
        assert_eq!(conversation(world).await["conversation"]["hold"], Value::Null, "no person has answered");
    })
    .await;
}

#[tokio::test]
async fn an_echo_of_a_message_settled_as_not_sent_takes_its_intent_again() {
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let lost = CallFault { service: Some("evolution".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        let message = json!({"channel": "whatsapp", "to": PHONE, "content": {"text": "one"}});
        let message = with(message, intent());
        let id = accept(world, "a", &message).await;
        world.drain().await;
        let settled = world.post(&format!("/outbound/messages/{id}/settle"), &json!({"sent": false})).await;
        assert_eq!(settled.body["status"], "FAILED", "{}", settled.body);
        let echo = whatsapp(world, &upsert("3EB0AA", "one", true, world.now().seconds())).await;
        assert_eq!(echo.body["ours"], 1, "{}", echo.body);
        let again = ask(world, "b", &message).await;
        assert_eq!((again.status, &again.body["status"]), (200, &json!("DEDUPED")), "{}", again.body);
    })
    .await;
}
