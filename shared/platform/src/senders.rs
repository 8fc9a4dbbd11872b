//! Senders: bots, instances and their credentials.

mod bots;
mod credentials;
mod instances;

pub use credentials::Senders;
