//! Reads the webhook bodies of the providers into one shape. The caller verifies a body before it
//! comes here. Only the fields that we keep are picked out, so that nothing else of the body
//! (Evolution puts its `apikey` there) goes any further.

pub mod evolution;
pub mod telegram;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::codes::codes;
use crate::time::{SECOND_MS, Timestamp};

codes! {
    /// The kind of a message's content.
    MessageKind {
        Text = "text",
        Image = "image",
        Video = "video",
        Audio = "audio",
        Document = "document",
        Sticker = "sticker",
        Location = "location",
        Contact = "contact",
        /// The message has content of a kind that we do not know.
        Other = "other",
    }
}

codes! {
    /// Why an event of a provider is not a message to answer.
    Ignored {
        /// A reaction to a message.
        Reaction = "reaction",
        /// The status of a message changed: delivered, read, deleted.
        StatusUpdate = "status_update",
        /// A message in a group.
        Group = "group",
        /// A message to many recipients: a status, a channel, a list.
        Broadcast = "broadcast",
        /// A message was edited.
        Edited = "edited",
        /// A command to a bot. The downsells handle it.
        Command = "command",
        /// Not a text of the contact: a service message, a vote, a key.
        NotAMessage = "not_a_message",
        /// An event of another kind.
        UnknownEvent = "unknown_event",
        /// The message has no content yet. The provider may deliver it again with its content, and
        /// that delivery must not count as a duplicate.
        Empty = "empty",
        /// One of several messages in a body that cannot be read. The others are read.
        Malformed = "malformed",
    }
}

/// A message of a contact, or a message of ours to the contact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// The contact's address in its normalized form.
    pub contact: String,
    /// The provider's id. It is unique within the contact's chat only.
    pub message_id: String,
    pub from_me: bool,
    /// The gateway itself reports that the message was sent through it, so no person wrote it.
    pub by_gateway: bool,
    pub kind: MessageKind,
    /// The text, or the caption of the media.
    pub text: Option<String>,
    pub media: Option<Media>,
    /// The name that the contact uses for itself.
    pub name: Option<String>,
    pub sent_at: Option<Timestamp>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    pub mime_type: Option<String>,
    pub file_name: Option<String>,
    /// Telegram's file id, or the URL under which Evolution has the file.
    pub reference: Option<String>,
}

