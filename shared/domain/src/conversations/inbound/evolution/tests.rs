use serde_json::json;

use super::super::{Media, MessageKind};
use super::*;
use crate::time::Timestamp;

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../../tests/data/webhooks/evolution_", $name, ".json"))
    };
}

fn one(body: &[u8]) -> Inbound {
    let reading = read(body).expect("a webhook");
    assert_eq!((reading.messages.len(), &reading.ignored[..]), (1, &[][..]));
    reading.messages.into_iter().next().expect("one")
}

fn ignored(body: &[u8]) -> Vec<Ignored> {
    let reading = read(body).expect("a webhook");
    assert_eq!(reading.messages, []);
    reading.ignored
}

/// Returns the webhook of a text message with `value` at this path; `null` means no value.
fn with(path: &str, value: Value) -> Vec<u8> {
    let mut body: Value = serde_json::from_slice(fixture!("text")).expect("JSON");
    let (parent, field) = path.rsplit_once('/').expect("a path");
    body.pointer_mut(parent).expect("a parent")[field] = value;
    body.to_string().into_bytes()
}

fn saying(message: Value) -> Vec<u8> {
    with("/data/message", message)
}

fn from(key: Value) -> Vec<u8> {
    with("/data/key", key)
}

fn media(mime_type: &str, file_name: Option<&str>, reference: Option<&str>) -> Option<Media> {
    Media::of(Some(mime_type.to_owned()), file_name.map(str::to_owned), reference.map(str::to_owned))
}

#[test]
fn a_text_is_read_with_its_contact_and_its_time() {
    let expected = Inbound {
        contact: "5511987654321".to_owned(),
        message_id: "3A5F0B7C1D2E3F405162".to_owned(),
        from_me: false,
        by_gateway: false,
        kind: MessageKind::Text,
        text: Some("Oi, ainda tem vaga?".to_owned()),
        media: None,
        name: Some("Ana Souza".to_owned()),
        sent_at: Some(Timestamp::from_seconds(1_760_000_000)),
    };
    assert_eq!(one(fixture!("text")), expected);
    assert_eq!(one(fixture!("extended_text")).text.as_deref(), Some("Veja https://example.com"));
}

#[test]
fn media_is_read_with_its_caption_and_its_url() {
    let image = one(fixture!("image"));
    let stored = "https://s3.example.com/evolution/loja/1760000000_3A5F.jpeg?X-Amz-Signature=ab";
    assert_eq!((image.kind, image.text.as_deref()), (MessageKind::Image, Some("Segue o comprovante")));
    assert_eq!(image.media, media("image/jpeg", None, Some(stored)));
    let audio = one(fixture!("audio"));
    let sent = "https://mmg.whatsapp.net/v/t62.7117-24/2.enc";
    assert_eq!((audio.kind, audio.text), (MessageKind::Audio, None));
    assert_eq!(audio.media, media("audio/ogg; codecs=opus", None, Some(sent)));
    let meta = one(fixture!("meta_image"));
    assert_eq!((meta.kind, meta.text.as_deref()), (MessageKind::Image, Some("Segue")));
    assert_eq!(meta.media, media("image/jpeg", None, None));
}

#[test]
fn a_wrapped_message_is_unwrapped() {
    let document = one(fixture!("document_with_caption"));
    assert_eq!((document.kind, document.text.as_deref()), (MessageKind::Document, Some("Assinado")));
    let sent = "https://mmg.whatsapp.net/v/t62.7119-24/1.enc";
    assert_eq!(document.media, media("application/pdf", Some("contrato.pdf"), Some(sent)));
    let once = one(fixture!("view_once"));
    assert_eq!((once.kind, once.text), (MessageKind::Image, None));
    let vanishing = json!({"ephemeralMessage": {"message": {"extendedTextMessage": {"text": "Oi"}}}});
    assert_eq!(one(&saying(vanishing)).text.as_deref(), Some("Oi"));
    let reaction = json!({"ephemeralMessage": {"message": {"reactionMessage": {"text": "👍"}}}});
    assert_eq!(ignored(&saying(reaction)), [Ignored::Reaction]);
    assert_eq!(ignored(&saying(json!({"ephemeralMessage": {"message": {}}}))), [Ignored::Empty]);
}

