//! Jobs of the probe: created once, enqueued with the write, processed under a lease, completed
//! once.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_tests::Setup;

use crate::run::Run;
use crate::scenario::Scenario;

pub fn scenarios() -> Vec<Scenario> {
    let probe = || Setup::of_template(include_str!("../../fixtures/probe.yaml"));
    vec![
        Scenario {
            name: "a job is created and done",
            setup: probe,
            play: |run| Box::pin(create(run)),
            audit: |run| Box::pin(done_once(run)),
            concurrent: false,
            swept: true,
            strikes: |_| true,
        },
        Scenario {
            name: "a job is created for later",
            setup: probe,
            play: |run| Box::pin(create_for_later(run)),
            audit: |run| Box::pin(done_once(run)),
            concurrent: false,
            swept: true,
            strikes: |_| true,
        },
        Scenario {
            name: "rivals create one job",
            setup: probe,
            play: |run| Box::pin(rivals(run)),
            audit: |run| Box::pin(done_once(run)),
            concurrent: true,
            swept: true,
            strikes: |_| true,
        },
    ]
}

async fn ask(run: &Run, key: &str, body: &Value) -> bool {
    let answer = run.ask(&format!("create by {key}"), key, "/jobs", body).await;
    let created = answer.body["created"].as_bool().expect("a decision");
    assert_eq!(created, answer.body["owner"] == key, "{key} got the answer that it is a duplicate of itself");
    created
}

async fn create(run: &Run) {
    assert!(ask(run, "a", &json!({"id": "j"})).await, "there was no other request");
    run.world.drain().await;
    assert!(ask(run, "a", &json!({"id": "j"})).await, "its owner repeats the request");
    assert!(!ask(run, "b", &json!({"id": "j"})).await);
}

async fn create_for_later(run: &Run) {
    assert!(ask(run, "a", &json!({"id": "j", "delay_seconds": 30})).await, "there was no other request");
    run.world.advance(Duration::from_secs(31)).await;
}

async fn rivals(run: &Run) {
    let body = json!({"id": "j"});
    let (a, b, c) = tokio::join!(ask(run, "a", &body), ask(run, "b", &body), ask(run, "c", &body));
    let owners = [a, b, c].into_iter().filter(|created| *created).count();
    assert_eq!(owners, 1, "of three rivals {owners} created it");
}

/// I1, I2, I3: there is one row, its work was found, and one turn completed it.
async fn done_once(run: &Run) {
    let rows = run.world.rows("JobsTable").await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["state"], "DONE", "accepted, and lost: it is {}", rows[0]["state"]);
    let completions = rows[0]["completions"].as_array().map_or(0, Vec::len);
    assert_eq!(completions, 1, "completed {completions} times");
}
