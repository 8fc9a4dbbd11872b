//! A bot or an instance without a credential: an operator who sets it up gets a warning, a message
//! for it is refused, and messages that already wait are visible.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::keys;
use umavez_domain::senders::bots::BotRow;
use umavez_local::faults::{Action, CallFault, Fault, Scripted};
use umavez_platform::store::Write;
use umavez_tests::{KEY, World, play, play_with};

use crate::conversations::update;
use crate::downsells::{CHAT, at_telegram, bot, charge, downsell, gateway, put, seconds};
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
            let answer = world.post_with_key("a", "/outbound/messages", &message(channel, "nobot")).await;
            answer.assert_problem(422, "invalid_request", &["sender"]);
        }
        let client = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
        let mut with_intent = message("telegram", "nobot");
        with_intent["intent"] = json!({"client_id": client, "intent_type": "reactivation_nudge"});
        let answer = world.post_with_key("b", "/outbound/messages", &with_intent).await;
        answer.assert_problem(422, "invalid_request", &["sender"]);
        assert!(world.rows("OutboundTable").await.is_empty() && world.rows("IntentsTable").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn with_the_empty_secret_of_a_new_deployment_only_mail_can_be_sent() {
    play_with(sending(1), async |world| {
        world.stack.secrets().set("Senders", &json!({})).expect("set");
        let answer = world.post_with_key("a", "/outbound/messages", &message("telegram", "default")).await;
        answer.assert_problem(422, "invalid_request", &["sender"]);
        // Mail needs no credential: the function's own role signs it.
        let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
        let mail = json!({"channel": "email", "to": "ana@example.com", "content": content});
        assert_eq!(world.post_with_key("b", "/outbound/messages", &mail).await.status, 202);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_request_is_the_same_message_after_its_credential_was_removed() {
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

/// The sender retries until the secret can be read. A request is not refused for a credential that
/// may exist.
#[tokio::test]
async fn no_request_is_refused_while_the_secret_cannot_be_read() {
    play_with(sending(1), async |world| {
        secrets_fail(world, "outbound-api").await;
        secrets_fail(world, "admin").await;
        let answer = world.post_with_key("a", "/outbound/messages", &message("telegram", "default")).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        let made = world.post(BOTS, &json!({"slug": "loja", "token_ref": "nobot"})).await;
        assert_eq!((made.status, &made.body["warnings"]), (201, &json!([])), "{}", made.body);
        assert!(!world.events("CREDENTIALS_NOT_READ").is_empty(), "the failure is not logged");
    })
    .await;
}

#[tokio::test]
async fn a_bot_without_a_token_has_a_warning_and_cannot_be_tested() {
    play(async |world| {
        let body = json!({"slug": "loja", "token_ref": "nobot"});
        let made = world.post(BOTS, &body).await;
        assert_eq!((made.status, &made.body["warnings"]), (201, &json!(["token_missing"])), "{}", made.body);
        assert_eq!(
            world.post(BOTS, &body).await.body["warnings"],
            json!(["token_missing"]),
            "the repeated request has the same warning"
        );
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
async fn an_offer_that_waits_for_a_token_is_visible_and_counted_and_later_sent() {
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
        assert!(!world.metrics("CredentialsMissing").is_empty(), "an alarm watches this metric");
        world.stack.secrets().set("Senders", &json!({"telegram": {"loja-2": "2:b"}})).expect("set");
        world.advance(Duration::from_secs(600)).await;
        let sent = world.get("/api/admin/bots/loja/queue").await.body["queue"][0].clone();
        assert_eq!((&sent["status"], &sent["code"]), (&json!("sent"), &Value::Null), "{sent}");
    })
    .await;
}

/// Creates a bot with another name than its token, which may send one message a second. A token
/// with the bot's own name exists too, but no bot uses it.
async fn bot_of_another_token(world: &World) {
    world.stack.secrets().set("Senders", &json!({"telegram": {"loja": "1:a", "shop": "2:b"}})).expect("set");
    let made = world.post(BOTS, &json!({"slug": "loja", "token_ref": "shop", "messages_per_second": 1})).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let new = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 1, "after_start": false, "after_pix": true});
    assert_eq!(world.post("/api/admin/bots/loja/downsells", &new).await.status, 201);
}

/// Accepts a message on Telegram and returns its id.
async fn say(world: &World, key: &str, sender: &str, more: &Value) -> String {
    let mut message = message("telegram", sender);
    message.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let accepted = world.post_with_key(key, "/outbound/messages", &message).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    accepted.text("/message_id")
}

async fn status(world: &World, id: &str) -> String {
    world.get(&format!("/outbound/messages/{id}")).await.text("/status")
}

async fn charge_of_loja(world: &World) {
    let mut charge = charge("tx-1");
    charge["bot_slug"] = json!("loja");
    assert_eq!(gateway(world, "pix-created", &charge).await.body["scheduled"], 1);
}

/// Returns the tokens in the calls to Telegram, without their secret parts.
fn tokens_used(world: &World) -> BTreeSet<String> {
    let sent = world.stack.catcher().sent(Some("telegram"), None);
    sent.iter().filter_map(|one| one.path.split('/').nth(1).map(str::to_owned)).collect()
}

#[tokio::test]
async fn messages_and_offers_of_one_token_share_its_rate_limit() {
    play_with(sending(4), async |world| {
        bot_of_another_token(world).await;
        charge_of_loja(world).await;
        let due = world.now().plus_ms(62_000).to_string();
        for (to, sender) in [("41", "loja"), ("42", "shop"), ("43", "shop")] {
            say(world, to, sender, &json!({"to": to, "send_at": due})).await;
        }
        seconds(world, 63).await;
        // Messages without a slot are redelivered after some seconds.
        for _ in 0..20 {
            seconds(world, 5).await;
        }
        let rows = world.rows("OutboundTable").await;
        let buckets: Vec<_> = rows.iter().filter(|row| row["sk"] == "SENDER").map(|row| row["pk"].clone()).collect();
        assert_eq!(buckets, ["RATE#telegram#shop"], "one token has one bucket");
        assert_eq!(tokens_used(world), BTreeSet::from(["bot2:***".to_owned()]));
        let mut slots: Vec<_> =
            world.events("OUTBOUND_SENT").iter().map(|event| event["slot_ms"].as_i64().expect("a slot")).collect();
        slots.sort_unstable();
        assert_eq!(slots.len(), 3);
        assert!(slots.windows(2).all(|two| two[1] - two[0] >= 1_000), "one message a second: {slots:?}");
    })
    .await;
}

#[tokio::test]
async fn a_message_that_names_a_bot_is_sent_with_the_token_of_that_bot() {
    play_with(sending(3), async |world| {
        world.stack.secrets().set("Senders", &json!({"telegram": {"shop": "2:b", "third": "3:c"}})).expect("set");
        let refused = world.post_with_key("a", "/outbound/messages", &message("telegram", "loja")).await;
        refused.assert_problem(422, "invalid_request", &["sender"]);
        assert_eq!(world.post(BOTS, &json!({"slug": "loja", "token_ref": "shop"})).await.status, 201);
        // It is accepted at once, although it was refused a moment ago.
        say(world, "a", "loja", &json!({})).await;
        world.drain().await;
        assert_eq!(tokens_used(world), BTreeSet::from(["bot2:***".to_owned()]));
        // The slug of a bot takes precedence over a token with the same name, and each bot keeps
        // its own token.
        assert_eq!(world.post(BOTS, &json!({"slug": "shop", "token_ref": "third"})).await.status, 201);
        say(world, "b", "shop", &json!({"to": "43"})).await;
        world.drain().await;
        assert_eq!(tokens_used(world), BTreeSet::from(["bot2:***".to_owned(), "bot3:***".to_owned()]));
        let new = json!({"name": "Oferta", "content": {"text": "Oi"}});
        assert_eq!(world.post("/api/admin/bots/loja/downsells", &new).await.status, 201);
        let tried = world.post("/api/admin/bots/loja/downsells/1/test", &json!({"telegram_id": CHAT})).await;
        assert_eq!(tried.status, 202, "{}", tried.body);
        world.drain().await;
        let sent = world.stack.catcher().sent(Some("telegram"), Some(&CHAT.to_string()));
        assert_eq!(sent[0].path, "/bot2:***/sendMessage");
    })
    .await;
}

#[tokio::test]
async fn a_token_belongs_to_one_bot_until_that_bot_gets_another() {
    play(async |world| {
        let all = json!({"telegram": {"loja": "1:a", "shop": "2:b"}});
        world.stack.secrets().set("Senders", &all).expect("set");
        assert_eq!(world.post(BOTS, &json!({"slug": "loja", "token_ref": "shop"})).await.status, 201);
        let before = world.rows("ConfigTable").await;
        let taken = world.post(BOTS, &json!({"slug": "outra", "token_ref": "shop"})).await;
        taken.assert_problem(422, "invalid_request", &["token_ref"]);
        let error = &taken.body["errors"][0];
        assert_eq!(error["code"], "conflicting");
        assert!(
            error["detail"].as_str().is_some_and(|detail| detail.contains("loja")),
            "the error does not name the owner: {error}"
        );
        assert_eq!(world.rows("ConfigTable").await.len(), before.len(), "a refused bot wrote something");

        assert_eq!(world.post(BOTS, &json!({"slug": "outra", "token_ref": "loja"})).await.status, 201);
        let change = json!({"token_ref": "shop", "messages_per_second": 7});
        let taken = put(world, "/api/admin/bots/outra", &change).await;
        taken.assert_problem(422, "invalid_request", &["token_ref"]);
        let unchanged = world.get("/api/admin/bots/outra").await.body["bot"].clone();
        assert_eq!((&unchanged["token_ref"], &unchanged["version"]), (&json!("loja"), &json!(1)), "{unchanged}");

        // A bot that gets another token releases the last one.
        assert_eq!(put(world, "/api/admin/bots/loja", &json!({"token_ref": "third"})).await.status, 200);
        assert_eq!(put(world, "/api/admin/bots/outra", &change).await.status, 200);
        let rows = world.rows("ConfigTable").await;
        let mut owners: Vec<_> = rows
            .iter()
            .filter(|row| row["sk"] == "TOKEN")
            .map(|row| (row["pk"].clone(), row["slug"].clone(), row["messages_per_second"].clone()))
            .collect();
        owners.sort_by_key(|(token, ..)| token.to_string());
        let expected = [
            (json!("TOKEN#telegram#shop"), json!("outra"), json!(7)),
            (json!("TOKEN#telegram#third"), json!("loja"), Value::Null),
        ];
        assert_eq!(owners, expected);
    })
    .await;
}

#[tokio::test]
async fn of_two_bots_created_concurrently_with_one_token_one_gets_it() {
    play(async |world| {
        let ask = async |slug: &str| world.post(BOTS, &json!({"slug": slug, "token_ref": "default"})).await.status;
        let (one, other) = futures::future::join(ask("loja"), ask("outra")).await;
        assert_eq!([one.min(other), one.max(other)], [201, 422]);
        assert_eq!(world.get(BOTS).await.body["bots"].as_array().map(Vec::len), Some(1));
    })
    .await;
}

/// A bot from before tokens had owners has no row for its token. Its next change creates one, and
/// it can get another token even if its last one has another owner by then.
#[tokio::test]
async fn a_bot_from_before_tokens_had_owners_gets_its_token_row_with_its_next_change() {
    play(async |world| {
        let table = world.stack.output("ConfigTable").expect("a table");
        for slug in ["loja", "outra"] {
            let body = json!({"slug": slug, "token_ref": "default"});
            let row = BotRow::read(body.as_object().expect("an object"), world.now()).expect("a bot");
            let write = Write::put(table, keys::bot(slug), &row).expect("a row");
            world.store.write(&world.invocation(), write).await.expect("written");
        }
        assert_eq!(put(world, "/api/admin/bots/loja", &json!({"messages_per_second": 5})).await.status, 200);
        let shared = put(world, "/api/admin/bots/outra", &json!({"active": false})).await;
        shared.assert_problem(422, "invalid_request", &["token_ref"]);
        let moved = put(world, "/api/admin/bots/outra", &json!({"active": false, "token_ref": "outra"})).await;
        assert_eq!(moved.status, 200, "{}", moved.body);
        let rows = world.rows("ConfigTable").await;
        let owner = rows.iter().find(|row| row["pk"] == "TOKEN#telegram#default").map(|row| row["slug"].clone());
        assert_eq!(owner, Some(json!("loja")), "a bot released a token that it does not own");
    })
    .await;
}

#[tokio::test]
async fn a_user_who_blocks_a_bot_is_suppressed_for_its_token_under_every_name_until_a_start() {
    play_with(sending(2), async |world| {
        bot_of_another_token(world).await;
        let secret = json!({"webhook_secret": "webhook-secret-0001", "messages_per_second": null});
        assert_eq!(put(world, "/api/admin/bots/loja", &secret).await.status, 200);
        let body = json!({"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"});
        let answer = Scripted { status: 403, headers: Default::default(), body };
        let blocked = CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) };
        let starts = async |number: u64| {
            let request = world.request(Method::POST, "/webhooks/telegram/loja");
            let request = request.header("x-telegram-bot-api-secret-token", "webhook-secret-0001");
            let response = world.send(request.json(&update(CHAT, number, "/start", world.now().seconds()))).await;
            assert_eq!(response.status, 200, "{}", response.body);
        };
        let to_them = json!({"to": CHAT.to_string()});
        let listed = async || {
            let response = world.get(&format!("/suppressions?channel=telegram&to={CHAT}")).await;
            response.body["suppressions"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|row| row["senders"].clone())
                .collect::<Vec<_>>()
        };

        // An offer finds the block.
        at_telegram(world, blocked.clone()).await;
        charge_of_loja(world).await;
        seconds(world, 65).await;
        assert_eq!(listed().await, [json!(["shop"])]);
        let (by_slug, by_token) = (say(world, "a", "loja", &to_them).await, say(world, "b", "shop", &to_them).await);
        seconds(world, 5).await;
        assert_eq!([status(world, &by_slug).await, status(world, &by_token).await], ["SUPPRESSED", "SUPPRESSED"]);
        starts(1).await;
        assert_eq!(listed().await, [] as [Value; 0]);
        let heard = say(world, "c", "shop", &to_them).await;
        seconds(world, 5).await;
        assert_eq!(status(world, &heard).await, "SENT");

        // A message finds the block.
        at_telegram(world, blocked).await;
        let refused = say(world, "d", "loja", &to_them).await;
        seconds(world, 5).await;
        assert_eq!((status(world, &refused).await.as_str(), listed().await), ("FAILED", vec![json!(["shop"])]));
        starts(2).await;
        let heard = say(world, "e", "loja", &to_them).await;
        seconds(world, 5).await;
        assert_eq!((status(world, &heard).await.as_str(), listed().await), ("SENT", Vec::new()));
    })
    .await;
}