#[test]
fn every_kind_of_message_is_recognized_by_its_field() {
    for (field, kind) in [
        ("videoMessage", MessageKind::Video),
        ("ptvMessage", MessageKind::Video),
        ("documentMessage", MessageKind::Document),
        ("stickerMessage", MessageKind::Sticker),
        ("locationMessage", MessageKind::Location),
        ("liveLocationMessage", MessageKind::Location),
        ("contactMessage", MessageKind::Contact),
        ("contactsArrayMessage", MessageKind::Contact),
        ("pollCreationMessageV3", MessageKind::Other),
        ("viewOnceMessageV2", MessageKind::Other),
        ("somethingNewMessage", MessageKind::Other),
    ] {
        let message = one(&saying(json!({"messageContextInfo": {}, "conversation": "", field: {}})));
        assert_eq!((message.kind, message.text, message.media), (kind, None, None), "{field}");
    }
}

#[test]
fn a_chosen_button_or_list_item_is_read_as_text() {
    for (message, expected) in [
        (json!({"buttonsResponseMessage": {"selectedButtonId": "b1", "selectedDisplayText": "Quero"}}), "Quero"),
        (json!({"buttonsResponseMessage": {"selectedButtonId": "b1", "selectedDisplayText": ""}}), "b1"),
        (json!({"templateButtonReplyMessage": {"selectedId": "t1", "selectedDisplayText": "Sim"}}), "Sim"),
        (json!({"templateButtonReplyMessage": {"selectedId": "t1"}}), "t1"),
        (json!({"listResponseMessage": {"title": "P", "singleSelectReply": {"selectedRowId": "r1"}}}), "P"),
        (json!({"listResponseMessage": {"singleSelectReply": {"selectedRowId": "r1"}}}), "r1"),
        (json!({"interactiveResponseMessage": {"body": {"text": "Ok"}}}), "Ok"),
    ] {
        let read = one(&saying(message));
        assert_eq!((read.kind, read.text.as_deref()), (MessageKind::Text, Some(expected)));
    }
}

#[test]
fn events_that_are_not_messages_are_ignored() {
    assert_eq!(ignored(fixture!("reaction")), [Ignored::Reaction]);
    assert_eq!(ignored(fixture!("protocol_edit")), [Ignored::Edited]);
    for (message, why) in [
        (json!({"editedMessage": {"message": {"protocolMessage": {}}}}), Ignored::Edited),
        (json!({"protocolMessage": {"type": 0}}), Ignored::NotAMessage),
        (json!({"pollUpdateMessage": {"vote": {}}}), Ignored::NotAMessage),
        (json!({"albumMessage": {"expectedImageCount": 3}}), Ignored::NotAMessage),
    ] {
        assert_eq!(ignored(&saying(message)), [why]);
    }
}

#[test]
fn a_message_without_content_is_ignored_as_empty() {
    assert_eq!(ignored(fixture!("empty")), [Ignored::Empty]);
    for message in [
        json!(null),
        json!({}),
        json!([]),
        json!("Oi"),
        json!({"conversation": null}),
        json!({"conversation": " \0\n"}),
        json!({"extendedTextMessage": {"text": ""}}),
        json!({"messageContextInfo": {}, "senderKeyDistributionMessage": {"groupId": "g"}}),
    ] {
        assert_eq!(ignored(&saying(message.clone())), [Ignored::Empty], "{message}");
    }
    let absent = json!({"event": "messages.upsert", "data": {"key": {"id": "A", "remoteJid": "5511987654321"}}});
    assert_eq!(ignored(absent.to_string().as_bytes()), [Ignored::Empty]);
}

