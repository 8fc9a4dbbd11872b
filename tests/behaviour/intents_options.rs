//! Rolling windows and the contact scope, which need the guard row.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use umavez_domain::time::Timestamp;
use umavez_tests::{Setup, World, play, play_with};

use crate::intents::{CLIENT, VAGA_A, VAGA_B, assert_allowed, assert_blocked};

const DAY: u64 = 86_400;

fn with_options(options: &Value) -> Setup {
    Setup::default().parameter("IntentTypeOptions", &options.to_string())
}

fn touch(campaign: &str) -> Value {
    json!({"client_id": CLIENT, "intent_type": "discovery_first_touch", "reference_id": campaign})
}

/// Advances to a minute before the next bucket of `days` starts.
async fn to_the_edge(world: &World, days: i64) {
    let now = world.now();
    let end = Timestamp::from_ordinal((now.ordinal().div_euclid(days) + 1) * days);
    let left = (end.millis() - now.millis()) / 1_000 - 60;
    world.advance(Duration::from_secs(u64::try_from(left.max(0)).expect("not negative"))).await;
}

#[tokio::test]
async fn a_bucket_window_allows_two_sends_around_its_edge() {
    play(async |world| {
        to_the_edge(world, 7).await;
        assert_allowed(&world.post("/intents", &touch(VAGA_A)).await);
        world.advance(Duration::from_secs(120)).await;
        assert_allowed(&world.post("/intents", &touch(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn a_rolling_window_allows_one_send_around_the_edge() {
    play_with(with_options(&json!({"discovery_first_touch": {"window": "rolling"}})), async |world| {
        to_the_edge(world, 7).await;
        let first = world.post_with_key("a", "/intents", &touch(VAGA_A)).await;
        assert_allowed(&first);
        world.advance(Duration::from_secs(120)).await;
        let blocked = world.post("/intents", &touch(VAGA_A)).await;
        assert_blocked(&blocked);
        assert_ne!(blocked.body["fingerprint"], first.body["fingerprint"]);
        assert_eq!(blocked.body["blocked_by"]["fingerprint"], first.body["fingerprint"]);
        // The holder's own retry gets the first answer, although the bucket has changed.
        let retry = world.post_with_key("a", "/intents", &touch(VAGA_A)).await;
        assert!(retry.is_replayed());
        assert_eq!(retry.body, first.body);
        // Other campaigns are not blocked.
        assert_allowed(&world.post("/intents", &touch(VAGA_B)).await);
        // One window later, to the second, it is free again.
        world.advance(Duration::from_secs(7 * DAY - 119)).await;
        assert_allowed(&world.post("/intents", &touch(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn of_many_requests_on_both_sides_of_the_edge_one_may_send() {
    play_with(with_options(&json!({"discovery_first_touch": {"window": "rolling"}})), async |world| {
        to_the_edge(world, 7).await;
        world.advance(Duration::from_secs(80)).await;
        let before = world.now().plus_ms(-40_000).to_string();
        let sides: Vec<_> = (0..30)
            .map(|number| {
                let mut body = touch(VAGA_A);
                if number % 2 == 0 {
                    body["at"] = json!(before);
                }
                body
            })
            .collect();
        let answers = join_all(sides.iter().map(|body| world.post("/intents", body))).await;
        let buckets: std::collections::HashSet<_> =
            answers.iter().map(|answer| answer.body["bucket"].as_i64()).collect();
        assert_eq!(buckets.len(), 2);
        assert_eq!(answers.iter().filter(|answer| answer.body["can_send"] == true).count(), 1);
    })
    .await;
}

#[tokio::test]
async fn by_default_two_campaigns_both_reach_a_contact() {
    play(async |world| {
        assert_allowed(&world.post("/intents", &touch(VAGA_A)).await);
        assert_allowed(&world.post("/intents", &touch(VAGA_B)).await);
    })
    .await;
}

#[tokio::test]
async fn with_the_contact_scope_two_campaigns_block_each_other() {
    play_with(with_options(&json!({"discovery_first_touch": {"scope": "contact"}})), async |world| {
        let first = world.post("/intents", &touch(VAGA_A)).await;
        assert_allowed(&first);
        let second = world.post("/intents", &touch(VAGA_B)).await;
        assert_blocked(&second);
        assert_eq!(second.body["blocked_by"]["reference_id"], VAGA_A);
        assert_eq!(second.body["next_eligible_at"], first.body["next_eligible_at"]);
        let other_client = json!({"client_id": VAGA_B, "intent_type": "discovery_first_touch", "reference_id": VAGA_A});
        assert_allowed(&world.post("/intents", &other_client).await);
    })
    .await;
}

#[tokio::test]
async fn releasing_a_guarded_intent_frees_its_guard() {
    let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
    play_with(with_options(&options), async |world| {
        let first = world.post("/intents", &touch(VAGA_A)).await;
        assert_blocked(&world.post("/intents", &touch(VAGA_B)).await);
        let path = format!("/intents/{}/release", first.text("/fingerprint"));
        let released = world.post(&path, &json!({"client_id": CLIENT, "holder": first.body["holder"]})).await;
        assert_eq!(released.body["released"], true, "{}", released.body);
        assert_allowed(&world.post("/intents", &touch(VAGA_B)).await);
    })
    .await;
}

#[tokio::test]
async fn releasing_an_old_intent_leaves_the_guard_to_its_new_owner() {
    let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
    play_with(with_options(&options), async |world| {
        let old = world.post("/intents", &touch(VAGA_A)).await;
        world.advance(Duration::from_secs(8 * DAY)).await;
        assert_allowed(&world.post("/intents", &touch(VAGA_B)).await);
        let path = format!("/intents/{}/release", old.text("/fingerprint"));
        let released = world.post(&path, &json!({"client_id": CLIENT})).await;
        assert_eq!(released.body["released"], true, "{}", released.body);
        assert_blocked(&world.post("/intents", &touch(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn releasing_an_old_intent_leaves_the_guard_to_a_newer_hold_of_the_same_holder() {
    let options = json!({"discovery_first_touch": {"scope": "contact", "window": "rolling"}});
    play_with(with_options(&options), async |world| {
        let old = world.post_with_key("k", "/intents", &touch(VAGA_A)).await;
        world.advance(Duration::from_secs(8 * DAY)).await;
        assert_allowed(&world.post_with_key("k", "/intents", &touch(VAGA_B)).await);
        let path = format!("/intents/{}/release", old.text("/fingerprint"));
        let released = world.post(&path, &json!({"client_id": CLIENT, "holder": old.body["holder"]})).await;
        assert_eq!(released.body["released"], true, "{}", released.body);
        assert_blocked(&world.post("/intents", &touch(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn each_bucket_of_a_contact_has_its_own_guard_for_past_times_too() {
    play_with(with_options(&json!({"discovery_first_touch": {"scope": "contact"}})), async |world| {
        let at = |campaign: &str, days: i64| {
            let mut body = touch(campaign);
            body["at"] = json!(world.now().plus_days(days));
            body
        };
        assert_allowed(&world.post("/intents", &at(VAGA_A, 0)).await);
        // A week earlier is another window, in which one message is free.
        assert_allowed(&world.post("/intents", &at(VAGA_B, -7)).await);
        assert_blocked(&world.post("/intents", &at(VAGA_A, -7)).await);
        assert_blocked(&world.post("/intents", &at(VAGA_B, 0)).await);
    })
    .await;
}

#[tokio::test]
async fn a_blocked_check_under_a_guard_writes_no_intent() {
    play_with(with_options(&json!({"discovery_first_touch": {"scope": "contact"}})), async |world| {
        let first = world.post("/intents", &touch(VAGA_A)).await;
        let second = world.post("/intents", &touch(VAGA_B)).await;
        assert_blocked(&second);
        let path = format!("/intents/{}?client_id={CLIENT}", second.text("/fingerprint"));
        world.get(&path).await.assert_problem(404, "not_found", &[]);
        let path = format!("/intents/{}?client_id={CLIENT}", first.text("/fingerprint"));
        assert_eq!(world.get(&path).await.status, 200);
    })
    .await;
}
