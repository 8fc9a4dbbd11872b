//! Payment webhooks as real gateways send them, and charges that follow each other: a payment known
//! to the gateway counts, and an offer whose charge expired goes to the next one.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::downsells::{CancelReason, ContactId, OfferEnd, OfferId};
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_platform::downsells::Downsells;
use umavez_platform::invocation::Invocation;
use umavez_platform::senders::Bots;
use umavez_tests::{Answer, KEY, World, play, play_with};

use crate::downsells::{
    CHAT, bot, charge, charged, downsell, gateway, offer, offers, pays, put, queue, seconds, starts, withdrawn,
};
use crate::outbound::sending;

/// Returns a charge with these fields added or replaced; null fields are left out.
fn with(transaction: &str, more: &Value) -> Value {
    let mut body = charge(transaction);
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    fields.retain(|_, value| !value.is_null());
    body
}

fn after_pix(delay_minutes: u32) -> Value {
    json!({"after_start": false, "after_pix": true, "delay_minutes": delay_minutes})
}

async fn expires(world: &World, transaction: &str) -> Value {
    let answer = gateway(world, "pix-expired", &json!({"transaction_id": transaction})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// Reports an event with an API key, on behalf of a gateway.
async fn reports(world: &World, what: &str, name: &str, body: &Value) -> Answer {
    let path = format!("/api/payment/webhook/{what}?gateway={name}");
    world.send(world.request(Method::POST, &path).bearer_auth(KEY).json(body)).await
}

#[tokio::test]
async fn two_gateways_may_use_the_same_transaction_id() {
    play_with(sending(0), async |world| {
        bot(world).await;
        downsell(world, &after_pix(20)).await;
        let other = with("1", &json!({"telegram_id": CHAT + 1}));
        for (name, body) in [("one", charge("1")), ("other", other)] {
            let made = reports(world, "pix-created", name, &body).await;
            assert_eq!((made.status, &made.body["scheduled"]), (200, &json!(1)), "{name}: {}", made.body);
        }
        let paid = reports(world, "payment-approved", "other", &json!({"transaction_id": 1})).await;
        assert_eq!((&paid.body["canceled"], &paid.body["owner_known"]), (&json!(1), &json!(true)), "{}", paid.body);
        let listed = queue(world).await;
        let shown: Vec<_> = listed
            .iter()
            .map(|offer| (&offer["gateway"], &offer["transaction_id"], &offer["telegram_id"], &offer["status"]))
            .collect();
        assert!(shown.contains(&(&json!("one"), &json!("1"), &json!(CHAT), &json!("pending"))), "{shown:?}");
        assert!(shown.contains(&(&json!("other"), &json!("1"), &json!(CHAT + 1), &json!("canceled"))), "{shown:?}");
        let expired = reports(world, "pix-expired", "one", &json!({"transaction_id": "1"})).await;
        assert_eq!(expired.body["canceled"], 1, "{}", expired.body);
        reports(world, "pix-expired", "two%20words", &json!({"transaction_id": "1"})).await.assert_problem(
            422,
            "invalid_request",
            &["gateway"],
        );
    })
    .await;
}

#[tokio::test]
async fn one_charge_too_many_is_refused_and_cancels_no_offer_of_another() {
    play_with(sending(0), async |world| {
        bot(world).await;
        downsell(world, &after_pix(20)).await;
        let short = with("first", &json!({"expires_at": world.now().plus_ms(3_600_000)}));
        assert_eq!(gateway(world, "pix-created", &short).await.body["scheduled"], 1);
        for number in 2..=50 {
            charged(world, &format!("tx-{number}")).await;
        }
        gateway(world, "pix-created", &charge("tx-51")).await.assert_problem(409, "too_many_charges", &[]);
        let first = queue(world).await.remove(0);
        assert_eq!((&first["transaction_id"], &first["status"]), (&json!("first"), &json!("pending")), "{first}");
        // As soon as one of them is over, there is room.
        expires(world, "first").await;
        assert_eq!(gateway(world, "pix-created", &charge("tx-51")).await.status, 200);
        assert_eq!(pays(world, "tx-51").await.body["canceled"], 1);
    })
    .await;
}

/// Bodies of Mercado Pago, Asaas, Efí and hand-written flows, after their ids were mapped.
#[tokio::test]
async fn a_payment_counts_whatever_other_fields_the_gateway_sends() {
    play(async |world| {
        bot(world).await;
        downsell(world, &after_pix(1)).await;
        let said = [
            json!({"amount": 1990, "status": "approved", "currency": "BRL"}),
            json!({"action": "payment.updated", "live_mode": true, "data": {"id": "123"}, "date_created": "2026-01-01"}),
            json!({"event": "PAYMENT_RECEIVED", "payment": {"value": 19.9, "billingType": "PIX"}, "netValue": null}),
            json!({"pix": [{"endToEndId": "E1", "valor": "19.90"}], "horario": "2026-01-01T00:00:00Z"}),
            json!({"telegram_id": CHAT.to_string()}),
            json!({"correlation_id": "not usable: spaces"}),
        ];
        for (n, more) in said.iter().enumerate() {
            let transaction = format!("tx-{n}");
            let mut body = with(&transaction, more);
            body.as_object_mut().expect("an object").remove("correlation_id");
            let made = gateway(world, "pix-created", &body).await;
            assert_eq!((made.status, &made.body["scheduled"]), (200, &json!(1)), "{more}: {}", made.body);
            let answer = gateway(world, "payment-approved", &with(&transaction, more)).await;
            assert_eq!((answer.status, &answer.body), (200, &withdrawn("paid", [1, 0, 0, 0])), "{more}");
        }
        seconds(world, 70).await;
        assert_eq!(offers(world), 0);
    })
    .await;
}

#[tokio::test]
async fn a_transaction_that_is_a_number_is_the_same_as_its_digits() {
    play(async |world| {
        bot(world).await;
        downsell(world, &after_pix(1)).await;
        charged(world, "1320019").await;
        let answer = gateway(world, "payment-approved", &with("", &json!({"transaction_id": 1_320_019}))).await;
        assert_eq!(answer.body, withdrawn("paid", [1, 0, 0, 0]));
        let expired = json!({"transaction_id": 1_320_019, "reason": "timeout"});
        assert_eq!(gateway(world, "pix-expired", &expired).await.body["charge"], "paid");
        seconds(world, 70).await;
        assert_eq!(offers(world), 0);
    })
    .await;
}

/// The stored transaction identifies the contact whose offers are canceled. The answer names the
/// fields of the body that differ, but not their values.
#[tokio::test]
async fn a_payment_of_a_known_transaction_counts_whatever_contact_it_names() {
    play(async |world| {
        bot(world).await;
        downsell(world, &after_pix(1)).await;
        let said = [
            (json!({"telegram_id": CHAT + 1}), json!(["telegram_id"])),
            (json!({"telegram_id": "ana@example.com"}), json!(["telegram_id"])),
            (json!({"telegram_id": null}), json!([])),
            (json!({"bot_slug": "another-bot"}), json!(["bot_slug"])),
            (json!({"bot_slug": ["x"], "telegram_id": 1.5}), json!(["bot_slug", "telegram_id"])),
            (json!({"bot_slug": null, "telegram_id": null}), json!([])),
        ];
        for (n, (more, differs)) in said.iter().enumerate() {
            let transaction = format!("tx-{n}");
            assert_eq!(charged(world, &transaction).await.body["scheduled"], 1);
            let answer = gateway(world, "payment-approved", &with(&transaction, more)).await;
            let mut expected = withdrawn("paid", [1, 0, 0, 0]);
            expected["differs"] = differs.clone();
            assert_eq!((answer.status, &answer.body), (200, &expected), "{more}");
        }
        seconds(world, 70).await;
        assert_eq!(offers(world), 0);
        let named: Vec<_> = world.events("PAYMENT_OWNER_DIFFERS").iter().map(|line| line["fields"].clone()).collect();
        assert_eq!(named, ["telegram_id", "telegram_id", "bot_slug", "bot_slug,telegram_id"]);
        // The same applies to an expiry. A charge belongs to one contact.
        charged(world, "tx-9").await;
        let answer = gateway(world, "pix-expired", &with("tx-9", &json!({"telegram_id": CHAT + 1}))).await;
        assert_eq!((&answer.body["canceled"], &answer.body["differs"]), (&json!(1), &json!(["telegram_id"])));
        let anothers = with("tx-9", &json!({"telegram_id": CHAT + 1}));
        gateway(world, "pix-created", &anothers).await.assert_problem(409, "held_by_another", &[]);
        seconds(world, 70).await;
        assert_eq!(offers(world), 0);
    })
    .await;
}

#[tokio::test]
async fn a_payment_without_a_known_contact_is_kept_until_the_contact_is_known() {
    play(async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": true, "after_pix": true})).await;
        starts(world, CHAT, 1).await;
        let bodies = [
            json!({"bot_slug": null, "telegram_id": null}),
            json!({"telegram_id": null}),
            json!({"telegram_id": "ana"}),
            json!({"bot_slug": "no-such-bot"}),
        ];
        for (n, more) in bodies.iter().enumerate() {
            let answer = gateway(world, "payment-approved", &with(&format!("tx-{n}"), more)).await;
            assert_eq!((answer.status, &answer.body["charge"]), (200, &json!("paid")), "{more}: {}", answer.body);
            assert_eq!((&answer.body["owner_known"], &answer.body["canceled"]), (&json!(false), &json!(0)), "{more}");
        }
        assert_eq!(world.events("PAYMENT_OWNER_UNKNOWN").len(), bodies.len());
        assert!(!world.metrics("PaymentsOwnerUnknown").is_empty(), "an alarm watches this metric");
        assert_eq!(offer(world).await["status"], "pending", "the contact of the payment is not known");
        let late = charged(world, "tx-0").await;
        assert_eq!((&late.body["charge"], &late.body["scheduled"]), (&json!("paid"), &json!(0)), "{}", late.body);
        let ended = offer(world).await;
        assert_eq!((&ended["status"], &ended["cancel_reason"]), (&json!("canceled"), &json!("paid")), "{ended}");
        // The payment may name its contact later, and an expiry does not change a paid charge.
        starts(world, CHAT, 2).await;
        assert_eq!(expires(world, "tx-1").await["charge"], "paid");
        assert_eq!(pays(world, "tx-1").await.body, withdrawn("paid", [1, 0, 0, 0]));
        assert_eq!(pays(world, "tx-1").await.body, withdrawn("paid", [1, 0, 0, 0]), "redelivered");
        seconds(world, 70).await;
        assert_eq!(offers(world), 0);
    })
    .await;
}

/// Webhooks arrive in any order: the charge names its contact after it was reported as expired, and
/// is then paid.
#[tokio::test]
async fn a_charge_reported_after_its_expiry_still_identifies_the_contact_of_its_payment() {
    play(async |world| {
        bot(world).await;
        downsell(world, &after_pix(1)).await;
        expires(world, "tx-1").await;
        let late = gateway(world, "pix-created", &charge("tx-1")).await;
        assert_eq!((&late.body["charge"], &late.body["scheduled"]), (&json!("expired"), &json!(0)), "{}", late.body);
        charged(world, "tx-2").await;
        let paid = gateway(world, "payment-approved", &json!({"transaction_id": "tx-1"})).await;
        assert_eq!(paid.body, withdrawn("paid", [1, 0, 0, 0]));
        seconds(world, 70).await;
        assert_eq!(offers(world), 0, "a person who paid gets no offer");
    })
    .await;
}

#[tokio::test]
async fn a_payment_without_its_transaction_is_refused_and_leaves_nothing() {
    play(async |world| {
        bot(world).await;
        let unusable = [json!(null), json!(""), json!("a b"), json!(1.5), json!({"id": 1}), json!("x".repeat(129))];
        for (what, value) in
            ["payment-approved", "pix-expired"].into_iter().flat_map(|what| unusable.iter().map(move |v| (what, v)))
        {
            let body = with("", &json!({ "transaction_id": value }));
            let answer = gateway(world, what, &body).await;
            answer.assert_problem(422, "invalid_request", &["transaction_id"]);
        }
        assert!(world.rows("DownsellsTable").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_offer_whose_charge_expired_goes_to_the_newest_unpaid_charge() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &after_pix(10)).await;
        charged(world, "tx-1").await;
        seconds(world, 300).await;
        for transaction in ["tx-2", "tx-3"] {
            assert_eq!(charged(world, transaction).await.body["already_pending"], 1);
            seconds(world, 1).await;
        }
        assert_eq!(expires(world, "tx-1").await, withdrawn("expired", [0, 0, 0, 1]));
        assert_eq!(expires(world, "tx-1").await, withdrawn("expired", [0, 0, 0, 1]), "redelivered");
        let passed = offer(world).await;
        assert_eq!((&passed["status"], &passed["transaction_id"]), (&json!("pending"), &json!("tx-3")), "{passed}");
        assert_eq!(world.events("DOWNSELL_PASSED_ON").len(), 1);
        assert!(!world.metrics("DownsellsPassedOn").is_empty());
        seconds(world, 320).await;
        assert_eq!(offers(world), 0, "the delay counts from the newest charge");
        // The newest charge expires before the offer is due, and there is one more.
        assert_eq!(expires(world, "tx-3").await, withdrawn("expired", [0, 0, 0, 1]));
        assert_eq!(
            expires(world, "tx-1").await,
            withdrawn("expired", [0, 0, 0, 1]),
            "the answer for the first charge is the same"
        );
        seconds(world, 300).await;
        assert_eq!(offers(world), 1);
        let sent = offer(world).await;
        assert_eq!((&sent["status"], &sent["transaction_id"]), (&json!("sent"), &json!("tx-2")), "{sent}");
        assert_eq!(expires(world, "tx-2").await, withdrawn("expired", [0, 0, 1, 0]));
    })
    .await;
}

#[tokio::test]
async fn the_payment_of_any_charge_ends_an_offer_that_was_passed_on() {
    for paid in ["tx-1", "tx-2", "tx-3"] {
        play(async |world| {
            bot(world).await;
            downsell(world, &after_pix(10)).await;
            for transaction in ["tx-1", "tx-2", "tx-3"] {
                charged(world, transaction).await;
            }
            assert_eq!(expires(world, "tx-1").await["passed_on"], 1);
            assert_eq!(pays(world, paid).await.body, withdrawn("paid", [1, 0, 0, 0]), "{paid}");
            assert_eq!(expires(world, "tx-2").await["passed_on"], 0, "{paid}");
            seconds(world, 700).await;
            assert_eq!(offers(world), 0);
            assert_eq!(offer(world).await["cancel_reason"], "paid");
        })
        .await;
    }
}

#[tokio::test]
async fn a_charge_that_expires_without_a_webhook_passes_its_offer_on_too() {
    for swept in [true, false] {
        play_with(sending(1), async |world| {
            bot(world).await;
            downsell(world, &after_pix(10)).await;
            let short = with("tx-1", &json!({"expires_at": world.now().plus_ms(300_000).to_string()}));
            gateway(world, "pix-created", &short).await;
            seconds(world, 240).await;
            assert_eq!(charged(world, "tx-2").await.body["already_pending"], 1);
            if swept {
                seconds(world, 70).await;
                world.tick("Recovery").await;
                assert_eq!(offer(world).await["transaction_id"], "tx-2");
                seconds(world, 300).await;
            } else {
                // Only the sender checks the charge.
                seconds(world, 370).await;
                assert_eq!(offer(world).await["transaction_id"], "tx-2");
            }
            assert_eq!(offers(world), 0, "the delay counts from the second charge");
            seconds(world, 300).await;
            let sent = offer(world).await;
            assert_eq!((offers(world), &sent["status"]), (1, &json!("sent")), "{sent}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_charge_created_after_the_last_one_expired_gets_its_own_offer() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &json!({"after_start": false, "after_pix": true, "rearm": "once_ever"})).await;
        charged(world, "tx-1").await;
        assert_eq!(expires(world, "tx-1").await, withdrawn("expired", [1, 0, 0, 0]));
        assert_eq!(charged(world, "tx-2").await.body["scheduled"], 1, "an unsent offer does not count");
        seconds(world, 70).await;
        assert_eq!(offers(world), 1);
        let of_second = &queue(world).await[0];
        assert_eq!((&of_second["status"], &of_second["transaction_id"]), (&json!("sent"), &json!("tx-2")));
    })
    .await;
}

#[tokio::test]
async fn an_offer_is_not_passed_on_if_its_downsell_is_no_longer_for_charges() {
    for change in [json!({"after_pix": false}), json!({"active": false})] {
        play(async |world| {
            bot(world).await;
            let id = downsell(world, &after_pix(10)).await;
            charged(world, "tx-1").await;
            charged(world, "tx-2").await;
            put(world, &format!("/api/admin/bots/default/downsells/{id}"), &change).await;
            assert_eq!(expires(world, "tx-1").await, withdrawn("expired", [1, 0, 0, 0]), "{change}");
            seconds(world, 700).await;
        })
        .await;
    }
}

/// The second charge finds the offer of the first one pending. The first charge expires, and the
/// offer ends, before the second charge is written.
#[tokio::test]
async fn a_charge_created_while_the_last_one_expires_gets_its_offer() {
    play_with(sending(1), async |world| {
        bot(world).await;
        downsell(world, &after_pix(10)).await;
        let short = with("tx-1", &json!({"expires_at": world.now().plus_ms(60_000).to_string()}));
        gateway(world, "pix-created", &short).await;
        let output = |name: &str| world.stack.output(name).expect("an output").to_owned();
        let downsells = Downsells {
            store: world.store.clone(),
            table: output("DownsellsTable"),
            bots: Bots { store: world.store.clone(), table: output("ConfigTable") },
            outbound_table: output("OutboundTable"),
            keep_days: 90,
        };
        let (contact, id) = (ContactId::of("default", CHAT), offer(world).await["id"].clone());
        let id = OfferId::parse(id.as_str().expect("an id")).expect("an id of an offer");
        let held = CallFault {
            function: Some("webhook-intake".to_owned()),
            operation: Some("TransactWriteItems".to_owned()),
            delay_ms: 4_000,
            ..CallFault::first(Action::DelayBefore)
        };
        world.stack.add_fault(Fault::Call(held)).await.expect("armed");
        let runs_out = async {
            while !world.stack.faults().waiting().is_empty() {
                world.request_health().await;
            }
            // A sender whose clock is past the expiry of the first charge.
            let later = Invocation::new("late", world.now().plus_ms(70_000), Duration::from_secs(30));
            let (row, charges) = downsells.offer_and_charges(&later, &contact, &id).await.expect("a store");
            let end = OfferEnd::Canceled(CancelReason::Expired);
            downsells.end(&later, &row.expect("an offer"), charges.as_ref(), end).await.expect("a store")
        };
        let (second, ended) = futures::future::join(charged(world, "tx-2"), runs_out).await;
        assert!(ended.is_some(), "no other charge was known");
        assert_eq!((&second.body["scheduled"], &second.body["already_pending"]), (&json!(1), &json!(0)));
        seconds(world, 610).await;
        assert_eq!(offers(world), 1);
    })
    .await;
}

/// The sender has read the charges and is about to claim. The payment is written, and its process
/// dies before it ends the offer. Only the claim's own check of the charges is left.
#[tokio::test]
async fn a_written_payment_refuses_a_claim_that_was_decided_before_it() {
    play(async |world| {
        bot(world).await;
        downsell(world, &after_pix(1)).await;
        charged(world, "tx-1").await;
        let of = |function: &str, action| CallFault {
            function: Some(function.to_owned()),
            operation: Some("TransactWriteItems".to_owned()),
            delay_ms: 2_000,
            ..CallFault::first(action)
        };
        world.stack.add_fault(Fault::Call(of("outbound-sender", Action::DelayBefore))).await.expect("armed");
        let pay = async {
            while !world.stack.faults().waiting().is_empty() {
                world.request_health().await;
            }
            let dies = of("webhook-intake", Action::KillAfter);
            world.stack.add_fault(Fault::Call(dies)).await.expect("armed");
            gateway(world, "payment-approved", &charge("tx-1")).await.status
        };
        let (_, status) = futures::future::join(seconds(world, 70), pay).await;
        assert_eq!(status, 502, "it died before it answered");
        world.drain().await;
        assert_eq!(offers(world), 0);
        let ended = offer(world).await;
        assert_eq!((&ended["status"], &ended["cancel_reason"]), (&json!("canceled"), &json!("paid")), "{ended}");
        assert_eq!(ended["attempts"], 0, "an attempt was made");
    })
    .await;
}
