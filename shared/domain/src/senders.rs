//! Senders: the bots and instances that send messages, the credentials of each, and its rate
//! limits.

pub mod bots;
pub mod instances;
pub mod limiter;
pub mod rates;
mod resolution;

pub use resolution::Resolved;
