//! The event sources of a function: routes, queues, streams and schedules.

use std::time::Duration;

use crate::model::{Function, QueueSource, Route, StreamSource};

use super::error::{Problem, TemplateError};
use super::functions::HttpApi;
use super::names;
use super::node::Node;
use super::resources::{Resource, by_arn, seconds_or};
use super::schedules::{schedule, schedule_v2};

type Result<T> = std::result::Result<T, TemplateError>;

/// Adds one entry of a function's `Events`. Disabled sources are left out.
pub(super) fn add(
    id: &str,
    event: Node,
    function: &mut Function,
    all: &[Resource],
    api: &mut Option<HttpApi>,
) -> Result<()> {
    let event = event.only(&["Type", "Properties"])?;
    let kind = event.need("Type")?.str()?;
    // The name that SAM gives to the resource that it generates for an event.
    let id = format!("{}{id}", function.logical_id);
    match kind {
        "HttpApi" => add_route(event.need("Properties")?, &function.name, api)?,
        "SQS" => function.queue_sources.extend(queue_source(id, event.need("Properties")?, all)?),
        "DynamoDB" => function.stream_sources.extend(stream_source(id, event.need("Properties")?, all)?),
        "Schedule" => function.schedules.extend(schedule(id, event.need("Properties")?)?),
        "ScheduleV2" => function.schedules.extend(schedule_v2(id, event.need("Properties")?)?),
        other => return Err(event.error(Problem::UnknownEvent(other.to_owned()))),
    }
    Ok(())
}

fn add_route(node: Node, function: &str, api: &mut Option<HttpApi>) -> Result<()> {
    let node = node.only(&["ApiId", "Path", "Method", "Auth", "PayloadFormatVersion"])?;
    let api_id = node.need("ApiId")?;
    let Some(http) = api.as_mut().filter(|_| api_id.value == names::API_ID) else {
        return Err(api_id.unsupported(format!("{} is no {} of this template", api_id.text()?, names::HTTP_API)));
    };
    if let Some(version) = node.get("PayloadFormatVersion")
        && version.text()? != "2.0"
    {
        return Err(version.unsupported("the local stack only knows payload format 2.0"));
    }
    let authorizer = node.get("Auth").map(|auth| auth.only(&["Authorizer"])?.need("Authorizer")).transpose()?;
    let authorized = match &authorizer {
        None => http.authorized_by_default,
        Some(name) if name.value == "NONE" => false,
        Some(name) if http.authorizer_name.as_deref() == name.value.as_str() => true,
        Some(name) => return Err(name.error(Problem::UnknownReference(name.text()?))),
    };
    let method = node.need("Method")?.str()?.to_uppercase();
    let path = node.need("Path")?.str()?.to_owned();
    if http.api.routes.iter().any(|route| route.method == method && route.path == path) {
        return Err(node.unsupported(format!("{method} {path} is there twice")));
    }
    http.api.routes.push(Route { method, path, function: function.to_owned(), authorized });
    Ok(())
}

fn queue_source(id: String, node: Node, all: &[Resource]) -> Result<Option<QueueSource>> {
    if let Some(filter) = node.get("FilterCriteria") {
        return Err(filter.unsupported("a filter on a queue deletes the messages that it does not match"));
    }
    let node = node.only(&[
        "Queue",
        "BatchSize",
        "MaximumBatchingWindowInSeconds",
        "ScalingConfig",
        "FunctionResponseTypes",
        "Enabled",
    ])?;
    let scaling = node.get("ScalingConfig").map(|config| config.only(&["MaximumConcurrency"])).transpose()?;
    let concurrency = scaling.and_then(|config| config.get("MaximumConcurrency"));
    let source = QueueSource {
        id,
        queue: by_arn(&node.need("Queue")?, names::QUEUE, all)?.name.clone(),
        batch_size: batch_size(&node, 10)?,
        window: seconds_or(&node, "MaximumBatchingWindowInSeconds", 0)?,
        max_concurrency: concurrency.map(|count| max_concurrency(&count)).transpose()?,
        partial_failures: partial_failures(&node)?,
    };
    // AWS refuses this, too, but only during the deployment.
    if source.batch_size > 10 && source.window.is_zero() {
        return Err(node.unsupported("a batch of more than 10 needs MaximumBatchingWindowInSeconds"));
    }
    Ok(enabled(&node)?.then_some(source))
}

/// Reads the maximum concurrency. AWS accepts 2 to 1000.
fn max_concurrency(node: &Node) -> Result<u32> {
    match node.count()? {
        count @ 2..=1_000 => Ok(count),
        _ => Err(node.error(Problem::Expected("2 to 1000"))),
    }
}

