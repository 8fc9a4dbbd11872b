//! Races of mailings: late workers, several senders, one rate limit for all mail, duplicate
//! deliveries.

use std::time::Duration;

use serde_json::json;
use umavez_domain::codes::SendingHold;
use umavez_domain::delivery::{Claim, Verdict, code};
use umavez_domain::keys;
use umavez_domain::mailings::{
    EntryCounts, EntryState, MailingEvent, MailingId, MailingRow, NotTaken, ShardTurn, Tally,
};
use umavez_domain::queue::ShardJob;
use umavez_local::calls::Call;
use umavez_local::faults::{Action, CallFault, DeliveryAction, DeliveryFault, Fault};
use umavez_platform::delivery::Claimed;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{Mailings, OrderOutcome, PassEnd};
use umavez_platform::store::Write;
use umavez_tests::{Expected, World, play_with};

use crate::mailings::{content_without_columns, entries, mailing, order, recipients, sending, upload, upload_to};
use crate::mailings_sending::{at_ses, file, mails, rate, shards, status, until_sent};

const SEND_QUEUE: &str = "umavez-dev-mailing-send";

fn at_queue(source: &str, action: DeliveryAction, times: u64, seconds: u64) -> Fault {
    Fault::Delivery(DeliveryFault { source: source.to_owned(), nth: 1, times, action, seconds })
}

/// Returns an invocation of the test's own worker, with a clock that is ahead by `late`.
fn worker(world: &World, name: &str, late: Duration) -> Invocation {
    let late = i64::try_from(late.as_millis()).expect("not so late");
    Invocation::new(name, world.now().plus_ms(late), Duration::from_secs(60))
}

/// Creates a mailing whose first shard is enqueued, and reaches its sender in an hour.
async fn handed_over(world: &World, recipients: usize) -> (Mailings, MailingRow) {
    handed_over_late(world, recipients, 1).await
}

/// Like [`handed_over`], with this many late deliveries of its shards.
async fn handed_over_late(world: &World, recipients: usize, deliveries: u64) -> (Mailings, MailingRow) {
    world.stack.add_fault(at_queue(SEND_QUEUE, DeliveryAction::Late, deliveries, 3_600)).await.expect("armed");
    let id = upload(world, "a.csv", &file(recipients), &content_without_columns()).await;
    world.drain().await;
    let table = world.stack.output("MailingsTable").expect("a table").to_owned();
    let mailings = Mailings { store: world.store.clone(), table };
    let id = MailingId::parse(&id).expect("an id");
    let row = mailings.get(&world.invocation(), &id).await.expect("an answer").expect("a mailing");
    (mailings, row)
}

async fn take(mailings: &Mailings, worker: &Invocation, row: &MailingRow) -> Result<ShardTurn, NotTaken> {
    let work = ShardJob { mailing: row.mailing_id.clone(), shard: 0, seq: 1 };
    mailings.take_shard(worker, row, &work).await.expect("an answer")
}

#[tokio::test]
async fn a_refusal_from_before_a_resume_does_not_pause_the_mailing_again() {
    play_with(sending(1), async |world| {
        let (mailings, row) = handed_over_late(world, 1, 10).await;
        let (id, why) = (row.mailing_id.clone(), SendingHold::SendingPaused);
        let (a, b) = (worker(world, "a", Duration::ZERO), worker(world, "b", Duration::from_secs(1)));
        let refused = mailings.begin(&a, row).await.expect("an answer").expect("begun");
        for event in [MailingEvent::Pause, MailingEvent::Resume] {
            let ordered = mailings.order(&a, &id, event).await.expect("an answer");
            assert!(matches!(ordered, Some((_, OrderOutcome::Done))));
        }
        let resumed = mailings.get(&b, &id).await.expect("an answer").expect("a mailing");
        let resumed = mailings.begin(&b, resumed).await.expect("an answer").expect("begun");
        assert!(!mailings.hold(&a, &refused, why).await.expect("an answer"), "the refusal is older than the resume");
        assert!(mailings.hold(&b, &resumed, why).await.expect("an answer"), "this refusal is newer than the resume");
        assert!(!mailings.hold(&b, &resumed, why).await.expect("an answer"), "it is already paused");
        assert_eq!(mailing(world, id.as_str()).await["paused_for"], "sending_paused");
        world.stack.clear_faults();
        mailings.order(&b, &id, MailingEvent::Resume).await.expect("an answer");
        world.drain().await;
        world.advance(Duration::from_secs(3_700)).await;
        world.tick("Recovery").await;
        assert_eq!(status(world, id.as_str()).await, "COMPLETED");
    })
    .await;
}

