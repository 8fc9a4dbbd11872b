//! Merges an input into an entry. Objects merge recursively, arrays and scalars replace the old
//! value, and fields that the input does not have stay. Ids, creation times, policy and keys are
//! not columns, so no merge changes them.

use serde_json::{Map, Value};

use super::entry::{Entry, Metadata, Normalized, Source};
use super::words::Column;

/// Returns the entry after `input`. `update_fields` are the columns that may change. `None`: all
/// columns may change.
pub fn merge(
    entry: &Entry,
    metadata: &Metadata,
    input: &Normalized,
    update_fields: Option<&[Column]>,
) -> (Entry, Metadata) {
    let (mut entry, mut metadata) = (entry.clone(), metadata.clone());
    let incoming = &input.entry;
    for column in update_fields.unwrap_or(Column::ALL) {
        match column {
            Column::Source => merge_source(&mut entry.source, &incoming.source),
            Column::ContentType => entry.content_type = incoming.content_type,
            Column::CleanText => entry.clean_text.clone_from(&incoming.clean_text),
            Column::Url => replace(&mut entry.url, &incoming.url),
            Column::CanonicalUrl => replace(&mut entry.canonical_url, &incoming.canonical_url),
            Column::From => replace(&mut entry.from, &incoming.from),
            Column::FromAddr => replace(&mut entry.from_addr, &incoming.from_addr),
            Column::Subject => replace(&mut entry.subject, &incoming.subject),
            Column::SubjectBase => replace(&mut entry.subject_base, &incoming.subject_base),
            Column::Metadata => merge_objects(&mut metadata, &input.metadata),
        }
    }
    (entry, metadata)
}

fn replace<T: Clone>(old: &mut Option<T>, new: &Option<T>) {
    if new.is_some() {
        old.clone_from(new);
    }
}

fn merge_source(old: &mut Source, new: &Source) {
    match (old, new) {
        (
            Source::Telegram { chat_id, message_id, date, edit_date },
            Source::Telegram { chat_id: chat, message_id: message, date: sent, edit_date: edited },
        ) => {
            replace(chat_id, chat);
            replace(message_id, message);
            replace(date, sent);
            replace(edit_date, edited);
        }
        (Source::Email { message_id, date }, Source::Email { message_id: id, date: sent }) => {
            replace(message_id, id);
            replace(date, sent);
        }
        // A policy belongs to one system, so this case does not occur.
        (old, new) => old.clone_from(new),
    }
}

