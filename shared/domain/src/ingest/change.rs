//! Changes to slots, each with the condition of its write. The caller writes all changes of a
//! decision, or none.

use super::identity::EntryId;
use super::rows::{EntryRow, Insertion, MarkerRow, Row};
use crate::codes::MatchedBy;
use crate::keys::{self, Key};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotChange {
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

impl SlotChange {
    /// Inserts a new entry into its home slot.
    pub(super) fn insert(row: EntryRow) -> Self {
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when: When::Absent }
    }

    /// Claims the slot of a new entry's secondary key. The condition fails on any marker, so a
    /// failed insert returns every row that is in the slots.
    pub(super) fn claim(asked: &Insertion, key: &str, owner: &EntryId, now: Timestamp) -> Self {
        Self { when: When::Absent, ..Self::mark(asked, MatchedBy::Secondary, key, owner, now) }
    }

    /// Updates an entry. `row` is the next version of the row that was read.
    pub(super) fn update(row: EntryRow) -> Self {
        let when = When::Version(row.version.saturating_sub(1));
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when }
    }

    /// Marks the free slot of a key as owned by a known entry.
    pub(super) fn mark(asked: &Insertion, which: MatchedBy, key: &str, owner: &EntryId, now: Timestamp) -> Self {
        let marker = MarkerRow {
            entry_id: owner.clone(),
            which,
            idempotency_policy_key: asked.keys().policy,
            idempotency_key: key.to_owned(),
            created_at: now,
        };
        let when = When::AbsentOrOwnedBy(owner.clone());
        Self { key: keys::entry(&asked.slot(which, key)), row: Some(Row::Marker(marker)), when }
    }

    /// Frees a slot that the entry owned.
    pub(super) fn unmark(slot: &EntryId, owner: &EntryId) -> Self {
        Self { key: keys::entry(slot), row: None, when: When::AbsentOrOwnedBy(owner.clone()) }
    }
}
