//! Deliberately broken variants of the product: each conditional write without its condition. A
//! simulator that does not catch them proves nothing.
//!
//! The condition is taken off on the way to the database, so that every write of the product has a
//! variant without any switch in its code.

use serde_json::{Value, json};

/// A write of the product, as one line: who writes which kind of row, and on which condition.
pub type Sentence = String;

/// Returns the conditional writes of a request.
pub fn sentences(function: &str, operation: &str, request: &Value) -> Vec<Sentence> {
    writes(operation, request).into_iter().filter_map(|(kind, write)| sentence(function, kind, write)).collect()
}

/// Returns the request with the condition of this write always true.
pub fn without(broken: &str, function: &str, operation: &str, request: &Value) -> Value {
    let mut request = request.clone();
    let always = |write: &mut Value| {
        if let Some(condition) = write["ConditionExpression"].as_str() {
            let always = format!("({condition}) OR attribute_exists(pk) OR attribute_not_exists(pk)");
            write["ConditionExpression"] = json!(always);
        }
    };
    if operation == "TransactWriteItems" {
        for item in request["TransactItems"].as_array_mut().into_iter().flatten() {
            for (kind, write) in item.as_object_mut().into_iter().flatten() {
                if sentence(function, kind, write).is_some_and(|found| found == broken) {
                    always(write);
                }
            }
        }
    } else if sentence(function, operation, &request).is_some_and(|found| found == broken) {
        always(&mut request);
    }
    request
}

fn writes<'a>(operation: &'a str, request: &'a Value) -> Vec<(&'a str, &'a Value)> {
    if operation != "TransactWriteItems" {
        return vec![(operation, request)];
    }
    let items = request["TransactItems"].as_array().into_iter().flatten();
    items.filter_map(|item| item.as_object()?.iter().next()).map(|(kind, write)| (kind.as_str(), write)).collect()
}

fn sentence(function: &str, kind: &str, write: &Value) -> Option<Sentence> {
    let condition = write["ConditionExpression"].as_str()?;
    let key = if write["Key"].is_object() { &write["Key"] } else { &write["Item"] };
    let word = |name: &str| {
        let text = crate::tables::plain(&key[name]);
        let word = text.as_str().unwrap_or_default().split('#').next().unwrap_or_default();
        let is_hash = word.len() >= 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hash { "*".to_owned() } else { word.to_owned() }
    };
    let kind = kind.trim_end_matches("Item");
    Some(format!("{function}: {kind} {} {} if {}", word("pk"), word("sk"), resolved(condition, write)))
}

/// Returns the condition with the names of its attributes and without its values.
fn resolved(condition: &str, write: &Value) -> String {
    let mut text = String::new();
    let mut rest = condition;
    while let Some(at) = rest.find(['#', ':']) {
        text.push_str(&rest[..at]);
        let name = &rest[at..];
        let end =
            name[1..].find(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(name.len(), |n| n + 1);
        match name.starts_with('#') {
            true => text.push_str(write["ExpressionAttributeNames"][&name[..end]].as_str().unwrap_or("?")),
            false => text.push('?'),
        }
        rest = &name[end..];
    }
    text + rest
}
