//! An entry in its canonical form: the result of normalization and the input of an insert.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::words::{ContentType, PolicyKey, System};
use crate::time::Timestamp;

/// Data that callers keep with an entry. The rules merge it and do not interpret it.
pub type Metadata = Map<String, Value>;

/// Where an entry came from.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "system", rename_all = "lowercase")]
pub enum Source {
    Telegram { chat_id: Option<i64>, message_id: Option<i64>, date: Option<Timestamp>, edit_date: Option<Timestamp> },
    Email { message_id: Option<String>, date: Option<Timestamp> },
}

impl Source {
    pub const fn system(&self) -> System {
        match self {
            Self::Telegram { .. } => System::Telegram,
            Self::Email { .. } => System::Email,
        }
    }

    /// Returns the time of the item's last change at the source. An edited message has a later time
    /// than its original.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Telegram { date, edit_date, .. } => edit_date.or(*date),
            Self::Email { date, .. } => *date,
        }
    }
}

/// The columns of an entry besides its metadata.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub source: Source,
    pub content_type: ContentType,
    pub clean_text: String,
    pub url: Option<String>,
    pub canonical_url: Option<String>,
    pub from: Option<String>,
    pub from_addr: Option<String>,
    pub subject: Option<String>,
    pub subject_base: Option<String>,
}

/// The keys that identify an entry. At least one of the two keys is present, and neither is blank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    #[serde(rename = "idempotency_policy_key")]
    pub policy: PolicyKey,
    #[serde(rename = "idempotency_key_primary")]
    pub primary: Option<String>,
    #[serde(rename = "idempotency_key_secondary")]
    pub secondary: Option<String>,
}

/// A normalized entry: the response of `/normalize/*`, and the body of `/db/insert`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Normalized {
    #[serde(flatten)]
    pub entry: Entry,
    pub metadata: Metadata,
    #[serde(flatten)]
    pub keys: Keys,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_normalized_entry_is_flat_json_and_a_missing_secondary_key_is_null() {
        let normalized = Normalized {
            entry: Entry {
                source: Source::Telegram { chat_id: Some(-5), message_id: Some(7), date: None, edit_date: None },
                content_type: ContentType::Thought,
                clean_text: "a".into(),
                url: None,
                canonical_url: None,
                from: None,
                from_addr: None,
                subject: None,
                subject_base: None,
            },
            metadata: Metadata::new(),
            keys: Keys { policy: PolicyKey::TelegramThoughtV1, primary: Some("tg:-5:7".into()), secondary: None },
        };
        let json = serde_json::to_value(&normalized).expect("json");
        assert_eq!(
            json,
            json!({
                "source": {"system": "telegram", "chat_id": -5, "message_id": 7},
                "content_type": "thought",
                "clean_text": "a",
                "metadata": {},
                "idempotency_policy_key": "telegram_thought_v1",
                "idempotency_key_primary": "tg:-5:7",
                "idempotency_key_secondary": null,
            })
        );
        assert_eq!(serde_json::from_value::<Normalized>(json).expect("read back"), normalized);
    }

    #[test]
    fn the_time_of_an_edited_message_is_its_edit_date() {
        let at = |seconds| Some(Timestamp::from_seconds(seconds));
        let message = |date, edit_date| Source::Telegram { chat_id: None, message_id: None, date, edit_date };
        assert_eq!(message(at(1), at(2)).time(), at(2));
        assert_eq!(message(at(1), None).time(), at(1));
        assert_eq!(message(None, None).time(), None);
        assert_eq!(Source::Email { message_id: None, date: at(3) }.time(), at(3));
    }
}
