//! The faults that the front can inject, and how the platform handles them.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::faults::{Action, CallFault, DeliveryAction, DeliveryFault, Fault, Scripted, TickAction, TickFault};
use umavez_platform::aws::Aws;
use umavez_platform::store::{Condition, Transacted, Write, Written};
use umavez_tests::{Answer, Expected, Setup, World, play, play_with};

use crate::intents::{CLIENT, VAGA_A, VAGA_B, assert_allowed, assert_blocked, offer};
use crate::outbound::{accept, message, sending, telegram};

fn probe() -> Setup {
    Setup::of_template(include_str!("../fixtures/probe.yaml"))
}

async fn call_fault(world: &World, function: &str, operation: &str, action: Action, delay_ms: u64, times: u64) {
    let fault = CallFault {
        function: Some(function.to_owned()),
        service: None,
        operation: Some(operation.to_owned()),
        target: None,
        nth: 1,
        times,
        action,
        delay_ms,
        answer: None,
    };
    world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
}

#[tokio::test]
async fn a_write_that_finds_its_own_first_attempt_is_mine() {
    play_with(probe(), async |world| {
        for (number, action) in [Action::DropReply, Action::ErrorAfter].into_iter().enumerate() {
            let key = umavez_domain::keys::Key { pk: format!("row-{number}"), sk: "ROW".into() };
            let put = Write::put("probe-jobs", key, &json!({"value": 1})).expect("a row").when(Condition::Absent);
            call_fault(world, "test", "PutItem", action, 0, 1).await;
            let written = world.store.write(&world.invocation(), put.clone()).await;
            assert_eq!(written, Ok(Written::Mine), "{action:?}");
            let other = world.store.write(&world.invocation(), put).await;
            assert!(matches!(other, Ok(Written::Refused(Some(_)))), "{action:?}: {other:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_write_that_conflicts_with_a_transaction_is_retried() {
    play_with(probe(), async |world| {
        let key = umavez_domain::keys::Key { pk: "row".into(), sk: "ROW".into() };
        let write = Write::update("probe-jobs", key.clone()).increment("count");
        call_fault(world, "test", "UpdateItem", Action::Conflict, 0, 2).await;
        assert_eq!(world.store.write(&world.invocation(), write).await, Ok(Written::New));
        let row: Option<Value> = world.store.get(&world.invocation(), "probe-jobs", &key).await.expect("read");
        assert_eq!(row.expect("the row")["count"], 1);
    })
    .await;
}

/// Longer than one attempt of the SDK: the SDK makes its second attempt before the first one
/// arrives.
const LATE_MS: u64 = 3_500;

#[tokio::test]
async fn a_late_release_does_not_free_the_hold_of_the_next_holder() {
    play(async |world| {
        let held = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        assert_allowed(&held);
        call_fault(world, "outbound-api", "UpdateItem", Action::DelayBefore, LATE_MS, 1).await;
        let path = format!("/intents/{}/release", held.text("/fingerprint"));
        let released = world.post(&path, &json!({"client_id": CLIENT})).await;
        assert_eq!(released.body["released"], true, "{}", released.body);
        assert_allowed(&world.post_with_key("b", "/intents", &offer(VAGA_A)).await);
        world.drain().await;
        assert_blocked(&world.post_with_key("c", "/intents", &offer(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn a_late_hold_does_not_undo_a_release() {
    play(async |world| {
        call_fault(world, "outbound-api", "UpdateItem", Action::DelayBefore, LATE_MS, 1).await;
        let held = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        assert_allowed(&held);
        let path = format!("/intents/{}/release", held.text("/fingerprint"));
        assert_eq!(world.post(&path, &json!({"client_id": CLIENT})).await.body["released"], true);
        world.drain().await;
        assert_allowed(&world.post_with_key("b", "/intents", &offer(VAGA_A)).await);
    })
    .await;
}

/// The first attempt of a hold arrives when its holder and another one have released the intent.
#[tokio::test]
async fn a_late_hold_does_not_take_an_intent_that_another_has_released_since() {
    play(async |world| {
        call_fault(world, "outbound-api", "UpdateItem", Action::DelayBefore, 2 * LATE_MS, 1).await;
        let held = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        assert_allowed(&held);
        let path = format!("/intents/{}/release", held.text("/fingerprint"));
        let release = json!({"client_id": CLIENT});
        assert_eq!(world.post(&path, &release).await.body["released"], true);
        assert_allowed(&world.post_with_key("b", "/intents", &offer(VAGA_A)).await);
        assert_eq!(world.post(&path, &release).await.body["released"], true);
        world.drain().await;
        assert_allowed(&world.post_with_key("c", "/intents", &offer(VAGA_A)).await);
    })
    .await;
}

/// The first attempt of a removal arrives when the address is suppressed again.
#[tokio::test]
async fn a_late_removal_does_not_lift_the_suppression_that_came_after_it() {
    play(async |world| {
        let body = json!({"channel": "telegram", "to": "987654321"});
        assert_eq!(world.post("/suppressions", &body).await.status, 201);
        call_fault(world, "outbound-api", "UpdateItem", Action::DelayBefore, 2 * LATE_MS, 1).await;
        let path = "/suppressions?channel=telegram&to=987654321";
        let removed = world.send(world.request(Method::DELETE, path).bearer_auth(umavez_tests::KEY)).await;
        assert_eq!(removed.body["removed"], true, "{}", removed.body);
        assert_eq!(world.post("/suppressions", &body).await.status, 201);
        world.drain().await;
        assert_eq!(world.get(path).await.body["suppressions"].as_array().map(Vec::len), Some(1));
    })
    .await;
}

#[tokio::test]
async fn a_conflicting_transaction_is_retried_and_one_whose_reply_is_lost_is_applied_once() {
    play_with(probe(), async |world| {
        for (number, action) in
            [Action::Conflict, Action::Throttle, Action::DropReply, Action::ErrorAfter].into_iter().enumerate()
        {
            let key = |part: &str| umavez_domain::keys::Key { pk: format!("row-{number}-{part}"), sk: "ROW".into() };
            let writes = vec![
                Write::put("probe-jobs", key("a"), &json!({"value": 1})).expect("a row").when(Condition::Absent),
                Write::update("probe-jobs", key("b")).increment("count"),
            ];
            call_fault(world, "test", "TransactWriteItems", action, 0, 2).await;
            let done = world.store.transact(&world.invocation(), writes).await;
            assert_eq!(done, Ok(Transacted::Done), "{action:?}");
            let row: Option<Value> = world.store.get(&world.invocation(), "probe-jobs", &key("b")).await.expect("read");
            assert_eq!(row.expect("the row")["count"], 1, "{action:?}");
            world.stack.clear_faults();
        }
    })
    .await;
}

#[tokio::test]
async fn a_caller_without_a_key_is_not_blocked_by_its_own_lost_reply() {
    play(async |world| {
        for (reference, action) in [(VAGA_A, Action::DropReply), (VAGA_B, Action::ErrorAfter)] {
            call_fault(world, "outbound-api", "UpdateItem", action, 0, 1).await;
            assert_allowed(&world.post("/intents", &offer(reference)).await);
            assert_blocked(&world.post("/intents", &offer(reference)).await);
        }
    })
    .await;
}

#[tokio::test]
async fn an_unavailable_store_is_a_503_and_the_same_key_may_retry() {
    let expected = Expected { server_errors: 2, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        // Throttled at every attempt of the SDK.
        call_fault(world, "outbound-api", "UpdateItem", Action::Throttle, 0, 3).await;
        let answer = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        answer.assert_problem(503, "unavailable", &[]);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_allowed(&world.post_with_key("a", "/intents", &offer(VAGA_A)).await);
        // Written, but the answer is lost.
        call_fault(world, "outbound-api", "UpdateItem", Action::ErrorAfter, 0, 3).await;
        world.post_with_key("b", "/intents", &offer(VAGA_B)).await.assert_problem(503, "unavailable", &[]);
        let again = world.post_with_key("b", "/intents", &offer(VAGA_B)).await;
        assert_allowed(&again);
        assert!(again.is_replayed());
    })
    .await;
}

#[tokio::test]
async fn a_503_names_the_holder_that_a_caller_without_a_key_may_have_become() {
    let expected = Expected { server_errors: 2, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        call_fault(world, "outbound-api", "UpdateItem", Action::ErrorAfter, 0, 3).await;
        let lost = world.post("/intents", &offer(VAGA_A)).await;
        lost.assert_problem(503, "unavailable", &[]);
        let holder = format!("request:{}", lost.text("/request_id"));
        assert!(lost.text("/detail").contains(&holder), "{}", lost.body);
        let blocked = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        assert_eq!(blocked.body["blocked_by"]["holder"], holder.as_str());
        // So the caller can release a hold whose answer was lost.
        let path = format!("/intents/{}/release", blocked.text("/fingerprint"));
        let released = world.post(&path, &json!({"client_id": CLIENT, "holder": holder})).await;
        assert_eq!(released.body["released"], true, "{}", released.body);
        assert_allowed(&world.post_with_key("a", "/intents", &offer(VAGA_A)).await);
        // The answer to a read only asks to retry.
        call_fault(world, "outbound-api", "Query", Action::Throttle, 0, 3).await;
        let read = world.get(&format!("/intents?client_id={CLIENT}")).await;
        read.assert_problem(503, "unavailable", &[]);
        assert!(!read.text("/detail").contains("request:"), "{}", read.body);
    })
    .await;
}

#[tokio::test]
async fn a_stalled_call_times_out_before_the_request_does() {
    let expected = Expected { server_errors: 1, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        call_fault(world, "outbound-api", "UpdateItem", Action::DelayAfter, 60_000, 9).await;
        let answer = world.post_with_key("a", "/intents", &offer(VAGA_A)).await;
        answer.assert_problem(503, "unavailable", &[]);
        world.stack.clear_faults();
        assert!(world.post_with_key("a", "/intents", &offer(VAGA_A)).await.is_replayed());
    })
    .await;
}

#[tokio::test]
async fn a_retry_with_the_key_succeeds_after_a_process_was_killed_at_its_write() {
    play(async |world| {
        for (reference, action, replayed) in [(VAGA_A, Action::KillBefore, false), (VAGA_B, Action::KillAfter, true)] {
            call_fault(world, "outbound-api", "UpdateItem", action, 0, 1).await;
            let answer = world.post_with_key("a", "/intents", &offer(reference)).await;
            assert_eq!(answer.status, 502, "{action:?}: {}", answer.body);
            let again = world.post_with_key("a", "/intents", &offer(reference)).await;
            assert_allowed(&again);
            assert_eq!(again.is_replayed(), replayed, "{action:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn only_the_calling_process_is_killed() {
    play(async |world| {
        // Warms up more than one process.
        join_all((0..8).map(|_| world.get("/health"))).await;
        let before = world.stack.functions().processes().len();
        assert!(before >= 2, "fewer than two processes are warm");
        call_fault(world, "outbound-api", "UpdateItem", Action::KillBefore, 0, 1).await;
        assert_eq!(world.post("/intents", &offer(VAGA_A)).await.status, 502);
        // The authorizer has started meanwhile; of the others one is gone.
        let authorizers =
            |processes: &[(String, u32)]| processes.iter().filter(|(name, _)| name.contains("authorizer")).count();
        let after = world.stack.functions().processes();
        assert!(after.len() - authorizers(&after) + 1 >= before, "{before} before, {after:?}");
    })
    .await;
}

#[tokio::test]
async fn the_log_line_of_a_failed_record_names_the_cause() {
    play_with(sending(3), async |world| {
        let denied = Scripted {
            status: 400,
            headers: Default::default(),
            body: json!({"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "not authorized"}),
        };
        let denied = CallFault { answer: Some(denied), ..CallFault::first(Action::Answer) };
        // The SDK makes three attempts for errors that may be transient.
        let throttled = CallFault { times: 3, ..CallFault::first(Action::Throttle) };
        let unavailable = CallFault { times: 3, ..CallFault::first(Action::ErrorBefore) };
        let cases = [
            (denied, "access_denied", "the store refused the request: AccessDeniedException"),
            (throttled, "throttled", "the store is throttling"),
            (unavailable, "unavailable", "the store did not answer"),
        ];
        for (number, (fault, outcome, cause)) in cases.into_iter().enumerate() {
            let (function, service) = (Some("outbound-sender".to_owned()), Some("dynamodb".to_owned()));
            world.stack.add_fault(Fault::Call(CallFault { function, service, ..fault })).await.expect("armed");
            let id = accept(world, outcome, &telegram("Oi")).await;
            world.drain().await;
            let failed = world.events("RECORD_FAILED");
            assert_eq!(failed.len(), number + 1, "one line per failed record: {failed:?}");
            let shown = failed.last().map(|line| (line["outcome"].clone(), line["cause"].clone()));
            assert_eq!(shown, Some((json!(outcome), json!(cause))));
            world.advance(Duration::from_secs(2)).await;
            assert_eq!(message(world, &id).await["status"], "SENT", "the message is redelivered soon");
        }
    })
    .await;
}

async fn create(world: &World, id: &str) {
    let request = world.request(Method::POST, "/jobs").json(&json!({"id": id}));
    assert_eq!(world.send(request).await.status, 201);
}

async fn delivery_fault(world: &World, source: &str, action: DeliveryAction, seconds: u64) {
    let fault = DeliveryFault { source: source.to_owned(), nth: 1, times: 1, action, seconds };
    world.stack.add_fault(Fault::Delivery(fault)).await.expect("armed");
}

fn outcomes(world: &World, wanted: &str) -> usize {
    world.events("RECORD_HANDLED").iter().filter(|line| line["outcome"] == wanted).count()
}

#[tokio::test]
async fn a_message_can_be_delivered_twice() {
    play_with(probe(), async |world| {
        delivery_fault(world, "probe-work", DeliveryAction::Twice, 0).await;
        create(world, "a").await;
        world.drain().await;
        assert_eq!((outcomes(world, "done"), outcomes(world, "already_done")), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_change_can_be_delivered_twice() {
    play_with(probe(), async |world| {
        delivery_fault(world, "probe-jobs", DeliveryAction::Twice, 0).await;
        create(world, "a").await;
        world.drain().await;
        assert_eq!(outcomes(world, "published"), 2, "the relay saw the change twice");
        // One of the two messages may have found the job leased, and is redelivered.
        world.advance(Duration::from_secs(61)).await;
        assert_eq!((outcomes(world, "done"), outcomes(world, "already_done")), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_message_can_be_late() {
    play_with(probe(), async |world| {
        delivery_fault(world, "probe-work", DeliveryAction::Late, 100).await;
        create(world, "a").await;
        world.drain().await;
        assert_eq!(outcomes(world, "done"), 0);
        world.advance(Duration::from_secs(101)).await;
        assert_eq!(outcomes(world, "done"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_change_can_be_late() {
    play_with(probe(), async |world| {
        delivery_fault(world, "probe-jobs", DeliveryAction::Late, 100).await;
        create(world, "a").await;
        world.drain().await;
        assert_eq!(outcomes(world, "published"), 0);
        world.advance(Duration::from_secs(101)).await;
        assert_eq!((outcomes(world, "published"), outcomes(world, "done")), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn messages_can_be_delivered_newest_first() {
    play_with(probe(), async |world| {
        let sqs = Aws::at_endpoint(world.stack.front_url(), "test").sqs();
        let url = format!("{}/000000000000/probe-work", world.stack.front_url());
        // Both become due together, so that they are in one batch.
        let mut ids = Vec::new();
        for id in ["first", "second"] {
            let body = json!({"kind": "job", "v": 1, "id": id}).to_string();
            let sent =
                sqs.send_message().queue_url(&url).message_body(body).delay_seconds(30).send().await.expect("sent");
            ids.push(json!(sent.message_id()));
        }
        world.drain().await;
        delivery_fault(world, "probe-work", DeliveryAction::Reversed, 0).await;
        world.advance(Duration::from_secs(31)).await;
        let handled: Vec<_> = world.events("RECORD_HANDLED").iter().map(|line| line["record"].clone()).collect();
        ids.reverse();
        assert_eq!(handled, ids);
        assert_eq!(world.stack.faults().waiting(), []);
    })
    .await;
}

#[tokio::test]
async fn a_tick_can_come_twice_or_not_at_all() {
    play_with(probe(), async |world| {
        let fault = |action| {
            Fault::Tick(TickFault { schedule: "ProbeRecoveryTick".into(), nth: 1, times: 1, action, seconds: 0 })
        };
        let scans = || {
            world
                .stack
                .calls()
                .totals()
                .iter()
                .find(|(_, _, operation, _)| operation == "Scan")
                .map_or(0, |row| row.3.calls)
        };
        world.stack.add_fault(fault(TickAction::Skip)).await.expect("armed");
        assert!(world.stack.tick("ProbeRecoveryTick").await);
        assert_eq!(scans(), 0);
        world.stack.clear_faults();
        world.stack.add_fault(fault(TickAction::Twice)).await.expect("armed");
        assert!(world.stack.tick("ProbeRecoveryTick").await);
        assert_eq!(scans(), 2);
    })
    .await;
}

#[tokio::test]
async fn frozen_indexes_show_old_rows_and_tables_show_current_ones() {
    play_with(probe(), async |world| {
        let client = Aws::at_endpoint(world.stack.front_url(), "test").dynamodb();
        let pending = async || {
            let query =
                client.query().table_name("probe-jobs").index_name("by-state").key_condition_expression("#s = :s");
            let query = query
                .expression_attribute_names("#s", "state")
                .expression_attribute_values(":s", AttributeValue::S("DONE".into()));
            query.send().await.expect("a query").items().len()
        };
        create(world, "a").await;
        world.drain().await;
        assert_eq!(pending().await, 1);
        world.stack.add_fault(Fault::FrozenIndexes {}).await.expect("armed");
        create(world, "b").await;
        world.drain().await;
        assert_eq!(pending().await, 1, "the index still shows the old state");
        assert_eq!(world.rows("JobsTable").await.iter().filter(|row| row["state"] == "DONE").count(), 2);
        world.stack.clear_faults();
        assert_eq!(pending().await, 2);
    })
    .await;
}

#[tokio::test]
async fn faults_are_added_listed_and_cleared_over_http() {
    let expected = Expected { server_errors: 1, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        let path = "/_local/faults";
        let fault =
            json!({"call": {"function": "outbound-api", "operation": "UpdateItem", "times": 3, "action": "throttle"}});
        let added = world.send(world.request(Method::POST, path).json(&fault)).await;
        assert_eq!(added.status, 200, "{}", added.body);
        assert_eq!(added.body["faults"][0]["call"]["action"], "throttle");
        world.post("/intents", &offer(VAGA_A)).await.assert_problem(503, "unavailable", &[]);
        let listed = world.send(world.request(Method::GET, path)).await;
        assert_eq!(listed.body, json!({"faults": []}), "the fault is used up");
        world.send(world.request(Method::POST, path).json(&fault)).await;
        world.send(world.request(Method::DELETE, path)).await;
        assert_allowed(&world.post("/intents", &offer(VAGA_A)).await);
        let never = json!({"call": {"nth": 0, "action": "throttle"}});
        assert_eq!(world.send(world.request(Method::POST, path).json(&never)).await.status, 422);
        let unknown = json!({"call": {"functoin": "x", "action": "throttle"}});
        assert_eq!(world.send(world.request(Method::POST, path).json(&unknown)).await.status, 422);
    })
    .await;
}

async fn notify(world: &World) -> Answer {
    world.send(world.request(Method::POST, "/notify")).await
}

#[tokio::test]
async fn calls_to_providers_pass_the_front_and_can_have_faults() {
    let expected = Expected { sent: 3, ..Expected::default() };
    play_with(probe().expecting(expected), async |world| {
        world.canary("canary-token");
        assert_eq!(notify(world).await.body["status"], 200);
        // Nothing was sent, and the provider says so.
        call_fault(world, "probe-api", "sendMessage", Action::Throttle, 0, 1).await;
        assert_eq!(notify(world).await.body["status"], 429);
        assert_eq!(world.stack.catcher().sent(Some("telegram"), Some("7")).len(), 1);
        // It was sent, but the answer is lost.
        call_fault(world, "probe-api", "sendMessage", Action::DropReply, 0, 1).await;
        assert_eq!(notify(world).await.body["status"], Value::Null);
        call_fault(world, "probe-api", "sendMessage", Action::KillAfter, 0, 1).await;
        assert_eq!(notify(world).await.status, 502);
        let sent = world.stack.catcher().sent(Some("telegram"), None);
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|sent| sent.caller == "probe-api" && !sent.path.contains("canary-token")));
        let calls = world.stack.calls().totals();
        let counted = calls.iter().find(|(_, service, ..)| service == "telegram").expect("counted");
        assert_eq!((counted.0.as_str(), counted.2.as_str(), counted.3.calls), ("probe-api", "sendMessage", 4));
    })
    .await;
}

#[tokio::test]
async fn a_fault_at_a_provider_kills_only_the_calling_process() {
    let expected = Expected { sent: 3, ..Expected::default() };
    play_with(probe().expecting(expected), async |world| {
        // Two calls are delayed in two processes while a third one is killed.
        call_fault(world, "probe-api", "sendMessage", Action::DelayAfter, 400, 2).await;
        let third = CallFault {
            function: Some("probe-api".into()),
            service: Some("telegram".into()),
            operation: None,
            target: None,
            nth: 3,
            times: 1,
            action: Action::KillAfter,
            delay_ms: 0,
            answer: None,
        };
        world.stack.add_fault(Fault::Call(third)).await.expect("armed");
        let answers = join_all((0..3).map(|_| notify(world))).await;
        let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 502]);
    })
    .await;
}
