//! The tables of ingest: Entries and EntriesTest, one per schema, and what every insert must know
//! of the Config table.
//!
//! Invariant: a key of a schema and policy has one owner, because the row in its slot was written
//! on the condition that the slot was free, or its own. What becomes of an insert is decided by the
//! domain from what stands in its slots; here it is carried out, and decided again as often as
//! somebody else was faster.

mod backfills;
mod entries;
mod settings;

pub use backfills::{Backfills, Begun, Job, LEASE_MS, Turn};
pub use entries::{Entries, Inserted};
pub use settings::{Patched, Settings, SettingsTable};
