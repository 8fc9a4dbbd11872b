//! A policy statement, and whether it applies to a call. Statements that the local stack cannot
//! evaluate are refused.

use std::sync::Arc;

use serde_json::Value;

use super::Context;

/// The condition keys whose values the front knows.
const KEYS: &[&str] = &["s3:prefix", "ses:FromAddress"];

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) allows: bool,
    pub(super) actions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) conditions: Arc<[Condition]>,
}

/// The value must equal one of these, or match one of these patterns if `like` is set.
#[derive(Debug)]
pub(super) struct Condition {
    key: String,
    values: Vec<String>,
    like: bool,
}

impl Statement {
    pub(super) fn read(statement: &Value) -> Result<Self, String> {
        let fields = statement.as_object().ok_or("a statement is an object")?;
        if let Some(unknown) =
            fields.keys().find(|key| !["Sid", "Effect", "Action", "Resource", "Condition"].contains(&key.as_str()))
        {
            return Err(format!("the local stack does not know {unknown} in a statement"));
        }
        let allows = match statement["Effect"].as_str() {
            Some("Allow") => true,
            Some("Deny") => false,
            _ => return Err("a statement has an Effect, Allow or Deny".to_owned()),
        };
        let conditions = conditions(&statement["Condition"])?;
        let (actions, resources) = (texts(&statement["Action"])?, texts(&statement["Resource"])?);
        Ok(Self { allows, actions, resources, conditions: conditions.into() })
    }
}

fn conditions(all: &Value) -> Result<Vec<Condition>, String> {
    let mut read = Vec::new();
    for (operator, keys) in all.as_object().into_iter().flatten() {
        let like = match operator.as_str() {
            "StringEquals" => false,
            "StringLike" => true,
            _ => return Err(format!("the local stack does not know the condition {operator}")),
        };
        for (key, values) in keys.as_object().into_iter().flatten() {
            if !KEYS.contains(&key.as_str()) {
                return Err(format!("the local stack does not know {key} of a condition"));
            }
            read.push(Condition { key: key.clone(), values: texts(values)?, like });
        }
    }
    Ok(read)
}

/// Returns whether all conditions hold. A condition on a key that the request does not set does not
/// hold.
pub(super) fn holds(conditions: &[Condition], context: &Context) -> bool {
    conditions.iter().all(|condition| {
        let said = context.iter().find(|(key, _)| *key == condition.key).map(|(_, value)| value);
        said.is_some_and(|said| {
            condition.values.iter().any(|value| if condition.like { is_like(value, said) } else { value == said })
        })
    })
}

/// Returns whether a text matches a pattern, where `*` matches any text (including slashes) and `?`
/// any one character.
pub(super) fn is_like(pattern: &str, text: &str) -> bool {
    match pattern.find(['*', '?']) {
        None => pattern == text,
        Some(at) => {
            let (before, rest) = pattern.split_at(at);
            let Some(text) = text.strip_prefix(before) else { return false };
            let after = &rest[1..];
            if rest.starts_with('?') {
                let mut letters = text.chars();
                return letters.next().is_some() && is_like(after, letters.as_str());
            }
            after.is_empty() || text.char_indices().any(|(at, _)| is_like(after, &text[at..])) || is_like(after, "")
        }
    }
}

/// Reads one string, or a list of strings.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"));
    match value {
        Value::Array(list) if !list.is_empty() => list.iter().map(one).collect(),
        value => one(value).map(|text| vec![text]),
    }
}
