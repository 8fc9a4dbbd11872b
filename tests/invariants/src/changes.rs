//! What must hold of a write: the rows before it and after it.

use serde_json::Value;
use umavez_domain::keys;

use crate::{Rows, number, text, transitions};

/// A row that a write changed.
#[derive(Debug, Clone)]
pub struct Change {
    pub table: String,
    pub pk: String,
    pub sk: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Returns what does not hold of the changes of one write. `rows` are those after the write.
pub fn violations_of(changes: &[Change], rows: &Rows, now_ms: i64) -> Vec<String> {
    let mut found = Vec::new();
    for change in changes {
        found.extend(version(change));
        found.extend(lease(change));
        found.extend(once(change));
        found.extend(transitions::check(change));
        found.extend(attempt(change, rows));
        found.extend(acceptance(change, rows));
        found.extend(block(change, rows));
        found.extend(rate(change));
        found.extend(suppression(change));
    }
    let mut partitions: Vec<_> = changes.iter().map(|change| (&change.table, &change.pk)).collect();
    partitions.sort();
    partitions.dedup();
    found.extend(partitions.into_iter().flat_map(|(table, pk)| crate::in_partition(rows, table, pk, now_ms)));
    found
}

/// I3: a version of a row has one author. A write that rests on a version goes to the next one, so
/// a writer that lost its race cannot overwrite the winner.
fn version(change: &Change) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    let (old, new) = (before["version"].as_u64()?, after["version"].as_u64()?);
    // What the holder of a lease writes keeps the version. Its fence is the lease.
    let is_fenced_by_lease = matches!(change.sk.as_str(), "MAILING" | "JOB") && old == new;
    let holds = new == old + 1 || before == after || is_fenced_by_lease;
    (!holds).then(|| format!("a write went from version {old} to {new} of {} {}", change.pk, change.sk))
}

/// I3: a lease that changes its owner gets the next epoch.
fn lease(change: &Change) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    let (Some(old), Some(new)) = (before["lease_epoch"].as_u64(), after["lease_epoch"].as_u64()) else { return None };
    let is_same_turn = new == old && before["lease_owner"] == after["lease_owner"];
    let holds = is_same_turn || new == old + 1;
    (!holds).then(|| format!("a lease went from epoch {old} to {new} of {} {}: {after}", change.pk, change.sk))
}

/// The rows that are written once and never replaced: the attributes that must not change.
const ONCE: &[(&str, &[&str])] = &[
    ("BATCH#", &["batch", "from", "reply", "answered_by"]),
    ("DOWNSELL#", &["id"]),
    ("ENTRY#", &["line", "email"]),
    ("FILE", &["mailing_id"]),
    ("REQUEST", &["mailing_id", "body", "downsell_id"]),
    ("TOKEN", &["slug"]),
];

fn once(change: &Change) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    let (_, names) = ONCE.iter().find(|(prefix, _)| change.sk.starts_with(prefix))?;
    let changed = names.iter().find(|name| !before[**name].is_null() && before[**name] != after[**name])?;
    Some(format!("a write replaced {changed} of {} {}: {before}", change.pk, change.sk))
}

/// I5 and I9: an attempt begins only if its gates are open at that moment.
fn attempt(change: &Change, rows: &Rows) -> Vec<String> {
    let Some(after) = change.after.as_ref().filter(|after| after["state"] == "SENDING") else { return Vec::new() };
    let attempt_of = |row: &Value| (row["state"] == "SENDING").then(|| number(row, "attempt"));
    if change.before.as_ref().and_then(attempt_of) == Some(number(after, "attempt")) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let before = change.before.as_ref().map_or("", |before| text(before, "state"));
    if before != "QUEUED" {
        found.push(format!("an attempt began on a row that was {before:?}: {after}"));
    }
    let (channel, to, sender) = match (change.table.as_str(), after["telegram_id"].as_i64()) {
        ("Outbound", _) => (text(after, "channel"), text(after, "to").to_owned(), text(after, "sender")),
        ("Downsells", Some(contact)) => ("telegram", contact.to_string(), text(after, "bot")),
        _ => return found,
    };
    let key = keys::suppression(channel, &to);
    let suppression = rows.get("Outbound", &key.pk, &key.sk);
    let senders = |row: &Value| row["senders"].as_array().cloned().unwrap_or_default();
    let is_against = |row: &&Value| senders(row).is_empty() || senders(row).contains(&Value::from(sender));
    if suppression.filter(|row| row["status"] == "ACTIVE").is_some_and(|row| is_against(&row)) {
        found.push(format!("an attempt to a suppressed address began: {after}"));
    }
    if change.table == "Downsells" {
        let charges = rows.get("Downsells", &change.pk, "CHARGES");
        let open = charges.and_then(|charges| charges["open"].as_object());
        // Whether the time of a charge is over is decided before the write, by the clock of the
        // sender.
        if open.is_none_or(|open| open.is_empty()) {
            found.push(format!("an attempt began without an unpaid charge: {after}"));
        }
        let epoch = charges.map_or(0, |charges| number(charges, "pay_epoch"));
        if epoch != number(after, "pay_epoch") {
            found.push(format!("an attempt began after a payment: {after}"));
        }
    }
    found
}

