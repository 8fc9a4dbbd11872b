//! Senders: bots and instances, with their credentials and rate limits.

pub mod bots;
mod instances;
mod resolution;

pub use bots::Bots;
pub use instances::Instances;
pub use resolution::Senders;
