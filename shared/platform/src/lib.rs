//! All code that uses AWS or the process environment. Rules live in `umavez_domain`; a function
//! combines the two.

pub mod api_keys;
pub mod aws;
pub mod batch;
pub mod clock;
pub mod config;
pub mod conversations;
pub mod delivery;
pub mod downsells;
pub mod due;
pub mod entry;
pub mod host;
pub mod http;
pub mod ingest;
pub mod intents;
pub mod invocation;
pub mod lease;
pub mod limiter;
pub mod mailings;
pub mod messages;
pub mod outbox;
pub mod outgoing;
pub mod providers;
pub mod queue;
pub mod secrets;
pub mod senders;
pub mod store;
pub mod suppressions;

pub mod telemetry;
pub mod uploads;
pub mod visibility;
pub mod webhooks;
