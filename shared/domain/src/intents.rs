//! Intents: two texts with the same intention reach a contact once per window.
//!
//! An intent is known by its fingerprint and has one holder. The row's own key is the constraint; a type with a rolling
//! window or a contact's scope has a guard row besides, written in the same transaction.

mod check;
mod decision;
mod fingerprint;
mod holder;
mod rows;
mod types;

pub use check::{Check, MAX_AGE_DAYS, MAX_AHEAD_MS};
pub use decision::{BlockedBy, CheckAnswer, Decision, Released, Standing, judge, judge_release, release_request};
pub use fingerprint::{bucket, bucket_end, fingerprint, is_fingerprint};
pub use holder::Holder;
pub use rows::{GuardRow, Hold, IntentRow, IntentView, LIFETIME_DAYS, Status};
pub use types::{IntentType, IntentTypes, OptionsError, Scope, Window};
