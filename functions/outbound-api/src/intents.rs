//! Intents: whether a caller may send an intent to a client, and who holds the intent.

pub mod check;
pub mod read;
pub mod release;