/// Everything that was read from one body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    pub messages: Vec<Inbound>,
    pub ignored: Vec<Ignored>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreadableWebhook {
    /// The body is not JSON, or not an object.
    NotJson,
    /// A required field is missing. Holds the path of the field.
    Missing(&'static str),
}

/// Why one entry of a body is not a message.
enum Refusal {
    Ignored(Ignored),
    Missing(&'static str),
}

impl From<Ignored> for Refusal {
    fn from(why: Ignored) -> Self {
        Self::Ignored(why)
    }
}

impl Reading {
    /// Collects what was read. Returns an error if the body has a single entry and it cannot be
    /// read. Among several, an unreadable entry is ignored, so that the others are not lost.
    fn of(entries: Vec<Result<Inbound, Refusal>>) -> Result<Self, UnreadableWebhook> {
        let is_alone = entries.len() == 1;
        let mut reading = Self::default();
        for entry in entries {
            match entry {
                Ok(message) => reading.messages.push(message),
                Err(Refusal::Ignored(why)) => reading.ignored.push(why),
                Err(Refusal::Missing(field)) if is_alone => return Err(UnreadableWebhook::Missing(field)),
                Err(Refusal::Missing(_)) => reading.ignored.push(Ignored::Malformed),
            }
        }
        Ok(reading)
    }
}

impl Media {
    /// Returns `None` if no field is known.
    fn of(mime_type: Option<String>, file_name: Option<String>, reference: Option<String>) -> Option<Self> {
        let is_known = mime_type.is_some() || file_name.is_some() || reference.is_some();
        is_known.then_some(Self { mime_type, file_name, reference })
    }
}

fn object(body: &[u8]) -> Result<Value, UnreadableWebhook> {
    let read = serde_json::from_slice(body).or_else(|_| serde_json::from_slice(&replace_lone_surrogates(body)));
    read.ok().filter(Value::is_object).ok_or(UnreadableWebhook::NotJson)
}

/// The maximum length of a text, in bytes. No provider lets a person write so much; longer texts
/// are cut.
const LONGEST_TEXT: usize = 64 * 1024;

/// Returns the text without NULs, which no store accepts. `None` if the text is blank.
fn text(value: &Value) -> Option<String> {
    let mut text = value.as_str()?.replace('\0', "");
    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
    (!text.trim().is_empty()).then_some(text)
}

fn at_seconds(seconds: i64) -> Option<Timestamp> {
    seconds.checked_mul(SECOND_MS).filter(|ms| *ms > 0).and_then(Timestamp::of_calendar)
}

/// Replaces each unpaired UTF-16 surrogate escape, such as `\ud83d`, with U+FFFD. JavaScript writes
/// such escapes, but other parsers do not accept them and would reject the whole body.
fn replace_lone_surrogates(body: &[u8]) -> Vec<u8> {
    let mut replaced = body.to_vec();
    let mut at = 0;
    while at < replaced.len() {
        at += match (replaced[at], escaped_unit(&replaced[at..])) {
            (b'\\', None) => 2,
            (_, None) => 1,
            (_, Some(0xd800..=0xdbff)) if matches!(escaped_unit(&replaced[at + 6..]), Some(0xdc00..=0xdfff)) => 12,
            (_, Some(0xd800..=0xdfff)) => {
                replaced[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            (_, Some(_)) => 6,
        }
    }
    replaced
}

/// Returns the UTF-16 unit of an escape such as `\u00e9`, six bytes long, that begins here.
fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fastrand::Rng;
    use serde_json::json;

    use super::*;

    /// Returns every webhook body in the test data.
    fn fixtures() -> Vec<Value> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/webhooks");
        let files = fs::read_dir(folder).expect("the fixtures");
        let texts = files.map(|file| fs::read(file.expect("a file").path()).expect("its text"));
        texts.map(|text| serde_json::from_slice(&text).expect("JSON")).collect()
    }

    fn read_by_all(body: &[u8]) -> Vec<Reading> {
        [evolution::read(body), telegram::read(body)].into_iter().flatten().collect()
    }

    /// Replaces a random part of the value with a wrong value.
    fn spoil(value: &mut Value, dice: &mut Rng) {
        let inner = match value {
            Value::Object(fields) => dice.choice(fields.values_mut()),
            Value::Array(values) => dice.choice(values),
            _ => None,
        };
        match inner.filter(|_| dice.u8(0..6) > 0) {
            Some(inner) => spoil(inner, dice),
            None => *value = wrong(dice),
        }
    }

    fn wrong(dice: &mut Rng) -> Value {
        let wrongs = [
            json!(null),
            json!(true),
            json!(-1),
            json!(0),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1e300),
            json!(""),
            json!("\0"),
            json!("@"),
            json!(":@lid"),
            json!("1:2:3@s.whatsapp.net"),
            json!("é/😀"),
            json!([]),
            json!({}),
            json!([[{}]]),
            json!({"low": -1, "high": i64::MIN}),
            json!({"message": {"message": {}}}),
        ];
        wrongs[dice.usize(0..wrongs.len())].clone()
    }

    #[test]
    fn a_corrupted_body_never_panics_and_its_messages_have_ids() {
        let fixtures = fixtures();
        let mut dice = Rng::with_seed(71);
        for _ in 0..10_000 {
            let mut body = fixtures[dice.usize(0..fixtures.len())].clone();
            for _ in 0..dice.usize(1..4) {
                spoil(&mut body, &mut dice);
            }
            for message in read_by_all(body.to_string().as_bytes()).into_iter().flat_map(|reading| reading.messages) {
                assert!(!message.contact.is_empty() && !message.message_id.is_empty(), "{body}");
                assert!(message.text.is_none_or(|text| !text.contains('\0') && !text.trim().is_empty()), "{body}");
            }
        }
    }

    #[test]
    fn changed_bytes_never_cause_a_panic() {
        let fixtures: Vec<_> = fixtures().iter().map(Value::to_string).collect();
        let mut dice = Rng::with_seed(73);
        for _ in 0..3_000 {
            let mut body = fixtures[dice.usize(0..fixtures.len())].clone().into_bytes();
            for _ in 0..dice.usize(1..4) {
                let at = dice.usize(0..body.len());
                body[at] = *b"\\u{}[]\",:d8\0\xff".get(dice.usize(0..14)).unwrap_or(&b' ');
            }
            body.truncate(dice.usize(0..body.len() * 2));
            read_by_all(&body);
            replace_lone_surrogates(&body);
        }
    }

    #[test]
    fn no_secret_from_a_body_is_kept() {
        for fixture in fixtures() {
            let read = format!("{:?}", read_by_all(fixture.to_string().as_bytes()));
            assert!(!read.contains("s3cret"), "{fixture}");
        }
    }

    #[test]
    fn a_body_that_is_not_an_object_is_refused() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for body in ["", "null", "[]", "[{}]", "7", "\"a\"", "{", "{}}", "{\"a\":1e999}", "\u{feff}{}", &deep] {
            assert_eq!(evolution::read(body.as_bytes()), Err(UnreadableWebhook::NotJson));
            assert_eq!(telegram::read(body.as_bytes()), Err(UnreadableWebhook::NotJson));
        }
        assert_eq!(telegram::read(b"{\"update_id\":\"\xff\"}"), Err(UnreadableWebhook::NotJson));
    }

    #[test]
    fn a_lone_surrogate_is_replaced_and_the_rest_is_kept() {
        for (escaped, expected) in [
            (r"a\ud83db", "a\u{fffd}b"),
            (r"\ude00", "\u{fffd}"),
            (r"\ud83d", "\u{fffd}"),
            (r"\ud83d\n", "\u{fffd}\n"),
            (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            (r"\\ud83d\ude00\ud83d", "\\ud83d\u{fffd}\u{fffd}"),
            (r"\ud83d\ude00", "😀"),
        ] {
            let read = object(format!(r#"{{"text":"{escaped}"}}"#).as_bytes()).expect("JSON");
            assert_eq!(read["text"], expected, "{escaped}");
        }
    }

    #[test]
    fn nul_characters_are_removed_and_a_blank_text_is_none() {
        assert_eq!(text(&json!(" a\0b ")).as_deref(), Some(" ab "));
        for blank in [json!(""), json!(" \n\t"), json!("\0"), json!(" \0 "), json!(null), json!(1), json!(["a"])] {
            assert_eq!(text(&blank), None, "{blank}");
        }
    }

    #[test]
    fn a_text_longer_than_the_limit_is_cut_between_two_characters() {
        let ascii = |length| "x".repeat(length);
        let wide = |count| format!("x{}", "é".repeat(count));
        for (given, expected) in [
            (ascii(LONGEST_TEXT), ascii(LONGEST_TEXT)),
            (ascii(LONGEST_TEXT + 1), ascii(LONGEST_TEXT)),
            (wide(LONGEST_TEXT / 2), wide(LONGEST_TEXT / 2 - 1)),
        ] {
            assert!(text(&json!(given)) == Some(expected), "{} bytes", given.len());
        }
    }

    #[test]
    fn unknown_fields_of_media_are_not_stored() {
        let media = Media { mime_type: None, file_name: None, reference: Some("f".to_owned()) };
        let written = serde_json::to_value(&media).expect("json");
        assert_eq!(written, json!({"reference": "f"}));
        assert_eq!(serde_json::from_value::<Media>(written).expect("read back"), media);
        assert_eq!(Media::of(None, None, None), None);
        let f = || Some("f".to_owned());
        for (mime_type, file_name, reference) in [(f(), None, None), (None, f(), None), (None, None, f())] {
            let media = Media { mime_type, file_name, reference };
            let of = Media::of(media.mime_type.clone(), media.file_name.clone(), media.reference.clone());
            assert_eq!(of, Some(media), "one known field is enough");
        }
    }
}
