//! What SES tells about a mail after it took it: sent, delivered, bounced, complained about, rejected.
//!
//! An event comes bare, in SNS's envelope or in EventBridge's. Events are delivered any number of times, in any order, so
//! each is a mark that is set once, and what it proves about an attempt does not depend on what was heard before.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::channels::email::ses::{ATTEMPT_TAG, MESSAGE_TAG};
use crate::channels::{Channel, normalize_to};
use crate::codes::Decision;
use crate::delivery::State;
use crate::messages::MessageRow;
use crate::suppression::reason;
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send,
    Delivery,
    /// `permanent`: there is no such mailbox, and there will not be.
    Bounce {
        permanent: bool,
    },
    Complaint,
    /// SES took it and then found that it must not be sent.
    Reject,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SesEvent {
    pub kind: Kind,
    pub at: Timestamp,
    /// What SES calls the mail.
    pub provider_id: String,
    /// Whose attempt it is about; none for a mail that is not ours.
    pub message: Option<(String, u32)>,
    /// The addresses that it is about, in their one form.
    pub recipients: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Of a kind that changes nothing: opened, clicked, delayed.
    Ignored,
    Unreadable,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(alias = "notificationType")]
    event_type: String,
    mail: Mail,
    bounce: Option<Bounce>,
    complaint: Option<Complaint>,
    delivery: Option<Delivery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mail {
    timestamp: Timestamp,
    message_id: String,
    #[serde(default)]
    destination: Vec<String>,
    #[serde(default)]
    tags: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bounce {
    bounce_type: String,
    timestamp: Timestamp,
    #[serde(default)]
    bounced_recipients: Vec<Recipient>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Complaint {
    timestamp: Timestamp,
    #[serde(default)]
    complained_recipients: Vec<Recipient>,
}

#[derive(Deserialize)]
struct Delivery {
    timestamp: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recipient {
    email_address: String,
}

pub fn read(body: &str) -> Result<SesEvent, Read> {
    let value: Value = serde_json::from_str(body).map_err(|_| Read::Unreadable)?;
    let event: Event = serde_json::from_value(unwrapped(value)?).map_err(|_| Read::Unreadable)?;
    let mail_at = event.mail.timestamp;
    let addresses = |recipients: Vec<Recipient>| recipients.into_iter().map(|one| one.email_address).collect();
    let (kind, at, recipients) = match (event.event_type.as_str(), event.bounce, event.complaint) {
        ("Send", ..) => (Kind::Send, mail_at, event.mail.destination),
        ("Delivery", ..) => {
            (Kind::Delivery, event.delivery.map_or(mail_at, |delivery| delivery.timestamp), event.mail.destination)
        }
        ("Bounce", Some(bounce), _) => {
            let permanent = bounce.bounce_type == "Permanent";
            (Kind::Bounce { permanent }, bounce.timestamp, addresses(bounce.bounced_recipients))
        }
        ("Complaint", _, Some(complaint)) => {
            (Kind::Complaint, complaint.timestamp, addresses(complaint.complained_recipients))
        }
        ("Reject", ..) => (Kind::Reject, mail_at, event.mail.destination),
        ("Bounce" | "Complaint", ..) => return Err(Read::Unreadable),
        _ => return Err(Read::Ignored),
    };
    let tag = |name: &str| event.mail.tags.get(name).and_then(|values| values.first());
    let message = tag(MESSAGE_TAG).zip(tag(ATTEMPT_TAG).and_then(|attempt| attempt.parse().ok()));
    Ok(SesEvent {
        kind,
        at,
        provider_id: event.mail.message_id,
        message: message.map(|(id, attempt)| (id.clone(), attempt)),
        recipients: recipients.iter().filter_map(|one| normalize_to(Channel::Email, address(one)).ok()).collect(),
    })
}

/// The event without its envelope.
fn unwrapped(mut value: Value) -> Result<Value, Read> {
    if value["detail"].is_object() {
        return Ok(value["detail"].take());
    }
    match value["Message"].as_str() {
        Some(text) => serde_json::from_str(text).map_err(|_| Read::Unreadable),
        None => Ok(value),
    }
}

/// `a@b` of `Name <a@b>`.
fn address(mailbox: &str) -> &str {
    mailbox.strip_suffix('>').and_then(|text| text.rsplit_once('<')).map_or(mailbox, |(_, address)| address)
}

impl Kind {
    /// Whether SES handed the mail to the recipient's server.
    pub fn proves_sent(self) -> bool {
        self != Self::Reject
    }

    /// Why the address is not written to again.
    pub fn suppresses(self) -> Option<&'static str> {
        match self {
            Self::Bounce { permanent: true } => Some(reason::HARD_BOUNCE),
            Self::Complaint => Some(reason::COMPLAINT),
            _ => None,
        }
    }

    /// The attribute of the message's row that is set once, and what its ledger says.
    pub fn mark(self) -> Option<(&'static str, Decision)> {
        match self {
            Self::Send => None,
            Self::Delivery => Some(("delivered_at", Decision::Delivered)),
            Self::Bounce { .. } => Some(("bounced_at", Decision::Bounced)),
            Self::Complaint => Some(("complained_at", Decision::Complained)),
            Self::Reject => Some(("rejected_at", Decision::Rejected)),
        }
    }
}

/// What is learned about a message's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// The attempt was sent: the message is `SENT`, and whatever was queued after it is not made.
    Sent,
    /// It was sent, and a later attempt is under way: whatever comes of that one, the message was sent.
    SentBefore,
    /// The attempt was not sent: the message failed.
    NotSent,
    /// An earlier attempt is known not to have been sent: it is in doubt no more.
    NoDoubt,
}

/// What proof that `attempt` was sent changes about the message. The sender's own word counts as much as an event.
pub fn sent(row: &MessageRow, attempt: u32) -> Option<Learned> {
    if row.rejected_attempt == Some(attempt) || attempt > row.attempt {
        return None;
    }
    match row.state {
        State::Queued | State::Unknown => Some(Learned::Sent),
        State::Sending if row.attempt == attempt => Some(Learned::Sent),
        State::Sending if row.sent_attempt.is_none() => Some(Learned::SentBefore),
        _ => None,
    }
}

fn rejected(row: &MessageRow, attempt: u32) -> Option<Learned> {
    let open = matches!(row.state, State::Sending | State::Unknown | State::Sent);
    match row.doubt {
        _ if row.attempt == attempt && open => Some(Learned::NotSent),
        // All later attempts are known not to have been sent either.
        Some(doubt) if doubt == attempt && row.state == State::Unknown => Some(Learned::NotSent),
        Some(doubt) if doubt == attempt => Some(Learned::NoDoubt),
        _ => None,
    }
}

/// What an event changes about its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    pub learned: Option<Learned>,
    /// The mark is new.
    pub mark: bool,
}

