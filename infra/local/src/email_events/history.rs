//! The events of an email, in the format of SES's event publishing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::catcher::ses::{address, recipients};
use crate::functions::random_uuid;
use crate::template::{ACCOUNT, REGION};

const SIMULATOR: &str = "@simulator.amazonses.com";
const MTA: &str = "a8-21.smtp-out.amazonses.com";

pub(super) struct Event {
    /// The type, as in `MatchingEventTypes` and `eventType`.
    pub(super) kind: &'static str,
    pub(super) detail_type: &'static str,
    pub(super) detail: Value,
}

/// An email that SES accepted.
pub(super) struct Email {
    to: Vec<String>,
    /// The time with milliseconds, in the format of SES.
    at: String,
    /// The part that all events of the email contain.
    mail: Value,
}

impl Email {
    pub(super) fn of(request: &Value, message_id: &str, set: &str, at_ms: i64) -> Self {
        let (to, at) = (recipients(request), timestamp(at_ms));
        let from = request["FromEmailAddress"].as_str().unwrap_or_default();
        let simple = &request["Content"]["Simple"];
        let visible = &request["Destination"]["ToAddresses"];
        let mut headers = vec![json!({"name": "From", "value": from})];
        if let Some(subject) = simple["Subject"]["Data"].as_str() {
            headers.push(json!({"name": "Subject", "value": subject}));
        }
        for header in simple["Headers"].as_array().into_iter().flatten() {
            headers.push(json!({"name": header["Name"], "value": header["Value"]}));
        }
        let mail = json!({
            "timestamp": at,
            "source": from,
            "sourceArn": format!("arn:aws:ses:{REGION}:{ACCOUNT}:identity/{}", address(from)),
            "sendingAccountId": ACCOUNT,
            "messageId": message_id,
            "destination": to,
            "headersTruncated": false,
            "headers": headers,
            "commonHeaders": {
                "from": [from], "to": visible, "messageId": message_id, "subject": simple["Subject"]["Data"],
            },
            "tags": tags(request, from, set),
        });
        Self { to, at, mail }
    }

    fn event(&self, kind: &'static str, detail_type: &'static str, name: &str, what: Value) -> Event {
        Event { kind, detail_type, detail: json!({"eventType": kind, "mail": self.mail, name: what}) }
    }

    /// Returns the recipients with a matching fate, or `None` if there are none.
    fn those(&self, fate: impl Fn(Fate) -> bool) -> Option<Vec<&str>> {
        let those: Vec<_> = self.to.iter().map(String::as_str).filter(|to| fate(Fate::of(to))).collect();
        (!those.is_empty()).then_some(those)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Delivered,
    /// Delivered, and then reported as spam.
    Complaint,
    Bounce,
    /// SES does not send: the address is on its suppression list because of bounces of other
    /// senders.
    Listed,
}

impl Fate {
    fn of(to: &str) -> Self {
        let to = to.to_lowercase();
        let Some(mailbox) = to.strip_suffix(SIMULATOR) else { return Self::Delivered };
        match mailbox.split('+').next() {
            Some("bounce") => Self::Bounce,
            Some("complaint") => Self::Complaint,
            Some("suppressionlist") => Self::Listed,
            _ => Self::Delivered,
        }
    }
}

/// Returns the events of an email in the order in which they happen. Recipients with the same fate
/// share one event.
pub(super) fn history(email: &Email) -> Vec<Event> {
    let mut events = vec![email.event("Send", "Email Sent", "send", json!({}))];
    if let Some(recipients) = email.those(|fate| matches!(fate, Fate::Delivered | Fate::Complaint)) {
        let delivery = json!({
            "timestamp": email.at, "processingTimeMillis": 500, "recipients": recipients,
            "smtpResponse": "250 2.0.0 OK", "reportingMTA": MTA,
        });
        events.push(email.event("Delivery", "Email Delivered", "delivery", delivery));
    }
    if let Some(recipients) = email.those(|fate| fate == Fate::Bounce) {
        let code = "smtp; 550 5.1.1 user unknown";
        events.push(bounce(email, "General", code, &recipients));
    }
    if let Some(recipients) = email.those(|fate| fate == Fate::Listed) {
        let code = "Amazon SES did not send the message to this address because it is on the suppression list";
        events.push(bounce(email, "Suppressed", code, &recipients));
    }
    if let Some(recipients) = email.those(|fate| fate == Fate::Complaint) {
        let complaint = json!({
            "complainedRecipients": recipients.iter().map(|to| json!({"emailAddress": to})).collect::<Vec<_>>(),
            "timestamp": email.at, "feedbackId": feedback_id(), "complaintSubType": null,
            "userAgent": "Amazon SES Mailbox Simulator", "complaintFeedbackType": "abuse", "arrivalDate": email.at,
        });
        events.push(email.event("Complaint", "Email Complaint Received", "complaint", complaint));
    }
    events
}

fn bounce(email: &Email, sub_type: &str, code: &str, recipients: &[&str]) -> Event {
    let one = |to: &&str| json!({"emailAddress": to, "action": "failed", "status": "5.1.1", "diagnosticCode": code});
    let bounce = json!({
        "bounceType": "Permanent", "bounceSubType": sub_type,
        "bouncedRecipients": recipients.iter().map(one).collect::<Vec<_>>(),
        "timestamp": email.at, "feedbackId": feedback_id(), "reportingMTA": format!("dsn; {MTA}"),
    });
    email.event("Bounce", "Email Bounced", "bounce", bounce)
}

/// Returns the tags of the request and those that SES adds.
fn tags(request: &Value, from: &str, set: &str) -> BTreeMap<String, Vec<String>> {
    let mut tags = BTreeMap::<String, Vec<String>>::new();
    for tag in request["EmailTags"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (tag["Name"].as_str(), tag["Value"].as_str()) {
            tags.entry(name.to_owned()).or_default().push(value.to_owned());
        }
    }
    let domain = address(from).rsplit('@').next().unwrap_or_default();
    for (name, value) in [("configuration-set", set), ("from-domain", domain), ("operation", "SendEmail")] {
        tags.insert(format!("ses:{name}"), vec![value.to_owned()]);
    }
    tags
}

fn feedback_id() -> String {
    format!("0100-{}-000000", random_uuid())
}

fn timestamp(at_ms: i64) -> String {
    let whole = umavez_domain::time::Timestamp::from_seconds(at_ms.div_euclid(1_000)).to_string();
    whole.replace('Z', &format!(".{:03}Z", at_ms.rem_euclid(1_000)))
}
