//! `POST /normalize/email`: a mail is an issue of a newsletter, or part of a correspondence.

use serde_json::{Map, Value};

use super::entry::{Entry, Keys, Normalized, Source};
use super::mail::{date, from_addr, message_id, newsletter_key, thread_hash};
use super::reading::{LONGEST_EMAIL_TEXT, LONGEST_FROM, LONGEST_MESSAGE_ID, LONGEST_SUBJECT};
use super::reading::{blank_is_absent, clean, metadata, within, word};
use super::subject::subject_base;
use super::telegram::same_system;
use super::text::{looks_like_newsletter, one_line};
use super::words::{ContentType, System};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::time::Timestamp;

const CONTENT_TYPES: [ContentType; 2] = [ContentType::Newsletter, ContentType::CorrespondenceThread];

/// `source` of a request.
#[derive(Debug, Default)]
struct Mail {
    message_id: Option<String>,
    date: Option<Timestamp>,
    has_list_headers: bool,
}

/// Normalizes a mail: `{raw_text, from, subject, content_type?, metadata?, source?: {message_id?, date?, headers?}}`.
pub fn normalize_email(body: &Map<String, Value>) -> Result<Normalized, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let text = clean(&mut fields, "raw_text", LONGEST_EMAIL_TEXT);
    let from = read_from(&mut fields);
    let subject = fields.text("subject").filter(|subject| within(&mut fields, "subject", subject, LONGEST_SUBJECT));
    let subject = subject.map(one_line);
    let asked = word(&mut fields, "content_type", &CONTENT_TYPES, ContentType::as_str);
    let metadata = metadata(&mut fields);
    let source = fields.optional_object("source");
    let mail = match source {
        Some(source) => fields.nested("source", source, read_source),
        None => Some(Mail::default()),
    };
    let readable = !fields.refused("content_type") && !fields.refused("source");
    let (Some(text), Some((from, from_addr)), Some(subject), Some(mail), true) = (text, from, subject, mail, readable)
    else {
        return fields.finish(None);
    };
    let content_type = asked.unwrap_or_else(|| decide(&mail, &text));
    let keys = match content_type {
        ContentType::Newsletter => newsletter_keys(&mut fields, &mail, &from_addr, &subject),
        _ => thread_keys(&mut fields, &subject),
    };
    let entry = Entry {
        source: Source::Email { message_id: mail.message_id, date: mail.date },
        content_type,
        clean_text: text,
        url: None,
        canonical_url: None,
        from: Some(from),
        from_addr: Some(from_addr),
        subject_base: Some(subject_base(&subject)).filter(|base| !base.is_empty()),
        subject: Some(subject).filter(|subject| !subject.is_empty()),
    };
    fields.finish(keys.map(|keys| Normalized { entry, metadata, keys }))
}

fn decide(mail: &Mail, text: &str) -> ContentType {
    match mail.has_list_headers || looks_like_newsletter(text) {
        true => ContentType::Newsletter,
        false => ContentType::CorrespondenceThread,
    }
}

/// The header as it is shown, and the address in it.
fn read_from(fields: &mut Fields<'_>) -> Option<(String, String)> {
    let from = fields.text("from")?;
    if !within(fields, "from", from, LONGEST_FROM) {
        return None;
    }
    let address = from_addr(from);
    if address.is_none() {
        fields.refuse("from", FieldProblem::Malformed, "must have an address, such as News <news@example.com>");
    }
    Some((one_line(from), address?))
}

fn read_source(source: &mut Fields<'_>) -> Option<Mail> {
    same_system(source, System::Email);
    // The mail's own `from` and `subject` count; these were never looked at.
    source.ignore("from_addr");
    source.ignore("subject");
    let id = blank_is_absent(source, "message_id");
    let id = id.filter(|id| within(source, "message_id", id, LONGEST_MESSAGE_ID)).and_then(message_id);
    let sent = blank_is_absent(source, "date").and_then(|text| {
        let sent = date(text);
        if sent.is_none() {
            let detail = "must be an RFC 3339 time, or a Date header such as Tue, 1 Jul 2025 04:00:00 +0000";
            source.refuse("date", FieldProblem::Malformed, detail);
        }
        sent
    });
    let headers = source.optional_object("headers");
    Some(Mail { message_id: id, date: sent, has_list_headers: headers.is_some_and(are_of_a_list) })
}

