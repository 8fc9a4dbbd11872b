//! Functions, and the API that invokes them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::{Api, Function};

use super::error::{Problem, TemplateError};
use super::events;
use super::names;
use super::node::Node;
use super::resources::{Resource, by_arn, role_statements, seconds_or};

type Result<T> = std::result::Result<T, TemplateError>;

pub(super) const PROPERTIES: &[&str] = &[
    "FunctionName",
    "CodeUri",
    "Timeout",
    "MemorySize",
    "ReservedConcurrentExecutions",
    "Environment",
    "Role",
    "Events",
    // Ignored: the binary is built for this machine, and its output is read from the process.
    "Architectures",
    "Description",
    "Handler",
    "LoggingConfig",
    "Runtime",
    "Tags",
];

/// Reads a function with its event sources. Adds its routes to `api`.
pub(super) fn function(resource: &Resource, all: &[Resource], api: &mut Option<HttpApi>) -> Result<Function> {
    let node = resource.node().only(PROPERTIES)?;
    let mut function = Function {
        logical_id: resource.id.clone(),
        name: resource.name.clone(),
        binary: binary(resource, &node)?,
        timeout: seconds_or(&node, "Timeout", 3)?,
        memory_mb: node.get("MemorySize").map_or(Ok(128), |memory| memory.count())?,
        reserved_concurrency: node.get("ReservedConcurrentExecutions").map(|count| count.count()).transpose()?,
        environment: environment(&node)?,
        parameters: BTreeMap::new(),
        log_group: log_group(&node)?.unwrap_or_else(|| format!("/aws/lambda/{}", resource.name)),
        policies: match node.get("Role") {
            Some(role) => role_statements(by_arn(&role, names::ROLE, all)?)?,
            None => Vec::new(),
        },
        queue_sources: Vec::new(),
        stream_sources: Vec::new(),
        schedules: Vec::new(),
    };
    if let Some(list) = node.get("Events") {
        for (id, event) in list.entries()? {
            events::add(id, event, &mut function, all, api)?;
        }
    }
    Ok(function)
}

/// Returns the name of the binary: that of the folder, unless the build properties name another.
fn binary(resource: &Resource, node: &Node) -> Result<String> {
    let metadata = Node::new(&resource.metadata, format!("Resources.{}.Metadata", resource.id));
    if let Some(binary) = metadata.get("BuildProperties").and_then(|build| build.get("Binary")) {
        return binary.str().map(str::to_owned);
    }
    let code = node.need("CodeUri")?;
    let folder = code.str()?.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    match folder {
        "" | "." | ".." => Err(code.error(Problem::Expected("the folder of the function"))),
        folder => Ok(folder.to_owned()),
    }
}

fn environment(node: &Node) -> Result<BTreeMap<String, String>> {
    let Some(environment) = node.get("Environment") else {
        return Ok(BTreeMap::new());
    };
    let Some(variables) = environment.only(&["Variables"])?.get("Variables") else {
        return Ok(BTreeMap::new());
    };
    variables.entries()?.into_iter().map(|(name, value)| Ok((name.to_owned(), value.text()?))).collect()
}

fn log_group(node: &Node) -> Result<Option<String>> {
    let group = node.get("LoggingConfig").and_then(|logging| logging.get("LogGroup"));
    group.map(|group| group.text()).transpose()
}

/// Merges `Globals.Function` into the properties of a function as SAM does: mappings by key, lists
/// concatenated, and the function's own scalars win.
pub(super) fn merge(globals: &Value, own: Value) -> Value {
    match (globals, own) {
        (Value::Object(globals), Value::Object(mut own)) => {
            for (key, global) in globals {
                let merged = match own.remove(key) {
                    Some(value) => merge(global, value),
                    None => global.clone(),
                };
                own.insert(key.clone(), merged);
            }
            Value::Object(own)
        }
        (Value::Array(globals), Value::Array(own)) => globals.iter().cloned().chain(own).collect(),
        (_, own) => own,
    }
}

/// The API while its routes are collected.
pub(super) struct HttpApi {
    pub(super) api: Api,
    pub(super) authorizer_name: Option<String>,
    pub(super) authorized_by_default: bool,
}

