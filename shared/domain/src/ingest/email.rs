//! `POST /normalize/email`: a mail is an issue of a newsletter, or part of a correspondence.

use serde_json::{Map, Value};

use super::encoded_words::decode_words;
use super::entry::{Entry, Keys, Normalized, Source};
use super::html::text_of_html;
use super::mail::{date, from_addr, message_id, newsletter_key, thread_hash};
use super::reading::{LONGEST_EMAIL_HTML, LONGEST_EMAIL_TEXT, LONGEST_FROM, LONGEST_MESSAGE_ID, LONGEST_SUBJECT};
use super::reading::{blank_is_absent, clean, metadata, within, word};
use super::subject::subject_base;
use super::telegram::same_system;
use super::text::{clean_text, looks_like_newsletter, one_line};
use super::words::{ContentType, System};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};
use crate::time::Timestamp;

const CONTENT_TYPES: [ContentType; 2] = [ContentType::Newsletter, ContentType::CorrespondenceThread];

/// The `source` of a request.
#[derive(Debug, Default)]
struct Mail {
    message_id: Option<String>,
    date: Option<Timestamp>,
    has_list_headers: bool,
}

/// Normalizes a mail: `{raw_text?, html?, from, subject?, content_type?, metadata?, source?:
/// {message_id?, date?, headers?}}`.
///
/// A mail needs a text, as `raw_text` or as `html`. A thread needs a subject. A newsletter needs a
/// Message-ID, or a date and a subject.
pub fn normalize_email(body: &Map<String, Value>) -> Result<Normalized, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let text = read_text(&mut fields);
    let from = read_from(&mut fields);
    let subject = read_subject(&mut fields);
    let asked = word(&mut fields, "content_type", &CONTENT_TYPES, ContentType::as_str);
    let metadata = metadata(&mut fields);
    let source = fields.optional_object("source");
    let mail = match source {
        Some(source) => fields.nested("source", source, read_source),
        None => Some(Mail::default()),
    };
    let readable = !["subject", "content_type", "source"].into_iter().any(|name| fields.refused(name));
    let Some(mail) = mail.filter(|_| readable) else { return fields.finish(None) };
    let content_type = asked.unwrap_or_else(|| decide(&mail, text.as_deref().unwrap_or_default()));
    let (from, from_addr) = from.unzip();
    let said = subject.as_deref().unwrap_or_default();
    let keys = match content_type {
        ContentType::Newsletter => newsletter_keys(&mut fields, &mail, from_addr.as_deref().unwrap_or_default(), said),
        _ => thread_keys(&mut fields, said),
    };
    let (Some(clean_text), Some(_), Some(keys)) = (text, &from_addr, keys) else { return fields.finish(None) };
    let entry = Entry {
        source: Source::Email { message_id: mail.message_id, date: mail.date },
        content_type,
        clean_text,
        url: None,
        canonical_url: None,
        from,
        from_addr,
        subject_base: Some(subject_base(said)).filter(|base| !base.is_empty()),
        subject,
    };
    fields.finish(Some(Normalized { entry, metadata, keys }))
}

/// Reads the text of a mail. For a mail that has only HTML, returns the text that a reader sees.
fn read_text(fields: &mut Fields<'_>) -> Option<String> {
    let (raw, html) = (blank_is_absent(fields, "raw_text"), blank_is_absent(fields, "html"));
    let Some(html) = html.filter(|_| raw.is_none_or(|raw| clean_text(raw).is_empty())) else {
        return clean(fields, "raw_text", LONGEST_EMAIL_TEXT);
    };
    if fields.refused("raw_text") || !within(fields, "html", html, LONGEST_EMAIL_HTML) {
        return None;
    }
    let text = clean_text(&text_of_html(html));
    let longer = format!("must not have more than {LONGEST_EMAIL_TEXT} bytes of text");
    fields.refuse_if(text.is_empty(), "html", FieldProblem::Missing, "has no visible text");
    fields.refuse_if(text.len() > LONGEST_EMAIL_TEXT, "html", FieldProblem::OutOfRange, longer);
    Some(text).filter(|_| !fields.refused("html"))
}

/// Reads the subject and returns it decoded. `None` if there is none.
fn read_subject(fields: &mut Fields<'_>) -> Option<String> {
    let subject = blank_is_absent(fields, "subject")?;
    header(fields, "subject", subject, LONGEST_SUBJECT).filter(|subject| !subject.is_empty())
}

