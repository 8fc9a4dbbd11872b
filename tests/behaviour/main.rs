//! What the product does, through the local stack: HTTP in, real function processes, real SDKs
//! against the emulators.

mod access;
mod conversations;
mod conversations_batches;
mod conversations_course;
mod conversations_recalls;
mod dead_letters;
mod downsells;
mod downsells_admin;
mod downsells_payments;
mod faults;
mod first_use;
mod http;
mod ingest;
mod ingest_schemas;
mod intents;
mod intents_expiry;
mod intents_guards;
mod intents_options;
mod limiter;
mod local_stack;
mod mailings;
mod mailings_held;
mod mailings_races;
mod mailings_same_file;
mod mailings_sending;
mod mappings;
mod outbound;
mod outbound_events;
mod outbound_outcomes;
mod outbox;
mod permissions;
mod readme;
mod senders;
mod store;
mod suppressions;