pub(super) fn http_api(resource: &Resource, all: &[Resource]) -> Result<HttpApi> {
    let node = resource.node().only(&[
        "Name",
        "Auth",
        // Ignored: no effect on the local stack.
        "AccessLogSettings",
        "DefaultRouteSettings",
        "Description",
        "FailOnWarnings",
        "Tags",
    ])?;
    let mut http = HttpApi { api: Api::default(), authorizer_name: None, authorized_by_default: false };
    let Some(auth) = node.get("Auth") else {
        return Ok(http);
    };
    let auth = auth.only(&["DefaultAuthorizer", "Authorizers"])?;
    if let Some(authorizers) = auth.get("Authorizers") {
        let [(name, authorizer)] = &authorizers.entries()?[..] else {
            return Err(authorizers.unsupported("the local stack knows one authorizer"));
        };
        http.api.authorizer = Some(authorizer_function(authorizer.clone(), all)?);
        http.authorizer_name = Some((*name).to_owned());
    }
    if let Some(default) = auth.get("DefaultAuthorizer") {
        if http.authorizer_name.as_deref() != Some(default.str()?) {
            return Err(default.error(Problem::UnknownReference(default.str()?.to_owned())));
        }
        http.authorized_by_default = true;
    }
    Ok(http)
}

fn authorizer_function(node: Node, all: &[Resource]) -> Result<String> {
    let node = node.only(&[
        "FunctionArn",
        "AuthorizerPayloadFormatVersion",
        "EnableSimpleResponses",
        "EnableFunctionDefaultPermissions",
    ])?;
    let version = node.need("AuthorizerPayloadFormatVersion")?;
    if version.text()? != "2.0" {
        return Err(version.unsupported("the local stack only knows payload format 2.0"));
    }
    let simple = node.need("EnableSimpleResponses")?;
    if !simple.bool()? {
        return Err(simple.unsupported("the local stack only knows simple responses"));
    }
    Ok(by_arn(&node.need("FunctionArn")?, names::FUNCTION, all)?.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use serde_json::json;

    fn load(text: &str) -> Result<Model> {
        crate::template::load(text, &BTreeMap::new())
    }

    fn function(properties: &str) -> Result<Function> {
        let text = format!("Resources: {{F: {{Type: 'AWS::Serverless::Function', Properties: {{{properties}}}}}}}");
        load(&text).map(|mut model| model.functions.remove(0))
    }

    #[test]
    fn a_function_has_the_defaults_of_aws() {
        let function = function("CodeUri: functions/some-worker/").unwrap();
        assert_eq!(function.name, "umavez-local-F");
        assert_eq!(function.binary, "some-worker");
        assert_eq!((function.timeout.as_secs(), function.memory_mb, function.reserved_concurrency), (3, 128, None));
    }

    #[test]
    fn a_function_has_its_own_settings() {
        let function = function(
            "CodeUri: a, FunctionName: f, Timeout: 20, MemorySize: 512, ReservedConcurrentExecutions: 2, \
             Environment: {Variables: {A: 1, B: true, C: x}}",
        )
        .unwrap();
        assert_eq!((function.timeout.as_secs(), function.memory_mb, function.reserved_concurrency), (20, 512, Some(2)));
        let environment: Vec<_> = function.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(environment, [("A", "1"), ("B", "true"), ("C", "x")]);
    }

    #[test]
    fn the_build_may_name_another_binary() {
        let model = load(
            "Resources: {F: {Type: 'AWS::Serverless::Function', Metadata: {BuildProperties: {Binary: b}}, \
             Properties: {CodeUri: a}}}",
        );
        assert_eq!(model.unwrap().functions[0].binary, "b");
    }

    #[test]
    fn a_function_without_a_folder_is_refused() {
        let refusal = |properties| function(properties).unwrap_err().to_string();
        assert_eq!(refusal(""), "template.yaml: Resources.F.Properties: CodeUri is missing");
        assert_eq!(
            refusal("CodeUri: ."),
            "template.yaml: Resources.F.Properties.CodeUri: expected the folder of the function"
        );
    }

    #[test]
    fn an_unknown_property_of_a_function_is_refused() {
        assert_eq!(
            function("CodeUri: a, Layers: []").unwrap_err().to_string(),
            "template.yaml: Resources.F.Properties.Layers: the local stack does not know this property"
        );
    }

    #[test]
    fn globals_are_merged_and_the_function_wins() {
        let globals = json!({"Timeout": 5, "MemorySize": 1, "Tags": ["g"], "Environment": {"A": "g", "B": "g"}});
        let own = json!({"Timeout": 9, "Tags": ["o"], "Environment": {"B": "o", "C": "o"}});
        assert_eq!(
            merge(&globals, own),
            json!({
                "Timeout": 9, "MemorySize": 1, "Tags": ["g", "o"], "Environment": {"A": "g", "B": "o", "C": "o"}
            })
        );
    }

    #[test]
    fn a_function_has_the_statements_of_its_role() {
        let model = load(
            "
Resources:
  Q: {Type: 'AWS::SQS::Queue', Properties: {QueueName: q}}
  R:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {}
      Policies:
        - PolicyDocument: {Statement: [{Effect: Allow, Action: 'sqs:SendMessage', Resource: !GetAtt Q.Arn}]}
        - PolicyDocument: {Statement: {Effect: Deny, Action: a, Resource: b}}
  F: {Type: AWS::Serverless::Function, Properties: {CodeUri: a, Role: !GetAtt R.Arn}}",
        )
        .unwrap();
        assert_eq!(
            model.functions[0].policies,
            [
                json!({"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "arn:aws:sqs:us-east-1:000000000000:q"}),
                json!({"Effect": "Deny", "Action": "a", "Resource": "b"}),
            ]
        );
    }

    #[test]
    fn a_statement_may_have_a_pattern_and_a_condition() {
        let model = load(
            "
Resources:
  S: {Type: 'AWS::SecretsManager::Secret', Properties: {Name: s}}
  R:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {}
      Policies:
        - PolicyDocument:
            Statement:
              - Effect: Allow
                Action: ses:SendEmail
                Resource: !Sub 'arn:${AWS::Partition}:ses:${AWS::Region}:${AWS::AccountId}:identity/*'
                Condition: {StringEquals: {'ses:FromAddress': [a@example.com]}}
              - {Effect: Allow, Action: 'secretsmanager:GetSecretValue', Resource: !Ref S}
  F: {Type: AWS::Serverless::Function, Properties: {CodeUri: a, Role: !GetAtt R.Arn}}",
        )
        .unwrap();
        let [email, secret] = &model.functions[0].policies[..] else { panic!("two statements") };
        assert_eq!(email["Resource"], "arn:aws:ses:us-east-1:000000000000:identity/*");
        assert_eq!(email["Condition"], json!({"StringEquals": {"ses:FromAddress": ["a@example.com"]}}));
        assert_eq!(secret["Resource"], "arn:aws:secretsmanager:us-east-1:000000000000:secret:s-local0");
    }

    fn api(auth: &str) -> Result<Model> {
        load(&format!(
            "
Resources:
  Api: {{Type: 'AWS::Serverless::HttpApi', Properties: {{Auth: {auth}}}}}
  F: {{Type: 'AWS::Serverless::Function', Properties: {{CodeUri: a, FunctionName: f}}}}"
        ))
    }

    const KEYS: &str = "FunctionArn: !GetAtt F.Arn, AuthorizerPayloadFormatVersion: '2.0', EnableSimpleResponses: true";

    #[test]
    fn the_authorizer_is_a_function_of_the_template() {
        let model = api(&format!("{{DefaultAuthorizer: Keys, Authorizers: {{Keys: {{{KEYS}}}}}}}")).unwrap();
        assert_eq!(model.api.unwrap().authorizer.as_deref(), Some("f"));
    }

    #[test]
    fn an_authorizer_that_the_gateway_does_not_support_is_refused() {
        let path = "template.yaml: Resources.Api.Properties.Auth";
        let cases = [
            (
                "{DefaultAuthorizer: Who}".to_owned(),
                ".DefaultAuthorizer: Who refers to nothing that the local stack knows",
            ),
            (
                format!("{{Authorizers: {{A: {{{KEYS}}}, B: {{{KEYS}}}}}}}"),
                ".Authorizers: the local stack knows one authorizer",
            ),
            (
                format!("{{Authorizers: {{A: {{{KEYS}, Identity: {{}}}}}}}}"),
                ".Authorizers.A.Identity: the local stack does not know this property",
            ),
            (
                format!("{{Authorizers: {{A: {{{}}}}}}}", KEYS.replace("2.0", "1.0")),
                ".Authorizers.A.AuthorizerPayloadFormatVersion: the local stack only knows payload format 2.0",
            ),
            (
                format!("{{Authorizers: {{A: {{{}}}}}}}", KEYS.replace("true", "false")),
                ".Authorizers.A.EnableSimpleResponses: the local stack only knows simple responses",
            ),
        ];
        for (auth, expected) in cases {
            assert_eq!(api(&auth).unwrap_err().to_string(), format!("{path}{expected}"));
        }
    }
}
