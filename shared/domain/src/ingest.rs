//! Ingest.
mod email;
mod entry;
mod insert;
pub mod link;
pub mod mail;
mod policy;
mod reading;
mod shape;
pub mod subject;
mod telegram;
pub mod text;
pub mod tracking;
mod words;

pub use email::normalize_email;
pub use entry::*;
pub use insert::read_insert;
pub use link::{Link, canonical_url, url_hash};
pub use mail::{date_bucket, from_addr, message_id};
pub use policy::*;
pub use subject::subject_base;
pub use telegram::normalize_telegram;
pub use words::*;
