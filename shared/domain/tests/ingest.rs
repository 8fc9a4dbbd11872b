//! The shared test vectors.

use serde::Deserialize;
use serde_json::{Map, Value};
use umavez_domain::ingest::{date_bucket, normalize_email, normalize_telegram, read_insert, subject_base};
use umavez_domain::time::Timestamp;

#[derive(Deserialize)]
struct Vectors {
    subject_base: Vec<Subject>,
    date_bucket: Vec<Day>,
    email: Vec<Item>,
    telegram: Vec<Item>,
}

#[derive(Deserialize)]
struct Subject {
    subject: String,
    base: String,
}

#[derive(Deserialize)]
struct Day {
    date: String,
    bucket: String,
}

#[derive(Deserialize)]
struct Item {
    input: Map<String, Value>,
    expect: Map<String, Value>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("data/ingest.json")).expect("vectors")
}

#[test]
fn every_subject_of_the_vectors_has_its_base() {
    let vectors = vectors().subject_base;
    assert_eq!(vectors.len(), 9);
    for vector in vectors {
        assert_eq!(subject_base(&vector.subject), vector.base, "{}", vector.subject);
    }
}

#[test]
fn every_date_of_the_vectors_falls_on_its_day() {
    let vectors = vectors().date_bucket;
    assert_eq!(vectors.len(), 7);
    for vector in vectors {
        let at = Timestamp::parse(&vector.date).expect("a time");
        assert_eq!(date_bucket(at), Some(vector.bucket), "{}", vector.date);
    }
}

#[test]
fn every_item_of_the_vectors_has_its_keys_and_can_be_inserted() {
    let Vectors { email, telegram, .. } = vectors();
    assert_eq!((email.len(), telegram.len()), (4, 2));
    let emails = email.into_iter().map(|item| (normalize_email(&item.input), item));
    let telegrams = telegram.into_iter().map(|item| (normalize_telegram(&item.input), item));
    for (taken, item) in emails.chain(telegrams) {
        let taken = taken.unwrap_or_else(|errors| panic!("{:?}: {errors:?}", item.input));
        let json = serde_json::to_value(&taken).expect("json");
        for (name, value) in &item.expect {
            assert_eq!(json.get(name), Some(value), "{name} of {:?}", item.input);
        }
        assert_eq!(read_insert(json.as_object().expect("an object")), Ok(taken));
    }
}