#[tokio::test]
async fn a_late_worker_changes_nothing_of_a_shard() {
    play_with(sending(3), async |world| {
        let (mailings, row) = handed_over(world, 3).await;
        let (a, b) = (worker(world, "a", Duration::ZERO), worker(world, "b", Duration::from_secs(31)));
        let mut of_a = take(&mailings, &a, &row).await.expect("taken");
        let at_once = worker(world, "c", Duration::from_secs(20));
        assert!(matches!(take(&mailings, &at_once, &row).await, Err(NotTaken::Busy(_))), "its lease has not expired");
        let mut of_b = take(&mailings, &b, &row).await.expect("taken");
        assert_eq!((of_a.held.lease_epoch, of_b.held.lease_epoch), (1, 2));
        let before = shards(world).await;
        assert!(!mailings.renew_shard(&a, &mut of_a).await.expect("an answer"));
        for again in [None, Some(a.current())] {
            assert!(!mailings.release_shard(&a, &of_a, again).await.expect("an answer"));
        }
        let none_open = Tally { counts: EntryCounts { canceled: 3, ..EntryCounts::default() }, next_look: None };
        let ended = mailings.end_pass(&a, &of_a, none_open).await.expect("an answer");
        assert_eq!(ended, PassEnd::Lost);
        assert_eq!(shards(world).await, before, "the late worker changed a shard");
        assert!(mailings.renew_shard(&b, &mut of_b).await.expect("an answer"));
        assert!(mailings.release_shard(&b, &of_b, Some(b.now)).await.expect("an answer"));
        // The late delivery finds no work.
        world.advance(Duration::from_secs(3_700)).await;
        assert_eq!(status(world, row.mailing_id.as_str()).await, "COMPLETED");
    })
    .await;
}

