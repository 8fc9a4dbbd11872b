//! Mailings while they are sent: pause, cancel, failures, crashes, two at once, and the unsubscribe
//! link.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, DeliveryAction, DeliveryFault, Fault, Scripted};
use umavez_platform::aws::Aws;
use umavez_tests::{Answer, Expected, KEY, Setup, World, play_with};

use crate::mailings::{
    content, content_without_columns, entries, mailing, order, recipients, sending, upload, upload_to,
};

pub fn rate(per_second: u32, sent: usize) -> Setup {
    let rates = format!(r#"{{"email": {{"sender": "{per_second}/1s"}}}}"#);
    Setup::default().parameter("SendRates", &rates).expecting(Expected { sent, ..Expected::default() })
}

pub fn file(count: usize) -> String {
    let rows: String = (0..count).map(|n| format!("user{n}@example.com\n")).collect();
    format!("email\n{rows}")
}

pub fn mails(world: &World) -> usize {
    world.stack.catcher().sent(Some("email"), None).len()
}

/// Waits until `count` mails were sent. It polls with requests, so that nothing waits by the clock.
pub async fn until_sent(world: &World, count: usize) {
    while mails(world) < count {
        assert_eq!(world.request_health().await, 200);
    }
}

pub async fn at_ses(world: &World, fault: CallFault) {
    let fault = CallFault { service: Some("ses".to_owned()), ..fault };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

fn refused(status: u16, kind: &str) -> CallFault {
    let headers = [("x-amzn-errortype".to_owned(), kind.to_owned())].into();
    let answer = Scripted { status, headers, body: json!({"message": "no"}) };
    CallFault { answer: Some(answer), ..CallFault::first(Action::Answer) }
}

pub async fn status(world: &World, id: &str) -> String {
    mailing(world, id).await["status"].as_str().expect("a status").to_owned()
}

#[tokio::test]
async fn a_pause_takes_effect_after_a_sub_batch_and_a_resume_continues() {
    play_with(rate(60, 150), async |world| {
        let id = upload(world, "a.csv", &file(150), &content_without_columns()).await;
        until_sent(world, 20).await;
        let paused = order(world, &id, "pause").await;
        assert_eq!((paused.status, &paused.body["status"]), (200, &json!("PAUSED")));
        let by_then = mails(world);
        world.drain().await;
        let after = mails(world);
        assert!(after < by_then + 50, "{by_then} mails at the pause, {after} at the end");
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("PAUSED"), &json!(after)), "{shown}");
        assert_eq!(order(world, &id, "pause").await.status, 200, "a second pause is accepted");
        world.tick("Recovery").await;
        world.advance(Duration::from_secs(3_600)).await;
        world.tick("Recovery").await;
        assert_eq!(mails(world), after, "mails were sent during the pause");
        assert_eq!(order(world, &id, "resume").await.body["status"], "QUEUED");
        world.drain().await;
        assert_eq!(status(world, &id).await, "COMPLETED");
        assert!(recipients(world).len() == 150 && recipients(world).values().all(|times| *times == 1));
    })
    .await;
}

