//! `POST /db/insert`: accepts what normalization returned, and nothing else. An entry without keys
//! is not inserted.

use serde_json::{Map, Value};

use super::entry::{Entry, Keys, Normalized, Source};
use super::link::LONGEST_URL;
use super::mail::message_id;
use super::reading::{LONGEST_EMAIL_TEXT, LONGEST_FROM, LONGEST_MESSAGE_ID, LONGEST_SUBJECT, LONGEST_TELEGRAM_TEXT};
use super::reading::{blank_is_absent, clean, integer, line, link, metadata, telegram_time, within, word};
use super::shape::{POLICY, PRIMARY, SECONDARY, check_keys};
use super::words::{ContentType, PolicyKey, System};
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};

/// Reads a normalized entry. Its keys must have the shape of their policy, and match the fields of
/// the entry.
pub fn read_insert(body: &Map<String, Value>) -> Result<Normalized, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let source = read_source(&mut fields);
    let system = source.as_ref().map(Source::system);
    let content_type = word(&mut fields, "content_type", ContentType::ALL, ContentType::as_str);
    let content_type = fields.required("content_type", content_type);
    let longest = if system == Some(System::Email) { LONGEST_EMAIL_TEXT } else { LONGEST_TELEGRAM_TEXT };
    let clean_text = clean(&mut fields, "clean_text", longest);
    let url = link(&mut fields, "url").map(|link| link.url);
    let canonical_url = link(&mut fields, "canonical_url").map(|link| link.canonical_url);
    // Lower case and punycode can be longer than the original text.
    let from = of_mail(&mut fields, "from", LONGEST_FROM, system);
    let from_addr = of_mail(&mut fields, "from_addr", 2 * LONGEST_FROM, system);
    let subject = of_mail(&mut fields, "subject", LONGEST_SUBJECT, system);
    let subject_base = of_mail(&mut fields, "subject_base", 2 * LONGEST_SUBJECT, system);
    let metadata = metadata(&mut fields);
    let keys = read_keys(&mut fields);
    let (Some(source), Some(content_type), Some(clean_text), Some(keys)) = (source, content_type, clean_text, keys)
    else {
        return fields.finish(None);
    };
    let entry = Entry { source, content_type, clean_text, url, canonical_url, from, from_addr, subject, subject_base };
    check_keys(&mut fields, &entry, &keys);
    fields.finish(Some(Normalized { entry, metadata, keys }))
}

fn read_source(fields: &mut Fields<'_>) -> Option<Source> {
    let object = fields.optional_object("source");
    let object = fields.required("source", object)?;
    fields.nested("source", object, |source| {
        let system = word(source, "system", System::ALL, System::as_str);
        Some(match source.required("system", system)? {
            System::Telegram => Source::Telegram {
                chat_id: integer(source, "chat_id"),
                message_id: integer(source, "message_id"),
                date: telegram_time(source, "date"),
                edit_date: telegram_time(source, "edit_date"),
            },
            System::Email => {
                let id = blank_is_absent(source, "message_id");
                let id = id.filter(|id| within(source, "message_id", id, LONGEST_MESSAGE_ID + 2));
                Source::Email { message_id: id.and_then(message_id), date: source.optional_timestamp("date") }
            }
        })
    })
}

/// Reads a column that only a mail has.
fn of_mail(fields: &mut Fields<'_>, name: &'static str, longest: usize, system: Option<System>) -> Option<String> {
    let text = line(fields, name, longest);
    let is_misplaced = text.is_some() && system == Some(System::Telegram);
    fields.refuse_if(is_misplaced, name, FieldProblem::NotAllowed, "is allowed only for emails");
    text
}

