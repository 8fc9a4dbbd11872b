//! The resources whose conditions hold, with resolved properties. Reads tables, queues and roles
//! from them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::model::{Queue, Table};

use super::error::{Problem, TemplateError};
use super::intrinsics::Resolver;
use super::names;
use super::node::Node;

type Result<T> = std::result::Result<T, TemplateError>;

pub(super) struct Resource {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) metadata: Value,
    pub(super) properties: Value,
}

impl Resource {
    pub(super) fn node(&self) -> Node<'_> {
        Node::new(&self.properties, format!("Resources.{}.Properties", self.id))
    }

    pub(super) fn arn(&self) -> String {
        names::arn(&self.kind, &self.name)
    }
}

/// Reads one resource. Returns `None` if its condition does not hold.
pub(super) fn read(id: &str, node: Node, resolver: &Resolver) -> Result<Option<Resource>> {
    let kind = node.need("Type")?.str()?;
    if names::name_property(kind).is_none() {
        return Err(node.error(Problem::UnknownType(kind.to_owned())));
    }
    let node = node.only(&[
        "Type",
        "Condition",
        "DependsOn",
        "Metadata",
        "Properties",
        "DeletionPolicy",
        "UpdateReplacePolicy",
    ])?;
    if let Some(condition) = node.get("Condition")
        && !resolver.holds(condition.str()?, &condition.path)?
    {
        return Ok(None);
    }
    let (kind, name) = resolver.resource(id, &node.path)?;
    let part = |key| match node.get(key) {
        Some(part) => Ok(resolver.resolve(&part)?.unwrap_or_default()),
        None => Ok(Value::Object(Map::new())),
    };
    let resource =
        Resource { id: id.to_owned(), kind, name, metadata: part("Metadata")?, properties: part("Properties")? };
    if let Some(known) = idle(&resource.kind) {
        resource.node().only(known)?;
    }
    Ok(Some(resource))
}

/// Returns the properties of the types that the local stack only checks and does not run.
fn idle(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        names::LOG_GROUP => Some(&["LogGroupName", "RetentionInDays", "Tags"]),
        names::QUEUE_POLICY => Some(&["Queues", "PolicyDocument"]),
        names::BUCKET_POLICY => Some(&["Bucket", "PolicyDocument"]),
        names::DASHBOARD => Some(&["DashboardName", "DashboardBody"]),
        names::ALARM => Some(&[
            "ActionsEnabled",
            "AlarmActions",
            "AlarmDescription",
            "AlarmName",
            "ComparisonOperator",
            "DatapointsToAlarm",
            "Dimensions",
            "EvaluationPeriods",
            "ExtendedStatistic",
            "MetricName",
            "Metrics",
            "Namespace",
            "OKActions",
            "Period",
            "Statistic",
            "Tags",
            "Threshold",
            "TreatMissingData",
            "Unit",
        ]),
        _ => None,
    }
}

pub(super) fn table(resource: &Resource) -> Result<Table> {
    let node = resource.node().only(&[
        "TableName",
        "BillingMode",
        "AttributeDefinitions",
        "KeySchema",
        "GlobalSecondaryIndexes",
        "LocalSecondaryIndexes",
        "StreamSpecification",
        "TimeToLiveSpecification",
        // Ignored: no effect on the local stack.
        "DeletionProtectionEnabled",
        "PointInTimeRecoverySpecification",
        "SSESpecification",
        "Tags",
    ])?;
    let billing = node.need("BillingMode")?;
    if billing.str()? != "PAY_PER_REQUEST" {
        return Err(billing.unsupported("the local stack only knows PAY_PER_REQUEST"));
    }
    let mut create = json!({
        "TableName": resource.name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": node.need("AttributeDefinitions")?.value,
        "KeySchema": node.need("KeySchema")?.value,
    });
    for kind in ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"] {
        if let Some(list) = node.get(kind) {
            create[kind] = indexes(&list)?;
        }
    }
    let stream = node.get("StreamSpecification");
    if let Some(stream) = &stream {
        let view = stream.clone().only(&["StreamViewType"])?.need("StreamViewType")?;
        create["StreamSpecification"] = json!({ "StreamEnabled": true, "StreamViewType": view.str()? });
    }
    Ok(Table {
        logical_id: resource.id.clone(),
        name: resource.name.clone(),
        create,
        ttl_attribute: ttl_attribute(&node)?,
        streams: stream.is_some(),
    })
}

