//! Secrets, with the value that they begin with.

use crate::model::Secret;

use super::error::TemplateError;
use super::resources::Resource;

type Result<T> = std::result::Result<T, TemplateError>;

/// What is in a secret whose template does not say.
const EMPTY: &str = "{}";

pub(super) fn secret(resource: &Resource) -> Result<Secret> {
    let node = resource.node().only(&[
        "Name",
        "SecretString",
        // Of no consequence on one machine.
        "Description",
        "KmsKeyId",
        "Tags",
    ])?;
    let value = node.get("SecretString").map_or(Ok(EMPTY), |value| value.str())?.to_owned();
    Ok(Secret { logical_id: resource.id.clone(), name: resource.name.clone(), arn: resource.arn(), value })
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
    fn a_secret_has_a_value_and_is_referred_to_by_its_arn() {
        let model = load("Name: s, Description: d, KmsKeyId: k, SecretString: '{\"a\": 1}'").unwrap();
        let secret = &model.secrets[0];
        assert_eq!((secret.logical_id.as_str(), secret.name.as_str()), ("S", "s"));
        assert_eq!(secret.arn, "arn:aws:secretsmanager:us-east-1:000000000000:secret:s-local0");
        assert_eq!(secret.value, "{\"a\": 1}");
        assert_eq!(model.functions[0].environment["SECRET"], secret.arn);
        assert!(!format!("{model:?}").contains("\\\"a\\\""), "a value is not told");
    }

    #[test]
    fn a_secret_without_a_value_is_empty() {
        let model = load("").unwrap();
        assert_eq!((model.secrets[0].name.as_str(), model.secrets[0].value.as_str()), ("umavez-local-S", "{}"));
    }

    #[test]
    fn an_unknown_property_of_a_secret_is_refused() {
        assert_eq!(
            load("GenerateSecretString: {}").unwrap_err().to_string(),
            "template.yaml: Resources.S.Properties.GenerateSecretString: the local stack does not know this property"
        );
    }
}
