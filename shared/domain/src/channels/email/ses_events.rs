//! The events that SES publishes about a mail after it accepted the mail: sent, delivered, bounced,
//! complained about, rejected.
//!
//! An event arrives without an envelope, or in the envelope of SNS or of EventBridge. AWS may
//! deliver an event more than once and in any order. So each event sets a mark only once, and what
//! it proves about an attempt does not depend on earlier events.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::channels::email::ses::{ATTEMPT_TAG, MESSAGE_TAG};
use crate::channels::{Channel, normalize_to};
use crate::suppression::reason;
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send,
    Delivery,
    /// `permanent`: the mailbox does not exist and will not exist.
    Bounce {
        permanent: bool,
    },
    Complaint,
    /// SES accepted the mail and then refused to send it.
    Reject,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SesEvent {
    pub kind: Kind,
    pub at: Timestamp,
    /// The id that SES gave the mail.
    pub provider_id: String,
    /// The message and the attempt that the event is about. `None` for a mail that this system did
    /// not send.
    pub message: Option<(String, u32)>,
    /// The addresses that the event is about, in normal form.
    pub recipients: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoEvent {
    /// The kind of event changes nothing: opened, clicked, delayed.
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

pub fn read(body: &str) -> Result<SesEvent, NoEvent> {
    let value: Value = serde_json::from_str(body).map_err(|_| NoEvent::Unreadable)?;
    let event: Event = serde_json::from_value(unwrapped(value)?).map_err(|_| NoEvent::Unreadable)?;
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
        ("Bounce" | "Complaint", ..) => return Err(NoEvent::Unreadable),
        _ => return Err(NoEvent::Ignored),
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

/// Removes the envelope of an event.
fn unwrapped(mut value: Value) -> Result<Value, NoEvent> {
    if value["detail"].is_object() {
        return Ok(value["detail"].take());
    }
    match value["Message"].as_str() {
        Some(text) => serde_json::from_str(text).map_err(|_| NoEvent::Unreadable),
        None => Ok(value),
    }
}

/// Returns `a@b` for `Name <a@b>`.
fn address(mailbox: &str) -> &str {
    mailbox.strip_suffix('>').and_then(|text| text.rsplit_once('<')).map_or(mailbox, |(_, address)| address)
}

impl Kind {
    /// Returns whether the event proves that SES sent the mail.
    pub fn proves_sent(self) -> bool {
        self != Self::Reject
    }

    /// Returns the reason to suppress the address. `None` if the event does not suppress it.
    pub fn suppresses(self) -> Option<&'static str> {
        match self {
            Self::Bounce { permanent: true } => Some(reason::HARD_BOUNCE),
            Self::Complaint => Some(reason::COMPLAINT),
            _ => None,
        }
    }
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
            assert_eq!(event.kind.suppresses(), Some("hard_bounce"));
            assert_eq!(event.message, Some(("msg_0123456789abcdef0123456789abcdef".to_owned(), 2)));
            assert_eq!(event.recipients, ["recipient@example.com"]);
            assert_eq!(event.at, Timestamp::parse("2026-08-05T00:41:02.669Z").expect("a time"));
        }
    }

    #[test]
    fn every_other_kind_of_event_is_recognized() {
        assert_eq!(read(fixture!("send")).expect("readable").kind, Kind::Send);
        assert_eq!(read(fixture!("delivery")).expect("readable").kind, Kind::Delivery);
        let complaint = read(fixture!("complaint")).expect("readable");
        assert_eq!(complaint.kind, Kind::Complaint);
        assert_eq!(complaint.kind.suppresses(), Some("complaint"));
        assert_eq!(read(fixture!("reject")).expect("readable").kind, Kind::Reject);
        assert_eq!(read(fixture!("open")), Err(NoEvent::Ignored));
    }

    #[test]
    fn a_body_that_is_not_an_event_is_unreadable_and_does_not_panic() {
        for body in ["", "[]", "null", "{}", r#"{"detail": {}}"#, r#"{"Message": "x"}"#, r#"{"eventType":"Bounce"}"#] {
            assert_eq!(read(body), Err(NoEvent::Unreadable), "{body}");
        }
    }

    #[test]
    fn a_bounce_or_complaint_without_its_details_is_unreadable() {
        for (body, details) in [(fixture!("bounce"), "bounce"), (fixture!("complaint"), "complaint")] {
            let mut event: Value = serde_json::from_str(body).expect("JSON");
            event[details].take();
            assert_eq!(read(&event.to_string()), Err(NoEvent::Unreadable), "{details}");
        }
    }

    #[test]
    fn a_bounce_that_is_not_permanent_does_not_suppress_the_address() {
        let mut event: Value = serde_json::from_str(fixture!("bounce")).expect("JSON");
        event["bounce"]["bounceType"] = json!("Transient");
        let kind = read(&event.to_string()).expect("readable").kind;
        assert_eq!((kind, kind.suppresses()), (Kind::Bounce { permanent: false }, None));
    }

    #[test]
    fn an_event_for_an_email_that_umavez_did_not_send_has_no_message_id() {
        let mut event: Value = serde_json::from_str(fixture!("bounce")).expect("JSON");
        event["mail"]["tags"] = json!({"ses:configuration-set": ["x"]});
        assert_eq!(read(&event.to_string()).expect("readable").message, None);
    }
}
