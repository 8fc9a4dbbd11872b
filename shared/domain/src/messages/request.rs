//! A request for a new message: validated, with all values computed that the write needs.

use serde_json::{Map, Value};

use crate::access::KeyId;
use crate::channels::content;
use crate::channels::content::Content;
use crate::channels::{Channel, normalize_to};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::idempotency::IdempotencyKey;
use crate::intents::{Check, HoldRequest, Holder, IntentTypes, MAX_SKEW_MS};
use crate::messages::{INLINE_CONTENT, MessageId, Then};
use crate::queue::Priority;
use crate::time::Timestamp;

/// The sender of a message that names none.
pub const DEFAULT_SENDER: &str = "default";

/// How far ahead a message may be scheduled.
pub const FURTHEST_DAYS: i64 = 366;

const LONGEST_SENDER: usize = 64;
const LARGEST_METADATA: usize = 2 * 1024;

/// The identity of a request: the caller, the idempotency key and the hash of the body.
#[derive(Debug, Clone, Copy)]
pub struct RequestIdentity<'a> {
    pub caller: &'a KeyId,
    pub key: Option<&'a IdempotencyKey>,
    pub body_hash: &'a str,
}

#[derive(Debug, Clone)]
pub struct NewMessage {
    pub id: MessageId,
    pub caller: String,
    pub body_hash: String,
    pub sender: String,
    pub to: String,
    pub content: Content,
    pub priority: Priority,
    /// The intent that the message holds from its acceptance on.
    pub hold: Option<HoldRequest>,
    pub send_at: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
    pub metadata: Option<String>,
    /// The job to enqueue when the message ends.
    pub then: Option<Then>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidMessage {
    /// The request has neither an `Idempotency-Key` nor an `id`, so the message has no identity.
    NoIdentity,
    Fields(Vec<FieldError>),
    /// Only the times are wrong, compared with the current time. An earlier copy of the same
    /// request may have been accepted under this id.
    Times {
        id: MessageId,
        errors: Vec<FieldError>,
    },
}

impl NewMessage {
    /// Reads `{channel, to, content, sender?, priority?, intent?, send_at?, not_after?, metadata?,
    /// id?}`.
    pub fn read(
        body: &Map<String, Value>,
        asked: RequestIdentity<'_>,
        types: &IntentTypes,
        now: Timestamp,
    ) -> Result<Self, InvalidMessage> {
        let mut fields = Fields::of(body);
        let key = read_identity(&mut fields, asked.key);
        let channel = read_channel(&mut fields);
        let to = fields.text("to");
        let content = fields.optional_object("content");
        let sender = read_sender(&mut fields);
        let priority = read_priority(&mut fields);
        let intent = fields.optional_object("intent");
        let (send_at, not_after) = (fields.optional_timestamp("send_at"), fields.optional_timestamp("not_after"));
        let metadata = read_metadata(&mut fields);
        let content = fields.required("content", content);
        let to = channel.zip(to).and_then(|(channel, to)| {
            normalize_to(channel, to).map_err(|detail| fields.refuse("to", FieldProblem::Malformed, detail)).ok()
        });
        let mut inner = Vec::new();
        let content = channel.zip(content).and_then(|(channel, object)| content::read(channel, object, &mut inner));
        inner.into_iter().for_each(|error| fields.refuse(error.field, error.code, error.detail));
        let at = send_at.filter(|at| *at > now).unwrap_or(now);
        let check = intent.map(|object| Check::read_for(object, types, at));
        let check = check.and_then(|check| check.map_err(|found| fields.refuse_within("intent", found)).ok());
        let (to, content) = fields.finish(to.zip(content)).map_err(InvalidMessage::Fields)?;
        let id = MessageId::of(asked.caller, key.ok_or(InvalidMessage::NoIdentity)?);
        let late = wrong_times(send_at, not_after, now);
        if !late.is_empty() {
            return Err(InvalidMessage::Times { id, errors: late });
        }
        let hold = check.map(|check| HoldRequest::of(check, &Holder::Message(id.clone()), asked.body_hash, now));
        Ok(Self {
            caller: asked.caller.to_string(),
            body_hash: asked.body_hash.to_owned(),
            sender: sender.unwrap_or(DEFAULT_SENDER).to_owned(),
            to,
            content,
            priority: priority.unwrap_or(Priority::Shot),
            hold,
            send_at,
            not_after,
            metadata,
            then: None,
            id,
        })
    }

