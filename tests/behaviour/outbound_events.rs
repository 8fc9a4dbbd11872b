//! Events that SES reports after it accepted a mail, in any order and any number; and `GET
//! /explain`.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{Expected, KEY, Setup, World, play, play_with};

use crate::outbound::{accept, ask, codes, intent, message, sending, telegram, with};

fn email(to: &str) -> Value {
    let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
    json!({"channel": "email", "to": to, "content": content})
}

async fn suppressions(world: &World, channel: &str) -> Vec<Value> {
    let answer = world.get(&format!("/suppressions?channel={channel}")).await;
    answer.body["suppressions"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_hard_bounce_and_a_complaint_suppress_the_address() {
    for (name, mark, reason) in [("bounce", "bounced_at", "hard_bounce"), ("complaint", "complained_at", "complaint")] {
        play_with(sending(1), async |world| {
            let to = format!("{name}@simulator.amazonses.com");
            let id = accept(world, "a", &email(&to)).await;
            world.drain().await;
            let shown = message(world, &id).await;
            assert_eq!(shown["status"], "SENT", "a bounced mail counts as sent");
            assert!(shown[mark].is_string(), "{shown}");
            let listed = suppressions(world, "email").await;
            assert_eq!((&listed[0]["to"], &listed[0]["reason"]), (&json!(to), &json!(reason)));
            assert_eq!((&listed[0]["source"], &listed[0]["message_id"]), (&json!("ses"), &json!(id)));
            let next = accept(world, "b", &email(&to.to_uppercase())).await;
            world.drain().await;
            assert_eq!(message(world, &next).await["status"], "SUPPRESSED");
        })
        .await;
    }
}

#[tokio::test]
async fn a_mail_whose_answer_was_lost_is_reconciled_by_its_events() {
    play_with(sending(1), async |world| {
        let lost = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        let id = accept(world, "a", &with(email("ana@example.com"), intent())).await;
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!(shown["status"], "SENT", "{shown}");
        assert!(codes(&shown).contains(&"reconciled"), "{shown}");
        assert!(shown["provider_id"].is_string());
        assert_eq!(ask(world, "b", &with(telegram("x"), intent())).await.body["status"], "DEDUPED");
    })
    .await;
}

/// Returns an event of the message's attempt, as the event bus delivers it.
fn event(kind: &str, id: &str, attempt: u32, at: &str, to: &str) -> Value {
    let tags = json!({"message_id": [id], "attempt": [attempt.to_string()], "ses:configuration-set": ["umavez-dev"]});
    let mail = json!({"timestamp": at, "messageId": "0100-x", "destination": [to], "tags": tags});
    let about = match kind {
        "Bounce" => json!({"bounceType": "Permanent", "timestamp": at, "bouncedRecipients": [{"emailAddress": to}]}),
        "Complaint" => json!({"timestamp": at, "complainedRecipients": [{"emailAddress": to}]}),
        _ => json!({"timestamp": at}),
    };
    let name = kind.to_lowercase();
    json!({"source": "aws.ses", "detail": {"eventType": kind, "mail": mail, name: about}})
}

async fn deliver(world: &World, events: &[&Value]) {
    let records: Vec<_> = events
        .iter()
        .enumerate()
        .map(|(n, event)| json!({"messageId": n.to_string(), "body": event.to_string(), "receiptHandle": "r"}))
        .collect();
    let answer = world.deliver("delivery-events", &json!({"Records": records})).await;
    assert_eq!(answer["batchItemFailures"], json!([]), "{answer}");
}

#[tokio::test]
async fn events_leave_the_same_state_in_any_order_and_any_number() {
    play_with(sending(6), async |world| {
        world.stack.email_events().switch(false);
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let mut ends = Vec::new();
        for (n, order) in orders.into_iter().enumerate() {
            let to = format!("ana{n}@example.com");
            let id = accept(world, &format!("k{n}"), &email(&to)).await;
            world.drain().await;
            let at = "2026-03-10T12:00:00Z";
            let all = ["Send", "Delivery", "Bounce"].map(|kind| event(kind, &id, 1, at, &to));
            for at in order {
                deliver(world, &[&all[at], &all[at]]).await;
            }
            deliver(world, &[&all[order[0]]]).await;
            let shown = message(world, &id).await;
            let mut codes = codes(&shown);
            codes.sort_unstable();
            ends.push(json!([shown["status"], shown["delivered_at"], shown["bounced_at"], codes]));
        }
        ends.dedup();
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert_eq!(ends[0][3], json!(["accepted", "bounced", "claimed", "delivered", "sent"]));
        assert_eq!(suppressions(world, "email").await.len(), 6);
    })
    .await;
}

#[tokio::test]
async fn an_old_event_does_not_restore_a_removed_suppression() {
    play_with(sending(2), async |world| {
        world.stack.email_events().switch(false);
        let id = accept(world, "a", &email("ana@example.com")).await;
        world.drain().await;
        let at = world.now().to_string();
        let bounce = event("Bounce", &id, 1, &at, "ana@example.com");
        deliver(world, &[&bounce]).await;
        let remove = world.request(Method::DELETE, "/suppressions?channel=email&to=ANA@example.com").bearer_auth(KEY);
        assert_eq!(world.send(remove).await.body["removed"], true);
        deliver(world, &[&bounce]).await;
        // An event of an unknown message does not either.
        deliver(world, &[&event("Bounce", &format!("msg_{}", "0".repeat(32)), 1, &at, "ana@example.com")]).await;
        assert!(suppressions(world, "email").await.is_empty());
        accept(world, "b", &email("ana@example.com")).await;
        world.drain().await;
        world.advance(Duration::from_secs(60)).await;
        let later = world.now().to_string();
        deliver(world, &[&event("Complaint", &id, 1, &later, "ana@example.com")]).await;
        assert_eq!(
            suppressions(world, "email").await[0]["reason"],
            "complaint",
            "a new event suppresses the address again"
        );
    })
    .await;
}

#[tokio::test]
async fn a_mail_that_ses_rejected_has_failed_and_its_intent_is_released() {
    // With a guard and without.
    for options in ["{}", r#"{"reactivation_nudge": {"window": "rolling"}}"#] {
        play_with(sending(2).parameter("IntentTypeOptions", options), async |world| {
            world.stack.email_events().switch(false);
            let first = accept(world, "a", &with(email("ana@example.com"), intent())).await;
            world.drain().await;
            deliver(world, &[&event("Reject", &first, 1, "2026-03-10T12:00:00Z", "ana@example.com")]).await;
            let shown = message(world, &first).await;
            assert_eq!((&shown["status"], codes(&shown).last()), (&json!("FAILED"), Some(&"rejected")));
            let second = accept(world, "b", &with(email("bia@example.com"), intent())).await;
            world.drain().await;
            assert_eq!(message(world, &second).await["status"], "SENT", "the intent was not released");
            // An event of another attempt is recorded and changes no state.
            deliver(world, &[&event("Reject", &second, 7, "2026-03-10T12:00:00Z", "bia@example.com")]).await;
            assert_eq!(message(world, &second).await["status"], "SENT");
        })
        .await;
    }
}

#[tokio::test]
async fn an_unreadable_event_fails_alone_and_events_of_other_mails_are_ignored() {
    let expected = Expected { dead_letters: 1, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        let queue = "umavez-dev-delivery-events";
        let foreign =
            json!({"detail": {"eventType": "Send", "mail": {"timestamp": "2026-03-10T12:00:00Z", "messageId": "x"}}});
        for body in [
            "not json",
            &foreign.to_string(),
            r#"{"detail": {"eventType": "Open", "mail": {"timestamp": "2026-03-10T12:00:00Z", "messageId": "x"}}}"#,
        ] {
            world.send_to_queue(queue, body).await;
        }
        for _ in 0..8 {
            world.advance(Duration::from_secs(200)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn explain_lists_the_decisions_in_order_by_message_address_and_client() {
    play_with(sending(1), async |world| {
        let check = json!({"client_id": "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1", "intent_type": "handoff_confirmation",
            "reference_id": "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061"});
        assert_eq!(world.post_with_key("check", "/intents", &check).await.body["can_send"], true);
        let first = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        let second = ask(world, "b", &with(telegram("Oi!"), intent())).await.text("/message_id");
        let by = |query: String| async move {
            let answer = world.get(&format!("/explain?{query}")).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.body
        };
        let codes = |shown: &Value| -> Vec<String> {
            let decisions = shown["decisions"].as_array().expect("a list");
            decisions.iter().map(|decision| decision["code"].as_str().expect("a code").to_owned()).collect()
        };
        let shown = by(format!("message={second}")).await;
        let decision = &shown["decisions"][0];
        assert_eq!((&decision["code"], &decision["matched"]), (&json!("deduped"), &json!(format!("message:{first}"))));
        assert_eq!(decision["rule"], "intent:reactivation_nudge:7d");
        assert!(decision["next_eligible_at"].is_string());
        let shown = by("to=987654321".to_owned()).await;
        assert_eq!(codes(&shown), ["accepted", "claimed", "sent", "deduped"]);
        assert_eq!(shown["messages"][0]["message_id"], second.as_str(), "the newest first");
        let shown = by("client_id=91b7584a-d8f1-4cd6-b0e1-414c1027c4d1".to_owned()).await;
        assert_eq!(codes(&shown), ["intent_held", "accepted", "claimed", "sent", "deduped"]);
        let page = by("to=987654321&limit=1".to_owned()).await;
        let next = by(format!("to=987654321&limit=1&cursor={}", page["cursor"].as_str().expect("more"))).await;
        assert_eq!(next["messages"][0]["message_id"], first.as_str());
    })
    .await;
}

#[tokio::test]
async fn invalid_queries_of_explain_are_refused_by_field() {
    play(async |world| {
        for (path, field) in [
            ("/explain", "message"),
            ("/explain?message=x", "message"),
            ("/explain?to=a%20b", "to"),
            ("/explain?client_id=x", "client_id"),
            ("/explain?to=42&client_id=x", "message"),
            ("/explain?to=42&channel=sms", "channel"),
            ("/explain?to=42&limit=0", "limit"),
            ("/outbound/unknown?cursor=x", "cursor"),
            ("/suppressions", "channel"),
            ("/suppressions?channel=sms", "channel"),
            ("/suppressions?channel=email&to=x", "to"),
        ] {
            world.get(path).await.assert_problem(422, "invalid_request", &[field]);
        }
        assert_eq!(world.get(&format!("/explain?message=msg_{}", "0".repeat(32))).await.status, 404);
        let request = world.request(Method::DELETE, "/suppressions?channel=email").bearer_auth(KEY);
        world.send(request).await.assert_problem(422, "invalid_request", &["to"]);
    })
    .await;
}

#[tokio::test]
async fn a_long_list_of_suppressions_is_paged() {
    play(async |world| {
        for n in 0..7 {
            let body = json!({"channel": "whatsapp", "to": format!("551191234567{n}"), "note": "asked to"});
            assert_eq!(world.post("/suppressions", &body).await.status, 201);
            assert_eq!(world.post("/suppressions", &body).await.status, 200, "the second request changes nothing");
        }
        let mut found = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = world.get(&format!("/suppressions?channel=whatsapp&limit=2{cursor}")).await.body;
            let rows = page["suppressions"].as_array().expect("a list");
            assert!(rows.len() <= 2);
            found.extend(rows.iter().map(|row| row["to"].as_str().expect("an address").to_owned()));
            let Some(next) = page["cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 7);
        assert_eq!(suppressions(world, "email").await.len(), 0, "a suppression is per channel");
    })
    .await;
}

#[tokio::test]
async fn keys_may_do_what_their_scopes_say() {
    play(async |world| {
        world.create_key("reader", &["outbound:read"]).await;
        world.create_key("writer", &["outbound"]).await;
        let as_key = |key: &str, method: Method, path: &str| world.request(method, path).bearer_auth(key);
        assert_eq!(world.send(as_key("reader", Method::GET, "/outbound/unknown")).await.status, 200);
        assert_eq!(world.send(as_key("writer", Method::GET, "/outbound/unknown")).await.status, 200);
        let post = as_key("reader", Method::POST, "/outbound/messages").header("idempotency-key", "k");
        assert_eq!(world.send(post.json(&telegram("x"))).await.status, 403);
        assert_eq!(world.send(as_key("reader", Method::POST, "/intents").json(&json!({}))).await.status, 403);
        assert_eq!(world.send(world.request(Method::GET, "/explain?to=1")).await.status, 401);
    })
    .await;
}

#[tokio::test]
async fn a_hard_bounce_after_a_soft_one_suppresses_the_address() {
    play_with(sending(1), async |world| {
        world.stack.email_events().switch(false);
        let id = accept(world, "a", &email("ana@example.com")).await;
        world.drain().await;
        let at = world.now().to_string();
        let mut soft = event("Bounce", &id, 1, &at, "ana@example.com");
        soft["detail"]["bounce"]["bounceType"] = json!("Transient");
        deliver(world, &[&soft]).await;
        assert!(suppressions(world, "email").await.is_empty());
        deliver(world, &[&event("Bounce", &id, 1, &at, "ana@example.com")]).await;
        assert_eq!(suppressions(world, "email").await[0]["reason"], "hard_bounce");
    })
    .await;
}

#[tokio::test]
async fn an_event_of_an_earlier_attempt_ends_the_message_as_sent() {
    play_with(sending(1), async |world| {
        world.stack.email_events().switch(false);
        let lost = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::DropReply) };
        world.stack.add_fault(Fault::Call(lost)).await.expect("armed");
        let id = accept(world, "a", &with(email("ana@example.com"), intent())).await;
        world.drain().await;
        // The second attempt fails for a transient reason, and a third one would follow.
        let paused = umavez_local::faults::Scripted {
            status: 400,
            headers: [("x-amzn-errortype".to_owned(), "SendingPausedException".to_owned())].into(),
            body: json!({"message": "paused"}),
        };
        let refused =
            CallFault { service: Some("ses".to_owned()), answer: Some(paused), ..CallFault::first(Action::Answer) };
        world.stack.add_fault(Fault::Call(refused)).await.expect("armed");
        let resend = world.post(&format!("/outbound/messages/{id}/resend"), &json!({})).await;
        assert_eq!(resend.status, 202);
        world.drain().await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("QUEUED"), &json!(2)), "{shown}");
        deliver(world, &[&event("Send", &id, 1, &world.now().to_string(), "ana@example.com")]).await;
        world.advance(Duration::from_secs(600)).await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("SENT"), &json!(2)), "{shown}");
    })
    .await;
}

#[tokio::test]
async fn proof_of_a_mail_that_an_operator_settled_as_not_sent_moves_it_to_sent() {
    play_with(Setup::default(), async |world| {
        let before = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::KillBefore) };
        world.stack.add_fault(Fault::Call(before)).await.expect("armed");
        let id = accept(world, "a", &email("ana@example.com")).await;
        world.drain().await;
        world.advance(Duration::from_secs(60)).await;
        world.tick("Recovery").await;
        assert_eq!(message(world, &id).await["status"], "UNKNOWN");
        let settled = world.post(&format!("/outbound/messages/{id}/settle"), &json!({"sent": false})).await;
        assert_eq!((settled.status, &settled.body["status"]), (200, &json!("FAILED")), "{}", settled.body);
        // An event of the provider proves the opposite.
        let at = world.now().to_string();
        let delivered = event("Delivery", &id, 1, &at, "ana@example.com");
        deliver(world, &[&delivered, &delivered]).await;
        let shown = message(world, &id).await;
        assert_eq!((&shown["status"], &shown["provider_id"]), (&json!("SENT"), &json!("0100-x")), "{shown}");
        assert!(shown["delivered_at"].is_string() && shown["sent_at"].is_string(), "{shown}");
        assert_eq!(codes(&shown).iter().filter(|code| **code == "reconciled").count(), 1, "{shown}");
        // It is sent, so an order to resend it is refused.
        let resent = world.post(&format!("/outbound/messages/{id}/resend"), &json!({})).await;
        assert_eq!(resent.status, 409, "{}", resent.body);
        // The job of the dead sender is redelivered and finds no work.
        world.advance(Duration::from_secs(700)).await;
        assert_eq!(message(world, &id).await["attempts"], 1);
    })
    .await;
}

