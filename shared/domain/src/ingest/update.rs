//! Updates a known entry: determines its next version, and which keys move with it.

use super::change::SlotChange;
use super::decision::{InsertDecision, InsertOutcome, alias, skipped, with_alias};
use super::identity::EntryId;
use super::merge::merge;
use super::policy::PolicyRow;
use super::reading::{LARGEST_METADATA, metadata_size};
use super::rows::{EntryRow, Insertion};
use crate::codes::{Action, FieldProblem, MatchedBy, Reason};
use crate::fields::FieldError;
use crate::time::Timestamp;

/// Number of latest updates that a row remembers.
const REMEMBERED: usize = 8;

/// Merges `asked` into `row`, which it matched. `other` is another entry that owns the secondary
/// key.
///
/// The row may be newer than the rows that were read from the slots, and the write is conditional
/// on the row alone. A key that the row does not have yet is therefore always claimed, and a key
/// that the row has is its own.
pub(super) fn update(
    asked: &Insertion,
    row: &EntryRow,
    matched_by: MatchedBy,
    other: Option<EntryId>,
    policy: &PolicyRow,
    now: Timestamp,
) -> InsertDecision {
    let Some(times) = row.times.after(asked.normalized.entry.source.time(), now) else {
        let outcome = InsertOutcome { reason: Some(Reason::Stale), ..skipped(row, matched_by, other) };
        return match matched_by {
            MatchedBy::Primary => InsertDecision::Done(Box::new(outcome)),
            MatchedBy::Secondary => with_alias(asked, outcome, now),
        };
    };
    let mut next = EntryRow { times, ..row.clone() };
    (next.entry, next.metadata) = merge(&row.entry, &row.metadata, &asked.normalized, policy.update_fields.as_deref());
    if metadata_size(&next.metadata) > LARGEST_METADATA {
        let detail = "would be larger than 32 KB after merging with the stored value";
        return InsertDecision::Refused(vec![FieldError::new("metadata", FieldProblem::OutOfRange, detail)]);
    }
    let mut moves: Vec<_> = adopt_primary(asked, &mut next, now).into_iter().collect();
    moves.append(&mut move_secondary(asked, &mut next, other.clone(), now));
    let unchanged = next == *row && moves.is_empty();
    let outcome = |row| {
        let (action, matched_by) = (Action::Updated, Some(matched_by));
        Box::new(InsertOutcome { action, row, matched_by, reason: None, secondary_conflict: other })
    };
    if unchanged {
        // The same input again leaves the same state, including the version.
        return InsertDecision::Done(outcome(next));
    }
    // The row remembers several updates: a repeated line is recognized even if others have updated
    // the row since.
    next.updated_by.extend(asked.line.clone());
    let old = next.updated_by.len().saturating_sub(REMEMBERED);
    next.updated_by.drain(..old);
    next.updated_at = now;
    next.version += 1;
    let mut changes = vec![SlotChange::update(next.clone())];
    changes.append(&mut moves);
    InsertDecision::Write { changes, outcome: outcome(next) }
}

/// Gives an entry that has only a secondary key the primary key of the input. Returns the change
/// that claims it. `None` if there is nothing to claim.
fn adopt_primary(asked: &Insertion, next: &mut EntryRow, now: Timestamp) -> Option<SlotChange> {
    let change = alias(asked, next, now)?;
    next.keys.primary.clone_from(&asked.keys().primary);
    Some(change)
}

