//! Policies: how an entry is keyed, and what happens to an entry that already exists. Both schemas
//! have the same four policies. An operator may disable a policy, or change what happens on a
//! conflict.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::words::{Column, ConflictAction, ContentType, PolicyKey, Schema, System};
use crate::change::{Fence, Next, Row};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::keys::{self, Key};
use crate::time::Timestamp;

/// A policy of one schema, as it is stored and as `GET /policies` returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    pub policy_id: u32,
    pub policy_key: PolicyKey,
    pub schema: Schema,
    pub source: System,
    pub content_type: ContentType,
    pub conflict_action: ConflictAction,
    /// The columns that an update changes. `None`: all that the input has.
    pub update_fields: Option<Vec<Column>>,
    pub enabled: bool,
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl PolicyRow {
    /// Returns the row that a deployment starts with, until an operator changes it.
    pub fn seed(policy_key: PolicyKey, schema: Schema, now: Timestamp) -> Self {
        let (policy_id, content_type, conflict_action) = match policy_key {
            PolicyKey::TelegramThoughtV1 => (1, ContentType::Thought, ConflictAction::Update),
            PolicyKey::TelegramLinkV1 => (2, ContentType::Link, ConflictAction::Skip),
            PolicyKey::EmailNewsletterV1 => (3, ContentType::Newsletter, ConflictAction::Skip),
            PolicyKey::EmailCorrespondenceThreadV1 => (4, ContentType::CorrespondenceThread, ConflictAction::Update),
        };
        Self {
            policy_id,
            policy_key,
            schema,
            source: policy_key.system(),
            content_type,
            conflict_action,
            update_fields: None,
            enabled: true,
            version: 1,
            created_at: now,
            updated_at: now,
        }
    }

    /// Returns the rows that a deployment starts with. Each is written only if it does not exist
    /// yet.
    pub fn seeds(now: Timestamp) -> Vec<Self> {
        let of_schema = |schema: Schema| PolicyKey::ALL.iter().map(move |key| Self::seed(*key, schema, now));
        Schema::ALL.iter().copied().flat_map(of_schema).collect()
    }
}

impl Row for PolicyRow {
    fn key(&self) -> Key {
        keys::policy(self.schema, self.policy_key)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

/// Returns the policy of a schema under which an entry is inserted. Returns an error if there is no
/// such policy or if it is disabled: then nothing is inserted.
pub fn resolve(rows: &[PolicyRow], schema: Schema, key: PolicyKey) -> Result<&PolicyRow, FieldError> {
    let refusal = |code, detail| FieldError::new("idempotency_policy_key", code, detail);
    match rows.iter().find(|row| row.schema == schema && row.policy_key == key) {
        None => Err(refusal(FieldProblem::Unknown, format!("there is no such policy in {schema}"))),
        Some(row) if !row.enabled => Err(refusal(FieldProblem::NotAllowed, format!("is disabled in {schema}"))),
        Some(row) => Ok(row),
    }
}

/// A change to a policy: `PATCH /policies/{key}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyPatch {
    pub enabled: Option<bool>,
    pub conflict_action: Option<ConflictAction>,
    /// `Some(None)`: from now on, all columns.
    pub update_fields: Option<Option<Vec<Column>>>,
}

impl PolicyPatch {
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let enabled = fields.optional_bool("enabled");
        let action = fields.optional_text("conflict_action").map(ConflictAction::parse);
        let detail = "must be skip or update";
        let conflict_action =
            action.and_then(|action| fields.or_refuse("conflict_action", action, FieldProblem::NotAllowed, detail));
        let null = fields.is_null("update_fields");
        let columns = fields.optional_array("update_fields").map(|names| read_columns(&mut fields, names));
        let update_fields = if null { Some(None) } else { columns.map(Some) };
        fields.finish(Some(Self { enabled, conflict_action, update_fields }))
    }

    /// Applies the patch to a row. Returns whether it changes anything.
    pub fn apply(&self, row: &PolicyRow, now: Timestamp) -> Next<PolicyRow, bool> {
        let mut next = row.clone();
        next.enabled = self.enabled.unwrap_or(next.enabled);
        next.conflict_action = self.conflict_action.unwrap_or(next.conflict_action);
        if let Some(update_fields) = &self.update_fields {
            next.update_fields.clone_from(update_fields);
        }
        if next == *row {
            return Next::Stop(false);
        }
        Next::Commit(PolicyRow { version: row.version + 1, updated_at: now, ..next }, true)
    }
}

