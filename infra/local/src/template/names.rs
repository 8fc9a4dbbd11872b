//! The values of `Ref` and `GetAtt` for each supported type of resource, with the local account
//! instead of a real one.

use std::collections::BTreeMap;

pub const REGION: &str = "us-east-1";
pub const ACCOUNT: &str = "000000000000";
pub const STACK: &str = "umavez-local";
pub const API_ID: &str = "local-api";

/// The prefix of a queue's URL. The stack replaces it by its own address when it knows its port.
pub const QUEUE_URL_BASE: &str = "http://sqs.local/000000000000/";

/// The address of the API as a template composes it. The stack replaces it by its own address when
/// it knows its port.
pub const API_URL: &str = "https://local-api.execute-api.us-east-1.amazonaws.com";

pub(super) const FUNCTION: &str = "AWS::Serverless::Function";
pub(super) const HTTP_API: &str = "AWS::Serverless::HttpApi";
pub(super) const TABLE: &str = "AWS::DynamoDB::Table";
pub(super) const QUEUE: &str = "AWS::SQS::Queue";
pub(super) const ROLE: &str = "AWS::IAM::Role";
pub(super) const LOG_GROUP: &str = "AWS::Logs::LogGroup";
pub(super) const ALARM: &str = "AWS::CloudWatch::Alarm";
pub(super) const DASHBOARD: &str = "AWS::CloudWatch::Dashboard";
pub(super) const SECRET: &str = "AWS::SecretsManager::Secret";
pub(super) const CONFIGURATION_SET: &str = "AWS::SES::ConfigurationSet";
pub(super) const EVENT_DESTINATION: &str = "AWS::SES::ConfigurationSetEventDestination";
pub(super) const RULE: &str = "AWS::Events::Rule";
pub(super) const QUEUE_POLICY: &str = "AWS::SQS::QueuePolicy";
pub(super) const BUCKET: &str = "AWS::S3::Bucket";
pub(super) const BUCKET_POLICY: &str = "AWS::S3::BucketPolicy";

/// The suffix that Secrets Manager appends to a secret's name in its ARN. On AWS it is six random
/// characters.
const SECRET_SUFFIX: &str = "-local0";

/// Returns the property that holds the physical name, for every type that the local stack supports.
pub(super) fn name_property(kind: &str) -> Option<&'static str> {
    match kind {
        FUNCTION => Some("FunctionName"),
        HTTP_API => Some("Name"),
        TABLE => Some("TableName"),
        QUEUE => Some("QueueName"),
        ROLE => Some("RoleName"),
        LOG_GROUP => Some("LogGroupName"),
        ALARM => Some("AlarmName"),
        DASHBOARD => Some("DashboardName"),
        BUCKET => Some("BucketName"),
        SECRET | CONFIGURATION_SET | RULE => Some("Name"),
        // CloudFormation generates their names.
        EVENT_DESTINATION | QUEUE_POLICY | BUCKET_POLICY => Some("Id"),
        _ => None,
    }
}

/// Returns the name of a resource for which the template sets none. Bucket names are in lower case.
pub(super) fn default_name(kind: &str, id: &str) -> String {
    let name = format!("{STACK}-{id}");
    if kind == BUCKET { name.to_lowercase() } else { name }
}

pub(super) fn reference(kind: &str, name: &str) -> String {
    match kind {
        QUEUE => format!("{QUEUE_URL_BASE}{name}"),
        HTTP_API => API_ID.to_owned(),
        SECRET => arn(kind, name),
        _ => name.to_owned(),
    }
}

pub(super) fn attribute(kind: &str, name: &str, attribute: &str) -> Option<String> {
    match (kind, attribute) {
        (FUNCTION | TABLE | QUEUE | ROLE | ALARM | RULE | BUCKET, "Arn") => Some(arn(kind, name)),
        (LOG_GROUP, "Arn") => Some(log_group_arn(name)),
        (TABLE, "StreamArn") => Some(stream_arn(name)),
        (QUEUE, "QueueName") => Some(name.to_owned()),
        (QUEUE, "QueueUrl") => Some(reference(kind, name)),
        (HTTP_API, "ApiId") => Some(API_ID.to_owned()),
        (SECRET | EVENT_DESTINATION | QUEUE_POLICY, "Id") => Some(reference(kind, name)),
        _ => None,
    }
}

pub(super) fn arn(kind: &str, name: &str) -> String {
    match kind {
        TABLE => format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"),
        QUEUE => format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"),
        ROLE => format!("arn:aws:iam::{ACCOUNT}:role/{name}"),
        ALARM => format!("arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{name}"),
        SECRET => format!("arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{name}{SECRET_SUFFIX}"),
        CONFIGURATION_SET => configuration_set_arn(name),
        BUCKET => bucket_arn(name),
        RULE => format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{name}"),
        _ => format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"),
    }
}

