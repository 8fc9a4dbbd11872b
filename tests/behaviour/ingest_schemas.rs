//! The behaviour that both schemas share, by request and by backfill, and rare cases of the worker.

use std::time::Duration;

use serde_json::{Value, json};
use umavez_domain::ingest::{PolicyKey, Schema};
use umavez_domain::keys;
use umavez_local::faults::{Action, CallFault, Fault};
use umavez_platform::aws::Aws;
use umavez_platform::store::Write;
use umavez_tests::{World, play};

use crate::ingest::{backfill, entries, ingest, job, lines, newsletter, patch, put};

/// Runs a backfill to its end. Returns its counts.
async fn done(world: &World, key: &str, body: &Value) -> Value {
    let id = backfill(world, key, body).await;
    world.drain().await;
    let done = job(world, &id).await;
    assert_eq!(done["state"], "COMPLETED", "{done}");
    done["counts"].clone()
}

#[tokio::test]
async fn an_issue_that_moves_to_another_day_frees_the_old_day_in_both_schemas() {
    play(async |world| {
        for (schema, table) in [("pkm", "EntriesTable"), ("pkm_test", "EntriesTestTable")] {
            put(world, "/test-mode", &json!({"is_test_mode": schema == "pkm_test"})).await;
            let path = format!("/policies/email_newsletter_v1?schema={schema}");
            assert_eq!(patch(world, &path, &json!({"conflict_action": "update"})).await.status, 200);
            let issue = |id: Option<&str>, day: u32| newsletter(id, Some(&format!("2025-07-{day:02}T04:00:00Z")));
            let first = ingest(world, "email", &issue(Some("<a@example.com>"), 1)).await;
            assert_eq!((&first["action"], &first["schema"]), (&json!("inserted"), &json!(schema)));
            assert_eq!(ingest(world, "email", &issue(Some("<a@example.com>"), 2)).await["action"], "updated");
            let id = first["entry_id"].as_str().expect("an id");
            assert_eq!(world.get(&format!("/entries/{id}?schema={schema}")).await.status, 200);
            assert_eq!(ingest(world, "email", &issue(None, 1)).await["action"], "inserted", "the day is free");

            let moved = [issue(Some("<b@example.com>"), 3), issue(Some("<b@example.com>"), 4), issue(None, 3)];
            let text = moved.map(|line| line.to_string()).join("\n");
            let body = |dry: bool| json!({"source": "email", "lines": text, "dry_run": dry});
            let dry = done(world, &format!("dry-{schema}"), &body(true)).await;
            assert_eq!((&dry["inserted"], &dry["updated"]), (&json!(2), &json!(1)), "{dry}");
            assert_eq!(done(world, &format!("real-{schema}"), &body(false)).await, dry);
            assert_eq!(entries(world, table).await, 4);
        }
    })
    .await;
}

#[tokio::test]
async fn a_worker_creates_missing_policies() {
    play(async |world| {
        let answer = world.post_with_key("a", "/backfills", &json!({"source": "telegram", "upload": true})).await;
        let table = world.stack.output("ConfigTable").expect("a table");
        let policy = Write::delete(table, keys::policy(Schema::Pkm, PolicyKey::TelegramThoughtV1));
        world.store.write(&world.invocation(), policy).await.expect("deleted");
        assert_eq!(world.post_form(&answer.body["upload"], lines(3).as_bytes()).await, 204);
        world.drain().await;
        assert_eq!(job(world, &answer.text("/backfill_id")).await["counts"]["inserted"], 3);
    })
    .await;
}

#[tokio::test]
async fn a_job_whose_upload_was_deleted_fails_with_input_missing() {
    play(async |world| {
        let fault = CallFault {
            function: Some("backfill-worker".to_owned()),
            operation: Some("GetObject".to_owned()),
            ..CallFault::first(Action::KillBefore)
        };
        world.stack.add_fault(Fault::Call(fault)).await.expect("armed");
        let answer = world.post_with_key("a", "/backfills", &json!({"source": "telegram", "upload": true})).await;
        let id = answer.text("/backfill_id");
        assert_eq!(world.post_form(&answer.body["upload"], lines(3).as_bytes()).await, 204);
        world.drain().await;
        let s3 = Aws::at_endpoint(world.stack.front_url(), "test").s3();
        let bucket = world.stack.output("UploadsBucket").expect("a bucket");
        s3.delete_object().bucket(bucket).key(format!("backfills/{id}")).send().await.expect("deleted");
        for _ in 0..3 {
            world.advance(Duration::from_secs(1_900)).await;
            world.tick("Recovery").await;
        }
        let failed = job(world, &id).await;
        assert_eq!((&failed["state"], &failed["reason"]), (&json!("FAILED"), &json!("input_missing")), "{failed}");
        let logged = world.events("BACKFILL_FAILED");
        assert_eq!((&logged[0]["backfill_id"], &logged[0]["reason"]), (&json!(id), &json!("input_missing")));
    })
    .await;
}
