//! Deliberately broken variants of the product. A simulator that does not catch them proves
//! nothing.
//!
//! A variant changes the product's requests on their way to the database, so that every write has
//! variants without any switch in the code of the product:
//!
//! - a write without its condition, which also removes every fence;
//! - a transaction without any condition, because one of them often stands in for another;
//! - a transaction whose parts are written one after the other, so that the process may stop
//!   between them;
//! - a row that waits, but is in no index, so that recovery does not find it;
//! - an unknown outcome that is queued again.

use serde_json::{Value, json};

/// A variant, as one line: what is broken, who writes which kind of row, and on which condition.
pub type Variant = String;

const SPLIT: &str = "in parts: ";
const UNFENCED: &str = "without conditions: ";
const UNINDEXED: &str = "in no index: ";
const RETRIED: &str = "tried again: ";

/// The index in which recovery finds rows that wait for a check, and the one of unknown outcomes.
const CHECK: &str = "CHECK#";
const UNKNOWN: &str = "UNKNOWN#";

/// Returns the variants of the product that this request makes possible.
pub fn variants(function: &str, operation: &str, request: &Value) -> Vec<Variant> {
    let mut variants = Vec::new();
    for (kind, write) in writes(operation, request) {
        if let Some(condition) = write["ConditionExpression"].as_str() {
            variants.push(format!("{} if {}", sentence(function, kind, write), resolved(condition, write)));
        }
        match attribute(write, "wake") {
            Some(wake) if wake.starts_with(UNKNOWN) => {
                variants.push(format!("{RETRIED}{}", sentence(function, kind, write)));
            }
            Some(_) => variants.push(format!("{UNINDEXED}{}", sentence(function, kind, write))),
            None => {}
        }
    }
    if operation == "TransactWriteItems" && writes(operation, request).len() > 1 {
        variants.push(format!("{SPLIT}{}", parts_of(function, request)));
        let has_condition = |(_, write): &(&str, &Value)| write["ConditionExpression"].is_string();
        if writes(operation, request).iter().filter(|write| has_condition(write)).count() > 1 {
            variants.push(format!("{UNFENCED}{}", parts_of(function, request)));
        }
    }
    variants
}

/// Returns whether this variant writes the parts of this transaction one after the other.
pub fn is_split(variant: &str, function: &str, operation: &str, request: &Value) -> bool {
    let split = variant.strip_prefix(SPLIT);
    operation == "TransactWriteItems" && split.is_some_and(|split| split == parts_of(function, request))
}

/// Returns the request as this variant sends it.
pub fn altered(variant: &str, function: &str, operation: &str, request: &Value) -> Value {
    let mut request = request.clone();
    if operation != "TransactWriteItems" {
        alter(variant, function, operation, &mut request);
        return request;
    }
    let is_unfenced = variant.strip_prefix(UNFENCED).is_some_and(|parts| parts == parts_of(function, &request));
    for item in request["TransactItems"].as_array_mut().into_iter().flatten() {
        if is_unfenced {
            item.as_object_mut().into_iter().flatten().for_each(|(_, write)| unfence(write));
            continue;
        }
        for (kind, write) in item.as_object_mut().into_iter().flatten() {
            alter(variant, function, kind, write);
        }
    }
    request
}

fn alter(variant: &str, function: &str, kind: &str, write: &mut Value) {
    let sentence = sentence(function, kind, write);
    if let Some(broken) = variant.strip_prefix(UNINDEXED) {
        if broken == sentence && attribute(write, "wake").is_some_and(|wake| !wake.starts_with(UNKNOWN)) {
            rename(write, "wake", "unwatched");
        }
    } else if let Some(broken) = variant.strip_prefix(RETRIED) {
        if broken == sentence && attribute(write, "wake").is_some_and(|wake| wake.starts_with(UNKNOWN)) {
            retry(write);
        }
    } else if let Some(condition) = write["ConditionExpression"].as_str()
        && variant == format!("{sentence} if {}", resolved(condition, write))
    {
        unfence(write);
    }
}

/// Lets the condition of a write always hold. Its values stay in use.
fn unfence(write: &mut Value) {
    if let Some(condition) = write["ConditionExpression"].as_str() {
        let always = format!("({condition}) OR attribute_exists(pk) OR attribute_not_exists(pk)");
        write["ConditionExpression"] = json!(always);
    }
}

/// Gives an attribute of a write another name.
fn rename(write: &mut Value, from: &str, to: &str) {
    for name in write["ExpressionAttributeNames"].as_object_mut().into_iter().flat_map(|names| names.values_mut()) {
        if name == from {
            *name = json!(to);
        }
    }
    if let Some(item) = write["Item"].as_object_mut()
        && let Some(value) = item.remove(from)
    {
        item.insert(to.to_owned(), value);
    }
}

/// Turns the outcome of a write from UNKNOWN into QUEUED, and lets recovery find the row.
fn retry(write: &mut Value) {
    let places = ["ExpressionAttributeValues", "Item"];
    for place in places {
        for value in write[place].as_object_mut().into_iter().flat_map(|values| values.values_mut()) {
            match value["S"].as_str() {
                Some("UNKNOWN") => value["S"] = json!("QUEUED"),
                Some(text) if text.starts_with(UNKNOWN) => value["S"] = json!(text.replace(UNKNOWN, CHECK)),
                _ => {}
            }
        }
    }
}

/// Returns the text that a write sets an attribute to.
fn attribute(write: &Value, wanted: &str) -> Option<String> {
    if let Some(text) = write["Item"][wanted]["S"].as_str() {
        return Some(text.to_owned());
    }
    let update = write["UpdateExpression"].as_str()?;
    let set = update.split("SET ").nth(1)?.split(" REMOVE ").next()?;
    let mut parts = set.split(',').filter_map(|part| part.trim().split_once(" = "));
    let (_, value) = parts.find(|(name, _)| write["ExpressionAttributeNames"][name.trim()] == wanted)?;
    write["ExpressionAttributeValues"][value.trim()]["S"].as_str().map(str::to_owned)
}

fn writes<'a>(operation: &'a str, request: &'a Value) -> Vec<(&'a str, &'a Value)> {
    if operation != "TransactWriteItems" {
        return vec![(operation, request)];
    }
    let items = request["TransactItems"].as_array().into_iter().flatten();
    items.filter_map(|item| item.as_object()?.iter().next()).map(|(kind, write)| (kind.as_str(), write)).collect()
}

fn parts_of(function: &str, request: &Value) -> String {
    let mut parts: Vec<_> =
        writes("TransactWriteItems", request).into_iter().map(|(kind, write)| part(kind, write)).collect();
    parts.dedup();
    format!("{function}: {}", parts.join(" + "))
}

fn sentence(function: &str, kind: &str, write: &Value) -> String {
    format!("{function}: {}", part(kind, write))
}

/// Returns the kind of a write and the first words of its key.
fn part(kind: &str, write: &Value) -> String {
    let key = if write["Key"].is_object() { &write["Key"] } else { &write["Item"] };
    let word = |name: &str| {
        let text = key[name]["S"].as_str().unwrap_or_default();
        let word = text.split('#').next().unwrap_or_default();
        let is_hash = word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hash { "*".to_owned() } else { word.to_owned() }
    };
    format!("{} {} {}", kind.trim_end_matches("Item"), word("pk"), word("sk"))
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
