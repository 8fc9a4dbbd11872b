//! Common parts of the ingest requests: limits, and field readers that only these requests need.

use serde_json::Value;

use super::entry::Metadata;
use super::link::Link;
use super::text::{clean_text, one_line};
use crate::codes::FieldProblem;
use crate::fields::Fields;
use crate::time::Timestamp;

/// Limits are in bytes. An entry with its metadata stays well below the size limit of a row (400
/// KB), and a normalized entry fits into the body of an insert request.
pub const LONGEST_TELEGRAM_TEXT: usize = 32 * 1024;
pub const LONGEST_EMAIL_TEXT: usize = 128 * 1024;
/// The HTML from which a mail's text may be derived. A request may have 256 KB.
pub const LONGEST_EMAIL_HTML: usize = 224 * 1024;
pub const LARGEST_METADATA: usize = 32 * 1024;
pub const LONGEST_SUBJECT: usize = 2048;
pub const LONGEST_FROM: usize = 1024;
pub const LONGEST_MESSAGE_ID: usize = 998;

/// Reads an optional text; a blank text counts as absent. Used for parts of keys, and for fields
/// that mail programs leave empty.
pub fn blank_is_absent<'a>(fields: &mut Fields<'a>, name: &'static str) -> Option<&'a str> {
    let text = fields.get(name)?.as_str();
    let text = fields.or_refuse(name, text, FieldProblem::WrongType, "must be a string")?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

pub fn within(fields: &mut Fields<'_>, name: &'static str, text: &str, longest: usize) -> bool {
    let fits = text.len() <= longest;
    fields.refuse_if(!fits, name, FieldProblem::OutOfRange, format!("must not be longer than {longest} bytes"));
    fits
}

/// Reads a required text and returns it in its clean form.
pub fn clean(fields: &mut Fields<'_>, name: &'static str, longest: usize) -> Option<String> {
    let text = fields.text(name)?;
    if !within(fields, name, text, longest) {
        return None;
    }
    let seen = Some(clean_text(text)).filter(|text| !text.is_empty());
    fields.or_refuse(name, seen, FieldProblem::Missing, "has no visible text")
}

/// Reads an optional text and returns it as one line.
pub fn line(fields: &mut Fields<'_>, name: &'static str, longest: usize) -> Option<String> {
    let text = blank_is_absent(fields, name)?;
    within(fields, name, text, longest).then(|| one_line(text)).filter(|text| !text.is_empty())
}

/// Reads an optional URL.
pub fn link(fields: &mut Fields<'_>, name: &'static str) -> Option<Link> {
    let url = blank_is_absent(fields, name)?;
    Link::parse(url).map_err(|detail| fields.refuse(name, FieldProblem::Malformed, detail)).ok()
}

/// Reads an optional field that must be one of the `allowed` words.
pub fn word<T: Copy>(
    fields: &mut Fields<'_>,
    name: &'static str,
    allowed: &[T],
    as_str: impl Fn(T) -> &'static str,
) -> Option<T> {
    let text = fields.optional_text(name)?;
    fields.one_of(name, text, allowed, as_str)
}

/// Reads a whole number, given as a number or as text: templates of other systems turn numbers into
/// texts.
pub fn integer(fields: &mut Fields<'_>, name: &'static str) -> Option<i64> {
    let number = match fields.get(name)? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) if text.trim().is_empty() => return None,
        Value::String(text) => text.trim().parse().ok(),
        _ => {
            fields.refuse(name, FieldProblem::WrongType, "must be a whole number");
            return None;
        }
    };
    fields.or_refuse(name, number, FieldProblem::Malformed, "must be a whole number of at most 64 bits")
}

/// Reads a time, given in seconds since 1970 as in the Bot API, or as RFC 3339.
pub fn telegram_time(fields: &mut Fields<'_>, name: &'static str) -> Option<Timestamp> {
    let wanted = "must be seconds since 1970, or an RFC 3339 time";
    match fields.get(name)? {
        Value::Number(seconds) => {
            let seconds = seconds.as_i64().filter(|seconds| (0..=LAST_SECOND).contains(seconds));
            let at = seconds.map(Timestamp::from_seconds);
            fields.or_refuse(name, at, FieldProblem::OutOfRange, "must be whole seconds since 1970")
        }
        Value::String(text) if text.trim().is_empty() => None,
        Value::String(text) => fields.or_refuse(name, Timestamp::parse(text.trim()), FieldProblem::Malformed, wanted),
        _ => fields.or_refuse(name, None, FieldProblem::WrongType, wanted),
    }
}

/// 9999-12-30T00:00:00Z. Later times have no text form.
const LAST_SECOND: i64 = 253_402_128_000;

pub fn metadata(fields: &mut Fields<'_>) -> Metadata {
    let Some(object) = fields.optional_object("metadata") else { return Metadata::new() };
    if metadata_size(object) > LARGEST_METADATA {
        fields.refuse("metadata", FieldProblem::OutOfRange, "must not be larger than 32 KB");
        return Metadata::new();
    }
    object.clone()
}

/// Returns the size of the JSON text in bytes. Metadata is stored as JSON text.
pub fn metadata_size(metadata: &Metadata) -> usize {
    serde_json::to_string(metadata).map_or(usize::MAX, |text| text.len())
}