pub fn configuration_set_arn(name: &str) -> String {
    format!("arn:aws:ses:{REGION}:{ACCOUNT}:configuration-set/{name}")
}

/// Returns the ARN of the resource of a call, given the service and the name in the call: a table
/// or `table/index/name`, a queue, a secret, a bucket or `bucket/key`, a log group, or an SES
/// resource with its kind.
pub fn arn_at(service: &str, name: &str) -> String {
    match service {
        "dynamodb" => arn(TABLE, name),
        "sqs" => arn(QUEUE, name),
        "secretsmanager" => arn(SECRET, name),
        "s3" => bucket_arn(name),
        "logs" => log_group_arn(name),
        _ => format!("arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"),
    }
}

/// Returns the ARN as CloudFormation does: it covers the group and all its log streams.
fn log_group_arn(name: &str) -> String {
    format!("arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{name}:*")
}

/// Returns the ARN of a bucket. Bucket names are global, so it has neither a region nor an account.
pub fn bucket_arn(name: &str) -> String {
    format!("arn:aws:s3:::{name}")
}

/// Returns the name of a secret, given its name or its ARN.
pub fn secret_name(id: &str) -> &str {
    let Some(("arn", _)) = id.split_once(':') else { return id };
    let name = id.rsplit(':').next().unwrap_or_default();
    name.strip_suffix(SECRET_SUFFIX).unwrap_or(name)
}

/// Returns the ARN of the only event bus.
pub(super) fn default_bus_arn() -> String {
    format!("arn:aws:events:{REGION}:{ACCOUNT}:event-bus/default")
}

pub(super) fn stream_arn(table: &str) -> String {
    format!("{}/stream/local", arn(TABLE, table))
}

/// Returns the pseudo parameters, except `AWS::NoValue`, which has no value.
pub(super) fn pseudo_parameters() -> BTreeMap<String, String> {
    [
        ("AWS::Region", REGION),
        ("AWS::AccountId", ACCOUNT),
        ("AWS::Partition", "aws"),
        ("AWS::URLSuffix", "amazonaws.com"),
        ("AWS::StackName", STACK),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_is_what_aws_would_give() {
        let cases = [
            (TABLE, "Arn", "arn:aws:dynamodb:us-east-1:000000000000:table/n"),
            (TABLE, "StreamArn", "arn:aws:dynamodb:us-east-1:000000000000:table/n/stream/local"),
            (QUEUE, "Arn", "arn:aws:sqs:us-east-1:000000000000:n"),
            (QUEUE, "QueueName", "n"),
            (QUEUE, "QueueUrl", "http://sqs.local/000000000000/n"),
            (FUNCTION, "Arn", "arn:aws:lambda:us-east-1:000000000000:function:n"),
            (ROLE, "Arn", "arn:aws:iam::000000000000:role/n"),
            (LOG_GROUP, "Arn", "arn:aws:logs:us-east-1:000000000000:log-group:n:*"),
            (ALARM, "Arn", "arn:aws:cloudwatch:us-east-1:000000000000:alarm:n"),
            (HTTP_API, "ApiId", "local-api"),
            (SECRET, "Id", "arn:aws:secretsmanager:us-east-1:000000000000:secret:n-local0"),
            (RULE, "Arn", "arn:aws:events:us-east-1:000000000000:rule/n"),
            (BUCKET, "Arn", "arn:aws:s3:::n"),
            (QUEUE_POLICY, "Id", "n"),
            (EVENT_DESTINATION, "Id", "n"),
        ];
        for (kind, name, expected) in cases {
            assert_eq!(attribute(kind, "n", name).as_deref(), Some(expected), "{kind} {name}");
        }
        assert_eq!(attribute(TABLE, "n", "Colour"), None);
    }

    #[test]
    fn a_reference_to_a_queue_is_its_url_and_to_a_table_its_name() {
        assert_eq!(reference(QUEUE, "n"), "http://sqs.local/000000000000/n");
        assert_eq!(reference(TABLE, "n"), "n");
        assert_eq!(reference(HTTP_API, "n"), "local-api");
        for kind in [CONFIGURATION_SET, RULE, QUEUE_POLICY, BUCKET] {
            assert_eq!(reference(kind, "n"), "n");
        }
    }

    #[test]
    fn a_secret_is_found_by_its_name_or_arn() {
        let arn = reference(SECRET, "a/b");
        assert_eq!(arn, "arn:aws:secretsmanager:us-east-1:000000000000:secret:a/b-local0");
        assert_eq!((secret_name("a/b"), secret_name(&arn)), ("a/b", "a/b"));
        assert_eq!(secret_name("arn:aws:secretsmanager:us-east-1:000000000000:secret:a"), "a");
    }
}
