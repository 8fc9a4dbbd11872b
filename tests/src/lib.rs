//! The harness of the behaviour tests: a world with verbs, which audits itself when a test is done.
//!
//! Each test has its own stack in memory, with real function processes. Nothing sleeps: `drain` and
//! `advance` wait until nothing moves. After the test the harness drains and audits the world:
//! dead-letter queues are empty or accounted for; no function panicked, answered 5xx or was denied
//! a call unless the test expects it; providers received as many requests as the test expects; no
//! log line contains a canary; and the tables keep their invariants.

mod answer;
mod audit;
pub mod contract;
pub mod docs;
pub mod processes;
pub mod watched;
pub mod whole_run;
mod world;

pub use answer::Answer;
pub use world::{Expected, KEY, Setup, World, play, play_with};

/// Returns the text of the product's template.
pub fn template() -> String {
    let path = umavez_local::binaries::workspace_root().join("template.yaml");
    std::fs::read_to_string(path).expect("template.yaml is at the root")
}
