//! Reads updates of the Telegram Bot API (<https://core.telegram.org/bots/api#update>). Only
//! messages of private chats matter. A message id is unique within its chat only. Update ids may
//! start again, so they cannot identify a message.

use serde_json::Value;

use super::{Ignored, Inbound, Media, MessageKind, Reading, Refusal, UnreadableWebhook, at_seconds, object, text};
use crate::channels::{Channel, normalize_to};

/// The field that determines the kind of a message. An animation also has `document`, and a venue
/// also has `location`.
const CONTENT: &[(&str, MessageKind)] = &[
    ("text", MessageKind::Text),
    ("animation", MessageKind::Video),
    ("photo", MessageKind::Image),
    ("video", MessageKind::Video),
    ("video_note", MessageKind::Video),
    ("audio", MessageKind::Audio),
    ("voice", MessageKind::Audio),
    ("document", MessageKind::Document),
    ("sticker", MessageKind::Sticker),
    ("location", MessageKind::Location),
    ("contact", MessageKind::Contact),
    ("paid_media", MessageKind::Other),
    ("poll", MessageKind::Other),
    ("checklist", MessageKind::Other),
    ("dice", MessageKind::Other),
    ("game", MessageKind::Other),
    ("story", MessageKind::Other),
];

const EVENTS: &[(&str, Ignored)] = &[
    ("edited_message", Ignored::Edited),
    ("edited_channel_post", Ignored::Edited),
    ("edited_business_message", Ignored::Edited),
    ("channel_post", Ignored::Broadcast),
    ("message_reaction", Ignored::Reaction),
    ("message_reaction_count", Ignored::Reaction),
];

pub fn read(body: &[u8]) -> Result<Reading, UnreadableWebhook> {
    let update = object(body)?;
    if update["update_id"].as_i64().is_none() {
        return Err(UnreadableWebhook::Missing("update_id"));
    }
    Reading::of(vec![match update.get("message") {
        Some(given) => message(given),
        None => Err(event(&update).into()),
    }])
}

fn event(update: &Value) -> Ignored {
    let known = EVENTS.iter().find(|(field, _)| update.get(field).is_some());
    known.map_or(Ignored::UnknownEvent, |(_, why)| *why)
}

fn message(given: &Value) -> Result<Inbound, Refusal> {
    let chat = &given["chat"];
    // A message that has not been sent yet has the id zero.
    let id = given["message_id"].as_i64().filter(|id| *id > 0).ok_or(Refusal::Missing("message.message_id"))?;
    let contact = chat["id"].as_i64().and_then(|id| normalize_to(Channel::Telegram, &id.to_string()).ok());
    let contact = contact.ok_or(Refusal::Missing("message.chat.id"))?;
    private(chat)?;
    // Two bots that answer each other would never stop.
    if given["from"]["is_bot"] == true {
        return Err(Ignored::NotAMessage.into());
    }
    let (kind, media) = content(given).ok_or(Ignored::NotAMessage)?;
    let said = text(&given["text"]).or_else(|| text(&given["caption"]));
    match (kind, &said) {
        (MessageKind::Text, None) => return Err(Ignored::Empty.into()),
        (MessageKind::Text, Some(said)) if is_command(given, said) => return Err(Ignored::Command.into()),
        _ => {}
    }
    Ok(Inbound {
        contact,
        message_id: id.to_string(),
        from_me: false,
        by_gateway: false,
        kind,
        text: said,
        media,
        name: name(&given["from"]).or_else(|| name(chat)),
        sent_at: given["date"].as_i64().and_then(at_seconds),
    })
}

fn private(chat: &Value) -> Result<(), Ignored> {
    match chat["type"].as_str() {
        Some("private") => Ok(()),
        Some("group" | "supergroup") => Err(Ignored::Group),
        Some("channel") => Err(Ignored::Broadcast),
        _ => Err(Ignored::NotAMessage),
    }
}

fn content(given: &Value) -> Option<(MessageKind, Option<Media>)> {
    let (field, kind) = CONTENT.iter().find(|(field, _)| !given[field].is_null())?;
    let file = match &given[field] {
        Value::Array(sizes) => largest(sizes),
        file => file,
    };
    Some((*kind, Media::of(text(&file["mime_type"]), text(&file["file_name"]), text(&file["file_id"]))))
}

/// Returns the largest size of a photo, which comes in several sizes.
fn largest(sizes: &[Value]) -> &Value {
    let pixels = |side: &Value| side.as_u64().unwrap_or_default();
    let area = |size: &&Value| pixels(&size["width"]).saturating_mul(pixels(&size["height"]));
    sizes.iter().max_by_key(area).unwrap_or(&Value::Null)
}

