//! Reads a JSON request field by field, so that every error names its field and one answer reports
//! all errors.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::codes::FieldProblem;
use crate::time::Timestamp;

/// The most unknown fields that an answer lists, so that it does not repeat a whole body.
const MOST_UNKNOWN: usize = 20;
const LONGEST_NAME: usize = 100;
const NOT_A_UUID: &str = "must be a UUID";

/// A field that was refused. `detail` is written for the caller and never repeats the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    pub field: String,
    pub code: FieldProblem,
    pub detail: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, code: FieldProblem, detail: impl Into<String>) -> Self {
        Self { field: field.into(), code, detail: detail.into() }
    }
}

/// A reader over one JSON object. Each getter records what is wrong and continues;
/// [`Fields::finish`] reports the errors.
#[derive(Debug)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Whether the reader ignores fields that are not read.
    open: bool,
    known: Vec<&'static str>,
    errors: Vec<FieldError>,
}

impl<'a> Fields<'a> {
    pub fn of(object: &'a Map<String, Value>) -> Self {
        Self { object, open: false, known: Vec::new(), errors: Vec::new() }
    }

    /// A reader over an object in a foreign format. It ignores fields that are not read.
    pub fn open(object: &'a Map<String, Value>) -> Self {
        Self { open: true, ..Self::of(object) }
    }

