//! The tables of ingest: Entries and EntriesTest, one per schema, and the settings in the Config
//! table that every insert must know.
//!
//! Invariant: a key of a schema and policy has one owner, because the row in its slot was written
//! on condition that the slot was free or already belonged to that owner. The domain decides the
//! outcome of an insert from the rows in its slots. This module carries the decision out, and
//! decides again each time another writer was faster.

mod backfills;
mod entries;
mod settings;

pub use backfills::{Backfills, Begun};
pub use entries::{Entries, Inserted};
pub use settings::{Settings, SettingsTable};
