//! The Downsells table: the downsells, their offers to contacts, and the charges of the contacts.
//!
//! Invariants. One partition has everything about one contact of a bot: the open charges with the
//! number of payments, one slot per downsell, and the offers. A pure function computes every change
//! from the rows as they were read, and the write is conditional on none of them having changed. A
//! trigger is one transaction over all downsells of its bot. The end of an offer is one transaction
//! with its slot. The start of an attempt is one transaction with a check of the charges.
//!
//! Interleavings:
//!
//! - A payment and a claim: both depend on the version of the charges. If the claim is first, the
//!   payment finds the offer in flight. If the payment is first, the gate is closed.
//! - A payment and a trigger: they also depend on the version of the charges; if the payment is
//!   first, the trigger decides again.
//! - Two triggers: the version of the slot decides.
//! - A cancel and a claim: the version of the offer decides.
//! - A payment is stored, but a crash leaves some of its offers queued: the charges stay in the
//!   index by time until their offers have ended.
//! - An offer is passed on to another charge because its own expired: `domain::downsells::passing`
//!   lists the interleavings.

mod bot_downsells;
mod contact;
mod definitions;
mod listing;
pub mod log;
mod offers;
mod passing;
mod payments;
mod triggers;

pub use bot_downsells::{BotDownsells, BotDownsellsCache};
pub use definitions::CreatedDownsell;
pub use listing::QueueFilter;
pub use payments::Charged;

use crate::config::{self, ConfigError};
use crate::messages::Messages;
use crate::senders::Bots;
use crate::store::Store;

#[derive(Debug, Clone)]
pub struct Downsells {
    pub store: Store,
    pub table: String,
    pub bots: Bots,
    /// The table of the suppressions.
    pub outbound_table: String,
    /// How many days an offer is kept after it ended.
    pub keep_days: i64,
}

impl Downsells {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self {
            store: store.clone(),
            table: config::required("DOWNSELLS_TABLE")?,
            bots: Bots::from_env(store)?,
            outbound_table: config::required("OUTBOUND_TABLE")?,
            keep_days: Messages::retention_from_env()?,
        })
    }
}
