//! The parameters of the template, with their defaults and the values that the caller set.

use std::collections::BTreeMap;

use regex_lite::Regex;

use super::error::{Problem, TemplateError};
use super::node::Node;

/// Returns the value of every parameter. Refuses everything that CloudFormation would refuse.
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
    match outside(&parameter, &value)? {
        Some(wanted) => Err(parameter.error(Problem::ValueOutside(value, wanted))),
        None => Ok(value),
    }
}

/// Returns the constraint that the value violates, or `None`.
fn outside(parameter: &Node, value: &str) -> Result<Option<String>, TemplateError> {
    let length = i64::try_from(value.chars().count()).unwrap_or(i64::MAX);
    let limits = [
        ("MinValue", value.parse::<f64>().ok(), "at least "),
        ("MaxValue", value.parse::<f64>().ok(), "at most "),
        ("MinLength", Some(length as f64), "as long as "),
        ("MaxLength", Some(length as f64), "no longer than "),
    ];
    for (name, found, words) in limits {
        let (Some(limit), Some(found)) = (parameter.get(name), found) else { continue };
        let number = limit.text()?.parse::<f64>().map_err(|_| limit.error(Problem::Expected("a number")))?;
        let fits = if name.starts_with("Min") { found >= number } else { found <= number };
        if !fits {
            return Ok(Some(format!("{words}{}", limit.text()?)));
        }
    }
    let Some(pattern) = parameter.get("AllowedPattern") else { return Ok(None) };
    // CloudFormation matches the pattern against the whole value.
    let whole = Regex::new(&format!("^(?:{})$", pattern.str()?));
    let whole = whole.map_err(|error| pattern.unsupported(format!("not a pattern that is known here: {error}")))?;
    if whole.is_match(value) {
        return Ok(None);
    }
    let words = parameter.get("ConstraintDescription").map(|words| words.text()).transpose()?;
    Ok(Some(words.unwrap_or(format!("as the pattern {} says", pattern.str()?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(given: &[(&str, &str)]) -> Result<BTreeMap<String, String>, TemplateError> {
        let declared = json!({
            "Stage": {"Type": "String", "Default": "dev", "AllowedValues": ["dev", "prod"]},
            "Days": {"Type": "Number", "Default": 30, "AllowedValues": [7, 30]},
            "Rate": {"Type": "Number", "Default": 5, "MinValue": 1, "MaxValue": 10},
            "Word": {"Type": "String", "Default": "ab", "MinLength": 2, "MaxLength": 3},
            "Name": {"Type": "String", "Default": "a", "AllowedPattern": "[a-z]|[0-9]+", "ConstraintDescription": "a letter or digits"},
            "Code": {"Type": "String", "Default": "a", "AllowedPattern": "^[a-z]$"},
        });
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        values(Some(Node::new(&declared, "Parameters")), &given)
    }

    #[test]
    fn a_given_value_overrides_the_default() {
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
    fn a_value_outside_its_limits_or_pattern_is_refused_with_the_constraint_description() {
        let cases = [
            ("Rate", "0", "at least 1"),
            ("Rate", "11", "at most 10"),
            ("Word", "a", "as long as 2"),
            ("Word", "abcd", "no longer than 3"),
            ("Name", "ab", "a letter or digits"),
            ("Name", "", "a letter or digits"),
            ("Code", "1", "as the pattern ^[a-z]$ says"),
        ];
        for (name, value, wanted) in cases {
            let expected =
                format!("template.yaml: Parameters.{name}: the value {value:?} is not allowed: it must be {wanted}");
            assert_eq!(resolve(&[(name, value)]).unwrap_err().to_string(), expected);
        }
        for (name, value) in [("Rate", "10"), ("Word", "éé"), ("Name", "b"), ("Name", "42"), ("Code", "z")] {
            assert_eq!(resolve(&[(name, value)]).unwrap()[name], value);
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