/// Reads the keys. A blank key counts as missing. The policy determines which of them are required.
fn read_keys(fields: &mut Fields<'_>) -> Option<Keys> {
    let (name, detail) = (fields.text(POLICY), "there is no such policy");
    let policy = name.and_then(|name| fields.or_refuse(POLICY, PolicyKey::parse(name), FieldProblem::Unknown, detail));
    let mut key = |name: &'static str| {
        let key = blank_is_absent(fields, name)?;
        within(fields, name, key, LONGEST_URL).then(|| key.to_owned())
    };
    let (primary, secondary) = (key(PRIMARY), key(SECONDARY));
    if primary.is_none() && secondary.is_none() {
        let is_missing = !fields.refused(PRIMARY) && !fields.refused(SECONDARY);
        let detail = "an entry without a key is not inserted: send what normalization returned";
        fields.refuse_if(is_missing, PRIMARY, FieldProblem::Missing, detail);
        return None;
    }
    Some(Keys { policy: policy?, primary, secondary })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::{normalize_email, normalize_telegram};

    fn object(value: &Value) -> &Map<String, Value> {
        value.as_object().expect("an object")
    }

    /// Returns one normalized entry of each policy, as JSON.
    fn normalized() -> Vec<Value> {
        let message = json!({"chat_id": -5, "message_id": 7, "date": 1_751_342_400, "edit_date": 1_751_342_401});
        let telegrams = [
            json!({"text": "x", "metadata": {"a": [1, null]}, "source": message}),
            json!({"text": "see https://user:secret@bücher.example/a?utm_source=1#b"}),
        ];
        let mail = |kind: &str| {
            let source = json!({"message_id": "a@b", "date": "2025-07-01T04:00:00Z"});
            let from = "É <É@b.co>";
            json!({"raw_text": "x", "from": from, "subject": "Re: [x] Olá", "content_type": kind, "source": source})
        };
        let telegrams = telegrams.iter().map(|body| normalize_telegram(object(body)));
        let mails = [mail("newsletter"), mail("correspondence_thread")];
        let all = telegrams.chain(mails.iter().map(|body| normalize_email(object(body))));
        all.map(|taken| serde_json::to_value(taken.expect("normalized")).expect("json")).collect()
    }

    fn refusals(body: &Value) -> Vec<(String, FieldProblem)> {
        let errors = read_insert(object(body)).err().unwrap_or_default();
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    fn with(index: usize, changes: &Value) -> Value {
        let mut body = normalized().remove(index);
        for (name, value) in object(changes) {
            body[name] = value.clone();
        }
        body
    }

    #[test]
    fn normalized_input_is_accepted_unchanged() {
        for body in normalized() {
            let taken = read_insert(object(&body)).unwrap_or_else(|errors| panic!("{body}: {errors:?}"));
            assert_eq!(serde_json::to_value(&taken).expect("json"), body);
        }
    }

    #[test]
    fn random_input_that_was_normalized_can_be_inserted() {
        let parts = [
            "Re:",
            "[x]",
            " ",
            "\t",
            "\r\n",
            "\u{0}",
            "\u{1b}",
            "İ",
            "é",
            "😀",
            "a",
            "\u{feff}",
            "https://a.example/",
            "?b=1",
            "#c",
            "<a@b.co>",
            "\"",
            ",",
            "(",
            "unsubscribe",
            "\u{85}",
            "\u{2028}",
            "=?utf-8?q?=0AOl=C3=A1?=",
            "=?iso-8859-1?b?6enp?=",
            "=?",
        ];
        let mut dice = fastrand::Rng::with_seed(17);
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut text = || -> String { (0..dice.usize(1..7)).map(|_| parts[dice.usize(0..parts.len())]).collect() };
            let telegram = json!({"text": text(), "source": {"chat_id": 1, "message_id": 2}});
            let source = json!({"message_id": text(), "date": "2025-07-01T04:00:00Z"});
            let from = format!("{} <a@b.co>", text());
            let (raw_text, html) = (text(), text());
            let mail = json!({"raw_text": raw_text, "html": html, "from": from, "subject": text(), "source": source});
            for normalized in
                [normalize_telegram(object(&telegram)), normalize_email(object(&mail))].into_iter().flatten()
            {
                let json = serde_json::to_value(&normalized).expect("json");
                assert_eq!(read_insert(object(&json)), Ok(normalized), "{json}");
                taken += 1;
            }
        }
        assert!(taken > 10_000, "{taken}");
    }

    #[test]
    fn an_insert_without_keys_is_refused() {
        use FieldProblem::{Missing, Unknown, WrongType};
        let (policy, primary) = ("idempotency_policy_key", "idempotency_key_primary");
        for index in 0..4 {
            let none = json!({policy: null, primary: " ", "idempotency_key_secondary": ""});
            assert_eq!(refusals(&with(index, &none)), [(policy.to_owned(), Missing), (primary.to_owned(), Missing)]);
            assert_eq!(refusals(&with(index, &json!({policy: "telegram_v9"}))), [(policy.to_owned(), Unknown)]);
            assert_eq!(refusals(&with(index, &json!({primary: 7})))[0], (primary.to_owned(), WrongType));
        }
    }

    #[test]
    fn a_newsletter_with_a_blank_message_id_is_identified_by_its_secondary_key() {
        let body = with(2, &json!({"idempotency_key_primary": " ", "source": {"system": "email"}}));
        let taken = read_insert(object(&body)).expect("taken");
        assert_eq!(taken.keys.primary, None);
        assert!(taken.keys.secondary.is_some());
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        use FieldProblem::{Malformed, Missing, NotAllowed, OutOfRange, Unknown, WrongType};
        let cases = [
            (
                json!({}),
                vec!["source", "content_type", "clean_text", "idempotency_policy_key", "idempotency_key_primary"],
                Missing,
            ),
            (with(0, &json!({"source": {}})), vec!["source.system"], Missing),
            (with(0, &json!({"source": {"system": "sms"}})), vec!["source.system"], NotAllowed),
            (with(0, &json!({"source": "telegram"})), vec!["source"], WrongType),
            (with(0, &json!({"source": {"system": "telegram", "headers": {}}})), vec!["source.headers"], Unknown),
            (with(0, &json!({"content_type": "tweet"})), vec!["content_type"], NotAllowed),
            (with(0, &json!({"from": "a@b.co", "subject": "x"})), vec!["from", "subject"], NotAllowed),
            (with(0, &json!({"clean_text": "x".repeat(LONGEST_TELEGRAM_TEXT + 1)})), vec!["clean_text"], OutOfRange),
            (with(0, &json!({"entry_id": "e", "created_at": "x"})), vec!["created_at", "entry_id"], Unknown),
            (with(1, &json!({"canonical_url": "nowhere", "url": "x:y"})), vec!["url", "canonical_url"], Malformed),
            (with(2, &json!({"source": {"system": "email", "date": "soon"}})), vec!["source.date"], Malformed),
            (with(2, &json!({"clean_text": "x".repeat(LONGEST_EMAIL_TEXT + 1)})), vec!["clean_text"], OutOfRange),
        ];
        for (body, names, code) in cases {
            let errors: Vec<_> = names.into_iter().map(|name| (name.to_owned(), code)).collect();
            assert_eq!(refusals(&body), errors, "{code}");
        }
    }
}
