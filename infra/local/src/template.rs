//! Reads a SAM template into the [`Model`] that the local stack runs. It knows types of resources,
//! never their names. It refuses everything that it does not support, because a template that is
//! only partly understood would behave differently from the deployed one.

mod buckets;
mod error;
mod events;
mod functions;
mod intrinsics;
mod mail;
mod names;
mod node;
mod origins;
mod parameters;
mod resources;
mod rules;
mod schedules;
mod secrets;
mod yaml;

use std::collections::BTreeMap;

use serde_json::Value;

pub use self::error::{Problem, TemplateError};
pub use self::names::{
    ACCOUNT, API_ID, API_URL, QUEUE_URL_BASE, REGION, STACK, arn_at, bucket_arn, configuration_set_arn, secret_name,
};

use self::functions::HttpApi;
use self::intrinsics::Resolver;
use self::node::Node;
use self::resources::Resource;
use crate::model::Model;

const SECTIONS: &[&str] = &[
    "AWSTemplateFormatVersion",
    "Transform",
    "Description",
    "Metadata",
    "Parameters",
    "Conditions",
    "Globals",
    "Resources",
    "Outputs",
];

/// Reads a template with these parameter values. Functions, tables and queues keep the order of the
/// file.
pub fn load(yaml: &str, parameters: &BTreeMap<String, String>) -> Result<Model, TemplateError> {
    let (document, order) = yaml::parse(yaml)?;
    let root = Node::new(&document, "");
    for (name, section) in root.entries()? {
        if !SECTIONS.contains(&name) {
            return Err(section.error(Problem::UnknownSection));
        }
    }
    let values = parameters::values(root.get("Parameters"), parameters)?;
    let declared = root.need("Resources")?;
    let declared_map = declared.value.as_object().ok_or_else(|| declared.error(Problem::Expected("a mapping")))?;
    let resolver = Resolver::new(values, document.get("Conditions"), declared_map);
    check_conditions(&root, &resolver)?;

    let globals = globals(&root, &resolver)?;
    let mut all = Vec::new();
    for id in &order {
        let Some(node) = declared.get(id) else {
            return Err(TemplateError::new(format!("Resources.{id}"), Problem::Expected("a mapping")));
        };
        let Some(mut resource) = resources::read(id, node, &resolver)? else {
            continue;
        };
        if resource.kind == names::FUNCTION {
            resource.properties = functions::merge(&globals, resource.properties);
        }
        all.push(resource);
    }
    let mut model = build(&all)?;
    let shared = root.value.pointer("/Globals/Function/Environment/Variables");
    for function in &mut model.functions {
        let own = declared_map.get(&function.logical_id);
        let own = own.and_then(|resource| resource.pointer("/Properties/Environment/Variables"));
        function.parameters = origins::parameters_of(&root, shared, own);
    }
    model.outputs = outputs(&root, &resolver)?;
    Ok(model)
}

fn build(all: &[Resource]) -> Result<Model, TemplateError> {
    // The routes are listed at the functions, so read the API first, wherever it is in the file.
    let mut api: Option<HttpApi> = None;
    for resource in of_kind(all, names::HTTP_API) {
        if api.is_some() {
            return Err(resource.node().unsupported("the local stack knows one API"));
        }
        api = Some(functions::http_api(resource, all)?);
    }
    let mut model = Model::default();
    for resource in of_kind(all, names::TABLE) {
        model.tables.push(resources::table(resource)?);
    }
    for resource in of_kind(all, names::QUEUE) {
        model.queues.push(resources::queue(resource, all)?);
    }
    for resource in of_kind(all, names::BUCKET) {
        model.buckets.push(buckets::bucket(resource, all)?);
    }
    for resource in of_kind(all, names::SECRET) {
        model.secrets.push(secrets::secret(resource)?);
    }
    for resource in of_kind(all, names::CONFIGURATION_SET) {
        model.configuration_sets.push(mail::configuration_set(resource)?);
    }
    for resource in of_kind(all, names::EVENT_DESTINATION) {
        mail::add_destination(resource, &mut model.configuration_sets)?;
    }
    for resource in of_kind(all, names::RULE) {
        model.rules.extend(rules::rule(resource, all)?);
    }
    // Roles that no function uses are checked, too.
    for resource in of_kind(all, names::ROLE) {
        resources::role_statements(resource)?;
    }
    for resource in of_kind(all, names::FUNCTION) {
        model.functions.push(functions::function(resource, all, &mut api)?);
    }
    model.api = api.map(|http| http.api);
    Ok(model)
}