#[tokio::test]
async fn a_cancel_cancels_every_open_entry_and_is_final() {
    // Fewer than two sub-batches are in progress by then.
    let setup = rate(60, 0);
    let world = World::start(setup).await;
    let id = upload(&world, "a.csv", &file(200), &content_without_columns()).await;
    until_sent(&world, 20).await;
    assert_eq!(order(&world, &id, "cancel").await.body["status"], "CANCELED");
    let by_then = mails(&world);
    world.drain().await;
    let sent = mails(&world);
    assert!(sent < by_then + 50, "{by_then} mails at the cancel, {sent} at the end");
    let shown = mailing(&world, &id).await;
    assert_eq!(shown["status"], "CANCELED", "{shown}");
    let counts = &shown["counts"];
    assert_eq!(
        (counts["sent"].as_u64(), counts["canceled"].as_u64()),
        (Some(sent as u64), Some(200 - sent as u64)),
        "{shown}"
    );
    for what in ["resume", "pause", "retry-failed"] {
        order(&world, &id, what).await.assert_problem(409, "wrong_state", &[]);
    }
    assert_eq!(order(&world, &id, "cancel").await.status, 200);
    // A duplicate delivery of a leased shard is redelivered after the lease.
    world.advance(Duration::from_secs(60)).await;
    world.audit(Expected { sent, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
}

#[tokio::test]
async fn a_transient_failure_is_retried_and_a_rejected_mail_fails() {
    play_with(sending(3), async |world| {
        at_ses(world, refused(429, "TooManyRequestsException")).await;
        let id = upload(world, "a.csv", &file(1), &content_without_columns()).await;
        world.drain().await;
        assert_eq!(status(world, &id).await, "PROCESSING");
        world.advance(Duration::from_secs(5)).await;
        let shown = &entries(world, &id, "").await[0];
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("SENT"), &json!(2)), "{shown}");

        at_ses(world, refused(400, "MessageRejected")).await;
        let id = upload(world, "b.csv", "email\nx@example.com\ny@example.com\n", &content_without_columns()).await;
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["failed"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
        let failed = entries(world, &id, "status=FAILED").await;
        assert_eq!(failed[0]["reason"], "message_rejected");
        let retried = world.post_with_key("r1", &format!("/mailings/{id}/retry-failed"), &json!({})).await;
        assert_eq!((retried.status, &retried.body["retrying"]), (202, &json!(1)), "{}", retried.body);
        world.drain().await;
        assert_eq!(status(world, &id).await, "COMPLETED");
        let again = &entries(world, &id, "").await;
        assert!(again.iter().all(|entry| entry["status"] == "SENT"), "{again:?}");
        let replayed = world.post_with_key("r1", &format!("/mailings/{id}/retry-failed"), &json!({})).await;
        assert_eq!(replayed.body["status"], "COMPLETED", "the repeated order is the same order");
        world.drain().await;
        assert!(recipients(world).values().all(|times| *times == 1));
        let other = json!({"include_unknown": true});
        let reused = world.post_with_key("r1", &format!("/mailings/{id}/retry-failed"), &other).await;
        reused.assert_problem(422, "idempotency_key_reused", &[]);
    })
    .await;
}

#[tokio::test]
async fn an_import_that_runs_out_of_time_continues_in_another_turn() {
    // With so little time an importer enqueues the rest after each checkpoint.
    let template = Setup::default().template.replace("Timeout: 900", "Timeout: 20");
    play_with(Setup { template, ..sending(0) }, async |world| {
        let csv = file(4_500);
        let body = json!({"filename": "long.csv"});
        let asked = ask_upload(world, &body).await;
        assert_eq!(world.post_form(&asked.body["upload"], csv.as_bytes()).await, 204);
        world.drain().await;
        let shown = mailing(world, &asked.text("/mailingId")).await;
        assert_eq!(
            (&shown["import"]["state"], &shown["import"]["recipients"]),
            (&json!("DONE"), &json!(4_500)),
            "{shown}"
        );
        assert_eq!(shown["counts"]["pending"], 4_500, "{shown}");
        let handed = world.events("RECORD_HANDLED").iter().filter(|line| line["outcome"] == "handed_over").count();
        assert_eq!(handed, 2, "not two of three turns enqueued the rest");
        // The hash of the file was not announced: the importer computed it, over all three turns.
        let hash = umavez_domain::mailings::content_hash(csv.as_bytes());
        let same = ask_upload(world, &json!({"filename": "long.csv", "mode": "strict", "sha256": hash})).await;
        assert_eq!((same.status, &same.body["contentMatches"]), (200, &json!(true)), "{}", same.body);
        let other = json!({"filename": "long.csv", "mode": "strict", "sha256": "0".repeat(64)});
        ask_upload(world, &other).await.assert_problem(409, "name_taken", &[]);
    })
    .await;
}

#[tokio::test]
async fn a_mailing_that_is_canceled_during_its_import_cancels_all_of_its_entries() {
    play_with(sending(0), async |world| {
        // The importer dies in its second window, of two thousand lines each.
        let killed = CallFault {
            function: Some("mailing-importer".to_owned()),
            operation: Some("BatchExecuteStatement".to_owned()),
            nth: 120,
            ..CallFault::first(Action::KillBefore)
        };
        world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
        let id = upload(world, "long.csv", &file(9_000), &content_without_columns()).await;
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!(
            (&shown["import"]["state"], &shown["import"]["rows"]),
            (&json!("RUNNING"), &json!(2_000)),
            "{shown}"
        );
        assert_eq!(order(world, &id, "cancel").await.body["status"], "CANCELED");
        world.drain().await;
        // The lease of the dead importer expires.
        world.advance(Duration::from_secs(70)).await;
        world.advance(Duration::from_secs(5_500)).await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["import"]["state"]), (&json!("CANCELED"), &json!("DONE")), "{shown}");
        assert_eq!((&shown["counts"]["canceled"], &shown["total"]), (&json!(4_000), &json!(4_000)), "{shown}");
        assert!(entries(world, &id, "status=PENDING").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_mail_whose_answer_was_lost_is_unknown_until_its_events_arrive() {
    play_with(sending(2), async |world| {
        world.stack.email_events().switch(false);
        at_ses(world, CallFault::first(Action::DropReply)).await;
        let id = upload(world, "a.csv", &file(2), &content_without_columns()).await;
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["unknown"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
        assert_eq!(shown["counts"]["sent"], 1);
        let nothing = order(world, &id, "retry-failed").await;
        assert_eq!(
            (nothing.status, &nothing.body["retrying"]),
            (202, &json!(0)),
            "an unknown mail was retried as failed"
        );
        let unknown = entries(world, &id, "status=UNKNOWN").await;
        let entry = unknown[0]["entry_id"].as_str().expect("an id");
        for _ in 0..2 {
            ses_reports(world, "Delivery", entry, 1, &unknown[0]["email"]).await;
        }
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["counts"]["sent"], &shown["counts"]["unknown"]), (&json!(2), &json!(0)), "{shown}");
        assert_eq!((&shown["status"], &shown["total"]), (&json!("COMPLETED"), &json!(2)));
    })
    .await;
}

/// Delivers an event of an entry's attempt, as the event bus does.
async fn ses_reports(world: &World, kind: &str, entry: &str, attempt: u32, to: &Value) {
    let at = world.now().to_string();
    let tags =
        json!({"message_id": [entry], "attempt": [attempt.to_string()], "ses:configuration-set": ["umavez-dev"]});
    let mail = json!({"timestamp": at, "messageId": "0100-x", "destination": [to], "tags": tags});
    let detail = json!({"eventType": kind, "mail": mail, kind.to_lowercase(): {"timestamp": at}});
    let body = json!({"source": "aws.ses", "detail": detail}).to_string();
    let event = json!({"Records": [{"messageId": "1", "body": body, "receiptHandle": "r"}]});
    let answer = world.deliver("delivery-events", &event).await;
    assert_eq!(answer["batchItemFailures"], json!([]), "{answer}");
}

#[tokio::test]
async fn an_unknown_mail_is_resent_only_by_order_and_never_settled_as_not_sent() {
    play_with(sending(1), async |world| {
        world.stack.email_events().switch(false);
        at_ses(world, CallFault::first(Action::DropReply)).await;
        let id = upload(world, "a.csv", &file(1), &content_without_columns()).await;
        world.drain().await;
        world.tick("Recovery").await;
        assert_eq!(mails(world), 1, "the unknown mail was sent again");
        at_ses(world, refused(400, "MessageRejected")).await;
        let again = world.post(&format!("/mailings/{id}/retry-failed"), &json!({"include_unknown": true})).await;
        assert_eq!(again.body["retrying"], 1);
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["unknown"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
        let shown = &entries(world, &id, "").await[0];
        assert_eq!(
            (&shown["attempts"], &shown["status"]),
            (&json!(2), &json!("UNKNOWN")),
            "the first attempt may have been sent: {shown}"
        );
        let entry = shown["entry_id"].as_str().expect("an id");
        ses_reports(world, "Send", entry, 1, &shown["email"]).await;
        assert_eq!(entries(world, &id, "").await[0]["status"], "SENT", "the first attempt was sent");
        assert_eq!(mailing(world, &id).await["counts"]["sent"], 1);
    })
    .await;
}

#[tokio::test]
async fn a_mail_that_ses_accepted_and_then_rejected_has_failed() {
    play_with(sending(1), async |world| {
        let id = upload(world, "a.csv", &file(1), &content_without_columns()).await;
        world.drain().await;
        let shown = &entries(world, &id, "").await[0];
        let entry = shown["entry_id"].as_str().expect("an id");
        ses_reports(world, "Reject", entry, 1, &shown["email"]).await;
        ses_reports(world, "Send", entry, 1, &shown["email"]).await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["counts"]["failed"], &shown["counts"]["sent"]), (&json!(1), &json!(0)), "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_bounce_suppresses_the_address_and_the_next_mailing_skips_it() {
    play_with(sending(2), async |world| {
        let file = "email\nbounce@simulator.amazonses.com\na@example.com\n";
        let id = upload(world, "a.csv", file, &content_without_columns()).await;
        world.drain().await;
        let all = entries(world, &id, "").await;
        let bounced = all.iter().find(|entry| entry["bounced_at"].is_string()).expect("one that bounced");
        assert_eq!(bounced["status"], "SENT", "a bounced mail counts as sent");
        let next = upload(world, "b.csv", "email\nBounce@simulator.amazonses.com\n", &content_without_columns()).await;
        world.drain().await;
        let left_out = &entries(world, &next, "").await[0];
        assert_eq!((&left_out["status"], &left_out["reason"]), (&json!("SUPPRESSED"), &json!("hard_bounce")));
        assert_eq!(status(world, &next).await, "COMPLETED");
    })
    .await;
}

/// Returns the unsubscribe link in the last mail to an address.
pub fn link(world: &World, to: &str) -> String {
    let sent = world.stack.catcher().sent(Some("email"), Some(to));
    let headers =
        sent.last().expect("a mail").body["Content"]["Simple"]["Headers"].as_array().expect("headers").clone();
    let header = headers.iter().find(|header| header["Name"] == "List-Unsubscribe").expect("a link");
    let url = header["Value"].as_str().expect("text").trim_matches(['<', '>']).to_owned();
    url.strip_prefix(world.stack.url()).expect("the address of this stack").to_owned()
}

fn text(answer: &Answer) -> &str {
    answer.body.as_str().expect("a page")
}

#[tokio::test]
async fn a_post_to_the_link_unsubscribes_and_a_get_does_not() {
    play_with(sending(5), async |world| {
        let id = upload(world, "a.csv", "email,nome\nana@example.com,Ana\n", &content()).await;
        world.drain().await;
        let link = link(world, "ana@example.com");
        let show = world.request(Method::GET, &link).header("accept-language", "pt-BR,pt;q=0.9,en;q=0.5");
        let page = world.send(show).await;
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        assert!(
            text(&page).contains("lang=\"pt-BR\"") && text(&page).contains("<form method=\"post\""),
            "{}",
            page.body
        );
        assert!(text(&page).contains("loja@example.com"), "the list is named");
        let english = world.send(world.request(Method::GET, &link)).await;
        assert!(text(&english).contains("lang=\"en\""));
        let second = upload(world, "b.csv", "email,nome\nana@example.com,Ana\n", &content()).await;
        world.drain().await;
        assert_eq!(mailing(world, &second).await["counts"]["sent"], 1, "opening the page unsubscribed");

        for tampered in [format!("{link}0"), link.replace("/u/mlg_", "/u/mlg_0"), "/u/x".to_owned()] {
            let answer = world.send(world.request(Method::POST, &tampered)).await;
            assert_eq!(answer.status, 404, "{tampered}");
        }
        let one_click = || {
            let request = world.request(Method::POST, &link);
            request.header("content-type", "application/x-www-form-urlencoded").body("List-Unsubscribe=One-Click")
        };
        for _ in 0..2 {
            let left = world.send(one_click()).await;
            assert_eq!(left.status, 200, "{}", left.body);
        }
        assert_eq!(world.events("MAILING_UNSUBSCRIBED").len(), 1);
        let third = upload(world, "c.csv", "email,nome\nANA@example.com,Ana\nbia@example.com,Bia\n", &content()).await;
        world.drain().await;
        let left_out = entries(world, &third, "status=SUPPRESSED").await;
        assert_eq!(
            (&left_out[0]["email"], &left_out[0]["reason"]),
            (&json!("ana@example.com"), &json!("unsubscribed"))
        );
        assert_eq!(mailing(world, &third).await["counts"]["sent"], 1);
        let mut other_list = content();
        other_list.push(("list", "novidades"));
        let fourth = upload(world, "d.csv", "email,nome\nana@example.com,Ana\n", &other_list).await;
        // Two concurrent mailings have no order; the mail that is checked below is the next one's.
        world.drain().await;
        let mut without = content_without_columns().to_vec();
        without.extend([("unsubscribe", "false"), ("list", "avisos")]);
        let fifth = upload(world, "e.csv", "email\nana@example.com\n", &without).await;
        world.drain().await;
        assert_eq!(mailing(world, &fourth).await["counts"]["sent"], 1, "another list is not affected");
        assert_eq!(mailing(world, &fifth).await["counts"]["sent"], 1);
        let last = world.stack.catcher().sent(Some("email"), Some("ana@example.com"));
        assert!(last.last().expect("a mail").body["Content"]["Simple"]["Headers"].is_null());
        assert_eq!(status(world, &id).await, "COMPLETED");
    })
    .await;
}

async fn ask_upload(world: &World, body: &Value) -> Answer {
    world.post("/mailings/uploads", body).await
}

#[tokio::test]
async fn a_large_file_is_uploaded_by_a_form_and_its_import_starts_when_it_arrives() {
    play_with(sending(3), async |world| {
        let file = "email,nome\na@example.com,A\nb@example.com,B\nc@example.com,C\n";
        let hash = umavez_domain::mailings::content_hash(file.as_bytes());
        let body = json!({"filename": "large.csv", "sha256": hash, "size": file.len(), "subject": "Oi {{nome}}",
            "text": "x", "from": "loja@example.com"});
        let asked = ask_upload(world, &body).await;
        assert_eq!((asked.status, &asked.body["created"]), (202, &json!(true)), "{}", asked.body);
        let id = asked.text("/mailingId");
        assert_eq!(mailing(world, &id).await["import"]["state"], "AWAITING_UPLOAD");
        let again = ask_upload(world, &body).await;
        assert_eq!((again.status, &again.body["mailingId"]), (200, &json!(id)));
        assert!(again.body["upload"].is_object(), "the answer has no new form: {}", again.body);
        let upload = &asked.body["upload"];
        assert_eq!(
            world.post_form(upload, file.replace('a', "b").as_bytes()).await,
            400,
            "another file than announced"
        );
        assert!(world.post_form(upload, format!("{file}d@example.com,D\n").as_bytes()).await >= 400, "too long");
        world.drain().await;
        assert_eq!(mailing(world, &id).await["import"]["state"], "AWAITING_UPLOAD");
        assert_eq!(world.post_form(upload, file.as_bytes()).await, 204);
        assert_eq!(world.post_form(upload, file.as_bytes()).await, 204, "a second upload, with a second event of S3");
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("COMPLETED"), &json!(3)), "{shown}");
        let record = json!({"s3": {"object": {"key": format!("mailings/uploads/{id}.csv"), "eTag": "old", "size": 1}}});
        world.send_to_queue("umavez-dev-mailing-import", &json!({"Records": [record]}).to_string()).await;
        world.drain().await;
        assert_eq!(mailing(world, &id).await["status"], "COMPLETED", "a late event of S3 changed the mailing");
        let known = ask_upload(world, &body).await;
        assert_eq!((&known.body["contentMatches"], known.body.get("upload")), (&json!(true), None));
        let strict = json!({"filename": "large.csv", "mode": "strict", "sha256": "0".repeat(64)});
        ask_upload(world, &strict).await.assert_problem(409, "name_taken", &[]);
        ask_upload(world, &json!({"filename": "x.csv", "mode": "strict", "size": 0})).await.assert_problem(
            422,
            "invalid_request",
            &["size", "sha256"],
        );
    })
    .await;
}

#[tokio::test]
async fn a_bad_upload_fails_with_its_report_and_frees_the_name() {
    play_with(sending(1), async |world| {
        let body = json!({"filename": "a.csv", "subject": "Oi", "text": "x", "from": "loja@example.com"});
        let mut ids = Vec::new();
        for (file, line, code) in [
            ("email,nome\na@example.com,\"A\nb@example.com,B\n", 2, "quote_never_closes"),
            ("nome\nAna\n", 1, "no_email_column"),
            ("email\n", 2, "file_empty"),
        ] {
            let asked = ask_upload(world, &body).await;
            assert_eq!(asked.body["created"], true, "{}", asked.body);
            assert_eq!(world.post_form(&asked.body["upload"], file.as_bytes()).await, 204);
            world.drain().await;
            let id = asked.text("/mailingId");
            let shown = mailing(world, &id).await;
            assert_eq!((&shown["status"], &shown["import"]["state"]), (&json!("FAILED"), &json!("FAILED")), "{shown}");
            let problem = &shown["import"]["problem"];
            assert_eq!((&problem["code"], &problem["line"]), (&json!(code), &json!(line)), "{shown}");
            let report = world.get(&format!("/mailings/{id}/report")).await.body;
            assert_eq!(report["problem"]["code"], code, "{report}");
            order(world, &id, "resume").await.assert_problem(409, "wrong_state", &[]);
            ids.push(id);
        }
        let unknown = json!({"filename": "b.csv", "subject": "{{nome}}", "text": "x", "from": "loja@example.com"});
        let asked = ask_upload(world, &unknown).await;
        assert_eq!(world.post_form(&asked.body["upload"], b"email\na@example.com\n").await, 204);
        world.drain().await;
        let id = asked.text("/mailingId");
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["has_content"]), (&json!("PENDING"), &json!(false)), "{shown}");
        assert_eq!(shown["import"]["problem"]["code"], "missing_column", "the problem is in its content: {shown}");
        order(world, &id, "cancel").await;
        world.drain().await;
        assert_eq!(mailing(world, &id).await["counts"]["canceled"], 1, "its entries are not canceled");
        // The same for a file that is never uploaded.
        let asked = ask_upload(world, &body).await;
        world.advance(Duration::from_secs(9 * 3_600)).await;
        world.tick("Recovery").await;
        let shown = mailing(world, &asked.text("/mailingId")).await;
        assert_eq!(
            (&shown["status"], &shown["import"]["problem"]["code"]),
            (&json!("FAILED"), &json!("input_missing"))
        );
        ids.push(asked.text("/mailingId"));
        let id = upload(world, "a.csv", "email\na@example.com\n", &content_without_columns()).await;
        assert!(!ids.contains(&id));
        world.drain().await;
        assert_eq!(status(world, &id).await, "COMPLETED");
    })
    .await;
}