/// Whether somebody sent it to many: RFC 2369 and 2919 headers, or the older `Precedence`. Other headers are not
/// looked at.
fn are_of_a_list(headers: &Map<String, Value>) -> bool {
    headers.iter().any(|(name, value)| match name.to_ascii_lowercase().as_str() {
        "list-id" | "list-unsubscribe" => texts(value).any(|text| !text.trim().is_empty()),
        "precedence" => texts(value).any(|text| text.trim().eq_ignore_ascii_case("bulk")),
        _ => false,
    })
}

/// A header that came more than once is a list.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let many = value.as_array().map(Vec::as_slice).unwrap_or_default();
    value.as_str().into_iter().chain(many.iter().filter_map(Value::as_str))
}

fn newsletter_keys(fields: &mut Fields<'_>, mail: &Mail, from_addr: &str, subject: &str) -> Option<Keys> {
    let secondary = newsletter_key(from_addr, subject, mail.date);
    if mail.message_id.is_none() && secondary.is_none() {
        let detail = "a newsletter needs its Message-ID, or else a date and a subject";
        let other = if mail.date.is_none() { "source.date" } else { "subject" };
        for name in ["source.message_id", other] {
            if !fields.refused(name) {
                fields.refuse(name, FieldProblem::Missing, detail);
            }
        }
        return None;
    }
    Some(Keys { policy: ContentType::Newsletter.policy(), primary: mail.message_id.clone(), secondary })
}

