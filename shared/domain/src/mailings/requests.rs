//! The small request bodies: preview, test and retry.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::format::column_name;
use super::recipient::normalize_email;
use crate::codes::FieldProblem;
use crate::fields::{FieldError, Fields};

const LONGEST_VALUE: usize = 64 * 1024;

/// The body of a preview: `{email?, variables?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewRequest {
    /// One of the mailing's recipients, normalized.
    pub email: Option<String>,
    /// Values that replace or complement those of the recipient.
    pub variables: BTreeMap<String, String>,
}

impl PreviewRequest {
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let email = fields.optional_text("email").and_then(|text| address(&mut fields, "email", text));
        let variables = variables(&mut fields);
        fields.finish(Some(Self { email, variables }))
    }
}

/// The body of a test: `{to, variables?}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRequest {
    pub to: String,
    pub variables: BTreeMap<String, String>,
}

impl TestRequest {
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let to = fields.text("to").and_then(|text| address(&mut fields, "to", text));
        let variables = variables(&mut fields);
        fields.finish(to.map(|to| Self { to, variables }))
    }
}

/// The body of a retry: `{include_unknown?}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetryRequest {
    pub include_unknown: bool,
}

impl RetryRequest {
    pub fn read(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut fields = Fields::of(body);
        let include_unknown = fields.optional_bool("include_unknown").unwrap_or(false);
        fields.finish(Some(Self { include_unknown }))
    }
}

fn address(fields: &mut Fields<'_>, name: &str, text: &str) -> Option<String> {
    let email = normalize_email(text).ok();
    if email.is_none() {
        fields.refuse(name, FieldProblem::Malformed, "must be an email address");
    }
    email
}

/// Reads the variables, under the names that templates use.
fn variables(fields: &mut Fields<'_>) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for (name, value) in fields.optional_object("variables").into_iter().flatten() {
        match value {
            Value::String(text) if text.len() <= LONGEST_VALUE => {
                read.insert(column_name(name), text.clone());
            }
            Value::String(_) => fields.refuse("variables", FieldProblem::OutOfRange, "has a value larger than 64 KB"),
            _ => fields.refuse("variables", FieldProblem::WrongType, "must be an object of texts"),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn the_names_of_variables_are_normalized_like_column_names() {
        let body = object(json!({"to": " A@B.co ", "variables": {" Nome ": "Ana"}}));
        let asked = TestRequest::read(&body).expect("fits");
        assert_eq!((asked.to.as_str(), asked.variables.get("nome").map(String::as_str)), ("a@b.co", Some("Ana")));
        assert_eq!(PreviewRequest::read(&object(json!({}))).expect("fits").email, None);
    }

    #[test]
    fn each_invalid_field_is_named() {
        let errors = TestRequest::read(&object(json!({"to": "x", "variables": {"a": 1}, "y": 1}))).expect_err("unfit");
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["to", "variables", "y"]);
        assert!(RetryRequest::read(&object(json!({"include_unknown": "yes"}))).is_err());
    }
}