/// Returns a file that is readable beyond a checkpoint, but not to its end.
fn file_that_proves_bad(good: usize) -> String {
    format!("{}nobody\nuser0@example.com\n\"never closed\n", file(good))
}

#[tokio::test]
async fn a_partly_imported_bad_file_leaves_no_open_entry() {
    play_with(sending(1), async |world| {
        let body = json!({"filename": "a.csv", "subject": "Oi", "text": "x", "from": "loja@example.com"});
        let asked = ask_upload(world, &body).await;
        let csv = file_that_proves_bad(2_500);
        assert_eq!(world.post_form(&asked.body["upload"], csv.as_bytes()).await, 204);
        world.drain().await;
        let id = asked.text("/mailingId");
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["import"]["state"]), (&json!("FAILED"), &json!("FAILED")), "{shown}");
        let counts = json!({"pending": 0, "sending": 0, "sent": 0, "failed": 0, "invalid": 1, "unknown": 0,
            "suppressed": 0, "canceled": 2_500});
        assert_eq!((&shown["counts"], &shown["total"]), (&counts, &json!(2_501)), "{shown}");
        let import = &shown["import"];
        let numbers = ["rows", "recipients", "duplicates", "invalid"].map(|name| import[name].as_u64());
        assert_eq!(numbers, [2_502, 2_500, 1, 1].map(Some), "{shown}");
        assert_eq!(
            (&import["problem"]["code"], &import["problem"]["line"]),
            (&json!("quote_never_closes"), &json!(2_504))
        );
        let canceled = entries(world, &id, "status=CANCELED").await;
        assert_eq!((canceled.len(), &canceled[0]["reason"]), (2_500, &json!("mailing_failed")));
        let report = world.get(&format!("/mailings/{id}/report")).await.body;
        assert_eq!(report["lines"].as_array().map(Vec::len), Some(2), "{report}");
        assert!(world.events("MAILING_MISMATCHED").is_empty());
        let next = upload(world, "a.csv", "email\na@example.com\n", &content_without_columns()).await;
        assert_ne!(next, id, "the name is free");
        world.drain().await;
        assert_eq!(status(world, &next).await, "COMPLETED");
    })
    .await;
}