/// `None`: everything that the event says is known.
pub fn effect(row: &MessageRow, kind: Kind, attempt: u32) -> Option<Effect> {
    let learned = if kind.proves_sent() { sent(row, attempt) } else { rejected(row, attempt) };
    let marked = match kind {
        Kind::Send => true,
        Kind::Delivery => row.delivered_at.is_some(),
        Kind::Bounce { .. } => row.bounced_at.is_some(),
        Kind::Complaint => row.complained_at.is_some(),
        Kind::Reject => row.rejected_at.is_some(),
    };
    let effect = Effect { learned, mark: !marked };
    (effect.learned.is_some() || effect.mark).then_some(effect)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    macro_rules! fixture {
        ($name:literal) => {
            include_str!(concat!("../../../tests/data/providers/ses_", $name, ".json"))
        };
    }

    #[test]
    fn a_bounce_is_read_in_any_envelope() {
        let bare: Value = serde_json::from_str(fixture!("bounce")).expect("JSON");
        let by_sns = json!({"Type": "Notification", "MessageId": "x", "Message": bare.to_string()});
        let by_bus = json!({"version": "0", "source": "aws.ses", "detail-type": "Email Bounced", "detail": bare});
        for body in [bare.to_string(), by_sns.to_string(), by_bus.to_string()] {
            let event = read(&body).expect("readable");
            assert_eq!(event.kind, Kind::Bounce { permanent: true });
            assert_eq!(event.message, Some(("msg_0123456789abcdef0123456789abcdef".to_owned(), 2)));
            assert_eq!(event.recipients, ["recipient@example.com"]);
            assert_eq!(event.at, Timestamp::parse("2026-08-05T00:41:02.669Z").expect("a time"));
        }
    }

    #[test]
    fn the_other_kinds_are_told_apart() {
        assert_eq!(read(fixture!("send")).expect("readable").kind, Kind::Send);
        assert_eq!(read(fixture!("delivery")).expect("readable").kind, Kind::Delivery);
        let complaint = read(fixture!("complaint")).expect("readable");
        assert_eq!(complaint.kind, Kind::Complaint);
        assert_eq!(complaint.kind.suppresses(), Some("complaint"));
        assert_eq!(read(fixture!("reject")).expect("readable").kind, Kind::Reject);
        assert_eq!(read(fixture!("open")), Err(Read::Ignored));
    }

    #[test]
    fn what_is_not_an_event_is_unreadable_and_never_a_panic() {
        for body in ["", "[]", "null", "{}", r#"{"detail": {}}"#, r#"{"Message": "x"}"#, r#"{"eventType":"Bounce"}"#] {
            assert_eq!(read(body), Err(Read::Unreadable), "{body}");
        }
    }

    fn row(state: State, attempt: u32) -> MessageRow {
        use crate::access::PresentedKey;
        use crate::idempotency::IdempotencyKey;
        use crate::intents::IntentTypes;
        use crate::messages::{Asked, NewMessage};
        let body = json!({"channel": "telegram", "to": "42", "content": {"text": "Oi"}});
        let (caller, key) = (PresentedKey::of("local").id, IdempotencyKey::parse("k").expect("a key"));
        let asked = Asked { caller: &caller, key: Some(&key), body_hash: "h" };
        let types = IntentTypes::with_options("{}").expect("built in");
        let now = Timestamp::from_seconds(1_000_000);
        let new = NewMessage::read(body.as_object().expect("an object"), asked, &types, now).expect("fits");
        MessageRow { state, attempt, ..MessageRow::accepted(&new, now) }
    }

    #[test]
    fn proof_of_any_attempt_ends_the_message_as_sent_and_makes_no_other() {
        for state in [State::Queued, State::Unknown] {
            assert_eq!(sent(&row(state, 2), 2), Some(Learned::Sent), "{state:?}");
            assert_eq!(sent(&row(state, 2), 1), Some(Learned::Sent), "{state:?}, of an earlier one");
        }
        assert_eq!(sent(&row(State::Sending, 2), 2), Some(Learned::Sent));
        assert_eq!(sent(&row(State::Sending, 2), 1), Some(Learned::SentBefore));
        let told = MessageRow { sent_attempt: Some(1), ..row(State::Sending, 2) };
        assert_eq!(sent(&told, 1), None, "told before");
        assert_eq!(sent(&row(State::Sent, 1), 1), None);
        assert_eq!(sent(&row(State::Queued, 1), 2), None, "no such attempt");
    }

    #[test]
    fn an_attempt_that_was_rejected_is_not_proved_sent_by_an_older_event() {
        let resent = MessageRow { rejected_attempt: Some(1), ..row(State::Queued, 1) };
        assert_eq!(sent(&resent, 1), None);
    }

    #[test]
    fn a_rejection_takes_the_doubt_away() {
        let doubted = |state| MessageRow { doubt: Some(1), ..row(state, 2) };
        assert_eq!(rejected(&doubted(State::Queued), 1), Some(Learned::NoDoubt));
        assert_eq!(rejected(&doubted(State::Unknown), 1), Some(Learned::NotSent));
        assert_eq!(rejected(&row(State::Sent, 1), 1), Some(Learned::NotSent));
        assert_eq!(rejected(&row(State::Sent, 2), 1), None);
    }

    #[test]
    fn a_mail_of_somebody_else_has_no_message() {
        let mut event: Value = serde_json::from_str(fixture!("bounce")).expect("JSON");
        event["mail"]["tags"] = json!({"ses:configuration-set": ["x"]});
        assert_eq!(read(&event.to_string()).expect("readable").message, None);
    }
}
