//! Ingest through the stack: entries are normalized, and inserted once or merged, by the current
//! policy and schema.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::ingest::BackfillId;
use umavez_domain::keys;
use umavez_platform::ingest::Backfills;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Found, Write};
use umavez_tests::{Answer, KEY, World, play};

fn thought(message_id: i64, text: &str) -> Value {
    json!({"text": text, "source": {"chat_id": 42, "message_id": message_id}})
}

fn link(url: &str) -> Value {
    json!({"text": url, "source": {"chat_id": 42, "message_id": 1}})
}

pub fn newsletter(message_id: Option<&str>, date: Option<&str>) -> Value {
    let source = json!({"message_id": message_id, "date": date});
    json!({"raw_text": "hi", "from": "News <news@example.com>", "subject": "[Weekly] The Digest",
        "content_type": "newsletter", "source": source})
}

pub async fn put(world: &World, path: &str, body: &Value) -> Answer {
    world.send(world.request(Method::PUT, path).bearer_auth(KEY).json(body)).await
}

pub async fn patch(world: &World, path: &str, body: &Value) -> Answer {
    world.send(world.request(Method::PATCH, path).bearer_auth(KEY).json(body)).await
}

pub async fn ingest(world: &World, source: &str, body: &Value) -> Value {
    let answer = world.post(&format!("/ingest/{source}"), body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

pub async fn entries(world: &World, table: &str) -> usize {
    world.rows(table).await.iter().filter(|row| row["kind"] == "entry").count()
}

#[tokio::test]
async fn insert_accepts_normalized_items_and_they_match_the_vectors() {
    play(async |world| {
        let vectors: Value =
            serde_json::from_str(include_str!("../../shared/domain/tests/data/ingest.json")).expect("JSON");
        for source in ["email", "telegram"] {
            for vector in vectors[source].as_array().expect("vectors") {
                let normalized = world.post(&format!("/normalize/{source}"), &vector["input"]).await;
                assert_eq!(normalized.status, 200, "{}", normalized.body);
                for (name, value) in vector["expect"].as_object().expect("an object") {
                    assert_eq!(&normalized.body[name], value, "{name} of {}", vector["input"]);
                }
                let inserted = world.post("/db/insert", &normalized.body).await;
                assert_eq!(inserted.status, 200, "{}", inserted.body);
                let again = ingest(world, source, &vector["input"]).await;
                assert_eq!(again["entry_id"], inserted.body["entry_id"], "the same entry with one call and with two");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_hundred_concurrent_requests_with_the_same_input_make_one_entry() {
    play(async |world| {
        let cases = [
            ("telegram", thought(7, "uma ideia")),
            ("telegram", link("https://example.com/a?utm_source=x&b=1")),
            ("email", newsletter(Some("<a@example.com>"), Some("2025-07-01T04:00:00Z"))),
        ];
        for (source, body) in cases {
            let answers = join_all((0..100).map(|_| ingest(world, source, &body))).await;
            let inserted = answers.iter().filter(|answer| answer["action"] == "inserted").count();
            assert_eq!(inserted, 1, "{source}");
            let ids: std::collections::HashSet<_> =
                answers.iter().map(|answer| answer["entry_id"].to_string()).collect();
            assert_eq!(ids.len(), 1);
        }
        assert_eq!(entries(world, "EntriesTable").await, 3);
        assert_eq!(entries(world, "EntriesTestTable").await, 0);
    })
    .await;
}

#[tokio::test]
async fn concurrent_requests_with_different_keys_of_one_item_make_one_entry() {
    play(async |world| {
        // Some have a Message-ID and the day, others only the day: both are the same issue.
        let by_both = newsletter(Some("<a@example.com>"), Some("2025-07-01T04:00:00Z"));
        let by_day = newsletter(None, Some("2025-07-01T04:30:00Z"));
        for _ in 0..3 {
            join_all((0..20).map(|n| ingest(world, "email", if n % 2 == 0 { &by_both } else { &by_day }))).await;
        }
        assert_eq!(entries(world, "EntriesTable").await, 1);
        let skipped = ingest(world, "email", &by_day).await;
        assert_eq!((&skipped["action"], &skipped["matched_by"]), (&json!("skipped"), &json!("secondary")));
        // Another Message-ID of the same issue is matched by the day, and from then on by itself.
        let forwarded = newsletter(Some("<b@example.com>"), Some("2025-07-01T04:31:00Z"));
        assert_eq!(ingest(world, "email", &forwarded).await["matched_by"], "secondary");
        let without_day = newsletter(Some("<b@example.com>"), None);
        assert_eq!(ingest(world, "email", &without_day).await["matched_by"], "primary");
        assert_eq!(entries(world, "EntriesTable").await, 1);
    })
    .await;
}

#[tokio::test]
async fn an_update_merges_the_allowed_fields_and_keeps_newer_values() {
    play(async |world| {
        let at = |text: &str, date: i64, metadata: Value| {
            json!({"text": text, "metadata": metadata, "source": {"chat_id": 42, "message_id": 7, "date": 1_700_000_000,
                "edit_date": date}})
        };
        let first = ingest(world, "telegram", &at("a", 1_700_000_100, json!({"tags": ["x"], "n": {"a": 1}}))).await;
        assert_eq!(first["action"], "inserted");
        let second = ingest(world, "telegram", &at("b", 1_700_000_200, json!({"tags": ["y"], "n": {"b": 2}}))).await;
        assert_eq!((&second["action"], &second["clean_text"]), (&json!("updated"), &json!("b")));
        assert_eq!(second["metadata"], json!({"tags": ["y"], "n": {"a": 1, "b": 2}}));
        assert_eq!((&second["entry_id"], &second["created_at"]), (&first["entry_id"], &first["created_at"]));
        let stale = ingest(world, "telegram", &at("old", 1_700_000_150, json!({}))).await;
        assert_eq!((&stale["action"], &stale["reason"]), (&json!("skipped"), &json!("stale")));
        assert_eq!(stale["clean_text"], "b");
        let id = first["entry_id"].as_str().expect("an id");
        assert_eq!(world.get(&format!("/entries/{id}")).await.body["clean_text"], "b");
        let fields = json!({"update_fields": ["metadata"]});
        assert_eq!(patch(world, "/policies/telegram_thought_v1", &fields).await.status, 200);
        let third = ingest(world, "telegram", &at("c", 1_700_000_300, json!({"z": 1}))).await;
        assert_eq!(
            (&third["clean_text"], &third["metadata"]["z"]),
            (&json!("b"), &json!(1)),
            "other fields than those of the policy were updated"
        );
    })
    .await;
}

#[tokio::test]
async fn concurrent_updates_lose_no_merged_field() {
    play(async |world| {
        ingest(world, "telegram", &thought(7, "a")).await;
        let update = |n: usize| {
            let mut body = thought(7, "a");
            body["metadata"] = json!({format!("k{n}"): n});
            async move { ingest(world, "telegram", &body).await }
        };
        let answers = join_all((0..24).map(update)).await;
        assert!(answers.iter().all(|answer| answer["action"] == "updated"));
        let id = answers[0]["entry_id"].as_str().expect("an id");
        let metadata = world.get(&format!("/entries/{id}")).await.body["metadata"].clone();
        assert_eq!(metadata.as_object().expect("an object").len(), 24, "{metadata}");
    })
    .await;
}

#[tokio::test]
async fn a_disabled_policy_refuses_only_in_its_schema() {
    play(async |world| {
        let policies = world.get("/policies").await.body;
        assert_eq!(policies["policies"].as_array().expect("a list").len(), 8);
        let off = json!({"enabled": false});
        let row = patch(world, "/policies/telegram_link_v1?schema=pkm", &off).await.body;
        assert_eq!((&row["enabled"], &row["version"]), (&json!(false), &json!(2)));
        assert_eq!(
            patch(world, "/policies/telegram_link_v1?schema=pkm", &off).await.body["version"],
            2,
            "a repeated change changes nothing"
        );
        let refused = world.post("/ingest/telegram", &link("https://example.com/")).await;
        refused.assert_problem(422, "invalid_request", &["idempotency_policy_key"]);
        assert_eq!(put(world, "/test-mode", &json!({"is_test_mode": true})).await.body["schema"], "pkm_test");
        assert_eq!(ingest(world, "telegram", &link("https://example.com/")).await["schema"], "pkm_test");
        assert_eq!(patch(world, "/policies/nothing", &off).await.status, 422);
        assert_eq!(patch(world, "/policies/telegram_link_v1", &json!({"policy_id": 9})).await.status, 422);
    })
    .await;
}

#[tokio::test]
async fn concurrent_toggles_are_all_counted() {
    play(async |world| {
        const TOGGLES: usize = 1_001;
        let toggle = |_| async { world.post("/test-mode/toggle", &json!({})).await.status };
        let mut statuses = Vec::new();
        for chunk in (0..TOGGLES).collect::<Vec<_>>().chunks(100) {
            statuses.extend(join_all(chunk.iter().map(toggle)).await);
        }
        assert!(statuses.iter().all(|status| *status == 200));
        assert_eq!(world.get("/test-mode").await.body["is_test_mode"], true, "an odd number of toggles");
        let rows = world.rows("ConfigTable").await;
        let flag = rows.iter().find(|row| row["sk"] == "IS_TEST_MODE").expect("the flag");
        assert_eq!(flag["flips"], TOGGLES);
        assert!(flag["recent"].as_array().expect("a list").len() <= 300, "the list grows, and every insert reads it");
        let first = world.post_with_key("t1", "/test-mode/toggle", &json!({})).await;
        let again = world.post_with_key("t1", "/test-mode/toggle", &json!({})).await;
        assert_eq!((first.body["is_test_mode"] == false, again.body["is_test_mode"] == false), (true, true));
        assert!(again.is_replayed(), "the same toggle");
        assert_eq!(world.get("/test-mode").await.body["is_test_mode"], false);
    })
    .await;
}

#[tokio::test]
async fn after_a_flip_no_instance_uses_the_old_schema() {
    play(async |world| {
        for round in 0..10_i64 {
            let flipped = world.post("/test-mode/toggle", &json!({})).await.body;
            let bodies: Vec<_> = (1..=12).map(|n| thought(1_000 * round + n, "x")).collect();
            let answers = join_all(bodies.iter().map(|body| ingest(world, "telegram", body))).await;
            assert!(answers.iter().all(|answer| answer["schema"] == flipped["schema"]), "round {round}");
        }
        assert_eq!((entries(world, "EntriesTable").await, entries(world, "EntriesTestTable").await), (60, 60));
        assert!(world.get("/config").await.body.get("is_test_mode").is_none(), "static configuration only");
    })
    .await;
}

#[tokio::test]
async fn invalid_items_are_refused_by_field_and_write_nothing() {
    play(async |world| {
        let cases = [
            ("/normalize/telegram", json!({"source": {}}), "text"),
            ("/ingest/telegram", json!({"text": "a thought"}), "source.chat_id"),
            (
                "/ingest/telegram",
                json!({"text": "x", "content_type": "link", "source": {"url": "ftp://x"}}),
                "source.url",
            ),
            ("/ingest/email", json!({"raw_text": "x", "from": "a@b.co", "subject": "[tag]"}), "subject"),
            ("/ingest/email", newsletter(None, None), "source.message_id"),
            ("/ingest/email", newsletter(Some("<a@b>"), Some("yesterday")), "source.date"),
            ("/ingest/email", json!({"raw_text": 7, "from": "a@b.co", "subject": "x"}), "raw_text"),
        ];
        for (path, body, field) in cases {
            let answer = world.post(path, &body).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{path} {body}: {}", answer.body);
            let named: Vec<_> =
                answer.body["errors"].as_array().expect("errors").iter().map(|e| e["field"].clone()).collect();
            assert!(named.contains(&json!(field)), "{path} {body}: {named:?}");
        }
        let good = world.post("/normalize/telegram", &thought(7, "a")).await.body;
        for (name, value, field) in [
            ("idempotency_key_primary", json!("  "), "idempotency_key_primary"),
            ("idempotency_key_primary", json!("https://example.com/"), "idempotency_key_primary"),
            ("idempotency_policy_key", json!("nothing_v1"), "idempotency_policy_key"),
            ("idempotency_policy_key", Value::Null, "idempotency_policy_key"),
            ("clean_text", json!("a".repeat(200_000)), "clean_text"),
        ] {
            let mut body = good.clone();
            body[name] = value;
            let answer = world.post("/db/insert", &body).await;
            assert_eq!(answer.status, 422, "{name}: {}", answer.body);
            assert!(answer.body["errors"].to_string().contains(field), "{}", answer.body);
        }
        assert_eq!(world.post("/ingest/telegram", &thought(7, &"a".repeat(300_000))).await.status, 413);
        assert_eq!(entries(world, "EntriesTable").await, 0);
        assert_eq!(world.get("/entries/x").await.status, 422);
        assert_eq!(world.get(&format!("/entries/ent_{}", "0".repeat(32))).await.status, 404);
    })
    .await;
}

// Backfills.

pub fn lines(count: i64) -> String {
    let lines: Vec<_> = (1..=count).map(|n| thought(n, &format!("linha {n}")).to_string()).collect();
    lines.join("\n")
}

pub async fn backfill(world: &World, key: &str, body: &Value) -> String {
    let answer = world.post_with_key(key, "/backfills", body).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.text("/backfill_id")
}

pub async fn job(world: &World, id: &str) -> Value {
    let answer = world.get(&format!("/backfills/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_backfill_counts_its_actions_and_a_second_run_inserts_nothing() {
    play(async |world| {
        let text = format!("{}\n\nnot json\n{}", lines(250), json!({"source": {}}));
        let body = json!({"source": "telegram", "lines": text});
        let id = backfill(world, "a", &body).await;
        let again = world.post_with_key("a", "/backfills", &body).await;
        assert!(again.is_replayed() && again.text("/backfill_id") == id);
        let other = world.post_with_key("a", "/backfills", &json!({"source": "email", "lines": "x"})).await;
        assert_eq!(other.code(), "idempotency_key_reused");
        world.drain().await;
        let done = job(world, &id).await;
        assert_eq!((&done["state"], &done["lines"]), (&json!("COMPLETED"), &json!(253)), "{done}");
        assert_eq!(done["counts"], json!({"inserted": 250, "skipped": 0, "updated": 0, "failed": 2, "blank": 1}));
        assert_eq!((&done["errors"][0]["line"], &done["errors"][1]["line"]), (&json!(252), &json!(253)));
        assert_eq!(done["errors"][1]["errors"][0]["field"], "text");
        let dry = backfill(world, "dry", &json!({"source": "telegram", "lines": text, "dry_run": true})).await;
        let second = backfill(world, "b", &json!({"source": "telegram", "lines": text, "options": {}})).await;
        world.drain().await;
        let (dry, second) = (job(world, &dry).await, job(world, &second).await);
        assert_eq!(second["counts"]["inserted"], 0, "{second}");
        assert_eq!(dry["counts"], second["counts"], "a dry run counts the same");
        assert_eq!(entries(world, "EntriesTable").await, 250);
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_writes_nothing_and_counts_its_own_duplicates() {
    play(async |world| {
        let mut twice = lines(20);
        twice.push('\n');
        twice.push_str(&link("https://example.com/a?utm_source=x").to_string());
        twice.push('\n');
        twice.push_str(&link("https://example.com/a").to_string());
        let body = |dry: bool| json!({"source": "telegram", "lines": twice, "dry_run": dry});
        let dry = backfill(world, "dry", &body(true)).await;
        world.drain().await;
        let dry = job(world, &dry).await;
        assert_eq!((&dry["counts"]["inserted"], &dry["counts"]["skipped"]), (&json!(21), &json!(1)), "{dry}");
        assert_eq!(entries(world, "EntriesTable").await, 0);
        let real = backfill(world, "real", &body(false)).await;
        world.drain().await;
        assert_eq!(job(world, &real).await["counts"], dry["counts"]);
    })
    .await;
}

#[tokio::test]
async fn a_job_keeps_the_schema_in_which_it_was_created() {
    play(async |world| {
        put(world, "/test-mode", &json!({"is_test_mode": true})).await;
        let late = umavez_local::faults::DeliveryFault {
            source: "umavez-dev-backfill".to_owned(),
            nth: 1,
            times: 1,
            action: umavez_local::faults::DeliveryAction::Late,
            seconds: 60,
        };
        world.stack.add_fault(umavez_local::faults::Fault::Delivery(late)).await.expect("armed");
        let id = backfill(world, "a", &json!({"source": "telegram", "lines": lines(5)})).await;
        put(world, "/test-mode", &json!({"is_test_mode": false})).await;
        world.drain().await;
        world.advance(Duration::from_secs(70)).await;
        assert_eq!(job(world, &id).await["schema"], "pkm_test");
        assert_eq!((entries(world, "EntriesTable").await, entries(world, "EntriesTestTable").await), (0, 5));
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_killed_repeatedly_inserts_the_same_entries() {
    play(async |world| {
        use umavez_local::faults::{Action, CallFault, Fault};
        for nth in [7, 40, 90] {
            let kill =
                CallFault { function: Some("backfill-worker".to_owned()), nth, ..CallFault::first(Action::KillAfter) };
            world.stack.add_fault(Fault::Call(kill)).await.expect("armed");
        }
        let id = backfill(world, "a", &json!({"source": "telegram", "lines": lines(120)})).await;
        world.drain().await;
        for _ in 0..6 {
            world.advance(Duration::from_secs(1_900)).await;
            world.tick("Recovery").await;
        }
        let done = job(world, &id).await;
        assert_eq!((&done["state"], &done["counts"]["inserted"]), (&json!("COMPLETED"), &json!(120)), "{done}");
        assert_eq!(entries(world, "EntriesTable").await, 120);
    })
    .await;
}

#[tokio::test]
async fn the_job_of_a_killed_worker_is_resumed_within_two_minutes() {
    play(async |world| {
        use umavez_local::faults::{Action, CallFault, Fault};
        let kill =
            CallFault { function: Some("backfill-worker".to_owned()), nth: 20, ..CallFault::first(Action::KillAfter) };
        world.stack.add_fault(Fault::Call(kill)).await.expect("armed");
        let id = backfill(world, "a", &json!({"source": "telegram", "lines": lines(50)})).await;
        world.drain().await;
        assert_eq!(job(world, &id).await["state"], "RUNNING", "no worker has started it");
        for _ in 0..2 {
            world.advance(Duration::from_secs(60)).await;
            world.tick("Recovery").await;
        }
        let done = job(world, &id).await;
        assert_eq!((&done["state"], &done["counts"]["inserted"]), (&json!("COMPLETED"), &json!(50)), "{done}");
        // The message of the killed worker is redelivered last, and finds the job done.
        world.advance(Duration::from_secs(1_900)).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_with_a_valid_lease_is_not_enqueued_again() {
    play(async |world| {
        let id = backfill(world, "a", &json!({"source": "telegram", "lines": lines(1)})).await;
        world.drain().await;
        let table = world.stack.output("EntriesTable").expect("a table").to_owned();
        let key = keys::backfill(&BackfillId::parse(&id).expect("an id"));
        let backfills = Backfills { store: world.store.clone(), table: table.clone() };
        // The job of a worker that has renewed its lease since recovery found it.
        let (now, place) = (world.now(), "000000000000001#x");
        let write = Write::update(&table, key.clone()).set("state", "RUNNING").set("wake_at", place);
        let leased = |ms| write.clone().set_number("lease_until", now.plus_ms(ms).millis());
        let found = Found { key, place: place.to_owned() };
        let at = Invocation::new("recovery", now, Duration::from_secs(60));
        world.store.write(&at, leased(1_000)).await.expect("written");
        assert!(!backfills.wake(&at, &found).await.expect("an answer"), "its lease is still valid");
        world.store.write(&at, leased(0)).await.expect("written");
        assert!(backfills.wake(&at, &found).await.expect("an answer"), "its lease has expired");
        world.drain().await;
        assert_eq!(job(world, &id).await["state"], "COMPLETED");
    })
    .await;
}

/// Posts the upload form of a job's answer.
async fn upload(world: &World, upload: &Value, content: Vec<u8>) -> u16 {
    let mut body = Vec::new();
    let boundary = "umavez-boundary";
    let mut part = |head: String, content: &[u8]| {
        body.extend_from_slice(format!("--{boundary}\r\ncontent-disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    };
    for (name, value) in upload["fields"].as_object().expect("fields") {
        part(format!("name=\"{name}\""), value.as_str().expect("a text").as_bytes());
    }
    part("name=\"file\"; filename=\"lines.jsonl\"".to_owned(), &content);
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let request = client.post(upload["url"].as_str().expect("a URL")).body(body);
    let request = request.header("content-type", format!("multipart/form-data; boundary={boundary}"));
    let _ = world;
    request.send().await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn an_upload_starts_its_job_once_however_often_it_is_reported() {
    play(async |world| {
        let body = json!({"source": "telegram", "upload": true});
        let answer = world.post_with_key("a", "/backfills", &body).await;
        assert_eq!((answer.status, &answer.body["state"]), (202, &json!("AWAITING_UPLOAD")), "{}", answer.body);
        let id = answer.text("/backfill_id");
        world.drain().await;
        assert_eq!(job(world, &id).await["state"], "AWAITING_UPLOAD");
        let text = lines(300);
        assert_eq!(upload(world, &answer.body["upload"], text.clone().into_bytes()).await, 204);
        world.drain().await;
        let done = job(world, &id).await;
        assert_eq!((&done["state"], &done["counts"]["inserted"]), (&json!("COMPLETED"), &json!(300)), "{done}");
        // S3 may deliver an event twice, and the form can be posted twice within its time.
        let event = json!({"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Post", "s3": {
            "bucket": {"name": "x"}, "object": {"key": format!("backfills/{id}"), "size": text.len(), "eTag": "e"}}}]});
        world.send_to_queue("umavez-dev-backfill", &event.to_string()).await;
        world.send_to_queue("umavez-dev-backfill", r#"{"Service":"Amazon S3","Event":"s3:TestEvent"}"#).await;
        assert_eq!(upload(world, &answer.body["upload"], lines(2).into_bytes()).await, 204);
        world.drain().await;
        assert_eq!(job(world, &id).await, done);
    })
    .await;
}

#[tokio::test]
async fn a_large_upload_is_read_in_parts_and_long_lines_are_skipped() {
    play(async |world| {
        let answer = world.post_with_key("a", "/backfills", &json!({"source": "telegram", "upload": true})).await;
        let mut text = String::new();
        for n in 1..=80 {
            text.push_str(&thought(n, &"a".repeat(30_000)).to_string());
            text.push('\n');
        }
        text.push_str(&"x".repeat(1_500_000));
        text.push('\n');
        text.push_str(&thought(81, "a última").to_string());
        assert_eq!(upload(world, &answer.body["upload"], text.into_bytes()).await, 204);
        world.drain().await;
        let done = job(world, &answer.text("/backfill_id")).await;
        assert_eq!(
            done["counts"],
            json!({"inserted": 81, "skipped": 0, "updated": 0, "failed": 1, "blank": 0}),
            "{done}"
        );
        assert_eq!(done["errors"][0]["line"], 81);
    })
    .await;
}

#[tokio::test]
async fn a_job_without_an_upload_fails_and_a_late_upload_is_refused() {
    play(async |world| {
        let answer = world.post_with_key("a", "/backfills", &json!({"source": "telegram", "upload": true})).await;
        world.advance(Duration::from_secs(8 * 3_600 + 60)).await;
        world.tick("Recovery").await;
        let done = job(world, &answer.text("/backfill_id")).await;
        assert_eq!((&done["state"], &done["reason"]), (&json!("FAILED"), &json!("input_missing")));
        assert_eq!(upload(world, &answer.body["upload"], b"{}".to_vec()).await, 403);
    })
    .await;
}

#[tokio::test]
async fn an_upload_after_its_job_failed_is_still_processed() {
    play(async |world| {
        let body = json!({"source": "telegram", "upload": true});
        let id = world.post_with_key("a", "/backfills", &body).await.text("/backfill_id");
        world.advance(Duration::from_secs(8 * 3_600 + 60)).await;
        world.tick("Recovery").await;
        let again = world.post_with_key("a", "/backfills", &body).await;
        assert_eq!(upload(world, &again.body["upload"], lines(3).into_bytes()).await, 204);
        world.drain().await;
        let done = job(world, &id).await;
        assert_eq!((&done["state"], &done["counts"]["inserted"]), (&json!("COMPLETED"), &json!(3)), "{done}");
    })
    .await;
}

#[tokio::test]
async fn a_retry_with_the_same_key_gets_the_first_answer() {
    play(async |world| {
        let ask =
            |key: &'static str, body: Value| async move { world.post_with_key(key, "/ingest/telegram", &body).await };
        let page = link("https://example.com/");
        let first = ask("k1", page.clone()).await;
        let again = ask("k1", page.clone()).await;
        assert_eq!((first.text("/action"), again.text("/action")), ("inserted".into(), "inserted".into()));
        assert!(!first.is_replayed() && again.is_replayed());
        assert_eq!(ask("k2", page).await.text("/action"), "skipped", "another request");
        assert_eq!(ask("u0", thought(7, "a")).await.text("/action"), "inserted");
        let updated = ask("u1", thought(7, "b")).await;
        ask("u2", thought(7, "c")).await;
        let again = ask("u1", thought(7, "b")).await;
        assert_eq!(
            (updated.text("/action"), again.text("/action"), again.is_replayed()),
            ("updated".into(), "updated".into(), true)
        );
        assert_eq!(again.text("/clean_text"), "c", "the repeated request was applied again");
    })
    .await;
}

#[tokio::test]
async fn an_invalid_time_is_refused_and_a_future_one_does_not_make_later_updates_stale() {
    play(async |world| {
        let mail =
            |date: &str| json!({"raw_text": date, "from": "a@b.co", "subject": "hello", "source": {"date": date}});
        for date in ["0000-01-01T00:00:00+01:00", "Sat, 1 Jan 0000 00:00:00 +0100"] {
            world.post("/ingest/email", &mail(date)).await.assert_problem(422, "invalid_request", &["source.date"]);
        }
        assert_eq!(ingest(world, "email", &mail("2099-01-01T00:00:00Z")).await["action"], "inserted");
        world.advance(Duration::from_secs(60)).await;
        let now = world.now().to_string();
        assert_eq!(ingest(world, "email", &mail(&now)).await["action"], "updated");
    })
    .await;
}