fn stream_source(id: String, node: Node, all: &[Resource]) -> Result<Option<StreamSource>> {
    let node = node.only(&[
        "Stream",
        "StartingPosition",
        "BatchSize",
        "MaximumBatchingWindowInSeconds",
        "FilterCriteria",
        "MaximumRetryAttempts",
        "MaximumRecordAgeInSeconds",
        "BisectBatchOnFunctionError",
        "FunctionResponseTypes",
        "DestinationConfig",
        "Enabled",
    ])?;
    let position = node.need("StartingPosition")?;
    let source = StreamSource {
        id,
        table: streaming_table(&node.need("Stream")?, all)?,
        batch_size: batch_size(&node, 100)?,
        window: seconds_or(&node, "MaximumBatchingWindowInSeconds", 0)?,
        from_latest: match position.str()? {
            "LATEST" => true,
            "TRIM_HORIZON" => false,
            _ => {
                return Err(position.unsupported("the local stack only knows TRIM_HORIZON and LATEST"));
            }
        },
        filters: filters(&node)?,
        max_retries: limit(&node, "MaximumRetryAttempts")?,
        max_age: limit(&node, "MaximumRecordAgeInSeconds")?.map(|seconds| Duration::from_secs(seconds.into())),
        bisect: node.get("BisectBatchOnFunctionError").map_or(Ok(false), |value| value.bool())?,
        partial_failures: partial_failures(&node)?,
        on_failure_queue: on_failure_queue(&node, all)?,
    };
    Ok(enabled(&node)?.then_some(source))
}

fn streaming_table(stream: &Node, all: &[Resource]) -> Result<String> {
    let arn = stream.str()?;
    let table = all.iter().find(|resource| {
        resource.kind == names::TABLE
            && names::stream_arn(&resource.name) == arn
            && resource.node().get("StreamSpecification").is_some()
    });
    let table = table.ok_or_else(|| stream.unsupported(format!("{arn} is no stream of a table of this template")))?;
    Ok(table.name.clone())
}

fn filters(node: &Node) -> Result<Vec<serde_json::Value>> {
    let Some(criteria) = node.get("FilterCriteria") else {
        return Ok(Vec::new());
    };
    let filters = criteria.only(&["Filters"])?.need("Filters")?.items()?;
    filters
        .into_iter()
        .map(|filter| {
            let pattern = filter.only(&["Pattern"])?.need("Pattern")?;
            let json = pattern.json()?;
            if json.is_object() { Ok(json) } else { Err(pattern.error(Problem::Expected("a JSON object in a string"))) }
        })
        .collect()
}

fn on_failure_queue(node: &Node, all: &[Resource]) -> Result<Option<String>> {
    let Some(config) = node.get("DestinationConfig") else {
        return Ok(None);
    };
    let failure = config.only(&["OnFailure"])?.need("OnFailure")?.only(&["Destination", "Type"])?;
    if let Some(kind) = failure.get("Type")
        && kind.str()? != "SQS"
    {
        return Err(kind.unsupported("the local stack only knows SQS as a destination"));
    }
    Ok(Some(by_arn(&failure.need("Destination")?, names::QUEUE, all)?.name.clone()))
}

pub(super) fn enabled(node: &Node) -> Result<bool> {
    node.get("Enabled").map_or(Ok(true), |value| value.bool())
}

fn batch_size(node: &Node, default: u32) -> Result<usize> {
    let Some(size) = node.get("BatchSize") else {
        return Ok(default as usize);
    };
    match size.count()? {
        0 => Err(size.error(Problem::Expected("at least 1"))),
        count => Ok(count as usize),
    }
}

/// Reads a limit. AWS uses -1 for "no limit".
fn limit(node: &Node, key: &str) -> Result<Option<u32>> {
    match node.get(key) {
        Some(value) if value.integer()? != -1 => value.count().map(Some),
        _ => Ok(None),
    }
}

