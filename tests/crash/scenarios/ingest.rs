//! Entries: a key has one owner, an update moves all of its keys or none, and a backfill that dies
//! at any point ends like one that does not.

use serde_json::{Value, json};
use umavez_tests::Setup;

use crate::run::Run;
use crate::scenario::Scenario;

pub fn scenarios() -> Vec<Scenario> {
    let scenario = |name, play, audit, strikes| Scenario {
        name,
        setup: Setup::default,
        play,
        audit,
        concurrent: false,
        swept: false,
        strikes,
    };
    vec![
        scenario(
            "an entry with two keys is inserted",
            |run| Box::pin(insert(run)),
            |run| Box::pin(inserted_once(run)),
            |point| point.function == "ingest",
        ),
        scenario(
            "an update moves a secondary key",
            |run| Box::pin(update(run)),
            |run| Box::pin(moved(run)),
            |point| point.function == "ingest" && point.target.contains("entries"),
        ),
        Scenario {
            swept: true,
            ..scenario(
                "a backfill",
                |run| Box::pin(backfill(run)),
                |run| Box::pin(backfilled(run)),
                // Of the many inserts, the first and the last few represent all.
                |point| {
                    let worker = point.function == "backfill-worker" && (point.nth <= 2 || point.nth == 5);
                    worker || point.function == "ingest" && point.operation == "TransactWriteItems"
                },
            )
        },
        Scenario {
            concurrent: true,
            ..scenario(
                "rivals with one entry",
                |run| Box::pin(rivals(run)),
                |run| Box::pin(inserted_once(run)),
                |point| point.function == "ingest" && point.target.contains("entries"),
            )
        },
    ]
}

fn newsletter(message_id: &str) -> Value {
    json!({"raw_text": "hi", "from": "news@example.com", "subject": "The Digest", "content_type": "newsletter",
        "source": {"message_id": message_id, "date": "2025-07-01T04:00:00Z"}})
}

async fn insert(run: &Run) {
    let answer = run.ask("insert", "a", "/ingest/email", &newsletter("<a@example.com>")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    // A retry after a lost answer finds the row that the first request wrote: with its key it is
    // the same request.
    assert_eq!(answer.text("/action"), "inserted", "the owner got another answer than inserted: {}", answer.body);
    let again = run.ask("again", "b", "/ingest/email", &newsletter("<a@example.com>")).await;
    assert_eq!((again.text("/action"), again.text("/matched_by")), ("skipped".into(), "primary".into()));
}

async fn rivals(run: &Run) {
    let ask = |key: &'static str, body: Value| async move {
        run.ask(key, key, "/ingest/email", &body).await.text("/entry_id")
    };
    // The same issue with two Message-IDs: the day identifies it.
    let (a, b) = tokio::join!(ask("a", newsletter("<a@example.com>")), ask("b", newsletter("<b@example.com>")));
    assert_eq!(a, b, "one issue has two entries");
}

fn thought(text: &str, secondary: &str) -> Value {
    json!({"source": {"system": "telegram", "chat_id": 42, "message_id": 7}, "content_type": "thought",
        "clean_text": text, "metadata": {}, "idempotency_policy_key": "telegram_thought_v1",
        "idempotency_key_primary": "tg:42:7", "idempotency_key_secondary": secondary.repeat(64)})
}

async fn update(run: &Run) {
    for (key, text, secondary) in [("a", "um", "a"), ("b", "dois", "b")] {
        let answer = run.ask(text, key, "/db/insert", &thought(text, secondary)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.text("/clean_text"), text);
    }
}

async fn rows(run: &Run, kind: &str) -> Vec<Value> {
    let rows = run.world.rows("EntriesTable").await;
    rows.into_iter().filter(|row| row["kind"] == kind).collect()
}

/// Returns the only entry and its markers, and checks that the markers belong to it.
async fn the_one(run: &Run) -> (Value, Vec<Value>) {
    let (mut entries, markers) = (rows(run, "entry").await, rows(run, "marker").await);
    assert_eq!(entries.len(), 1, "not one entry: {entries:?}");
    let entry = entries.remove(0);
    for marker in &markers {
        assert_eq!(marker["entry_id"], entry["entry_id"], "a marker without its entry: {marker}");
    }
    (entry, markers)
}

async fn inserted_once(run: &Run) {
    let (entry, markers) = the_one(run).await;
    let of_secondary: Vec<_> = markers.iter().filter(|marker| marker["which"] == "secondary").collect();
    assert_eq!(of_secondary.len(), 1, "the secondary key has not one owner: {markers:?}");
    assert_eq!(of_secondary[0]["idempotency_key"], entry["idempotency_key_secondary"]);
    assert!(run.world.rows("EntriesTestTable").await.is_empty());
}

async fn moved(run: &Run) {
    let (entry, markers) = the_one(run).await;
    assert_eq!((&entry["clean_text"], &entry["idempotency_key_secondary"]), (&json!("dois"), &json!("b".repeat(64))));
    assert_eq!(markers.len(), 1, "the old key is not free, or the new one is not taken: {markers:?}");
    assert_eq!(markers[0]["idempotency_key"], "b".repeat(64));
}

async fn backfill(run: &Run) {
    let line = |n: i64, text: &str| json!({"text": text, "source": {"chat_id": 42, "message_id": n}}).to_string();
    let link = |url: &str| json!({"text": url}).to_string();
    let lines = [
        line(1, "um"),
        line(2, "dois"),
        line(1, "um, corrigido"),
        link("https://example.com/a?utm_source=x"),
        link("https://example.com/a"),
        "not json".to_owned(),
        line(3, "três"),
    ];
    let body = json!({"source": "telegram", "lines": lines.join("\n")});
    let answer = run.ask("backfill", "a", "/backfills", &body).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    run.world.drain().await;
}

async fn backfilled(run: &Run) {
    let rows = run.world.rows("EntriesTable").await;
    let jobs: Vec<_> = rows.iter().filter(|row| row["sk"] == "JOB").collect();
    assert_eq!(jobs.len(), 1, "not one job");
    let job = jobs[0];
    assert_eq!(job["state"], "COMPLETED", "accepted, and lost: {job}");
    let counts = json!({"inserted": 4, "skipped": 1, "updated": 1, "failed": 1, "blank": 0});
    assert_eq!(job["counts"], counts, "{job}");
    assert!(job["wake"].is_null(), "settled, but still in the index by time: {job}");
    let entries: Vec<_> = rows.iter().filter(|row| row["kind"] == "entry").collect();
    assert_eq!(entries.len(), 4);
    let corrected = entries.iter().find(|row| row["idempotency_key_primary"] == "tg:42:1").expect("the first");
    assert_eq!((&corrected["clean_text"], &corrected["version"]), (&json!("um, corrigido"), &json!(2)), "{corrected}");
}
