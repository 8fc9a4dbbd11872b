//! `POST /intents`, reading, and release, with the default options.

use futures::future::join_all;
use serde_json::{Value, json};
use umavez_tests::{Answer, World, play};

pub const CLIENT: &str = "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1";
pub const VAGA_A: &str = "1e2feb89-7ed4-4c2c-9cc4-a6ce78e51061";
pub const VAGA_B: &str = "d5f4b3b2-63ca-46ec-a6e0-c464c324c985";

pub fn offer(reference: &str) -> Value {
    json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": reference})
}

pub fn assert_allowed(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["can_send"], true, "{}", answer.body);
    assert_eq!(answer.body["inserted"], true);
    assert_eq!(answer.body["reason"], Value::Null);
    assert_eq!(answer.body["blocked_by"], Value::Null);
}

pub fn assert_blocked(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["can_send"], false, "{}", answer.body);
    assert_eq!(answer.body["inserted"], false);
    assert_eq!(answer.body["reason"], "intent_duplicate");
    assert!(answer.body["blocked_by"]["holder"].is_string(), "{}", answer.body);
}

// The five tests of the first system, with their names.

#[tokio::test]
async fn test_primeira_insercao_permite() {
    play(async |world| {
        let answer = world.post("/intents", &offer(VAGA_A)).await;
        assert_allowed(&answer);
        assert_eq!(answer.body["intent_type"], "offer_active");
        assert_eq!(answer.body["reference_id"], VAGA_A);
        assert_eq!(answer.body["window_days"], 1);
        assert_eq!(answer.text("/fingerprint").len(), 32);
    })
    .await;
}

#[tokio::test]
async fn test_segunda_insercao_bloqueia() {
    play(async |world| {
        let first = world.post("/intents", &offer(VAGA_A)).await;
        let second = world.post("/intents", &offer(VAGA_A)).await;
        assert_blocked(&second);
        assert_eq!(second.body["fingerprint"], first.body["fingerprint"]);
        assert_eq!(second.body["blocked_by"]["holder"], first.body["holder"]);
        assert_eq!(second.body["next_eligible_at"], first.body["next_eligible_at"]);
    })
    .await;
}

#[tokio::test]
async fn test_janelas_diferentes_fingerprints_diferentes() {
    play(async |world| {
        let today = world.post("/intents", &offer(VAGA_A)).await;
        world.advance(std::time::Duration::from_secs(86_400)).await;
        let tomorrow = world.post("/intents", &offer(VAGA_A)).await;
        assert_allowed(&today);
        assert_allowed(&tomorrow);
        assert_ne!(today.body["fingerprint"], tomorrow.body["fingerprint"]);
        assert_eq!(tomorrow.body["bucket"].as_i64(), today.body["bucket"].as_i64().map(|bucket| bucket + 1));
    })
    .await;
}

#[tokio::test]
async fn test_reference_id_diferente_fingerprint_diferente() {
    play(async |world| {
        let a = world.post("/intents", &offer(VAGA_A)).await;
        let b = world.post("/intents", &offer(VAGA_B)).await;
        assert_allowed(&a);
        assert_allowed(&b);
        assert_ne!(a.body["fingerprint"], b.body["fingerprint"]);
    })
    .await;
}

#[tokio::test]
async fn test_intent_type_diferente_permite() {
    play(async |world| {
        assert_allowed(&world.post("/intents", &offer(VAGA_A)).await);
        let reminder = json!({"client_id": CLIENT, "intent_type": "offer_reminder", "reference_id": VAGA_A});
        assert_allowed(&world.post("/intents", &reminder).await);
    })
    .await;
}

// One holder.

#[tokio::test]
async fn of_two_hundred_concurrent_requests_exactly_one_may_send() {
    play(async |world| {
        let body = offer(VAGA_A);
        let answers = join_all((0..200).map(|_| world.post("/intents", &body))).await;
        let (allowed, blocked): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.body["can_send"] == true);
        assert_eq!((allowed.len(), blocked.len()), (1, 199));
        assert_allowed(allowed[0]);
        for answer in blocked {
            assert_blocked(answer);
            assert_eq!(answer.body["blocked_by"]["holder"], allowed[0].body["holder"]);
        }
        assert_eq!(world.events("OUTBOUND_DEDUPED").len(), 199);
    })
    .await;
}

