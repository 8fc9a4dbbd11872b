//! What clients, operators and providers do in a play, and what must hold at its end.

mod outbound;

pub use outbound::ROLLING;

use std::rc::Rc;

use futures::future::LocalBoxFuture;

use crate::play::Stage;

pub trait Workload {
    fn name(&self) -> &'static str;

    /// The programs of the functions that take part.
    fn functions(&self) -> &'static [&'static str];

    /// What the clients do while things go wrong.
    fn run(&self, stage: Rc<Stage>) -> LocalBoxFuture<'_, ()>;

    /// Returns whether everything that was accepted has ended.
    fn is_at_rest(&self, stage: &Stage) -> bool;

    /// Returns what does not hold.
    fn audit(&self, stage: &Stage) -> Vec<String>;
}

pub const NAMES: &[&str] = &["outbound"];

/// Returns a new workload. It keeps the history of one play.
pub fn workload(name: &str) -> Option<Box<dyn Workload>> {
    match name {
        "outbound" => Some(Box::new(outbound::Outbound::default())),
        _ => None,
    }
}
