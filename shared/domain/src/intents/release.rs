//! The release of an intent: the request, the decision by the stored row, and the response.

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::rows::{IntentRow, LastRelease, Status};
use crate::fields::{FieldError, Fields};
use crate::idempotency::{Replay, judge as judge_replay};
use crate::time::Timestamp;

/// Reads `{client_id, holder?}`. Without `holder`, the release applies to any holder.
pub fn release_request(body: &Map<String, Value>) -> Result<(Uuid, Option<String>), Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let client = fields.uuid("client_id");
    let holder = fields.optional_text("holder").map(str::to_owned);
    fields.finish(client.map(|client| (client, holder)))
}

/// The response to a release, derived from what the row stores about it. Every retry gets the same
/// response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReleaseAnswer {
    pub released: bool,
    /// Another release had already freed the intent.
    pub already: bool,
    pub client_id: String,
    pub fingerprint: String,
    pub released_at: Timestamp,
}

impl ReleaseAnswer {
    pub fn of(row: &IntentRow, release: &LastRelease, already: bool) -> Self {
        Self {
            released: true,
            already,
            client_id: row.client_id.clone(),
            fingerprint: row.fingerprint.clone(),
            released_at: release.last_release_at,
        }
    }
}

/// What the stored row says about a release that has written nothing, or nothing yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// There is no such intent, or it has expired.
    NotFound,
    /// This same release was made before.
    Replayed(ReleaseAnswer),
    /// The release's key was used with another body.
    KeyReused,
    /// Another release has already freed the intent.
    Already(ReleaseAnswer),
    /// A holder other than the named one holds the intent.
    HeldByAnother,
    /// The holder to release holds the intent. Its row and its guard must change together.
    Held(Box<IntentRow>),
}

/// Judges a release by the stored row. `key` and `body_hash` are the release's own.
pub fn judge_release(
    row: Option<IntentRow>,
    holder: Option<&str>,
    key: &str,
    body_hash: &str,
    now: Timestamp,
) -> Released {
    let Some(row) = row.filter(|row| row.is_alive(now)) else { return Released::NotFound };
    match &row.last_release {
        Some(last) if last.last_release == key => match judge_replay(&last.last_release_body, body_hash) {
            Replay::Same => return Released::Replayed(ReleaseAnswer::of(&row, last, false)),
            Replay::OtherBody => return Released::KeyReused,
        },
        Some(last) if row.status == Status::Released => return Released::Already(ReleaseAnswer::of(&row, last, true)),
        _ => {}
    }
    if holder.is_some_and(|holder| holder != row.holder) {
        Released::HeldByAnother
    } else {
        Released::Held(Box::new(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intents::{Check, Hold, Holder, IntentTypes};

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn held_by(holder: &str, last: Option<LastRelease>) -> IntentRow {
        let types = IntentTypes::with_options("{}").expect("options");
        let check = Check::new(Uuid::from_u128(7), types.get("reactivation_nudge").expect("known"), None, now());
        let hold = Hold::of(&check, &Holder::Request(holder.into()), "h", now());
        IntentRow { last_release: last, ..hold.row }
    }

    fn last(key: &str) -> Option<LastRelease> {
        Some(LastRelease { last_release: key.into(), last_release_body: "b".into(), last_release_at: now() })
    }

    fn judge(row: Option<IntentRow>, holder: Option<&str>, key: &str, body: &str) -> Released {
        judge_release(row, holder, key, body, now())
    }

    #[test]
    fn a_release_is_judged_by_the_row_it_met() {
        let held = held_by("a", None);
        let gone = IntentRow { expires_at: now().seconds(), ..held.clone() };
        assert_eq!(judge(None, None, "r1", "b"), Released::NotFound);
        assert_eq!(judge(Some(gone), None, "r1", "b"), Released::NotFound);
        assert_eq!(judge(Some(held.clone()), Some("request:z"), "r1", "b"), Released::HeldByAnother);
        assert_eq!(judge(Some(held.clone()), Some("request:a"), "r1", "b"), Released::Held(Box::new(held)));
    }

    #[test]
    fn a_repeated_release_is_answered_as_before_whoever_holds_it_by_then() {
        let free = IntentRow { status: Status::Released, ..held_by("a", last("r1")) };
        let retaken = held_by("b", last("r1"));
        let Released::Replayed(first) = judge(Some(free.clone()), None, "r1", "b") else { panic!("not replayed") };
        assert_eq!((first.released_at, first.already), (now(), false));
        assert_eq!(judge(Some(retaken), None, "r1", "b"), Released::Replayed(first));
        assert_eq!(judge(Some(free.clone()), None, "r1", "other"), Released::KeyReused);
        assert!(matches!(judge(Some(free), None, "r2", "b"), Released::Already(answer) if answer.already));
    }
}
