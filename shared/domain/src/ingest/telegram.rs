//! `POST /normalize/telegram`: a message becomes a thought or a link.

use serde_json::{Map, Value};

use super::entry::{Entry, Keys, Normalized, Source};
use super::link::{Link, first_link, sole_link, url_hash};
use super::reading::{LONGEST_TELEGRAM_TEXT, blank_is_absent, clean, integer, link, metadata, telegram_time, word};
use super::words::{ContentType, System};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::time::Timestamp;

const CONTENT_TYPES: [ContentType; 3] = [ContentType::Thought, ContentType::Note, ContentType::Link];

/// The `source` of a request.
#[derive(Debug, Default)]
struct Message {
    chat_id: Option<i64>,
    message_id: Option<i64>,
    date: Option<Timestamp>,
    edit_date: Option<Timestamp>,
    link: Option<Link>,
}

/// Normalizes a Telegram message: `{text, content_type?, metadata?, source: {chat_id, message_id,
/// url?, date?, edit_date?}}`.
pub fn normalize_telegram(body: &Map<String, Value>) -> Result<Normalized, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let text = clean(&mut fields, "text", LONGEST_TELEGRAM_TEXT);
    let asked = word(&mut fields, "content_type", &CONTENT_TYPES, ContentType::as_str);
    let metadata = metadata(&mut fields);
    let source = fields.optional_object("source");
    let message = match source {
        Some(source) => fields.nested("source", source, read_source),
        None => Some(Message::default()),
    };
    // If one of these fields is invalid, the content type cannot be determined, and neither can the
    // fields that are missing for it.
    let known = !["content_type", "source", "source.url"].iter().any(|name| fields.refused(name));
    let (Some(text), Some(message), true) = (text, message, known) else { return fields.finish(None) };
    let (content_type, link) = decide(asked, &text, message.link);
    let keys = match content_type {
        ContentType::Link => {
            let detail = "a link needs a URL, here or in the text";
            fields.or_refuse("source.url", link.as_ref().map(link_keys), FieldProblem::Missing, detail)
        }
        _ => thought_keys(&mut fields, message.chat_id, message.message_id),
    };
    let (url, canonical_url) = link.map(|link| (link.url, link.canonical_url)).unzip();
    let Message { chat_id, message_id, date, edit_date, .. } = message;
    let source = Source::Telegram { chat_id, message_id, date, edit_date };
    let (from, from_addr, subject, subject_base) = (None, None, None, None);
    let entry =
        Entry { source, content_type, clean_text: text, url, canonical_url, from, from_addr, subject, subject_base };
    fields.finish(keys.map(|keys| Normalized { entry, metadata, keys }))
}

/// Returns the content type of a message and its link. The content type that the caller gives wins.
fn decide(asked: Option<ContentType>, text: &str, given: Option<Link>) -> (ContentType, Option<Link>) {
    match asked {
        Some(ContentType::Link) => (ContentType::Link, given.or_else(|| first_link(text))),
        Some(other) => (other, given),
        None => match given.or_else(|| sole_link(text)) {
            Some(link) => (ContentType::Link, Some(link)),
            None => (ContentType::Thought, None),
        },
    }
}

fn read_source(source: &mut Fields<'_>) -> Option<Message> {
    same_system(source, System::Telegram);
    let chat_id = integer(source, "chat_id");
    source.refuse_if(chat_id == Some(0), "chat_id", FieldProblem::OutOfRange, "must not be zero");
    let message_id = integer(source, "message_id");
    let is_not_positive = message_id.is_some_and(|id| id <= 0);
    source.refuse_if(is_not_positive, "message_id", FieldProblem::OutOfRange, "must be greater than zero");
    let date = telegram_time(source, "date");
    let edit_date = telegram_time(source, "edit_date");
    let link = link(source, "url");
    Some(Message { chat_id, message_id, date, edit_date, link })
}

/// Refuses a `system` that differs from the system of the path. A caller may only repeat it.
pub(super) fn same_system(source: &mut Fields<'_>, system: System) {
    if let Some(named) = blank_is_absent(source, "system")
        && named != system.as_str()
    {
        source.refuse("system", FieldProblem::Conflicting, format!("this path is for {system}"));
    }
}

fn link_keys(link: &Link) -> Keys {
    let secondary = Some(url_hash(&link.canonical_url));
    Keys { policy: ContentType::Link.policy(), primary: Some(link.canonical_url.clone()), secondary }
}

/// Returns the keys of a thought. There is no secondary key: two people who both wrote "ok" had two
/// thoughts.
fn thought_keys(fields: &mut Fields<'_>, chat_id: Option<i64>, message_id: Option<i64>) -> Option<Keys> {
    for (name, missing) in [("source.chat_id", chat_id.is_none()), ("source.message_id", message_id.is_none())] {
        let is_missing = missing && !fields.refused(name);
        fields.refuse_if(is_missing, name, FieldProblem::Missing, "is required for a thought");
    }
    let primary = thought_key(chat_id?, message_id?);
    Some(Keys { policy: ContentType::Thought.policy(), primary: Some(primary), secondary: None })
}

