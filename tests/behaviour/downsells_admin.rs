//! The administration of bots and downsells, and invalid webhooks of gateways: each refusal names
//! the error and writes nothing.

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::webhooks::standard::{key_bytes, sign};
use umavez_tests::{KEY, play, play_with};

use crate::conversations::update;
use crate::downsells::{
    CHAT, bot, charge, charged, downsell, gateway, offer, offers, pays, put, queue, seconds, starts,
};
use crate::outbound::sending;

const BOTS: &str = "/api/admin/bots";
const DOWNSELLS: &str = "/api/admin/bots/default/downsells";
const QUEUE: &str = "/api/admin/bots/default/queue";

#[tokio::test]
async fn a_bot_is_created_changed_and_listed_and_its_secret_is_never_shown() {
    play_with(sending(1), async |world| {
        world.canary("canary-webhook-secret-1");
        let body = json!({"slug": "loja", "token_ref": "default", "webhook_secret": "canary-webhook-secret-1",
            "messages_per_second": 5});
        let made = world.post(BOTS, &body).await;
        assert_eq!((made.status, &made.body["bot"]["has_webhook_secret"]), (201, &json!(true)), "{}", made.body);
        assert!(!made.body.to_string().contains("canary"));
        let again = world.post(BOTS, &body).await;
        assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
        world.post(BOTS, &json!({"slug": "loja"})).await.assert_problem(409, "name_taken", &[]);
        let changed = put(world, "/api/admin/bots/loja", &json!({"name": "Loja"})).await;
        assert_eq!((&changed.body["bot"]["name"], &changed.body["bot"]["version"]), (&json!("Loja"), &json!(2)));
        assert_eq!(world.get(BOTS).await.body["bots"][0], world.get("/api/admin/bots/loja").await.body["bot"]);
        world.get("/api/admin/bots/nobody").await.assert_problem(404, "not_found", &[]);
        put(world, "/api/admin/bots/nobody", &json!({})).await.assert_problem(404, "not_found", &[]);
        world.post(BOTS, &json!({"slug": "a b", "token": "x"})).await.assert_problem(
            422,
            "invalid_request",
            &["slug", "token"],
        );
        // The bot's own secret verifies Telegram's webhooks, and its token sends.
        let downsells = "/api/admin/bots/loja/downsells";
        let new = json!({"name": "Oferta", "content": {"text": "Oi"}, "delay_minutes": 0});
        assert_eq!(world.post(downsells, &new).await.status, 201);
        let mut of_loja = charge("tx-1");
        of_loja["bot_slug"] = json!("loja");
        gateway(world, "pix-created", &of_loja).await;
        let says = |secret: &'static str, text: &'static str, id: u64| {
            let request = world.request(Method::POST, "/webhooks/telegram/loja");
            let request = request.header("x-telegram-bot-api-secret-token", secret);
            world.send(request.json(&update(CHAT, id, text, world.now().seconds())))
        };
        says("canary-webhook-secret-2", "/start", 1).await.assert_problem(401, "unverified", &[]);
        assert_eq!(says("canary-webhook-secret-1", "/start", 1).await.body["scheduled"], 1);
        assert_eq!(says("canary-webhook-secret-1", "Oi", 2).await.body["ignored"], 1, "the bot has no conversations");
        world.drain().await;
        assert_eq!(offers(world), 1);
    })
    .await;
}

