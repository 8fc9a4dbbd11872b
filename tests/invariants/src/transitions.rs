//! I3 and I5: how one write may change a delivery, be it a message, an offer or a recipient.

use crate::{Change, number, text};

/// The states that may follow a state. A delivery that ended without being sent stays as it is,
/// unless an operator orders a resend.
const NEXT: &[(&str, &[&str])] = &[
    ("QUEUED", &["SENDING", "SENT", "UNKNOWN", "FAILED", "CANCELED", "EXPIRED", "SUPPRESSED", "DEDUPED"]),
    ("SENDING", &["QUEUED", "SENT", "UNKNOWN", "FAILED", "CANCELED", "EXPIRED"]),
    ("UNKNOWN", &["QUEUED", "SENT", "FAILED", "CANCELED"]),
    ("FAILED", &["QUEUED", "SENT"]),
    ("SENT", &["FAILED", "UNKNOWN"]),
];

/// The rows that embed a delivery: the table and the beginning of the sort key.
const ROWS: &[(&str, &str)] = &[("Outbound", "MESSAGE"), ("Downsells", "OFFER#"), ("Mailings", "ENTRY#")];

/// Returns what does not hold of a change of a delivery.
pub(crate) fn check(change: &Change) -> Option<String> {
    let is_delivery = ROWS.iter().any(|(table, sk)| change.table == *table && change.sk.starts_with(sk));
    let (before, after) = (change.before.as_ref()?, change.after.as_ref().filter(|_| is_delivery)?);
    let (from, to) = (text(before, "state"), text(after, "state"));
    let (old, new) = (number(before, "attempt"), number(after, "attempt"));
    let is_ordered = after["reason"].is_null() && number(after, "tries_from") == new;
    let next = NEXT.iter().find(|(state, _)| *state == from).map_or(&[][..], |(_, next)| next);
    let sentence = if from != to && !next.contains(&to) {
        "a delivery went to a state that cannot follow"
    } else if new != old + u64::from(from == "QUEUED" && to == "SENDING") {
        "an attempt was counted that did not begin"
    } else if from == "SENDING" && to == "SENDING" && before["claim"] != after["claim"] {
        "an attempt changed its sender"
    } else if matches!(from, "UNKNOWN" | "FAILED") && to == "QUEUED" && !is_ordered {
        "a delivery that had ended is queued again without an order"
    } else if to == "QUEUED" && !after["recalled"].is_null() {
        "a delivery that was canceled during its attempt is queued again"
    } else {
        return None;
    };
    Some(format!("{sentence}: {before} -> {after}"))
}
