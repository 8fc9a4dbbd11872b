//! Buckets: their event notifications, their CORS rules, and when their objects expire.

use std::time::Duration;

use crate::model::{Bucket, CorsRule, Expiration, Notification};

use super::error::{Problem, TemplateError};
use super::names;
use super::node::Node;
use super::resources::{Resource, by_arn};

type Result<T> = std::result::Result<T, TemplateError>;

pub(super) fn bucket(resource: &Resource, all: &[Resource]) -> Result<Bucket> {
    let node = resource.node().only(&[
        "BucketName",
        "NotificationConfiguration",
        "CorsConfiguration",
        "LifecycleConfiguration",
        // Ignored: the local stack keeps one version of an object and has one user.
        "BucketEncryption",
        "OwnershipControls",
        "PublicAccessBlockConfiguration",
        "Tags",
        "VersioningConfiguration",
    ])?;
    let name = &resource.name;
    let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
    if !(3..=63).contains(&name.len()) || !name.chars().all(allowed) {
        return Err(node.unsupported(format!("S3 does not take the bucket name {name:?}")));
    }
    let (notifications, to_bus) = notifications(&node, all)?;
    Ok(Bucket {
        logical_id: resource.id.clone(),
        name: name.clone(),
        notifications,
        to_bus,
        cors: each(&node, "CorsConfiguration", "CorsRules", cors_rule)?,
        expirations: each(&node, "LifecycleConfiguration", "Rules", expiration)?.into_iter().flatten().collect(),
    })
}

/// Reads the items of the only list in a configuration, if the configuration exists.
fn each<T>(node: &Node, configuration: &str, list: &'static str, read: impl Fn(Node) -> Result<T>) -> Result<Vec<T>> {
    let Some(configuration) = node.get(configuration) else { return Ok(Vec::new()) };
    configuration.only(&[list])?.need(list)?.items()?.into_iter().map(read).collect()
}

fn notifications(node: &Node, all: &[Resource]) -> Result<(Vec<Notification>, bool)> {
    let Some(configuration) = node.get("NotificationConfiguration") else { return Ok((Vec::new(), false)) };
    let configuration = configuration.only(&["QueueConfigurations", "EventBridgeConfiguration"])?;
    let bus = configuration.get("EventBridgeConfiguration").map(|bus| bus.only(&["EventBridgeEnabled"])).transpose()?;
    // CloudFormation enables it if the configuration is present, unless it is set to false.
    let enabled = bus.map(|bus| bus.get("EventBridgeEnabled").map_or(Ok(true), |enabled| enabled.bool()));
    let queues = configuration.get("QueueConfigurations").map_or(Ok(Vec::new()), |queues| queues.items())?;
    let notifications = queues.into_iter().map(|queue| notification(queue, all)).collect::<Result<_>>()?;
    Ok((notifications, enabled.transpose()?.unwrap_or(false)))
}

fn notification(node: Node, all: &[Resource]) -> Result<Notification> {
    let node = node.only(&["Event", "Queue", "Filter"])?;
    let event = node.need("Event")?;
    let known = ["*", "Put", "Post", "Copy", "CompleteMultipartUpload"];
    let Some(name) = event
        .str()?
        .strip_prefix("s3:")
        .filter(|name| name.strip_prefix("ObjectCreated:").is_some_and(|kind| known.contains(&kind)))
    else {
        return Err(event.unsupported("the local stack only knows the events s3:ObjectCreated:*"));
    };
    let queue = by_arn(&node.need("Queue")?, names::QUEUE, all)?.name.clone();
    let (prefix, suffix) = filter(&node)?;
    Ok(Notification { event: name.to_owned(), queue, prefix, suffix })
}

fn filter(node: &Node) -> Result<(String, String)> {
    let (mut prefix, mut suffix) = (String::new(), String::new());
    let Some(filter) = node.get("Filter") else { return Ok((prefix, suffix)) };
    let rules = filter.only(&["S3Key"])?.need("S3Key")?.only(&["Rules"])?.need("Rules")?;
    for rule in rules.items()? {
        let rule = rule.only(&["Name", "Value"])?;
        let name = rule.need("Name")?;
        let value = rule.need("Value")?.text()?;
        match name.str()?.to_lowercase().as_str() {
            "prefix" => prefix = value,
            "suffix" => suffix = value,
            _ => return Err(name.error(Problem::Expected("prefix or suffix"))),
        }
    }
    Ok((prefix, suffix))
}

fn cors_rule(node: Node) -> Result<CorsRule> {
    let node = node.only(&["Id", "AllowedOrigins", "AllowedMethods", "AllowedHeaders", "ExposedHeaders", "MaxAge"])?;
    let texts = |list: Option<Node>| -> Result<Vec<String>> {
        let items = list.map_or(Ok(Vec::new()), |list| list.items())?;
        items.iter().map(Node::text).collect()
    };
    Ok(CorsRule {
        origins: texts(Some(node.need("AllowedOrigins")?))?,
        methods: texts(Some(node.need("AllowedMethods")?))?,
        headers: texts(node.get("AllowedHeaders"))?,
        exposed: texts(node.get("ExposedHeaders"))?,
        max_age: node.get("MaxAge").map(|seconds| seconds.count()).transpose()?,
    })
}