/// Merges `new` into `old`. A null neither deletes nor replaces an existing value.
fn merge_objects(old: &mut Map<String, Value>, new: &Map<String, Value>) {
    for (name, value) in new {
        match (old.get_mut(name), value) {
            (Some(_), Value::Null) => {}
            (Some(Value::Object(old)), Value::Object(new)) => merge_objects(old, new),
            (Some(old), new) => old.clone_from(new),
            (None, new) => {
                old.insert(name.clone(), new.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ingest::{normalize_email, normalize_telegram};

    fn mail(subject: &str, text: &str, source: Value, metadata: Value) -> Normalized {
        let body = json!({
            "raw_text": text, "from": "a@b.co", "subject": subject, "content_type": "correspondence_thread",
            "source": source, "metadata": metadata,
        });
        normalize_email(body.as_object().expect("an object")).expect("normalized")
    }

    fn merged(old: &Normalized, new: &Normalized, update_fields: Option<&[Column]>) -> (Entry, Metadata) {
        merge(&old.entry, &old.metadata, new, update_fields)
    }

    #[test]
    fn objects_are_merged_and_all_other_values_are_replaced() {
        let cases = [
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (
                json!({"a": {"x": 1, "y": {"z": 1}}}),
                json!({"a": {"y": {"w": 2}}}),
                json!({"a": {"x": 1, "y": {"z": 1, "w": 2}}}),
            ),
            (json!({"a": [1, 2, 3]}), json!({"a": [4]}), json!({"a": [4]})),
            (json!({"a": [{"x": 1}]}), json!({"a": [{"y": 1}]}), json!({"a": [{"y": 1}]})),
            (json!({"a": {"x": 1}}), json!({"a": 5}), json!({"a": 5})),
            (json!({"a": 5}), json!({"a": {"x": 1}}), json!({"a": {"x": 1}})),
            (json!({"a": 5, "b": {"c": 1}}), json!({"a": null, "b": {"c": null}}), json!({"a": 5, "b": {"c": 1}})),
            (json!({}), json!({"a": null}), json!({"a": null})),
            (json!({"a": 1}), json!({}), json!({"a": 1})),
        ];
        for (old, new, expected) in cases {
            let (old, new) = (mail("s", "x", json!({}), old), mail("s", "x", json!({}), new));
            assert_eq!(Value::Object(merged(&old, &new, None).1), expected);
        }
    }

    #[test]
    fn fields_that_the_input_leaves_out_are_kept() {
        let source = json!({"message_id": "<a@b>", "date": "2025-07-01T04:00:00Z"});
        let old = mail("Lunch?", "first", source, json!({}));
        let new = mail("Re: Lunch?", "second", json!({"message_id": "<c@d>"}), json!({}));
        let (entry, _) = merged(&old, &new, None);
        assert_eq!(entry.clean_text, "second");
        assert_eq!(entry.subject.as_deref(), Some("Re: Lunch?"));
        assert_eq!(entry.source, Source::Email { message_id: Some("<c@d>".into()), date: old.entry.source.time() });
    }

    #[test]
    fn only_the_columns_of_the_policy_change() {
        let old = mail("Lunch?", "first", json!({}), json!({"a": 1}));
        let new = mail("Re: Lunch?", "second", json!({}), json!({"b": 2}));
        let (entry, metadata) = merged(&old, &new, Some(&[Column::Metadata]));
        assert_eq!(entry, old.entry);
        assert_eq!(Value::Object(metadata), json!({"a": 1, "b": 2}));
        let (entry, metadata) = merged(&old, &new, Some(&[Column::CleanText]));
        assert_eq!((entry.clean_text.as_str(), entry.subject.as_deref()), ("second", Some("Lunch?")));
        assert_eq!(metadata, old.metadata);
    }

    #[test]
    fn a_thought_may_become_a_note_and_keeps_its_date_beside_the_edit_date() {
        let thought = |kind: &str, source: Value| {
            let body = json!({"text": "x", "content_type": kind, "source": source});
            normalize_telegram(body.as_object().expect("an object")).expect("normalized")
        };
        let old = thought("thought", json!({"chat_id": 1, "message_id": 2, "date": 5}));
        let new = thought("note", json!({"chat_id": 1, "message_id": 2, "edit_date": 9}));
        let (entry, _) = merged(&old, &new, None);
        assert_eq!(serde_json::to_value(entry.content_type).expect("json"), "note");
        let source = serde_json::to_value(&entry.source).expect("json");
        assert_eq!(
            (&source["date"], &source["edit_date"]),
            (&json!("1970-01-01T00:00:05Z"), &json!("1970-01-01T00:00:09Z"))
        );
    }

    fn random_value(dice: &mut fastrand::Rng, depth: usize) -> Value {
        match dice.usize(0..if depth == 0 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => json!(dice.i64(-3..3)),
            2 => json!("text"),
            3 => json!(dice.bool()),
            4 => Value::Array((0..dice.usize(0..3)).map(|_| random_value(dice, depth - 1)).collect()),
            _ => Value::Object(random_object(dice, depth - 1)),
        }
    }

    fn random_object(dice: &mut fastrand::Rng, depth: usize) -> Map<String, Value> {
        let names = ["a", "b", "c", ""];
        (0..dice.usize(0..4)).map(|_| (names[dice.usize(0..4)].to_owned(), random_value(dice, depth))).collect()
    }

    #[test]
    fn merging_the_same_input_twice_changes_nothing() {
        let mut dice = fastrand::Rng::with_seed(23);
        for round in 0..5_000 {
            let sources = [json!({}), json!({"message_id": "<a@b>"}), json!({"date": "2025-07-01T04:00:00Z"})];
            let mut any = |text: &str| {
                let source = sources[dice.usize(0..3)].clone();
                mail(text, text, source, Value::Object(random_object(&mut dice, 3)))
            };
            let (old, new) = (any("first"), any("second"));
            let columns: Vec<_> = Column::ALL.iter().copied().filter(|_| dice.bool()).collect();
            let update_fields = dice.bool().then_some(columns.as_slice());
            let (entry, metadata) = merged(&old, &new, update_fields);
            let again = merge(&entry, &metadata, &new, update_fields);
            assert_eq!(again, (entry, metadata), "round {round}");
        }
    }
}
