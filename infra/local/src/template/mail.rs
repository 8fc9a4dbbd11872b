//! SES configuration sets, and which of their events go to the default event bus.

use std::collections::BTreeSet;

use crate::model::ConfigurationSet;

use super::error::{Problem, TemplateError};
use super::names;
use super::node::Node;
use super::resources::Resource;

type Result<T> = std::result::Result<T, TemplateError>;

/// The event types as written in templates (in lower case, without underscores) and as named in
/// events.
const EVENT_TYPES: [(&str, &str); 10] = [
    ("send", "Send"),
    ("delivery", "Delivery"),
    ("bounce", "Bounce"),
    ("complaint", "Complaint"),
    ("reject", "Reject"),
    ("open", "Open"),
    ("click", "Click"),
    ("renderingfailure", "Rendering Failure"),
    ("deliverydelay", "DeliveryDelay"),
    ("subscription", "Subscription"),
];

pub(super) fn configuration_set(resource: &Resource) -> Result<ConfigurationSet> {
    resource.node().only(&[
        "Name",
        // Ignored: no effect on the local stack.
        "ArchivingOptions",
        "DeliveryOptions",
        "ReputationOptions",
        "SendingOptions",
        "SuppressionOptions",
        "Tags",
        "TrackingOptions",
        "VdmOptions",
    ])?;
    Ok(ConfigurationSet { name: resource.name.clone(), destinations: Vec::new() })
}

/// Adds a destination to its configuration set, unless it is disabled.
pub(super) fn add_destination(resource: &Resource, sets: &mut [ConfigurationSet]) -> Result<()> {
    let node = resource.node().only(&["ConfigurationSetName", "EventDestination"])?;
    let named = node.need("ConfigurationSetName")?;
    let name = named.str()?;
    let Some(set) = sets.iter_mut().find(|set| set.name == name) else {
        return Err(named.unsupported(format!("{name} is no {} of this template", names::CONFIGURATION_SET)));
    };
    let known = ["Name", "Enabled", "MatchingEventTypes", "EventBridgeDestination"];
    let destination = node.need("EventDestination")?.only(&known)?;
    let types = destination.need("MatchingEventTypes")?.items()?;
    let types = types.iter().map(event_type).collect::<Result<BTreeSet<_>>>()?;
    let bus = destination.need("EventBridgeDestination")?.only(&["EventBusArn"])?.need("EventBusArn")?;
    if bus.str()? != names::default_bus_arn() {
        return Err(bus.unsupported("SES publishes to the default event bus only"));
    }
    // SES disables a destination that does not set this, which is never intended. So it is
    // required.
    if destination.need("Enabled")?.bool()? {
        set.destinations.push(types);
    }
    Ok(())
}

fn event_type(node: &Node) -> Result<&'static str> {
    let written = node.str()?.replace('_', "").to_lowercase();
    let known = EVENT_TYPES.iter().find(|(name, _)| *name == written);
    known.map(|(_, kind)| *kind).ok_or_else(|| node.error(Problem::Expected("a type of event of SES")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use std::collections::BTreeMap;

    const BUS: &str = "!Sub 'arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:event-bus/default'";

    fn load(destination: &str) -> Result<Model> {
        let text = format!(
            "
Resources:
  D:
    Type: AWS::SES::ConfigurationSetEventDestination
    Properties: {{ConfigurationSetName: !Ref Set, EventDestination: {{{destination}}}}}
  Set:
    Type: AWS::SES::ConfigurationSet
    Properties:
      Name: set
      SendingOptions: {{SendingEnabled: true}}
      ReputationOptions: {{ReputationMetricsEnabled: true}}
      SuppressionOptions: {{SuppressedReasons: [BOUNCE]}}
      DeliveryOptions: {{TlsPolicy: REQUIRE}}"
        );
        crate::template::load(&text, &BTreeMap::new())
    }

    fn refusal(destination: &str) -> String {
        let text = load(destination).unwrap_err().to_string();
        text.strip_prefix("template.yaml: Resources.D.Properties.EventDestination").map(str::to_owned).unwrap_or(text)
    }

    #[test]
    fn a_destination_gets_its_event_types() {
        let destination = format!(
            "Name: d, Enabled: true, MatchingEventTypes: [SEND, bounce, DELIVERY_DELAY, renderingFailure], \
             EventBridgeDestination: {{EventBusArn: {BUS}}}"
        );
        let set = &load(&destination).unwrap().configuration_sets[0];
        assert_eq!(set.name, "set");
        assert_eq!(set.destinations, [BTreeSet::from(["Bounce", "DeliveryDelay", "Rendering Failure", "Send"])]);
        let off = destination.replace("Enabled: true", "Enabled: false");
        assert!(load(&off).unwrap().configuration_sets[0].destinations.is_empty());
    }

    #[test]
    fn a_destination_with_another_bus_or_an_unknown_event_type_is_refused() {
        let with = |types: &str, bus: &str| {
            refusal(&format!("MatchingEventTypes: [{types}], EventBridgeDestination: {{EventBusArn: {bus}}}"))
        };
        assert_eq!(
            with("send", "'arn:x'"),
            ".EventBridgeDestination.EventBusArn: SES publishes to the default event bus only"
        );
        assert_eq!(with("sent", BUS), ".MatchingEventTypes.0: expected a type of event of SES");
        assert_eq!(with("send", BUS), ": Enabled is missing");
        assert_eq!(
            refusal("MatchingEventTypes: [], SnsDestination: {}"),
            ".SnsDestination: the local stack does not know this property"
        );
    }

    #[test]
    fn a_destination_without_a_configuration_set_is_refused() {
        let text = "Resources: {D: {Type: 'AWS::SES::ConfigurationSetEventDestination', \
                    Properties: {ConfigurationSetName: x, EventDestination: {}}}}";
        assert_eq!(
            crate::template::load(text, &BTreeMap::new()).unwrap_err().to_string(),
            "template.yaml: Resources.D.Properties.ConfigurationSetName: \
             x is no AWS::SES::ConfigurationSet of this template"
        );
    }
}