fn read_columns(fields: &mut Fields<'_>, names: &[Value]) -> Vec<Column> {
    if names.is_empty() || names.len() > Column::ALL.len() {
        fields.refuse("update_fields", FieldProblem::OutOfRange, "must name columns, or be null for all of them");
        return Vec::new();
    }
    let mut columns = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let field = format!("update_fields[{place}]");
        columns.extend(fields.one_of(&field, name.as_str().unwrap_or_default(), Column::ALL, Column::as_str));
    }
    columns.sort_unstable();
    columns.dedup();
    columns
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_751_342_400)
    }

    fn patch(body: &Value) -> Result<PolicyPatch, Vec<(String, FieldProblem)>> {
        let read = PolicyPatch::read(body.as_object().expect("an object"));
        read.map_err(|errors| errors.into_iter().map(|error| (error.field, error.code)).collect())
    }

    #[test]
    fn the_same_four_policies_are_in_both_schemas() {
        let rows = PolicyRow::seeds(now());
        let policies: Vec<_> =
            rows.iter().map(|row| format!("{} {} {}", row.schema, row.policy_key, row.conflict_action)).collect();
        assert_eq!(
            policies,
            [
                "pkm telegram_thought_v1 update",
                "pkm telegram_link_v1 skip",
                "pkm email_newsletter_v1 skip",
                "pkm email_correspondence_thread_v1 update",
                "pkm_test telegram_thought_v1 update",
                "pkm_test telegram_link_v1 skip",
                "pkm_test email_newsletter_v1 skip",
                "pkm_test email_correspondence_thread_v1 update",
            ]
        );
        assert!(rows.iter().all(|row| row.enabled && row.update_fields.is_none()));
        assert!(rows.iter().all(|row| row.content_type.policy() == row.policy_key));
        assert!(rows.iter().all(|row| row.source == row.policy_key.system()));
    }

    #[test]
    fn a_policy_row_is_read_back_unchanged() {
        let mut row = PolicyRow::seeds(now()).remove(0);
        row.update_fields = Some(vec![Column::CleanText, Column::Metadata]);
        let json = serde_json::to_value(&row).expect("json");
        assert_eq!(json["update_fields"], json!(["clean_text", "metadata"]));
        assert_eq!(serde_json::from_value::<PolicyRow>(json).expect("a row"), row);
    }

    #[test]
    fn an_unknown_or_disabled_policy_is_refused_in_its_own_schema_only() {
        let mut rows = PolicyRow::seeds(now());
        rows[0].enabled = false;
        rows.remove(1);
        let code = |schema, key| resolve(&rows, schema, key).map_err(|error| error.code).err();
        assert_eq!(code(Schema::Pkm, PolicyKey::TelegramThoughtV1), Some(FieldProblem::NotAllowed));
        assert_eq!(code(Schema::Pkm, PolicyKey::TelegramLinkV1), Some(FieldProblem::Unknown));
        assert_eq!(code(Schema::PkmTest, PolicyKey::TelegramThoughtV1), None);
        assert_eq!(code(Schema::PkmTest, PolicyKey::TelegramLinkV1), None);
    }

    #[test]
    fn a_patch_changes_only_its_fields_and_its_repeat_is_a_no_op() {
        let row = PolicyRow::seeds(now()).remove(0);
        let later = now().plus_ms(1);
        let change = patch(&json!({"enabled": false, "update_fields": ["metadata", "clean_text", "metadata"]}));
        let change = change.expect("a patch");
        let apply = |patch: &PolicyPatch, row: &PolicyRow| match patch.apply(row, later) {
            Next::Commit(row, true) => Some(row),
            next => {
                assert_eq!(next, Next::Stop(false));
                None
            }
        };
        let changed = apply(&change, &row).expect("changed");
        assert_eq!(changed.update_fields, Some(vec![Column::CleanText, Column::Metadata]));
        assert_eq!((changed.enabled, changed.version, changed.updated_at), (false, 2, later));
        assert_eq!(changed.conflict_action, row.conflict_action);
        assert_eq!(apply(&change, &changed), None);
        let all = patch(&json!({"update_fields": null})).expect("a patch");
        assert_eq!(apply(&all, &changed).expect("changed").update_fields, None);
        assert_eq!(apply(&patch(&json!({})).expect("a patch"), &row), None);
    }

    #[test]
    fn a_patch_with_immutable_or_invalid_fields_is_refused() {
        let columns = json!(["entry_id", "created_at", "idempotency_key_primary", "clean_text", 5]);
        let patched =
            patch(&json!({"update_fields": columns, "conflict_action": "merge", "enabled": "no", "source": 1}));
        let errors = patched.expect_err("refused");
        let expected = [
            ("enabled", FieldProblem::WrongType),
            ("conflict_action", FieldProblem::NotAllowed),
            ("update_fields[0]", FieldProblem::NotAllowed),
            ("update_fields[1]", FieldProblem::NotAllowed),
            ("update_fields[2]", FieldProblem::NotAllowed),
            ("update_fields[4]", FieldProblem::NotAllowed),
            ("source", FieldProblem::Unknown),
        ];
        assert_eq!(errors, expected.map(|(field, code)| (field.to_owned(), code)));
        assert!(patch(&json!({"update_fields": []})).is_err());
    }
}