#[test]
fn our_messages_are_distinguished_from_those_of_the_contact() {
    let by_hand = one(fixture!("from_me"));
    assert_eq!((by_hand.from_me, by_hand.contact.as_str(), by_hand.name), (true, "5511987654321", None));
    let sent = one(fixture!("send_message"));
    assert_eq!((sent.from_me, sent.message_id.as_str()), (true, "3EB0C5D6E7F8091A2B3C"));
    let unsaid = with("/event", json!("send.message"));
    assert!(one(&unsaid).from_me, "the event name decides, not the key");
}

#[test]
fn a_contact_is_identified_by_its_phone_number_in_any_field() {
    for body in [&fixture!("lid_alt")[..], fixture!("lid_sender_pn")] {
        assert_eq!(one(body).contact, "5511987654321");
    }
    for (key, contact) in [
        (json!({"remoteJid": "5511987654321:12@s.whatsapp.net"}), "5511987654321"),
        (json!({"remoteJid": "5511987654321@S.WhatsApp.net"}), "5511987654321"),
        (json!({"remoteJid": "5511987654321_1:2@c.us"}), "5511987654321"),
        (json!({"remoteJid": "+5511987654321"}), "5511987654321"),
        (json!({"remoteJid": "5511987654321@s.whatsapp.net", "remoteJidAlt": "9@lid"}), "5511987654321"),
        (
            json!({"remoteJid": "9:3@LID", "remoteJidAlt": null, "senderPn": "5511987654321:7@s.whatsapp.net"}),
            "5511987654321",
        ),
        (json!({"remoteJid": "9:3@LID", "remoteJidAlt": "8@lid"}), "9@lid"),
        (json!({"remoteJid": "9@lid", "remoteJidAlt": "x@g.us", "senderPn": "12@s.whatsapp.net"}), "9@lid"),
    ] {
        let mut key = key;
        key["id"] = json!("A");
        assert_eq!(one(&from(key.clone())).contact, contact, "{key}");
    }
    assert_eq!(one(fixture!("lid_only")).contact, "103899771998284@lid");
}

#[test]
fn our_own_number_is_not_the_contact_of_a_message_that_we_sent() {
    let key = |own| json!({"id": "A", "fromMe": true, "remoteJid": "9@lid", "senderPn": own});
    assert_eq!(one(&from(key("5511900001111@s.whatsapp.net"))).contact, "9@lid");
    assert_eq!(one(&from(key("5511987654321@s.whatsapp.net"))).contact, "5511987654321");
}

#[test]
fn messages_outside_of_private_chats_are_ignored() {
    assert_eq!(ignored(fixture!("group")), [Ignored::Group]);
    assert_eq!(ignored(fixture!("status_broadcast")), [Ignored::Broadcast]);
    for (jid, why) in [
        ("5511987654321-1600000000@g.us", Ignored::Group),
        ("120363150000000001@newsletter", Ignored::Broadcast),
        ("1600000000@broadcast", Ignored::Broadcast),
        ("0@s.whatsapp.net", Ignored::Broadcast),
        ("867051314767696@bot", Ignored::NotAMessage),
    ] {
        assert_eq!(ignored(&with("/data/key/remoteJid", json!(jid))), [why], "{jid}");
    }
}

#[test]
fn an_event_is_recognized_in_each_spelling_and_other_events_are_ignored() {
    for event in ["messages.upsert", "MESSAGES_UPSERT", "messages-upsert", "Messages_Upsert"] {
        assert_eq!(one(&with("/event", json!(event))).kind, MessageKind::Text, "{event}");
    }
    assert_eq!(ignored(fixture!("messages_update")), [Ignored::StatusUpdate]);
    assert_eq!(ignored(fixture!("messages_edited")), [Ignored::Edited]);
    assert_eq!(ignored(fixture!("connection_update")), [Ignored::UnknownEvent]);
    for (event, why) in [
        ("MESSAGES_UPDATE", Ignored::StatusUpdate),
        ("messages.delete", Ignored::StatusUpdate),
        ("SEND_MESSAGE_UPDATE", Ignored::Edited),
        ("messages.set", Ignored::UnknownEvent),
        ("", Ignored::UnknownEvent),
    ] {
        assert_eq!(ignored(&with("/event", json!(event))), [why], "{event}");
    }
}