#[tokio::test]
async fn a_timed_out_attempt_is_settled_by_its_late_answer_and_not_repeated() {
    play_with(sending(1), async |world| {
        let (mailings, row) = handed_over(world, 2).await;
        let (a, b) = (worker(world, "a", Duration::ZERO), worker(world, "b", Duration::from_secs(31)));
        let turn = take(&mailings, &a, &row).await.expect("taken");
        let page = mailings.entries(&a, &turn.row, None, 100).await.expect("an answer");
        let entry = &page.entries[0];
        let claim = |token: &str| Claim { attempt: 1, token: token.to_owned(), deadline: a.current().plus_ms(25_000) };
        let claimed = mailings.claim(&a, entry, &claim("a"), 0).await.expect("an answer");
        let Claimed::Yes(claimed) = claimed else { panic!("not claimed: {claimed:?}") };
        let second = mailings.claim(&a, entry, &claim("b"), 0).await.expect("an answer");
        assert!(matches!(second, Claimed::Lost(Some(_))), "claimed twice: {second:?}");
        let next = take(&mailings, &b, &row).await.expect("taken");
        let page = mailings.entries(&b, &next.row, None, 100).await.expect("an answer");
        let sending =
            page.entries.iter().find(|one| one.row.state() == EntryState::Sending).expect("an entry in progress");
        assert_eq!(mailings.lost(&b, sending, 0).await.expect("an answer"), Some(EntryState::Unknown));
        assert_eq!(mailings.lost(&b, sending, 0).await.expect("an answer"), None, "it is unknown already");
        // Its sender answers late: not sent, and not to be retried automatically.
        let not_sent = Verdict::Failed { code: code::NOT_CALLED, suppress: false };
        let settled = mailings.settle(&a, &entry.id, &claimed, 1, &not_sent).await.expect("an answer");
        assert_eq!(settled, Some(EntryState::Failed));
        let unknown = Verdict::Unknown { code: code::TIMED_OUT };
        let settled = mailings.settle(&b, &entry.id, &sending.row, 1, &unknown).await.expect("an answer");
        assert_eq!(settled, Some(EntryState::Failed), "a known outcome does not change");
        assert!(mailings.release_shard(&b, &next, Some(b.now)).await.expect("an answer"));
        world.advance(Duration::from_secs(3_700)).await;
        let shown = mailing(world, row.mailing_id.as_str()).await;
        assert_eq!((&shown["status"], &shown["counts"]["failed"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
        assert_eq!(shown["counts"]["sent"], 1, "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_recipient_suppressed_during_a_mailing_is_skipped_after_the_current_sub_batch() {
    play_with(rate(25, 119), async |world| {
        let id = upload(world, "a.csv", &file(120), &content_without_columns()).await;
        until_sent(world, 3).await;
        // Entries are listed in the order in which they are sent.
        let last = entries(world, &id, "").await.pop().expect("an entry")["email"].clone();
        let put = world.post("/suppressions", &json!({"channel": "email", "to": last})).await;
        assert!(put.status < 300, "{}", put.body);
        let by_then = mails(world);
        assert!(by_then + 25 < 120, "it may be in the next sub-batch: {by_then}");
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["suppressed"]), (&json!("COMPLETED"), &json!(1)), "{shown}");
        assert_eq!(entries(world, &id, "status=SUPPRESSED").await[0]["email"], last);
    })
    .await;
}

#[tokio::test]
async fn a_pause_stops_each_sender_after_its_sub_batch() {
    let world = World::start(rate(150, 0)).await;
    let pad = "x".repeat(500);
    let rows: String = (0..400).map(|n| format!("user{n}@example.com,{pad}\n")).collect();
    let id = upload(&world, "a.csv", &format!("email,pad\n{rows}"), &content_without_columns()).await;
    until_sent(&world, 40).await;
    assert_eq!(order(&world, &id, "pause").await.status, 200);
    let by_then = mails(&world);
    world.drain().await;
    let (sent, senders) = (mails(&world), 3);
    assert!(shards(&world).await.len() > senders, "there are too few shards");
    assert!(sent <= by_then + 25 * senders, "{by_then} mails at the pause, {sent} at the end");
    let shown = mailing(&world, &id).await;
    assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("PAUSED"), &json!(sent)), "{shown}");
    world.audit(Expected { sent, ..Expected::default() }).await;
    world.stack.stop().await.expect("the stack stops");
}

#[tokio::test]
async fn mailings_and_single_mails_share_one_rate_limit() {
    const EACH: usize = 30;
    play_with(rate(40, 2 * EACH), async |world| {
        let begun = world.now();
        upload(world, "a.csv", &file(EACH), &content_without_columns()).await;
        for n in 0..EACH {
            let content = json!({"subject": "Oi", "text": "Oi", "from": "loja@example.com"});
            let message = json!({"channel": "email", "to": format!("single{n}@example.com"), "content": content});
            let accepted = world.post_with_key(&format!("single-{n}"), "/outbound/messages", &message).await;
            assert_eq!(accepted.status, 202, "{}", accepted.body);
        }
        world.drain().await;
        // Messages that found no slot in time are redelivered.
        world.advance(Duration::from_secs(60)).await;
        let bucket = keys::rate_of_sender("email", "ses");
        let rows = world.rows("OutboundTable").await;
        let buckets: Vec<_> =
            rows.iter().filter(|row| row["free_at_us"].is_number() && row["sk"] == "SENDER").collect();
        assert_eq!(buckets.len(), 1, "not one bucket for all mail: {buckets:?}");
        assert_eq!(buckets[0]["pk"], bucket.pk.as_str());
        // Each slot advanced the bucket by 25 ms: one for each mail, of a mailing or not.
        let moved_us = buckets[0]["free_at_us"].as_i64().expect("a number") - begun.millis() * 1_000;
        assert!(moved_us >= 2 * EACH as i64 * 25_000, "{moved_us} µs for {} mails", 2 * EACH);
    })
    .await;
}

#[tokio::test]
async fn a_recipient_costs_three_write_units() {
    const COUNT: usize = 100;
    play_with(sending(COUNT), async |world| {
        let id = upload(world, "a.csv", &file(COUNT), &content_without_columns()).await;
        world.drain().await;
        assert_eq!(status(world, &id).await, "COMPLETED");
        let of_its_row = |call: &&Call| {
            let of_one = call.key.as_ref().is_some_and(|key| key.contains(keys::MAILING_ENTRY_PREFIX));
            let made = call.caller == "mailing-importer" && call.operation == "BatchExecuteStatement";
            made || call.caller == "mailing-sender" && of_one
        };
        let units: f64 = world.stack.calls().since(0).iter().filter(of_its_row).map(|call| call.write_units).sum();
        assert!((units - 3.0 * COUNT as f64).abs() < 0.001, "{units} for {COUNT}: created, claimed, settled");
    })
    .await;
}

#[tokio::test]
async fn an_import_that_is_delivered_twice_runs_once() {
    play_with(sending(60), async |world| {
        world.stack.add_fault(at_queue("umavez-dev-mailing-import", DeliveryAction::Twice, 4, 0)).await.expect("armed");
        let id = upload(world, "a.csv", &file(60), &content_without_columns()).await;
        let asked = json!({"filename": "b.csv"});
        let uploaded = world.post("/mailings/uploads", &asked).await;
        assert_eq!(world.post_form(&uploaded.body["upload"], file(50).as_bytes()).await, 204);
        world.drain().await;
        // A delivery that found the import leased is redelivered after the lease.
        world.advance(Duration::from_secs(70)).await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("COMPLETED"), &json!(60)), "{shown}");
        let shown = mailing(world, &uploaded.text("/mailingId")).await;
        assert_eq!(
            (&shown["import"]["recipients"], &shown["import"]["duplicates"]),
            (&json!(50), &json!(0)),
            "{shown}"
        );
        assert!(recipients(world).values().all(|times| *times == 1));
        assert_eq!(world.events("MAILING_IMPORTED").len(), 2, "a file was imported twice");
    })
    .await;
}

