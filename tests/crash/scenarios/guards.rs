//! Guards of intentions: scheduled messages are accepted and cancelled, and the guard lists exactly
//! what stands.

use serde_json::{Value, json};
use umavez_tests::Setup;

use crate::run::{Run, body};
use crate::scenario::Scenario;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";

pub fn scenarios() -> Vec<Scenario> {
    let guarded = || {
        let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
        Setup::default().parameter("IntentTypeOptions", &options.to_string())
    };
    vec![
        Scenario {
            name: "scheduled messages under one guard are cancelled",
            setup: guarded,
            play: |run| Box::pin(cancel_scheduled(run)),
            audit: |run| Box::pin(only_the_sent_one_stands(run)),
            concurrent: false,
            swept: false,
            strikes: |point| point.function == "outbound-api",
        },
        Scenario {
            name: "holds are taken and given back under one guard at once",
            setup: guarded,
            play: |run| Box::pin(change_at_once(run)),
            audit: |run| Box::pin(stand_on(run, &[17, 25])),
            concurrent: true,
            swept: false,
            strikes: |point| point.function == "outbound-api" && point.operation == "TransactWriteItems",
        },
    ]
}

fn reference(campaign: i64) -> String {
    format!("1e2feb89-7ed4-4c2c-9cc4-a6ce78e510{campaign:02}")
}

/// A message that is to be sent in so many days, of a campaign of its own.
async fn schedule(run: &Run, days: i64) -> String {
    let intent =
        body(&[("client_id", CLIENT), ("intent_type", "discovery_first_touch"), ("reference_id", &reference(days))]);
    let message = json!({
        "channel": "telegram", "to": "987654321", "content": {"text": "Oi"}, "intent": intent,
        // The whole second of the run's day: a request that is repeated has the same body.
        "send_at": run.world.now().plus_days(days).to_string()[..11].to_owned() + "23:00:00Z",
    });
    let answer = run.ask(&format!("schedule {days}"), &format!("d{days}"), "/outbound/messages", &message).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("QUEUED")), "{}", answer.body);
    answer.text("/message_id")
}

async fn cancel(run: &Run, id: &str) {
    let answer = run.ask(&format!("cancel {id}"), id, &format!("/outbound/messages/{id}/cancel"), &json!({})).await;
    assert_eq!((answer.status, &answer.body["status"]), (200, &json!("CANCELED")), "{}", answer.body);
}

async fn check(run: &Run, key: &str, campaign: i64) -> Value {
    let asked = body(&[
        ("client_id", CLIENT),
        ("intent_type", "discovery_first_touch"),
        ("reference_id", &reference(campaign)),
    ]);
    run.ask(&format!("check by {key}"), key, "/intents", &asked).await.body["can_send"].clone()
}

async fn cancel_scheduled(run: &Run) {
    assert_eq!(check(run, "a", 0).await, true);
    let (second, third) = (schedule(run, 9).await, schedule(run, 17).await);
    cancel(run, &third).await;
    cancel(run, &second).await;
    assert_eq!(check(run, "b", 1).await, false, "two sends inside one window");
}

async fn change_at_once(run: &Run) {
    let first = schedule(run, 9).await;
    tokio::join!(cancel(run, &first), schedule(run, 17), schedule(run, 25));
}

async fn only_the_sent_one_stands(run: &Run) {
    stand_on(run, &[0]).await;
}

/// The guard has the holds of these days, and no others.
async fn stand_on(run: &Run, days: &[i64]) {
    let rows = run.world.rows("IntentsTable").await;
    let guards: Vec<_> = rows.iter().filter(|row| row["holds"].is_array()).collect();
    assert_eq!(guards.len(), 1, "one guard");
    let standing: Vec<_> =
        guards[0]["holds"].as_array().into_iter().flatten().map(|hold| &hold["reference_id"]).collect();
    let expected: Vec<_> = days.iter().map(|days| json!(reference(*days))).collect();
    assert_eq!(standing, expected.iter().collect::<Vec<_>>());
}
