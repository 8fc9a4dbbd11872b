//! What the template deploys beside the functions: dead-letter queues and their alarms, log groups
//! with a retention, and roles with narrow grants.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use serde_yaml_ng::Value;
use umavez_domain::keys::index;
use umavez_domain::webhooks::secrets::WebhookSecrets;
use umavez_local::clock::Clock;
use umavez_local::model::Model;
use umavez_local::permissions::Permissions;
use umavez_local::secrets::Secrets;

use crate::model;

/// Returns the resources of a type with their logical ids, as they are in the template.
fn resources(kind: &str) -> Vec<(String, Value)> {
    let template: Value = serde_yaml_ng::from_str(&umavez_tests::template()).expect("YAML");
    let all = template["Resources"].as_mapping().expect("resources").clone();
    let of_kind = all.into_iter().filter(|(_, resource)| resource["Type"] == kind);
    of_kind.map(|(id, resource)| (id.as_str().expect("a name").to_owned(), resource["Properties"].clone())).collect()
}

/// Returns the logical id that an intrinsic refers to: `Queue` for `!GetAtt Queue.Arn` and for
/// `!Ref Queue`.
fn referred(value: &Value) -> String {
    let text = match value {
        Value::Tagged(tagged) => tagged.value.as_str(),
        value => value.as_str(),
    };
    text.and_then(|text| text.split('.').next()).unwrap_or_default().to_owned()
}

/// Returns the logical ids in the dimensions of the alarms on this metric.
fn watched(namespace: &str, metric: &str) -> BTreeSet<String> {
    let alarms = resources("AWS::CloudWatch::Alarm").into_iter().map(|(_, alarm)| alarm);
    let on_it = alarms.filter(|alarm| alarm["Namespace"] == namespace && alarm["MetricName"] == metric);
    on_it.map(|alarm| referred(&alarm["Dimensions"][0]["Value"])).collect()
}

/// Returns the dead-letter queues: the targets of redrive policies and of failed stream records.
fn dead_letter_queues(model: &Model) -> BTreeSet<String> {
    let redriven = model.queues.iter().filter_map(|queue| queue.redrive.as_ref().map(|(target, _)| target.clone()));
    let sources = model.functions.iter().flat_map(|function| &function.stream_sources);
    let names: BTreeSet<_> = redriven.chain(sources.filter_map(|source| source.on_failure_queue.clone())).collect();
    model.queues.iter().filter(|queue| names.contains(&queue.name)).map(|queue| queue.logical_id.clone()).collect()
}

#[test]
fn the_template_has_exactly_the_indexes_that_the_code_uses() {
    let mut deployed = BTreeSet::new();
    for (_, table) in resources("AWS::DynamoDB::Table") {
        for (kind, is_local) in [("LocalSecondaryIndexes", true), ("GlobalSecondaryIndexes", false)] {
            for index in table[kind].as_sequence().into_iter().flatten() {
                let key = |at: usize| index["KeySchema"][at]["AttributeName"].as_str().expect("a name").to_owned();
                deployed.insert((index["IndexName"].as_str().expect("a name").to_owned(), key(0), key(1), is_local));
            }
        }
    }
    let named = index::ALL
        .iter()
        .map(|index| (index.name.to_owned(), index.partition.to_owned(), index.sort.to_owned(), index.is_local()));
    assert_eq!(named.collect::<BTreeSet<_>>(), deployed);
}

#[test]
fn every_event_source_has_a_dead_letter_queue_enough_time_and_partial_failures() {
    let model = model();
    for function in &model.functions {
        for source in &function.queue_sources {
            assert!(source.partial_failures, "{}", source.id);
            let queue = model.queues.iter().find(|queue| queue.name == source.queue).expect("a queue of the template");
            assert!(queue.redrive.as_ref().is_some_and(|(_, receives)| *receives >= 3), "{}", queue.name);
            assert!(queue.visibility >= function.timeout * 6, "{}", queue.name);
        }
        for source in &function.stream_sources {
            assert!(source.partial_failures && source.bisect, "{}", source.id);
            assert!(source.on_failure_queue.is_some() && source.max_retries.is_some(), "{}", source.id);
        }
    }
}

#[test]
fn every_queue_has_a_reader_or_is_a_dead_letter_queue() {
    let model = model();
    let sources = model.functions.iter().flat_map(|function| &function.queue_sources);
    let read: BTreeSet<_> = sources.map(|source| source.queue.clone()).collect();
    let dead = dead_letter_queues(&model);
    for queue in &model.queues {
        assert_ne!(read.contains(&queue.name), dead.contains(&queue.logical_id), "{}", queue.name);
    }
}

