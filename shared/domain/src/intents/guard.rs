//! The guard of a rolling window, or of one contact over all references: the list of its current
//! holds.
//!
//! Invariant: no two sends under one guard are less than a window apart, and no hold is in the list
//! whose message is known not to be sent. A hold is in the list from the write that takes its
//! intent to the write that releases it, or until a caller can no longer ask for any moment inside
//! its window.
//!
//! A hold is pending while its message is still to be sent: it keeps the window from the planned
//! time on, and a new hold is accepted only where it overlaps none. The claim of an attempt moves
//! the hold to the time of the attempt ([`GuardRow::begin`]), because a rolling window counts from
//! the send. The window then ends a window after the deadline of the attempt, so it is not too
//! short, however long the call takes. The windows of two sends never overlap. The window of a late
//! send may overlap a pending one, which keeps its place: its own claim finds the overlap, and is
//! deferred until the window of the send is over. An attempt that turns out not to have been sent
//! makes the hold pending again, so it does not defer others. The time of a bare check is the time
//! of its send.
//!
//! A guard changes only by the functions of [`GuardRow`]. Each write is conditional on the version
//! that was read, and is part of the transaction that writes the intent's row or the message's row.
//! Interleavings: if two writers read the same version, one of them fails its condition and decides
//! again on the guard that the other wrote. A repeated give-back does not find its hold and writes
//! nothing. A delayed first attempt of any of them finds a newer version and fails its condition.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::check::{Check, MAX_SKEW_MS};
use super::rows::IntentRow;
use crate::absent::is_default;
use crate::keys::Key;
use crate::time::Timestamp;

/// The number of holds for a later time that one guard keeps. A hold for now always has room: the
/// windows of sends do not overlap, so at most two of them have begun.
pub const MOST_SCHEDULED: usize = 32;

/// One hold of an intent, as its guard lists it. Times are in seconds; the window is `at..until`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IntentHold {
    pub holder: String,
    pub fingerprint: String,
    pub reference_id: Option<String>,
    pub bucket: i64,
    pub body_hash: String,
    pub created_at: Timestamp,
    pub at: i64,
    pub until: i64,
    pub expires_at: i64,
    /// Whether a message has the hold, and no attempt has begun that may have been sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pending: bool,
}

/// The row of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GuardRow {
    /// Ordered by window.
    pub holds: Vec<IntentHold>,
    /// Starts at the time of the first write, so that a guard that TTL removed and that is created
    /// again never reuses a version.
    pub version: u64,
    /// The TTL attribute, in seconds: when the last of the holds expires.
    pub expires_at: i64,
}

/// A request for a hold under a guard.
#[derive(Debug, Clone)]
pub struct GuardRequest {
    pub key: Key,
    pub hold: IntentHold,
    /// The earliest moment for which a caller can still ask, in seconds.
    pub earliest: i64,
}

/// The result of [`GuardRow::take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The guard with the hold in it.
    Yes(GuardRow),
    Conflicting(Box<Conflict>),
    /// The guard already has [`MOST_SCHEDULED`] holds for a later time.
    Full,
}

/// The result of [`GuardRow::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The attempt may begin. Contains the guard with the hold at the time of the attempt.
    Yes(GuardRow),
    /// The attempt may begin when the window of the hold `by` is over. Contains the guard in which
    /// the pending hold has its place from then on.
    Wait { by: Box<IntentHold>, guard: GuardRow },
}

/// The hold that conflicts with a requested hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub hold: IntentHold,
    /// The next moment, in seconds, at which a whole window is free.
    pub next_eligible_at: i64,
}

impl GuardRequest {
    pub(super) fn of(check: &Check, key: Key, hold: IntentHold, now: Timestamp) -> Self {
        // The clocks of other functions may be behind this one.
        let earliest = now.plus_ms(-check.intent_type.furthest_back_ms() - MAX_SKEW_MS);
        Self { key, hold, earliest: earliest.seconds() }
    }
}

impl From<&IntentRow> for Conflict {
    /// Returns the conflict with the hold of the intent's own row.
    fn from(row: &IntentRow) -> Self {
        Self { hold: row.hold(), next_eligible_at: row.window_until }
    }
}

impl GuardRow {
    /// Returns a guard without holds, for a key that has no row.
    pub fn empty(now: Timestamp) -> Self {
        Self { holds: Vec::new(), version: now.millis().unsigned_abs(), expires_at: now.seconds() }
    }