#[tokio::test]
async fn downsells_are_created_changed_listed_and_deleted() {
    play(async |world| {
        bot(world).await;
        let body = json!({
            "name": "Downsell 20min",
            "content": {"text": "Ainda está aí? Temos uma oferta especial\\!", "parse_mode": "MarkdownV2",
                "buttons": [[{"text": "Ver", "url": "https://example.com/"}]]},
            "delay_minutes": 20, "active": true, "after_start": true, "after_pix": false,
        });
        let made = world.post_with_key("k1", DOWNSELLS, &body).await;
        assert_eq!((made.status, &made.body["downsell"]["id"]), (201, &json!(1)), "{}", made.body);
        let again = world.post_with_key("k1", DOWNSELLS, &body).await;
        assert_eq!((again.header("idempotency-replayed"), &again.body), (Some("true"), &made.body));
        let reused = world.post_with_key("k1", DOWNSELLS, &json!({"name": "x", "content": {"text": "y"}})).await;
        reused.assert_problem(422, "idempotency_key_reused", &[]);
        let second = downsell(world, &json!({"after_start": false})).await;
        assert_eq!(second, 2);
        let answer = world.get(&format!("{DOWNSELLS}/2")).await;
        assert_eq!(answer.body["warnings"], json!(["no_trigger"]));
        let changed = put(world, &format!("{DOWNSELLS}/1"), &json!({"delay_minutes": 30, "after_pix": true})).await;
        assert_eq!(
            (&changed.body["downsell"]["delay_minutes"], &changed.body["downsell"]["name"]),
            (&json!(30), &json!("Downsell 20min"))
        );
        let listed = world.get(DOWNSELLS).await.body;
        assert_eq!((&listed["ok"], listed["downsells"].as_array().map(Vec::len)), (&json!(true), Some(2)));
        let delete = |id: u64| world.send(world.request(Method::DELETE, &format!("{DOWNSELLS}/{id}")).bearer_auth(KEY));
        assert_eq!(delete(1).await.status, 200);
        delete(1).await.assert_problem(404, "not_found", &[]);
        world.get(&format!("{DOWNSELLS}/1")).await.assert_problem(404, "not_found", &[]);
        assert_eq!(downsell(world, &json!({})).await, 3, "a number is reused");
    })
    .await;
}

#[tokio::test]
async fn an_invalid_downsell_is_refused_by_field_and_leaves_nothing() {
    play(async |world| {
        bot(world).await;
        let good = json!({"name": "Oferta", "content": {"text": "Oi"}});
        let with = |field: &str, value: Value| {
            let mut body = good.clone();
            body[field] = value;
            body
        };
        for (body, fields) in [
            (with("delay_minutes", json!(-1)), ["delay_minutes"]),
            (with("delay_minutes", json!(5_000_000)), ["delay_minutes"]),
            (with("content", json!({"text": "1.99!", "parse_mode": "MarkdownV2"})), ["content.text"]),
            (with("content", json!({"media": {"kind": "photo", "url": "ftp://x"}})), ["content.media.url"]),
            (with("rearm", json!("often")), ["rearm"]),
            (with("after", json!(true)), ["after"]),
        ] {
            world.post(DOWNSELLS, &body).await.assert_problem(422, "invalid_request", &fields);
        }
        world.post("/api/admin/bots/nobody/downsells", &good).await.assert_problem(404, "not_found", &[]);
        assert_eq!(world.get(DOWNSELLS).await.body["downsells"], json!([]));
        for path in
            ["queue?status=gone", "queue?trigger=x", "queue?telegram_id=a", "queue?cursor=eA", "queue?delivery=QUEUED"]
        {
            let field = path.split(['?', '=']).nth(1).expect("a field");
            let answer = world.get(&format!("/api/admin/bots/default/{path}")).await;
            answer.assert_problem(422, "invalid_request", &[field]);
        }
        let answer = world.get("/api/admin/bots/default/metrics?from=2020-01-01T00:00:00Z").await;
        answer.assert_problem(422, "invalid_request", &["from"]);
    })
    .await;
}

#[tokio::test]
async fn a_bot_has_at_most_as_many_downsells_as_one_trigger_can_schedule() {
    play(async |world| {
        bot(world).await;
        for _ in 0..30 {
            downsell(world, &json!({"delay_minutes": 60})).await;
        }
        let one_more = json!({"name": "Oferta", "content": {"text": "Oi"}});
        world.post(DOWNSELLS, &one_more).await.assert_problem(409, "wrong_state", &[]);
        assert_eq!(starts(world, CHAT, 1).await.body["scheduled"], 30);
        charged(world, "tx-1").await;
        assert_eq!(pays(world, "tx-1").await.body["canceled"], 30);
        assert_eq!(starts(world, CHAT, 2).await.body["scheduled"], 30, "not all slots are free");
    })
    .await;
}

