//! What only a whole run shows: `cargo test` runs the binaries of a package in the order of their
//! names, and this one reads what the others told. After a part of the tests it has nothing to say.

use std::sync::LazyLock;

use umavez_tests::whole_run::{self, Report};

static REPORT: LazyLock<Option<Report>> = LazyLock::new(|| {
    let report = whole_run::report();
    whole_run::forget();
    report
});

fn report() -> Option<&'static Report> {
    let report = REPORT.as_ref();
    // Whoever means to run everything says so, so that it cannot go unnoticed if the others told
    // nothing.
    let whole = std::env::var_os("UMAVEZ_WHOLE_RUN").is_some();
    assert!(report.is_some() || !whole, "no whole run of the tests came before this");
    report
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n    {line}")).collect()
}

/// Least privilege, both ways.
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

/// CloudWatch adds nothing up over dimensions: an alarm on a metric that nobody tells of in that
/// very form never rings.
#[test]
fn what_alarms_and_the_dashboard_watch_is_told_in_that_form() {
    let Some(report) = report() else { return };
    assert!(report.untold.is_empty(), "nobody told of{}", list(&report.untold));
}