    /// Returns whether the content is stored in its own row instead of the message's row.
    pub fn content_is_apart(&self) -> bool {
        serde_json::to_string(&self.content).is_ok_and(|json| json.len() > INLINE_CONTENT)
    }
}

fn read_identity<'a>(fields: &mut Fields<'a>, header: Option<&'a IdempotencyKey>) -> Option<&'a str> {
    let given = fields.optional_text("id");
    let is_malformed = given.is_some_and(|id| IdempotencyKey::parse(id).is_none());
    fields.refuse_if(is_malformed, "id", FieldProblem::Malformed, "must have 1 to 255 visible ASCII characters");
    match (given, header) {
        (Some(id), Some(key)) if id != key.as_str() => {
            fields.refuse("id", FieldProblem::Conflicting, "differs from the Idempotency-Key");
            None
        }
        (given, header) => given.or(header.map(IdempotencyKey::as_str)),
    }
}

fn read_channel(fields: &mut Fields<'_>) -> Option<Channel> {
    let text = fields.text("channel")?;
    let detail = "must be one of email, telegram, whatsapp";
    fields.or_refuse("channel", Channel::parse(text), FieldProblem::Unknown, detail)
}

fn read_priority(fields: &mut Fields<'_>) -> Option<Priority> {
    let text = fields.optional_text("priority")?;
    fields.one_of("priority", text, Priority::ALL, Priority::as_str)
}

/// Reads the name of a bot or an instance. The name is part of keys and, for WhatsApp, of a path.
fn read_sender<'a>(fields: &mut Fields<'a>) -> Option<&'a str> {
    let sender = fields.optional_text("sender")?;
    let fits = sender.len() <= LONGEST_SENDER
        && sender.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let detail = "must be a name of at most 64 letters, digits, dots, dashes and underscores";
    fields.refuse_if(!fits, "sender", FieldProblem::Malformed, detail);
    Some(sender)
}

fn read_metadata(fields: &mut Fields<'_>) -> Option<String> {
    let object = fields.optional_object("metadata")?;
    let text = Value::Object(object.clone()).to_string();
    let detail = "must not be larger than 2048 bytes of JSON";
    fields.refuse_if(text.len() > LARGEST_METADATA, "metadata", FieldProblem::OutOfRange, detail);
    Some(text)
}

