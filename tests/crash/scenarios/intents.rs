//! Intents: one holder, which gets a positive answer; no client is blocked by its own hold; a
//! release frees exactly the hold that it names.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_tests::{Answer, Setup};

use crate::run::{Run, body};
use crate::scenario::Scenario;

const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
const CAMPAIGN_A: &str = "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061";
const CAMPAIGN_B: &str = "d5f4b3b2-63ca-46ec-a6e0-c464c324c985";

pub fn scenarios() -> Vec<Scenario> {
    let product = || Setup::default();
    let guarded = || {
        let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
        Setup::default().parameter("IntentTypeOptions", &options.to_string())
    };
    vec![
        Scenario {
            name: "an intent is held",
            setup: product,
            play: |run| Box::pin(hold(run)),
            audit: |run| Box::pin(holder_is(run, ":a")),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "an intent is held without a key",
            setup: product,
            play: |run| Box::pin(hold_without_key(run)),
            audit: |run| Box::pin(one_row(run)),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "a guarded intent is held",
            setup: guarded,
            play: |run| Box::pin(hold_guarded(run)),
            audit: |run| Box::pin(holder_is(run, ":a")),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "an intent is released",
            setup: product,
            play: |run| Box::pin(release(run)),
            audit: |run| Box::pin(holder_is(run, ":b")),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "a guarded intent is released",
            setup: guarded,
            play: |run| Box::pin(release(run)),
            audit: |run| Box::pin(holder_is(run, ":b")),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "an intent expires",
            setup: product,
            play: |run| Box::pin(expire(run)),
            audit: |run| Box::pin(expiry_is_logged(run)),
            concurrent: false,
            swept: false,
            strikes: |_| true,
        },
        Scenario {
            name: "rivals ask at once",
            setup: guarded,
            play: |run| Box::pin(rivals(run)),
            audit: |run| Box::pin(one_row(run)),
            concurrent: true,
            swept: false,
            strikes: |_| true,
        },
    ]
}

fn touch(campaign: &str) -> Value {
    body(&[("client_id", CLIENT), ("intent_type", "discovery_first_touch"), ("reference_id", campaign)])
}

fn may_send(answer: &Answer) -> bool {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let can_send = answer.body["can_send"].as_bool().expect("a decision");
    // I1, as a caller sees it: a client that may send holds the intent, and a client that may not
    // gets the name of the other holder.
    assert_eq!(answer.body["blocked_by"].is_null(), can_send);
    can_send
}

/// Checks that no client is blocked by its own hold.
fn assert_not_by_itself(answer: &Answer, key: &str) {
    let by = answer.body["blocked_by"]["holder"].as_str().unwrap_or_default();
    assert!(!by.ends_with(&format!(":{key}")), "{key} got the answer that it is a duplicate of itself");
}

async fn hold(run: &Run) {
    for (key, allowed) in [("a", true), ("a", true), ("b", false)] {
        let answer = run.ask(&format!("check by {key}"), key, "/intents", &touch(CAMPAIGN_A)).await;
        assert_eq!(may_send(&answer), allowed, "{key}");
        assert_not_by_itself(&answer, key);
    }
}

async fn hold_without_key(run: &Run) {
    let first = run.ask_once("check", "/intents", &touch(CAMPAIGN_A)).await;
    if first.status < 500 {
        assert!(may_send(&first), "blocked, but there was no other request");
    }
    let second = run.ask("check by b", "b", "/intents", &touch(CAMPAIGN_A)).await;
    if first.status < 500 {
        assert!(!may_send(&second));
    }
}

async fn hold_guarded(run: &Run) {
    for (key, campaign, allowed) in
        [("a", CAMPAIGN_A, true), ("b", CAMPAIGN_B, false), ("a", CAMPAIGN_A, true), ("c", CAMPAIGN_A, false)]
    {
        let answer = run.ask(&format!("check by {key}"), key, "/intents", &touch(campaign)).await;
        assert_eq!(may_send(&answer), allowed, "{key}");
        assert_not_by_itself(&answer, key);
    }
}

async fn release(run: &Run) {
    let held = run.ask("check by a", "a", "/intents", &touch(CAMPAIGN_A)).await;
    assert!(may_send(&held));
    let path = format!("/intents/{}/release", held.text("/fingerprint"));
    let client = body(&[("client_id", CLIENT)]);
    let released = run.ask("release", "r", &path, &client).await;
    assert_eq!(released.body["released"], true, "{}", released.body);
    let next = run.ask("check by b", "b", "/intents", &touch(CAMPAIGN_A)).await;
    assert!(may_send(&next), "released, but not free: {}", next.body);
    let again = run.ask("release again", "r", &path, &client).await;
    assert_eq!(again.body["released"], true, "{}", again.body);
    let third = run.ask("check by c", "c", "/intents", &touch(CAMPAIGN_A)).await;
    assert!(!may_send(&third), "the repeated release freed the hold of the next holder");
}

async fn expire(run: &Run) {
    assert!(may_send(&run.ask("check by a", "a", "/intents", &touch(CAMPAIGN_A)).await));
    run.world.advance(Duration::from_secs(31 * 86_400)).await;
    assert!(may_send(&run.ask("check by b", "b", "/intents", &touch(CAMPAIGN_A)).await));
}

async fn rivals(run: &Run) {
    let ask =
        async |key: &str, campaign: &str| run.ask(&format!("check by {key}"), key, "/intents", &touch(campaign)).await;
    let answers = tokio::join!(ask("a", CAMPAIGN_A), ask("b", CAMPAIGN_B), ask("c", CAMPAIGN_A));
    let allowed = [&answers.0, &answers.1, &answers.2].into_iter().filter(|answer| may_send(answer)).count();
    assert_eq!(allowed, 1, "of three rivals {allowed} may send");
}

async fn holder_is(run: &Run, end: &str) {
    let rows = run.world.rows("IntentsTable").await;
    let held: Vec<_> = rows.iter().filter(|row| row["status"] == "HELD").collect();
    assert_eq!(held.len(), 1, "not exactly one intent is held");
    assert!(held[0]["holder"].as_str().is_some_and(|holder| holder.ends_with(end)), "{}", held[0]["holder"]);
}

async fn one_row(run: &Run) {
    let rows = run.world.rows("IntentsTable").await;
    assert_eq!(rows.iter().filter(|row| row["status"] == "HELD").count(), 1, "not exactly one intent is held");
}

async fn expiry_is_logged(run: &Run) {
    holder_is(run, ":b").await;
    assert!(!run.world.events("INTENT_EXPIRED").is_empty(), "an intent expired, but no event was logged");
}