/// Moves the secondary key if an edit changes it: frees the old slot and claims the new one. If
/// another entry owns the new key, the entry has no secondary key and names the owner instead.
fn move_secondary(asked: &Insertion, next: &mut EntryRow, other: Option<EntryId>, now: Timestamp) -> Vec<SlotChange> {
    let mut changes = Vec::new();
    let (Some(key), old) = (&asked.keys().secondary, &next.keys.secondary) else { return changes };
    if old.as_ref() == Some(key) {
        return changes;
    }
    // The slot in which the entry is stored always stays its own.
    let is_home = |slot: &EntryId| *slot == next.entry_id;
    let old = old.as_deref().map(|old| asked.slot(MatchedBy::Secondary, old)).filter(|slot| !is_home(slot));
    changes.extend(old.map(|slot| SlotChange::unmark(&slot, &next.entry_id)));
    let slot = asked.slot(MatchedBy::Secondary, key);
    if other.is_none() && !is_home(&slot) {
        changes.push(SlotChange::mark(asked, MatchedBy::Secondary, key, &next.entry_id, now));
    }
    next.keys.secondary = other.is_none().then(|| key.clone());
    next.secondary_conflict = other;
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::table::{NOW, Table, asked, at, policy};
    use crate::ingest::words::{Column, ConflictAction};

    fn updating() -> PolicyRow {
        policy(ConflictAction::Update)
    }

    #[test]
    fn an_older_input_is_stale_and_changes_nothing() {
        let mut table = Table::default();
        let first = table.insert(&asked("p", "", "new", at(10)), &updating()).row;
        let outcome = table.insert(&asked("p", "", "old", at(9)), &updating());
        assert_eq!((outcome.action, outcome.reason), (Action::Skipped, Some(Reason::Stale)));
        assert_eq!((outcome.matched_by, table.entry(&first.entry_id)), (Some(MatchedBy::Primary), first));
    }

    #[test]
    fn an_input_without_a_source_time_or_with_the_stored_one_is_not_stale() {
        for (stored, comes) in [(at(10), at(10)), (at(10), None), (None, at(1)), (None, None)] {
            let mut table = Table::default();
            table.insert(&asked("p", "", "old", stored), &updating());
            let outcome = table.insert(&asked("p", "", "new", comes), &updating());
            assert_eq!((outcome.action, outcome.row.entry.clean_text.as_str()), (Action::Updated, "new"));
            assert_eq!(outcome.row.times.source_time, comes.or(stored));
        }
    }

    #[test]
    fn the_source_time_counts_even_if_the_policy_does_not_update_the_source() {
        let texts = PolicyRow { update_fields: Some(vec![Column::CleanText]), ..updating() };
        let mut table = Table::default();
        table.insert(&asked("p", "", "first", at(10)), &texts);
        let second = table.insert(&asked("p", "", "second", at(20)), &texts).row;
        assert_eq!(second.entry.source.time(), at(10));
        let late = table.insert(&asked("p", "", "late", at(15)), &texts);
        assert_eq!((late.reason, late.row.entry.clean_text.as_str()), (Some(Reason::Stale), "second"));
    }

    /// Inserts a mail `minute` minutes after [`NOW`]. Its own date is `says` minutes after [`NOW`].
    fn mail(table: &mut Table, text: &str, minute: i64, says: i64) -> InsertOutcome {
        table.later_ms = minute * 60_000;
        let outcome = table.insert(&asked("p", "", text, Some(NOW.plus_ms(says * 60_000))), &updating());
        table.check();
        outcome
    }

    #[test]
    fn a_replaced_email_from_a_fast_clock_does_not_overwrite_the_newer_one() {
        let mut table = Table::default();
        mail(&mut table, "a", 0, 60);
        let newer = mail(&mut table, "b", 10, 10);
        assert_eq!((newer.action, newer.row.entry.clean_text.as_str()), (Action::Updated, "b"), "b came later");
        let again = mail(&mut table, "a", 20, 60);
        assert_eq!((again.action, again.reason), (Action::Skipped, Some(Reason::Stale)));
        assert_eq!(again.row, newer.row);
    }

    #[test]
    fn a_repeated_email_from_a_fast_clock_changes_nothing() {
        let mut table = Table::default();
        let first = mail(&mut table, "a", 0, 60).row;
        for minute in [5, 60, 90] {
            let again = mail(&mut table, "a", minute, 60);
            assert_eq!((again.action, again.row, table.writes), (Action::Updated, first.clone(), 1), "minute {minute}");
        }
    }

    #[test]
    fn a_repeated_backfill_in_any_order_keeps_the_newest_email() {
        for orders in [[("a", 60), ("b", 10)], [("b", 10), ("a", 60)]] {
            let mut table = Table::default();
            mail(&mut table, "a", 0, 60);
            let newest = mail(&mut table, "b", 10, 10).row;
            for (minute, (text, says)) in (20..).zip(orders) {
                assert_eq!(mail(&mut table, text, minute, says).row, newest, "{text}");
            }
            assert_eq!(table.writes, 2);
        }
    }

    #[test]
    fn repeated_inputs_change_nothing_in_any_order_and_number() {
        let mut dice = fastrand::Rng::with_seed(43);
        for round in 0..1_000 {
            let mut table = Table::default();
            let (mut minute, mut seen) = (0, Vec::new());
            for number in 0..dice.i64(1..12) {
                minute += dice.i64(0..20);
                // No two inputs have the same time: of inputs with the same time, the last one
                // counts.
                let says = (minute + dice.i64(-30..60)) * 100 + number;
                seen.push((number.to_string(), says));
                table.later_ms = minute * 60_000;
                let insertion = asked("p", "", &number.to_string(), Some(NOW.plus_ms(says * 600)));
                table.insert(&insertion, &updating());
            }
            let (rows, writes) = (table.rows.clone(), table.writes);
            for _ in 0..50 {
                minute += dice.i64(0..10);
                table.later_ms = minute * 60_000;
                let (text, says) = &seen[dice.usize(0..seen.len())];
                table.insert(&asked("p", "", text, Some(NOW.plus_ms(says * 600))), &updating());
                assert!(table.rows == rows && table.writes == writes, "round {round}: {text} of {seen:?}");
            }
        }
    }

    #[test]
    fn an_update_keeps_the_id_the_keys_and_the_creation_time() {
        let mut table = Table::default();
        let before = table.insert(&asked("p", "s", "old", None), &updating()).row;
        let after = table.insert(&asked("p", "s", "new", at(5)), &updating()).row;
        assert_eq!(
            (&after.entry_id, after.created_at, &after.keys),
            (&before.entry_id, before.created_at, &before.keys)
        );
        assert_eq!(after.idempotency_policy_id, before.idempotency_policy_id);
        assert_eq!(after.version, before.version + 1);
    }

    #[test]
    fn the_same_input_again_changes_neither_version_nor_time() {
        let mut table = Table::default();
        let before = table.insert(&asked("p", "s", "x", at(5)), &updating()).row;
        let writes = table.writes;
        let again = table.insert(&asked("p", "s", "x", at(5)), &updating());
        assert_eq!((again.action, again.row, table.writes), (Action::Updated, before, writes));
    }

    #[test]
    fn an_edit_changes_the_secondary_key_and_frees_the_old_one() {
        let mut table = Table::default();
        let x = table.insert(&asked("p", "s", "x", None), &updating()).row;
        let moved = table.insert(&asked("p", "t", "x", None), &updating());
        assert_eq!(moved.row.keys.secondary.as_deref(), Some("t"));
        table.check();
        let free = table.insert(&asked("q", "s", "y", None), &updating());
        assert_eq!((free.action, free.secondary_conflict), (Action::Inserted, None), "the old slot is free");
        let taken = table.insert(&asked("", "t", "z", None), &updating());
        assert_eq!((taken.matched_by, taken.row.entry_id), (Some(MatchedBy::Secondary), x.entry_id));
        table.check();
    }

    #[test]
    fn an_edit_gets_an_occupied_secondary_key_only_when_it_becomes_free() {
        let mut table = Table::default();
        let x = table.insert(&asked("p", "s", "x", None), &updating()).row;
        let y = table.insert(&asked("q", "t", "y", None), &updating()).row;
        let flagged = table.insert(&asked("p", "t", "x", None), &updating()).row;
        assert_eq!((flagged.keys.secondary, flagged.secondary_conflict), (None, Some(y.entry_id)));
        table.check();
        table.insert(&asked("q", "u", "y", None), &updating());
        let healed = table.insert(&asked("p", "t", "x", None), &updating()).row;
        assert_eq!((healed.entry_id, healed.secondary_conflict), (x.entry_id, None));
        assert_eq!(healed.keys.secondary.as_deref(), Some("t"));
        table.check();
    }

    #[test]
    fn a_secondary_key_that_the_input_leaves_out_is_kept() {
        let mut table = Table::default();
        table.insert(&asked("p", "s", "x", None), &updating());
        let after = table.insert(&asked("p", "", "y", None), &updating()).row;
        assert_eq!(after.keys.secondary.as_deref(), Some("s"));
        table.check();
    }

    #[test]
    fn an_entry_stored_under_its_secondary_key_keeps_its_id_when_that_key_changes() {
        let mut table = Table::default();
        let x = table.insert(&asked("", "s", "x", None), &updating()).row;
        table.insert(&asked("p", "s", "x", None), &updating());
        let moved = table.insert(&asked("p", "t", "x", None), &updating()).row;
        assert_eq!((&moved.entry_id, moved.keys.secondary.as_deref()), (&x.entry_id, Some("t")));
        table.check();
    }

    #[test]
    fn merged_metadata_that_is_too_large_is_refused() {
        let mut table = Table::default();
        let with = |name: &str| {
            let mut insertion = asked("p", "", "x", None);
            insertion.normalized.metadata.insert(name.to_owned(), json!("x".repeat(20_000)));
            insertion
        };
        table.insert(&with("a"), &updating());
        let stored = table.rows_for(&with("b"));
        let InsertDecision::Refused(errors) =
            super::super::decide(&with("b"), &stored, &updating(), Timestamp::from_seconds(0))
        else {
            panic!("not refused")
        };
        assert_eq!((errors[0].field.as_str(), errors[0].code), ("metadata", FieldProblem::OutOfRange));
    }
}
