//! The rows of Entries and EntriesTest.
//!
//! Every key of an entry owns a slot. An entry is stored in the slot of its primary key (or of its
//! secondary key, if it has no primary key). The slot of each other key holds a marker that names
//! the owner. An insertion of an existing item therefore always finds an entry or a marker in the
//! slot in which it would be stored.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::backfill::LineRef;
use super::entry::{Entry, Keys, Metadata, Normalized};
use super::identity::EntryId;
use super::json_text;
use super::source_times::SourceTimes;
use super::words::{PolicyKey, Schema};
use crate::codes::MatchedBy;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Row {
    Entry(Box<EntryRow>),
    Marker(MarkerRow),
}

impl Row {
    /// Returns the entry that owns the slot.
    pub fn owner(&self) -> &EntryId {
        match self {
            Self::Entry(row) => &row.entry_id,
            Self::Marker(marker) => &marker.entry_id,
        }
    }

    /// Returns the entry, if the row is one.
    pub fn entry(self) -> Option<EntryRow> {
        match self {
            Self::Entry(row) => Some(*row),
            Self::Marker(_) => None,
        }
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRow {
    pub entry_id: EntryId,
    pub schema: Schema,
    pub idempotency_policy_id: u32,
    #[serde(flatten)]
    pub keys: Keys,
    #[serde(flatten)]
    pub entry: Entry,
    #[serde(with = "json_text")]
    pub metadata: Metadata,
    #[serde(flatten)]
    pub times: SourceTimes,
    /// The entry that owns the secondary key that this entry would have.
    pub secondary_conflict: Option<EntryId>,
    /// The backfill line, or the request with an idempotency key, that inserted the entry.
    /// `updated_by` has those that last updated it. With them, a repeat after a crash or a lost
    /// response recognizes its own writes.
    pub inserted_by: Option<LineRef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updated_by: Vec<LineRef>,
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Names the owner of a key whose slot does not hold the entry itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerRow {
    pub entry_id: EntryId,
    pub which: MatchedBy,
    pub idempotency_policy_key: PolicyKey,
    /// The key itself; the slot's id has only its hash.
    pub idempotency_key: String,
    pub created_at: Timestamp,
}

/// An entry to insert, and the line or request that asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insertion {
    pub schema: Schema,
    pub normalized: Normalized,
    /// The backfill line, or the request with an idempotency key, that this insertion belongs to.
    pub line: Option<LineRef>,
}

impl Insertion {
    pub fn keys(&self) -> &Keys {
        &self.normalized.keys
    }

    pub fn primary_slot(&self) -> Option<EntryId> {
        self.keys().primary.as_deref().map(|key| self.slot(MatchedBy::Primary, key))
    }

    pub fn secondary_slot(&self) -> Option<EntryId> {
        self.keys().secondary.as_deref().map(|key| self.slot(MatchedBy::Secondary, key))
    }

    /// Returns the slot in which the entry is stored if it is new. [`Keys`] has at least one of its
    /// two keys.
    pub fn home(&self) -> EntryId {
        let by_secondary = || self.slot(MatchedBy::Secondary, self.keys().secondary.as_deref().unwrap_or_default());
        self.primary_slot().unwrap_or_else(by_secondary)
    }

    pub(super) fn slot(&self, which: MatchedBy, key: &str) -> EntryId {
        EntryId::of(self.schema, self.keys().policy, which, key)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::Source;
    use crate::ingest::words::ContentType;

    #[test]
    fn a_row_is_read_back_unchanged() {
        let now = Timestamp::from_seconds(1_751_342_400);
        let id = EntryId::of(Schema::Pkm, PolicyKey::TelegramThoughtV1, MatchedBy::Primary, "tg:1:2");
        let row = Row::Entry(Box::new(EntryRow {
            entry_id: id.clone(),
            schema: Schema::Pkm,
            idempotency_policy_id: 1,
            keys: Keys { policy: PolicyKey::TelegramThoughtV1, primary: Some("tg:1:2".into()), secondary: None },
            entry: Entry {
                source: Source::Telegram { chat_id: Some(1), message_id: Some(2), date: Some(now), edit_date: None },
                content_type: ContentType::Thought,
                clean_text: "x".into(),
                url: None,
                canonical_url: None,
                from: None,
                from_addr: None,
                subject: None,
                subject_base: None,
            },
            metadata: json!({"": [1e300, null, {"deep": u64::MAX}]}).as_object().expect("an object").clone(),
            times: SourceTimes::of(Some(now.plus_ms(1)), now),
            secondary_conflict: None,
            inserted_by: None,
            updated_by: Vec::new(),
            version: 1,
            created_at: now,
            updated_at: now,
        }));
        let json = serde_json::to_value(&row).expect("json");
        assert_eq!(json["kind"], "entry");
        assert_eq!(json["metadata"], r#"{"":[1e+300,null,{"deep":18446744073709551615}]}"#);
        assert_eq!(serde_json::from_value::<Row>(json).expect("a row"), row);
        let marker = Row::Marker(MarkerRow {
            entry_id: id,
            which: MatchedBy::Secondary,
            idempotency_policy_key: PolicyKey::TelegramThoughtV1,
            idempotency_key: "k".into(),
            created_at: now,
        });
        let json = serde_json::to_value(&marker).expect("json");
        assert_eq!(json["kind"], "marker");
        assert_eq!(serde_json::from_value::<Row>(json).expect("a row"), marker);
    }
}