#[tokio::test]
async fn a_mailing_whose_entries_do_not_match_its_import_is_reported_and_not_completed() {
    play_with(sending(1), async |world| {
        let fields = [("filename", "a.csv")];
        let answer = upload_to(world, "/mailings", "a.csv", b"email\na@example.com\n", &fields[..0]).await;
        let id = answer.text("/mailingId");
        world.drain().await;
        // No code of the product makes this change.
        let client = Aws::at_endpoint(world.stack.front_url(), "test").dynamodb();
        let row = world.rows("MailingsTable").await.into_iter().find(|row| row["sk"] == "MAILING").expect("a mailing");
        let text = |name: &str| AttributeValue::S(row[name].as_str().expect("a text").to_owned());
        let recipients_are = async |number: &str| {
            let update = client.update_item().table_name(world.stack.output("MailingsTable").expect("a table"));
            let update = update.key("pk", text("pk")).key("sk", text("sk"));
            let update = update.update_expression("SET progress.recipients = :number");
            let update = update.expression_attribute_values(":number", AttributeValue::N(number.to_owned()));
            update.send().await.expect("changed");
        };
        recipients_are("2").await;
        let content = json!({"subject": "Oi", "text": "Oi", "from": "loja@example.com"});
        let request = world.request(Method::PUT, &format!("/mailings/{id}/content")).bearer_auth(KEY);
        assert_eq!(world.send(request.json(&content)).await.status, 200);
        world.drain().await;
        assert_ne!(status(world, &id).await, "COMPLETED");
        let shown = world.events("MAILING_MISMATCHED");
        assert_eq!((&shown[0]["counted"], &shown[0]["imported"]), (&json!(1), &json!(2)), "{shown:?}");
        assert!(!world.metrics("MailingMismatches").is_empty());
        recipients_are("1").await;
        world.advance(Duration::from_secs(700)).await;
        world.tick("Recovery").await;
        assert_eq!(status(world, &id).await, "COMPLETED", "not completed after the repair");
    })
    .await;
}

