//! Reads the HTTP requests of callers about conversations.

use serde_json::{Map, Value};

use super::identity::{BatchId, ConversationId};
use super::inbound::{Inbound, Media, MessageKind};
use super::reply::{LONGEST_REPLY, ResponderProblem, read_reply};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::senders::is_name;
use crate::time::{SECOND_MS, Timestamp};

/// The instance of a message that names none.
pub const DEFAULT_INSTANCE: &str = "default";

const LONGEST_ID: usize = 255;
const LONGEST_TEXT: usize = 64 * 1024;
const LONGEST_HOLD_SECONDS: u32 = 366 * 86_400;
/// How far ahead of our clock `sent_at` may be, because the clock that set it may be ahead of ours.
const AHEAD_MS: i64 = 300 * SECOND_MS;

/// Names a conversation in a path: by its id, or by the caller's name for the contact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversationName {
    Id(ConversationId),
    Contact(String),
}

impl ConversationName {
    /// Returns `None` if the text is neither an id nor a name.
    pub fn parse(text: &str) -> Option<Self> {
        match ConversationId::parse(text) {
            Some(id) => Some(Self::Id(id)),
            None => is_name(text).then(|| Self::Contact(text.to_owned())),
        }
    }
}

/// Reads `{message_id, text?, kind?, media?, name?, sent_at?, instance?}`.
pub fn read_message(
    body: &Map<String, Value>,
    contact: &str,
    now: Timestamp,
) -> Result<(String, Inbound), Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let message_id = fields.text("message_id").filter(|id| id.len() <= LONGEST_ID).map(str::to_owned);
    if message_id.is_none() && !fields.refused("message_id") {
        fields.refuse("message_id", FieldProblem::OutOfRange, "must not be longer than 255 bytes");
    }
    let text = fields.optional_text("text").map(|text| text.replace('\0', ""));
    if text.as_ref().is_some_and(|text| text.len() > LONGEST_TEXT) {
        fields.refuse("text", FieldProblem::OutOfRange, "must not be larger than 65536 bytes");
    }
    let kind = read_kind(&mut fields);
    let media = read_media(&mut fields);
    if text.is_none() && media.is_none() && !fields.refused("text") && !fields.refused("media") {
        fields.refuse("text", FieldProblem::Missing, "is required without media");
    }
    let name = fields.optional_text("name").map(|name| name.chars().take(100).collect());
    let sent_at = fields.optional_timestamp("sent_at");
    if sent_at.is_some_and(|at| at > now.plus_ms(AHEAD_MS)) {
        fields.refuse("sent_at", FieldProblem::OutOfRange, "is in the future");
    }
    let instance = fields.optional_text("instance").unwrap_or(DEFAULT_INSTANCE);
    if !is_name(instance) {
        fields.refuse("instance", FieldProblem::Malformed, "must be a name of at most 64 letters, digits, . - and _");
    }
    let read = message_id.map(|message_id| {
        let contact = contact.to_owned();
        (
            instance.to_owned(),
            Inbound { contact, message_id, from_me: false, by_gateway: false, kind, text, media, name, sent_at },
        )
    });
    fields.finish(read)
}

fn read_kind(fields: &mut Fields<'_>) -> MessageKind {
    let Some(text) = fields.optional_text("kind") else { return MessageKind::Text };
    MessageKind::parse(text).unwrap_or_else(|| {
        let all: Vec<_> = MessageKind::ALL.iter().map(|kind| kind.as_str()).collect();
        fields.refuse("kind", FieldProblem::NotAllowed, format!("must be one of {}", all.join(", ")));
        MessageKind::Text
    })
}

fn read_media(fields: &mut Fields<'_>) -> Option<Media> {
    let object = fields.optional_object("media")?;
    fields.nested("media", object, |media| {
        let mut short = |name: &'static str| media.optional_text(name).map(|text| text.chars().take(2_048).collect());
        Some(Media { mime_type: short("mime_type"), file_name: short("file_name"), reference: short("reference") })
    })
}

/// The answer that a responder sends later, in a request of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    pub batch: BatchId,
    pub reply: Option<String>,
}

/// Reads `{batch_id, reply}`. `reply` is required, but may be null.
pub fn read_callback(body: &Map<String, Value>) -> Result<Callback, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let batch = fields.text("batch_id").and_then(BatchId::parse);
    if batch.is_none() && !fields.refused("batch_id") {
        fields.refuse("batch_id", FieldProblem::Malformed, "is not the id of a batch");
    }
    let is_null = fields.is_null("reply");
    let reply = match fields.get("reply").map(read_reply) {
        Some(Ok(reply)) => reply,
        None if is_null => None,
        refused => {
            let (code, detail) = match refused {
                None => (FieldProblem::Missing, "is required; null means that there is nothing to say".to_owned()),
                Some(Err(ResponderProblem::TooLong)) => {
                    (FieldProblem::OutOfRange, format!("must not be larger than {LONGEST_REPLY} bytes"))
                }
                Some(_) => (FieldProblem::WrongType, "must be a string or null".to_owned()),
            };
            fields.refuse("reply", code, detail);
            None
        }
    };
    fields.finish(batch.map(|batch| Callback { batch, reply }))
}

