//! Least privilege, both ways, over a whole run: `cargo test` runs the binaries of a package in the order of their names,
//! and this one reads what the others told. After a part of the tests it has nothing to say.

use umavez_tests::grants;

#[test]
fn over_a_whole_run_nothing_is_refused_and_no_grant_goes_unused() {
    let report = grants::report();
    grants::forget();
    let Some(report) = report else {
        // Whoever means to run everything says so, so that it cannot go unnoticed if the others told nothing.
        assert!(std::env::var_os("UMAVEZ_WHOLE_RUN").is_none(), "no whole run of the tests came before this");
        return;
    };
    let list = |lines: &[String]| lines.iter().map(|line| format!("\n    {line}")).collect::<String>();
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
