//! The guard of a rolling window, or of one contact over all references: the list of the holds that
//! stand under it.
//!
//! Invariant: the windows in a guard do not overlap, and a hold is in the list from the write that
//! takes its intent to the write that gives it back, or until no moment inside its window can be
//! asked for any more.
//!
//! A guard changes only by [`GuardRow::take`] and [`GuardRow::give_back`]. Each is written on the
//! version that was read, in the transaction that writes the intent's row. Interleavings: two
//! takes, or a take and a give-back, that read the same version: one is refused and decides again
//! on the guard that won. A give-back that is repeated finds nothing of its hold and writes
//! nothing. A late first attempt of any of them meets a newer version.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::check::{Check, MAX_SKEW_MS};
use super::rows::IntentRow;
use crate::keys::Key;
use crate::time::Timestamp;

/// How many holds for a later time one guard keeps. A hold for now always has a place: windows do
/// not overlap, so there are at most two whose window has begun.
pub const MOST_SCHEDULED: usize = 32;

/// One hold under a guard. Times are in seconds; the window is `at..until`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GuardHold {
    pub holder: String,
    pub fingerprint: String,
    pub reference_id: Option<String>,
    pub bucket: i64,
    pub body_hash: String,
    pub created_at: Timestamp,
    pub at: i64,
    pub until: i64,
    pub expires_at: i64,
}

/// The row of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GuardRow {
    /// In the order of their windows.
    pub holds: Vec<GuardHold>,
    /// Starts with the time of the first write: a guard that TTL removed and that is made again has
    /// no version twice.
    pub version: u64,
    /// Seconds; the TTL attribute. When the last of the holds expires.
    pub expires_at: i64,
}

/// A hold as it is asked of a guard.
#[derive(Debug, Clone)]
pub struct GuardAsked {
    pub key: Key,
    pub hold: GuardHold,
    /// The earliest moment that a caller can still ask for, in seconds.
    pub earliest: i64,
}

/// What a guard answers to a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// The guard with the hold in it.
    Yes(GuardRow),
    Conflicting(Box<Conflict>),
    /// [`MOST_SCHEDULED`] holds for later stand already.
    Full,
}

/// The hold that stands in the way of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub hold: GuardHold,
    /// The next moment, in seconds, at which a whole window is free.
    pub next_eligible_at: i64,
}

impl GuardAsked {
    pub(super) fn of(check: &Check, key: Key, row: &IntentRow, now: Timestamp) -> Self {
        let hold = GuardHold {
            holder: row.holder.clone(),
            fingerprint: row.fingerprint.clone(),
            reference_id: row.reference_id.clone(),
            bucket: row.bucket,
            body_hash: row.body_hash.clone(),
            created_at: row.created_at,
            at: row.at.seconds(),
            until: row.window_until,
            expires_at: row.expires_at,
        };
        // Other functions' clocks may be behind this one.
        let earliest = now.plus_ms(-check.intent_type.furthest_back_ms() - MAX_SKEW_MS);
        Self { key, hold, earliest: earliest.seconds() }
    }
}

impl GuardRow {
    /// A guard without holds, for a key that has no row.
    pub fn empty(now: Timestamp) -> Self {
        Self { holds: Vec::new(), version: now.millis().unsigned_abs(), expires_at: now.seconds() }
    }

    /// Adds a hold if its window overlaps no other, and drops the holds whose window is too far
    /// back to be asked for.
    pub fn take(&self, asked: &GuardAsked, now: Timestamp) -> Taken {
        let standing = || self.holds.iter().filter(|hold| hold.until > asked.earliest);
        let mut conflicting: Vec<_> = standing().filter(|hold| hold.overlaps(&asked.hold)).collect();
        // The asker's own hold first, then the same fingerprint's.
        conflicting.sort_by_key(|hold| {
            (hold.holder != asked.hold.holder, hold.fingerprint != asked.hold.fingerprint, hold.at)
        });
        if let Some(hold) = conflicting.first() {
            let next_eligible_at = self.next_free(&asked.hold);
            return Taken::Conflicting(Box::new(Conflict { hold: (*hold).clone(), next_eligible_at }));
        }
        let soon = now.plus_ms(MAX_SKEW_MS).seconds();
        let scheduled = |hold: &&GuardHold| hold.at > soon;
        if scheduled(&&asked.hold) && standing().filter(scheduled).count() >= MOST_SCHEDULED {
            return Taken::Full;
        }
        let mut holds: Vec<_> = standing().cloned().collect();
        holds.push(asked.hold.clone());
        holds.sort_by_key(|hold| hold.at);
        Taken::Yes(self.with(holds, now))
    }

    /// Removes a hold. `None`: it does not stand here, so there is nothing to write.
    pub fn give_back(&self, holder: &str, fingerprint: &str, now: Timestamp) -> Option<Self> {
        let others = |hold: &&GuardHold| hold.holder != holder || hold.fingerprint != fingerprint;
        let holds: Vec<_> = self.holds.iter().filter(others).cloned().collect();
        (holds.len() < self.holds.len()).then(|| self.with(holds, now))
    }

    fn with(&self, holds: Vec<GuardHold>, now: Timestamp) -> Self {
        let expires_at = holds.iter().map(|hold| hold.expires_at).max().unwrap_or(now.seconds());
        Self { holds, version: self.version + 1, expires_at }
    }

    /// From the asked moment on, the first at which a window of the same length overlaps nothing.
    fn next_free(&self, asked: &GuardHold) -> i64 {
        let mut free = asked.clone();
        while let Some(hold) = self.holds.iter().find(|hold| hold.overlaps(&free)) {
            let length = free.until - free.at;
            (free.at, free.until) = (hold.until, hold.until + length);
        }
        free.at
    }
}

impl GuardHold {
    fn overlaps(&self, other: &Self) -> bool {
        self.at < other.until && other.at < self.until
    }
}

#[cfg(test)]
mod tests;