/// Returns whether a text is a command. Telegram marks commands; a text that looks like a command
/// is one even without the mark.
fn is_command(given: &Value, said: &str) -> bool {
    let Some(rest) = said.strip_prefix('/') else { return false };
    let is_mark = |entity: &Value| entity["type"] == "bot_command" && entity["offset"] == 0;
    let is_marked = given["entities"].as_array().is_some_and(|entities| entities.iter().any(is_mark));
    let word = rest.split_whitespace().next().unwrap_or_default();
    let is_shaped = rest.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'@'));
    is_marked || is_shaped
}

fn name(person: &Value) -> Option<String> {
    let names: Vec<_> = ["first_name", "last_name"].iter().filter_map(|field| text(&person[field])).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::time::Timestamp;

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../../tests/data/webhooks/telegram_", $name, ".json"))
        };
    }

    fn one(body: &[u8]) -> Inbound {
        let reading = read(body).expect("an update");
        assert_eq!((reading.messages.len(), reading.ignored.len()), (1, 0));
        reading.messages.into_iter().next().expect("one")
    }

    fn ignored(body: &[u8]) -> Vec<Ignored> {
        let reading = read(body).expect("an update");
        assert_eq!(reading.messages, []);
        reading.ignored
    }

    /// Returns a private message with these fields beside its ids.
    fn with(fields: &Value) -> Vec<u8> {
        let mut update: Value = serde_json::from_slice(fixture!("text")).expect("JSON");
        let message = update["message"].as_object_mut().expect("a message");
        message.remove("text");
        for (field, value) in fields.as_object().expect("fields") {
            message.insert(field.clone(), value.clone());
        }
        update.to_string().into_bytes()
    }

    fn media(mime_type: Option<&str>, file_name: Option<&str>, reference: &str) -> Option<Media> {
        Media::of(mime_type.map(str::to_owned), file_name.map(str::to_owned), Some(reference.to_owned()))
    }

    #[test]
    fn a_text_is_read_with_its_contact_and_its_time() {
        let expected = Inbound {
            contact: "7041234567".to_owned(),
            message_id: "1841".to_owned(),
            from_me: false,
            by_gateway: false,
            kind: MessageKind::Text,
            text: Some("Oi, ainda tem vaga?".to_owned()),
            media: None,
            name: Some("Ana Souza".to_owned()),
            sent_at: Some(Timestamp::from_seconds(1_760_000_000)),
        };
        assert_eq!(one(fixture!("text")), expected);
    }

    #[test]
    fn a_photo_is_read_in_its_largest_size_with_its_caption_as_text() {
        let photo = one(fixture!("photo"));
        assert_eq!((photo.kind, photo.text.as_deref()), (MessageKind::Image, Some("Segue o comprovante")));
        assert_eq!(photo.media, media(None, None, "AgACAgEAAxkBAAIHM-y"));
    }

    #[test]
    fn a_document_and_a_voice_message_keep_their_type_and_file_name() {
        let document = one(fixture!("document"));
        assert_eq!((document.kind, document.text), (MessageKind::Document, None));
        assert_eq!(document.media, media(Some("application/pdf"), Some("contrato.pdf"), "BQACAgEAAxkBAAIHNG"));
        let voice = one(fixture!("voice"));
        assert_eq!(
            (voice.kind, voice.media),
            (MessageKind::Audio, media(Some("audio/ogg"), None, "AwACAgEAAxkBAAIHNW"))
        );
    }

    #[test]
    fn every_kind_of_message_is_recognized_by_its_field() {
        let file = json!({"file_id": "f"});
        for (fields, kind, has_media) in [
            (json!({"video": file, "caption": "v"}), MessageKind::Video, true),
            (json!({"animation": file, "document": file}), MessageKind::Video, true),
            (json!({"video_note": file}), MessageKind::Video, true),
            (json!({"audio": file}), MessageKind::Audio, true),
            (json!({"sticker": file}), MessageKind::Sticker, true),
            (json!({"location": {"latitude": -23.5, "longitude": -46.6}, "venue": {}}), MessageKind::Location, false),
            (json!({"contact": {"phone_number": "5511999999999", "first_name": "Bia"}}), MessageKind::Contact, false),
            (json!({"poll": {"id": "1", "question": "?"}}), MessageKind::Other, false),
            (json!({"dice": {"emoji": "🎲", "value": 6}}), MessageKind::Other, false),
            (json!({"photo": []}), MessageKind::Image, false),
        ] {
            let message = one(&with(&fields));
            assert_eq!((message.kind, message.media.is_some()), (kind, has_media), "{fields}");
        }
    }

    #[test]
    fn a_command_is_ignored_and_a_path_is_not_a_command() {
        assert_eq!(ignored(fixture!("start")), [Ignored::Command]);
        let mark = json!([{"type": "bot_command", "offset": 0, "length": 3}]);
        for text in ["/start", "/start abc", "/start@loja_bot", "/a_1\nb"] {
            assert_eq!(ignored(&with(&json!({"text": text}))), [Ignored::Command], "{text}");
        }
        assert_eq!(ignored(&with(&json!({"text": "/24", "entities": mark}))), [Ignored::Command]);
        let marks = json!([{"type": "bot_command", "offset": 0}, {"type": "url", "offset": 4}]);
        assert_eq!(ignored(&with(&json!({"text": "/24 a.br", "entities": marks}))), [Ignored::Command]);
        for (kind, offset) in [("bot_command", 4), ("url", 0)] {
            let mark = json!([{"type": kind, "offset": offset}]);
            let message = one(&with(&json!({"text": "/24 /start", "entities": mark})));
            assert_eq!(message.kind, MessageKind::Text, "{kind} at {offset}");
        }
        for text in ["/", "//", "/24", "/home/ana não abre", "/ start", " /start", "1/2", "/é"] {
            assert_eq!(one(&with(&json!({"text": text}))).text.as_deref(), Some(text));
        }
        let mark = json!([{"type": "bot_command", "offset": 4, "length": 6}]);
        assert_eq!(one(&with(&json!({"text": "usa /start", "entities": mark}))).kind, MessageKind::Text);
        assert_eq!(one(&with(&json!({"photo": [], "caption": "/start"}))).kind, MessageKind::Image);
    }

    #[test]
    fn updates_that_are_not_private_messages_are_ignored() {
        assert_eq!(ignored(fixture!("supergroup")), [Ignored::Group]);
        assert_eq!(ignored(fixture!("channel_post")), [Ignored::Broadcast]);
        assert_eq!(ignored(fixture!("edited_message")), [Ignored::Edited]);
        assert_eq!(ignored(fixture!("callback_query")), [Ignored::UnknownEvent]);
        assert_eq!(ignored(fixture!("my_chat_member")), [Ignored::UnknownEvent]);
        assert_eq!(ignored(fixture!("message_reaction")), [Ignored::Reaction]);
        assert_eq!(ignored(fixture!("pinned")), [Ignored::NotAMessage]);
        assert_eq!(ignored(br#"{"update_id": 1}"#), [Ignored::UnknownEvent]);
        assert_eq!(ignored(&with(&json!({"text": " \0"}))), [Ignored::Empty]);
        assert_eq!(ignored(&with(&json!({"text": "a", "from": {"id": 1, "is_bot": true}}))), [Ignored::NotAMessage]);
        for (kind, why) in
            [("group", Ignored::Group), ("channel", Ignored::Broadcast), ("sender", Ignored::NotAMessage)]
        {
            assert_eq!(ignored(&with(&json!({"text": "a", "chat": {"id": 5, "type": kind}}))), [why]);
        }
    }

    #[test]
    fn an_update_without_an_id_is_refused_with_the_name_of_the_field() {
        let chat = json!({"id": 5, "type": "private"});
        for (body, field) in [
            (json!({}), "update_id"),
            (json!({"update_id": "1", "message": {}}), "update_id"),
            (json!({"update_id": 1, "message": null}), "message.message_id"),
            (json!({"update_id": 1, "message": {"chat": chat}}), "message.message_id"),
            (json!({"update_id": 1, "message": {"message_id": 0, "chat": chat}}), "message.message_id"),
            (json!({"update_id": 1, "message": {"message_id": 1.5, "chat": chat}}), "message.message_id"),
            (json!({"update_id": 1, "message": {"message_id": 2}}), "message.chat.id"),
            (json!({"update_id": 1, "message": {"message_id": 2, "chat": {"id": 0}}}), "message.chat.id"),
            (json!({"update_id": 1, "message": {"message_id": 2, "chat": {"id": "5"}}}), "message.chat.id"),
        ] {
            assert_eq!(read(body.to_string().as_bytes()), Err(UnreadableWebhook::Missing(field)), "{body}");
        }
    }

    #[test]
    fn a_missing_name_and_a_missing_time_are_none() {
        let anonymous = json!({"text": "a", "from": null, "chat": {"id": 5, "type": "private"}, "date": -1});
        let message = one(&with(&anonymous));
        assert_eq!((message.name, message.sent_at), (None, None));
        let chat = json!({"id": 5, "type": "private", "first_name": "Bia", "last_name": " "});
        let message = one(&with(&json!({"text": "a", "from": null, "chat": chat, "date": i64::MAX})));
        assert_eq!((message.name.as_deref(), message.sent_at), (Some("Bia"), None));
    }
}