/// Reads `{seconds?}`. Returns the end of the hold, or `None` if the hold has no end.
pub fn read_hold(body: &Map<String, Value>, now: Timestamp) -> Result<Option<Timestamp>, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let seconds = fields.number_within("seconds", 1..=LONGEST_HOLD_SECONDS);
    fields.finish(Some(seconds.map(|seconds| now.plus_ms(i64::from(seconds) * SECOND_MS))))
}

/// Reads `{answer_pending?}`. Returns whether the bot answers the messages that arrived during the
/// hold.
pub fn read_release(body: &Map<String, Value>) -> Result<bool, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let answer = fields.optional_bool("answer_pending").unwrap_or(true);
    fields.finish(Some(answer))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn object(value: &Value) -> &Map<String, Value> {
        value.as_object().expect("an object")
    }

    fn refused(found: Result<impl std::fmt::Debug, Vec<FieldError>>) -> Vec<String> {
        found.expect_err("refused").into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_message_needs_an_id_and_content() {
        let read = |body: Value| read_message(object(&body), "ana", NOW);
        let (instance, message) = read(json!({"message_id": "m1", "text": "Oi"})).expect("a message");
        assert_eq!((instance.as_str(), message.contact.as_str(), message.kind), ("default", "ana", MessageKind::Text));
        let media = json!({"message_id": "m1", "kind": "image", "media": {"reference": "https://x/y"}});
        assert!(read(media).is_ok());
        let latest = NOW.plus_ms(AHEAD_MS).to_string();
        for at_its_limit in [
            json!({"message_id": "m".repeat(255), "text": "Oi"}),
            json!({"message_id": "m", "text": "x".repeat(65_536)}),
            json!({"message_id": "m", "text": "Oi", "sent_at": latest}),
        ] {
            assert!(read(at_its_limit.clone()).is_ok(), "{at_its_limit}");
        }
        assert_eq!(refused(read(json!({"text": "Oi"}))), ["message_id"]);
        assert_eq!(refused(read(json!({"message_id": "m1"}))), ["text"]);
        assert_eq!(refused(read(json!({"message_id": "m".repeat(256), "text": "Oi"}))), ["message_id"]);
        assert_eq!(refused(read(json!({"message_id": "m", "text": "x".repeat(65_537)}))), ["text"]);
        assert_eq!(refused(read(json!({"message_id": "m", "text": "Oi", "kind": "smell"}))), ["kind"]);
        assert_eq!(refused(read(json!({"message_id": "m", "text": "Oi", "instance": "a b"}))), ["instance"]);
        let future = NOW.plus_ms(AHEAD_MS + 1).to_string();
        assert_eq!(refused(read(json!({"message_id": "m", "text": "Oi", "sent_at": future}))), ["sent_at"]);
        assert_eq!(refused(read(json!({"message_id": "m", "text": "Oi", "mood": "good"}))), ["mood"]);
    }

    #[test]
    fn a_callback_needs_a_batch_id_and_a_reply_that_is_text_or_null() {
        let batch = "conv_0123456789abcdef0123456789abcdef-3";
        let read = |body: Value| read_callback(object(&body));
        assert_eq!(read(json!({"batch_id": batch, "reply": "Oi"})).expect("read").reply.as_deref(), Some("Oi"));
        assert_eq!(read(json!({"batch_id": batch, "reply": null})).expect("read").reply, None);
        assert_eq!(refused(read(json!({"batch_id": batch}))), ["reply"]);
        assert_eq!(refused(read(json!({"batch_id": batch, "reply": 7}))), ["reply"]);
        assert_eq!(refused(read(json!({"batch_id": "x", "reply": "Oi"}))), ["batch_id"]);
        assert_eq!(refused(read(json!({"reply": "Oi"}))), ["batch_id"]);
    }

    #[test]
    fn a_hold_has_no_end_or_lasts_for_a_number_of_seconds() {
        assert_eq!(read_hold(object(&json!({})), NOW), Ok(None));
        assert_eq!(read_hold(object(&json!({"seconds": 60})), NOW), Ok(Some(NOW.plus_ms(60_000))));
        for seconds in [json!(0), json!(-1), json!("60"), json!(1.5), json!(LONGEST_HOLD_SECONDS + 1)] {
            assert_eq!(refused(read_hold(object(&json!({"seconds": seconds})), NOW)), ["seconds"]);
        }
    }

    #[test]
    fn the_bot_answers_the_messages_of_a_hold_unless_the_release_declines() {
        assert_eq!(read_release(object(&json!({}))), Ok(true));
        for answer in [true, false] {
            assert_eq!(read_release(object(&json!({"answer_pending": answer}))), Ok(answer));
        }
        assert_eq!(refused(read_release(object(&json!({"answer_pending": "no"})))), ["answer_pending"]);
    }

    #[test]
    fn a_path_contains_a_conversation_id_or_a_contact() {
        let id = "conv_0123456789abcdef0123456789abcdef";
        assert!(matches!(ConversationName::parse(id), Some(ConversationName::Id(_))));
        assert_eq!(ConversationName::parse("ana-77"), Some(ConversationName::Contact("ana-77".into())));
        assert_eq!(ConversationName::parse("ana 77"), None);
        assert_eq!(ConversationName::parse(""), None);
    }
}
