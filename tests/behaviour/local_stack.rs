//! The local stack itself: processes that die, a clock that moves, state that persists.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use umavez_local::{Options, Stack, StackError};
use umavez_tests::{KEY, Setup, World, play, play_with, template};

use crate::intents::{CLIENT, VAGA_A, VAGA_B, assert_allowed, assert_blocked, offer};

#[tokio::test]
async fn a_function_killed_under_load_fails_only_its_own_requests() {
    play(async |world| {
        let fault = json!({"call": {
            "function": "outbound-api", "operation": "UpdateItem", "nth": 5, "times": 3, "action": "kill_after",
        }});
        world.stack.add_fault(serde_json::from_value(fault).expect("a fault")).await.expect("armed");
        let body = offer(VAGA_A);
        let answers = join_all((0..60).map(|number| {
            let body = &body;
            async move { world.post_with_key(&format!("order-{number}"), "/intents", body).await }
        }))
        .await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 502).count(), 3);
        let allowed = answers.iter().filter(|answer| answer.body["can_send"] == true).count();
        assert!(allowed <= 1, "{allowed} may send");
        assert!(answers.iter().all(|answer| [200, 502].contains(&answer.status)));
        // The stack still works: clients without an answer retry with their key.
        let again = join_all((0..60).map(|number| {
            let body = &body;
            async move { world.post_with_key(&format!("order-{number}"), "/intents", body).await }
        }))
        .await;
        assert_eq!(again.iter().filter(|answer| answer.body["can_send"] == true).count(), 1);
    })
    .await;
}

#[tokio::test]
async fn every_call_is_attributed_to_its_function() {
    play(async |world| {
        assert_allowed(&world.post("/intents", &offer(VAGA_A)).await);
        let callers: Vec<_> = world
            .stack
            .calls()
            .totals()
            .into_iter()
            .filter(|(caller, ..)| caller != "test")
            .map(|(caller, service, operation, total)| (caller, service, operation, total.calls))
            .collect();
        let call = |caller: &str, operation: &str| (caller.to_owned(), "dynamodb".to_owned(), operation.to_owned(), 1);
        assert_eq!(callers, [call("authorizer", "GetItem"), call("outbound-api", "UpdateItem")]);
    })
    .await;
}

#[tokio::test]
async fn functions_use_the_advanced_time() {
    play(async |world| {
        let before = world.stack.clock().offset_ms();
        world.advance(Duration::from_secs(40 * 86_400)).await;
        let answer = world.post("/intents", &offer(VAGA_A)).await;
        assert_allowed(&answer);
        let days = umavez_domain::time::Timestamp::parse(&answer.text("/expires_at")).expect("a time").seconds();
        let expected = world.now().plus_days(30).seconds();
        assert!((expected - 60..=expected).contains(&days));
        let clock = world.send(world.request(reqwest::Method::GET, "/_local/clock")).await;
        assert_eq!(clock.body["offset_seconds"], before / 1_000 + 40 * 86_400);
    })
    .await;
}

fn options(data: Option<std::path::PathBuf>, port: u16) -> Options {
    Options { port, data, ..Options::in_memory(template()) }
}

/// A directory that is deleted with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("umavez-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn state_and_moved_time_survive_a_restart() {
    play(async |_builds_the_functions| {}).await;
    let scratch = Scratch::new("restart");
    // At noon, so that no day ends during the test.
    let until_noon = (43_200_000 - umavez_platform::clock::Clock::default().now().millis()).rem_euclid(86_400_000);
    let at_noon = Options { clock_offset_ms: until_noon, ..options(Some(scratch.0.clone()), 0) };
    let first = World::of(Stack::start(at_noon).await.expect("starts"));
    first.create_key(KEY, &["*"]).await;
    assert_allowed(&first.post("/intents", &offer(VAGA_A)).await);
    first.advance(Duration::from_secs(3_600)).await;
    assert_allowed(&first.post("/intents", &offer(VAGA_B)).await);
    first.stack.stop().await.expect("stops");

    let second = World::of(Stack::start(options(Some(scratch.0.clone()), 0)).await.expect("starts again"));
    assert_eq!(second.stack.clock().offset_ms(), until_noon + 3_600_000);
    assert_blocked(&second.post("/intents", &offer(VAGA_B)).await);
    let listed = second.get(&format!("/intents?client_id={CLIENT}")).await;
    assert_eq!(listed.body["intents"].as_array().map(Vec::len), Some(2), "{}", listed.body);
    second.stack.stop().await.expect("stops");
}

const PROBE: &str = include_str!("../fixtures/probe.yaml");

#[tokio::test]
async fn waiting_messages_dead_letters_and_positions_survive_a_restart() {
    play(async |_builds_the_functions| {}).await;
    let scratch = Scratch::new("messages");
    let of_probe = || Options { template: PROBE.to_owned(), schedules: false, ..options(Some(scratch.0.clone()), 0) };
    let first = World::of(Stack::start(of_probe()).await.expect("starts"));
    let create = first.request(reqwest::Method::POST, "/jobs").json(&json!({"id": "later", "delay_seconds": 600}));
    assert_eq!(first.send(create).await.status, 201);
    first.stack.queues().put("probe-work-dlq", "a dead letter").await.expect("put");
    first.drain().await;
    let relayed = first.events("RECORD_HANDLED").len();
    first.stack.stop().await.expect("stops");

    let second = World::of(Stack::start(of_probe()).await.expect("starts again"));
    second.drain().await;
    assert_eq!(relayed, 1);
    assert_eq!(second.events("RECORD_HANDLED").len(), 0, "the stream continues at its position");
    let counts = second.stack.queues().counts("probe-work").await.expect("counts");
    assert_eq!((counts.waiting, counts.visible, counts.moving), (1, 0, 0), "the message still waits");
    assert_eq!(second.stack.queues().counts("probe-work-dlq").await.expect("counts").visible, 1);
    second.advance(Duration::from_secs(601)).await;
    assert_eq!(second.rows("JobsTable").await[0]["state"], "DONE");
    second.stack.stop().await.expect("stops");
}