#[tokio::test]
async fn concurrent_requests_with_the_same_key_are_one_holder_and_all_may_send() {
    play(async |world| {
        let body = offer(VAGA_A);
        let answers = join_all((0..40).map(|_| world.post_with_key("order-77", "/intents", &body))).await;
        assert!(answers.iter().all(|answer| answer.body["can_send"] == true));
        assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
        assert!(answers.iter().all(|answer| answer.body == answers[0].body));
        assert_blocked(&world.post_with_key("order-78", "/intents", &body).await);
        assert_eq!(world.rows("IntentsTable").await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    play(async |world| {
        assert_allowed(&world.post_with_key("order-77", "/intents", &offer(VAGA_A)).await);
        let same_intent = json!({"client_id": CLIENT, "intent_type": "offer_active", "context": {"vaga_id": VAGA_A}});
        let answer = world.post_with_key("order-77", "/intents", &same_intent).await;
        answer.assert_problem(422, "idempotency_key_reused", &[]);
    })
    .await;
}

#[tokio::test]
async fn the_same_idempotency_key_of_two_callers_is_two_holders() {
    play(async |world| {
        world.create_key("uv_other", &["intents"]).await;
        assert_allowed(&world.post_with_key("order-77", "/intents", &offer(VAGA_A)).await);
        let other = world.request(reqwest::Method::POST, "/intents").bearer_auth("uv_other").json(&offer(VAGA_A));
        assert_blocked(&world.send(other.header("idempotency-key", "order-77")).await);
    })
    .await;
}

#[tokio::test]
async fn a_blocked_check_names_the_holder_and_the_next_time_and_logs_an_event() {
    play(async |world| {
        world.canary("maria@example.com");
        let first = world.post_with_key("maria@example.com", "/intents", &offer(VAGA_A)).await;
        let answer = world.post("/intents", &offer(VAGA_A)).await;
        assert_blocked(&answer);
        let blocked_by = &answer.body["blocked_by"];
        assert_eq!(blocked_by["holder"], first.body["holder"]);
        assert_eq!(blocked_by["reference_id"], VAGA_A);
        assert!(answer.text("/next_eligible_at").ends_with("T00:00:00Z"));
        let events = world.events("OUTBOUND_DEDUPED");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["reason_code"], "intent_duplicate");
        assert_eq!(events[0]["fingerprint"], answer.body["fingerprint"]);
        assert_eq!(events[0]["client_id"], CLIENT);
        let metrics = world.metrics("IntentsDeduped");
        assert_eq!(metrics.len(), 1);
        assert_eq!(metrics[0]["IntentType"], "offer_active");
    })
    .await;
}

#[tokio::test]
async fn a_check_takes_one_request_and_one_write_unit_whether_new_or_duplicate() {
    play(async |world| {
        // The longest key and the longest release record that a row can have.
        let longest_key = "k".repeat(255);
        let held = world.post_with_key(&longest_key, "/intents", &offer(VAGA_A)).await;
        let body = json!({"client_id": CLIENT, "holder": held.body["holder"]});
        let (released, calls) =
            world.calls_of("outbound-api", world.post_with_key(&longest_key, &release_path(&held), &body)).await;
        assert_eq!((released.status, calls.len()), (200, 1), "{calls:?}");
        for (round, answer_of) in [("new", true), ("duplicate", false)] {
            let key = if answer_of { longest_key.as_str() } else { "another" };
            let (answer, calls) =
                world.calls_of("outbound-api", world.post_with_key(key, "/intents", &offer(VAGA_A))).await;
            assert_eq!(answer.body["can_send"], answer_of);
            assert_eq!(calls.len(), 1, "{round}: {calls:?}");
            assert_eq!(calls[0].operation, "UpdateItem");
            assert!((calls[0].write_units - 1.0).abs() < f64::EPSILON, "{round}: {calls:?}");
        }
    })
    .await;
}

// Release.

async fn held(world: &World, key: &str) -> Answer {
    let answer = world.post_with_key(key, "/intents", &offer(VAGA_A)).await;
    assert_allowed(&answer);
    answer
}

fn release_path(answer: &Answer) -> String {
    format!("/intents/{}/release", answer.text("/fingerprint"))
}

#[tokio::test]
async fn another_holder_can_take_a_released_intent() {
    play(async |world| {
        let first = held(world, "a").await;
        let released = world.post(&release_path(&first), &json!({"client_id": CLIENT})).await;
        assert_eq!(released.status, 200, "{}", released.body);
        assert_eq!(released.body["released"], true);
        assert_eq!(released.body["already"], false);
        let path = format!("/intents/{}?client_id={CLIENT}", first.text("/fingerprint"));
        assert_eq!(world.get(&path).await.body["status"], "RELEASED");
        held(world, "b").await;
        assert_blocked(&world.post_with_key("a", "/intents", &offer(VAGA_A)).await);
        assert_eq!(world.events("INTENT_RELEASED").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn releasing_again_changes_nothing() {
    play(async |world| {
        let first = held(world, "a").await;
        let path = release_path(&first);
        let once = world.post_with_key("r1", &path, &json!({"client_id": CLIENT})).await;
        let again = world.post_with_key("r1", &path, &json!({"client_id": CLIENT})).await;
        assert_eq!((again.status, &again.body), (200, &once.body));
        assert!(again.is_replayed() && !once.is_replayed());
        let other = world.post(&path, &json!({"client_id": CLIENT})).await;
        assert_eq!((&other.body["released"], &other.body["already"]), (&json!(true), &json!(true)));
        assert!(!other.is_replayed(), "the release of another key is not a replay");
        let other_body = json!({"client_id": CLIENT, "holder": first.body["holder"]});
        let reused = world.post_with_key("r1", &path, &other_body).await;
        reused.assert_problem(422, "idempotency_key_reused", &[]);
        assert_eq!(world.events("INTENT_RELEASED").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_release_does_not_free_the_hold_of_the_next_holder() {
    play(async |world| {
        let first = held(world, "a").await;
        let path = release_path(&first);
        // The release is repeated with its own key because its reply was lost: the answer is the
        // same, although another holder has the intent.
        let once = world.post_with_key("r1", &path, &json!({"client_id": CLIENT})).await;
        held(world, "b").await;
        let late = world.post_with_key("r1", &path, &json!({"client_id": CLIENT})).await;
        assert_eq!((late.status, &late.body), (200, &once.body));
        assert!(late.is_replayed());
        // A release can also name its holder.
        let named = world.post(&path, &json!({"client_id": CLIENT, "holder": first.body["holder"]})).await;
        named.assert_problem(409, "held_by_another", &[]);
        assert_blocked(&world.post_with_key("c", "/intents", &offer(VAGA_A)).await);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_intent_cannot_be_released() {
    play(async |world| {
        let path = format!("/intents/{}/release", "0".repeat(32));
        world.post(&path, &json!({"client_id": CLIENT})).await.assert_problem(404, "not_found", &[]);
        world.post("/intents/XYZ/release", &json!({"client_id": 1})).await.assert_problem(
            422,
            "invalid_request",
            &["fingerprint", "client_id"],
        );
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

// Reading.

#[tokio::test]
async fn an_intent_is_shown_only_with_the_id_of_its_client() {
    play(async |world| {
        let first = held(world, "a").await;
        let path = format!("/intents/{}", first.text("/fingerprint"));
        let shown = world.get(&format!("{path}?client_id={CLIENT}")).await;
        assert_eq!(shown.status, 200, "{}", shown.body);
        assert_eq!(shown.body["status"], "HELD");
        assert_eq!(shown.body["holder"], first.body["holder"]);
        assert!(shown.body.get("writer").is_none() && shown.body.get("body_hash").is_none());
        world.get(&format!("{path}?client_id={VAGA_A}")).await.assert_problem(404, "not_found", &[]);
        world.get(&path).await.assert_problem(422, "invalid_request", &["client_id"]);
    })
    .await;
}

#[tokio::test]
async fn a_clients_intents_are_listed_page_by_page() {
    play(async |world| {
        let names = ["offer_active", "offer_reminder", "shift_reminder", "handoff_confirmation"];
        for name in names {
            let body = json!({"client_id": CLIENT, "intent_type": name, "reference_id": VAGA_A});
            assert_allowed(&world.post("/intents", &body).await);
        }
        let other = json!({"client_id": VAGA_B, "intent_type": "offer_active", "reference_id": VAGA_A});
        assert_allowed(&world.post("/intents", &other).await);
        let mut seen = Vec::new();
        let mut path = format!("/intents?client_id={CLIENT}&limit=3");
        loop {
            let page = world.get(&path).await;
            assert_eq!(page.status, 200, "{}", page.body);
            let intents = page.body["intents"].as_array().expect("a list").clone();
            assert!(intents.len() <= 3);
            seen.extend(intents.iter().map(|intent| intent["intent_type"].as_str().expect("a type").to_owned()));
            let Some(cursor) = page.body["cursor"].as_str() else { break };
            path = format!("/intents?client_id={CLIENT}&limit=3&cursor={cursor}");
        }
        seen.sort();
        let mut names = names.map(str::to_owned).to_vec();
        names.sort();
        assert_eq!(seen, names);
        world.get(&format!("/intents?client_id={CLIENT}&limit=0&cursor=!")).await.assert_problem(
            422,
            "invalid_request",
            &["limit", "cursor"],
        );
    })
    .await;
}
