//! The template's parameters with their defaults and what the caller set.

use std::collections::BTreeMap;

use super::error::{Problem, TemplateError};
use super::node::Node;

/// The value of every parameter. `AllowedPattern` and the limits are left to the deployment.
pub(super) fn values(
    declared: Option<Node>,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, TemplateError> {
    let declared = declared.map(|section| section.entries()).transpose()?.unwrap_or_default();
    for name in given.keys() {
        if !declared.iter().any(|(known, _)| known == name) {
            return Err(TemplateError::new(format!("Parameters.{name}"), Problem::UnknownParameter));
        }
    }
    declared.into_iter().map(|(name, parameter)| Ok((name.to_owned(), value(parameter, given.get(name))?))).collect()
}

fn value(parameter: Node, given: Option<&String>) -> Result<String, TemplateError> {
    let parameter = parameter.only(&[
        "Type",
        "Default",
        "AllowedValues",
        "AllowedPattern",
        "ConstraintDescription",
        "Description",
        "MinValue",
        "MaxValue",
        "MinLength",
        "MaxLength",
        "NoEcho",
    ])?;
    let value = match (given, parameter.get("Default")) {
        (Some(given), _) => given.clone(),
        (None, Some(default)) => default.text()?,
        (None, None) => return Err(parameter.error(Problem::ParameterWithoutValue)),
    };
    match parameter.need("Type")?.str()? {
        "String" => {}
        "Number" if value.parse::<f64>().is_ok() => {}
        "Number" => return Err(parameter.error(Problem::ValueNotAllowed(value))),
        other => return Err(parameter.error(Problem::ParameterType(other.to_owned()))),
    }
    if let Some(allowed) = parameter.get("AllowedValues") {
        let allowed = allowed.items()?.iter().map(Node::text).collect::<Result<Vec<_>, _>>()?;
        if !allowed.contains(&value) {
            return Err(parameter.error(Problem::ValueNotAllowed(value)));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(given: &[(&str, &str)]) -> Result<BTreeMap<String, String>, TemplateError> {
        let declared = json!({
            "Stage": {"Type": "String", "Default": "dev", "AllowedValues": ["dev", "prod"]},
            "Days": {"Type": "Number", "Default": 30, "AllowedValues": [7, 30]},
        });
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        values(Some(Node::new(&declared, "Parameters")), &given)
    }

    #[test]
    fn defaults_hold_until_a_value_is_given() {
        let values = resolve(&[("Stage", "prod")]).unwrap();
        assert_eq!((values["Stage"].as_str(), values["Days"].as_str()), ("prod", "30"));
    }

    #[test]
    fn an_unknown_parameter_is_refused() {
        let error = resolve(&[("Stagee", "prod")]).unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: Parameters.Stagee: the template has no such parameter");
    }

    #[test]
    fn a_value_that_is_not_allowed_is_refused() {
        for (name, value) in [("Stage", "test"), ("Days", "8"), ("Days", "many")] {
            let error = resolve(&[(name, value)]).unwrap_err();
            let expected = format!("template.yaml: Parameters.{name}: the value {value:?} is not allowed");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_parameter_without_default_needs_a_value() {
        let declared = json!({"Key": {"Type": "String"}});
        let error = values(Some(Node::new(&declared, "Parameters")), &BTreeMap::new()).unwrap_err();
        assert_eq!(error.to_string(), "template.yaml: Parameters.Key: has no default and was given no value");
    }

    #[test]
    fn an_unknown_parameter_type_is_refused() {
        let declared = json!({"Keys": {"Type": "CommaDelimitedList", "Default": "a,b"}});
        let error = values(Some(Node::new(&declared, "Parameters")), &BTreeMap::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "template.yaml: Parameters.Keys: the local stack does not know the parameter type CommaDelimitedList"
        );
    }
}
