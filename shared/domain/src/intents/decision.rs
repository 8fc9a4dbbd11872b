//! What a check or a release that met another's row means.

use serde::Serialize;

use super::check::Check;
use super::rows::{GuardRow, Hold, IntentRow};
use crate::codes::Reason;
use crate::idempotency::{Replay, judge as judge_replay};
use crate::time::Timestamp;

/// The answer to a check.
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
    /// Whoever holds the intent now: name it to release exactly this hold.
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
    /// The write was made: the caller may send.
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

    fn allowed_by_guard(guard: &GuardRow) -> Self {
        Self {
            can_send: true,
            inserted: true,
            fingerprint: guard.fingerprint.clone(),
            reason: None,
            intent_type: guard.intent_type.clone(),
            reference_id: guard.reference_id.clone(),
            window_days: guard.window_days,
            bucket: guard.bucket,
            expires_at: Timestamp::from_seconds(guard.expires_at),
            next_eligible_at: Timestamp::from_seconds(guard.window_until),
            blocked_by: None,
            holder: guard.holder.clone(),
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

/// What stood in the way of a hold: the rows whose conditions failed, as they were.
#[derive(Debug, Clone)]
pub enum Standing {
    /// The intent's own row, and its guard if that was refused too.
    Row(Box<IntentRow>, Option<Box<GuardRow>>),
    Guard(Box<GuardRow>),
}

impl Standing {
    /// Of the rows that were refused; at least one was.
    pub fn of(row: Option<IntentRow>, guard: Option<GuardRow>) -> Option<Self> {
        let guard = guard.map(Box::new);
        match (row, guard) {
            (Some(row), guard) => Some(Self::Row(Box::new(row), guard)),
            (None, Some(guard)) => Some(Self::Guard(guard)),
            (None, None) => None,
        }
    }

    fn row(&self) -> Option<&IntentRow> {
        match self {
            Self::Row(row, _) => Some(row),
            Self::Guard(_) => None,
        }
    }

    fn guard(&self) -> Option<&GuardRow> {
        match self {
            Self::Row(_, guard) => guard.as_deref(),
            Self::Guard(guard) => Some(guard),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The asker holds it already: the same answer as the first time.
    Replayed(CheckAnswer),
    /// The asker's key was used with another body.
    KeyReused,
    Blocked(CheckAnswer),
}

/// Decides a check whose write was refused. The intent's own row speaks first: whoever holds it was told "yes" before.
pub fn judge(check: &Check, asked: &Hold, standing: &Standing) -> Decision {
    if let Some(row) = standing.row().filter(|row| row.holder == asked.row.holder) {
        return replay(&row.body_hash, asked, CheckAnswer::allowed(row));
    }
    if let Some(guard) = standing.guard().filter(|guard| guard.holder == asked.row.holder) {
        return replay(&guard.body_hash, asked, CheckAnswer::allowed_by_guard(guard));
    }
    // A guard may reach further than the bucket of the asked fingerprint.
    let (by, expires_at, until) = match standing {
        Standing::Row(row, guard) => {
            let until = guard.as_ref().map_or(row.window_until, |guard| guard.window_until.max(row.window_until));
            (blocked_by(&row.holder, &row.fingerprint, &row.reference_id, row.created_at), row.expires_at, until)
        }
        Standing::Guard(guard) => {
            let by = blocked_by(&guard.holder, &guard.fingerprint, &guard.reference_id, guard.created_at);
            (by, guard.expires_at, guard.window_until)
        }
    };
    Decision::Blocked(CheckAnswer::blocked(check, by, expires_at, until))
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
    use crate::intents::{Holder, IntentTypes};

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

    #[test]
    fn another_holder_is_blocked_and_told_by_whom_and_until_when() {
        let (_, first) = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let (check, second) = hold("{}", "b", "2026-03-10T12:00:01Z", "h");
        let Decision::Blocked(answer) = judge(&check, &second, &Standing::Row(Box::new(first.row.clone()), None))
        else {
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
        let standing = Standing::Row(Box::new(first.row.clone()), None);
        assert_eq!(judge(&check, &again, &standing), Decision::Replayed(CheckAnswer::allowed(&first.row)));
        assert_eq!(judge(&check, &other, &standing), Decision::KeyReused);
    }

    #[test]
    fn over_the_edge_of_a_bucket_the_guard_answers_its_own_holder_as_before() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (first_check, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (later_check, again) = hold(rolling, "a", "2026-03-15T00:01:00Z", "h");
        assert_ne!(first_check.bucket, later_check.bucket);
        let (_, guard) = first.guard.clone().expect("guarded");
        let decision = judge(&later_check, &again, &Standing::Guard(Box::new(guard)));
        assert_eq!(decision, Decision::Replayed(CheckAnswer::allowed(&first.row)));
    }

    #[test]
    fn a_guard_blocks_others_until_its_window_ends() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (_, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (check, second) = hold(rolling, "b", "2026-03-15T00:01:00Z", "h");
        let standing = Standing::Guard(Box::new(first.guard.expect("guarded").1));
        let Decision::Blocked(answer) = judge(&check, &second, &standing) else { panic!("not blocked") };
        assert_eq!(answer.next_eligible_at, at("2026-03-21T23:59:00Z"));
    }
}