#[test]
fn an_alarm_watches_every_dead_letter_queue_and_the_age_of_every_stream() {
    let model = model();
    let queues = &dead_letter_queues(&model) - &watched("AWS/SQS", "ApproximateNumberOfMessagesVisible");
    let reads_streams = model.functions.iter().filter(|function| !function.stream_sources.is_empty());
    let readers: BTreeSet<_> = reads_streams.map(|function| function.logical_id.clone()).collect();
    let readers = &readers - &watched("AWS/Lambda", "IteratorAge");
    assert!(queues.is_empty() && readers.is_empty(), "no alarm on {queues:?} and {readers:?}");
}

#[test]
fn every_alarm_notifies_the_alarm_topic_if_there_is_one() {
    for (id, alarm) in resources("AWS::CloudWatch::Alarm") {
        let Value::Tagged(actions) = &alarm["AlarmActions"] else { panic!("{id} has no action") };
        assert_eq!(actions.value[0], "HasAlarmTopic", "{id}");
    }
}

#[test]
fn every_function_has_its_own_log_group_with_a_retention() {
    let groups = resources("AWS::Logs::LogGroup");
    for (id, group) in &groups {
        assert!(!group["RetentionInDays"].is_null(), "{id} has no retention");
    }
    let functions = resources("AWS::Serverless::Function");
    assert_eq!(functions.len(), model().functions.len());
    for (id, function) in functions {
        let group = referred(&function["LoggingConfig"]["LogGroup"]);
        assert_eq!(group, format!("{id}Logs"), "{id} does not use its own log group");
        assert!(groups.iter().any(|(id, _)| *id == group), "{group} is not in the template");
    }
}

/// Returns whether a resource has no wildcard, or one that is allowed: the streams of one log
/// group, the objects under one prefix, and the identities of the account unless the deployment
/// names one.
fn is_narrow(resource: &str) -> bool {
    let Some((before, after)) = resource.split_once('*') else { return true };
    let of_logs = before.contains(":log-group:/") && before.ends_with(':');
    let of_objects =
        before.starts_with("arn:aws:s3:::") && before.split_once('/').is_some_and(|(_, key)| !key.is_empty());
    let of_identities = before.ends_with(":identity/");
    after.is_empty() && (of_logs || of_objects || of_identities)
}

#[test]
fn no_policy_grants_everything() {
    for function in model().functions {
        assert!(!function.policies.is_empty(), "{} has no policies", function.binary);
        for statement in &function.policies {
            for part in ["Action", "Resource"] {
                let values = match &statement[part] {
                    serde_json::Value::Array(values) => values.clone(),
                    value => vec![value.clone()],
                };
                for value in values {
                    let text = value.as_str().expect("a text");
                    let is_narrow = if part == "Action" { !text.contains('*') } else { is_narrow(text) };
                    assert!(!text.is_empty() && is_narrow, "{}: {part} {text}", function.binary);
                }
            }
        }
    }
}

/// Otherwise a client of the API could send as any identity of the account.
#[test]
fn production_names_the_identity_that_it_sends_as() {
    let path = umavez_local::binaries::workspace_root().join("infra/stages/prod.yaml");
    let stage: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(path).expect("a file")).expect("YAML");
    assert!(stage["SesIdentity"].as_str().is_some_and(|identity| !identity.contains('*')));
}

#[test]
fn no_grant_is_given_twice() {
    let permissions = Permissions::of(&model(), |function| function.binary.clone()).expect("roles that are known");
    // The grants are sorted.
    for pair in permissions.grants().windows(2) {
        let [one, other] = pair else { continue };
        let same = (&one.function, &one.action, &one.resource) == (&other.function, &other.action, &other.resource);
        assert!(!same, "{} may {} twice on {}", one.function, one.action, one.resource);
    }
}

#[test]
fn a_role_belongs_to_one_function() {
    for (id, function) in resources("AWS::Serverless::Function") {
        assert_eq!(referred(&function["Role"]), format!("{id}Role"));
    }
}

/// The generated secret that signs requests to responders works unchanged with the official
/// libraries of Standard Webhooks.
#[test]
fn the_generated_secret_of_the_responder_fits_standard_webhooks() {
    let secrets = Secrets::open(&model().secrets, &BTreeMap::new(), None, Clock::new(0)).expect("secrets");
    let asked = json!({"SecretId": "umavez-dev-webhooks"}).to_string();
    let made = secrets.handle("GetSecretValue", asked.as_bytes()).expect("a secret");
    let text = made["SecretString"].as_str().expect("a text");
    let made: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let responder = made["responder"].as_str().expect("a text");
    let encoded = responder.strip_prefix("whsec_").expect("a prefix");
    assert!(encoded.len() == 48 && encoded.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{responder}");
    let keys = WebhookSecrets::parse(text).expect("secrets of webhooks");
    assert_eq!(keys.responder_keys().iter().map(|key| key.len()).collect::<Vec<_>>(), [36]);
}
