//! Backfills.
mod identity;
pub use identity::{BackfillId, LineRef};
