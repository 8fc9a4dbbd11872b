//! Addresses that a channel does not write to: why, since when, and who decided so. Recipients who
//! unsubscribed from a list of mailings have another kind of row, but the same requests and views.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::channels::telegram::code;
use crate::channels::{Channel, normalize_to};
use crate::codes::{FieldProblem, texts};
use crate::fields::{FieldError, Fields};
use crate::mailings::{list_name, normalize_email};
use crate::messages::MessageRow;
use crate::time::Timestamp;

const LONGEST_NOTE: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SuppressionStatus {
    Active,
    /// The row is kept, so that an old event that is redelivered does not restore the suppression.
    Removed,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressionRow {
    pub channel: Channel,
    pub to: String,
    pub status: SuppressionStatus,
    /// A code: `bot_blocked`, `hard_bounce`, `complaint`, `operator`, …
    pub reason: String,
    /// A note by the operator.
    pub note: Option<String>,
    /// `provider`, `ses` or `operator`.
    pub source: String,
    /// The message that caused the suppression.
    pub message_id: Option<String>,
    /// The senders that the suppression applies to: a user who blocks one bot can still be messaged
    /// by others. If empty, it applies to all senders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub senders: Vec<String>,
    pub created_at: Timestamp,
    /// The time of the latest known event, in milliseconds: an older event changes nothing.
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
            status: SuppressionStatus::Active,
            reason: reason.to_owned(),
            note: None,
            source: source.to_owned(),
            message_id: message_id.map(str::to_owned),
            senders: Vec::new(),
            created_at: at,
            as_of: at.millis(),
        }
    }

    /// The suppression of a message's address, for all senders until [`Self::seen_by`] names one.
    pub fn by_message(row: &MessageRow, reason: &str, source: &str, at: Timestamp) -> Self {
        Self::new(row.channel, &row.to, reason, source, Some(row.id.as_str()), at)
    }

    /// Returns whether the reason applies only to the bot that encountered it.
    pub fn is_of_one_bot(&self) -> bool {
        self.channel == Channel::Telegram && OF_ONE_BOT.contains(&self.reason.as_str())
    }

    pub fn is_against(&self, sender: &str) -> bool {
        self.senders.iter().any(|one| one == sender)
    }

    /// Limits the suppression to one sender, by the name of its credential, if the reason applies
    /// only to that sender.
    pub fn seen_by(self, sender: &str) -> Self {
        Self { senders: self.is_of_one_bot().then(|| sender.to_owned()).into_iter().collect(), ..self }
    }

    pub fn by_operator(channel: Channel, to: &str, note: Option<String>, now: Timestamp) -> Self {
        Self { note, ..Self::new(channel, to, reason::OPERATOR, source::OPERATOR, None, now) }
    }
}

/// How much the clocks of two functions differ at most, in milliseconds.
const SKEW_MS: i64 = 5_000;

/// Returns whether a suppression of the time `at` was made while the request to remove it was under
/// way. Such a suppression stays: the process of the request may have been frozen, and the caller
/// may have repeated the request and then suppressed the address again. A time that lies ahead of
/// the current time is of a wrong clock, and does not count as later.
pub fn is_after_request(at: Timestamp, began: Timestamp, current: Timestamp) -> bool {
    at > began.plus_ms(SKEW_MS) && at <= current.plus_ms(SKEW_MS)
}

/// Reasons by which a person or a group refuses one bot only.
const OF_ONE_BOT: &[&str] = &[code::BOT_BLOCKED, code::BOT_KICKED];

texts! {
    /// Why an address is suppressed, beside the codes of the providers.
    reason {
        /// The mail server of the recipient says that the address does not exist.
        HARD_BOUNCE = "hard_bounce",
        /// The recipient marked a mail as spam.
        COMPLAINT = "complaint",
        /// An operator added the address.
        OPERATOR = "operator",
        /// The recipient unsubscribed from a list of mailings.
        UNSUBSCRIBED = "unsubscribed",
    }
}

pub mod source {
    pub const PROVIDER: &str = "provider";
    pub const SES: &str = "ses";
    pub const OPERATOR: &str = "operator";
}

/// A suppression as callers see it: an address that a channel does not write to, or one that
/// unsubscribed from a list of mailings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuppressionView {
    pub channel: Channel,
    /// `None` if the suppression covers the whole channel.
    pub list: Option<String>,
    /// `None` if only the hash is known.
    pub to: Option<String>,
    /// Set for an address that unsubscribed from a list.
    pub email_hash: Option<String>,
    pub reason: String,
    pub note: Option<String>,
    pub source: String,
    pub message_id: Option<String>,
    /// The senders that the suppression applies to; if empty, all of them.
    pub senders: Vec<String>,
    /// The mailing whose unsubscribe link was used.
    pub mailing_id: Option<String>,
    pub created_at: Timestamp,
}

impl From<SuppressionRow> for SuppressionView {
    fn from(row: SuppressionRow) -> Self {
        let SuppressionRow { channel, to, reason, note, source, message_id, senders, created_at, .. } = row;
        let (list, to, email_hash, mailing_id) = (None, Some(to), None, None);
        Self { channel, list, to, email_hash, reason, note, source, message_id, senders, mailing_id, created_at }
    }
}

/// The scope of a suppression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    Channel(Channel),
    /// One list of mailings. Mailings are always emails.
    List(String),
}

