//! Decides an insertion by its two keys: first by the primary key, then by the secondary key.
//!
//! | primary | secondary | `skip`                    | `update`                                            |
//! |---------|-----------|---------------------------|-----------------------------------------------------|
//! | free    | free      | inserted                  | inserted                                            |
//! | owned   | any       | skipped                   | updated; another owner of the secondary is reported |
//! | free    | owned     | skipped, primary an alias | inserted without the secondary, which is reported;  |
//! |         |           |                           | updated if its owner has no primary yet             |
//! | missing | free      | inserted                  | inserted                                            |
//! | missing | owned     | skipped                   | updated                                             |
//!
//! The caller runs a loop. It calls [`decide`] with an empty [`StoredRows`] and writes the changes.
//! If a condition fails, it calls `decide` again with the rows that are now in the two slots. If
//! the first attempt fails, its failure returns both rows. After any other failure, the caller
//! reads the slots consistently.

use std::collections::HashMap;

use super::change::SlotChange;
use super::identity::EntryId;
use super::policy::PolicyRow;
use super::rows::{EntryRow, Insertion, Row};
use super::source_times::SourceTimes;
use super::update::update;
use super::words::ConflictAction;
use crate::codes::{Action, MatchedBy, Reason};
use crate::fields::FieldError;
use crate::keys::{self, Key};
use crate::time::Timestamp;

/// The rows in the slots of an insertion, as far as they are known. Empty before the first attempt.
#[derive(Debug, Clone, Default)]
pub struct StoredRows {
    pub primary: Option<Row>,
    pub secondary: Option<Row>,
    /// The entry that [`InsertDecision::Read`] requested.
    pub read: Option<EntryRow>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertDecision {
    /// A slot holds a marker: read the entry that it names (consistently), and decide again.
    Read(EntryId),
    /// A row has changed since it was read: read the two slots and decide again.
    Look,
    /// Write all changes or none. If the write succeeds, `outcome` is the result. If a condition
    /// fails, decide again on the rows that are in the slots now.
    Write { changes: Vec<SlotChange>, outcome: Box<InsertOutcome> },
    /// There is nothing to write.
    Done(Box<InsertOutcome>),
    /// The update would make the entry invalid.
    Refused(Vec<FieldError>),
}

/// The result of an insertion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InsertOutcome {
    pub action: Action,
    /// The entry after the insertion.
    pub row: EntryRow,
    pub matched_by: Option<MatchedBy>,
    pub reason: Option<Reason>,
    /// Another entry that owns the secondary key.
    pub secondary_conflict: Option<EntryId>,
}

/// Decides what to do with an insertion, given the rows in its slots.
pub fn decide(asked: &Insertion, stored: &StoredRows, policy: &PolicyRow, now: Timestamp) -> InsertDecision {
    match stored.owner_of(stored.primary.as_ref()) {
        Owner::Unread(id) => InsertDecision::Read(id.clone()),
        Owner::Entry(row) => known_by_primary(asked, row, stored.other_than(row), policy, now),
        Owner::Absent => match stored.owner_of(stored.secondary.as_ref()) {
            Owner::Unread(id) => InsertDecision::Read(id.clone()),
            Owner::Entry(row) if !stored.still_leads_to(row) => InsertDecision::Look,
            Owner::Entry(row) => known_by_secondary(asked, row, policy, now),
            Owner::Absent => insert(asked, None, policy, now),
        },
    }
}