/// Decodes the encoded words of a header and returns it as one line.
fn header(fields: &mut Fields<'_>, name: &'static str, text: &str, longest: usize) -> Option<String> {
    if !within(fields, name, text, longest) {
        return None;
    }
    let decoded = one_line(&decode_words(text));
    within(fields, name, &decoded, longest).then_some(decoded)
}

fn decide(mail: &Mail, text: &str) -> ContentType {
    match mail.has_list_headers || looks_like_newsletter(text) {
        true => ContentType::Newsletter,
        false => ContentType::CorrespondenceThread,
    }
}

/// Reads the `From` header. Returns it as it is shown, and the address in it. The address is read
/// before names are decoded, so an encoded name cannot introduce another address.
fn read_from(fields: &mut Fields<'_>) -> Option<(String, String)> {
    let from = fields.text("from")?;
    let shown = header(fields, "from", from, LONGEST_FROM)?;
    let detail = "must have an address, such as News <news@example.com>";
    Some((shown, fields.or_refuse("from", from_addr(from), FieldProblem::Malformed, detail)?))
}

fn read_source(source: &mut Fields<'_>) -> Option<Mail> {
    same_system(source, System::Email);
    // The mail's own `from` and `subject` apply. These two fields were never used.
    source.ignore("from_addr");
    source.ignore("subject");
    let id = blank_is_absent(source, "message_id");
    let id = id.filter(|id| within(source, "message_id", id, LONGEST_MESSAGE_ID)).and_then(message_id);
    let detail = "must be an RFC 3339 time, or a Date header such as Tue, 1 Jul 2025 04:00:00 +0000";
    let sent = blank_is_absent(source, "date");
    let sent = sent.and_then(|text| source.or_refuse("date", date(text), FieldProblem::Malformed, detail));
    let headers = source.optional_object("headers");
    Some(Mail { message_id: id, date: sent, has_list_headers: headers.is_some_and(are_of_a_list) })
}

/// Returns whether the mail was sent to many recipients: it has RFC 2369 or 2919 headers, or the
/// older `Precedence`. Other headers are ignored.
fn are_of_a_list(headers: &Map<String, Value>) -> bool {
    headers.iter().any(|(name, value)| match name.to_ascii_lowercase().as_str() {
        "list-id" | "list-unsubscribe" => texts(value).any(|text| !text.trim().is_empty()),
        "precedence" => texts(value).any(|text| text.trim().eq_ignore_ascii_case("bulk")),
        _ => false,
    })
}

/// Returns the texts of a header. A header that occurs more than once is an array.
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
            fields.refuse_if(!fields.refused(name), name, FieldProblem::Missing, detail);
        }
        return None;
    }
    Some(Keys { policy: ContentType::Newsletter.policy(), primary: mail.message_id.clone(), secondary })
}