impl Reach {
    pub fn read(channel: &str, list: Option<&str>, errors: &mut Vec<FieldError>) -> Option<Self> {
        let Some(known) = Channel::parse(channel) else {
            let detail = "must be one of email, telegram, whatsapp";
            errors.push(FieldError::new("channel", FieldProblem::Unknown, detail));
            return None;
        };
        let Some(list) = list else { return Some(Self::Channel(known)) };
        if known != Channel::Email {
            errors.push(FieldError::new("list", FieldProblem::NotAllowed, "only email has lists"));
            return None;
        }
        list_name(list).map(Self::List).map_err(|error| errors.push(error)).ok()
    }

    /// Normalizes an address. The entries of a list come from files, so for a list the address gets
    /// the same tolerant normalization as an address in a file.
    pub fn read_to(&self, to: &str, errors: &mut Vec<FieldError>) -> Option<String> {
        let form = match self {
            Self::Channel(channel) => normalize_to(*channel, to),
            Self::List(_) => normalize_email(to).map_err(|_| "must be an email address"),
        };
        form.map_err(|detail| errors.push(FieldError::new("to", FieldProblem::Malformed, detail))).ok()
    }

    pub fn channel(&self) -> Channel {
        match self {
            Self::Channel(channel) => *channel,
            Self::List(_) => Channel::Email,
        }
    }

    pub fn list(&self) -> Option<&str> {
        match self {
            Self::Channel(_) => None,
            Self::List(list) => Some(list),
        }
    }
}

/// The body of `POST /suppressions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuppressionRequest {
    pub reach: Reach,
    pub to: String,
    pub note: Option<String>,
}

impl SuppressionRequest {
    /// Reads `{channel, to, list?, note?}`.
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let channel = fields.text("channel");
        let to = fields.text("to");
        let list = fields.optional_text("list");
        let note = fields.optional_text("note").map(str::to_owned);
        let is_a_line = |note: &String| note.len() <= LONGEST_NOTE && !note.chars().any(char::is_control);
        let is_wrong = note.as_ref().is_some_and(|note| !is_a_line(note));
        fields.refuse_if(is_wrong, "note", FieldProblem::OutOfRange, "must be a line of at most 200 bytes");
        let mut errors = Vec::new();
        let reach = channel.and_then(|channel| Reach::read(channel, list, &mut errors));
        let request = reach.zip(to).and_then(|(reach, to)| {
            let to = reach.read_to(to, &mut errors)?;
            Some(Self { reach, to, note })
        });
        errors.into_iter().for_each(|error| fields.refuse(error.field, error.code, error.detail));
        fields.finish(request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<SuppressionRequest, Vec<FieldError>> {
        SuppressionRequest::read(body.as_object().expect("an object"))
    }

    #[test]
    fn an_address_is_suppressed_in_its_normalized_form() {
        let asked = read(json!({"channel": "whatsapp", "to": "+55 (11) 91234-5678"})).expect("fits");
        assert_eq!((asked.reach, asked.to.as_str()), (Reach::Channel(Channel::Whatsapp), "5511912345678"));
        let row = SuppressionRow::by_operator(Channel::Whatsapp, &asked.to, None, Timestamp::from_seconds(0));
        assert_eq!((row.reason.as_str(), row.source.as_str()), ("operator", "operator"));
    }

    #[test]
    fn a_user_who_blocks_one_bot_is_suppressed_for_that_bot_only() {
        let at = Timestamp::from_seconds(0);
        let suppressed =
            |channel, reason| SuppressionRow::new(channel, "7", reason, source::PROVIDER, None, at).seen_by("loja");
        assert_eq!(suppressed(Channel::Telegram, code::BOT_BLOCKED).senders, ["loja"]);
        assert!(suppressed(Channel::Telegram, code::USER_DEACTIVATED).senders.is_empty(), "no bot can reach the user");
        assert!(suppressed(Channel::Email, reason::HARD_BOUNCE).senders.is_empty());
    }

    #[test]
    fn a_removal_keeps_suppressions_that_were_added_after_it_began() {
        let after = |at, began, current| {
            let [at, began, current] = [at, began, current].map(|ms| Timestamp::from_seconds(100).plus_ms(ms));
            is_after_request(at, began, current)
        };
        assert!(!after(-1, 0, 50), "it was suppressed before the request");
        assert!(!after(5_000, 0, 5_050), "the clocks of two functions may differ by this much");
        assert!(after(5_001, 0, 5_050), "it was suppressed while the request was under way");
        assert!(after(65_000, 0, 60_000), "it was suppressed during the request by a clock that is ahead");
        assert!(!after(65_001, 0, 60_000), "a clock that is too far ahead does not keep a suppression");
    }

    #[test]
    fn a_request_for_a_list_normalizes_the_address_as_an_import_does() {
        let asked = read(json!({"channel": "email", "to": "“A@Bücher.example”", "list": " Clientes "})).expect("fits");
        assert_eq!((asked.reach.list(), asked.to.as_str()), (Some("Clientes"), "a@xn--bcher-kva.example"));
    }

    #[test]
    fn each_invalid_field_is_named() {
        for (body, wrong) in [
            (json!({"channel": "sms", "to": "1", "note": "a\nb", "x": 1}), &["note", "channel", "x"][..]),
            (json!({"channel": "telegram", "to": "1", "list": "Clientes"}), &["list"]),
            (json!({"channel": "email", "to": "a@b.co", "list": " "}), &["list"]),
            (json!({"channel": "email", "to": "a@b.co", "list": "x".repeat(101)}), &["list"]),
            (json!({"channel": "email", "to": "a", "list": "Clientes"}), &["to"]),
        ] {
            let errors = read(body).expect_err("unfit");
            let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, wrong);
        }
    }
}