/// I2: a message is accepted together with its intent.
fn acceptance(change: &Change, rows: &Rows) -> Option<String> {
    let after = change.after.as_ref().filter(|after| change.before.is_none() && after["state"] == "QUEUED")?;
    let intent = after.get("intent").filter(|_| change.sk == "MESSAGE")?.as_object()?;
    let word = |name: &str| intent.get(name).and_then(Value::as_str).unwrap_or_default();
    let row = rows.get("Intents", &format!("CLIENT#{}", word("client_id")), &format!("INTENT#{}", word("fingerprint")));
    let holder = format!("message:{}", text(after, "id"));
    let is_held = row.is_some_and(|row| row["status"] == "HELD" && row["holder"] == holder.as_str());
    (!is_held).then(|| format!("a message was accepted without its intent: {after}"))
}

/// A user who blocks a bot is on the suppression list from the write that says so.
fn block(change: &Change, rows: &Rows) -> Option<String> {
    let after = change.after.as_ref()?;
    let is_blocked = |row: &Value| row["reason"] == "bot_blocked" || row["reason_code"] == "bot_blocked";
    if !is_blocked(after) || change.before.as_ref().is_some_and(is_blocked) {
        return None;
    }
    let to = after["telegram_id"].as_i64().map_or_else(|| text(after, "to").to_owned(), |id| id.to_string());
    let key = keys::suppression("telegram", &to);
    let row = rows.get("Outbound", &key.pk, &key.sk);
    row.is_none().then(|| format!("a bot is blocked, and the list does not say so: {after}"))
}

/// How far ahead of the time of a grant its slot may be.
const REACH_MS: i64 = 3_000;

/// Slots of a bucket are granted once, and not while it is parked. Only the last grant is released,
/// by the invocation that made it. A shorter pause does not end a longer one.
fn rate(change: &Change) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    if !change.pk.starts_with("RATE") {
        return None;
    }
    let time = |row: &Value, name: &str| row[name].as_i64().unwrap_or(0);
    let (free, was_free) = (time(after, "free_at_us"), time(before, "free_at_us"));
    let is_grant = time(after, "seen_us") != time(before, "seen_us") || free > was_free;
    let invocation = |row: &Value| text(row, "writer").rsplit_once('/').map(|(invocation, _)| invocation.to_owned());
    let sentence = if time(after, "parked_until") < time(before, "parked_until") {
        "a pause of a bucket became shorter"
    } else if is_grant && free <= was_free {
        "a slot was granted twice"
    } else if is_grant && time(before, "parked_until") > time(after, "seen_us") / 1_000 + REACH_MS {
        "a slot of a parked bucket was granted"
    } else if !is_grant && free < was_free && invocation(before) != invocation(after) {
        "a slot was released after another grant"
    } else {
        return None;
    };
    Some(format!("{sentence}: {before} -> {after}"))
}

/// How much later than a removal a suppression may be that it removes: clocks differ.
const REMOVES_LATER_MS: i64 = 5_000;

/// A suppression for all senders stays as it is until it is removed. A removal does not touch a
/// later suppression.
fn suppression(change: &Change) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    if !change.pk.starts_with("SUPPRESSION") || before["status"] != "ACTIVE" {
        return None;
    }
    let time = |row: &Value| row["as_of"].as_i64().unwrap_or(0);
    if after["status"] == "REMOVED" && time(after) + REMOVES_LATER_MS < time(before) {
        return Some(format!("a suppression was removed by an earlier removal: {before} -> {after}"));
    }
    let is_for_all =
        |row: &Value| row["status"] == "ACTIVE" && row["senders"].as_array().is_none_or(|senders| senders.is_empty());
    if !is_for_all(before) || !is_for_all(after) {
        return None;
    }
    let is_same = ["reason", "source", "created_at"].iter().all(|name| before[name] == after[name]);
    (!is_same).then(|| format!("a suppression was replaced: {before} -> {after}"))
}
