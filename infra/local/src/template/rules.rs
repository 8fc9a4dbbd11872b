//! Rules of the default event bus with queues as targets.

use serde_json::Value;

use crate::model::Rule;

use super::error::{Problem, TemplateError};
use super::names;
use super::node::Node;
use super::resources::{Resource, by_arn};
use super::schedules::state;

type Result<T> = std::result::Result<T, TemplateError>;

/// Reads a rule. Returns `None` if it is disabled.
pub(super) fn rule(resource: &Resource, all: &[Resource]) -> Result<Option<Rule>> {
    let known = ["Name", "Description", "State", "EventPattern", "EventBusName", "Targets", "Tags"];
    let node = resource.node().only(&known)?;
    if let Some(bus) = node.get("EventBusName")
        && !["default", &names::default_bus_arn()].contains(&bus.str()?)
    {
        return Err(bus.unsupported("the local stack only knows the default event bus"));
    }
    let pattern = pattern(&node.need("EventPattern")?)?;
    let targets = node.need("Targets")?.items()?;
    let queues = targets.into_iter().map(|target| queue(target, all)).collect::<Result<Vec<_>>>()?;
    Ok(state(&node)?.then(|| Rule { name: resource.name.clone(), pattern, queues }))
}

/// Reads a pattern. CloudFormation accepts a mapping or its JSON.
fn pattern(node: &Node) -> Result<Value> {
    let pattern = if node.value.is_string() { node.json()? } else { node.value.clone() };
    if pattern.is_object() { Ok(pattern) } else { Err(node.error(Problem::Expected("a mapping"))) }
}

fn queue(target: Node, all: &[Resource]) -> Result<String> {
    // The last two are checked but never used here: a local queue always accepts an event.
    let target = target.only(&["Id", "Arn", "DeadLetterConfig", "RetryPolicy"])?;
    target.need("Id")?;
    if let Some(dead) = target.get("DeadLetterConfig") {
        by_arn(&dead.only(&["Arn"])?.need("Arn")?, names::QUEUE, all)?;
    }
    if let Some(retry) = target.get("RetryPolicy") {
        retry.only(&["MaximumRetryAttempts", "MaximumEventAgeInSeconds"])?;
    }
    Ok(by_arn(&target.need("Arn")?, names::QUEUE, all)?.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn load(properties: &str) -> Result<Model> {
        let text = format!(
            "
Resources:
  R: {{Type: 'AWS::Events::Rule', Properties: {{Name: r, {properties}}}}}
  Q: {{Type: 'AWS::SQS::Queue', Properties: {{QueueName: q}}}}
  D: {{Type: 'AWS::SQS::Queue', Properties: {{QueueName: d}}}}
  P:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref Q]
      PolicyDocument:
        Statement:
          - Effect: Allow
            Principal: {{Service: events.amazonaws.com}}
            Action: sqs:SendMessage
            Resource: !GetAtt Q.Arn
            Condition: {{ArnEquals: {{'aws:SourceArn': !GetAtt R.Arn}}}}"
        );
        crate::template::load(&text, &BTreeMap::new())
    }

    fn refusal(properties: &str) -> String {
        let text = load(properties).unwrap_err().to_string();
        text.strip_prefix("template.yaml: Resources.R.Properties").map(str::to_owned).unwrap_or(text)
    }

    const PATTERN: &str = "EventPattern: {source: [aws.ses], detail-type: [Email Bounced]}";

    #[test]
    fn a_rule_has_its_pattern_and_its_queues() {
        let targets = "Targets: [{Id: q, Arn: !GetAtt Q.Arn, DeadLetterConfig: {Arn: !GetAtt D.Arn}, \
                       RetryPolicy: {MaximumRetryAttempts: 3}}, {Id: d, Arn: !GetAtt D.Arn}]";
        let expected = json!({"source": ["aws.ses"], "detail-type": ["Email Bounced"]});
        let as_json = format!("EventPattern: '{expected}', EventBusName: default, State: ENABLED");
        for pattern in [PATTERN, as_json.as_str()] {
            let model = load(&format!("{pattern}, {targets}")).unwrap();
            let [rule] = &model.rules[..] else { panic!("one rule") };
            assert_eq!((rule.name.as_str(), &rule.pattern), ("r", &expected));
            assert_eq!(rule.queues, ["q", "d"]);
        }
        assert!(load(&format!("{PATTERN}, State: DISABLED, {targets}")).unwrap().rules.is_empty());
    }

    #[test]
    fn a_rule_that_the_stack_does_not_support_is_refused() {
        let target = "Targets: [{Id: q, Arn: !GetAtt Q.Arn}]";
        let cases = [
            (
                format!("ScheduleExpression: rate(1 day), {target}"),
                ".ScheduleExpression: the local stack does not know this property",
            ),
            (target.to_owned(), ": EventPattern is missing"),
            (format!("EventPattern: [], {target}"), ".EventPattern: expected a mapping"),
            (
                format!("{PATTERN}, EventBusName: mine, {target}"),
                ".EventBusName: the local stack only knows the default event bus",
            ),
            (
                format!("{PATTERN}, Targets: [{{Id: q, Arn: !GetAtt Q.Arn, InputPath: $.detail}}]"),
                ".Targets.0.InputPath: the local stack does not know this property",
            ),
            (
                format!("{PATTERN}, Targets: [{{Id: q, Arn: 'arn:x'}}]"),
                ".Targets.0.Arn: arn:x is no AWS::SQS::Queue of this template",
            ),
        ];
        for (properties, expected) in cases {
            assert_eq!(refusal(&properties), expected);
        }
    }
}