#[tokio::test]
async fn of_concurrent_strict_uploads_with_different_content_one_is_accepted() {
    play_with(sending(1), async |world| {
        let one = async |n: usize| {
            let file = format!("email\nuser{n}@example.com\n");
            upload_to(world, "/mailings?mode=strict", "one.csv", file.as_bytes(), &content_without_columns()).await
        };
        let answers = futures::future::join_all((0..6).map(one)).await;
        let taken: Vec<_> = answers.iter().filter(|answer| answer.status == 202).collect();
        assert_eq!(taken.len(), 1, "{:?}", answers.iter().map(|answer| answer.status).collect::<Vec<_>>());
        for other in answers.iter().filter(|answer| answer.status != 202) {
            other.assert_problem(409, "name_taken", &[]);
        }
        world.drain().await;
        assert_eq!(status(world, &taken[0].text("/mailingId")).await, "COMPLETED");
    })
    .await;
}

#[tokio::test]
async fn a_sender_that_waits_for_ses_keeps_its_lease() {
    // Three rounds of calls, of eleven seconds each: longer than a lease, but each shorter than a
    // call may take.
    let setup = rate(2_000, 21).parameter("ProviderTimeoutSeconds", "30");
    play_with(setup, async |world| {
        at_ses(world, CallFault { times: 21, delay_ms: 11_000, ..CallFault::first(Action::DelayBefore) }).await;
        let id = upload(world, "a.csv", &file(21), &content_without_columns()).await;
        until_sent(world, 20).await;
        // The last call is in progress, and ends after the lease that was taken with the shard.
        while status(world, &id).await != "COMPLETED" {
            assert!(world.stack.tick("RecoveryTick").await, "recovery has a schedule");
        }
        let shards = shards(world).await;
        assert_eq!(shards[0]["lease_epoch"], 1, "another sender took it: {shards:?}");
        assert_eq!(mailing(world, &id).await["counts"]["sent"], 21);
        assert!(recipients(world).values().all(|times| *times == 1));
    })
    .await;
}

#[tokio::test]
async fn of_two_active_shards_in_a_group_the_first_to_end_leaves_the_group_to_the_other() {
    const RECIPIENTS: usize = 100;
    play_with(rate(20, RECIPIENTS), async |world| {
        // Wide rows make four shards, of which the first and the last share a group.
        let rows: String = (0..RECIPIENTS).map(|n| format!("user{n}@example.com,{}\n", "x".repeat(2_000))).collect();
        let id = upload(world, "a.csv", &format!("email,note\n{rows}"), &content_without_columns()).await;
        until_sent(world, 5).await;
        let table = world.stack.output("MailingsTable").expect("a table").to_owned();
        let mailings = Mailings { store: world.store.clone(), table };
        let known = MailingId::parse(&id).expect("an id");
        let seen = mailings.shard(&world.invocation(), &known, 3).await.expect("an answer").expect("a fourth shard");
        assert!(!seen.is_active(), "another shard of its group is active");
        // It is enqueued nevertheless, as by a worker that read the group at another time.
        let mut after = seen.clone();
        after.enqueue(None, None, world.now());
        let write = Write::changes(&mailings.table, keys::mailing_shard(&known, 3), &seen, &after).expect("a write");
        world.store.write(&world.invocation(), write).await.expect("written");
        world.drain().await;
        assert_eq!(status(world, &id).await, "COMPLETED");
        assert!(recipients(world).len() == RECIPIENTS && recipients(world).values().all(|times| *times == 1));
        let checked = |call: &Call| call.actions.iter().any(|needed| needed.action == "dynamodb:ConditionCheckItem");
        let calls = world.stack.calls().since(0);
        assert!(
            calls.iter().any(|call| call.caller == "mailing-sender" && checked(call)),
            "no sender checked the other shard"
        );
    })
    .await;
}
