//! Finds the parameters that a function's environment variables depend on. A function reports an
//! invalid variable; the user of the template only knows the parameter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::node::Node;

/// Returns, for each environment variable of a function, the parameters that its value depends on,
/// including those used by conditions. `globals` and `own` are `Environment.Variables` as written
/// in the template, before anything is resolved.
pub(super) fn parameters_of(
    root: &Node,
    globals: Option<&Value>,
    own: Option<&Value>,
) -> BTreeMap<String, BTreeSet<String>> {
    let variables = [globals, own].into_iter().flatten().filter_map(Value::as_object).flatten();
    let found = variables.map(|(name, value)| {
        let mut parameters = BTreeSet::new();
        collect(root, value, &mut parameters);
        (name.clone(), parameters)
    });
    found.filter(|(_, parameters)| !parameters.is_empty()).collect()
}

fn collect(root: &Node, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(root, item, into)),
        Value::Object(members) => members.values().for_each(|member| collect(root, member, into)),
        Value::String(text) => {
            let section = |name: &str| root.value.get(name).and_then(Value::as_object);
            let stands_in = |name: &&String| *text == **name || text.contains(&format!("${{{name}}}"));
            let parameters = section("Parameters").into_iter().flat_map(|all| all.keys());
            into.extend(parameters.filter(stands_in).cloned());
            if let Some(condition) = section("Conditions").and_then(|all| all.get(text)) {
                collect(root, condition, into);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_variable_is_traced_to_the_parameters_of_its_value() {
        let document = json!({
            "Parameters": {"Url": {}, "Stage": {}, "Level": {}, "Unused": {}},
            "Conditions": {"HasUrl": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Url"}, ""]}]}},
        });
        let globals = json!({"LOG_LEVEL": {"Ref": "Level"}, "REGION": {"Ref": "AWS::Region"}});
        let own = json!({
            "TABLE": {"Fn::Sub": "rows-${Stage}"},
            "WHERE": {"Fn::If": ["HasUrl", "https://example.com", {"Fn::Sub": "https://${Api}"}]},
        });
        let found = parameters_of(&Node::new(&document, ""), Some(&globals), Some(&own));
        let found: Vec<_> = found.iter().map(|(name, of)| format!("{name}: {of:?}")).collect();
        assert_eq!(found, [r#"LOG_LEVEL: {"Level"}"#, r#"TABLE: {"Stage"}"#, r#"WHERE: {"Url"}"#]);
    }
}