    /// Returns the field's value as it is, for types that no other getter reads. A JSON null counts
    /// as absent.
    pub fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Returns a required text that is not blank.
    pub fn text(&mut self, name: &'static str) -> Option<&'a str> {
        let text = self.optional_text(name);
        self.required(name, text)
    }

    pub fn optional_text(&mut self, name: &'static str) -> Option<&'a str> {
        let text = self.typed(name, Value::as_str, "must be a string")?;
        self.or_refuse(name, Some(text).filter(|text| !text.trim().is_empty()), FieldProblem::Missing, "is blank")
    }

    pub fn uuid(&mut self, name: &'static str) -> Option<Uuid> {
        let text = self.text(name)?;
        self.or_refuse(name, parse_uuid(text), FieldProblem::Malformed, NOT_A_UUID)
    }

    pub fn optional_uuid(&mut self, name: &'static str) -> Option<Uuid> {
        let text = self.optional_text(name)?;
        self.or_refuse(name, parse_uuid(text), FieldProblem::Malformed, NOT_A_UUID)
    }

    pub fn optional_timestamp(&mut self, name: &'static str) -> Option<Timestamp> {
        let text = self.optional_text(name)?;
        let detail = "must be an RFC 3339 time, such as 2026-01-31T12:00:00Z";
        self.or_refuse(name, Timestamp::parse(text), FieldProblem::Malformed, detail)
    }

    pub fn optional_object(&mut self, name: &'static str) -> Option<&'a Map<String, Value>> {
        self.typed(name, Value::as_object, "must be an object")
    }

    pub fn optional_array(&mut self, name: &'static str) -> Option<&'a [Value]> {
        self.typed(name, Value::as_array, "must be an array").map(Vec::as_slice)
    }

    pub fn optional_bool(&mut self, name: &'static str) -> Option<bool> {
        self.typed(name, Value::as_bool, "must be true or false")
    }

    /// Returns a whole number within `range`. `None` if the field is absent or refused.
    pub fn whole_number(&mut self, name: &'static str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
        if self.get(name).is_some_and(|given| !given.is_number()) {
            self.refuse(name, FieldProblem::WrongType, not_within(&range));
            return None;
        }
        self.number_within(name, range)
    }

    /// Works as [`Self::whole_number`], but a value of another type is out of range too.
    pub fn number_within(&mut self, name: &'static str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
        let given = self.get(name)?;
        let number = given.as_u64().and_then(|given| u32::try_from(given).ok()).filter(|given| range.contains(given));
        self.or_refuse(name, number, FieldProblem::OutOfRange, not_within(&range))
    }

    fn typed<T>(&mut self, name: &'static str, read: fn(&'a Value) -> Option<T>, detail: &str) -> Option<T> {
        let value = self.get(name)?;
        self.or_refuse(name, read(value), FieldProblem::WrongType, detail)
    }

    /// Returns `value`. If it is `None`, refuses the field.
    pub fn or_refuse<T>(
        &mut self,
        name: &str,
        value: Option<T>,
        code: FieldProblem,
        detail: impl Into<String>,
    ) -> Option<T> {
        if value.is_none() {
            self.refuse(name, code, detail);
        }
        value
    }

    /// Returns whether the field is present and null, where that differs from its absence.
    pub fn is_null(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(Value::is_null)
    }

    /// Accepts a field and ignores its value.
    pub fn ignore(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// Reads an inner object and reports its errors under its path. It returns what could be read
    /// even if there are errors, so that the rest can be checked too; [`Fields::finish`] refuses
    /// the whole.
    pub fn nested<T>(
        &mut self,
        name: &str,
        object: &'a Map<String, Value>,
        read: impl FnOnce(&mut Fields<'a>) -> Option<T>,
    ) -> Option<T> {
        let mut inner = Fields::of(object);
        let value = read(&mut inner);
        if let Err(found) = inner.finish(Some(())) {
            self.refuse_within(name, found);
        }
        value
    }

    /// Adds the errors of an inner object under its path.
    pub fn refuse_within(&mut self, name: &str, errors: Vec<FieldError>) {
        for error in errors {
            self.refuse(format!("{name}.{}", error.field), error.code, error.detail);
        }
    }

    /// Returns the value of a required field. Refuses the field if it is absent.
    pub fn required<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        let is_missing = value.is_none() && !self.refused(name);
        self.refuse_if(is_missing, name, FieldProblem::Missing, "is required");
        value
    }

    /// Returns the one of the `known` values that the text names, and refuses any other text.
    pub fn one_of<T: Copy>(
        &mut self,
        name: &str,
        text: &str,
        known: &[T],
        as_str: impl Fn(T) -> &'static str,
    ) -> Option<T> {
        let words: Vec<_> = known.iter().map(|value| as_str(*value)).collect();
        let found = known.iter().copied().find(|value| as_str(*value) == text);
        self.or_refuse(name, found, FieldProblem::NotAllowed, format!("must be one of {}", words.join(", ")))
    }

    pub fn refuse(&mut self, field: impl Into<String>, code: FieldProblem, detail: impl Into<String>) {
        self.errors.push(FieldError::new(field, code, detail));
    }

    pub fn refuse_if(&mut self, wrong: bool, field: impl Into<String>, code: FieldProblem, detail: impl Into<String>) {
        if wrong {
            self.refuse(field, code, detail);
        }
    }

    pub fn refused(&self, field: &str) -> bool {
        self.errors.iter().any(|error| error.field == field)
    }

    /// Returns `value` if nothing was refused. A field that was not read is refused here, unless
    /// the reader is open.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Vec<FieldError>> {
        let most = if self.open { 0 } else { MOST_UNKNOWN };
        let unknown = self.object.keys().filter(|name| !self.known.contains(&name.as_str())).take(most);
        for name in unknown {
            let name: String = name.chars().take(LONGEST_NAME).collect();
            self.errors.push(FieldError::new(name, FieldProblem::Unknown, "is not a field of this request"));
        }
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors),
        }
    }
}

fn not_within(range: &std::ops::RangeInclusive<u32>) -> String {
    format!("must be a whole number from {} to {}", range.start(), range.end())
}

/// Parses a UUID in its usual form, with hyphens. The other forms that libraries accept would make
/// different keys for the same thing.
pub fn parse_uuid(text: &str) -> Option<Uuid> {
    if text.len() != 36 { None } else { Uuid::try_parse(text).ok() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> &Map<String, Value> {
        value.as_object().expect("an object")
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let body = json!({"id": 7, "when": "soon", "more": 1, "name": " "});
        let mut fields = Fields::of(object(&body));
        let id = fields.uuid("id");
        fields.optional_timestamp("when");
        fields.text("name");
        fields.text("absent");
        let errors = fields.finish(id).expect_err("refused");
        let found: Vec<_> = errors.iter().map(|e| (e.field.as_str(), e.code)).collect();
        assert_eq!(
            found,
            [
                ("id", FieldProblem::WrongType),
                ("when", FieldProblem::Malformed),
                ("name", FieldProblem::Missing),
                ("absent", FieldProblem::Missing),
                ("more", FieldProblem::Unknown),
            ]
        );
    }

    #[test]
    fn an_open_reader_ignores_unknown_fields_but_checks_the_fields_it_reads() {
        let body = json!({"name": "x", "more": 1, "flag": "yes"});
        let mut fields = Fields::open(object(&body));
        let name = fields.text("name");
        assert_eq!(fields.finish(name), Ok("x"));
        let mut fields = Fields::open(object(&body));
        fields.optional_bool("flag");
        assert_eq!(fields.finish(Some(())).expect_err("a field that is read must have its type")[0].field, "flag");
    }

    #[test]
    fn a_null_field_counts_as_absent() {
        let body = json!({"when": null});
        let mut fields = Fields::of(object(&body));
        assert_eq!(fields.optional_timestamp("when"), None);
        assert_eq!(fields.finish(Some(1)), Ok(1));
    }

    #[test]
    fn the_error_for_a_nested_field_has_its_path() {
        let body = json!({"source": {"flag": 1, "note": "x", "more": 2}, "none": null});
        let mut fields = Fields::of(object(&body));
        assert!(fields.is_null("none") && !fields.is_null("source"));
        fields.ignore("none");
        let inner = fields.optional_object("source").expect("an object");
        let read = fields.nested("source", inner, |source| {
            source.ignore("note");
            source.optional_bool("flag")
        });
        let errors = fields.finish(read).expect_err("refused");
        let found: Vec<_> = errors.iter().map(|e| (e.field.as_str(), e.code)).collect();
        assert_eq!(found, [("source.flag", FieldProblem::WrongType), ("source.more", FieldProblem::Unknown)]);
    }

    #[test]
    fn only_a_hyphenated_uuid_is_parsed() {
        assert!(parse_uuid("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1").is_some());
        assert_eq!(
            parse_uuid("91B7584A-D8F1-4CD6-B0E1-414C1027C4D1"),
            parse_uuid("91b7584a-d8f1-4cd6-b0e1-414c1027c4d1")
        );
        for text in ["91b7584ad8f14cd6b0e1414c1027c4d1", "{91b7584a-d8f1-4cd6-b0e1-414c1027c4d1}", "", "x"] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