/// Reads the indexes of one kind as written. DynamoDB checks whether their keys fit the table.
fn indexes(list: &Node) -> Result<Value> {
    let all = list.items()?;
    if all.is_empty() {
        return Err(list.error(Problem::Expected("at least one index")));
    }
    for index in all {
        let index = index.only(&["IndexName", "KeySchema", "Projection"])?;
        index.need("IndexName")?.str()?;
        for key in index.need("KeySchema")?.items()? {
            key.only(&["AttributeName", "KeyType"])?;
        }
        index.need("Projection")?.only(&["ProjectionType", "NonKeyAttributes"])?;
    }
    Ok(list.value.clone())
}

fn ttl_attribute(table: &Node) -> Result<Option<String>> {
    let Some(ttl) = table.get("TimeToLiveSpecification") else {
        return Ok(None);
    };
    let ttl = ttl.only(&["AttributeName", "Enabled"])?;
    let attribute = ttl.need("AttributeName")?.str()?.to_owned();
    Ok(ttl.need("Enabled")?.bool()?.then_some(attribute))
}

/// Reads a queue. Looks up its dead-letter queue in `all`.
pub(super) fn queue(resource: &Resource, all: &[Resource]) -> Result<Queue> {
    let node = resource.node();
    if node.get("FifoQueue").is_some() || resource.name.ends_with(".fifo") {
        return Err(node.unsupported("the local stack does not know FIFO queues"));
    }
    let node = node.only(&[
        "QueueName",
        "VisibilityTimeout",
        "DelaySeconds",
        "MessageRetentionPeriod",
        "RedrivePolicy",
        // Ignored: no effect on the local stack.
        "ReceiveMessageWaitTimeSeconds",
        "RedriveAllowPolicy",
        "SqsManagedSseEnabled",
        "Tags",
    ])?;
    let redrive = node.get("RedrivePolicy").map(|policy| {
        let policy = policy.only(&["deadLetterTargetArn", "maxReceiveCount"])?;
        let target = by_arn(&policy.need("deadLetterTargetArn")?, names::QUEUE, all)?;
        Ok((target.name.clone(), policy.need("maxReceiveCount")?.count()?))
    });
    Ok(Queue {
        logical_id: resource.id.clone(),
        name: resource.name.clone(),
        visibility: seconds_or(&node, "VisibilityTimeout", 30)?,
        delay: seconds_or(&node, "DelaySeconds", 0)?,
        retention: seconds_or(&node, "MessageRetentionPeriod", 4 * 24 * 3600)?,
        redrive: redrive.transpose()?,
    })
}

/// Returns the statements of a role's inline policies. Managed policies are refused, because their
/// statements are not in the template.
pub(super) fn role_statements(resource: &Resource) -> Result<Vec<Value>> {
    let known = ["RoleName", "AssumeRolePolicyDocument", "Policies", "Description", "Path", "Tags"];
    let node = resource.node().only(&known)?;
    node.need("AssumeRolePolicyDocument")?;
    let mut statements = Vec::new();
    let policies = node.get("Policies").map(|policies| policies.items()).transpose()?;
    for policy in policies.unwrap_or_default() {
        let policy = policy.only(&["PolicyName", "PolicyDocument"])?;
        let document = policy.need("PolicyDocument")?.only(&["Version", "Statement"])?;
        match document.need("Statement")?.value {
            Value::Array(list) => statements.extend(list.iter().cloned()),
            one => statements.push(one.clone()),
        }
    }
    Ok(statements)
}

/// Returns the resource of this type with this ARN.
pub(super) fn by_arn<'a>(arn: &Node, kind: &str, all: &'a [Resource]) -> Result<&'a Resource> {
    let text = arn.str()?;
    all.iter()
        .find(|resource| resource.kind == kind && resource.arn() == text)
        .ok_or_else(|| arn.unsupported(format!("{text} is no {kind} of this template")))
}

