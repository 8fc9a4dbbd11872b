//! Checks every response that a test gets against `infra/openapi.yaml`, so that the API and its
//! description agree.
//!
//! It supports only the keywords of JSON Schema that the description uses, and fails on any other.

use std::sync::OnceLock;

use serde_json::Value;
use umavez_local::binaries::workspace_root;

use crate::Answer;

pub fn description() -> &'static Value {
    static DESCRIPTION: OnceLock<Value> = OnceLock::new();
    DESCRIPTION.get_or_init(|| {
        let text = std::fs::read_to_string(workspace_root().join("infra/openapi.yaml")).expect("infra/openapi.yaml");
        serde_yaml_ng::from_str(&text).expect("YAML")
    })
}

/// Panics if a response does not match the description of its route.
pub fn check(method: &str, path: &str, answer: &Answer) {
    let Some(operation) = operation(method, path) else { return };
    let content_type = answer.header("content-type").unwrap_or_default();
    if content_type != "application/json" && content_type != "application/problem+json" {
        return;
    }
    // The gateway's own error responses contain only a message.
    if answer.status >= 400 && content_type == "application/json" {
        return;
    }
    let responses = &operation["responses"];
    let response = responses.get(answer.status.to_string()).or_else(|| responses.get("default"));
    let response =
        response.unwrap_or_else(|| panic!("{method} {path} answers {}, which is not described", answer.status));
    let schema = &resolved(response)["content"][content_type]["schema"];
    assert!(!schema.is_null(), "{method} {path} answers {} as {content_type}, which is not described", answer.status);
    if let Err(what) = conforms(schema, &answer.body, "") {
        panic!("{method} {path} answers {}: {what}: {}", answer.status, answer.body);
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<_> = path.split('/').collect();
    let paths = description()["paths"].as_object()?;
    let (_, methods) = paths.iter().find(|(pattern, _)| {
        let pattern: Vec<_> = pattern.split('/').collect();
        let same = |(pattern, part): (&&str, &&str)| pattern == part || pattern.starts_with('{');
        pattern.len() == parts.len() && pattern.iter().zip(&parts).all(same)
    })?;
    methods.get(method.to_lowercase())
}

fn resolved(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        Some(pointer) => description().pointer(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")),
        None => value,
    }
}

fn conforms(schema: &'static Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = resolved(schema);
    for (word, wanted) in schema.as_object().ok_or_else(|| format!("{at}: the schema is no object"))? {
        let fits = match word.as_str() {
            "type" => types(wanted).any(|name| is_of(name, value)),
            "enum" => wanted.as_array().is_some_and(|values| values.contains(value)),
            "const" => wanted == value,
            "format" => wanted != "date-time" || value.is_null() || is_time(value),
            "required" => {
                let mut names = wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
                value.is_null() || names.all(|name| value.get(name).is_some())
            }
            "properties" | "additionalProperties" | "items" | "description" => true,
            other => return Err(format!("{at}: unknown keyword {other}")),
        };
        if !fits {
            return Err(format!("{at}: does not match `{word}: {wanted}`"));
        }
    }
    if let Some(fields) = value.as_object() {
        for (name, field) in fields {
            match schema["properties"].get(name) {
                Some(schema) => conforms(schema, field, &format!("{at}/{name}"))?,
                None if schema["additionalProperties"] == false => return Err(format!("{at}/{name} is not described")),
                None => {}
            }
        }
    }
    if let (Some(items), Some(schema)) = (value.as_array(), schema.get("items")) {
        for (index, item) in items.iter().enumerate() {
            conforms(schema, item, &format!("{at}/{index}"))?;
        }
    }
    Ok(())
}

fn types(wanted: &'static Value) -> Box<dyn Iterator<Item = &'static str>> {
    match wanted {
        Value::Array(names) => Box::new(names.iter().filter_map(Value::as_str)),
        name => Box::new(name.as_str().into_iter()),
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    }
}

fn is_time(value: &Value) -> bool {
    value.as_str().and_then(umavez_domain::time::Timestamp::parse).is_some()
}
