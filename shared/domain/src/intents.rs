//! Intents: of several texts with the same intention, a contact receives only one per window.
//!
//! A fingerprint identifies an intent, and an intent has one holder. The key of the intent's row
//! enforces this. A type with a rolling window or contact scope also has a guard row, written in
//! the same transaction.

mod check;
mod decision;
mod fingerprint;
mod guard;
mod holder;
mod release;
mod rows;
mod types;

pub use check::{Check, MAX_SKEW_MS};
pub use decision::{BlockedBy, CheckAnswer, Decision, Standing, judge};
pub use fingerprint::{bucket, bucket_end, fingerprint, is_fingerprint};
pub use guard::{Conflict, GuardAsked, GuardHold, GuardRow, MOST_SCHEDULED, Taken};
pub use holder::Holder;
pub use release::{ReleaseAnswer, Released, judge_release, release_request};
pub use rows::{Hold, IntentRow, IntentView, LIFETIME_DAYS, LastRelease, Status};
pub use types::{IntentType, IntentTypes, OptionsError, Scope, Window};
