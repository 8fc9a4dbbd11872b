//! What must hold at the end of every test, whatever it did.

mod conversations;
mod downsells;
mod mailings;

use std::collections::HashSet;

use serde_json::Value;

use crate::World;
use crate::world::{Expected, KEY};

pub async fn audit(world: &World, expected: Expected) {
    let refusals = world.stack.permissions().refusals();
    let found = Expected {
        dead_letters: messages(world, false).await.0,
        waiting: messages(world, true).await.1,
        sent: world.stack.catcher().sent(None, None).len(),
        panics: world.events("PANIC").len(),
        server_errors: world.events("HTTP").iter().filter(|line| line["status"].as_u64() >= Some(500)).count(),
        refused: refusals.len(),
    };
    let refused: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected, "what went wrong is what the test said would; refused: {refused:?}");
    nothing_is_told_in_clear(world);
    if world.stack.output("IntentsTable").is_some() {
        intents_have_one_holder(world).await;
    }
    if world.stack.output("OutboundTable").is_some() {
        messages_add_up(world).await;
    }
    if world.stack.output("ConversationsTable").is_some() {
        conversations::conversations_add_up(world).await;
    }
    if world.stack.output("DownsellsTable").is_some() {
        downsells::downsells_add_up(world).await;
    }
    if world.stack.output("MailingsTable").is_some() {
        mailings::mailings_add_up(world).await;
    }
}

/// Visible and waiting messages, of the queues that functions read or of those that they do not:
/// dead letters.
async fn messages(world: &World, read: bool) -> (usize, usize) {
    let sources = world.stack.model().functions.iter().flat_map(|function| &function.queue_sources);
    let are_read: HashSet<_> = sources.map(|source| source.queue.clone()).collect();
    let (mut visible, mut waiting) = (0, 0);
    for queue in world.stack.model().queues.iter().filter(|queue| are_read.contains(&queue.name) == read) {
        let counts = world.stack.queues().counts(&queue.name).await.expect("counts");
        visible += counts.visible;
        waiting += counts.waiting;
    }
    (visible, waiting)
}

/// Logs hold ids and codes: no canary, no key.
fn nothing_is_told_in_clear(world: &World) {
    let mut secrets = world.canaries();
    secrets.push(KEY.to_owned());
    for line in world.stack.logs().since(0) {
        for secret in &secrets {
            assert!(!line.line.contains(secret), "a log line of {} holds a canary", line.function);
        }
    }
}

/// I1 for intents: a held row has a holder; a guard lists exactly the holds that stand, and their
/// windows do not overlap.
async fn intents_have_one_holder(world: &World) {
    let rows = world.rows("IntentsTable").await;
    let now = world.now().seconds();
    let is_open = |row: &Value| row["window_until"].as_i64() > Some(now);
    for row in &rows {
        let sk = row["sk"].as_str().unwrap_or_default();
        assert!(row["writer"].is_string(), "a row knows its writer: {sk}");
        assert!(row["expires_at"].is_i64(), "a row expires: {sk}");
        if sk.starts_with("INTENT#") {
            assert!(row["holder"].as_str().is_some_and(|holder| !holder.is_empty()), "a row has a holder: {sk}");
            assert_eq!(row["released_at"].is_string(), row["status"] == "RELEASED", "{sk}");
            assert!(row["version"].as_i64() >= Some(1), "{sk}");
            // A hold whose window is open is in its guard.
            if row["guard"].is_string() && row["status"] == "HELD" && is_open(row) {
                let guard = rows.iter().find(|guard| guard["sk"] == row["guard"] && guard["pk"] == row["pk"]);
                let guard = guard.unwrap_or_else(|| panic!("a guarded hold has its guard: {sk}"));
                assert!(holds(guard).iter().any(|hold| same_hold(hold, row)), "a guard misses a hold: {sk}");
            }
        } else {
            let stands = |hold: &Value| {
                let mut intents =
                    rows.iter().filter(|intent| intent["guard"] == row["sk"] && intent["pk"] == row["pk"]);
                intents.any(|intent| intent["status"] == "HELD" && same_hold(hold, intent))
            };
            // TTL may have removed the row of an intent whose window is long over.
            let over = |hold: &Value| hold["expires_at"].as_i64() <= Some(now);
            assert!(
                holds(row).iter().all(|hold| over(hold) || stands(hold)),
                "a guard keeps a hold that is gone: {sk}"
            );
            for pair in holds(row).windows(2) {
                assert!(pair[0]["until"].as_i64() <= pair[1]["at"].as_i64(), "two sends inside one window: {sk}");
            }
        }
    }
}

fn holds(guard: &Value) -> &[Value] {
    guard["holds"].as_array().map_or(&[], Vec::as_slice)
}

fn same_hold(hold: &Value, intent: &Value) -> bool {
    hold["holder"] == intent["holder"] && hold["fingerprint"] == intent["fingerprint"]
}

/// I4 and I5 for messages: whatever is not settled waits for somebody who can find it, and no
/// attempt was called twice.
async fn messages_add_up(world: &World) {
    let rows = world.rows("OutboundTable").await;
    let intents = world.rows("IntentsTable").await;
    let mut attempts = 0;
    for row in rows.iter().filter(|row| row["sk"] == "MESSAGE") {
        attempts += row["attempt"].as_u64().unwrap_or(0);
        let waits_for = row["wake"].as_str().and_then(|wake| wake.split('#').next());
        let state = row["state"].as_str().expect("a state");
        match state {
            "QUEUED" => assert!(matches!(waits_for, Some("DUE" | "CHECK")), "nobody looks for it: {row}"),
            "SENDING" => {
                assert!(waits_for == Some("CHECK") && row["deadline"].is_number(), "nobody looks for it: {row}")
            }
            "UNKNOWN" => {
                assert_eq!(waits_for, Some("UNKNOWN"), "nobody sees it: {row}");
                assert!(row["doubts"].is_array(), "unknown, and no attempt may have been sent: {row}");
            }
            _ => assert!(waits_for.is_none(), "settled, and still looked for: {row}"),
        }
        let settled = !matches!(state, "QUEUED" | "SENDING" | "UNKNOWN");
        assert_eq!(row["expires_at"].is_number(), settled, "only what is settled goes: {row}");
        // A message that ended unsent holds nothing.
        let holder = format!("message:{}", row["id"].as_str().unwrap_or_default());
        let holds = intents.iter().any(|intent| intent["status"] == "HELD" && intent["holder"] == holder.as_str());
        let unsent = matches!(state, "FAILED" | "CANCELED" | "EXPIRED" | "SUPPRESSED" | "DEDUPED");
        assert!(!(holds && unsent), "{state}, and it holds its intent: {row}");
    }
    let providers = ["telegram", "evolution", "ses"];
    let by_sender = |call: &&umavez_local::calls::Call| {
        call.caller == "outbound-sender" && providers.contains(&call.service.as_str())
    };
    if world.stack.output("DownsellsTable").is_some() {
        attempts += downsells::attempts(world).await;
    }
    let calls = world.stack.calls().since(0).iter().filter(by_sender).count() as u64;
    // Rows go when they are old; what was sent for them is not counted any more.
    assert!(rows.is_empty() || calls <= attempts, "{calls} calls for {attempts} attempts");
}