#[tokio::test]
async fn the_entries_of_a_canceled_import_with_a_bad_rest_are_counted() {
    play_with(sending(0), async |world| {
        // The importer dies after its checkpoint.
        let killed = CallFault {
            function: Some("mailing-importer".to_owned()),
            operation: Some("BatchExecuteStatement".to_owned()),
            nth: 98,
            ..CallFault::first(Action::KillBefore)
        };
        world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
        let asked = ask_upload(world, &json!({"filename": "a.csv"})).await;
        assert_eq!(world.post_form(&asked.body["upload"], file_that_proves_bad(2_500).as_bytes()).await, 204);
        world.drain().await;
        let id = asked.text("/mailingId");
        assert_eq!(mailing(world, &id).await["import"]["rows"], 2_000);
        assert_eq!(order(world, &id, "cancel").await.body["status"], "CANCELED");
        world.drain().await;
        world.advance(Duration::from_secs(70)).await;
        world.advance(Duration::from_secs(5_500)).await;
        world.tick("Recovery").await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["import"]["state"]), (&json!("CANCELED"), &json!("DONE")), "{shown}");
        assert_eq!((&shown["counts"]["canceled"], &shown["total"]), (&json!(2_500), &json!(2_501)), "{shown}");
        assert_eq!(entries(world, &id, "").await.len(), 2_501, "not as many entries as the counts say");
        assert_eq!(shown["import"]["recipients"], 2_500, "{shown}");
        assert!(world.events("MAILING_MISMATCHED").is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_entries_of_an_import_whose_file_was_deleted_are_canceled_and_counted() {
    play_with(sending(0), async |world| {
        let killed = CallFault {
            function: Some("mailing-importer".to_owned()),
            operation: Some("BatchExecuteStatement".to_owned()),
            nth: 98,
            ..CallFault::first(Action::KillBefore)
        };
        world.stack.add_fault(Fault::Call(killed)).await.expect("armed");
        let asked = ask_upload(world, &json!({"filename": "a.csv"})).await;
        assert_eq!(world.post_form(&asked.body["upload"], file(3_000).as_bytes()).await, 204);
        world.drain().await;
        let id = asked.text("/mailingId");
        let s3 = Aws::at_endpoint(world.stack.front_url(), "test").s3();
        let bucket = world.stack.output("UploadsBucket").expect("a bucket");
        s3.delete_object().bucket(bucket).key(format!("mailings/uploads/{id}.csv")).send().await.expect("deleted");
        world.advance(Duration::from_secs(70)).await;
        world.advance(Duration::from_secs(5_500)).await;
        world.tick("Recovery").await;
        let shown = mailing(world, &id).await;
        assert_eq!(
            (&shown["status"], &shown["import"]["problem"]["code"]),
            (&json!("FAILED"), &json!("input_missing"))
        );
        let canceled = entries(world, &id, "status=CANCELED").await.len();
        assert!((2_000..3_000).contains(&canceled), "it died after its checkpoint: {canceled}");
        assert_eq!((&shown["counts"]["canceled"], &shown["total"]), (&json!(canceled), &json!(canceled)), "{shown}");
        assert_eq!(shown["import"]["recipients"], canceled, "{shown}");
        assert_eq!(entries(world, &id, "").await.len(), canceled);
    })
    .await;
}

#[tokio::test]
async fn a_shard_that_is_delivered_twice_is_sent_once() {
    play_with(sending(40), async |world| {
        let fault = DeliveryFault {
            source: "umavez-dev-mailing-send".to_owned(),
            nth: 1,
            times: 3,
            action: DeliveryAction::Twice,
            seconds: 0,
        };
        world.stack.add_fault(Fault::Delivery(fault)).await.expect("armed");
        let id = upload(world, "a.csv", &file(40), &content_without_columns()).await;
        world.drain().await;
        world.advance(Duration::from_secs(60)).await;
        assert_eq!(status(world, &id).await, "COMPLETED");
        assert!(recipients(world).len() == 40 && recipients(world).values().all(|times| *times == 1));
    })
    .await;
}

/// Returns the rows of the shards.
pub async fn shards(world: &World) -> Vec<Value> {
    let rows = world.rows("MailingsTable").await;
    rows.into_iter().filter(|row| row["sk"].as_str().is_some_and(|sk| sk.starts_with("SHARD#"))).collect()
}

#[tokio::test]
async fn recovery_enqueues_a_lost_shard_once_however_often_it_runs() {
    let world = World::start(sending(0)).await;
    at_ses(&world, CallFault { nth: 12, ..CallFault::first(Action::KillBefore) }).await;
    let id = upload(&world, "a.csv", &file(30), &content_without_columns()).await;
    world.drain().await;
    let shown = mailing(&world, &id).await;
    assert_eq!((&shown["status"], shown["last_attempt"].is_string()), (&json!("PROCESSING"), true), "{shown}");
    world.tick("Recovery").await;
    assert_eq!(shards(&world).await[0]["state"], "PROCESSING", "its lease has not expired");
    world.advance(Duration::from_secs(45)).await;
    // The next delivery is late, so that the work of recovery can be checked.
    let source = "umavez-dev-mailing-send".to_owned();
    let late = DeliveryFault { source, nth: 1, times: 1, action: DeliveryAction::Late, seconds: 120 };
    world.stack.add_fault(Fault::Delivery(late)).await.expect("armed");
    for _ in 0..3 {
        world.tick("Recovery").await;
        let shard = &shards(&world).await[0];
        assert_eq!((&shard["state"], &shard["emits"]), (&json!("PENDING"), &json!(2)), "{shard}");
        assert!(shard["last_attempt"].is_null(), "{shard}");
        assert_eq!(shard["emit"]["id"], format!("requeue#{id}#00#1"));
        let shown = mailing(&world, &id).await;
        assert_eq!((&shown["status"], &shown["last_attempt"]), (&json!("PENDING"), &Value::Null), "{shown}");
    }
    world.advance(Duration::from_secs(130)).await;
    world.advance(Duration::from_secs(800)).await;
    let shown = mailing(&world, &id).await;
    assert_eq!(shown["status"], "COMPLETED", "{shown}");
    let (sent, unknown) = (shown["counts"]["sent"].as_u64(), shown["counts"]["unknown"].as_u64());
    assert_eq!(sent.zip(unknown).map(|(sent, unknown)| sent + unknown), Some(30), "{shown}");
    assert!(unknown <= Some(10), "more unknown than were in progress: {shown}");
    assert!(recipients(&world).values().all(|times| *times == 1));
    let sent = mails(&world);
    world.audit(Expected { sent, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
}

#[tokio::test]
async fn a_sender_that_dies_leaves_at_most_its_open_calls_unknown() {
    const COUNT: usize = 10_000;
    let world = World::start(rate(2_000, 0)).await;
    world.stack.email_events().switch(false);
    for nth in [2_500, 6_000] {
        at_ses(&world, CallFault { nth, ..CallFault::first(Action::KillAfter) }).await;
    }
    let id = upload(&world, "many.csv", &file(COUNT), &content_without_columns()).await;
    // So many mails take longer than the stack usually waits to become idle.
    let rested = async || world.stack.drain().await.is_ok();
    let mut patience = 5;
    while !rested().await && patience > 0 {
        patience -= 1;
    }
    for _ in 0..8 {
        if status(&world, &id).await == "COMPLETED" {
            break;
        }
        world.advance(Duration::from_secs(60)).await;
        world.tick("Recovery").await;
    }
    let shown = mailing(&world, &id).await;
    assert_eq!(shown["status"], "COMPLETED", "{shown}");
    let count = |name: &str| usize::try_from(shown["counts"][name].as_u64().expect("a count")).expect("small");
    assert_eq!(count("sent") + count("unknown"), COUNT, "{shown}");
    // Two senders died, each with at most ten calls in progress.
    assert!((1..=20).contains(&count("unknown")), "{shown}");
    let to = recipients(&world);
    assert!(to.values().all(|times| *times == 1), "an address got two mails");
    assert!(to.len() <= COUNT && to.len() >= count("sent"));
    let unknown = entries(&world, &id, "status=UNKNOWN").await;
    for entry in &unknown {
        let arrived = to.contains_key(entry["email"].as_str().expect("an address"));
        assert!(arrived || entry["reason"] == "sender_lost", "{entry}");
    }
    // The jobs of the dead senders are redelivered, and find no work.
    world.advance(Duration::from_secs(800)).await;
    let sent = mails(&world);
    world.audit(Expected { sent, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
}

/// Returns the number of shards that senders have, or are about to get.
async fn handed_over(world: &World, id: &str) -> usize {
    let of_it = |shard: &&Value| shard["mailing_id"] == id && shard["state"] != "FINISHED" && shard["wake"].is_string();
    shards(world).await.iter().filter(of_it).count()
}

#[tokio::test]
async fn a_small_mailing_is_not_starved_by_a_large_one() {
    // The large mailing would take minutes: the test does not wait for it, and it cannot end before
    // the small one by chance.
    let world = World::start(rate(20, 0)).await;
    let pad = "x".repeat(600);
    let rows: String = (0..3_000).map(|n| format!("user{n}@example.com,{pad}\n")).collect();
    let large = upload(&world, "large.csv", &format!("email,pad\n{rows}"), &content_without_columns()).await;
    until_sent(&world, 30).await;
    assert!(shards(&world).await.len() > 20, "it has fewer shards than there are senders");
    let rows: String = (0..20).map(|n| format!("small{n}@example.com\n")).collect();
    let small = upload(&world, "small.csv", &format!("email\n{rows}"), &content_without_columns()).await;
    while status(&world, &small).await != "COMPLETED" {
        let groups = handed_over(&world, &large).await;
        assert!(groups <= 3, "{groups} shards are active");
    }
    let shown = mailing(&world, &large).await;
    assert_eq!(shown["status"], "PROCESSING", "the small one did not end before the large one: {shown}");
    // After a pause and a resume it has no more active shards than before.
    order(&world, &large, "pause").await;
    // A queued shard finds the pause when it is delivered.
    world.advance(Duration::from_secs(60)).await;
    assert_eq!(handed_over(&world, &large).await, 0);
    let by_then = mails(&world);
    order(&world, &large, "resume").await;
    until_sent(&world, by_then + 20).await;
    let groups = handed_over(&world, &large).await;
    assert_eq!(groups, 3, "not one active shard per group");
    order(&world, &large, "cancel").await;
    world.drain().await;
    world.advance(Duration::from_secs(60)).await;
    let shown = mailing(&world, &large).await;
    assert_eq!((&shown["status"], &shown["counts"]["pending"]), (&json!("CANCELED"), &json!(0)), "{shown}");
    let sent = mails(&world);
    world.audit(Expected { sent, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
}

#[tokio::test]
async fn a_form_sent_by_a_browser_is_accepted() {
    play_with(sending(1), async |world| {
        let mut fields = content_without_columns().to_vec();
        fields.extend([("reply_to", ""), ("list", ""), ("mode", "strict"), ("encoding", "utf-8")]);
        let answer = upload_to(world, "/mailings", "a.csv", b"email\na@example.com\n", &fields).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        world.drain().await;
        let listed = world.send(world.request(Method::GET, "/mailings?limit=1").bearer_auth(KEY)).await;
        assert_eq!(listed.body["mailings"][0]["status"], "COMPLETED", "{}", listed.body);
    })
    .await;
}
