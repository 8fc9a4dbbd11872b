//! The release of an intent: the request, the rule that changes the row, and the response.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::rows::{IntentRow, IntentStatus};
use crate::change::Next;
use crate::fields::{FieldError, Fields};
use crate::idempotency::Replay;
use crate::time::Timestamp;

/// Reads `{client_id, holder?}`. Without `holder`, the release applies to any holder.
pub fn release_request(body: &Map<String, Value>) -> Result<(Uuid, Option<String>), Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let client = fields.uuid("client_id");
    let holder = fields.optional_text("holder").map(str::to_owned);
    fields.finish(client.map(|client| (client, holder)))
}

/// The last release of an intent: which request made it, and what it answered. Hashes are stored,
/// because a row must fit into one write unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRelease {
    /// Hash of the release's `Idempotency-Key`, or of its request. It keeps the SDK's own retry, or
    /// a late first attempt, from releasing the hold of the next holder.
    pub last_release: String,
    pub last_release_body: String,
    pub last_release_at: Timestamp,
}

/// The attributes that a release sets in the intent's row, besides the version.
#[derive(Debug, Serialize)]
pub struct ReleaseAttributes<'a> {
    status: IntentStatus,
    released_at: Timestamp,
    updated_at: Timestamp,
    #[serde(flatten)]
    last_release: &'a LastRelease,
}

impl LastRelease {
    pub fn attributes(&self) -> ReleaseAttributes<'_> {
        let at = self.last_release_at;
        ReleaseAttributes { status: IntentStatus::Released, released_at: at, updated_at: at, last_release: self }
    }
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

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The release has freed the intent. Contains the row after it.
    Now(Box<IntentRow>),
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
}

impl IntentRow {
    /// Releases the intent. With `holder`, the release applies only to that holder's hold.
    pub fn release(&self, holder: Option<&str>, release: &LastRelease) -> Next<Self, Released> {
        let now = release.last_release_at;
        if !self.is_alive(now) {
            return Next::Stop(Released::NotFound);
        }
        match &self.last_release {
            Some(last) if last.last_release == release.last_release => {
                let is_same = Replay::of(&last.last_release_body, &release.last_release_body) == Replay::Same;
                let replayed = || Released::Replayed(ReleaseAnswer::of(self, last, false));
                return Next::Stop(if is_same { replayed() } else { Released::KeyReused });
            }
            Some(last) if self.status == IntentStatus::Released => {
                return Next::Stop(Released::Already(ReleaseAnswer::of(self, last, true)));
            }
            _ => {}
        }
        if holder.is_some_and(|holder| holder != self.holder) {
            return Next::Stop(Released::HeldByAnother);
        }
        let row = Self {
            status: IntentStatus::Released,
            released_at: Some(now),
            updated_at: now,
            last_release: Some(release.clone()),
            version: self.version + 1,
            ..self.clone()
        };
        Next::Commit(row.clone(), Released::Now(Box::new(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intents::{Check, HoldRequest, Holder, IntentTypes};

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn held_by(holder: &str, last: Option<LastRelease>) -> IntentRow {
        let types = IntentTypes::with_options("{}").expect("options");
        let check = Check::new(Uuid::from_u128(7), types.get("reactivation_nudge").expect("known"), None, now());
        let hold = HoldRequest::of(check, &Holder::Request(holder.into()), "h", now());
        IntentRow { last_release: last, ..hold.row }
    }

    fn last(key: &str) -> Option<LastRelease> {
        Some(LastRelease { last_release: key.into(), last_release_body: "b".into(), last_release_at: now() })
    }

    fn release(row: &IntentRow, holder: Option<&str>, key: &str, body: &str) -> Released {
        let release = LastRelease { last_release: key.into(), last_release_body: body.into(), last_release_at: now() };
        match row.release(holder, &release) {
            Next::Commit(row, released) => {
                assert_eq!(released, Released::Now(Box::new(row)));
                released
            }
            Next::Stop(released) => released,
        }
    }

    #[test]
    fn a_release_is_decided_by_the_stored_row() {
        let held = held_by("a", None);
        let gone = IntentRow { expires_at: now().seconds(), ..held.clone() };
        assert_eq!(release(&gone, None, "r1", "b"), Released::NotFound);
        assert_eq!(release(&held, Some("request:z"), "r1", "b"), Released::HeldByAnother);
        let Released::Now(free) = release(&held, Some("request:a"), "r1", "b") else { panic!("not released") };
        assert_eq!((free.status, free.version), (IntentStatus::Released, held.version + 1));
        assert_eq!((free.released_at, free.updated_at, &free.last_release), (Some(now()), now(), &last("r1")));
    }

    #[test]
    fn a_repeated_release_gets_the_same_answer_also_if_another_holder_has_the_intent() {
        let free = IntentRow { status: IntentStatus::Released, ..held_by("a", last("r1")) };
        let retaken = held_by("b", last("r1"));
        let Released::Replayed(first) = release(&free, None, "r1", "b") else { panic!("not replayed") };
        assert_eq!((first.released_at, first.already), (now(), false));
        assert_eq!(release(&retaken, None, "r1", "b"), Released::Replayed(first));
        assert_eq!(release(&free, None, "r1", "other"), Released::KeyReused);
        assert!(matches!(release(&free, None, "r2", "b"), Released::Already(answer) if answer.already));
    }
}