    /// Adds a hold if its window overlaps no other. Drops the holds whose window is so far back
    /// that no caller can ask for it.
    pub fn take(&self, asked: &GuardRequest, now: Timestamp) -> TakeOutcome {
        let current = || self.holds.iter().filter(|hold| hold.until > asked.earliest);
        let mut conflicting: Vec<_> = current().filter(|hold| hold.overlaps(&asked.hold)).collect();
        // Report the caller's own hold first, then one with the same fingerprint.
        conflicting.sort_by_key(|hold| {
            (hold.holder != asked.hold.holder, hold.fingerprint != asked.hold.fingerprint, hold.at)
        });
        if let Some(hold) = conflicting.first() {
            let next_eligible_at = self.next_free(&asked.hold);
            return TakeOutcome::Conflicting(Box::new(Conflict { hold: (*hold).clone(), next_eligible_at }));
        }
        let soon = now.plus_ms(MAX_SKEW_MS).seconds();
        let scheduled = |hold: &&IntentHold| hold.at > soon;
        if scheduled(&&asked.hold) && current().filter(scheduled).count() >= MOST_SCHEDULED {
            return TakeOutcome::Full;
        }
        let mut holds: Vec<_> = current().cloned().collect();
        holds.push(asked.hold.clone());
        TakeOutcome::Yes(self.with(holds, now))
    }

    /// Begins an attempt of the message that has `hold`, whose window starts with the attempt. It
    /// has to wait if the window overlaps that of another send. It does not wait for messages that
    /// are still to be sent.
    pub fn begin(&self, hold: &IntentHold, now: Timestamp) -> BeginOutcome {
        let (own, others): (Vec<_>, Vec<_>) = self.holds.iter().cloned().partition(|other| other.is_same(hold));
        let in_the_way = others.iter().filter(|other| !other.pending && other.overlaps(hold));
        let Some(by) = in_the_way.max_by_key(|other| other.until) else {
            let begun = IntentHold { pending: false, ..hold.clone() };
            return BeginOutcome::Yes(self.with([others, vec![begun]].concat(), now));
        };
        let by = Box::new(by.clone());
        // An attempt that may have been sent keeps its window.
        if own.iter().any(|own| !own.pending) {
            return BeginOutcome::Wait { by, guard: self.with(self.holds.clone(), now) };
        }
        let place = IntentHold { at: by.until, until: by.until + hold.until - hold.at, pending: true, ..hold.clone() };
        BeginOutcome::Wait { by, guard: self.with([others, vec![place]].concat(), now) }
    }

    /// Makes a hold pending, because its attempt was not sent. `None` if there is nothing to write.
    pub fn suspend(&self, holder: &str, fingerprint: &str, now: Timestamp) -> Option<Self> {
        let mut holds = self.holds.clone();
        holds.iter_mut().find(|hold| hold.is_of(holder, fingerprint) && !hold.pending)?.pending = true;
        Some(self.with(holds, now))
    }

    /// Puts the hold of a message back that had released it and turns out to have been sent.
    /// Pending holds do not prevent that. `None` if its window overlaps that of another send.
    pub fn put_back(&self, hold: &IntentHold, now: Timestamp) -> Option<Self> {
        let mut holds: Vec<_> = self.holds.iter().filter(|other| !other.is_same(hold)).cloned().collect();
        let is_free = holds.iter().all(|other| other.pending || !other.overlaps(hold));
        holds.push(hold.clone());
        is_free.then(|| self.with(holds, now))
    }

    /// Removes a hold. `None` if the guard does not have this hold, so there is nothing to write.
    pub fn give_back(&self, holder: &str, fingerprint: &str, now: Timestamp) -> Option<Self> {
        let holds: Vec<_> = self.holds.iter().filter(|hold| !hold.is_of(holder, fingerprint)).cloned().collect();
        (holds.len() < self.holds.len()).then(|| self.with(holds, now))
    }

    fn with(&self, mut holds: Vec<IntentHold>, now: Timestamp) -> Self {
        holds.sort_by_key(|hold| hold.at);
        let expires_at = holds.iter().map(|hold| hold.expires_at).max().unwrap_or(now.seconds());
        Self { holds, version: self.version + 1, expires_at }
    }

    /// Returns the first moment, from the requested one on, at which a window of the same length
    /// overlaps no hold.
    fn next_free(&self, asked: &IntentHold) -> i64 {
        let mut free = asked.clone();
        while let Some(hold) = self.holds.iter().find(|hold| hold.overlaps(&free)) {
            let length = free.until - free.at;
            (free.at, free.until) = (hold.until, hold.until + length);
        }
        free.at
    }
}

impl IntentHold {
    fn is_same(&self, other: &Self) -> bool {
        self.is_of(&other.holder, &other.fingerprint)
    }

    fn is_of(&self, holder: &str, fingerprint: &str) -> bool {
        self.holder == holder && self.fingerprint == fingerprint
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.at < other.until && other.at < self.until
    }
}

#[cfg(test)]
mod tests;
