//! Ingest.
pub mod link;
pub mod mail;
pub mod subject;
pub mod text;
pub mod tracking;
