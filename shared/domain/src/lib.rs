//! The rules: pure functions over values. Time is an argument; nothing here waits, reads the
//! environment or accesses a store. A rule returns its decision as a value; the shell performs it.

mod absent;
pub mod access;
pub mod change;
pub mod channels;
pub mod codes;
pub mod conversations;
pub mod delivery;
pub mod downsells;
pub mod fields;
pub mod id;
pub mod idempotency;
pub mod ingest;
pub mod intents;
pub mod keys;
pub mod lease;
pub mod mailings;
pub mod messages;
pub mod outbox;
pub mod pages;
pub mod queue;
pub mod senders;
pub mod suppression;
pub mod telemetry;
pub mod time;
pub mod unicode;
pub mod uploaded;
pub mod webhooks;
pub mod work;
