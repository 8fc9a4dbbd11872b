//! The primitives as functions use them: the outbox, queue and stream mappings, schedules, leases,
//! and panics.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_platform::aws::Aws;
use umavez_tests::{Answer, Expected, Setup, World, play_with};

const PROBE: &str = include_str!("../fixtures/probe.yaml");

fn probe() -> Setup {
    Setup::of_template(PROBE)
}

async fn create(world: &World, id: &str, owner: &str) -> Answer {
    let request = world.request(Method::POST, "/jobs").json(&json!({"id": id})).header("idempotency-key", owner);
    world.send(request).await
}

async fn job(world: &World, id: &str) -> Value {
    let rows = world.rows("JobsTable").await;
    rows.into_iter().find(|row| row["id"] == id).expect("the job")
}

async fn send(world: &World, body: &str, delay_seconds: i32) {
    let sqs = Aws::at_endpoint(world.stack.front_url(), "test").sqs();
    let url = format!("{}/000000000000/probe-work", world.stack.front_url());
    sqs.send_message().queue_url(url).message_body(body).delay_seconds(delay_seconds).send().await.expect("sent");
}

/// Kills a function's process when it hangs for the nth time.
async fn kill_in_the_middle(world: &World, function: &str, nth: usize) {
    let hangs = |line: &umavez_local::functions::LogLine| line.line.contains("HANGING");
    let limit = Duration::from_secs(30);
    let logs = world.stack.logs();
    logs.wait_for(0, limit, |line| {
        hangs(line)
            && logs.since(0).iter().filter(|earlier| hangs(earlier) && earlier.number <= line.number).count() == nth
    })
    .await
    .expect("it hangs");
    assert_eq!(world.stack.functions().kill(function).await, Ok(1));
}

fn outcomes(world: &World) -> Vec<String> {
    let of = |name: &str| world.events(name).into_iter().map(|line| line["outcome"].as_str().unwrap_or("").to_owned());
    let mut all: Vec<_> =
        ["RECORD_HANDLED", "RECORD_FAILED", "RECORD_POSTPONED", "RECORD_UNREADABLE"].into_iter().flat_map(of).collect();
    all.retain(|outcome| outcome != "published" && outcome != "nothing_to_publish");
    all.sort();
    all
}

#[tokio::test]
async fn the_work_that_a_row_emits_is_done_once() {
    play_with(probe(), async |world| {
        let created = create(world, "a", "me").await;
        assert_eq!((created.status, &created.body["created"]), (201, &json!(true)));
        world.drain().await;
        let job = job(world, "a").await;
        assert_eq!(job["state"], "DONE");
        assert_eq!(job["completions"].as_array().map(Vec::len), Some(1), "{job}");
        assert_eq!(outcomes(world), ["done"]);
        // The row changed three times (created, leased, done) and emitted once.
        let published = world.events("RECORD_HANDLED").iter().filter(|line| line["outcome"] == "published").count();
        assert_eq!(published, 1);
    })
    .await;
}

#[tokio::test]
async fn of_many_concurrent_creators_of_one_job_one_is_the_owner() {
    play_with(probe(), async |world| {
        let owners: Vec<_> = (0..40).map(|number| format!("owner-{number}")).collect();
        let answers = join_all(owners.iter().map(|owner| create(world, "a", owner))).await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        let owner = answers[0].body["owner"].clone();
        assert!(answers.iter().all(|answer| answer.body["owner"] == owner));
        let winner = owner.as_str().expect("a name").to_owned();
        assert_eq!(create(world, "a", &winner).await.body["created"], true, "its owner's retry");
    })
    .await;
}

#[tokio::test]
async fn a_delayed_emission_is_delivered_at_its_time_by_the_stacks_clock() {
    play_with(probe(), async |world| {
        let request = world.request(Method::POST, "/jobs").json(&json!({"id": "a", "delay_seconds": 600}));
        assert_eq!(world.send(request).await.status, 201);
        world.drain().await;
        assert_eq!(job(world, "a").await["state"], "PENDING");
        world.advance(Duration::from_secs(590)).await;
        assert_eq!(job(world, "a").await["state"], "PENDING");
        world.advance(Duration::from_secs(11)).await;
        assert_eq!(job(world, "a").await["state"], "DONE");
    })
    .await;
}

