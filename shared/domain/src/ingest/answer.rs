//! Responses to callers.

use serde::Serialize;

use super::decision::InsertOutcome;
use super::entry::{Entry, Keys, Metadata};
use super::identity::EntryId;
use super::rows::EntryRow;
use super::words::Schema;
use crate::codes::{Action, MatchedBy, Reason};
use crate::time::Timestamp;

/// An entry as `GET /entries/{id}` returns it: the row without its internal fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryView {
    pub entry_id: EntryId,
    pub schema: Schema,
    #[serde(flatten)]
    pub entry: Entry,
    pub metadata: Metadata,
    pub idempotency_policy_id: u32,
    #[serde(flatten)]
    pub keys: Keys,
    pub secondary_conflict: Option<SecondaryConflict>,
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The entry that owns the secondary key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SecondaryConflict {
    pub entry_id: EntryId,
}

/// The response to an insert: the entry, and the action that was taken. Clients branch on `action`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InsertAnswer {
    pub action: Action,
    pub matched_by: Option<MatchedBy>,
    pub reason: Option<Reason>,
    #[serde(flatten)]
    pub entry: EntryView,
}

impl From<EntryRow> for EntryView {
    fn from(row: EntryRow) -> Self {
        Self {
            entry_id: row.entry_id,
            schema: row.schema,
            entry: row.entry,
            metadata: row.metadata,
            idempotency_policy_id: row.idempotency_policy_id,
            keys: row.keys,
            secondary_conflict: row.secondary_conflict.map(|entry_id| SecondaryConflict { entry_id }),
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl From<InsertOutcome> for InsertAnswer {
    fn from(outcome: InsertOutcome) -> Self {
        let mut entry = EntryView::from(outcome.row);
        if let Some(entry_id) = outcome.secondary_conflict {
            entry.secondary_conflict = Some(SecondaryConflict { entry_id });
        }
        Self { action: outcome.action, matched_by: outcome.matched_by, reason: outcome.reason, entry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::table::{Table, asked, policy};
    use crate::ingest::words::ConflictAction;

    #[test]
    fn an_answer_contains_the_row_and_the_outcome_of_the_insert() {
        let (mut table, skip) = (Table::default(), policy(ConflictAction::Skip));
        let answer = |outcome: InsertOutcome| serde_json::to_value(InsertAnswer::from(outcome)).expect("json");
        let first = answer(table.insert(&asked("<a@b>", "s", "x", None), &skip));
        assert_eq!((&first["action"], &first["matched_by"]), (&"inserted".into(), &serde_json::Value::Null));
        assert_eq!((&first["clean_text"], &first["schema"]), (&"x".into(), &"pkm".into()));
        let other = answer(table.insert(&asked("<c@d>", "t", "y", None), &skip));
        let skipped = answer(table.insert(&asked("<a@b>", "t", "z", None), &skip));
        assert_eq!((&skipped["action"], &skipped["matched_by"]), (&"skipped".into(), &"primary".into()));
        assert_eq!(skipped["entry_id"], first["entry_id"]);
        assert_eq!(skipped["secondary_conflict"]["entry_id"], other["entry_id"]);
        assert!(skipped.get("inserted_by").is_none() && skipped.get("kind").is_none());
    }
}
