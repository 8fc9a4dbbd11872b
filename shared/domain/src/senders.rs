//! Senders: the bots and instances that messages leave through, what each signs with, and how fast
//! each may send.

pub mod bots;
pub mod instances;
pub mod limiter;
pub mod rates;
mod resolution;

pub use resolution::Resolved;