#[tokio::test]
async fn a_message_delivered_twice_changes_nothing() {
    play_with(probe(), async |world| {
        create(world, "a", "me").await;
        world.drain().await;
        for _ in 0..3 {
            send(world, r#"{"kind":"job","v":1,"id":"a"}"#, 0).await;
        }
        world.drain().await;
        assert_eq!(job(world, "a").await["completions"].as_array().map(Vec::len), Some(1));
        assert_eq!(outcomes(world), ["already_done", "already_done", "already_done", "done"]);
    })
    .await;
}

#[tokio::test]
async fn a_poison_message_ends_in_the_dead_letter_queue_and_its_neighbours_do_not() {
    let expected = Expected { dead_letters: 2, ..Expected::default() };
    play_with(probe().expecting(expected), async |world| {
        send(world, "not json", 0).await;
        send(world, r#"{"kind":"job","v":99,"id":"a"}"#, 0).await;
        create(world, "a", "me").await;
        world.drain().await;
        assert_eq!(job(world, "a").await["state"], "DONE");
        // Three receives, a visibility timeout apart.
        for _ in 0..3 {
            world.advance(Duration::from_secs(61)).await;
        }
        assert_eq!(world.events("RECORD_UNREADABLE").len(), 6);
    })
    .await;
}

#[tokio::test]
async fn a_panic_fails_only_its_own_message_and_its_text_is_not_shown() {
    let expected = Expected { dead_letters: 1, panics: 4, server_errors: 1, ..Expected::default() };
    play_with(probe().expecting(expected), async |world| {
        world.canary("canary-panic");
        send(world, r#"{"kind":"panic"}"#, 0).await;
        create(world, "a", "me").await;
        world.drain().await;
        assert_eq!(job(world, "a").await["state"], "DONE");
        for _ in 0..3 {
            world.advance(Duration::from_secs(61)).await;
        }
        let answer = world.send(world.request(Method::POST, "/panic")).await;
        answer.assert_problem(500, "internal", &[]);
        assert!(!answer.body.to_string().contains("canary-panic"));
    })
    .await;
}

#[tokio::test]
async fn a_message_whose_worker_is_killed_is_redelivered_after_its_visibility_timeout() {
    let expected = Expected { dead_letters: 1, ..Expected::default() };
    play_with(probe().expecting(expected), async |world| {
        send(world, r#"{"kind":"hang"}"#, 0).await;
        for round in 1..=3 {
            kill_in_the_middle(world, "probe-worker", round).await;
            world.drain().await;
            let counts = world.stack.queues().counts("probe-work").await.expect("counts");
            assert_eq!((counts.waiting, counts.visible, counts.moving), (1, 0, 0));
            world.stack.clock().advance(Duration::from_secs(61));
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_function_is_killed_gets_a_502_and_the_next_is_served() {
    play_with(probe(), async |world| {
        let hanging = world.send(world.request(Method::POST, "/hang"));
        let (answer, ()) = tokio::join!(hanging, kill_in_the_middle(world, "probe-api", 1));
        assert_eq!(answer.status, 502);
        assert_eq!(create(world, "a", "me").await.status, 201);
    })
    .await;
}

#[tokio::test]
async fn recovery_emits_a_lost_message_once_however_often_it_ticks() {
    play_with(probe(), async |world| {
        // A pending job whose message was lost.
        let request = world.request(Method::POST, "/jobs").json(&json!({"id": "a", "delay_seconds": 100}));
        assert_eq!(world.send(request).await.status, 201);
        world.drain().await;
        assert_eq!(world.stack.queues().counts("probe-work").await.expect("counts").waiting, 1);
        world.stack.queues().forget("probe-work").await.expect("forgotten");
        let recover = async || world.deliver("probe-recovery", &json!({})).await;
        assert_eq!(recover().await, json!({"emitted": 0}), "not overdue yet");
        world.advance(Duration::from_secs(161)).await;
        let ticks = join_all((0..4).map(|_| recover())).await;
        let emitted: i64 = ticks.iter().filter_map(|tick| tick["emitted"].as_i64()).sum();
        assert_eq!(emitted, 1);
        world.drain().await;
        let job = job(world, "a").await;
        assert_eq!((&job["state"], job["completions"].as_array().map(Vec::len)), (&json!("DONE"), Some(1)));
    })
    .await;
}

#[tokio::test]
async fn a_schedule_fires_by_its_id() {
    play_with(probe(), async |world| {
        assert!(world.stack.tick("ProbeRecoveryTick").await);
        assert!(!world.stack.tick("Nothing").await);
        let calls = world.stack.calls().totals();
        assert!(calls.iter().any(|(caller, _, operation, _)| caller == "probe-recovery" && operation == "Scan"));
    })
    .await;
}