#[tokio::test]
async fn the_queue_is_filtered_and_paged_and_the_numbers_add_up() {
    play_with(sending(6), async |world| {
        bot(world).await;
        let first = downsell(world, &json!({"after_pix": true, "delay_minutes": 0})).await;
        downsell(world, &json!({"after_start": true, "delay_minutes": 120})).await;
        for person in 0..3 {
            let mut body = charge(&format!("tx-{person}"));
            body["telegram_id"] = json!(CHAT + person);
            assert_eq!(gateway(world, "pix-created", &body).await.body["scheduled"], 1);
            world.drain().await;
            assert_eq!(starts(world, CHAT + person, 100 + person as u64).await.body["scheduled"], 2);
            seconds(world, 2).await;
        }
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = world.get(&format!("{QUEUE}?limit=2{cursor}")).await.body;
            seen.extend(page["queue"].as_array().expect("a queue").iter().map(|o| o["event_id"].to_string()));
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let mut once = seen.clone();
        once.sort();
        once.dedup();
        assert_eq!((seen.len(), once.len()), (9, 9), "not every offer is listed once");
        let count = async |query: String| {
            let answer = world.get(&format!("{QUEUE}?{query}")).await;
            answer.body["queue"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).len()
        };
        assert_eq!(count(format!("downsell_id={first}")).await, 6);
        assert_eq!(count("trigger=pix".to_owned()).await, 3);
        assert_eq!(count(format!("telegram_id={CHAT}")).await, 3);
        assert_eq!(count(format!("telegram_id={CHAT}&status=pending")).await, 1);
        let page = world.get(&format!("{QUEUE}?telegram_id={CHAT}&limit=2")).await.body;
        let next = page["cursor"].as_str().expect("there is more");
        let rest = world.get(&format!("{QUEUE}?telegram_id={CHAT}&limit=2&cursor={next}")).await.body;
        assert_eq!(
            (page["queue"].as_array().map(Vec::len), rest["queue"].as_array().map(Vec::len)),
            (Some(2), Some(1))
        );
        assert_ne!(page["queue"][0]["id"], rest["queue"][0]["id"]);
        let until = world.now().plus_ms(-3_600_000);
        let earlier = world.get(&format!("/api/admin/bots/default/metrics?to={until}")).await.body;
        assert_eq!(earlier["metrics"]["downsells_scheduled_start"], 0, "{earlier}");
        let numbers = world.get("/api/admin/bots/default/metrics").await.body;
        let number = |name: &str| numbers["metrics"][name].as_u64().expect("a number");
        assert_eq!((number("downsells_scheduled_start"), number("downsells_scheduled_pix")), (6, 3));
        let of_fate = [
            "sent",
            "failed",
            "skipped_gate",
            "skipped_other",
            "canceled_paid",
            "canceled_expired",
            "canceled_other",
            "expired",
            "unknown",
            "pending",
        ]
        .map(|name| number(&format!("downsells_{name}")));
        assert_eq!(of_fate.iter().sum::<u64>(), 9, "{numbers}");
        assert_eq!(numbers["complete"], true);
        assert!(numbers["metrics"]["lateness_ms_largest"].as_i64().expect("sent") < 5_000);
        for person in 0..3 {
            let mut body = charge(&format!("tx-{person}"));
            body["telegram_id"] = json!(CHAT + person);
            gateway(world, "payment-approved", &body).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_webhook_without_a_signature_with_an_old_one_or_with_a_wrong_scope_is_refused() {
    play(async |world| {
        bot(world).await;
        world.create_key("uv_other_scope", &["downsells"]).await;
        world.create_key("uv_payments", &["payments"]).await;
        for path in
            ["pix-created", "payment-approved", "pix-expired"].map(|what| format!("/api/payment/webhook/{what}"))
        {
            let body = match path.ends_with("expired") {
                true => json!({"transaction_id": "tx-1"}),
                false => charge("tx-1"),
            };
            let before = world.rows("DownsellsTable").await;
            let post = || world.request(Method::POST, &path).json(&body);
            world.send(post()).await.assert_problem(401, "unverified", &[]);
            let text = body.to_string();
            let key = key_bytes("whsec_bG9jYWwtcGF5bWVudC1zZWNyZXQtMDAwMQ==");
            let signed_at = |at| {
                let signed = sign(&[&key], "evt_1", at, text.as_bytes());
                let request = world.request(Method::POST, &path).header("content-type", "application/json");
                let request =
                    request.header("webhook-id", signed.id).header("webhook-timestamp", signed.timestamp.to_string());
                request.header("webhook-signature", signed.signature).body(text.clone())
            };
            world.send(signed_at(world.now().plus_ms(-302_000))).await.assert_problem(401, "unverified", &[]);
            let forged = signed_at(world.now()).body(text.replace("tx-1", "tx-2"));
            world.send(forged).await.assert_problem(401, "unverified", &[]);
            let of_nobody = world.request(Method::POST, &format!("{path}?gateway=nobody")).json(&body);
            world.send(of_nobody).await.assert_problem(401, "unverified", &[]);
            world.send(post().bearer_auth("uv_nobody")).await.assert_problem(401, "invalid_key", &[]);
            world.send(post().bearer_auth("uv_other_scope")).await.assert_problem(403, "missing_scope", &[]);
            assert_eq!(world.rows("DownsellsTable").await, before, "a refused webhook wrote something");
            assert_eq!(world.send(post().bearer_auth("uv_payments")).await.status, 200);
            assert_eq!(world.send(signed_at(world.now())).await.status, 200);
        }
    })
    .await;
}

#[tokio::test]
async fn an_invalid_gateway_webhook_is_refused_by_field() {
    play(async |world| {
        bot(world).await;
        let mut unknown_bot = charge("tx-1");
        unknown_bot["bot_slug"] = json!("nobody");
        gateway(world, "pix-created", &unknown_bot).await.assert_problem(404, "not_found", &[]);
        for (field, value) in [
            ("telegram_id", json!("9 87")),
            ("transaction_id", json!("a b")),
            ("created_at", json!("yesterday")),
            ("bot_slug", json!(7)),
        ] {
            let mut body = charge("tx-1");
            body[field] = value;
            gateway(world, "pix-created", &body).await.assert_problem(422, "invalid_request", &[field]);
        }
        gateway(world, "pix-expired", &json!({})).await.assert_problem(422, "invalid_request", &["transaction_id"]);
        assert!(world.rows("DownsellsTable").await.is_empty(), "a refused webhook wrote something");
        charged(world, "tx-1").await;
        let mut anothers = charge("tx-1");
        anothers["telegram_id"] = json!(CHAT + 1);
        gateway(world, "pix-created", &anothers).await.assert_problem(409, "held_by_another", &[]);
    })
    .await;
}

#[tokio::test]
async fn a_charge_only_moves_forward_in_any_order_of_webhooks() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 30})).await;
        // Paid before created.
        assert_eq!(pays(world, "tx-1").await.body["charge"], "paid");
        let late = charged(world, "tx-1").await;
        assert_eq!((&late.body["charge"], &late.body["scheduled"]), (&json!("paid"), &json!(0)), "{}", late.body);
        // Expired before created, then paid.
        let expiry = json!({"transaction_id": "tx-2"});
        assert_eq!(gateway(world, "pix-expired", &expiry).await.body["charge"], "expired");
        assert_eq!(charged(world, "tx-2").await.body["charge"], "expired");
        assert_eq!(pays(world, "tx-2").await.body["charge"], "paid");
        assert_eq!(
            gateway(world, "pix-expired", &expiry).await.body["charge"],
            "paid",
            "a paid charge does not expire"
        );
        // Expired before it was reported, and then reported without its expiry.
        let mut over = charge("tx-9");
        over["expires_at"] = json!(world.now().plus_ms(-1_000).to_string());
        assert_eq!(gateway(world, "pix-created", &over).await.body["charge"], "expired");
        let again = charged(world, "tx-9").await;
        assert_eq!((&again.body["charge"], &again.body["scheduled"]), (&json!("expired"), &json!(0)));
        // The same webhook ten times, half of them concurrently.
        let answers = futures::future::join_all((0..5).map(|_| charged(world, "tx-3"))).await;
        let scheduled: u64 = answers.iter().filter_map(|answer| answer.body["scheduled"].as_u64()).sum();
        assert_eq!(scheduled, 1);
        for _ in 0..5 {
            assert_eq!(charged(world, "tx-3").await.body["duplicates"], 1);
        }
        let answers = futures::future::join_all((0..5).map(|_| pays(world, "tx-3"))).await;
        for answer in answers {
            assert_eq!(answer.body["canceled"], 1, "{}", answer.body);
        }
        let epochs: Vec<_> =
            world.rows("DownsellsTable").await.into_iter().filter(|row| row["sk"] == "CHARGES").collect();
        assert_eq!(epochs[0]["pay_epoch"], 3, "not one epoch per payment");
        // The payment does not cancel a charge created after it.
        assert_eq!(charged(world, "tx-4").await.body["scheduled"], 1);
        assert_eq!(pays(world, "tx-3").await.body["canceled"], 0, "it canceled the offer of the new charge");
        assert_eq!(queue(world).await.iter().filter(|offer| offer["status"] == "pending").count(), 1);
    })
    .await;
}

