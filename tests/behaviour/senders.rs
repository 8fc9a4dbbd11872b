//! A bot or an instance without a credential: whoever sets it up or asks it to send is told so, and what already waits is seen.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_tests::{KEY, World, play, play_with};

use crate::downsells::{CHAT, bot, charge, downsell, gateway, put, seconds};
use crate::outbound::sending;

const BOTS: &str = "/api/admin/bots";

fn message(channel: &str, sender: &str) -> Value {
    let to = if channel == "telegram" { "42" } else { "5511987654321" };
    json!({"channel": channel, "to": to, "sender": sender, "content": {"text": "Oi"}})
}

async fn secrets_fail(world: &World, function: &str) {
    let fault = CallFault {
        function: Some(function.to_owned()),
        service: Some("secretsmanager".to_owned()),
        times: 20,
        ..CallFault::first(Action::ErrorBefore)
    };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

#[tokio::test]
async fn a_message_of_an_unknown_sender_is_refused_and_leaves_nothing() {
    play(async |world| {
        for channel in ["telegram", "whatsapp"] {
            let told = world.post_with_key("a", "/outbound/messages", &message(channel, "nobot")).await;
            told.assert_problem(422, "invalid_request", &["sender"]);
        }
        let client = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
        let mut with_intent = message("telegram", "nobot");
        with_intent["intent"] = json!({"client_id": client, "intent_type": "reactivation_nudge"});
        let told = world.post_with_key("b", "/outbound/messages", &with_intent).await;
        told.assert_problem(422, "invalid_request", &["sender"]);
        assert!(world.rows("OutboundTable").await.is_empty() && world.rows("IntentsTable").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_empty_secret_of_a_new_deployment_has_no_sender() {
    play_with(sending(1), async |world| {
        world.stack.secrets().set("Senders", &json!({})).expect("set");
        let told = world.post_with_key("a", "/outbound/messages", &message("telegram", "default")).await;
        told.assert_problem(422, "invalid_request", &["sender"]);
        // Mail is signed by the function's own role.
        let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
        let mail = json!({"channel": "email", "to": "ana@example.com", "content": content});
        assert_eq!(world.post_with_key("b", "/outbound/messages", &mail).await.status, 202);
    })
    .await;
}

#[tokio::test]
async fn a_message_that_was_accepted_is_the_same_message_after_its_credential_went() {
    play_with(sending(1), async |world| {
        let known = json!({"telegram": {"loja-2": "2:b"}});
        world.stack.secrets().set("Senders", &known).expect("set");
        let body = message("telegram", "loja-2");
        let first = world.post_with_key("a", "/outbound/messages", &body).await;
        assert_eq!(first.status, 202, "{}", first.body);
        world.drain().await;
        world.stack.secrets().set("Senders", &json!({})).expect("set");
        let again = world.post_with_key("a", "/outbound/messages", &body).await;
        assert_eq!((again.status, &again.body["message_id"]), (202, &first.body["message_id"]), "{}", again.body);
    })
    .await;
}

/// The sender tries again until the secret can be read; a request is not refused for what may be there.
#[tokio::test]
async fn while_the_secret_cannot_be_read_nothing_is_refused() {
    play_with(sending(1), async |world| {
        secrets_fail(world, "outbound-api").await;
        secrets_fail(world, "admin").await;
        let told = world.post_with_key("a", "/outbound/messages", &message("telegram", "default")).await;
        assert_eq!(told.status, 202, "{}", told.body);
        let made = world.post(BOTS, &json!({"slug": "loja", "token_ref": "nobot"})).await;
        assert_eq!((made.status, &made.body["warnings"]), (201, &json!([])), "{}", made.body);
        assert!(!world.events("NO_CREDENTIALS").is_empty(), "it is told in the log");
    })
    .await;
}

#[tokio::test]
async fn a_bot_without_a_token_is_warned_of_and_cannot_be_tried() {
    play(async |world| {
        let body = json!({"slug": "loja", "token_ref": "nobot"});
        let made = world.post(BOTS, &body).await;
        assert_eq!((made.status, &made.body["warnings"]), (201, &json!(["token_missing"])), "{}", made.body);
        assert_eq!(world.post(BOTS, &body).await.body["warnings"], json!(["token_missing"]), "asked for again");
        assert_eq!(world.get("/api/admin/bots/loja").await.body["warnings"], json!(["token_missing"]));
        let new = json!({"name": "Oferta", "content": {"text": "Oi"}});
        assert_eq!(world.post("/api/admin/bots/loja/downsells", &new).await.status, 201);
        let tried = world.post("/api/admin/bots/loja/downsells/1/test", &json!({"telegram_id": CHAT})).await;
        tried.assert_problem(422, "invalid_request", &["token_ref"]);
        assert!(world.rows("OutboundTable").await.is_empty());
        let changed = put(world, "/api/admin/bots/loja", &json!({"token_ref": "default"})).await;
        assert_eq!((changed.status, &changed.body["warnings"]), (200, &json!([])), "{}", changed.body);
        let listed = world.send(world.request(Method::GET, BOTS).bearer_auth(KEY)).await;
        assert_eq!(listed.status, 200);
    })
    .await;
}

#[tokio::test]
async fn an_offer_that_waits_for_a_token_is_seen_and_counted_and_then_sent() {
    play_with(sending(1), async |world| {
        bot(world).await;
        let of_loja = json!({"slug": "loja", "token_ref": "loja-2"});
        assert_eq!(world.post(BOTS, &of_loja).await.status, 201);
        downsell(world, &json!({})).await;
        let new = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1, "after_pix": true});
        assert_eq!(world.post("/api/admin/bots/loja/downsells", &new).await.status, 201);
        let mut of_loja = charge("tx-1");
        of_loja["bot_slug"] = json!("loja");
        gateway(world, "pix-created", &of_loja).await;
        seconds(world, 65).await;
        let waiting = world.get("/api/admin/bots/loja/queue?status=pending").await.body["queue"][0].clone();
        assert_eq!((&waiting["delivery"], &waiting["code"]), (&json!("QUEUED"), &json!("sender_unknown")), "{waiting}");
        assert!(!world.metrics("SenderUnknown").is_empty(), "an alarm watches this metric");
        world.stack.secrets().set("Senders", &json!({"telegram": {"loja-2": "2:b"}})).expect("set");
        world.advance(Duration::from_secs(600)).await;
        let sent = world.get("/api/admin/bots/loja/queue").await.body["queue"][0].clone();
        assert_eq!((&sent["status"], &sent["code"]), (&json!("sent"), &Value::Null), "{sent}");
    })
    .await;
}
