//! Reads webhooks of the Evolution API (<https://doc.evolution-api.com>, version 2; the shape of
//! the bodies is taken from the source at 3454bec7). Two events matter. `messages.upsert` has a
//! contact's messages and those that a person wrote from the same number. `send.message` has the
//! messages that were sent through the API.

mod content;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::{Ignored, Inbound, Reading, Refusal, UnreadableWebhook, at_seconds, object, text};
use crate::channels::{Channel, normalize_to};

pub fn read(body: &[u8]) -> Result<Reading, UnreadableWebhook> {
    let body = object(body)?;
    let event = body["event"].as_str().ok_or(UnreadableWebhook::Missing("event"))?;
    // Evolution writes `messages.upsert` in webhooks, and `MESSAGES_UPSERT` in its settings and
    // queues.
    let ignored = match event.to_ascii_lowercase().replace(['_', '-'], ".").as_str() {
        "messages.upsert" => return messages(&body, false),
        "send.message" => return messages(&body, true),
        "messages.edited" | "send.message.update" => Ignored::Edited,
        "messages.update" | "messages.delete" => Ignored::StatusUpdate,
        _ => Ignored::UnknownEvent,
    };
    Reading::of(vec![Err(ignored.into())])
}

fn messages(body: &Value, is_sent: bool) -> Result<Reading, UnreadableWebhook> {
    let entries = match &body["data"] {
        Value::Array(several) => several.as_slice(),
        Value::Object(fields) => match fields.get("messages") {
            Some(Value::Array(several)) if !fields.contains_key("key") => several,
            _ => std::slice::from_ref(&body["data"]),
        },
        _ => return Err(UnreadableWebhook::Missing("data")),
    };
    // The instance's own number.
    let own = match chat(&body["sender"]) {
        Some(Chat::Phone(number)) => Some(number),
        _ => None,
    };
    Reading::of(entries.iter().map(|entry| message(entry, is_sent, own.as_deref())).collect())
}

fn message(entry: &Value, is_sent: bool, own: Option<&str>) -> Result<Inbound, Refusal> {
    let key = &entry["key"];
    let from_me = is_sent || key["fromMe"] == true || key["fromMe"] == "true";
    let contact = contact(key, own)?;
    let message_id = text(&key["id"]).ok_or(Refusal::Missing("data.key.id"))?;
    let said = content::read(&entry["message"])?;
    Ok(Inbound {
        contact,
        message_id,
        from_me,
        by_gateway: is_sent,
        kind: said.kind,
        text: said.text,
        media: said.media,
        // In our own messages this is our own name.
        name: text(&entry["pushName"]).filter(|_| !from_me),
        sent_at: seconds(&entry["messageTimestamp"]).and_then(at_seconds),
    })
}

/// Returns the digits of the phone number, from any field of the key that has it, so that a contact
/// has one address however WhatsApp addresses it. If there is no number, returns the id (LID) that
/// WhatsApp made up for the contact.
fn contact(key: &Value, own: Option<&str>) -> Result<String, Refusal> {
    let made_up = match chat(&key["remoteJid"]).ok_or(Refusal::Missing("data.key.remoteJid"))? {
        Chat::Phone(number) => return Ok(number),
        Chat::Lid(id) => id,
        Chat::None(why) => return Err(why.into()),
    };
    let beside = ["remoteJidAlt", "senderPn"].iter().find_map(|field| match chat(&key[field]) {
        // In a message that we sent, the sender is our own number, not the recipient.
        Some(Chat::Phone(number)) if Some(number.as_str()) != own => Some(number),
        _ => None,
    });
    Ok(beside.unwrap_or(made_up))
}

enum Chat {
    Phone(String),
    Lid(String),
    None(Ignored),
}

/// Returns what a JID such as `5511999999999:12@s.whatsapp.net` addresses. The device after the
/// colon is ignored. `None` if the text is not a JID.
fn chat(jid: &Value) -> Option<Chat> {
    const PERSON: &str = "s.whatsapp.net";
    let jid = jid.as_str()?.trim().to_ascii_lowercase();
    let (user, server) = jid.split_once('@').unwrap_or((&jid, PERSON));
    let user = user.split([':', '_']).next().unwrap_or_default();
    match server {
        // WhatsApp's own announcements.
        PERSON | "c.us" if user == "0" => Some(Chat::None(Ignored::Broadcast)),
        PERSON | "c.us" | "hosted" => normalize_to(Channel::Whatsapp, user).ok().map(Chat::Phone),
        "lid" | "hosted.lid" => is_digits(user).then(|| Chat::Lid(format!("{user}@lid"))),
        "g.us" => Some(Chat::None(Ignored::Group)),
        "broadcast" | "newsletter" => Some(Chat::None(Ignored::Broadcast)),
        _ => Some(Chat::None(Ignored::NotAMessage)),
    }
}

fn is_digits(user: &str) -> bool {
    !user.is_empty() && user.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads a number, its text, or the two halves in which JavaScript keeps a 64-bit number.
fn seconds(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds as i64)),
        Value::String(digits) => digits.trim().parse().ok(),
        long => {
            let (high, low) = (long["high"].as_i64()?, long["low"].as_i64()?);
            Some((high << 32) | (low & 0xffff_ffff))
        }
    }
}