fn of_kind<'a>(all: &'a [Resource], kind: &'static str) -> impl Iterator<Item = &'a Resource> {
    all.iter().filter(move |resource| resource.kind == kind)
}

/// Checks all conditions, including those that nothing uses.
fn check_conditions(root: &Node, resolver: &Resolver) -> Result<(), TemplateError> {
    let Some(conditions) = root.get("Conditions") else {
        return Ok(());
    };
    for (name, condition) in conditions.entries()? {
        resolver.holds(name, &condition.path)?;
    }
    Ok(())
}

fn globals(root: &Node, resolver: &Resolver) -> Result<Value, TemplateError> {
    let Some(section) = root.get("Globals") else {
        return Ok(Value::Null);
    };
    let Some(function) = section.only(&["Function"])?.get("Function") else {
        return Ok(Value::Null);
    };
    let function = function.only(functions::PROPERTIES)?;
    Ok(resolver.resolve(&function)?.unwrap_or_default())
}

fn outputs(root: &Node, resolver: &Resolver) -> Result<BTreeMap<String, String>, TemplateError> {
    let mut outputs = BTreeMap::new();
    let Some(section) = root.get("Outputs") else {
        return Ok(outputs);
    };
    for (name, output) in section.entries()? {
        let output = output.only(&["Value", "Description", "Export", "Condition"])?;
        if let Some(condition) = output.get("Condition")
            && !resolver.holds(condition.str()?, &condition.path)?
        {
            continue;
        }
        outputs.insert(name.to_owned(), resolver.text(&output.need("Value")?)?);
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    const REAL: &str = include_str!("../../../template.yaml");

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refusal(yaml: &str) -> String {
        load(yaml, &BTreeMap::new()).unwrap_err().to_string()
    }

    fn real() -> Model {
        load(REAL, &given(&[("Stage", "local")])).unwrap()
    }

    /// Returns a function of the real template. These tests check how the template is read, not
    /// what it contains.
    fn function<'a>(model: &'a Model, binary: &str) -> &'a crate::model::Function {
        model.functions.iter().find(|function| function.binary == binary).unwrap()
    }

    #[test]
    fn the_functions_of_the_real_template_keep_the_order_of_the_file() {
        let model = real();
        let first: Vec<_> =
            model.functions.iter().map(|f| (f.logical_id.as_str(), f.binary.as_str())).take(2).collect();
        assert_eq!(first, [("Authorizer", "authorizer"), ("OutboundApi", "outbound-api")]);
        let seconds =
            ["authorizer", "outbound-api", "intent-expiry"].map(|name| function(&model, name).timeout.as_secs());
        assert_eq!(seconds, [5, 10, 60]);
        assert_eq!(function(&model, "outbound-api").memory_mb, 256);
        assert_eq!(function(&model, "outbound-api").name, "umavez-local-outbound-api");
    }

    #[test]
    fn the_real_template_has_its_routes_and_their_authorizer() {
        let api = real().api.unwrap();
        let find = |method: &str, path: &str| api.routes.iter().find(|r| r.method == method && r.path == path).unwrap();
        assert!(!find("GET", "/health").authorized);
        let release = find("POST", "/intents/{fingerprint}/release");
        assert!(release.authorized && release.function == "umavez-local-outbound-api");
        assert_eq!(api.authorizer.as_deref(), Some("umavez-local-authorizer"));
    }

    #[test]
    fn the_real_template_gives_each_function_the_common_environment_and_its_own() {
        let model = load(REAL, &given(&[("LogLevel", "DEBUG")])).unwrap();
        let common = [("LOG_LEVEL", "DEBUG"), ("METRICS_NAMESPACE", "Umavez/dev")];
        let with = |own: &[(&str, &str)]| given(&[&common[..], own].concat());
        let of = |name: &str| function(&model, name).environment.clone();
        assert_eq!(of("authorizer"), with(&[("CONFIG_TABLE", "umavez-dev-config")]));
        assert_eq!(of("intent-expiry"), with(&[]));
    }

    #[test]
    fn the_real_template_filters_the_stream_for_ttl_removals() {
        let model = real();
        let [source] = &function(&model, "intent-expiry").stream_sources[..] else { panic!("one stream source") };
        assert_eq!(source.id, "IntentExpiryRemovals");
        assert_eq!(source.table, "umavez-local-intents");
        assert_eq!(source.on_failure_queue.as_deref(), Some("umavez-local-intent-expiry-dlq"));
        assert!(source.partial_failures && source.bisect && !source.from_latest);
        assert_eq!((source.batch_size, source.window), (100, Duration::from_secs(10)));
        assert_eq!((source.max_retries, source.max_age), (Some(5), Some(Duration::from_secs(43_200))));
        assert_eq!(
            source.filters,
            [json!({
                "eventName": ["REMOVE"],
                "userIdentity": {"type": ["Service"], "principalId": ["dynamodb.amazonaws.com"]},
                "dynamodb": {"Keys": {"sk": {"S": [{"prefix": "INTENT#"}]}}},
            })]
        );
    }

    #[test]
    fn the_real_template_grants_listed_actions_on_its_own_resources() {
        for function in real().functions {
            assert!(function.policies.len() > 1, "{}", function.name);
            for statement in function.policies {
                for action in texts(&statement["Action"]) {
                    assert!(!action.contains('*'), "{statement}");
                }
                for resource in texts(&statement["Resource"]) {
                    // SES identities belong to the account, not to the template.
                    let own = resource.contains("umavez-local") || resource.contains(":identity/");
                    assert!(resource.starts_with("arn:aws:") && own, "{statement}");
                }
            }
        }
    }

    fn texts(value: &Value) -> Vec<&str> {
        let many = value.as_array().map(|list| list.iter().filter_map(Value::as_str).collect());
        many.unwrap_or_else(|| value.as_str().into_iter().collect())
    }

    #[test]
    fn the_real_template_has_its_tables_and_its_queues() {
        let model = real();
        let table = |name: &str| model.tables.iter().find(|table| table.name == name).unwrap();
        let intents = table("umavez-local-intents");
        assert_eq!((intents.ttl_attribute.as_deref(), intents.streams), (Some("expires_at"), true));
        let config = table("umavez-local-config");
        assert_eq!((config.ttl_attribute.as_deref(), config.streams), (None, false));
        let queue = model.queues.iter().find(|queue| queue.name == "umavez-local-intent-expiry-dlq").unwrap();
        assert_eq!(queue.retention, Duration::from_secs(14 * 86_400));
    }

    #[test]
    fn outputs_are_resolved() {
        let outputs = real().outputs;
        let found = ["ApiUrl", "ConfigTable"].map(|name| outputs[name].as_str());
        assert_eq!(found, [API_URL, "umavez-local-config"]);
    }

    #[test]
    fn the_variables_of_the_real_template_are_traced_to_their_parameters() {
        let model = real();
        let parameters = |binary: &str, variable: &str| {
            let found = function(&model, binary).parameters.get(variable).cloned().unwrap_or_default();
            found.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(parameters("outbound-api", "INTENT_TYPE_OPTIONS"), "IntentTypeOptions");
        assert_eq!(parameters("mailing-sender", "PUBLIC_URL"), "PublicUrl");
        assert_eq!(parameters("outbound-api", "LOG_LEVEL"), "LogLevel");
        assert_eq!(parameters("outbound-api", "OUTBOUND_TABLE"), "");
    }

    #[test]
    fn an_unknown_resource_type_is_refused_by_name() {
        assert_eq!(
            refusal("Resources: {Foo: {Type: 'AWS::SNS::Topic'}}"),
            "template.yaml: Resources.Foo: the local stack does not know the type AWS::SNS::Topic"
        );
    }

    #[test]
    fn an_unknown_section_is_refused() {
        assert_eq!(
            refusal("Mappings: {}\nResources: {}"),
            "template.yaml: Mappings: the local stack does not know this section"
        );
    }

    #[test]
    fn an_unknown_global_is_refused() {
        assert_eq!(
            refusal("Globals: {Function: {Layers: []}}\nResources: {}"),
            "template.yaml: Globals.Function.Layers: the local stack does not know this property"
        );
    }

    #[test]
    fn text_that_is_not_a_template_is_refused() {
        assert_eq!(refusal("- a"), "template.yaml: expected a mapping");
        assert_eq!(refusal("A: [").split(": ").nth(1), Some("not a YAML template"));
        assert_eq!(refusal("Resources:"), "template.yaml: Resources is missing");
        assert_eq!(refusal("Resources: {A: }"), "template.yaml: Resources.A: expected a mapping");
        assert_eq!(refusal("Resources: {A: b}"), "template.yaml: Resources.A: Type is missing");
    }

    #[test]
    fn a_resource_whose_condition_does_not_hold_is_left_out() {
        let yaml = "
Parameters: {Big: {Type: String, Default: 'no'}}
Conditions: {IsBig: !Equals [!Ref Big, 'yes']}
Resources: {Q: {Type: 'AWS::SQS::Queue', Condition: IsBig}}
Outputs: {Q: {Condition: IsBig, Value: !Ref Q}}";
        assert!(load(yaml, &BTreeMap::new()).unwrap().queues.is_empty());
        let model = load(yaml, &given(&[("Big", "yes")])).unwrap();
        assert_eq!(model.queues[0].name, "umavez-local-Q");
        assert_eq!(model.outputs["Q"], "http://sqs.local/000000000000/umavez-local-Q");
    }

    #[test]
    fn an_environment_is_resolved_from_parameters_conditions_and_the_api() {
        let yaml = "
Parameters: {Domain: {Type: String, Default: ''}, Stage: {Type: String, Default: dev}}
Conditions:
  NoDomain: !Equals [!Ref Domain, '']
  HasDomain: !Not [!Condition NoDomain]
  NotDev: !Not [!Equals [!Ref Stage, dev]]
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: a
      Environment:
        Variables:
          BASE: !If [HasDomain, !Sub 'https://${Domain}', !Sub 'https://${Api}.execute-api.${AWS::Region}.${AWS::URLSuffix}']
          LIST: !Join [',', [!Ref Stage, !If [NotDev, strict, lax], !Sub '${Stage}-x']]
          DOMAIN: !If [NoDomain, !Ref 'AWS::NoValue', !Ref Domain]
  Api: {Type: AWS::Serverless::HttpApi}
  Lost:
    Type: AWS::CloudWatch::Alarm
    Condition: NotDev
    Properties: {Namespace: Anything, MetricName: lost, Statistic: Sum, Period: 60, EvaluationPeriods: 1, Threshold: 1,
      ComparisonOperator: GreaterThanOrEqualToThreshold, TreatMissingData: notBreaching}";
        let environment = |pairs: &[(&str, &str)]| load(yaml, &given(pairs)).unwrap().functions[0].environment.clone();
        let api = "https://local-api.execute-api.us-east-1.amazonaws.com";
        assert_eq!(environment(&[]), given(&[("BASE", api), ("LIST", "dev,lax,dev-x")]));
        let own = environment(&[("Domain", "a.example"), ("Stage", "prod")]);
        let expected = [("BASE", "https://a.example"), ("DOMAIN", "a.example"), ("LIST", "prod,strict,prod-x")];
        assert_eq!(own, given(&expected));
    }

    #[test]
    fn a_second_api_is_refused() {
        let yaml = "Resources: {A: {Type: 'AWS::Serverless::HttpApi'}, B: {Type: 'AWS::Serverless::HttpApi'}}";
        assert_eq!(refusal(yaml), "template.yaml: Resources.B.Properties: the local stack knows one API");
    }
}
