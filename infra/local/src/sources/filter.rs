//! Patterns of event source mappings and of rules. An object is matched field by field; a list
//! matches if any of its matchers does. If the event has a list, one matching item is enough.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the local stack does not know the filter matcher {0}")]
pub struct FilterError(String);

/// Checks that every part of a pattern is one that [`matches`] supports.
pub fn check(pattern: &Value) -> Result<(), FilterError> {
    let unknown = || FilterError(pattern.to_string());
    match pattern {
        Value::Object(fields) => fields.values().try_for_each(check),
        Value::Array(matchers) => matchers.iter().try_for_each(|matcher| match matcher {
            Value::Object(matcher) => {
                let known = matcher.len() == 1
                    && matcher.iter().all(|(word, value)| match word.as_str() {
                        "prefix" | "suffix" => value.is_string(),
                        "exists" => value.is_boolean(),
                        "anything-but" => !value.is_object(),
                        _ => false,
                    });
                if known { Ok(()) } else { Err(FilterError(Value::Object(matcher.clone()).to_string())) }
            }
            Value::Array(_) => Err(unknown()),
            _ => Ok(()),
        }),
        _ => Err(unknown()),
    }
}

/// Returns whether a record passes: any of the patterns matches, or there is none.
pub fn passes(patterns: &[Value], record: &Value) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, Some(record)))
}

fn matches(pattern: &Value, value: Option<&Value>) -> bool {
    match pattern {
        Value::Object(fields) => {
            fields.iter().all(|(name, pattern)| matches(pattern, value.and_then(|value| value.get(name))))
        }
        Value::Array(matchers) => matchers.iter().any(|matcher| match value {
            Some(Value::Array(items)) if matcher.get("exists").is_none() => {
                items.iter().any(|item| matches_one(matcher, Some(item)))
            }
            _ => matches_one(matcher, value),
        }),
        _ => false,
    }
}

fn matches_one(matcher: &Value, value: Option<&Value>) -> bool {
    let Value::Object(words) = matcher else { return value == Some(matcher) };
    let text = value.and_then(Value::as_str);
    words.iter().all(|(word, wanted)| match (word.as_str(), wanted) {
        ("prefix", Value::String(prefix)) => text.is_some_and(|text| text.starts_with(prefix.as_str())),
        ("suffix", Value::String(suffix)) => text.is_some_and(|text| text.ends_with(suffix.as_str())),
        ("exists", Value::Bool(wanted)) => value.is_some_and(|value| !value.is_object()) == *wanted,
        ("anything-but", Value::Array(refused)) => value.is_some_and(|value| !refused.contains(value)),
        ("anything-but", refused) => value.is_some_and(|value| value != refused),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ttl_removal_of_one_kind_of_row_is_filtered() {
        let pattern = json!({
            "eventName": ["REMOVE"],
            "userIdentity": {"type": ["Service"], "principalId": ["dynamodb.amazonaws.com"]},
            "dynamodb": {"Keys": {"sk": {"S": [{"prefix": "A#"}]}}},
        });
        let removal = json!({
            "eventName": "REMOVE",
            "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
            "dynamodb": {"Keys": {"sk": {"S": "A#1"}}},
        });
        assert!(passes(std::slice::from_ref(&pattern), &removal));
        for (path, other) in
            [("/eventName", json!("INSERT")), ("/userIdentity", json!(null)), ("/dynamodb/Keys/sk/S", json!("B#1"))]
        {
            let mut record = removal.clone();
            *record.pointer_mut(path).expect("the path exists") = other;
            assert!(!passes(std::slice::from_ref(&pattern), &record), "{path}");
        }
        assert!(passes(&[], &removal));
    }

    #[test]
    fn an_exists_matcher_passes_only_rows_with_the_leaf() {
        let pattern = json!({"dynamodb": {"NewImage": {"emit": {"M": {"seq": {"N": [{"exists": true}]}}}}}});
        assert!(check(&pattern).is_ok());
        assert!(passes(
            std::slice::from_ref(&pattern),
            &json!({"dynamodb": {"NewImage": {"emit": {"M": {"seq": {"N": "1"}}}}}})
        ));
        assert!(!passes(std::slice::from_ref(&pattern), &json!({"dynamodb": {"NewImage": {"a": {"S": "1"}}}})));
    }

    #[test]
    fn one_matching_item_of_a_list_in_the_event_is_enough() {
        let pattern = |matcher: Value| [json!({"tags": {"set": [matcher]}})];
        let event = json!({"tags": {"set": ["a", "b"]}});
        for (matcher, passed) in [
            (json!("b"), true),
            (json!("c"), false),
            (json!({"prefix": "a"}), true),
            (json!({"anything-but": ["a", "b"]}), false),
            (json!({"exists": true}), true),
            (json!({"exists": false}), false),
        ] {
            assert_eq!(passes(&pattern(matcher.clone()), &event), passed, "{matcher}");
        }
    }

    #[test]
    fn an_unknown_matcher_is_refused() {
        assert!(check(&json!({"a": [{"numeric": [">", 1]}]})).is_err());
        assert!(check(&json!({"a": [{"prefix": 1}]})).is_err());
        assert!(check(&json!("a")).is_err());
    }
}
