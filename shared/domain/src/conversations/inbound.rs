//! What providers tell of, read into one shape. A body was verified before it comes here. What is
//! kept is picked out of it, so that nothing else of it (Evolution puts its `apikey` there) goes
//! any further.

pub mod evolution;
pub mod telegram;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::codes::codes;
use crate::time::{SECOND_MS, Timestamp};

codes! {
    /// What a message is.
    Kind {
        Text = "text",
        Image = "image",
        Video = "video",
        Audio = "audio",
        Document = "document",
        Sticker = "sticker",
        Location = "location",
        Contact = "contact",
        /// Somebody said something, and we have no word for it.
        Other = "other",
    }
}

codes! {
    /// Why something that a provider told of is no message to answer.
    Ignored {
        Reaction = "reaction",
        /// What became of a message: delivered, read, deleted.
        StatusUpdate = "status_update",
        Group = "group",
        /// Said to everybody: a status, a channel, a list.
        Broadcast = "broadcast",
        Edited = "edited",
        /// A bot's command: the downsells' affair.
        Command = "command",
        /// Nothing that somebody said: a service message, a vote, a key.
        NotAMessage = "not_a_message",
        UnknownEvent = "unknown_event",
        /// It says nothing, yet. It may come again with what it says, and must not be known by
        /// then.
        Empty = "empty",
        /// One of several that cannot be read. The others are.
        Malformed = "malformed",
    }
}

/// A message of a contact, or one of ours to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// The one form of the contact's address.
    pub contact: String,
    /// The provider's, and unique within the contact's chat only.
    pub message_id: String,
    pub from_me: bool,
    /// The gateway says itself that it was sent through it: no person's.
    pub by_gateway: bool,
    pub kind: Kind,
    /// What is written, or the caption of what is shown.
    pub text: Option<String>,
    pub media: Option<Media>,
    /// What the contact calls itself.
    pub name: Option<String>,
    pub sent_at: Option<Timestamp>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    pub mime_type: Option<String>,
    pub file_name: Option<String>,
    /// Telegram's file id, or the URL that Evolution has it at.
    pub reference: Option<String>,
}

/// All that one body tells of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    pub messages: Vec<Inbound>,
    pub ignored: Vec<Ignored>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// Not JSON, or not an object.
    NotJson,
    /// An id that must be there is missing; the field's path.
    Missing(&'static str),
}

/// Why one thing that a body tells of is no message.
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
    /// What cannot be read is refused if it is all that there is; it does not lose the others.
    fn of(told: Vec<Result<Inbound, Refusal>>) -> Result<Self, Unreadable> {
        let is_alone = told.len() == 1;
        let mut reading = Self::default();
        for one in told {
            match one {
                Ok(message) => reading.messages.push(message),
                Err(Refusal::Ignored(why)) => reading.ignored.push(why),
                Err(Refusal::Missing(field)) if is_alone => return Err(Unreadable::Missing(field)),
                Err(Refusal::Missing(_)) => reading.ignored.push(Ignored::Malformed),
            }
        }
        Ok(reading)
    }
}

impl Media {
    /// `None` where nothing is known of it.
    fn of(mime_type: Option<String>, file_name: Option<String>, reference: Option<String>) -> Option<Self> {
        let is_known = mime_type.is_some() || file_name.is_some() || reference.is_some();
        is_known.then_some(Self { mime_type, file_name, reference })
    }
}

fn object(body: &[u8]) -> Result<Value, Unreadable> {
    let read = serde_json::from_slice(body).or_else(|_| serde_json::from_slice(&mend(body)));
    read.ok().filter(Value::is_object).ok_or(Unreadable::NotJson)
}

/// More than any of the providers lets a person write; what is longer is cut.
const LONGEST_TEXT: usize = 64 * 1024;

/// A text without the NULs that no store takes; a blank one is none.
fn text(value: &Value) -> Option<String> {
    let mut text = value.as_str()?.replace('\0', "");
    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
    (!text.trim().is_empty()).then_some(text)
}

fn at_seconds(seconds: i64) -> Option<Timestamp> {
    seconds.checked_mul(SECOND_MS).filter(|ms| *ms > 0).and_then(Timestamp::of_calendar)
}

/// JavaScript writes half of a character as `\ud83d`, which is no text to anybody else: the whole
/// body would be refused for it. Such a half becomes the sign for what cannot be read.
fn mend(body: &[u8]) -> Vec<u8> {
    let mut mended = body.to_vec();
    let mut at = 0;
    while at < mended.len() {
        at += match (mended[at], escaped_unit(&mended[at..])) {
            (b'\\', None) => 2,
            (_, None) => 1,
            (_, Some(0xd800..=0xdbff)) if matches!(escaped_unit(&mended[at + 6..]), Some(0xdc00..=0xdfff)) => 12,
            (_, Some(0xd800..=0xdfff)) => {
                mended[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            (_, Some(_)) => 6,
        }
    }
    mended
}

/// The UTF-16 unit of an escape such as `\u00e9`, six bytes long, that begins here.
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

    /// Every webhook that the tests know.
    fn fixtures() -> Vec<Value> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/webhooks");
        let files = fs::read_dir(folder).expect("the fixtures");
        let texts = files.map(|file| fs::read(file.expect("a file").path()).expect("its text"));
        texts.map(|text| serde_json::from_slice(&text).expect("JSON")).collect()
    }

    fn read_by_all(body: &[u8]) -> Vec<Reading> {
        [evolution::read(body), telegram::read(body)].into_iter().flatten().collect()
    }

    /// What is wrong with a value is put anywhere inside of it.
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
    fn a_spoiled_body_never_panics_and_what_is_read_has_its_ids() {
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
    fn changed_bytes_never_panic() {
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
            mend(&body);
        }
    }

    #[test]
    fn no_secret_of_a_body_is_kept() {
        for fixture in fixtures() {
            let told = format!("{:?}", read_by_all(fixture.to_string().as_bytes()));
            assert!(!told.contains("s3cret"), "{fixture}");
        }
    }

    #[test]
    fn what_is_no_object_is_no_json_to_us() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for body in ["", "null", "[]", "[{}]", "7", "\"a\"", "{", "{}}", "{\"a\":1e999}", "\u{feff}{}", &deep] {
            assert_eq!(evolution::read(body.as_bytes()), Err(Unreadable::NotJson));
            assert_eq!(telegram::read(body.as_bytes()), Err(Unreadable::NotJson));
        }
        assert_eq!(telegram::read(b"{\"update_id\":\"\xff\"}"), Err(Unreadable::NotJson));
    }

    #[test]
    fn half_a_character_does_not_lose_the_rest() {
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
    fn a_text_has_no_nul_and_a_blank_one_is_none() {
        assert_eq!(text(&json!(" a\0b ")).as_deref(), Some(" ab "));
        for blank in [json!(""), json!(" \n\t"), json!("\0"), json!(" \0 "), json!(null), json!(1), json!(["a"])] {
            assert_eq!(text(&blank), None, "{blank}");
        }
    }

    #[test]
    fn media_is_written_without_what_is_not_known_of_it() {
        let media = Media { mime_type: None, file_name: None, reference: Some("f".to_owned()) };
        let written = serde_json::to_value(&media).expect("json");
        assert_eq!(written, json!({"reference": "f"}));
        assert_eq!(serde_json::from_value::<Media>(written).expect("read back"), media);
        assert_eq!(Media::of(None, None, None), None);
    }
}
