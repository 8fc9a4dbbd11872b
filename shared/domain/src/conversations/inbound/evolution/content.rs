//! Reads the content of a WhatsApp message. A message has one field that is named after its kind,
//! beside fields without content.

use serde_json::Value;

use super::super::{Ignored, Media, MessageKind, text};

pub(super) struct Said {
    pub kind: MessageKind,
    pub text: Option<String>,
    pub media: Option<Media>,
}

/// Fields that wrap another message: a message that disappears, is shown once, has a caption, or
/// came from another of our devices.
const WRAPPERS: &[&str] = &[
    "ephemeralMessage",
    "viewOnceMessage",
    "viewOnceMessageV2",
    "viewOnceMessageV2Extension",
    "documentWithCaptionMessage",
    "deviceSentMessage",
    "lottieStickerMessage",
    "groupMentionedMessage",
    "botInvokeMessage",
    "associatedChildMessage",
];

/// Fields that are no content to answer. An album only announces its pictures, which are messages
/// of their own.
const NOT_SAID: &[(&str, Ignored)] = &[
    ("reactionMessage", Ignored::Reaction),
    ("encReactionMessage", Ignored::Reaction),
    ("editedMessage", Ignored::Edited),
    ("protocolMessage", Ignored::NotAMessage),
    ("pollUpdateMessage", Ignored::NotAMessage),
    ("pinInChatMessage", Ignored::NotAMessage),
    ("keepInChatMessage", Ignored::NotAMessage),
    ("albumMessage", Ignored::NotAMessage),
    ("call", Ignored::NotAMessage),
    ("callLogMesssage", Ignored::NotAMessage),
];

const SHOWN: &[(&str, MessageKind)] = &[
    ("imageMessage", MessageKind::Image),
    ("videoMessage", MessageKind::Video),
    ("ptvMessage", MessageKind::Video),
    ("audioMessage", MessageKind::Audio),
    ("documentMessage", MessageKind::Document),
    ("stickerMessage", MessageKind::Sticker),
    ("locationMessage", MessageKind::Location),
    ("liveLocationMessage", MessageKind::Location),
    ("contactMessage", MessageKind::Contact),
    ("contactsArrayMessage", MessageKind::Contact),
];

/// Where the text of a message is. For a choice from a list or from buttons, the text that was
/// shown comes before its id.
const WRITTEN: &[&str] = &[
    "/conversation",
    "/extendedTextMessage/text",
    "/buttonsResponseMessage/selectedDisplayText",
    "/buttonsResponseMessage/selectedButtonId",
    "/templateButtonReplyMessage/selectedDisplayText",
    "/templateButtonReplyMessage/selectedId",
    "/listResponseMessage/title",
    "/listResponseMessage/singleSelectReply/selectedRowId",
    "/interactiveResponseMessage/body/text",
];

/// A message that has only these fields has no content. A text that is not blank has been found
/// before this list is used.
const SAYING_NOTHING: &[&str] = &[
    "conversation",
    "extendedTextMessage",
    "messageContextInfo",
    "contextInfo",
    "senderKeyDistributionMessage",
    "base64",
    "mediaUrl",
    "speechToText",
];

pub(super) fn read(message: &Value) -> Result<Said, Ignored> {
    let inner = unwrapped(message);
    if let Some((field, why)) = NOT_SAID.iter().find(|(field, _)| !inner[field].is_null()) {
        // WhatsApp uses the same field for an edit and for many events that are not messages.
        return Err(if inner[field]["editedMessage"].is_null() { *why } else { Ignored::Edited });
    }
    if let Some((field, kind)) = SHOWN.iter().find(|(field, _)| inner[field].is_object()) {
        return Ok(shown(*kind, &inner[field], &message["mediaUrl"]));
    }
    if let Some(written) = WRITTEN.iter().find_map(|at| text(inner.pointer(at)?)) {
        return Ok(Said { kind: MessageKind::Text, text: Some(written), media: None });
    }
    match says_something(inner) {
        true => Ok(Said { kind: MessageKind::Other, text: None, media: None }),
        false => Err(Ignored::Empty),
    }
}

fn unwrapped(mut message: &Value) -> &Value {
    while let Some(inner) = WRAPPERS.iter().map(|field| &message[field]["message"]).find(|inner| inner.is_object()) {
        message = inner;
    }
    message
}

/// Reads media. `stored` is the URL of the file that Evolution decrypted; the file at WhatsApp's
/// own URL is encrypted. Instances of Meta's API use Meta's names of the fields.
fn shown(kind: MessageKind, content: &Value, stored: &Value) -> Said {
    let either = |one: &str, other: &str| text(&content[one]).or_else(|| text(&content[other]));
    let reference = text(stored).or_else(|| text(&content["url"]));
    let media = Media::of(either("mimetype", "mime_type"), either("fileName", "filename"), reference);
    Said { kind, text: text(&content["caption"]), media }
}

fn says_something(message: &Value) -> bool {
    let is_said = |(field, value): (&String, &Value)| !value.is_null() && !SAYING_NOTHING.contains(&field.as_str());
    message.as_object().is_some_and(|fields| fields.iter().any(is_said))
}
