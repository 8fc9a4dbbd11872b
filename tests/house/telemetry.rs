//! Log events and metrics are closed lists, with one form of name, and the reference has them all.

use std::collections::BTreeSet;
use std::fs;

use regex_lite::Regex;
use umavez_domain::telemetry::{Event, Metric};
use umavez_local::binaries::workspace_root;

use crate::mechanisms::product;

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

/// Returns the names of this form in the first column of the tables of a page.
fn first_column(page: &str, form: &Regex) -> BTreeSet<String> {
    let text = fs::read_to_string(workspace_root().join(page)).expect("a page");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.flat_map(|cell| form.captures_iter(cell).map(|name| name[1].to_owned()).collect::<Vec<_>>()).collect()
}

#[test]
fn log_events_have_one_form_and_are_in_the_reference() {
    let form = pattern("`([A-Z]+(?:_[A-Z]+)+)`");
    let events: BTreeSet<_> = Event::ALL.iter().map(|event| event.as_str().to_owned()).collect();
    for event in &events {
        assert!(form.is_match(&format!("`{event}`")), "{event}");
    }
    assert_eq!(events, first_column("docs/reference/logs.md", &form));
}

#[test]
fn metrics_have_one_form_and_are_in_the_reference() {
    let form = pattern("`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`");
    let metrics: BTreeSet<_> = Metric::ALL.iter().map(|metric| metric.as_str().to_owned()).collect();
    for metric in &metrics {
        assert!(form.is_match(&format!("`{metric}`")), "{metric}");
    }
    assert_eq!(metrics, first_column("docs/reference/metrics.md", &form));
}

#[test]
fn the_code_logs_and_counts_only_what_is_in_the_lists() {
    let literal = pattern(r#"\bevent = "|(counter|gauge|histogram)!\(\s*""#);
    let mut all = String::new();
    for (path, text) in product().filter(|(path, _)| !path.ends_with("domain/src/telemetry.rs")) {
        assert!(!literal.is_match(&text), "{path} names an event or a metric that is not in domain::telemetry");
        all.push_str(&text);
    }
    let is_used = |list: &str, variant: String| pattern(&format!(r"\b{list}::{variant}\b")).is_match(&all);
    let unused = Event::ALL.iter().filter(|event| !is_used("Event", format!("{event:?}"))).map(|event| event.as_str());
    let metrics = Metric::ALL.iter().filter(|metric| !is_used("Metric", format!("{metric:?}")));
    assert_eq!(unused.chain(metrics.map(|metric| metric.as_str())).collect::<Vec<_>>(), Vec::<&str>::new());
}
