//! Ingest.
mod email;
mod entry;
pub mod link;
pub mod mail;
mod policy;
mod reading;
pub mod subject;
mod telegram;
pub mod text;
pub mod tracking;
mod words;

pub use email::normalize_email;
pub use entry::*;
pub use policy::*;
pub use telegram::normalize_telegram;
pub use words::*;
