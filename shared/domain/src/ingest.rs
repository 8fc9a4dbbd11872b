//! Ingest: normalizes Telegram and email items, derives their keys by policy, and inserts each item
//! once or merges it.
//!
//! [`normalize_telegram`] and [`normalize_email`] turn an item into a [`Normalized`] entry with its
//! keys. [`read_insert`] accepts exactly that. [`decide`] determines what to do with the entry,
//! given the rows in the slots of its keys.

mod answer;
mod backfill;
mod change;
mod decision;
mod email;
mod encoded_words;
mod entry;
mod html;
mod identity;
mod insert;
mod json_text;
mod link;
mod mail;
mod merge;
mod policy;
mod reading;
mod rows;
mod shape;
mod source_times;
mod subject;
#[cfg(test)]
mod table;
mod telegram;
mod test_mode;
mod text;
mod tracking;
mod update;
mod words;

pub use answer::{EntryView, InsertAnswer, SecondaryConflict};
pub use backfill::*;
pub use change::{SlotChange, When};
pub use decision::{InsertDecision, InsertOutcome, StoredRows, decide};
pub use email::normalize_email;
pub use entry::{Entry, Keys, Metadata, Normalized, Source};
pub use identity::EntryId;
pub use insert::read_insert;
pub use link::{Link, canonical_url, url_hash, without_tracking};
pub use mail::{date_bucket, from_addr, message_id};
pub use merge::merge;
pub use policy::{PolicyPatch, PolicyRow, resolve};
pub use rows::{EntryRow, Insertion, MarkerRow, Row};
pub use subject::subject_base;
pub use telegram::normalize_telegram;
pub use test_mode::{TestModeRow, TestModeView, read_test_mode};
pub use tracking::{TRACKING, TrackingList};
pub use words::{Column, ConflictAction, ContentType, PolicyKey, Schema, System};
