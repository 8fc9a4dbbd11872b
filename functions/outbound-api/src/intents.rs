//! Intents: may this intention be sent to this client, and who holds it.

pub mod check;
pub mod read;
pub mod release;
