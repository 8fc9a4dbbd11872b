//! Secrets, with their initial values.

use serde_json::Value;

use crate::model::{Generated, Secret, SecretValue};

use super::error::{Problem, TemplateError};
use super::node::Node;
use super::resources::Resource;

type Result<T> = std::result::Result<T, TemplateError>;

/// The value of a secret for which the template sets none.
const EMPTY: &str = "{}";

/// The range of lengths of a generated password, and the default length of Secrets Manager.
const LENGTHS: std::ops::RangeInclusive<usize> = 4..=4_096;
const LENGTH: usize = 32;

pub(super) fn secret(resource: &Resource) -> Result<Secret> {
    let node = resource.node().only(&[
        "Name",
        "SecretString",
        "GenerateSecretString",
        // Ignored: no effect on the local stack.
        "Description",
        "KmsKeyId",
        "Tags",
    ])?;
    let value = match (node.get("SecretString"), node.get("GenerateSecretString")) {
        (Some(_), Some(generate)) => return Err(generate.unsupported("a secret has SecretString or this, not both")),
        (None, Some(generate)) => SecretValue::Generated(generated(generate)?),
        (value, None) => SecretValue::Given(value.map_or(Ok(EMPTY), |value| value.str())?.to_owned()),
    };
    Ok(Secret { logical_id: resource.id.clone(), name: resource.name.clone(), arn: resource.arn(), value })
}

fn generated(node: Node) -> Result<Generated> {
    let node = node.only(&["SecretStringTemplate", "GenerateStringKey", "PasswordLength", "ExcludePunctuation"])?;
    let length = match node.get("PasswordLength") {
        Some(length) => {
            let count = usize::try_from(length.count()?).ok().filter(|count| LENGTHS.contains(count));
            count.ok_or_else(|| length.error(Problem::Expected("a length from 4 to 4096")))?
        }
        None => LENGTH,
    };
    let into = match (node.get("SecretStringTemplate"), node.get("GenerateStringKey")) {
        (None, None) => None,
        (None, Some(_)) => return Err(node.error(Problem::Missing("SecretStringTemplate"))),
        (Some(template), _) => {
            let Value::Object(fields) = template.json()? else {
                return Err(template.error(Problem::Expected("a JSON object in a string")));
            };
            Some((fields, node.need("GenerateStringKey")?.str()?.to_owned()))
        }
    };
    let punctuation = !node.get("ExcludePunctuation").map_or(Ok(false), |without| without.bool())?;
    Ok(Generated { length, punctuation, into })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use std::collections::BTreeMap;

    fn load(properties: &str) -> Result<Model> {
        let text = format!(
            "
Resources:
  S: {{Type: 'AWS::SecretsManager::Secret', Properties: {{{properties}}}}}
  F:
    Type: AWS::Serverless::Function
    Properties: {{CodeUri: a, Environment: {{Variables: {{SECRET: !Ref S}}}}}}"
        );
        crate::template::load(&text, &BTreeMap::new())
    }

    #[test]
    fn a_secret_has_a_value_and_a_reference_to_it_is_its_arn() {
        let model = load("Name: s, Description: d, KmsKeyId: k, SecretString: '{\"a\": 1}'").unwrap();
        let secret = &model.secrets[0];
        assert_eq!((secret.logical_id.as_str(), secret.name.as_str()), ("S", "s"));
        assert_eq!(secret.arn, "arn:aws:secretsmanager:us-east-1:000000000000:secret:s-local0");
        assert!(secret.value == SecretValue::Given("{\"a\": 1}".to_owned()));
        assert_eq!(model.functions[0].environment["SECRET"], secret.arn);
        assert!(!format!("{model:?}").contains("\\\"a\\\""), "the debug output hides values");
    }

    #[test]
    fn a_secret_without_a_value_is_empty() {
        let model = load("").unwrap();
        assert_eq!(model.secrets[0].name, "umavez-local-S");
        assert!(model.secrets[0].value == SecretValue::Given("{}".to_owned()));
    }

    #[test]
    fn a_secret_may_be_generated() {
        let generated = |properties: &str| {
            let model = load(&format!("GenerateSecretString: {{{properties}}}")).unwrap();
            let SecretValue::Generated(generated) = model.secrets[0].value.clone() else { panic!("not generated") };
            generated
        };
        let plain = Generated { length: 32, punctuation: true, into: None };
        assert_eq!(generated(""), plain);
        let fields = serde_json::from_str("{\"v\": 1}").unwrap();
        let whole = "SecretStringTemplate: '{\"v\": 1}', GenerateStringKey: key, PasswordLength: 43, \
                     ExcludePunctuation: true";
        let into = Some((fields, "key".to_owned()));
        assert_eq!(generated(whole), Generated { length: 43, punctuation: false, into });
    }

    #[test]
    fn unknown_or_invalid_settings_of_a_secret_are_refused() {
        let unknown = "the local stack does not know this property";
        for (properties, expected) in [
            ("RotationLambda: x", format!(".RotationLambda: {unknown}")),
            ("GenerateSecretString: {IncludeSpace: true}", format!(".GenerateSecretString.IncludeSpace: {unknown}")),
            (
                "SecretString: a, GenerateSecretString: {}",
                ".GenerateSecretString: a secret has SecretString or this, not both".to_owned(),
            ),
            (
                "GenerateSecretString: {GenerateStringKey: a}",
                ".GenerateSecretString: SecretStringTemplate is missing".to_owned(),
            ),
            (
                "GenerateSecretString: {SecretStringTemplate: '{}'}",
                ".GenerateSecretString: GenerateStringKey is missing".to_owned(),
            ),
            (
                "GenerateSecretString: {PasswordLength: 3}",
                ".GenerateSecretString.PasswordLength: expected a length from 4 to 4096".to_owned(),
            ),
        ] {
            let refused = load(properties).unwrap_err().to_string();
            assert_eq!(refused, format!("template.yaml: Resources.S.Properties{expected}"));
        }
    }
}
