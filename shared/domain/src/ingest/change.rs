//! Changes to slots, with the condition that each is made on. The shell makes all changes of a
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
    /// The row as it is to be; none: it is removed.
    pub row: Option<Row>,
    pub when: When,
}

/// What must hold of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// Nothing is there.
    Absent,
    /// The entry is as it was read.
    Version(u64),
    /// Nothing is there, or this entry's marker: also if an earlier attempt of the same write has
    /// put it there already.
    AbsentOrOwnedBy(EntryId),
}

impl Change {
    /// A new entry in its home.
    pub(super) fn insert(row: EntryRow) -> Self {
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when: When::Absent }
    }

    /// The other key of a new entry. Any marker refuses it, so that a refused insert tells all that
    /// is there.
    pub(super) fn claim(slot: &EntryId, marker: MarkerRow) -> Self {
        Self { key: keys::entry(slot), row: Some(Row::Marker(marker)), when: When::Absent }
    }

    /// An entry after an update: `row` is the next version of what was read.
    pub(super) fn update(row: EntryRow) -> Self {
        let when = When::Version(row.version.saturating_sub(1));
        Self { key: keys::entry(&row.entry_id), row: Some(Row::Entry(Box::new(row))), when }
    }

    /// A free slot becomes one of a known entry.
    pub(super) fn mark(slot: &EntryId, marker: MarkerRow) -> Self {
        let when = When::AbsentOrOwnedBy(marker.entry_id.clone());
        Self { key: keys::entry(slot), row: Some(Row::Marker(marker)), when }
    }

    /// A slot that was the entry's becomes free.
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
