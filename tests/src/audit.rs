//! The invariants that are checked at the end of every test.

mod conversations;
mod downsells;
mod mailings;

use std::collections::HashSet;

use serde_json::Value;
use umavez_local::beside::Beside;

use crate::World;
use crate::world::{Expected, KEY};

pub async fn audit(world: &World, expected: Expected) {
    let refusals = world.stack.permissions().refusals();
    let found = Expected {
        dead_letters: messages(world, false).await.0,
        waiting: messages(world, true).await.1,
        sent: world.stack.catcher().sent(None, None).len(),
        panics: world.events("FUNCTION_PANICKED").len(),
        server_errors: world
            .events("REQUEST_ANSWERED")
            .iter()
            .filter(|line| line["status"].as_u64() >= Some(500))
            .count(),
        refused: refusals.len(),
    };
    let refused: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(
        found, expected,
        "left happened, right is what the test expects; a test says so with \
         play_with(Setup::default().expecting(Expected {{ sent: 1, ..Expected::default() }}), …); refused calls: {refused:?}"
    );
    logs_contain_no_secret(world);
    the_second_dynamodb_agrees(world);
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

/// Returns the visible and the waiting messages of the queues that functions read (`read`), or of
/// those that they do not read, which are the dead-letter queues.
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

/// Checks that log lines contain only ids and codes: no canary and no key.
fn logs_contain_no_secret(world: &World) {
    let mut secrets = world.canaries();
    secrets.push(KEY.to_owned());
    for line in world.stack.logs().since(0) {
        for secret in &secrets {
            assert!(!line.line.contains(secret), "a log line of {} contains a canary", line.function);
        }
    }
}

/// Checks that a second DynamoDB, if there is one, gave the same answers.
fn the_second_dynamodb_agrees(world: &World) {
    let differences = world.stack.beside().map(Beside::differences).unwrap_or_default();
    let different: Vec<_> = differences.iter().map(Value::to_string).collect();
    assert!(different.is_empty(), "{} answers of DynamoDB differ:\n{}", different.len(), different.join("\n"));
}

/// I1 for intents: a held row has a holder. A guard lists exactly the current holds, and the
/// windows of sends do not overlap.
async fn intents_have_one_holder(world: &World) {
    let rows = world.rows("IntentsTable").await;
    let now = world.now().seconds();
    let is_open = |row: &Value| row["window_until"].as_i64() > Some(now);
    for row in &rows {
        let sk = row["sk"].as_str().unwrap_or_default();
        assert!(row["writer"].is_string(), "row without a writer: {sk}");
        assert!(row["expires_at"].is_i64(), "row without a TTL: {sk}");
        if sk.starts_with("INTENT#") {
            assert!(row["holder"].as_str().is_some_and(|holder| !holder.is_empty()), "row without a holder: {sk}");
            assert_eq!(row["released_at"].is_string(), row["status"] == "RELEASED", "{sk}");
            assert!(row["version"].as_i64() >= Some(1), "{sk}");
            // The guard contains every hold whose window is open.
            if row["guard"].is_string() && row["status"] == "HELD" && is_open(row) {
                let guard = rows.iter().find(|guard| guard["sk"] == row["guard"] && guard["pk"] == row["pk"]);
                let guard = guard.unwrap_or_else(|| panic!("guarded hold without its guard: {sk}"));
                assert!(
                    holds(guard).iter().any(|hold| same_hold(hold, row)),
                    "the guard does not contain the hold: {sk}"
                );
            }
        } else {
            let stands = |hold: &Value| {
                let mut intents =
                    rows.iter().filter(|intent| intent["guard"] == row["sk"] && intent["pk"] == row["pk"]);
                intents.any(|intent| intent["status"] == "HELD" && same_hold(hold, intent))
            };
            // TTL may have deleted the row of an intent whose window ended long ago.
            let over = |hold: &Value| hold["expires_at"].as_i64() <= Some(now);
            assert!(
                holds(row).iter().all(|hold| over(hold) || stands(hold)),
                "the guard contains a hold that no longer exists: {sk}"
            );
            // A message that is still to be sent may have to wait for a send.
            let sent: Vec<_> = holds(row).iter().filter(|hold| hold["pending"] != true).collect();
            for pair in sent.windows(2) {
                assert!(pair[0]["until"].as_i64() <= pair[1]["at"].as_i64(), "two sends in one window: {sk}");
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

/// I4 and I5 for messages: every message that is not settled is in an index in which a sweep or an
/// operator finds it, and no attempt called the provider twice.
async fn messages_add_up(world: &World) {
    let rows = world.rows("OutboundTable").await;
    let intents = world.rows("IntentsTable").await;
    let mut attempts = 0;
    for row in rows.iter().filter(|row| row["sk"] == "MESSAGE") {
        attempts += row["attempt"].as_u64().unwrap_or(0);
        let waits_for = row["wake"].as_str().and_then(|wake| wake.split('#').next());
        let state = row["state"].as_str().expect("a state");
        match state {
            "QUEUED" => assert!(matches!(waits_for, Some("DUE" | "CHECK")), "no sweep finds it: {row}"),
            "SENDING" => {
                assert!(waits_for == Some("CHECK") && row["deadline"].is_number(), "no sweep finds it: {row}")
            }
            "UNKNOWN" => {
                assert_eq!(waits_for, Some("UNKNOWN"), "not in the index of unknown messages: {row}");
                assert!(row["doubts"].is_array(), "unknown, but no attempt is in doubt: {row}");
            }
            _ => assert!(waits_for.is_none(), "settled, but still in the index by time: {row}"),
        }
        let settled = !matches!(state, "QUEUED" | "SENDING" | "UNKNOWN");
        assert_eq!(row["expires_at"].is_number(), settled, "exactly the settled rows have a TTL: {row}");
        // A message that ended without being sent holds no intent.
        let holder = format!("message:{}", row["id"].as_str().unwrap_or_default());
        let holds = intents.iter().any(|intent| intent["status"] == "HELD" && intent["holder"] == holder.as_str());
        let unsent = matches!(state, "FAILED" | "CANCELED" | "EXPIRED" | "SUPPRESSED" | "DEDUPED");
        assert!(!(holds && unsent), "{state}, but it still holds its intent: {row}");
    }
    let providers = ["telegram", "evolution", "ses"];
    let by_sender = |call: &&umavez_local::calls::Call| {
        call.caller == "outbound-sender" && providers.contains(&call.service.as_str())
    };
    if world.stack.output("DownsellsTable").is_some() {
        attempts += downsells::attempts(world).await;
    }
    let calls = world.stack.calls().since(0).iter().filter(by_sender).count() as u64;
    // TTL deletes old rows; the calls for them are not compared.
    assert!(rows.is_empty() || calls <= attempts, "{calls} calls for {attempts} attempts");
}
