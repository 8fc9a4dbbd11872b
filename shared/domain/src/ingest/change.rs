//! Changes to slots, each with the condition of its write. The caller writes all changes of a
//! decision, or none.

use super::identity::EntryId;
use super::rows::{EntryRow, MarkerRow, Row};
use super::words::PolicyKey;
use crate::codes::MatchedBy;
use crate::keys::{self, Key};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// The new row. `None` removes the row.
    pub row: Option<Row>,
    pub when: When,
}

/// The condition that a slot must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The slot is empty.
    Absent,
    /// The entry still has the version that was read.
    Version(u64),
    /// The slot is empty, or it holds a marker of this entry. This also holds if an earlier attempt
    /// of the same write has already put the marker there.
    AbsentOrOwnedBy(EntryId),
}

impl Change {
    /// Inserts a new entry into its home slot.
    pub(super) fn insert(row: EntryRow) -> Self {
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when: When::Absent }
    }

    /// Claims the slot of a new entry's other key. The condition fails on any marker, so a failed
    /// insert returns every row that is in the slots.
    pub(super) fn claim(slot: &EntryId, marker: MarkerRow) -> Self {
        Self { key: keys::entry(slot), row: Some(Row::Marker(marker)), when: When::Absent }
    }

    /// Updates an entry. `row` is the next version of the row that was read.
    pub(super) fn update(row: EntryRow) -> Self {
        let when = When::Version(row.version.saturating_sub(1));
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when }
    }

    /// Marks a free slot as owned by a known entry.
    pub(super) fn mark(slot: &EntryId, marker: MarkerRow) -> Self {
        let when = When::AbsentOrOwnedBy(marker.entry_id.clone());
        Self { key: keys::entry(slot), row: Some(Row::Marker(marker)), when }
    }

    /// Frees a slot that the entry owned.
    pub(super) fn unmark(slot: &EntryId, owner: &EntryId) -> Self {
        Self { key: keys::entry(slot), row: None, when: When::AbsentOrOwnedBy(owner.clone()) }
    }
}

pub(super) fn marker(owner: &EntryId, which: MatchedBy, policy: PolicyKey, key: &str, now: Timestamp) -> MarkerRow {
    MarkerRow {
        entry_id: owner.clone(),
        which,
        idempotency_policy_key: policy,
        idempotency_key: key.to_owned(),
        created_at: now,
    }
}
