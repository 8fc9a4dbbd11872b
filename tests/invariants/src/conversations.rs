//! I1 and I4 for conversations: every message has its own number, every answered message has its
//! batch, and a conversation with unanswered messages is in the index by time or held for a person.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{Rows, Violations, number, text};

pub fn check(rows: &Rows, pk: &str, found: &mut Violations) {
    let Some(state) = rows.get("Conversations", pk, "STATE") else {
        for message in rows.partition("Conversations", pk, "MESSAGE#") {
            found.unless(false, "a message has no conversation", message);
        }
        return;
    };
    let (received, claimed, answered) =
        (number(state, "received"), number(state, "claimed"), number(state, "answered"));
    found.unless(answered <= claimed && claimed <= received, "the numbers of a conversation are out of order", state);
    let is_idle = state["phase"] == "idle";
    found.unless(is_idle == (answered == claimed), "exactly idle conversations have nothing under way", state);
    let numbers: Vec<_> = numbers(rows, pk);
    let distinct: BTreeSet<_> = numbers.iter().copied().collect();
    found.unless(distinct.len() == numbers.len(), "two messages have the same number", state);
    found.unless(distinct.last().is_none_or(|last| *last <= received), "a message has a number of the future", state);
    let has_pending = (answered + 1..=received).all(|number| distinct.contains(&number));
    found.unless(has_pending, "an unanswered message is missing", state);
    let mut ends = 0;
    for batch in rows.partition("Conversations", pk, "BATCH#") {
        found.unless(number(batch, "from") > ends, "batches overlap", batch);
        ends = number(batch, "batch");
        found.unless(ends <= claimed, "a batch was not claimed", batch);
        replies(rows, batch, found);
    }
    let is_open = received > answered || state["hold"].is_object();
    found.unless(is_open == state["wake"].is_string(), "exactly open conversations are in the index by time", state);
}

/// Every part of a reply that was handed over is a message.
fn replies(rows: &Rows, batch: &Value, found: &mut Violations) {
    // The messages of an old batch may have expired.
    if batch["finished_at"].is_string() {
        return;
    }
    for id in batch["messages"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let is_there = rows.get("Outbound", &format!("MESSAGE#{id}"), "MESSAGE").is_some();
        found.unless(is_there, "a part of a reply is no message", batch);
    }
}

fn numbers(rows: &Rows, pk: &str) -> Vec<u64> {
    rows.partition("Conversations", pk, "MESSAGE#").filter_map(|row| row["number"].as_u64()).collect()
}

/// Returns the conversations in which a number is missing. The rule holds as long as TTL has
/// deleted the oldest messages only.
pub fn numbers_have_no_gap(rows: &Rows) -> Vec<String> {
    let states = rows.table("Conversations").filter(|row| row["sk"] == "STATE");
    let has_gap = |state: &&Value| {
        let mut numbers = numbers(rows, text(state, "pk"));
        numbers.sort_unstable();
        let received = number(state, "received");
        numbers != (received + 1 - numbers.len() as u64..=received).collect::<Vec<_>>()
    };
    states.filter(has_gap).map(|state| format!("a number is missing or was assigned twice: {state}")).collect()
}