#[test]
fn a_malformed_message_in_a_batch_does_not_lose_the_others() {
    let expected = [Ignored::Malformed, Ignored::Group, Ignored::Empty];
    let batch: Value = serde_json::from_slice(fixture!("batch")).expect("JSON");
    let nested = json!({"event": "messages.upsert", "data": {"type": "notify", "messages": batch["data"]}});
    for body in [batch, nested] {
        let reading = read(body.to_string().as_bytes()).expect("a webhook");
        let read: Vec<_> = reading.messages.iter().map(|read| (read.text.as_deref(), read.sent_at)).collect();
        let at = |seconds| Some(Timestamp::from_seconds(seconds));
        assert_eq!(read, [(Some("Um"), at(1_760_000_000)), (Some("Dois"), at(1_760_000_001))]);
        assert_eq!(reading.ignored, expected);
    }
    assert_eq!(read(&with("/data", json!([null, 1]))).expect("a webhook").ignored, [Ignored::Malformed; 2]);
    assert_eq!(read(&with("/data", json!([]))), Ok(Reading::default()));
    let beside_a_key = with("/data/messages", json!([]));
    assert_eq!(one(&beside_a_key).text.as_deref(), Some("Oi, ainda tem vaga?"), "a message with a key is not a batch");
}

#[test]
fn a_single_message_without_an_id_is_refused_with_the_name_of_the_field() {
    for (path, value, field) in [
        ("/event", json!(null), "event"),
        ("/data", json!(null), "data"),
        ("/data", json!("text"), "data"),
        ("/data", json!([{}]), "data.key.remoteJid"),
        ("/data", json!({"messages": [{}]}), "data.key.remoteJid"),
        ("/data/key", json!(null), "data.key.remoteJid"),
        ("/data/key/remoteJid", json!(5), "data.key.remoteJid"),
        ("/data/key/remoteJid", json!(""), "data.key.remoteJid"),
        ("/data/key/remoteJid", json!("Ana@s.whatsapp.net"), "data.key.remoteJid"),
        ("/data/key/remoteJid", json!("x@lid"), "data.key.remoteJid"),
        ("/data/key/remoteJid", json!("9x@lid"), "data.key.remoteJid"),
        ("/data/key/id", json!(null), "data.key.id"),
        ("/data/key/id", json!(" "), "data.key.id"),
    ] {
        assert_eq!(read(&with(path, value.clone())), Err(UnreadableWebhook::Missing(field)), "{path} {value}");
    }
}

#[test]
fn a_time_is_read_in_each_of_its_formats() {
    for (value, expected) in [
        (json!(1_760_000_000), Some(1_760_000_000)),
        (json!(1_760_000_000.7), Some(1_760_000_000)),
        (json!("1760000000"), Some(1_760_000_000)),
        (json!({"low": 1_760_000_000, "high": 0, "unsigned": true}), Some(1_760_000_000)),
        // The halves are signed. This time is in the year 2040.
        (json!({"low": 2_208_988_800_i64 - (1_i64 << 32), "high": 0, "unsigned": false}), Some(2_208_988_800)),
        (json!({"low": 0, "high": 1}), Some(1 << 32)),
        (json!({"low": 1}), None),
        (json!(0), None),
        (json!(-5), None),
        (json!(i64::MAX), None),
        (json!(1e300), None),
        (json!("soon"), None),
        (json!(null), None),
        (json!([]), None),
    ] {
        let read = one(&with("/data/messageTimestamp", value.clone())).sent_at;
        assert_eq!(read, expected.map(Timestamp::from_seconds), "{value}");
    }
}
