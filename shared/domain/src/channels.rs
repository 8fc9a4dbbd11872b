//! The channels: valid addresses and contents, the request that sends a message, and the meaning of
//! the provider's answer. This module does not use rows or attempts.

mod address;
mod call;
pub mod content;
pub mod email;
pub mod telegram;
pub mod whatsapp;

pub use address::{Channel, brazilian_twin, is_group, normalize_to};
pub use call::HttpCall;
pub use content::Content;