/// Returns the keys of a thread. A subject is required: the mails without a subject must not form
/// one thread.
fn thread_keys(fields: &mut Fields<'_>, subject: &str) -> Option<Keys> {
    let detail = "is required for a thread, and must have text besides prefixes such as Re: and [tags]";
    let base = Some(subject_base(subject)).filter(|base| !base.is_empty());
    let primary = Some(thread_hash(&fields.or_refuse("subject", base, FieldProblem::Missing, detail)?));
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

    /// Returns a subject of at most this many bytes that is longer once it is decoded.
    fn latin_1(bytes: usize) -> String {
        format!("=?iso-8859-1?b?{}?=", "6enp".repeat((bytes - 20) / 4))
    }

    #[test]
    fn a_newsletter_is_recognized_by_its_headers_or_its_footer() {
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
    fn the_content_type_that_the_caller_gives_is_used() {
        let mut body = mail("hi", json!({"headers": {"List-Id": "x"}}));
        body["content_type"] = json!("correspondence_thread");
        assert_eq!(take(&body).keys.primary, Some(thread_hash("the digest")));
    }

    #[test]
    fn a_newsletter_without_message_id_is_identified_by_sender_subject_and_day() {
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
    fn the_canonical_fields_are_normalized() {
        let taken = take(&mail(" hi\r\n", json!({"from_addr": "other@x.y", "subject": 5, "system": "email"})));
        assert_eq!(taken.entry.from.as_deref(), Some("News <News@Example.com>"));
        assert_eq!(taken.entry.from_addr.as_deref(), Some("news@example.com"));
        assert_eq!(taken.entry.subject.as_deref(), Some("Re: [Weekly] The Digest"));
        assert_eq!(taken.entry.subject_base.as_deref(), Some("the digest"));
        assert_eq!(taken.entry.clean_text, "hi");
    }

    #[test]
    fn a_subject_is_decoded_before_it_becomes_a_key() {
        let subject = |text: &str| {
            let body = json!({"raw_text": "x", "from": "a@b.co", "subject": text});
            (take(&body).entry.subject, take(&body).entry.subject_base, take(&body).keys.primary)
        };
        let plain = subject("Re: Olá Mundo");
        assert_eq!(plain.1.as_deref(), Some("olá mundo"));
        for encoded in [
            "Re: =?utf-8?B?T2zDoSBNdW5kbw==?=",
            "=?UTF-8?Q?Re:_Ol=C3=A1_Mundo?=",
            "Re: =?iso-8859-1?q?Ol=E1?= Mundo",
            "=?windows-1252?Q?Re=3A_Ol=E1?=\r\n =?utf-8?q?_Mundo?=",
        ] {
            assert_eq!(subject(encoded), plain, "{encoded}");
        }
        // Two subjects whose encoded words differ only in case are different subjects.
        assert_ne!(subject("=?utf-8?b?T2zDoQ==?=").2, subject("=?utf-8?b?t2zdoq==?=").2);
        let unknown = "=?x-unknown?q?Ol=E1?=";
        assert_eq!(subject(unknown).0.as_deref(), Some(unknown));
    }

    #[test]
    fn a_name_is_decoded_and_cannot_replace_the_address() {
        let from = |text: &str| {
            let taken = take(&json!({"raw_text": "x", "from": text, "subject": "s"})).entry;
            (taken.from.unwrap_or_default(), taken.from_addr.unwrap_or_default())
        };
        let expected = ("João <a@b.co>".to_owned(), "a@b.co".to_owned());
        assert_eq!(from("=?utf-8?q?Jo=C3=A3o?= <a@b.co>"), expected);
        assert_eq!(from("=?utf-8?q?Bank_=3Cbank=40example.com=3E?= <a@b.co>").1, "a@b.co");
    }

    #[test]
    fn an_email_with_only_html_has_its_visible_text() {
        let html = "<html><style>p {}</style><p>Hello</p><p>Unsubscribe: here</p></html>";
        for text in [json!(null), json!(""), json!(" \n"), json!("\u{0}")] {
            let source = json!({"message_id": "<a@b>"});
            let taken = take(&json!({"raw_text": text, "html": html, "from": "a@b.co", "source": source}));
            assert_eq!(taken.entry.clean_text, "Hello\n\nUnsubscribe: here");
            assert_eq!(taken.entry.content_type, ContentType::Newsletter, "by its footer");
        }
        let both = take(&json!({"raw_text": "text", "html": html, "from": "a@b.co", "subject": "s"}));
        assert_eq!(both.entry.clean_text, "text", "the text of the request is used");
    }

    #[test]
    fn a_newsletter_with_a_message_id_needs_no_subject() {
        for subject in [json!(null), json!(""), json!(" "), json!("Re:")] {
            let source = json!({"message_id": "<a@b>", "date": "2025-07-01T04:00:00Z"});
            let body = json!({"raw_text": "x", "from": "a@b.co", "subject": subject, "source": source,
                "content_type": "newsletter"});
            let taken = take(&body);
            assert_eq!((taken.keys.primary.as_deref(), taken.keys.secondary), (Some("<a@b>"), None));
            assert_eq!(taken.entry.subject_base, None);
        }
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
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
            (body(json!({"subject": null, "source": {"message_id": "<a@b>"}})), vec![("subject", Missing)]),
            (body(json!({"raw_text": " ", "html": ""})), vec![("raw_text", Missing)]),
            (body(json!({"raw_text": null, "html": "<img>"})), vec![("html", Missing)]),
            (body(json!({"raw_text": null, "html": 5})), vec![("html", WrongType), ("raw_text", Missing)]),
            (body(json!({"raw_text": 5, "html": "<p>x"})), vec![("raw_text", WrongType)]),
            (body(json!({"raw_text": null, "html": "x".repeat(LONGEST_EMAIL_HTML + 1)})), vec![("html", OutOfRange)]),
            (body(json!({"raw_text": null, "html": "x".repeat(LONGEST_EMAIL_TEXT + 1)})), vec![("html", OutOfRange)]),
            (body(json!({"subject": latin_1(LONGEST_SUBJECT)})), vec![("subject", OutOfRange)]),
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
        for (body, errors) in cases {
            let errors: Vec<_> = errors.into_iter().map(|(field, code)| (field.to_owned(), code)).collect();
            assert_eq!(refusals(&body), errors, "{body}");
        }
    }
}
