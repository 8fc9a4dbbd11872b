//! What must hold at the end of every test, whatever it did.

use std::collections::HashSet;

use serde_json::Value;

use crate::World;
use crate::world::{Expected, KEY};

pub async fn audit(world: &World, expected: Expected) {
    let found = Expected {
        dead_letters: dead_letters(world).await,
        panics: world.events("PANIC").len(),
        server_errors: world.events("HTTP").iter().filter(|line| line["status"].as_u64() >= Some(500)).count(),
    };
    assert_eq!(found, expected, "what went wrong is what the test said would");
    nothing_is_told_in_clear(world);
    every_call_is_granted(world);
    if world.stack.output("IntentsTable").is_some() {
        intents_have_one_holder(world).await;
    }
}

/// Messages in queues that nothing reads: those are dead letters.
async fn dead_letters(world: &World) -> usize {
    let read: HashSet<_> = world
        .stack
        .model()
        .functions
        .iter()
        .flat_map(|f| &f.queue_sources)
        .map(|source| source.queue.clone())
        .collect();
    let mut letters = 0;
    for queue in world.stack.model().queues.iter().filter(|queue| !read.contains(&queue.name)) {
        letters += world.stack.queues().counts(&queue.name).await.expect("counts").visible;
    }
    letters
}

/// Logs hold ids and codes: no canary, no key.
fn nothing_is_told_in_clear(world: &World) {
    let mut secrets = world.canaries();
    secrets.push(format!("Bearer {KEY}"));
    for line in world.stack.logs().since(0) {
        for secret in &secrets {
            assert!(!line.line.contains(secret), "a log line of {} holds a canary", line.function);
        }
    }
}

/// A function makes no call that its policies in the template do not grant. (Providers are outside of AWS.)
fn every_call_is_granted(world: &World) {
    let model = world.stack.model();
    for call in world.stack.calls().since(0) {
        let Some(function) = model.functions.iter().find(|function| function.binary == call.caller) else { continue };
        if function.policies.is_empty() || !["dynamodb", "sqs"].contains(&call.service.as_str()) {
            continue;
        }
        for action in &call.actions {
            let grants = |statement: &&Value| {
                let resource = statement["Resource"].to_string();
                statement["Action"].to_string().contains(&format!("\"{action}\"")) && resource.contains(&call.target)
            };
            let granted = function.policies.iter().any(|statement| grants(&statement));
            assert!(granted, "{} calls {action} on {} without a policy", call.caller, call.target);
        }
    }
}

/// I1 for intents: a held row has a holder and ends in its own window; a guard belongs to a row that was written with it.
async fn intents_have_one_holder(world: &World) {
    let rows = world.rows("IntentsTable").await;
    let keys: HashSet<_> = rows.iter().map(|row| (row["pk"].to_string(), row["sk"].to_string())).collect();
    assert_eq!(keys.len(), rows.len());
    for row in &rows {
        let sk = row["sk"].as_str().unwrap_or_default();
        assert!(row["writer"].is_string(), "a row knows its writer: {sk}");
        assert!(row["expires_at"].is_i64(), "a row expires: {sk}");
        if sk.starts_with("INTENT#") {
            assert!(row["holder"].as_str().is_some_and(|holder| !holder.is_empty()), "a row has a holder: {sk}");
            assert_eq!(row["released_at"].is_string(), row["status"] == "RELEASED", "{sk}");
            assert!(row["version"].as_i64() >= Some(1), "{sk}");
        } else {
            let written_with = |intent: &&Value| intent["guard"] == row["sk"] && intent["pk"] == row["pk"];
            let owner = rows.iter().filter(written_with).any(|intent| intent["fingerprint"] == row["fingerprint"]);
            assert!(owner, "a guard has its intent: {sk}");
        }
    }
}
