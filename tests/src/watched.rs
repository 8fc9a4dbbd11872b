//! The product's own metrics that alarms and the dashboard of the template watch.

use serde_json::Value;

/// The prefix of the namespaces of AWS. All others are ours, or a mistake.
const OF_AWS: &str = "AWS/";
/// The stage of the stacks in tests.
const STAGE: &str = "dev";

/// Returns the metrics that the template watches, each in the format of [`line()`].
///
/// # Panics
/// If the template has an alarm or a dashboard in a form that this function does not know.
pub fn metrics(template: &str) -> Vec<String> {
    let template: serde_yaml_ng::Value = serde_yaml_ng::from_str(template).expect("YAML");
    let mut all = Vec::new();
    for resource in template["Resources"].as_mapping().expect("resources").values() {
        let properties = &resource["Properties"];
        match resource["Type"].as_str() {
            Some("AWS::CloudWatch::Alarm") => all.extend(of_alarm(properties)),
            Some("AWS::CloudWatch::Dashboard") => {
                let body = text(&properties["DashboardBody"]);
                let body: Value = serde_json::from_str(&body).expect("the dashboard is JSON");
                let widgets = body["widgets"].as_array().expect("widgets");
                all.extend(widgets.iter().flat_map(of_widget));
            }
            _ => {}
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Formats a metric as its namespace, its name and the names of its dimensions.
pub fn line<'a>(namespace: &str, name: &str, dimensions: impl Iterator<Item = &'a str>) -> String {
    let mut dimensions: Vec<_> = dimensions.collect();
    dimensions.sort_unstable();
    format!("{namespace} {name} [{}]", dimensions.join(" "))
}

fn of_alarm(alarm: &serde_yaml_ng::Value) -> Option<String> {
    assert!(alarm.get("Metrics").is_none(), "an alarm on an expression of several metrics");
    let namespace = text(&alarm["Namespace"]);
    let dimensions = alarm["Dimensions"].as_sequence().cloned().unwrap_or_default();
    let names: Vec<_> = dimensions.iter().map(|dimension| text(&dimension["Name"])).collect();
    let metric = line(&namespace, &text(&alarm["MetricName"]), names.iter().map(String::as_str));
    (!namespace.starts_with(OF_AWS)).then_some(metric)
}

/// Reads `[namespace, name, dimension, value, …, {options}]`, or `[{"expression":
/// "SEARCH('{namespace,dimensions} MetricName=…')"}]`.
fn of_widget(widget: &Value) -> Vec<String> {
    let metrics = widget["properties"]["metrics"].as_array().expect("metrics");
    let of_row = |row: &Value| {
        let row = row.as_array().expect("a metric is a list");
        if let Some(search) = row[0]["expression"].as_str() {
            return Some(of_search(search));
        }
        let words: Vec<_> = row.iter().filter_map(Value::as_str).collect();
        let [namespace, name, dimensions @ ..] = words.as_slice() else { panic!("no name: {row:?}") };
        let metric = line(namespace, name, dimensions.iter().step_by(2).copied());
        (!namespace.starts_with(OF_AWS)).then_some(metric)
    };
    metrics.iter().filter_map(of_row).collect()
}

fn of_search(search: &str) -> String {
    let inner = search.split_once('{').and_then(|(_, rest)| rest.split_once('}')).expect("{namespace,dimensions}");
    let mut schema = inner.0.split(',').map(|word| word.trim_matches('"'));
    let namespace = schema.next().expect("a namespace");
    let name = inner.1.split_once("MetricName=\"").and_then(|(_, rest)| rest.split_once('"')).expect("a name");
    line(namespace, name.0, schema)
}

/// Returns a text with the stage of the tests in place of its parameter.
fn text(value: &serde_yaml_ng::Value) -> String {
    let text = match value {
        serde_yaml_ng::Value::Tagged(tagged) => tagged.value.as_str(),
        value => value.as_str(),
    };
    text.unwrap_or_default().replace("${Stage}", STAGE)
}
