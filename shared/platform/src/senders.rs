//! Senders: bots, instances, what each sends with and how fast.

pub mod bots;
mod instances;
mod resolution;

pub use bots::Bots;
pub use instances::Instances;
pub use resolution::Senders;
