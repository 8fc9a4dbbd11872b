//! Converts YAML text to JSON, with short intrinsics (`!Ref X`) in their long form (`{"Ref":
//! "X"}`).

use serde_json::{Map, Value};
use serde_yaml_ng::Value as Yaml;

use super::error::{Problem, TemplateError};

/// Returns the template as JSON, and the logical ids of its resources in the order of the file,
/// which JSON maps do not keep.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), TemplateError> {
    let yaml: Yaml =
        serde_yaml_ng::from_str(text).map_err(|error| TemplateError::new("", Problem::NotYaml(error.to_string())))?;
    let order = yaml
        .get("Resources")
        .and_then(Yaml::as_mapping)
        .map(|resources| resources.keys().filter_map(Yaml::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    Ok((to_json(yaml, "")?, order))
}

fn to_json(yaml: Yaml, path: &str) -> Result<Value, TemplateError> {
    match yaml {
        Yaml::Null => Ok(Value::Null),
        Yaml::Bool(value) => Ok(value.into()),
        Yaml::String(value) => Ok(value.into()),
        Yaml::Number(value) => number(&value, path),
        Yaml::Sequence(items) => {
            items.into_iter().enumerate().map(|(index, item)| to_json(item, &join(path, &index.to_string()))).collect()
        }
        Yaml::Mapping(entries) => entries
            .into_iter()
            .map(|(key, value)| {
                let Yaml::String(key) = key else {
                    return Err(TemplateError::new(path, Problem::Expected("keys that are strings")));
                };
                let value = to_json(value, &join(path, &key))?;
                Ok((key, value))
            })
            .collect::<Result<Map<_, _>, _>>()
            .map(Value::Object),
        Yaml::Tagged(tagged) => {
            let name = tagged.tag.to_string();
            let value = to_json(tagged.value, path)?;
            Ok(long_form(name.trim_start_matches('!'), value))
        }
    }
}

fn number(value: &serde_yaml_ng::Number, path: &str) -> Result<Value, TemplateError> {
    let json = match (value.as_i64(), value.as_u64(), value.as_f64()) {
        (Some(whole), _, _) => Some(whole.into()),
        (_, Some(whole), _) => Some(whole.into()),
        (_, _, Some(float)) => serde_json::Number::from_f64(float).map(Value::Number),
        _ => None,
    };
    json.ok_or_else(|| TemplateError::new(path, Problem::Expected("a finite number")))
}

fn long_form(name: &str, value: Value) -> Value {
    let (name, value) = match (name, value) {
        ("Ref" | "Condition", value) => (name.to_owned(), value),
        // `!GetAtt A.B.C` is the attribute `B.C` of `A`.
        ("GetAtt", Value::String(text)) => {
            let (id, attribute) = text.split_once('.').unwrap_or((&text, ""));
            ("Fn::GetAtt".to_owned(), serde_json::json!([id, attribute]))
        }
        (name, value) => (format!("Fn::{name}"), value),
    };
    Value::Object(Map::from_iter([(name, value)]))
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(text: &str) -> Value {
        parse(text).unwrap().0
    }

    #[test]
    fn short_intrinsics_become_long_ones() {
        assert_eq!(
            parsed("a: !Ref X\nb: !GetAtt X.Y.Z\nc: !Sub [t, {v: !Ref X}]\nd: !Condition C\ne: !GetAtt [X, Y]"),
            json!({
                "a": {"Ref": "X"},
                "b": {"Fn::GetAtt": ["X", "Y.Z"]},
                "c": {"Fn::Sub": ["t", {"v": {"Ref": "X"}}]},
                "d": {"Condition": "C"},
                "e": {"Fn::GetAtt": ["X", "Y"]},
            })
        );
    }

    #[test]
    fn resources_keep_the_order_of_the_file() {
        let (_, order) = parse("Resources: {Zebra: {}, Ant: {}, Mole: {}}").unwrap();
        assert_eq!(order, ["Zebra", "Ant", "Mole"]);
    }

    #[test]
    fn dates_and_numbers_keep_their_types() {
        assert_eq!(
            parsed("v: 2012-10-17\nn: -1\nf: 0.5\nz: ~\nb: true"),
            json!({"v": "2012-10-17", "n": -1, "f": 0.5, "z": null, "b": true})
        );
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        let error = parse("Resources: {}\nResources: {}").unwrap_err();
        assert!(matches!(error.problem, Problem::NotYaml(_)), "{error}");
    }

    #[test]
    fn a_key_that_is_not_a_string_is_refused_with_its_path() {
        let error = parse("Resources: {A: {1: x}}").unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: Resources.A: expected keys that are strings");
    }
}
