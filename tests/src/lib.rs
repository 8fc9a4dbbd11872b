//! The harness of the behaviour tests: a world with verbs, which audits itself when a test is done.
//!
//! Each test has a stack of its own, in memory, with real function processes. Nothing sleeps:
//! `drain` and `advance` wait for what moves. After the test the world is drained and audited:
//! dead-letter queues are empty or accounted for, no function panicked, answered 5xx or was refused
//! a call unless the test said so, nothing was sent that nobody looked at, no log line holds a
//! canary, and the tables keep their invariants.

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

/// The text of the product's template.
pub fn template() -> String {
    let path = umavez_local::binaries::workspace_root().join("template.yaml");
    std::fs::read_to_string(path).expect("template.yaml is at the root")
}
