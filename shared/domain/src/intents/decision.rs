//! What a check or a release that met another's row means.

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::check::Check;
use super::rows::{GuardRow, Hold, IntentRow, Status};
use crate::codes::Reason;
use crate::fields::{FieldError, Fields};
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
#[derive(Debug, Clone, Default)]
pub struct Standing {
    pub row: Option<IntentRow>,
    pub guard: Option<GuardRow>,
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
    let same_holder = |holder: &str| holder == asked.row.holder;
    if let Some(row) = standing.row.as_ref().filter(|row| same_holder(&row.holder)) {
        return replay(&row.body_hash, asked, CheckAnswer::allowed(row));
    }
    if let Some(guard) = standing.guard.as_ref().filter(|guard| same_holder(&guard.holder)) {
        return replay(&guard.body_hash, asked, CheckAnswer::allowed_by_guard(guard));
    }
    // The bucket of the asked fingerprint is blocked to its end in any case; a guard may reach further.
    let until = [standing.row.as_ref().map(|row| row.window_until), standing.guard.as_ref().map(|g| g.window_until)];
    let until = until.into_iter().flatten().max().unwrap_or_else(|| check.window_until().seconds());
    let (by, expires_at) = match (&standing.row, &standing.guard) {
        (Some(row), _) => {
            (blocked_by(&row.holder, &row.fingerprint, &row.reference_id, row.created_at), row.expires_at)
        }
        (None, Some(guard)) => {
            (blocked_by(&guard.holder, &guard.fingerprint, &guard.reference_id, guard.created_at), guard.expires_at)
        }
        // A refused write without a row that says why is not told apart by DynamoDB; the asked row's own times stand in.
        (None, None) => (blocked_by("", &check.fingerprint, &None, check.at), asked.row.expires_at),
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

/// Reads `{client_id, holder?}`. Without a holder whoever holds the intent is released.
pub fn release_request(body: &Map<String, Value>) -> Result<(Uuid, Option<String>), Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let client = fields.uuid("client_id");
    let holder = fields.optional_text("holder").map(str::to_owned);
    fields.finish(client.map(|client| (client, holder)))
}

/// What a release that changed nothing (or not yet) means, from the row as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// There is no such intent, or it has expired.
    NotFound,
    /// It is free already, by this request or an earlier one: nothing to do, and the answer is the same.
    Already(Box<IntentRow>),
    /// Somebody else than the named holder has it.
    HeldByAnother,
    /// It is held by the one to release and has a guard: both rows must change together.
    Guarded(Box<IntentRow>),
}

/// Judges the row that a release met. `release_key` is the release's own `Idempotency-Key`.
pub fn judge_release(
    row: Option<IntentRow>,
    holder: Option<&str>,
    release_key: Option<&str>,
    now: Timestamp,
) -> Released {
    let Some(row) = row.filter(|row| row.is_alive(now)) else { return Released::NotFound };
    let repeated = release_key.is_some() && row.last_release.as_deref() == release_key;
    if row.status == Status::Released || repeated {
        Released::Already(Box::new(row))
    } else if holder.is_some_and(|holder| holder != row.holder) {
        Released::HeldByAnother
    } else {
        Released::Guarded(Box::new(row))
    }
}

#[cfg(test)]
mod tests {
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
        let Decision::Blocked(answer) = judge(&check, &second, &Standing { row: Some(first.row.clone()), guard: None })
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
        let standing = Standing { row: Some(first.row.clone()), guard: None };
        assert_eq!(judge(&check, &again, &standing), Decision::Replayed(CheckAnswer::allowed(&first.row)));
        assert_eq!(judge(&check, &other, &standing), Decision::KeyReused);
    }

    #[test]
    fn over_the_edge_of_a_bucket_the_guard_answers_its_own_holder_as_before() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (first_check, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (later_check, again) = hold(rolling, "a", "2026-03-15T00:01:00Z", "h");
        assert_ne!(first_check.bucket, later_check.bucket);
        let guard = first.guard.clone().map(|(_, guard)| guard);
        let decision = judge(&later_check, &again, &Standing { row: None, guard });
        assert_eq!(decision, Decision::Replayed(CheckAnswer::allowed(&first.row)));
    }

    #[test]
    fn a_guard_blocks_others_until_its_window_ends() {
        let rolling = r#"{"reactivation_nudge": {"window": "rolling"}}"#;
        let (_, first) = hold(rolling, "a", "2026-03-14T23:59:00Z", "h");
        let (check, second) = hold(rolling, "b", "2026-03-15T00:01:00Z", "h");
        let standing = Standing { row: None, guard: first.guard.map(|(_, guard)| guard) };
        let Decision::Blocked(answer) = judge(&check, &second, &standing) else { panic!("not blocked") };
        assert_eq!(answer.next_eligible_at, at("2026-03-21T23:59:00Z"));
    }

    #[test]
    fn a_release_is_judged_by_the_row_it_met() {
        let now = at("2026-03-10T12:00:00Z");
        let (_, held) = hold("{}", "a", "2026-03-10T12:00:00Z", "h");
        let held = held.row;
        let released = IntentRow { status: Status::Released, ..held.clone() };
        let retaken = IntentRow { last_release: Some("r1".into()), holder: "request:b".into(), ..held.clone() };
        let gone = IntentRow { expires_at: now.seconds(), ..held.clone() };
        assert_eq!(judge_release(None, None, None, now), Released::NotFound);
        assert_eq!(judge_release(Some(gone), None, None, now), Released::NotFound);
        assert_eq!(judge_release(Some(released.clone()), None, None, now), Released::Already(Box::new(released)));
        assert_eq!(judge_release(Some(held.clone()), Some("request:z"), None, now), Released::HeldByAnother);
        assert_eq!(judge_release(Some(held.clone()), Some("request:a"), None, now), Released::Guarded(Box::new(held)));
        assert_eq!(judge_release(Some(retaken.clone()), None, Some("r1"), now), Released::Already(Box::new(retaken)));
    }
}
