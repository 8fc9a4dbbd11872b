//! I1 for intents: a held row has a holder. A guard lists exactly the current holds, and the
//! windows of sends do not overlap.

use serde_json::Value;

use crate::{Rows, Violations, number, text};

/// The states of a message that may hold its intent.
const HOLDING: &[&str] = &["QUEUED", "SENDING", "SENT", "UNKNOWN"];

pub fn check(rows: &Rows, pk: &str, now_ms: i64, found: &mut Violations) {
    let now = now_ms / 1_000;
    for row in rows.partition("Intents", pk, "INTENT#") {
        written(row, found);
        intent(rows, row, now, found);
    }
    for row in rows.partition("Intents", pk, "GUARD#") {
        written(row, found);
        guard(rows, row, now, found);
    }
}

fn written(row: &Value, found: &mut Violations) {
    found.unless(row["writer"].is_string(), "a row has no writer", row);
    found.unless(row["expires_at"].is_i64(), "a row has no TTL", row);
}

fn intent(rows: &Rows, row: &Value, now: i64, found: &mut Violations) {
    found.unless(!text(row, "holder").is_empty(), "an intent has no holder", row);
    let is_released = row["status"] == "RELEASED";
    found.unless(row["released_at"].is_string() == is_released, "exactly released intents have a release", row);
    found.unless(number(row, "version") >= 1, "an intent has no version", row);
    if row["status"] != "HELD" || row["window_until"].as_i64() <= Some(now) {
        return;
    }
    // The guard contains every hold whose window is open.
    if let Some(guard) = row["guard"].as_str() {
        let guard = rows.get("Intents", text(row, "pk"), guard);
        let is_listed = guard.is_some_and(|guard| holds(guard).iter().any(|hold| is_same(hold, row)));
        found.unless(is_listed, "the guard does not contain a hold", row);
    }
    if let Some(id) = text(row, "holder").strip_prefix("message:") {
        let message = rows.get("Outbound", &format!("MESSAGE#{id}"), "MESSAGE");
        // TTL may have deleted a message that ended long ago.
        let may_hold = message.is_none_or(|message| HOLDING.contains(&text(message, "state")));
        found.unless(may_hold, "a message that ended without being sent holds its intent", row);
    }
}

fn guard(rows: &Rows, row: &Value, now: i64, found: &mut Violations) {
    let has_intent = |hold: &Value| {
        let intents = rows.partition("Intents", text(row, "pk"), "INTENT#");
        let mut of_guard = intents.filter(|intent| intent["guard"] == row["sk"]);
        of_guard.any(|intent| intent["status"] == "HELD" && is_same(hold, intent))
    };
    // TTL may have deleted the row of an intent whose window ended long ago.
    let is_over = |hold: &Value| hold["expires_at"].as_i64() <= Some(now);
    let all_current = holds(row).iter().all(|hold| is_over(hold) || has_intent(hold));
    found.unless(all_current, "a guard contains a hold that no longer exists", row);
    // A message that is still to be sent may have to wait for a send.
    let sent: Vec<_> = holds(row).iter().filter(|hold| hold["pending"] != true).collect();
    let is_apart = |pair: &[&Value]| pair[0]["until"].as_i64() <= pair[1]["at"].as_i64();
    found.unless(sent.windows(2).all(is_apart), "a guard has two sends in one window", row);
}

pub fn holds(guard: &Value) -> &[Value] {
    guard["holds"].as_array().map_or(&[], Vec::as_slice)
}

pub fn is_same(hold: &Value, intent: &Value) -> bool {
    hold["holder"] == intent["holder"] && hold["fingerprint"] == intent["fingerprint"]
}
