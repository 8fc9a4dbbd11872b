//! I4 for messages: every message that is not settled is in an index in which a sweep or an
//! operator finds it, and its intent says the same.

use serde_json::Value;

use crate::intents::{holds, is_same};
use crate::{Rows, Violations, text, waits_for};

pub fn check(rows: &Rows, pk: &str, found: &mut Violations) {
    let Some(row) = rows.get("Outbound", pk, "MESSAGE") else { return };
    let state = text(row, "state");
    match state {
        "QUEUED" => {
            found.unless(matches!(waits_for(row), Some("DUE" | "CHECK")), "no sweep finds a queued message", row)
        }
        "SENDING" => {
            let is_checked = waits_for(row) == Some("CHECK") && row["deadline"].is_number();
            found.unless(is_checked, "no sweep finds a message that is being sent", row);
        }
        "UNKNOWN" => {
            found.unless(waits_for(row) == Some("UNKNOWN"), "no list shows an unknown message", row);
            found.unless(row["doubts"].is_array(), "a message is unknown, but no attempt is in doubt", row);
        }
        _ => found.unless(waits_for(row).is_none(), "a settled message is still in the index by time", row),
    }
    let is_settled = !matches!(state, "QUEUED" | "SENDING" | "UNKNOWN");
    found.unless(row["expires_at"].is_number() == is_settled, "exactly settled messages have a TTL", row);
    content(rows, row, found);
    if row["intent"].is_object() {
        intent(rows, row, found);
    }
}

/// The content of a message is in its row, or in a row of its own.
fn content(rows: &Rows, row: &Value, found: &mut Violations) {
    let is_open = matches!(text(row, "state"), "QUEUED" | "SENDING");
    let is_there = row["content"].is_object() || rows.get("Outbound", text(row, "pk"), "CONTENT").is_some();
    found.unless(is_there || !is_open, "a message has no content", row);
}

fn intent(rows: &Rows, row: &Value, found: &mut Violations) {
    let (pk, fingerprint) =
        (format!("CLIENT#{}", text(&row["intent"], "client_id")), text(&row["intent"], "fingerprint"));
    let Some(intent) = rows.get("Intents", &pk, &format!("INTENT#{fingerprint}")) else { return };
    let holder = format!("message:{}", text(row, "id"));
    let is_held = intent["status"] == "HELD" && intent["holder"] == holder.as_str();
    let is_unsent = matches!(text(row, "state"), "FAILED" | "CANCELED" | "EXPIRED" | "SUPPRESSED" | "DEDUPED");
    found.unless(!(is_held && is_unsent), "a message that ended without being sent holds its intent", row);
    // An attempt has moved the hold in the guard to its time.
    let guard = intent["guard"].as_str().and_then(|guard| rows.get("Intents", &pk, guard));
    let hold = guard.and_then(|guard| holds(guard).iter().find(|hold| is_same(hold, intent)));
    if let Some(hold) = hold.filter(|_| is_held && row["intent"]["rolling"] == true) {
        let has_begun = text(row, "state") == "SENDING";
        found.unless(!has_begun || hold["pending"] != true, "an attempt has begun, and its hold is pending", row);
    }
}
