//! The crash-point suite. It runs every scenario once without faults, and then once for every call
//! that the scenario made and the faults that can hit that call. In the default run, each write
//! gets a run in which the process is killed after the write. Half of the writes and a sixth of the
//! reads get another run with another fault, a different one from call to call. In the long mode,
//! every call gets every fault. At the end of each run, the suite audits the invariants from the
//! tables, the queues and the answers to clients.
//!
//! ```text
//! # the default run, part of the tests
//! cargo test --workspace
//! # the long mode: every fault, more pairs, more histories
//! cargo test --workspace --test crash_points -- --seeds 500
//! # one pair again, with its trace
//! cargo test --workspace --test crash_points -- --replay 7
//! # one random history again
//! cargo test --workspace --test crash_points -- --history 7
//! ```

mod histories;
mod model;
mod run;
mod scenario;
mod scenarios;
mod suite;

use std::process::ExitCode;
use std::time::Instant;

/// The number of seeds of a default run, for pairs of faults and for histories.
const DEFAULT_PAIRS: u64 = 24;
const DEFAULT_HISTORIES: u64 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Test runners ask for the list before they run anything.
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("crash_points: test");
        }
        return ExitCode::SUCCESS;
    }
    if !is_wanted(&arguments) {
        return ExitCode::SUCCESS;
    }
    quiet_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let violations = runtime.block_on(async {
        if let Some(seed) = number(&arguments, "--replay") {
            return suite::replay(seed).await;
        }
        if let Some(seed) = number(&arguments, "--history") {
            return histories::replay(seed).await;
        }
        let seeds = number(&arguments, "--seeds");
        let every_way = seeds.is_some();
        everything(every_way, seeds.unwrap_or(DEFAULT_PAIRS), seeds.unwrap_or(DEFAULT_HISTORIES)).await
    });
    // The same last line as that of other test binaries, for tools that read the output.
    let (passed, failed) = if violations == 0 { (1, 0) } else { (0, 1) };
    println!("\ncrash points: {passed} passed, {failed} failed");
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn everything(every_way: bool, pairs: u64, histories: u64) -> usize {
    let begin = Instant::now();
    let mut violations = suite::single_faults(every_way).await;
    // With a filter, only the chosen scenarios run.
    if std::env::var_os("CRASH_SCENARIOS").is_some() {
        return violations;
    }
    violations += suite::pairs(0..pairs).await;
    violations += suite::replays_are_alike().await;
    violations += suite::broken_variants_are_caught().await;
    violations += histories::check(0..histories).await;
    println!("crash points took {} s", begin.elapsed().as_secs());
    violations
}

fn number(arguments: &[String], name: &str) -> Option<u64> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).and_then(|value| value.parse().ok())
}

/// Returns whether a filter on the names of tests selects this one.
fn is_wanted(arguments: &[String]) -> bool {
    let mut filters = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--seeds" | "--replay" | "--history" | "--test-threads" | "--color" | "--format" | "--skip" => {
                let _value = rest.next();
            }
            flag if flag.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    filters.is_empty() || filters.iter().any(|filter| "crash_points".contains(filter))
}

/// Silences panics: a broken invariant is a panic inside a run, and the suite reports it with that
/// run.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