#[tokio::test]
async fn recovery_completes_an_interrupted_payment() {
    use umavez_local::faults::{Action, CallFault, Fault};
    use umavez_tests::{Expected, Setup};
    let expected = Expected { server_errors: 0, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "delay_minutes": 30})).await;
        charged(world, "tx-1").await;
        // The process dies after it has closed the gate and before it ends the offer, and the
        // gateway does not retry.
        let fault = CallFault {
            function: Some("webhook-intake".to_owned()),
            operation: Some("TransactWriteItems".to_owned()),
            ..CallFault::first(Action::KillAfter)
        };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        assert_eq!(gateway(world, "payment-approved", &charge("tx-1")).await.status, 502);
        assert_eq!(offer(world).await["status"], "pending");
        seconds(world, 70).await;
        world.tick("Recovery").await;
        let offer = offer(world).await;
        assert_eq!((&offer["status"], &offer["cancel_reason"]), (&json!("canceled"), &json!("paid")));
    })
    .await;
}

#[tokio::test]
async fn the_console_page_needs_no_key_but_its_requests_do() {
    play(async |world| {
        let page = world.send(world.request(Method::GET, "/console")).await;
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        let policy = page.header("content-security-policy").unwrap_or_default();
        let parts = [r#"name="after_start" type="checkbox""#, r#"name="after_pix" type="checkbox""#];
        for part in parts.into_iter().chain(["Só envia se houver PIX não pago", "Testar agora"]) {
            assert!(page.body.as_str().is_some_and(|page| page.contains(part)), "the page does not contain {part}");
        }
        assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
        world.send(world.request(Method::GET, BOTS)).await.assert_problem(401, "missing_key", &[]);
        world.create_key("uv_reader", &["downsells:read"]).await;
        let read = world.send(world.request(Method::GET, BOTS).bearer_auth("uv_reader")).await;
        assert_eq!(read.status, 200);
        let write = world.request(Method::POST, BOTS).bearer_auth("uv_reader").json(&json!({"slug": "x"}));
        world.send(write).await.assert_problem(403, "missing_scope", &[]);
    })
    .await;
}