fn wrong_times(send_at: Option<Timestamp>, not_after: Option<Timestamp>, now: Timestamp) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(at) = send_at {
        if at < now.plus_ms(-MAX_SKEW_MS) {
            errors.push(FieldError::new("send_at", FieldProblem::OutOfRange, "is in the past"));
        } else if at > now.plus_days(FURTHEST_DAYS) {
            let detail = format!("is more than {FURTHEST_DAYS} days ahead");
            errors.push(FieldError::new("send_at", FieldProblem::OutOfRange, detail));
        }
    }
    if let Some(until) = not_after {
        if until <= now {
            errors.push(FieldError::new("not_after", FieldProblem::OutOfRange, "is in the past"));
        } else if send_at.is_some_and(|at| until <= at) {
            errors.push(FieldError::new("not_after", FieldProblem::Conflicting, "must be after send_at"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::PresentedKey;
    use crate::codes::Decision;
    use crate::delivery::State;
    use crate::messages::{AcceptAnswer, MessageRow};

    fn now() -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
    }

    fn read_with(body: &Value, key: Option<&str>) -> Result<NewMessage, InvalidMessage> {
        let types = IntentTypes::with_options("{}").expect("built in");
        let caller = PresentedKey::of("local").id;
        let key = key.map(|key| IdempotencyKey::parse(key).expect("a key"));
        let asked = RequestIdentity { caller: &caller, key: key.as_ref(), body_hash: "h" };
        NewMessage::read(body.as_object().expect("an object"), asked, &types, now())
    }

    fn read(body: &Value) -> Result<NewMessage, InvalidMessage> {
        read_with(body, Some("order-77"))
    }

    fn plain() -> Value {
        json!({"channel": "telegram", "to": "987654321", "content": {"text": "Oi"}})
    }

    fn with(more: Value) -> Value {
        let mut body = plain();
        let more = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(more);
        body
    }

    fn refused(body: &Value) -> Vec<(String, &'static str)> {
        let errors = match read(body) {
            Err(InvalidMessage::Fields(errors) | InvalidMessage::Times { errors, .. }) => errors,
            other => panic!("{other:?}"),
        };
        errors.into_iter().map(|error| (error.field, error.code.as_str())).collect()
    }

    #[test]
    fn a_message_is_identified_by_its_key_or_its_id() {
        let by_header = read(&plain()).expect("fits");
        let by_body = read_with(&with(json!({"id": "order-77"})), None).expect("fits");
        assert_eq!(by_header.id, by_body.id);
        assert_eq!(read_with(&plain(), None).expect_err("unfit"), InvalidMessage::NoIdentity);
        assert_eq!(refused(&with(json!({"id": "other"}))), [("id".to_owned(), "conflicting")]);
        assert_eq!(
            refused(&with(json!({"id": "a b"}))),
            [("id".to_owned(), "malformed"), ("id".to_owned(), "conflicting")]
        );
    }

    #[test]
    fn omitted_fields_have_their_defaults() {
        let new = read(&plain()).expect("fits");
        assert_eq!((new.sender.as_str(), new.priority), ("default", Priority::Shot));
        let row = MessageRow::accepted(&new, now());
        assert_eq!(row.delivery.state, State::Queued);
        assert_eq!(row.work.emit.as_ref().map(|emit| emit.queue.as_str()), Some("outbound-shot"));
        assert_eq!(row.ledger.iter().map(|entry| entry.code).collect::<Vec<_>>(), [Decision::Accepted]);
        assert_eq!(AcceptAnswer::of(&row).http_status(), 202);
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let body = json!({
            "channel": "telegram", "to": "nobody", "content": {"text": "*", "parse_mode": "MarkdownV2"},
            "priority": "urgent", "sender": "a/b", "send_at": "tomorrow", "metadata": [], "color": "red",
            "intent": {"client_id": "x", "intent_type": "y"},
        });
        let fields: Vec<_> = refused(&body).into_iter().map(|(field, _)| field).collect();
        let expected = [
            "sender",
            "priority",
            "send_at",
            "metadata",
            "to",
            "content.text",
            "intent.client_id",
            "intent.intent_type",
            "color",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn an_unknown_channel_is_the_only_error_that_is_reported() {
        assert_eq!(refused(&with(json!({"channel": "sms"}))), [("channel".to_owned(), "unknown")]);
    }

    #[test]
    fn the_error_for_a_time_that_has_passed_has_the_id_of_the_message() {
        let late = with(json!({"send_at": "2026-03-10T11:58:59Z"}));
        assert!(matches!(read(&late), Err(InvalidMessage::Times { id, .. }) if id == read(&plain()).expect("fits").id));
        assert_eq!(
            refused(&with(json!({"not_after": "2026-03-10T12:00:00Z"}))),
            [("not_after".to_owned(), "out_of_range")]
        );
        let crossed = json!({"send_at": "2026-03-11T12:00:00Z", "not_after": "2026-03-11T12:00:00Z"});
        assert_eq!(refused(&with(crossed)), [("not_after".to_owned(), "conflicting")]);
        assert_eq!(
            refused(&with(json!({"send_at": "2027-03-12T12:00:00Z"}))),
            [("send_at".to_owned(), "out_of_range")]
        );
        assert!(read(&with(json!({"send_at": "2026-03-10T11:59:30Z"}))).is_ok(), "clocks may differ a little");
    }

    #[test]
    fn the_window_of_an_intent_counts_from_the_send_time() {
        let body = with(json!({
            "send_at": "2026-06-10T12:00:00Z",
            "intent": {"client_id": "91b7584a-d8f1-4cd6-b0e1-414c1027c4d1", "intent_type": "reactivation_nudge"},
        }));
        let new = read(&body).expect("fits");
        let hold = new.hold.as_ref().expect("an intent");
        assert_eq!(hold.row.at, Timestamp::parse("2026-06-10T12:00:00Z").expect("a time"));
        assert_eq!(hold.row.holder, format!("message:{}", new.id));
        let row = MessageRow::accepted(&new, now());
        assert_eq!(row.work.emit, None, "the time is too far ahead for a queue");
        assert_eq!(row.work.later.as_ref().map(|emit| emit.seq), Some(1));
        assert!(row.work.wake.expect("an index").starts_with("DUE#"));
    }

    #[test]
    fn large_content_is_stored_in_a_row_of_its_own() {
        let new = read(&with(json!({"content": {"text": "a".repeat(3_000)}}))).expect("fits");
        assert!(new.content_is_apart());
        assert_eq!(MessageRow::accepted(&new, now()).content, None);
    }
}
