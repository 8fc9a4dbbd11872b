//! The channels: what an address and a content may be, the request that sends it, and what the
//! provider's answer means. Nothing here knows of rows or attempts.

mod address;
mod call;
pub mod content;
pub mod email;
pub mod telegram;
pub mod whatsapp;
pub mod wire;

pub use address::{Channel, brazilian_twin, is_group, normalize_to};
pub use call::HttpCall;
pub use content::Content;