#[tokio::test]
async fn state_of_another_template_or_unreadable_state_is_refused() {
    play(async |_builds_the_functions| {}).await;
    let scratch = Scratch::new("other");
    let of = |template: &str| Options { template: template.to_owned(), ..options(Some(scratch.0.clone()), 0) };
    Stack::start(of(PROBE)).await.expect("starts").stop().await.expect("stops");
    let other = PROBE.replace("IndexName: by-state", "IndexName: by-another");
    let error = Stack::start(of(&other)).await.err().expect("refused").to_string();
    assert!(error.starts_with("the table probe-jobs was made by another template"), "{error}");
    std::fs::write(scratch.0.join("state.json"), "{").expect("written");
    let error = Stack::start(of(PROBE)).await.err().expect("refused").to_string();
    assert!(error.contains("state.json cannot be read"), "{error}");
}

#[tokio::test]
async fn one_bad_change_among_a_hundred_fails_alone() {
    let expected = umavez_tests::Expected { dead_letters: 1, ..Default::default() };
    play_with(Setup::of_template(PROBE).expecting(expected), async |world| {
        // The relay fails at once for an unknown queue; the other emissions are published.
        for number in 0..100 {
            let queue = if number == 0 { "nowhere" } else { "work" };
            let body = json!({"kind": "job", "v": 1, "id": "none"}).to_string();
            let row = json!({"emit": {"seq": 1, "queue": queue, "id": format!("e{number}"), "body": body}});
            let key = umavez_domain::keys::Key { pk: format!("row-{number:03}"), sk: "ROW".into() };
            let write = umavez_platform::store::Write::put("probe-jobs", key, &row).expect("a row");
            world.store.write(&world.invocation(), write).await.expect("written");
        }
        world.drain().await;
        let shown = world.events("RECORD_HANDLED");
        assert_eq!(shown.iter().filter(|line| line["outcome"] == "no_such_job").count(), 99);
    })
    .await;
}

#[tokio::test]
async fn a_directory_or_port_in_use_is_refused() {
    play(async |world| {
        let port = world.stack.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let same_port = Stack::start(options(None, port)).await.err().expect("refused");
        assert_eq!(
            same_port.to_string(),
            format!("port {port} is in use: another stack may be running; stop it or choose one with --port")
        );
        let scratch = Scratch::new("twice");
        let first = Stack::start(options(Some(scratch.0.clone()), 0)).await.expect("starts");
        let second = Stack::start(options(Some(scratch.0.clone()), 0)).await.err().expect("refused");
        assert!(matches!(second, StackError::DataInUse(_)), "{second}");
        first.stop().await.expect("stops");
    })
    .await;
}

#[tokio::test]
async fn a_template_with_an_unknown_type_is_refused_by_name() {
    let unknown = template().replace("\nOutputs:", "\n  Topic:\n    Type: AWS::SNS::Topic\n\nOutputs:");
    let error = Stack::start(Options { template: unknown, ..options(None, 0) }).await.err().expect("refused");
    assert_eq!(
        error.to_string(),
        "template.yaml: Resources.Topic: the local stack does not know the type AWS::SNS::Topic"
    );
}

#[tokio::test]
async fn the_local_routes_show_the_stack_and_advance_its_clock() {
    play(async |world| {
        let about = world.send(world.request(reqwest::Method::GET, "/_local")).await;
        let functions: Vec<_> = world.stack.model().functions.iter().map(|function| &function.binary).collect();
        assert_eq!(about.body["functions"], json!(functions));
        assert!(functions.iter().any(|function| *function == "authorizer"));
        let drained = world.send(world.request(reqwest::Method::POST, "/_local/drain")).await;
        assert_eq!((drained.status, &drained.body), (200, &json!({"drained": true})));
        let sent = world.send(world.request(reqwest::Method::GET, "/_local/sent")).await;
        assert_eq!(sent.body, json!({"sent": []}));
        let before = world.stack.clock().offset_ms();
        let body = json!({"advance_seconds": 60});
        let moved = world.send(world.request(reqwest::Method::POST, "/_local/clock").json(&body)).await;
        assert_eq!(moved.status, 200, "{}", moved.body);
        assert_eq!(world.stack.clock().offset_ms(), before + 60_000);
        let body = json!({"advance_seconds": 99_999_999_999_u64});
        assert_eq!(world.send(world.request(reqwest::Method::POST, "/_local/clock").json(&body)).await.status, 422);
        let body = json!({"function": "nobody"});
        assert_eq!(world.send(world.request(reqwest::Method::POST, "/_local/kill").json(&body)).await.status, 404);
    })
    .await;
}