pub(super) fn thought_key(chat_id: i64, message_id: i64) -> String {
    format!("tg:{chat_id}:{message_id}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::words::PolicyKey;

    fn take(body: &Value) -> Normalized {
        normalize_telegram(body.as_object().expect("an object")).unwrap_or_else(|errors| panic!("{body}: {errors:?}"))
    }

    fn refusals(body: &Value) -> Vec<(String, FieldProblem)> {
        let errors = normalize_telegram(body.as_object().expect("an object")).expect_err("refused");
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    #[test]
    fn a_text_without_a_link_is_a_thought_with_a_key_of_chat_and_message() {
        let taken = take(&json!({"text": " a\r\nthought ", "source": {"chat_id": -100123, "message_id": "7"}}));
        assert_eq!(taken.entry.content_type, ContentType::Thought);
        assert_eq!(taken.entry.clean_text, "a\nthought");
        assert_eq!(taken.keys.primary.as_deref(), Some("tg:-100123:7"));
        assert_eq!(taken.keys.secondary, None);
    }

    #[test]
    fn a_note_has_the_policy_of_a_thought() {
        let source = json!({"chat_id": 1, "message_id": 2});
        let taken = take(&json!({"text": "x", "content_type": "note", "source": source}));
        assert_eq!(taken.entry.content_type, ContentType::Note);
        assert_eq!(taken.keys.policy, PolicyKey::TelegramThoughtV1);
    }

    #[test]
    fn a_link_is_identified_by_its_url_and_needs_no_message_id() {
        let from_text = take(&json!({"text": "see https://Example.com/a?utm_source=x#y"}));
        let given = take(&json!({"text": "see", "source": {"url": "https://example.com/a?utm_source=x"}}));
        for taken in [&from_text, &given] {
            assert_eq!(taken.entry.content_type, ContentType::Link);
            assert_eq!(taken.keys.policy, PolicyKey::TelegramLinkV1);
            assert_eq!(taken.keys.primary.as_deref(), Some("https://example.com/a?utm_source=x"));
            assert_eq!(taken.keys.secondary, Some(url_hash("https://example.com/a")));
        }
        assert_eq!(from_text.entry.url.as_deref(), Some("https://example.com/a?utm_source=x#y"));
    }

    #[test]
    fn the_content_type_that_the_caller_gives_is_used() {
        let source = json!({"chat_id": 1, "message_id": 2, "url": "https://example.com/"});
        let thought = take(&json!({"text": "https://other.example", "content_type": "thought", "source": source}));
        assert_eq!(thought.keys.primary.as_deref(), Some("tg:1:2"));
        assert_eq!(thought.entry.canonical_url.as_deref(), Some("https://example.com/"));
        let long = format!("{} https://a.example https://b.example", "word ".repeat(50));
        let link = take(&json!({"text": long, "content_type": "link"}));
        assert_eq!(link.keys.primary.as_deref(), Some("https://a.example/"));
    }

    #[test]
    fn the_time_of_a_message_is_read_in_unix_seconds_and_in_rfc3339() {
        let at = |source: Value| take(&json!({"text": "https://example.com", "source": source})).entry.source.time();
        let expected = Timestamp::parse("2025-07-01T04:00:00Z");
        assert_eq!(at(json!({"date": 1_751_342_400})), expected);
        assert_eq!(at(json!({"date": "2025-07-01T04:00:00Z"})), expected);
        assert_eq!(at(json!({"date": 1, "edit_date": 1_751_342_400})), expected);
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        use FieldProblem::{Conflicting, Malformed, Missing, NotAllowed, OutOfRange, Unknown, WrongType};
        let source = json!({"chat_id": 1, "message_id": 2});
        let cases = [
            (json!({}), vec![("text", Missing)]),
            (json!({"text": "x"}), vec![("source.chat_id", Missing), ("source.message_id", Missing)]),
            (json!({"text": " \u{0}", "source": source}), vec![("text", Missing)]),
            (json!({"text": 5, "source": source}), vec![("text", WrongType)]),
            (json!({"text": "x".repeat(LONGEST_TELEGRAM_TEXT + 1), "source": source}), vec![("text", OutOfRange)]),
            (json!({"text": "x", "source": []}), vec![("source", WrongType)]),
            (
                json!({"text": "x", "source": {"chat_id": "me", "message_id": 1.5}}),
                vec![("source.chat_id", Malformed), ("source.message_id", Malformed)],
            ),
            (
                json!({"text": "x", "source": {"chat_id": 0, "message_id": -1}}),
                vec![("source.chat_id", OutOfRange), ("source.message_id", OutOfRange)],
            ),
            (json!({"text": "x", "source": {"chat_id": 5, "message_id": " "}}), vec![("source.message_id", Missing)]),
            (json!({"text": "x", "source": {"url": "ftp://x"}}), vec![("source.url", Malformed)]),
            (
                json!({"text": "x", "source": {"date": "soon", "edit_date": -1, "chat_id": 5}}),
                vec![("source.date", Malformed), ("source.edit_date", OutOfRange), ("source.message_id", Missing)],
            ),
            (json!({"text": "x", "content_type": "newsletter"}), vec![("content_type", NotAllowed)]),
            (json!({"text": "x", "content_type": "link"}), vec![("source.url", Missing)]),
            (
                json!({"text": "https://example.com", "source": {"system": "email"}}),
                vec![("source.system", Conflicting)],
            ),
            (
                json!({"text": "x", "more": 1, "source": {"chat_id": 1, "message_id": 2, "from_addr": "a"}}),
                vec![("source.from_addr", Unknown), ("more", Unknown)],
            ),
            (json!({"text": "x", "metadata": [], "source": source}), vec![("metadata", WrongType)]),
            (
                json!({"text": "x", "metadata": {"a": "x".repeat(40_000)}, "source": source}),
                vec![("metadata", OutOfRange)],
            ),
        ];
        for (body, errors) in cases {
            let errors: Vec<_> = errors.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
            assert_eq!(refusals(&body), errors, "{body}");
        }
    }
}
