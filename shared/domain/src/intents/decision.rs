//! Decides a check that conflicts with an existing row.

use serde::Serialize;

use super::check::Check;
use super::guard::{Conflict, GuardHold};
use super::rows::{Hold, IntentRow};
use crate::codes::Reason;
use crate::idempotency::{Replay, judge as judge_replay};
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
    /// Returns the response to a check whose write succeeded: the caller may send.
    pub fn allowed(row: &IntentRow) -> Self {
        Self {
            can_send: true,
            inserted: true,
            fingerprint: row.fingerprint.clone(),
            reason: None,
            intent_type: row.intent_type.clone(),
            reference_id: row.reference_id.clone(),
            window_days: row.window_days,
            bucket: row.bucket,
            expires_at: Timestamp::from_seconds(row.expires_at),
            next_eligible_at: Timestamp::from_seconds(row.window_until),
            blocked_by: None,
            holder: row.holder.clone(),
        }
    }

    /// Returns the response to a caller that already holds the intent, from its hold in the guard.
    fn allowed_by_guard(check: &Check, hold: &GuardHold) -> Self {
        Self {
            can_send: true,
            inserted: true,
            fingerprint: hold.fingerprint.clone(),
            reason: None,
            intent_type: check.intent_type.intent_type.clone(),
            reference_id: hold.reference_id.clone(),
            window_days: check.intent_type.window_days,
            bucket: hold.bucket,
            expires_at: Timestamp::from_seconds(hold.expires_at),
            next_eligible_at: Timestamp::from_seconds(hold.until),
            blocked_by: None,
            holder: hold.holder.clone(),
        }
    }

    fn blocked(check: &Check, by: BlockedBy, expires_at: i64, next_eligible_at: i64) -> Self {
        Self {
            can_send: false,
            inserted: false,
            fingerprint: check.fingerprint.clone(),
            reason: Some(Reason::IntentDuplicate),
            intent_type: check.intent_type.intent_type.clone(),
            reference_id: check.reference.map(|id| id.hyphenated().to_string()),
            window_days: check.intent_type.window_days,
            bucket: check.bucket,
            expires_at: Timestamp::from_seconds(expires_at),
            next_eligible_at: Timestamp::from_seconds(next_eligible_at),
            holder: by.holder.clone(),
            blocked_by: Some(by),
        }
    }
}

/// The existing row or hold that conflicts with a new hold.
#[derive(Debug, Clone)]
pub enum Standing {
    /// The intent's own row, which is held.
    Row(Box<IntentRow>),
    /// A hold under the same guard.
    Guard(Box<Conflict>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The caller already holds the intent. The response is the same as the first time.
    Replayed(CheckAnswer),
    /// The caller's key was used with another body.
    KeyReused,
    Blocked(CheckAnswer),
}

/// Decides a check whose write was refused. The holder gets the same response as the first time,
/// and any other caller is blocked.
pub fn judge(check: &Check, asked: &Hold, standing: &Standing) -> Decision {
    match standing {
        Standing::Row(row) if row.holder == asked.row.holder => {
            replay(&row.body_hash, asked, CheckAnswer::allowed(row))
        }
        Standing::Guard(conflict) if conflict.hold.holder == asked.row.holder => {
            let hold = &conflict.hold;
            replay(&hold.body_hash, asked, CheckAnswer::allowed_by_guard(check, hold))
        }
        Standing::Row(row) => {
            let by = blocked_by(&row.holder, &row.fingerprint, &row.reference_id, row.created_at);
            Decision::Blocked(CheckAnswer::blocked(check, by, row.expires_at, row.window_until))
        }
        Standing::Guard(conflict) => {
            let hold = &conflict.hold;
            let by = blocked_by(&hold.holder, &hold.fingerprint, &hold.reference_id, hold.created_at);
            Decision::Blocked(CheckAnswer::blocked(check, by, hold.expires_at, conflict.next_eligible_at))
        }
    }
}

fn replay(stored_hash: &str, asked: &Hold, answer: CheckAnswer) -> Decision {
    match judge_replay(stored_hash, &asked.row.body_hash) {
        Replay::Same => Decision::Replayed(answer),
        Replay::OtherBody => Decision::KeyReused,
    }
}

fn blocked_by(holder: &str, fingerprint: &str, reference_id: &Option<String>, since: Timestamp) -> BlockedBy {
    BlockedBy {
        holder: holder.to_owned(),
        fingerprint: fingerprint.to_owned(),
        reference_id: reference_id.clone(),
        since,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::intents::{GuardRow, Holder, IntentTypes, Taken};

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a time")
    }

    fn hold(options: &str, holder: &str, when: &str, body: &str) -> (Check, Hold) {
        let types = IntentTypes::with_options(options).expect("options");
        let client = Uuid::try_parse("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1").expect("a UUID");
        let check = Check::new(client, types.get("reactivation_nudge").expect("known"), None, at(when));
        let hold = Hold::of(&check, &Holder::Request(holder.into()), body, at(when));
        (check, hold)
    }

    /// Returns the conflict that `second` gets from the guard that `first` took.
    fn conflict(first: &Hold, second: &Hold) -> Standing {
        let (first_asked, asked) = first.guard.as_ref().zip(second.guard.as_ref()).expect("guarded");
        let now = second.row.created_at;
        let Taken::Yes(guard) = GuardRow::empty(now).take(first_asked, now) else { panic!("not free") };
        let Taken::Conflicting(conflict) = guard.take(asked, now) else { panic!("not in the way") };
        Standing::Guard(conflict)
    }

    #[test]
    fn another_holder_is_blocked_and_told_by_whom_and_until_when() {
        let (_, first) = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let (check, second) = hold("{}", "b", "2026-03-10T12:00:01Z", "h");
        let Decision::Blocked(answer) = judge(&check, &second, &Standing::Row(Box::new(first.row.clone()))) else {
            panic!("not blocked")
        };
        assert!(!answer.can_send && !answer.inserted);
        assert_eq!(answer.reason, Some(Reason::IntentDuplicate));
        assert_eq!(answer.blocked_by.expect("told").holder, "request:a");
        assert_eq!(answer.next_eligible_at, Timestamp::from_seconds(first.row.window_until));
    }

    #[test]
    fn the_same_holder_gets_the_same_answer_and_another_body_is_refused() {
        let (check, first) = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let (_, again) = hold("{}", "a", "2026-03-10T12:00:05Z", "h");
        let (_, other) = hold("{}", "a", "2026-03-10T12:00:05Z", "other");
        let standing = Standing::Row(Box::new(first.row.clone()));
        assert_eq!(judge(&check, &again, &standing), Decision::Replayed(CheckAnswer::allowed(&first.row)));
        assert_eq!(judge(&check, &other, &standing), Decision::KeyReused);
    }

    #[test]
    fn over_the_edge_of_a_bucket_the_guard_answers_its_own_holder_as_before() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (first_check, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (later_check, again) = hold(rolling, "a", "2026-03-15T00:01:00Z", "h");
        assert_ne!(first_check.bucket, later_check.bucket);
        let decision = judge(&later_check, &again, &conflict(&first, &again));
        assert_eq!(decision, Decision::Replayed(CheckAnswer::allowed(&first.row)));
    }

    #[test]
    fn a_guard_blocks_others_until_its_window_ends() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (_, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (check, second) = hold(rolling, "b", "2026-03-15T00:01:00Z", "h");
        let Decision::Blocked(answer) = judge(&check, &second, &conflict(&first, &second)) else {
            panic!("not blocked")
        };
        assert_eq!(answer.next_eligible_at, at("2026-03-21T23:59:00Z"));
    }
}
