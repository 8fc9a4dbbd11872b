//! The rows of the Intents table.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::check::Check;
use super::guard::{GuardRequest, IntentHold};
use super::holder::Holder;
use super::release::LastRelease;
use super::types::WindowKind;
use crate::absent::is_default;
use crate::change::{Fence, Row};
use crate::keys::{self, Key};
use crate::time::{SECOND_MS, Timestamp};

/// How long an intent row lives, regardless of its window: the row is the record of the decision.
pub const LIFETIME_DAYS: i64 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum IntentStatus {
    Held,
    Released,
}

/// One intent: its holder, since when, and until when.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRow {
    pub client_id: String,
    pub fingerprint: String,
    pub intent_type: String,
    pub reference_id: Option<String>,
    pub window_days: u32,
    pub bucket: i64,
    pub at: Timestamp,
    /// When the window of this intent ends, in seconds.
    pub window_until: i64,
    pub status: IntentStatus,
    pub holder: String,
    pub body_hash: String,
    /// The sort key of the guard row that was taken together with this row.
    pub guard: Option<String>,
    /// Whether the window counts from the send.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rolling: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The TTL attribute, in seconds. Every condition also compares it with `now`, because TTL
    /// deletes late.
    pub expires_at: i64,
    pub released_at: Option<Timestamp>,
    /// Kept when the intent is held again, so that a repeated release does not release the next
    /// holder.
    #[serde(flatten)]
    pub last_release: Option<LastRelease>,
    #[serde(default)]
    pub version: u64,
}

impl Row for IntentRow {
    fn key(&self) -> Key {
        keys::intent(&self.client_id, &self.fingerprint)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl IntentRow {
    /// Returns whether the row is still valid at `now`. An expired row that TTL has not deleted yet
    /// counts as deleted.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.expires_at > now.seconds()
    }

    /// Takes the intent again for the holder that released it. `None` if the hold has expired, was
    /// not released, or another holder has taken the intent since.
    pub fn take_back(&self, holder: &str, now: Timestamp) -> Option<Self> {
        let is_free = self.status == IntentStatus::Released && self.holder == holder && self.is_alive(now);
        let held = Self { status: IntentStatus::Held, released_at: None, updated_at: now, ..self.clone() };
        is_free.then(|| Self { version: self.version + 1, ..held })
    }

    /// Moves the hold of a message to an attempt at `now`, which ends by `deadline`: a rolling
    /// window counts from the send. `None` if the holder does not have the intent any more, because
    /// it was released by hand or has expired.
    pub fn begun(&self, holder: &str, now: Timestamp, deadline: Timestamp) -> Option<Self> {
        let is_held = self.status == IntentStatus::Held && self.holder == holder && self.is_alive(now);
        let window_until = deadline.plus_days(i64::from(self.window_days));
        is_held.then(|| Self {
            at: now,
            window_until: round_up(window_until),
            expires_at: now.plus_days(LIFETIME_DAYS).seconds(),
            updated_at: now,
            version: self.version + 1,
            ..self.clone()
        })
    }

    /// Returns the hold that the row stores, of a message whose attempt has begun or of a check.
    pub fn hold(&self) -> IntentHold {
        IntentHold {
            holder: self.holder.clone(),
            fingerprint: self.fingerprint.clone(),
            reference_id: self.reference_id.clone(),
            bucket: self.bucket,
            body_hash: self.body_hash.clone(),
            created_at: self.created_at,
            at: self.at.seconds(),
            until: self.window_until,
            expires_at: self.expires_at,
            pending: false,
        }
    }
}

/// Returns a moment in whole seconds, rounded up, so that a window is never shorter than stated.
fn round_up(moment: Timestamp) -> i64 {
    moment.plus_ms(SECOND_MS - 1).seconds()
}

/// A check, and the rows that it writes if it is allowed.
#[derive(Debug, Clone)]
pub struct HoldRequest {
    pub check: Check,
    pub row: IntentRow,
    pub guard: Option<GuardRequest>,
}

impl HoldRequest {
    pub fn of(check: Check, holder: &Holder, body_hash: &str, now: Timestamp) -> Self {
        let guard_key = check.guard_key();
        let row = IntentRow {
            client_id: check.client.hyphenated().to_string(),
            fingerprint: check.fingerprint.clone(),
            intent_type: check.intent_type.name.clone(),
            reference_id: check.reference.map(|id| id.hyphenated().to_string()),
            window_days: check.intent_type.window_days,
            bucket: check.bucket,
            at: check.at,
            window_until: round_up(check.window_until()),
            status: IntentStatus::Held,
            holder: holder.to_string(),
            body_hash: body_hash.to_owned(),
            guard: guard_key.as_ref().map(|key| key.sk.clone()),
            rolling: check.intent_type.window == WindowKind::Rolling,
            created_at: now,
            updated_at: now,
            expires_at: check.at.plus_days(LIFETIME_DAYS).seconds(),
            released_at: None,
            last_release: None,
            version: 1,
        };
        let hold = IntentHold { pending: matches!(holder, Holder::Message(_)), ..row.hold() };
        let guard = guard_key.map(|key| GuardRequest::of(&check, key, hold, now));
        Self { check, row, guard }
    }
}

/// An intent as `GET` returns it: the row without its internal fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntentView {
    pub client_id: String,
    pub fingerprint: String,
    pub intent_type: String,
    pub reference_id: Option<String>,
    pub window_days: u32,
    pub bucket: i64,
    pub status: IntentStatus,
    pub holder: String,
    pub at: Timestamp,
    pub created_at: Timestamp,
    pub next_eligible_at: Timestamp,
    pub expires_at: Timestamp,
    pub released_at: Option<Timestamp>,
}

impl From<IntentRow> for IntentView {
    fn from(row: IntentRow) -> Self {
        Self {
            client_id: row.client_id,
            fingerprint: row.fingerprint,
            intent_type: row.intent_type,
            reference_id: row.reference_id,
            window_days: row.window_days,
            bucket: row.bucket,
            status: row.status,
            holder: row.holder,
            at: row.at,
            created_at: row.created_at,
            next_eligible_at: Timestamp::from_seconds(row.window_until),
            expires_at: Timestamp::from_seconds(row.expires_at),
            released_at: row.released_at,
        }
    }
}