pub(super) fn seconds_or(node: &Node, key: &str, default: u64) -> Result<Duration> {
    node.get(key).map_or(Ok(Duration::from_secs(default)), |value| value.seconds())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use std::collections::BTreeMap;

    fn load(resources: &str) -> Result<Model> {
        crate::template::load(&format!("Resources:\n{resources}"), &BTreeMap::new())
    }

    fn refusal(resources: &str) -> String {
        load(resources).unwrap_err().to_string()
    }

    const KEYS: &str = "AttributeDefinitions: [{AttributeName: pk, AttributeType: S}], \
                        KeySchema: [{AttributeName: pk, KeyType: HASH}]";

    fn table(more: &str) -> String {
        format!("  T: {{Type: 'AWS::DynamoDB::Table', Properties: {{TableName: t, {KEYS}{more}}}}}")
    }

    #[test]
    fn a_table_becomes_a_create_request() {
        let model = load(&table(
            ", BillingMode: PAY_PER_REQUEST, StreamSpecification: {StreamViewType: NEW_IMAGE}, \
             TimeToLiveSpecification: {AttributeName: gone_at, Enabled: true}, \
             GlobalSecondaryIndexes: [{IndexName: i, KeySchema: [{AttributeName: pk, KeyType: HASH}], \
             Projection: {ProjectionType: ALL}}], \
             LocalSecondaryIndexes: [{IndexName: l, KeySchema: [{AttributeName: pk, KeyType: HASH}, \
             {AttributeName: at, KeyType: RANGE}], Projection: {ProjectionType: INCLUDE, NonKeyAttributes: [a]}}]",
        ));
        let table = &model.unwrap().tables[0];
        let keys = json!([{"AttributeName": "pk", "KeyType": "HASH"}]);
        assert_eq!(
            table.create,
            json!({
                "TableName": "t",
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
                "KeySchema": keys,
                "GlobalSecondaryIndexes":
                    [{"IndexName": "i", "KeySchema": keys, "Projection": {"ProjectionType": "ALL"}}],
                "LocalSecondaryIndexes": [{
                    "IndexName": "l",
                    "KeySchema":
                        [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
                    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["a"]},
                }],
                "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_IMAGE"},
            })
        );
        assert_eq!(table.ttl_attribute.as_deref(), Some("gone_at"));
        assert!(table.streams);
    }

    #[test]
    fn a_table_with_provisioned_capacity_is_refused() {
        assert_eq!(refusal(&table("")), "template.yaml: Resources.T.Properties: BillingMode is missing");
        assert_eq!(
            refusal(&table(", BillingMode: PROVISIONED")),
            "template.yaml: Resources.T.Properties.BillingMode: the local stack only knows PAY_PER_REQUEST"
        );
    }

    #[test]
    fn an_unknown_property_is_refused_by_name() {
        let unknown = |path: &str| format!("template.yaml: {path}: the local stack does not know this property");
        let cases = [
            (table(", LocalSecondaryIndices: []"), "Resources.T.Properties.LocalSecondaryIndices"),
            ("  Q: {Type: 'AWS::SQS::Queue', Properties: {Colour: red}}".into(), "Resources.Q.Properties.Colour"),
            ("  Q: {Type: 'AWS::SQS::Queue', Colour: red}".into(), "Resources.Q.Colour"),
            ("  L: {Type: 'AWS::Logs::LogGroup', Properties: {Colour: red}}".into(), "Resources.L.Properties.Colour"),
            ("  A: {Type: 'AWS::CloudWatch::Alarm', Properties: {Colour: 1}}".into(), "Resources.A.Properties.Colour"),
            (
                "  R: {Type: 'AWS::IAM::Role', Properties: {ManagedPolicyArns: []}}".into(),
                "Resources.R.Properties.ManagedPolicyArns",
            ),
        ];
        for (resources, path) in cases {
            assert_eq!(refusal(&resources), unknown(path));
        }
    }

    #[test]
    fn a_missing_or_unknown_property_of_an_index_is_named() {
        let key = "KeySchema: [{AttributeName: pk, KeyType: HASH}]";
        let projection = "Projection: {ProjectionType: ALL}";
        let unknown = "the local stack does not know this property";
        for kind in ["GlobalSecondaryIndexes", "LocalSecondaryIndexes"] {
            for (list, path, problem) in [
                ("[]".to_owned(), "", "expected at least one index"),
                (format!("[{{IndexName: i, {key}}}]"), ".0", "Projection is missing"),
                (format!("[{{IndexName: i, {projection}}}]"), ".0", "KeySchema is missing"),
                (format!("[{{{key}, {projection}}}]"), ".0", "IndexName is missing"),
                (format!("[{{IndexName: i, {key}, {projection}, Colour: red}}]"), ".0.Colour", unknown),
                (format!("[{{IndexName: i, {key}, Projection: {{Type: ALL}}}}]"), ".0.Projection.Type", unknown),
                (
                    format!("[{{IndexName: i, KeySchema: [{{Name: pk}}], {projection}}}]"),
                    ".0.KeySchema.0.Name",
                    unknown,
                ),
            ] {
                let refused = refusal(&table(&format!(", BillingMode: PAY_PER_REQUEST, {kind}: {list}")));
                assert_eq!(refused, format!("template.yaml: Resources.T.Properties.{kind}{path}: {problem}"));
            }
        }
    }

    #[test]
    fn a_queue_has_its_settings_and_its_dead_letter_queue() {
        let model = load(
            "  Q: {Type: 'AWS::SQS::Queue', Properties: {QueueName: q, VisibilityTimeout: 90, DelaySeconds: 5, \
             MessageRetentionPeriod: 60, RedrivePolicy: {deadLetterTargetArn: !GetAtt D.Arn, maxReceiveCount: 4}}}\n\
             \x20 D: {Type: 'AWS::SQS::Queue'}",
        )
        .unwrap();
        let [queue, dead] = &model.queues[..] else { panic!("two queues") };
        let seconds = (queue.visibility.as_secs(), queue.delay.as_secs(), queue.retention.as_secs());
        assert_eq!(seconds, (90, 5, 60));
        assert_eq!(queue.redrive, Some(("umavez-local-D".to_owned(), 4)));
        let defaults = (dead.visibility.as_secs(), dead.delay.as_secs(), dead.retention.as_secs());
        assert_eq!(defaults, (30, 0, 345_600));
    }

    #[test]
    fn a_fifo_queue_is_refused() {
        for properties in ["FifoQueue: true", "QueueName: q.fifo"] {
            assert_eq!(
                refusal(&format!("  Q: {{Type: 'AWS::SQS::Queue', Properties: {{{properties}}}}}")),
                "template.yaml: Resources.Q.Properties: the local stack does not know FIFO queues"
            );
        }
    }

    #[test]
    fn a_dead_letter_queue_outside_the_template_is_refused() {
        let queue = "  Q: {Type: 'AWS::SQS::Queue', Properties: \
                     {RedrivePolicy: {deadLetterTargetArn: 'arn:x', maxReceiveCount: 4}}}";
        assert_eq!(
            refusal(queue),
            "template.yaml: Resources.Q.Properties.RedrivePolicy.deadLetterTargetArn: \
             arn:x is no AWS::SQS::Queue of this template"
        );
    }

    #[test]
    fn log_groups_alarms_and_dashboards_have_nothing_to_run() {
        let model = load(
            "  L: {Type: 'AWS::Logs::LogGroup', Properties: {RetentionInDays: 7}}\n\
             \x20 A: {Type: 'AWS::CloudWatch::Alarm', Properties: {Dimensions: [{Name: l, Value: !Ref L}]}}\n\
             \x20 D: {Type: 'AWS::CloudWatch::Dashboard', Properties: {DashboardBody: '{}'}}",
        )
        .unwrap();
        assert!(model.functions.is_empty() && model.tables.is_empty() && model.queues.is_empty());
    }

    #[test]
    fn an_alarm_that_watches_nothing_is_refused() {
        let alarm = "  A: {Type: 'AWS::CloudWatch::Alarm', Properties: {Dimensions: [{Name: q, Value: !Ref Q}]}}";
        assert_eq!(
            refusal(alarm),
            "template.yaml: Resources.A.Properties.Dimensions.0.Value: Q refers to nothing that the local stack knows"
        );
    }
}