/// One thread of all mails without a subject would be no thread.
fn thread_keys(fields: &mut Fields<'_>, subject: &str) -> Option<Keys> {
    let base = subject_base(subject);
    if base.is_empty() {
        fields.refuse("subject", FieldProblem::Missing, "says nothing besides its prefixes and tags");
        return None;
    }
    let primary = Some(thread_hash(&base));
    Some(Keys { policy: ContentType::CorrespondenceThread.policy(), primary, secondary: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::mail::newsletter_hash;
    use crate::ingest::words::PolicyKey;

    fn take(body: &Value) -> Normalized {
        normalize_email(body.as_object().expect("an object")).unwrap_or_else(|errors| panic!("{body}: {errors:?}"))
    }

    fn refusals(body: &Value) -> Vec<(String, FieldProblem)> {
        let errors = normalize_email(body.as_object().expect("an object")).expect_err("refused");
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    fn mail(text: &str, source: Value) -> Value {
        let subject = "Re: [Weekly] The  Digest";
        json!({"raw_text": text, "from": "News <News@Example.com>", "subject": subject, "source": source})
    }

    #[test]
    fn a_newsletter_is_known_by_its_headers_or_its_footer() {
        for headers in [
            json!({"List-Id": "<weekly.example.com>"}),
            json!({"list-unsubscribe": ["<https://example.com/u>"]}),
            json!({"Precedence": "Bulk", "X-Other": 5}),
        ] {
            let taken = take(&mail("hi", json!({"message_id": "<a@b>", "headers": headers})));
            assert_eq!(taken.entry.content_type, ContentType::Newsletter, "{headers}");
        }
        let by_text = take(&mail("hi\nUnsubscribe: https://example.com/u", json!({"message_id": "<a@b>"})));
        assert_eq!(by_text.keys.policy, PolicyKey::EmailNewsletterV1);
        for headers in [json!({"List-Id": " "}), json!({"Precedence": "normal"}), json!({"Subject": "x"}), json!({})] {
            let taken = take(&mail("hi", json!({"message_id": "<a@b>", "headers": headers})));
            assert_eq!(taken.entry.content_type, ContentType::CorrespondenceThread, "{headers}");
        }
    }

    #[test]
    fn what_the_caller_says_it_is_wins() {
        let mut body = mail("hi", json!({"headers": {"List-Id": "x"}}));
        body["content_type"] = json!("correspondence_thread");
        assert_eq!(take(&body).keys.primary, Some(thread_hash("the digest")));
    }

    #[test]
    fn a_newsletter_without_message_id_is_known_by_sender_subject_and_day() {
        let mut body = mail("hi", json!({"message_id": " ", "date": "Tue, 1 Jul 2025 04:00:00 +0000"}));
        body["content_type"] = json!("newsletter");
        let taken = take(&body);
        assert_eq!(taken.keys.primary, None);
        assert_eq!(taken.keys.secondary, Some(newsletter_hash("news@example.com", "the digest", "2025-06-30")));
        body["source"] = json!({"message_id": "a@b"});
        let taken = take(&body);
        assert_eq!((taken.keys.primary.as_deref(), taken.keys.secondary), (Some("<a@b>"), None));
    }

    #[test]
    fn the_canonical_fields_are_in_their_one_form() {
        let taken = take(&mail(" hi\r\n", json!({"from_addr": "other@x.y", "subject": 5, "system": "email"})));
        assert_eq!(taken.entry.from.as_deref(), Some("News <News@Example.com>"));
        assert_eq!(taken.entry.from_addr.as_deref(), Some("news@example.com"));
        assert_eq!(taken.entry.subject.as_deref(), Some("Re: [Weekly] The Digest"));
        assert_eq!(taken.entry.subject_base.as_deref(), Some("the digest"));
        assert_eq!(taken.entry.clean_text, "hi");
    }

    #[test]
    fn bad_input_is_told_by_field() {
        use FieldProblem::{Conflicting, Malformed, Missing, NotAllowed, OutOfRange, Unknown, WrongType};
        let body = |change: Value| {
            let mut body = json!({"raw_text": "x", "from": "a@b.co", "subject": "s", "source": {}});
            body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
            body
        };
        let newsletter = |source: Value| body(json!({"content_type": "newsletter", "source": source}));
        let cases = [
            (json!({}), vec![("raw_text", Missing), ("from", Missing), ("subject", Missing)]),
            (body(json!({"from": "Nobody"})), vec![("from", Malformed)]),
            (body(json!({"subject": "[tag] Re:"})), vec![("subject", Missing)]),
            (body(json!({"subject": " "})), vec![("subject", Missing)]),
            (body(json!({"subject": "x".repeat(LONGEST_SUBJECT + 1)})), vec![("subject", OutOfRange)]),
            (body(json!({"raw_text": "x".repeat(LONGEST_EMAIL_TEXT + 1)})), vec![("raw_text", OutOfRange)]),
            (body(json!({"content_type": "thought"})), vec![("content_type", NotAllowed)]),
            (body(json!({"source": "email"})), vec![("source", WrongType)]),
            (body(json!({"source": {"system": "telegram"}})), vec![("source.system", Conflicting)]),
            (body(json!({"source": {"date": "2025-07-01"}})), vec![("source.date", Malformed)]),
            (
                body(json!({"source": {"date": 5, "message_id": 5, "headers": 5, "x": 5}})),
                vec![
                    ("source.message_id", WrongType),
                    ("source.date", WrongType),
                    ("source.headers", WrongType),
                    ("source.x", Unknown),
                ],
            ),
            (newsletter(json!({"date": "soon"})), vec![("source.date", Malformed), ("source.message_id", Missing)]),
            (newsletter(json!({})), vec![("source.message_id", Missing), ("source.date", Missing)]),
            (
                newsletter(json!({"message_id": "<>", "date": " "})),
                vec![("source.message_id", Missing), ("source.date", Missing)],
            ),
            (
                body(
                    json!({"content_type": "newsletter", "subject": "[x]", "source": {"date": "2025-07-01T00:00:00Z"}}),
                ),
                vec![("source.message_id", Missing), ("subject", Missing)],
            ),
            (body(json!({"text": "x"})), vec![("text", Unknown)]),
        ];
        for (body, told) in cases {
            let told: Vec<_> = told.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
            assert_eq!(refusals(&body), told, "{body}");
        }
    }
}