enum Owner<'a> {
    Absent,
    Entry(&'a EntryRow),
    Unread(&'a EntryId),
}

impl StoredRows {
    /// Builds the value from rows that failed a write's conditions, or that were read, each with
    /// its key.
    pub fn of(asked: &Insertion, rows: impl IntoIterator<Item = (Key, Row)>) -> Self {
        let mut rows: HashMap<_, _> = rows.into_iter().collect();
        let mut row_in = |slot: Option<EntryId>| rows.remove(&keys::entry(&slot?));
        Self { primary: row_in(asked.primary_slot()), secondary: row_in(asked.secondary_slot()), read: None }
    }

    fn owner_of<'a>(&'a self, slot: Option<&'a Row>) -> Owner<'a> {
        let marker = match slot {
            None => return Owner::Absent,
            Some(Row::Entry(row)) => return Owner::Entry(row),
            Some(Row::Marker(marker)) => marker,
        };
        let beside = [&self.primary, &self.secondary].into_iter().flatten().find_map(|row| match row {
            Row::Entry(row) if row.entry_id == marker.entry_id => Some(row.as_ref()),
            _ => None,
        });
        let read = self.read.as_ref().filter(|row| row.entry_id == marker.entry_id);
        beside.or(read).map_or(Owner::Unread(&marker.entry_id), Owner::Entry)
    }

    /// Returns another entry that owns the secondary key. The row in the slot may be older than
    /// `row`, so the secondary key that `row` itself stores takes precedence.
    fn other_than(&self, row: &EntryRow) -> Option<EntryId> {
        let owner = self.secondary.as_ref()?.owner();
        (*owner != row.entry_id && !self.is_key_of(row)).then(|| owner.clone())
    }

    /// Returns whether the secondary slot still leads to `row`. A row that was read after its
    /// marker may no longer have the key.
    fn still_leads_to(&self, row: &EntryRow) -> bool {
        matches!(self.secondary, Some(Row::Entry(_))) || self.is_key_of(row)
    }

    fn is_key_of(&self, row: &EntryRow) -> bool {
        let own = row.keys.secondary.as_ref();
        matches!(&self.secondary, Some(Row::Marker(marker)) if own == Some(&marker.idempotency_key))
    }
}

fn known_by_primary(
    asked: &Insertion,
    row: &EntryRow,
    other: Option<EntryId>,
    policy: &PolicyRow,
    now: Timestamp,
) -> InsertDecision {
    if let Some(done) = done_before(asked, row, MatchedBy::Primary, other.clone()) {
        return done;
    }
    // A `skip` policy created this alias, and it stays an alias: an update would merge two items.
    let aliased = differ(&row.keys.primary, &asked.keys().primary);
    match policy.conflict_action {
        ConflictAction::Update if !aliased => update(asked, row, MatchedBy::Primary, other, policy, now),
        _ => InsertDecision::Done(Box::new(skipped(row, MatchedBy::Primary, other))),
    }
}

fn known_by_secondary(asked: &Insertion, row: &EntryRow, policy: &PolicyRow, now: Timestamp) -> InsertDecision {
    if let Some(done) = done_before(asked, row, MatchedBy::Secondary, None) {
        return done;
    }
    match policy.conflict_action {
        ConflictAction::Skip => with_alias(asked, skipped(row, MatchedBy::Secondary, None), now),
        // The two items only look alike, so each keeps its own row.
        ConflictAction::Update if differ(&row.keys.primary, &asked.keys().primary) => {
            insert(asked, Some(row.entry_id.clone()), policy, now)
        }
        ConflictAction::Update => update(asked, row, MatchedBy::Secondary, None, policy, now),
    }
}

/// Returns whether both have a primary key, and the keys differ.
fn differ(one: &Option<String>, other: &Option<String>) -> bool {
    one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one != other)
}

/// Returns the original result if this insertion was done before: a backfill line that runs again
/// after a crash, or a request that is retried after its response was lost. `None` if it was not
/// done before.
fn done_before(
    asked: &Insertion,
    row: &EntryRow,
    matched_by: MatchedBy,
    secondary_conflict: Option<EntryId>,
) -> Option<InsertDecision> {
    let line = asked.line.as_ref()?;
    let (action, matched_by) = if row.inserted_by.as_ref() == Some(line) {
        (Action::Inserted, None)
    } else if row.updated_by.contains(line) {
        (Action::Updated, Some(matched_by))
    } else {
        return None;
    };
    let outcome = InsertOutcome { action, row: row.clone(), matched_by, reason: None, secondary_conflict };
    Some(InsertDecision::Done(Box::new(outcome)))
}

pub(super) fn skipped(row: &EntryRow, matched_by: MatchedBy, secondary_conflict: Option<EntryId>) -> InsertOutcome {
    let (action, matched_by) = (Action::Skipped, Some(matched_by));
    InsertOutcome { action, row: row.clone(), matched_by, reason: None, secondary_conflict }
}

/// Adds the primary key of an input as an alias of the entry that it matched by its secondary key
/// alone. A repeat of the input then also matches by its primary key.
pub(super) fn with_alias(asked: &Insertion, outcome: InsertOutcome, now: Timestamp) -> InsertDecision {
    match alias(asked, &outcome.row, now) {
        Some(change) => InsertDecision::Write { changes: vec![change], outcome: Box::new(outcome) },
        None => InsertDecision::Done(Box::new(outcome)),
    }
}

/// Returns the change that makes the input's primary key an alias of the entry. `None` if the input
/// has no primary key, or if it is already the entry's own.
pub(super) fn alias(asked: &Insertion, row: &EntryRow, now: Timestamp) -> Option<SlotChange> {
    let key = asked.keys().primary.as_ref().filter(|key| row.keys.primary.as_ref() != Some(key))?;
    Some(SlotChange::mark(asked, MatchedBy::Primary, key, &row.entry_id, now))
}

