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
pub use decision::{BlockedBy, CheckAnswer, CheckDecision, answer_conflict};
pub use fingerprint::{bucket, bucket_end, fingerprint, is_fingerprint};
pub use guard::{BeginOutcome, Conflict, GuardRequest, GuardRow, IntentHold, MOST_SCHEDULED, TakeOutcome};
pub use holder::Holder;
pub use release::{LastRelease, ReleaseAnswer, ReleaseAttributes, Released, release_request};
pub use rows::{HoldRequest, IntentRow, IntentStatus, IntentView, LIFETIME_DAYS};
pub use types::{IntentScope, IntentType, IntentTypes, OptionsError, WindowKind};
