//! Addresses that are not written to, per channel: why, since when, and who said so.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::address::{Channel, normalize_to};
use super::message::MessageRow;
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::time::Timestamp;

const LONGEST_NOTE: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    Active,
    /// Kept, so that an old event that is delivered again does not bring the suppression back.
    Removed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionRow {
    pub channel: Channel,
    pub to: String,
    pub status: Status,
    /// A code: `bot_blocked`, `hard_bounce`, `complaint`, `operator`, …
    pub reason: String,
    /// What an operator wrote to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// `provider`, `ses` or `operator`.
    pub source: String,
    /// The message that brought it about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub created_at: Timestamp,
    /// Milliseconds of what was seen last: an older event changes nothing.
    pub as_of: i64,
}

impl SuppressionRow {
    pub fn new(
        channel: Channel,
        to: &str,
        reason: &str,
        source: &str,
        message_id: Option<&str>,
        at: Timestamp,
    ) -> Self {
        Self {
            channel,
            to: to.to_owned(),
            status: Status::Active,
            reason: reason.to_owned(),
            note: None,
            source: source.to_owned(),
            message_id: message_id.map(str::to_owned),
            created_at: at,
            as_of: at.millis(),
        }
    }

    /// What a message's fate tells of its address.
    pub fn by_message(row: &MessageRow, reason: &str, source: &str, at: Timestamp) -> Self {
        Self::new(row.channel, &row.to, reason, source, Some(&row.id), at)
    }
}

pub mod reason {
    pub const HARD_BOUNCE: &str = "hard_bounce";
    pub const COMPLAINT: &str = "complaint";
    pub const OPERATOR: &str = "operator";

    pub const ALL: &[&str] = &[HARD_BOUNCE, COMPLAINT, OPERATOR];
}

pub mod source {
    pub const PROVIDER: &str = "provider";
    pub const SES: &str = "ses";
    pub const OPERATOR: &str = "operator";
}

/// A suppression as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuppressionView {
    pub channel: Channel,
    pub to: String,
    pub reason: String,
    pub note: Option<String>,
    pub source: String,
    pub message_id: Option<String>,
    pub created_at: Timestamp,
}

impl From<SuppressionRow> for SuppressionView {
    fn from(row: SuppressionRow) -> Self {
        let SuppressionRow { channel, to, reason, note, source, message_id, created_at, .. } = row;
        Self { channel, to, reason, note, source, message_id, created_at }
    }
}

/// Reads `{channel, to, note?}`.
pub fn read(body: &Map<String, Value>, now: Timestamp) -> Result<SuppressionRow, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let channel = fields.text("channel").map(str::to_owned);
    let to = fields.text("to").map(str::to_owned);
    let note = fields.optional_text("note").map(str::to_owned);
    if let Some(note) = &note
        && (note.len() > LONGEST_NOTE || note.chars().any(char::is_control))
    {
        fields.refuse("note", FieldProblem::OutOfRange, "must be a line of at most 200 bytes");
    }
    let mut errors = Vec::new();
    let address = channel.zip(to).and_then(|(channel, to)| read_address(&channel, &to, &mut errors));
    errors.into_iter().for_each(|error| fields.refuse(error.field, error.code, error.detail));
    let row = address.map(|(channel, to)| SuppressionRow {
        note,
        ..SuppressionRow::new(channel, &to, reason::OPERATOR, source::OPERATOR, None, now)
    });
    fields.finish(row)
}

/// A channel and an address in its one form.
pub fn read_address(channel: &str, to: &str, errors: &mut Vec<FieldError>) -> Option<(Channel, String)> {
    let Some(known) = Channel::parse(channel) else {
        let detail = "must be one of email, telegram, whatsapp";
        errors.push(FieldError::new("channel", FieldProblem::Unknown, detail));
        return None;
    };
    match normalize_to(known, to) {
        Ok(to) => Some((known, to)),
        Err(detail) => {
            errors.push(FieldError::new("to", FieldProblem::Malformed, detail));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_is_suppressed_in_its_one_form() {
        let now = Timestamp::from_seconds(0);
        let body = json!({"channel": "whatsapp", "to": "+55 (11) 91234-5678"});
        let row = read(body.as_object().expect("an object"), now).expect("fits");
        assert_eq!(
            (row.to.as_str(), row.reason.as_str(), row.source.as_str()),
            ("5511912345678", "operator", "operator")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let body = json!({"channel": "sms", "to": "1", "note": "a\nb", "x": 1});
        let errors = read(body.as_object().expect("an object"), Timestamp::from_seconds(0)).expect_err("unfit");
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["note", "channel", "x"]);
    }
}