/// A message that ends without being sent releases its intent. If it turns out to have been sent,
/// it takes the intent again, so that the contact does not get the same message twice.
#[tokio::test]
async fn proof_that_a_failed_mail_was_sent_takes_its_intent_again() {
    let rolling = json!({"reactivation_nudge": {"scope": "contact", "window": "rolling"}}).to_string();
    for options in ["{}", &rolling] {
        play_with(Setup::default().parameter("IntentTypeOptions", options), async |world| {
            let id = called_unsent(world, "a").await;
            deliver(world, &[&event("Delivery", &id, 1, &world.now().to_string(), "ana@example.com")]).await;
            assert_eq!(message(world, &id).await["status"], "SENT");
            let again = ask(world, "b", &with(email("ana@example.com"), intent())).await;
            assert_eq!((again.status, &again.body["status"]), (200, &json!("DEDUPED")), "{}", again.body);
            assert_eq!(again.body["blocked_by"]["holder"], format!("message:{id}"));
        })
        .await;
        // If another message has taken the intent meanwhile, it keeps it.
        play_with(sending(1).parameter("IntentTypeOptions", options), async |world| {
            world.stack.email_events().switch(false);
            let id = called_unsent(world, "a").await;
            let other = accept(world, "b", &with(email("ana@example.com"), intent())).await;
            world.drain().await;
            deliver(world, &[&event("Delivery", &id, 1, &world.now().to_string(), "ana@example.com")]).await;
            assert_eq!(message(world, &id).await["status"], "SENT");
            let third = ask(world, "c", &with(email("ana@example.com"), intent())).await;
            assert_eq!(third.body["blocked_by"]["holder"], format!("message:{other}"), "{}", third.body);
        })
        .await;
    }
}

/// Returns the id of a mail whose sender died before its call, and that an operator settled as not
/// sent.
async fn called_unsent(world: &World, key: &str) -> String {
    let before = CallFault { service: Some("ses".to_owned()), ..CallFault::first(Action::KillBefore) };
    world.stack.add_fault(Fault::Call(before)).await.expect("armed");
    let id = accept(world, key, &with(email("ana@example.com"), intent())).await;
    world.drain().await;
    world.advance(Duration::from_secs(60)).await;
    world.tick("Recovery").await;
    let settled = world.post(&format!("/outbound/messages/{id}/settle"), &json!({"sent": false})).await;
    assert_eq!((settled.status, &settled.body["status"]), (200, &json!("FAILED")), "{}", settled.body);
    // The queue redelivers the job of the dead sender, which finds no work.
    world.advance(Duration::from_secs(700)).await;
    id
}
