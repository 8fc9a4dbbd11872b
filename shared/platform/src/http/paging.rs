//! Pages and their cursors. A cursor is the place where the previous page ended; it is opaque to
//! the caller.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::{FieldError, parse_uuid};
use uuid::Uuid;

use super::Request;

const DEFAULT_PAGE: usize = 50;
/// The longest cursor, in bytes. DynamoDB rejects a query with a sort key of more than 1,024 bytes,
/// and no place is nearly as long.
const LONGEST_CURSOR: usize = 1_024;
const LARGEST_PAGE: usize = 100;

pub fn limit(request: &Request, errors: &mut Vec<FieldError>) -> usize {
    let Some(text) = request.query.get("limit") else { return DEFAULT_PAGE };
    match text.parse() {
        Ok(limit) if (1..=LARGEST_PAGE).contains(&limit) => limit,
        _ => {
            errors.push(FieldError::new("limit", FieldProblem::OutOfRange, format!("must be 1 to {LARGEST_PAGE}")));
            DEFAULT_PAGE
        }
    }
}

/// Decodes the cursor of a request. Returns its place if `is_place` accepts it.
pub fn cursor(request: &Request, errors: &mut Vec<FieldError>, is_place: impl Fn(&str) -> bool) -> Option<String> {
    let text = optional(request, "cursor")?;
    let bounded = Some(text).filter(|text| text.len() <= LONGEST_CURSOR);
    let decoded = bounded
        .and_then(|text| BASE64_URL_SAFE_NO_PAD.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let place = decoded.filter(|text| is_place(text));
    if place.is_none() {
        errors.push(FieldError::new("cursor", FieldProblem::Malformed, "is not a cursor that this API returned"));
    }
    place
}

/// Parses a number in a place. Returns `None` unless it is written as [`to_cursor`] got it.
pub fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

pub fn to_cursor(place: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(place)
}

/// Returns a required query parameter.
pub fn required<'a>(request: &'a Request, name: &'static str, errors: &mut Vec<FieldError>) -> Option<&'a str> {
    let text = optional(request, name);
    if text.is_none() {
        errors.push(FieldError::new(name, FieldProblem::Missing, "is required in the query"));
    }
    text
}

pub fn optional<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.query.get(name).map(String::as_str).filter(|text| !text.is_empty())
}

/// Parses an optional query parameter. If it does not parse, adds an error with this code and
/// detail.
pub fn parsed<T>(
    request: &Request,
    name: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    (code, detail): (FieldProblem, &str),
    errors: &mut Vec<FieldError>,
) -> Option<T> {
    let value = parse(optional(request, name)?);
    if value.is_none() {
        errors.push(FieldError::new(name, code, detail));
    }
    value
}

pub fn client_id(text: &str, errors: &mut Vec<FieldError>) -> Option<Uuid> {
    let client = parse_uuid(text);
    if client.is_none() {
        errors.push(FieldError::new("client_id", FieldProblem::Malformed, "must be a UUID"));
    }
    client
}
