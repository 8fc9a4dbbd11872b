//! A JSON value with its path in the template, so that every error can name the place.

use std::time::Duration;

use serde_json::Value;

use super::error::{Problem, TemplateError};
use super::yaml::join;

type Result<T> = std::result::Result<T, TemplateError>;

#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

impl<'a> Node<'a> {
    pub(super) fn new(value: &'a Value, path: impl Into<String>) -> Self {
        Self { value, path: path.into() }
    }

    pub(super) fn error(&self, problem: Problem) -> TemplateError {
        TemplateError::new(self.path.clone(), problem)
    }

    pub(super) fn unsupported(&self, why: impl Into<String>) -> TemplateError {
        self.error(Problem::Unsupported(why.into()))
    }

    /// Returns the member, unless it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Node::new(value, join(&self.path, key)))
    }

    pub(super) fn need(&self, key: &'static str) -> Result<Node<'a>> {
        self.get(key).ok_or_else(|| self.error(Problem::Missing(key)))
    }

    /// Returns an error if the object has any other member than these.
    pub(super) fn only(self, known: &[&str]) -> Result<Self> {
        for (key, member) in self.entries()? {
            if !known.contains(&key) {
                return Err(member.error(Problem::UnknownProperty));
            }
        }
        Ok(self)
    }

    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Node<'a>)>> {
        let object = self.value.as_object().ok_or_else(|| self.error(Problem::Expected("a mapping")))?;
        Ok(object.iter().map(|(key, value)| (key.as_str(), Node::new(value, join(&self.path, key)))).collect())
    }

    pub(super) fn items(&self) -> Result<Vec<Node<'a>>> {
        let list = self.value.as_array().ok_or_else(|| self.error(Problem::Expected("a list")))?;
        Ok(list
            .iter()
            .enumerate()
            .map(|(index, value)| Node::new(value, join(&self.path, &index.to_string())))
            .collect())
    }

    pub(super) fn str(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.error(Problem::Expected("a string")))
    }

    /// Returns a scalar as CloudFormation would print it.
    pub(super) fn text(&self) -> Result<String> {
        match self.value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(value) => Ok(value.to_string()),
            _ => Err(self.error(Problem::Expected("a string, number or boolean"))),
        }
    }

    /// Parses an integer. CloudFormation parameters are strings, so numbers and booleans may be
    /// strings.
    pub(super) fn integer(&self) -> Result<i64> {
        self.text()?.parse().map_err(|_| self.error(Problem::Expected("a whole number")))
    }

    pub(super) fn count(&self) -> Result<u32> {
        u32::try_from(self.integer()?).map_err(|_| self.error(Problem::Expected("a whole number that is not negative")))
    }

    pub(super) fn seconds(&self) -> Result<Duration> {
        Ok(Duration::from_secs(self.count()?.into()))
    }

    pub(super) fn bool(&self) -> Result<bool> {
        self.text()?.parse().map_err(|_| self.error(Problem::Expected("true or false")))
    }

    /// Parses JSON inside a string, as in filter patterns and schedule inputs.
    pub(super) fn json(&self) -> Result<Value> {
        serde_json::from_str(self.str()?).map_err(|_| self.error(Problem::Expected("JSON in a string")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_booleans_may_be_strings() {
        let value = json!({"n": "12", "b": "true"});
        let node = Node::new(&value, "X");
        assert_eq!(node.need("n").unwrap().count().unwrap(), 12);
        assert!(node.need("b").unwrap().bool().unwrap());
    }

    #[test]
    fn a_negative_count_is_refused() {
        let value = json!(-1);
        let error = Node::new(&value, "X").count().unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: X: expected a whole number that is not negative");
    }

    #[test]
    fn a_missing_member_is_named() {
        let value = json!({});
        let error = Node::new(&value, "X").need("Queue").unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: X: Queue is missing");
    }

    #[test]
    fn an_unknown_member_is_named_with_its_path() {
        let value = json!({"Known": 1, "Strange": 2});
        let error = Node::new(&value, "X").only(&["Known"]).unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: X.Strange: the local stack does not know this property");
    }
}