/// Reads a rule that expires objects. Returns `None` if it is disabled or only applies to
/// incomplete uploads and older versions, which the local stack does not keep.
fn expiration(node: Node) -> Result<Option<Expiration>> {
    let node = node.only(&[
        "Id",
        "Status",
        "Prefix",
        "ExpirationInDays",
        "AbortIncompleteMultipartUpload",
        "NoncurrentVersionExpiration",
        "NoncurrentVersionExpirationInDays",
    ])?;
    let status = node.need("Status")?;
    let enabled = match status.str()? {
        "Enabled" => true,
        "Disabled" => false,
        _ => return Err(status.error(Problem::Expected("Enabled or Disabled"))),
    };
    let prefix = node.get("Prefix").map_or(Ok(String::new()), |prefix| prefix.text())?;
    let days = node.get("ExpirationInDays").map(|days| days.count()).transpose()?;
    let after = days.map(|days| Duration::from_secs(u64::from(days) * 86_400));
    Ok(after.filter(|_| enabled).map(|after| Expiration { prefix, after }))
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
  Files: {{Type: 'AWS::S3::Bucket', Properties: {{{properties}}}}}
  Policy: {{Type: 'AWS::S3::BucketPolicy', Properties: {{Bucket: !Ref Files, PolicyDocument: {{Statement: []}}}}}}
  Q: {{Type: 'AWS::SQS::Queue', Properties: {{QueueName: q}}}}
  F:
    Type: AWS::Serverless::Function
    Properties: {{CodeUri: a, Environment: {{Variables: {{NAME: !Ref Files, ARN: !GetAtt Files.Arn}}}}}}"
        );
        crate::template::load(&text, &BTreeMap::new())
    }

    fn refusal(properties: &str) -> String {
        let text = load(properties).unwrap_err().to_string();
        text.strip_prefix("template.yaml: Resources.Files.Properties").map(str::to_owned).unwrap_or(text)
    }

    #[test]
    fn a_reference_to_a_bucket_is_its_name() {
        let model = load("BucketName: files").unwrap();
        assert_eq!(model.functions[0].environment["NAME"], "files");
        assert_eq!(model.functions[0].environment["ARN"], "arn:aws:s3:::files");
        assert_eq!(load("").unwrap().buckets[0].name, "umavez-local-files");
    }

    #[test]
    fn a_bucket_has_all_its_settings() {
        let model = load(
            "BucketName: files, Tags: [], VersioningConfiguration: {Status: Suspended}, \
             BucketEncryption: {}, PublicAccessBlockConfiguration: {}, OwnershipControls: {}, \
             NotificationConfiguration: {EventBridgeConfiguration: {EventBridgeEnabled: true}, QueueConfigurations: \
               [{Event: 's3:ObjectCreated:*', Queue: !GetAtt Q.Arn, Filter: {S3Key: {Rules: \
                 [{Name: prefix, Value: in/}, {Name: suffix, Value: .csv}]}}}, \
                {Event: 's3:ObjectCreated:Put', Queue: !GetAtt Q.Arn}]}, \
             CorsConfiguration: {CorsRules: [{AllowedOrigins: ['*'], AllowedMethods: [PUT], MaxAge: 60}]}, \
             LifecycleConfiguration: {Rules: [{Status: Enabled, Prefix: in/, ExpirationInDays: 2}, \
               {Status: Disabled, ExpirationInDays: 1}, \
               {Status: Enabled, AbortIncompleteMultipartUpload: {DaysAfterInitiation: 1}}]}",
        );
        let bucket = &model.unwrap().buckets[0];
        let notification = |event: &str, prefix: &str, suffix: &str| Notification {
            event: event.into(),
            queue: "q".into(),
            prefix: prefix.into(),
            suffix: suffix.into(),
        };
        let expected = [notification("ObjectCreated:*", "in/", ".csv"), notification("ObjectCreated:Put", "", "")];
        assert_eq!((&bucket.notifications[..], bucket.to_bus), (&expected[..], true));
        let cors = CorsRule {
            origins: vec!["*".into()],
            methods: vec!["PUT".into()],
            headers: Vec::new(),
            exposed: Vec::new(),
            max_age: Some(60),
        };
        assert_eq!(bucket.cors, [cors]);
        let two_days = Duration::from_secs(2 * 86_400);
        assert_eq!(bucket.expirations, [Expiration { prefix: "in/".into(), after: two_days }]);
    }

    #[test]
    fn unsupported_settings_of_a_bucket_are_refused() {
        let event = |event: &str, more: &str| {
            let queue = format!("{{Event: '{event}', Queue: !GetAtt Q.Arn{more}}}");
            format!("NotificationConfiguration: {{QueueConfigurations: [{queue}]}}")
        };
        let at = ".NotificationConfiguration.QueueConfigurations.0";
        let only = "the local stack only knows the events s3:ObjectCreated:*";
        let unknown = "the local stack does not know this property";
        let strange = event("s3:ObjectCreated:*", ", Filter: {S3Key: {Rules: [{Name: colour, Value: red}]}}");
        let cases = [
            ("WebsiteConfiguration: {}".to_owned(), format!(".WebsiteConfiguration: {unknown}")),
            ("BucketName: Files".to_owned(), ": S3 does not take the bucket name \"Files\"".to_owned()),
            (event("s3:ObjectRemoved:*", ""), format!("{at}.Event: {only}")),
            (event("s3:ObjectCreated:Glance", ""), format!("{at}.Event: {only}")),
            (strange, format!("{at}.Filter.S3Key.Rules.0.Name: expected prefix or suffix")),
            (
                "LifecycleConfiguration: {Rules: [{Status: Enabled, Transitions: []}]}".to_owned(),
                format!(".LifecycleConfiguration.Rules.0.Transitions: {unknown}"),
            ),
        ];
        for (properties, expected) in cases {
            assert_eq!(refusal(&properties), expected);
        }
    }
}
