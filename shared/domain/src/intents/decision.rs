//! Decides a check that conflicts with an existing hold.

use serde::Serialize;

use super::check::Check;
use super::guard::{Conflict, IntentHold};
use super::rows::HoldRequest;
use crate::codes::Reason;
use crate::idempotency::Replay;
use crate::time::Timestamp;

/// The response to a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckAnswer {
    pub can_send: bool,
    pub inserted: bool,
    pub fingerprint: String,
    pub reason: Option<Reason>,
    pub intent_type: String,
    pub reference_id: Option<String>,
    pub window_days: u32,
    pub bucket: i64,
    pub expires_at: Timestamp,
    pub next_eligible_at: Timestamp,
    pub blocked_by: Option<BlockedBy>,
    /// The current holder of the intent. A release that names it releases exactly this hold.
    pub holder: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockedBy {
    pub holder: String,
    pub fingerprint: String,
    pub reference_id: Option<String>,
    pub since: Timestamp,
}

impl CheckAnswer {
    /// Returns the response to a caller that holds the intent: the caller may send.
    pub fn allowed(check: &Check, hold: &IntentHold) -> Self {
        Self {
            can_send: true,
            inserted: true,
            fingerprint: hold.fingerprint.clone(),
            reason: None,
            intent_type: check.intent_type.name.clone(),
            reference_id: hold.reference_id.clone(),
            window_days: check.intent_type.window_days,
            bucket: hold.bucket,
            expires_at: Timestamp::from_seconds(hold.expires_at),
            next_eligible_at: Timestamp::from_seconds(hold.until),
            blocked_by: None,
            holder: hold.holder.clone(),
        }
    }

    fn blocked(check: &Check, conflict: &Conflict) -> Self {
        let hold = &conflict.hold;
        Self {
            can_send: false,
            inserted: false,
            fingerprint: check.fingerprint.clone(),
            reason: Some(Reason::IntentDuplicate),
            reference_id: check.reference.map(|id| id.hyphenated().to_string()),
            bucket: check.bucket,
            next_eligible_at: Timestamp::from_seconds(conflict.next_eligible_at),
            blocked_by: Some(BlockedBy {
                holder: hold.holder.clone(),
                fingerprint: hold.fingerprint.clone(),
                reference_id: hold.reference_id.clone(),
                since: hold.created_at,
            }),
            ..Self::allowed(check, hold)
        }
    }
}

/// The decision about a check that conflicts with a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckDecision {
    /// The caller already holds the intent. The response is the same as the first time.
    Replayed(CheckAnswer),
    /// The caller's key was used with another body.
    KeyReused,
    Blocked(CheckAnswer),
}

/// Decides a check whose write was refused. The holder gets the same response as the first time,
/// and any other caller is blocked.
pub fn answer_conflict(asked: &HoldRequest, conflict: &Conflict) -> CheckDecision {
    if conflict.hold.holder != asked.row.holder {
        return CheckDecision::Blocked(CheckAnswer::blocked(&asked.check, conflict));
    }
    match Replay::of(&conflict.hold.body_hash, &asked.row.body_hash) {
        Replay::Same => CheckDecision::Replayed(CheckAnswer::allowed(&asked.check, &conflict.hold)),
        Replay::OtherBody => CheckDecision::KeyReused,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::intents::{GuardRow, Holder, IntentTypes, TakeOutcome};

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a time")
    }

    fn hold(options: &str, holder: &str, when: &str, body: &str) -> HoldRequest {
        let types = IntentTypes::with_options(options).expect("options");
        let client = Uuid::try_parse("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1").expect("a UUID");
        let check = Check::new(client, types.get("reactivation_nudge").expect("known"), None, at(when));
        HoldRequest::of(check, &Holder::Request(holder.into()), body, at(when))
    }

    /// Returns the conflict that `second` gets from the guard that `first` took.
    fn conflict(first: &HoldRequest, second: &HoldRequest) -> Conflict {
        let (first_asked, asked) = first.guard.as_ref().zip(second.guard.as_ref()).expect("guarded");
        let now = second.row.created_at;
        let TakeOutcome::Yes(guard) = GuardRow::empty(now).take(first_asked, now) else { panic!("not free") };
        let TakeOutcome::Conflicting(conflict) = guard.take(asked, now) else { panic!("not in the way") };
        *conflict
    }

    #[test]
    fn another_holder_is_blocked_and_sees_the_current_holder_and_the_window_end() {
        let first = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let second = hold("{}", "b", "2026-03-10T12:00:01Z", "h");
        let CheckDecision::Blocked(answer) = answer_conflict(&second, &Conflict::from(&first.row)) else {
            panic!("not blocked")
        };
        assert!(!answer.can_send && !answer.inserted);
        assert_eq!(answer.reason, Some(Reason::IntentDuplicate));
        assert_eq!(answer.blocked_by.expect("a holder").holder, "request:a");
        assert_eq!(answer.next_eligible_at, Timestamp::from_seconds(first.row.window_until));
    }

    #[test]
    fn the_same_holder_gets_the_same_answer_and_another_body_is_refused() {
        let first = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let again = hold("{}", "a", "2026-03-10T12:00:05Z", "h");
        let other = hold("{}", "a", "2026-03-10T12:00:05Z", "other");
        let (conflict, allowed) = (Conflict::from(&first.row), CheckAnswer::allowed(&first.check, &first.row.hold()));
        assert_eq!(answer_conflict(&again, &conflict), CheckDecision::Replayed(allowed));
        assert_eq!(answer_conflict(&other, &conflict), CheckDecision::KeyReused);
    }

    #[test]
    fn in_the_next_bucket_the_guard_repeats_its_answer_to_its_own_holder() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let first = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let again = hold(rolling, "a", "2026-03-15T00:01:00Z", "h");
        assert_ne!(first.check.bucket, again.check.bucket);
        let allowed = CheckAnswer::allowed(&first.check, &first.row.hold());
        assert_eq!(answer_conflict(&again, &conflict(&first, &again)), CheckDecision::Replayed(allowed));
    }

    #[test]
    fn a_guard_blocks_others_until_its_window_ends() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let first = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let second = hold(rolling, "b", "2026-03-15T00:01:00Z", "h");
        let CheckDecision::Blocked(answer) = answer_conflict(&second, &conflict(&first, &second)) else {
            panic!("not blocked")
        };
        assert_eq!(answer.next_eligible_at, at("2026-03-21T23:59:00Z"));
    }
}