/// Inserts a new entry. `taken_by` is the entry that owns its secondary key; the new entry is then
/// stored without one.
fn insert(asked: &Insertion, taken_by: Option<EntryId>, policy: &PolicyRow, now: Timestamp) -> InsertDecision {
    let normalized = &asked.normalized;
    let mut keys = normalized.keys.clone();
    if taken_by.is_some() {
        keys.secondary = None;
    }
    let row = EntryRow {
        entry_id: asked.home(),
        schema: asked.schema,
        idempotency_policy_id: policy.policy_id,
        keys,
        entry: normalized.entry.clone(),
        metadata: normalized.metadata.clone(),
        times: SourceTimes::of(normalized.entry.source.time(), now),
        secondary_conflict: taken_by.clone(),
        inserted_by: asked.line.clone(),
        updated_by: Vec::new(),
        version: 1,
        created_at: now,
        updated_at: now,
    };
    let mut changes = vec![SlotChange::insert(row.clone())];
    // Without a primary key, the entry is stored in the slot of its secondary key, which needs no
    // marker.
    if let (Some(_), Some(key)) = (&row.keys.primary, &row.keys.secondary) {
        changes.push(SlotChange::claim(asked, key, &row.entry_id, now));
    }
    let (action, secondary_conflict) = (Action::Inserted, taken_by);
    let outcome = InsertOutcome { action, row, matched_by: None, reason: None, secondary_conflict };
    InsertDecision::Write { changes, outcome: Box::new(outcome) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::table::{Table, asked, at, policy};

    use ConflictAction::{Skip, Update};

    fn summary(outcome: &InsertOutcome) -> (Action, Option<MatchedBy>, Option<&EntryId>) {
        (outcome.action, outcome.matched_by, outcome.secondary_conflict.as_ref())
    }

    const BY_PRIMARY: Option<MatchedBy> = Some(MatchedBy::Primary);
    const BY_SECONDARY: Option<MatchedBy> = Some(MatchedBy::Secondary);

    #[test]
    fn an_entry_with_free_keys_is_inserted() {
        for action in [Skip, Update] {
            for (primary, secondary, rows) in [("p", "s", 2), ("p", "", 1), ("", "s", 1)] {
                let mut table = Table::default();
                let asked = asked(primary, secondary, "x", None);
                let outcome = table.insert(&asked, &policy(action));
                assert_eq!(summary(&outcome), (Action::Inserted, None, None));
                assert_eq!((outcome.row.entry_id, table.rows.len(), table.writes), (asked.home(), rows, 1));
                table.check();
            }
        }
    }

    #[test]
    fn a_known_primary_key_skips_or_updates_its_entry() {
        // The secondary key is missing, free, or the entry's own.
        for secondary in ["", "t", "s"] {
            for (action, expected) in [(Skip, Action::Skipped), (Update, Action::Updated)] {
                let mut table = Table::default();
                let first = table.insert(&asked("p", "s", "old", None), &policy(action)).row;
                let outcome = table.insert(&asked("p", secondary, "new", None), &policy(action));
                assert_eq!(summary(&outcome), (expected, BY_PRIMARY, None), "{secondary}");
                assert_eq!(outcome.row.entry_id, first.entry_id);
                let text = if action == Skip { "old" } else { "new" };
                assert_eq!(table.entry(&first.entry_id).entry.clean_text, text);
                table.check();
            }
        }
    }

    #[test]
    fn keys_of_two_entries_act_on_the_primary_entry_and_report_the_other() {
        for (action, expected) in [(Skip, Action::Skipped), (Update, Action::Updated)] {
            let mut table = Table::default();
            let x = table.insert(&asked("p", "s", "x", None), &policy(action)).row;
            let y = table.insert(&asked("q", "t", "y", None), &policy(action)).row;
            let outcome = table.insert(&asked("p", "t", "new", None), &policy(action));
            assert_eq!(summary(&outcome), (expected, BY_PRIMARY, Some(&y.entry_id)));
            assert_eq!(outcome.row.entry_id, x.entry_id);
            assert_eq!(table.entry(&y.entry_id), y, "the other entry does not change");
            table.check();
        }
    }

    #[test]
    fn a_known_secondary_key_skips_and_stores_the_primary_key_as_an_alias() {
        let mut table = Table::default();
        let x = table.insert(&asked("p", "s", "x", None), &policy(Skip)).row;
        let outcome = table.insert(&asked("q", "s", "y", None), &policy(Skip));
        assert_eq!(summary(&outcome), (Action::Skipped, BY_SECONDARY, None));
        assert_eq!((outcome.row, table.rows.len()), (x.clone(), 3));
        // The input now matches by that primary key, even with another secondary key, and without a
        // further write.
        let writes = table.writes;
        let outcome = table.insert(&asked("q", "t", "y", None), &policy(Skip));
        assert_eq!(summary(&outcome), (Action::Skipped, BY_PRIMARY, None));
        assert_eq!((outcome.row, table.writes), (x, writes));
        table.check();
    }

    #[test]
    fn an_update_never_merges_items_with_different_primary_keys() {
        let mut table = Table::default();
        let x = table.insert(&asked("p", "s", "ok", None), &policy(Update)).row;
        let outcome = table.insert(&asked("q", "s", "ok", None), &policy(Update));
        assert_eq!(summary(&outcome), (Action::Inserted, None, Some(&x.entry_id)));
        assert_eq!(outcome.row.keys.secondary, None);
        assert_eq!(table.entry(&x.entry_id), x);
        let again = table.insert(&asked("q", "s", "ok", None), &policy(Update));
        assert_eq!(summary(&again), (Action::Updated, BY_PRIMARY, Some(&x.entry_id)));
        assert_eq!(again.row, outcome.row, "the same input again changes nothing");
        table.check();
    }

    #[test]
    fn an_alias_from_a_skip_is_not_merged_when_the_policy_becomes_update() {
        let mut table = Table::default();
        let x = table.insert(&asked("p", "s", "x", None), &policy(Skip)).row;
        table.insert(&asked("q", "s", "y", None), &policy(Skip));
        let outcome = table.insert(&asked("q", "s", "new", None), &policy(Update));
        assert_eq!(summary(&outcome), (Action::Skipped, BY_PRIMARY, None));
        assert_eq!(table.entry(&x.entry_id), x);
        table.check();
    }

    #[test]
    fn without_a_primary_key_the_secondary_key_finds_the_entry() {
        for owner in ["p", ""] {
            for (action, expected) in [(Skip, Action::Skipped), (Update, Action::Updated)] {
                let mut table = Table::default();
                let x = table.insert(&asked(owner, "s", "old", None), &policy(action)).row;
                let outcome = table.insert(&asked("", "s", "new", None), &policy(action));
                assert_eq!(summary(&outcome), (expected, BY_SECONDARY, None), "{owner}");
                assert_eq!(outcome.row.entry_id, x.entry_id);
                table.check();
            }
        }
    }

    #[test]
    fn an_entry_without_a_primary_key_adopts_the_first_primary_key() {
        let mut table = Table::default();
        let x = table.insert(&asked("", "s", "old", None), &policy(Update)).row;
        let outcome = table.insert(&asked("p", "s", "new", None), &policy(Update));
        assert_eq!(summary(&outcome), (Action::Updated, BY_SECONDARY, None));
        assert_eq!(outcome.row.keys.primary.as_deref(), Some("p"));
        let by_primary = table.insert(&asked("p", "", "newer", None), &policy(Update));
        assert_eq!(
            (summary(&by_primary), &by_primary.row.entry_id),
            ((Action::Updated, BY_PRIMARY, None), &x.entry_id)
        );
        let other = table.insert(&asked("q", "s", "other", None), &policy(Update));
        assert_eq!(summary(&other), (Action::Inserted, None, Some(&x.entry_id)));
        table.check();
    }

    #[test]
    fn a_marker_is_read_again_if_its_entry_has_another_key() {
        let mut table = Table::default();
        table.insert(&asked("p", "s", "x", None), &policy(Update));
        let asked = asked("", "s", "y", None);
        let mut stored = table.rows_for(&asked);
        let edit = crate::ingest::table::asked("p", "t", "x", None);
        let moved = table.insert(&edit, &policy(Update)).row;
        let now = Timestamp::from_seconds(0);
        assert_eq!(decide(&asked, &stored, &policy(Update), now), InsertDecision::Read(moved.entry_id.clone()));
        stored.read = Some(moved);
        assert_eq!(decide(&asked, &stored, &policy(Update), now), InsertDecision::Look);
        assert_eq!(table.insert(&asked, &policy(Update)).action, Action::Inserted);
        table.check();
    }

    #[test]
    fn a_repeated_backfill_line_has_the_same_outcome() {
        let line = |mut insertion: Insertion, number: u64| {
            insertion.line = Some(crate::ingest::table::line(number));
            insertion
        };
        for action in [Skip, Update] {
            let mut table = Table::default();
            let lines = [
                line(asked("p", "s", "one", at(1)), 1),
                line(asked("q", "t", "two", None), 2),
                line(asked("q", "u", "three", None), 3),
                line(asked("r", "s", "four", None), 4),
            ];
            for asked in &lines {
                let first = table.insert(asked, &policy(action));
                let rows = table.rows.clone();
                let again = table.insert(asked, &policy(action));
                assert_eq!((again.action, again.row), (first.action, first.row));
                assert_eq!(table.rows, rows);
            }
            table.check();
        }
    }
}
