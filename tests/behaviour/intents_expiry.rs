//! Rows expire after thirty days, and correctness does not depend on when TTL deletes them.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_domain::time::Timestamp;
use umavez_tests::{Expected, Setup, play, play_with};

use crate::intents::{CLIENT, VAGA_A, assert_allowed, assert_blocked, offer};

const DAY: u64 = 86_400;

#[tokio::test]
async fn an_expired_row_counts_as_absent_before_ttl_deletes_it() {
    play(async |world| {
        let first = world.post("/intents", &offer(VAGA_A)).await;
        assert_allowed(&first);
        let path = format!("/intents/{}", first.text("/fingerprint"));
        world.advance_without_ttl(Duration::from_secs(30 * DAY - 60)).await;
        assert_eq!(world.get(&format!("{path}?client_id={CLIENT}")).await.status, 200);
        world.advance_without_ttl(Duration::from_secs(61)).await;
        assert_eq!(world.rows("IntentsTable").await.len(), 1, "the row is still there");
        world.get(&format!("{path}?client_id={CLIENT}")).await.assert_problem(404, "not_found", &[]);
        world.post(&format!("{path}/release"), &json!({"client_id": CLIENT})).await.assert_problem(
            404,
            "not_found",
            &[],
        );
        assert_eq!(world.get(&format!("/intents?client_id={CLIENT}")).await.body["intents"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn no_intent_is_allowed_twice_because_its_row_has_expired() {
    play(async |world| {
        let nudge = |at: Timestamp| json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": at});
        // The oldest allowed time, and the last moment of the same seven days.
        let early = world.now().plus_days(-23).plus_ms(3_600_000);
        let late = Timestamp::from_ordinal((early.ordinal().div_euclid(7) + 1) * 7).plus_ms(-1_000);
        assert_allowed(&world.post("/intents", &nudge(early)).await);
        assert_blocked(&world.post("/intents", &nudge(late)).await);
        let left = early.plus_days(30).seconds() - world.now().seconds();
        world.advance(Duration::from_secs(u64::try_from(left).expect("in the future") + 1)).await;
        assert_eq!(world.rows("IntentsTable").await.len(), 0, "the row is gone");
        world.post("/intents", &nudge(late)).await.assert_problem(422, "invalid_request", &["at"]);
    })
    .await;
}

#[tokio::test]
async fn ttl_deletions_are_logged_by_type_with_their_lateness() {
    play(async |world| {
        let held = world.post("/intents", &offer(VAGA_A)).await;
        let nudge = json!({"client_id": CLIENT, "intent_type": "reactivation_nudge"});
        let released = world.post("/intents", &nudge).await;
        world.post(&format!("/intents/{}/release", released.text("/fingerprint")), &json!({"client_id": CLIENT})).await;
        world.advance(Duration::from_secs(32 * DAY)).await;
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
        let events = world.events("INTENT_EXPIRED");
        assert_eq!(events.len(), 1, "a released intent does not expire: {events:?}");
        assert_eq!(events[0]["intent_type"], "offer_active");
        assert_eq!(events[0]["fingerprint"], held.body["fingerprint"]);
        let late = events[0]["late_seconds"].as_u64().expect("a number");
        assert!((2 * DAY - 1..2 * DAY + 300).contains(&late), "{late}");
        assert_eq!(world.metrics("IntentsExpired").len(), 1);
        assert_eq!(world.metrics("IntentExpiryLatenessSeconds").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn other_changes_of_the_table_do_not_reach_the_expiry() {
    play(async |world| {
        let held = world.post("/intents", &offer(VAGA_A)).await;
        world.post(&format!("/intents/{}/release", held.text("/fingerprint")), &json!({"client_id": CLIENT})).await;
        world.drain().await;
        assert!(world.stack.functions().processes().iter().all(|(name, _)| !name.contains("intent-expiry")));
    })
    .await;
}

fn removal(sequence: &str, old_image: Value) -> Value {
    json!({
        "eventID": sequence, "eventName": "REMOVE", "eventVersion": "1.1", "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1", "eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/s",
        "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_000, "Keys": {"pk": {"S": "a"}, "sk": {"S": "INTENT#b"}},
            "OldImage": old_image, "SequenceNumber": sequence, "SizeBytes": 1, "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    })
}

fn expired_row() -> Value {
    json!({
        "client_id": {"S": CLIENT}, "fingerprint": {"S": "0".repeat(32)}, "intent_type": {"S": "offer_active"},
        "window_days": {"N": "1"}, "bucket": {"N": "739000"}, "at": {"S": "2026-01-01T00:00:00Z"},
        "window_until": {"N": "1"}, "status": {"S": "HELD"}, "holder": {"S": "request:1"}, "body_hash": {"S": "h"},
        "created_at": {"S": "2026-01-01T00:00:00Z"}, "updated_at": {"S": "2026-01-01T00:00:00Z"},
        "expires_at": {"N": "1769817600"}, "version": {"N": "1"},
    })
}

#[tokio::test]
async fn an_unreadable_removal_fails_alone_and_a_repeated_one_changes_nothing() {
    play(async |world| {
        let good = || json!({"Records": [removal("1", expired_row())]});
        assert_eq!(world.deliver("intent-expiry", &good()).await, json!({"batchItemFailures": []}));
        assert_eq!(world.deliver("intent-expiry", &good()).await, json!({"batchItemFailures": []}));
        let records = [removal("1", expired_row()), removal("2", json!({})), removal("3", expired_row())];
        let answer = world.deliver("intent-expiry", &json!({"Records": records})).await;
        assert_eq!(answer, json!({"batchItemFailures": [{"itemIdentifier": "2"}]}));
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_removal_ends_in_the_failure_queue() {
    let expected = Expected { dead_letters: 1, ..Expected::default() };
    play_with(Setup::default().expecting(expected), async |world| {
        assert_allowed(&world.post("/intents", &offer(VAGA_A)).await);
        let good = world.post("/intents", &json!({"client_id": CLIENT, "intent_type": "reactivation_nudge"})).await;
        assert_allowed(&good);
        // A row without the attributes of an intent.
        let table = world.stack.output("IntentsTable").expect("the table");
        let row = json!({"expires_at": 1_000, "status": "HELD"});
        let key = umavez_domain::keys::Key { pk: "CLIENT#x".into(), sk: "INTENT#x".into() };
        let write = umavez_platform::store::Write::put(table, key, &row).expect("a row");
        world.store.write(&world.invocation(), write).await.expect("written");
        world.advance(Duration::from_secs(31 * DAY)).await;
        assert_eq!(world.events("INTENT_EXPIRED").len(), 2, "the other rows of the batch are reported");
    })
    .await;
}
