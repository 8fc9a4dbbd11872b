//! Checks that need a full run of the tests. `cargo test` runs the binaries of a package in the
//! order of their names, and this one reads what the others recorded. After a partial run it checks
//! nothing.

use std::sync::LazyLock;

use umavez_tests::whole_run::{self, Report};

static REPORT: LazyLock<Option<Report>> = LazyLock::new(|| {
    let report = whole_run::report();
    whole_run::forget();
    report
});

fn report() -> Option<&'static Report> {
    let report = REPORT.as_ref();
    // A run that is meant to be a full run sets the variable, so that missing records cannot go
    // unnoticed.
    let whole = std::env::var_os("UMAVEZ_WHOLE_RUN").is_some();
    assert!(report.is_some() || !whole, "no full run of the tests came before this one");
    report
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n    {line}")).collect()
}

/// Least privilege, in both directions.
#[test]
fn nothing_is_refused_and_no_grant_goes_unused() {
    let Some(report) = report() else { return };
    assert!(
        report.unused.is_empty() && report.refused.is_empty(),
        "{} grants of template.yaml, {} unused:{}\n{} calls refused:{}",
        report.granted,
        report.unused.len(),
        list(&report.unused),
        report.refused.len(),
        list(&report.refused),
    );
}

/// CloudWatch does not aggregate over dimensions: an alarm on a metric that no function emits with
/// exactly those dimensions never fires.
#[test]
fn every_metric_that_alarms_and_the_dashboard_watch_is_emitted() {
    let Some(report) = report() else { return };
    assert!(report.unemitted.is_empty(), "no function emitted{}", list(&report.unemitted));
}
