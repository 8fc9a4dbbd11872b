//! The ledger of a message: the decisions about it, stored in its row. The write that a decision
//! describes also appends it.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::codes::Decision;
use crate::time::Timestamp;

/// A ledger grows with every attempt, and a message can reach a rate limit any number of times. A
/// ledger of this length accepts only decisions that end a message or start it again.
pub const LONGEST: usize = 60;

/// One decision.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub at: Timestamp,
    pub code: Decision,
    /// The reason, as a code of a closed list: a provider's refusal, a suppression's reason.
    pub reason: Option<String>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// What the rule matched: another message, an attempt, an event.
    pub matched: Option<String>,
    pub attempt: Option<u32>,
    /// When the same action may succeed: the end of a window, the time of the next attempt.
    pub next_eligible_at: Option<Timestamp>,
}

impl LedgerEntry {
    pub fn new(at: Timestamp, code: Decision) -> Self {
        Self { at, code, reason: None, rule: None, matched: None, attempt: None, next_eligible_at: None }
    }

    pub fn reason(self, reason: &str) -> Self {
        Self { reason: Some(reason.to_owned()), ..self }
    }

    pub fn rule(self, rule: impl Into<String>) -> Self {
        Self { rule: Some(rule.into()), ..self }
    }

    pub fn matched(self, matched: impl Into<String>) -> Self {
        Self { matched: Some(matched.into()), ..self }
    }

    pub fn attempt(self, attempt: u32) -> Self {
        Self { attempt: Some(attempt), ..self }
    }

    pub fn until(self, at: Timestamp) -> Self {
        Self { next_eligible_at: Some(at), ..self }
    }
}

/// Returns whether a ledger of this length still accepts a decision.
pub fn has_room(length: usize, code: Decision) -> bool {
    let repeats = matches!(
        code,
        Decision::Due
            | Decision::Recovered
            | Decision::Claimed
            | Decision::Retry
            | Decision::Throttled
            | Decision::Deferred
    );
    length < LONGEST || !repeats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ledger_still_has_room_for_the_final_decision() {
        assert!(has_room(LONGEST - 1, Decision::Throttled));
        assert!(!has_room(LONGEST, Decision::Throttled));
        assert!(has_room(LONGEST, Decision::Sent));
        assert!(has_room(10 * LONGEST, Decision::Canceled));
    }

    #[test]
    fn absent_fields_of_an_entry_are_not_stored() {
        let entry = LedgerEntry::new(Timestamp::from_seconds(0), Decision::Retry).reason("bot_unauthorized").attempt(2);
        let text = serde_json::to_string(&entry).expect("JSON");
        assert_eq!(text, r#"{"at":"1970-01-01T00:00:00Z","code":"retry","reason":"bot_unauthorized","attempt":2}"#);
        assert_eq!(serde_json::from_str::<LedgerEntry>(&text).expect("reads back"), entry);
    }
}
