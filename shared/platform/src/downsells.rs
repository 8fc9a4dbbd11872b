//! The Downsells table: what is offered, to whom, and what they were asked to pay.
//!
//! Invariants. Everything about one contact of a bot is in one partition: the charges that are open
//! with the number of payments, a slot per downsell, and the offers. Every change is computed by a
//! pure function from the rows as they were read, and written on the condition that none of them
//! has changed. A trigger is one transaction over all downsells of its bot; an end of an offer is
//! one with its slot; an attempt is begun in one with a check of the charges.
//!
//! Interleavings. A payment against a claim: both name the version of the charges, so the claim was
//! first, and the payment finds the offer in flight, or the payment was first, and the gate is
//! closed. A payment against a trigger: likewise, and the trigger decides again. Two triggers: the
//! slot's version decides. A cancel against a claim: the offer's version. A payment that was told
//! and not seen through: the charges stay in the index of what waits until its offers have ended.
//! An offer whose charge expired and that is passed on to another: `domain::downsells::passing`
//! lists what it can meet.

mod boards;
mod contact;
mod definitions;
mod listing;
mod offers;
mod passing;
mod payments;
pub mod tell;
mod triggers;

pub use boards::{Board, Boards};
pub use definitions::Created;
pub use listing::{QueuePage, QueuePageOf};
pub use offers::Recovered;
pub use payments::Charged;
pub use triggers::Triggered;

use crate::config::{self, ConfigError};
use crate::senders::Bots;
use crate::store::Store;

#[derive(Debug, Clone)]
pub struct Downsells {
    pub store: Store,
    pub table: String,
    pub bots: Bots,
    /// Where suppressions are.
    pub outbound_table: String,
    /// How long an offer is kept that has ended.
    pub keep_days: i64,
}

impl Downsells {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        let keep = config::text("MESSAGE_RETENTION_DAYS").unwrap_or_else(|| "90".to_owned());
        let keep_days = keep.parse().ok().filter(|days| (1..=3_650).contains(days));
        Ok(Self {
            store: store.clone(),
            table: config::required("DOWNSELLS_TABLE")?,
            bots: Bots::from_env(store)?,
            outbound_table: config::required("OUTBOUND_TABLE")?,
            keep_days: keep_days.ok_or_else(|| ConfigError::malformed("MESSAGE_RETENTION_DAYS", "a number of days"))?,
        })
    }
}
