//! A refusal by SES of an account or an identity pauses the mailing with its reason, and uses up no
//! attempt of its recipients.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_domain::delivery::MAX_ATTEMPTS;
use umavez_local::faults::{Action, CallFault, Scripted};
use umavez_tests::{World, play_with};

use crate::mailings::{content_without_columns, entries, mailing, order, recipients, sending, upload};
use crate::mailings_sending::{at_ses, file};
use crate::outbound::{accept, codes, message};

/// Makes SES answer every call with this error until the faults are cleared.
async fn refuse_all(world: &World, kind: &str, text: &str) {
    let headers = [("x-amzn-errortype".to_owned(), kind.to_owned())].into();
    let answer = Scripted { status: 400, headers, body: json!({"message": text}) };
    at_ses(world, CallFault { answer: Some(answer), times: 10_000, ..CallFault::first(Action::Answer) }).await;
}

const CAUSES: [(&str, &str, &str); 7] = [
    ("SendingPausedException", "no", "sending_paused"),
    ("AccountSuspendedException", "no", "account_suspended"),
    ("MailFromDomainNotVerifiedException", "no", "mail_from_not_verified"),
    ("NotFoundException", "no", "configuration_missing"),
    ("AccessDeniedException", "no", "not_authorized"),
    ("MessageRejected", "Email address is not verified.", "identity_not_verified"),
    (
        "MessageRejected",
        "Email address is not verified. The following identities failed the check in region X: user0@example.com",
        "account_in_sandbox",
    ),
];

#[tokio::test]
async fn an_account_refusal_by_ses_pauses_the_mailing_with_its_reason_and_fails_no_recipient() {
    play_with(sending(CAUSES.len()), async |world| {
        for (n, (kind, text, why)) in CAUSES.into_iter().enumerate() {
            refuse_all(world, kind, text).await;
            let id = upload(world, &format!("{n}.csv"), &file(1), &content_without_columns()).await;
            world.drain().await;
            let shown = mailing(world, &id).await;
            assert_eq!((&shown["status"], &shown["paused_for"]), (&json!("PAUSED"), &json!(why)), "{shown}");
            assert_eq!((&shown["counts"]["pending"], &shown["counts"]["failed"]), (&json!(1), &json!(0)), "{shown}");
            assert_eq!(entries(world, &id, "status=PENDING").await[0]["reason"], why);
            let held = world.events("MAILING_HELD");
            assert_eq!((&held[n]["mailing_id"], &held[n]["code"]), (&json!(id), &json!(why)));
            world.stack.clear_faults();
            order(world, &id, "resume").await;
            world.drain().await;
            let shown = mailing(world, &id).await;
            assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
            assert!(shown["paused_for"].is_null(), "{shown}");
        }
        assert_eq!(world.metrics("MailingsHeld").len(), CAUSES.len());
    })
    .await;
}

#[tokio::test]
async fn a_mailing_that_is_paused_repeatedly_uses_up_no_attempt_and_calls_few_recipients() {
    play_with(sending(60), async |world| {
        refuse_all(world, "SendingPausedException", "no").await;
        let id = upload(world, "a.csv", &file(60), &content_without_columns()).await;
        world.drain().await;
        let tried = |entries: &[Value]| entries.iter().filter(|entry| entry["attempts"] != 0).count();
        assert!((1..=10).contains(&tried(&entries(world, &id, "").await)), "too many recipients were tried");
        for _ in 0..=MAX_ATTEMPTS {
            assert_eq!(order(world, &id, "resume").await.status, 200);
            world.drain().await;
            assert_eq!(mailing(world, &id).await["paused_for"], "sending_paused");
        }
        world.stack.clear_faults();
        order(world, &id, "resume").await;
        world.drain().await;
        world.advance(Duration::from_secs(60)).await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("COMPLETED"), &json!(60)), "{shown}");
        assert!(recipients(world).values().all(|times| *times == 1));
    })
    .await;
}

#[tokio::test]
async fn a_single_mail_waits_with_its_reason_while_the_account_is_paused() {
    play_with(sending(1), async |world| {
        refuse_all(world, "SendingPausedException", "no").await;
        let content = json!({"from": "loja@example.com", "subject": "Oi", "text": "Oi"});
        let body = json!({"channel": "email", "to": "ana@example.com", "content": content});
        let id = accept(world, "a", &body).await;
        world.drain().await;
        for _ in 0..=MAX_ATTEMPTS {
            let shown = message(world, &id).await;
            assert_eq!(
                (&shown["status"], &shown["reason_code"]),
                (&json!("QUEUED"), &json!("sending_paused")),
                "{shown}"
            );
            world.advance(Duration::from_secs(301)).await;
        }
        world.stack.clear_faults();
        world.advance(Duration::from_secs(301)).await;
        let shown = message(world, &id).await;
        assert_eq!(shown["status"], "SENT", "{shown}");
        assert!(codes(&shown).contains(&"throttled"), "{shown}");
        let held = world.events("OUTBOUND_HELD");
        assert!(!held.is_empty());
        assert!(held.iter().all(|line| line["code"] == "sending_paused" && line["message_id"] == json!(id)));
    })
    .await;
}