fn partial_failures(node: &Node) -> Result<bool> {
    let Some(types) = node.get("FunctionResponseTypes") else {
        return Ok(false);
    };
    for kind in types.items()? {
        if kind.str()? != "ReportBatchItemFailures" {
            return Err(kind.unsupported("the local stack only knows ReportBatchItemFailures"));
        }
    }
    Ok(!types.items()?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use serde_json::json;
    use std::collections::BTreeMap;

    const PATH: &str = "template.yaml: Resources.F.Properties.Events.E";

    fn load(kind: &str, properties: &str) -> Result<Model> {
        let text = format!(
            "
Resources:
  Api:
    Type: AWS::Serverless::HttpApi
    Properties:
      Auth:
        DefaultAuthorizer: Keys
        Authorizers:
          Keys: {{FunctionArn: !GetAtt F.Arn, AuthorizerPayloadFormatVersion: '2.0', EnableSimpleResponses: true}}
  Q: {{Type: AWS::SQS::Queue, Properties: {{QueueName: q}}}}
  T:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: t
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: []
      KeySchema: []
      StreamSpecification: {{StreamViewType: NEW_IMAGE}}
  Silent:
    Type: AWS::DynamoDB::Table
    Properties: {{BillingMode: PAY_PER_REQUEST, AttributeDefinitions: [], KeySchema: []}}
  F:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/f
      FunctionName: f
      Events: {{E: {{Type: {kind}, Properties: {{{properties}}}}}}}"
        );
        crate::template::load(&text, &BTreeMap::new())
    }

    fn function(kind: &str, properties: &str) -> Function {
        load(kind, properties).unwrap().functions.remove(0)
    }

    fn refusal(kind: &str, properties: &str) -> String {
        let text = load(kind, properties).unwrap_err().to_string();
        text.strip_prefix(PATH).map(str::to_owned).unwrap_or(text)
    }

    #[test]
    fn a_route_uses_the_default_authorizer_unless_it_names_another() {
        for (auth, authorized) in
            [("", true), (", Auth: {Authorizer: NONE}", false), (", Auth: {Authorizer: Keys}", true)]
        {
            let model = load("HttpApi", &format!("ApiId: !Ref Api, Method: post, Path: '/a/{{id}}'{auth}")).unwrap();
            let route = &model.api.unwrap().routes[0];
            assert_eq!((route.method.as_str(), route.path.as_str(), route.function.as_str()), ("POST", "/a/{id}", "f"));
            assert_eq!(route.authorized, authorized, "{auth}");
        }
    }

    #[test]
    fn a_route_of_another_api_or_authorizer_is_refused() {
        assert_eq!(refusal("HttpApi", "Method: GET, Path: /"), ".Properties: ApiId is missing");
        assert_eq!(
            refusal("HttpApi", "ApiId: other, Method: GET, Path: /"),
            ".Properties.ApiId: other is no AWS::Serverless::HttpApi of this template"
        );
        assert_eq!(
            refusal("HttpApi", "ApiId: !Ref Api, Method: GET, Path: /, Auth: {Authorizer: Who}"),
            ".Properties.Auth.Authorizer: Who refers to nothing that the local stack knows"
        );
    }

    #[test]
    fn a_queue_is_a_source() {
        let function = function(
            "SQS",
            "Queue: !GetAtt Q.Arn, BatchSize: 50, MaximumBatchingWindowInSeconds: 1, \
             ScalingConfig: {MaximumConcurrency: 4}, FunctionResponseTypes: [ReportBatchItemFailures]",
        );
        let source = &function.queue_sources[0];
        assert_eq!((source.id.as_str(), source.queue.as_str()), ("FE", "q"));
        assert_eq!((source.batch_size, source.window.as_secs(), source.max_concurrency), (50, 1, Some(4)));
        assert!(source.partial_failures);
    }

    #[test]
    fn a_queue_source_has_the_defaults_of_aws() {
        let function = function("SQS", "Queue: !GetAtt Q.Arn");
        let source = &function.queue_sources[0];
        assert_eq!((source.batch_size, source.window.as_secs(), source.max_concurrency), (10, 0, None));
        assert!(!source.partial_failures);
    }

    #[test]
    fn a_concurrency_that_aws_does_not_accept_is_refused() {
        for count in [1, 1_001] {
            assert_eq!(
                refusal("SQS", &format!("Queue: !GetAtt Q.Arn, ScalingConfig: {{MaximumConcurrency: {count}}}")),
                ".Properties.ScalingConfig.MaximumConcurrency: expected 2 to 1000"
            );
        }
    }

    #[test]
    fn a_filter_on_a_queue_is_refused() {
        assert_eq!(
            refusal("SQS", "Queue: !GetAtt Q.Arn, FilterCriteria: {Filters: []}"),
            ".Properties.FilterCriteria: a filter on a queue deletes the messages that it does not match"
        );
    }

    #[test]
    fn a_large_batch_without_a_window_is_refused() {
        assert_eq!(
            refusal("SQS", "Queue: !GetAtt Q.Arn, BatchSize: 11"),
            ".Properties: a batch of more than 10 needs MaximumBatchingWindowInSeconds"
        );
        assert_eq!(refusal("SQS", "Queue: !GetAtt Q.Arn, BatchSize: 0"), ".Properties.BatchSize: expected at least 1");
    }

    #[test]
    fn a_stream_is_a_source() {
        let function = function(
            "DynamoDB",
            "Stream: !GetAtt T.StreamArn, StartingPosition: LATEST, BatchSize: 7, MaximumRetryAttempts: 2, \
             MaximumRecordAgeInSeconds: 60, BisectBatchOnFunctionError: true, \
             DestinationConfig: {OnFailure: {Type: SQS, Destination: !GetAtt Q.Arn}}, \
             FilterCriteria: {Filters: [{Pattern: '{\"eventName\": [\"INSERT\"]}'}]}",
        );
        let source = &function.stream_sources[0];
        assert_eq!((source.table.as_str(), source.on_failure_queue.as_deref()), ("t", Some("q")));
        assert_eq!(
            (source.batch_size, source.max_retries, source.max_age),
            (7, Some(2), Some(Duration::from_secs(60)))
        );
        assert!(source.from_latest && source.bisect && !source.partial_failures);
        assert_eq!(source.filters, [json!({"eventName": ["INSERT"]})]);
    }

    #[test]
    fn a_stream_has_no_retry_limit_by_default() {
        let properties = "Stream: !GetAtt T.StreamArn, StartingPosition: TRIM_HORIZON";
        for more in ["", ", MaximumRetryAttempts: -1, MaximumRecordAgeInSeconds: -1"] {
            let function = function("DynamoDB", &format!("{properties}{more}"));
            let source = &function.stream_sources[0];
            assert_eq!((source.batch_size, source.max_retries, source.max_age), (100, None, None));
        }
    }

    #[test]
    fn a_stream_that_cannot_be_read_is_refused() {
        assert_eq!(
            refusal("DynamoDB", "Stream: !GetAtt Silent.StreamArn, StartingPosition: LATEST"),
            ".Properties.Stream: arn:aws:dynamodb:us-east-1:000000000000:table/umavez-local-Silent/stream/local \
             is no stream of a table of this template"
        );
        assert_eq!(
            refusal("DynamoDB", "Stream: !GetAtt T.StreamArn, StartingPosition: AT_TIMESTAMP"),
            ".Properties.StartingPosition: the local stack only knows TRIM_HORIZON and LATEST"
        );
        let filter = |pattern: &str| {
            let stream = "Stream: !GetAtt T.StreamArn, StartingPosition: LATEST";
            refusal("DynamoDB", &format!("{stream}, FilterCriteria: {{Filters: [{{Pattern: '{pattern}'}}]}}"))
        };
        let path = ".Properties.FilterCriteria.Filters.0.Pattern";
        assert_eq!(filter("{"), format!("{path}: expected JSON in a string"));
        assert_eq!(filter("[]"), format!("{path}: expected a JSON object in a string"));
    }

    #[test]
    fn both_kinds_of_schedule_are_read() {
        let first = function("Schedule", "Schedule: rate(1 minute), Input: '{\"a\": 1}'");
        assert_eq!(first.schedules[0].every, Duration::from_secs(60));
        assert_eq!(first.schedules[0].input, Some(json!({"a": 1})));
        let second = function("ScheduleV2", "ScheduleExpression: rate(2 hours)");
        assert_eq!((second.schedules[0].id.as_str(), second.schedules[0].every), ("FE", Duration::from_secs(7_200)));
    }

    #[test]
    fn disabled_sources_are_left_out() {
        assert!(function("Schedule", "Schedule: rate(1 day), Enabled: false").schedules.is_empty());
        assert!(function("ScheduleV2", "ScheduleExpression: rate(1 day), State: DISABLED").schedules.is_empty());
        assert!(function("SQS", "Queue: !GetAtt Q.Arn, Enabled: false").queue_sources.is_empty());
    }

    #[test]
    fn only_rates_that_aws_accepts_are_supported() {
        for expression in
            ["cron(0 12 * * ? *)", "rate(1 minutes)", "rate(5 minute)", "rate(0 minutes)", "rate(5 s)", "at(x)"]
        {
            assert_eq!(
                refusal("ScheduleV2", &format!("ScheduleExpression: '{expression}'")),
                ".Properties.ScheduleExpression: the local stack only knows rate(1 minute), rate(2 hours) and the like",
            );
        }
    }

    #[test]
    fn an_unknown_event_type_is_refused_by_name() {
        assert_eq!(refusal("S3", "Bucket: b"), ": the local stack does not know the event type S3");
    }

    #[test]
    fn an_unknown_property_of_an_event_is_refused() {
        let unknown = ".Properties.Colour: the local stack does not know this property";
        for kind in ["HttpApi", "SQS", "DynamoDB", "Schedule", "ScheduleV2"] {
            assert_eq!(refusal(kind, "Colour: red"), unknown, "{kind}");
        }
    }
}
