//! Downsells: offers that follow a /start or a charge, wait for their time, and are sent only while
//! a charge is unpaid.
//!
//! An offer is one row. Pure functions of this row, of its contact's charges and of its downsell
//! decide every change. Each write is conditional: none of these may have changed since they were
//! read.

pub mod charges;
mod definition;
mod offer;
mod passing;
mod schedule;
pub mod start;
mod transitions;
pub mod views;
pub mod webhook;

pub use charges::{ChargeStatus, ChargesRow, TransactionRow};
pub use definition::{DownsellRow, MOST_DOWNSELLS, Rearm, Warning};
pub use offer::{
    CancelReason, ContactId, DeliveryView, OfferId, OfferRow, OfferStatus, RefusedRow, SlotEnd, SlotRow, Trigger,
};
pub use passing::ClosedGate;
pub use schedule::{Contact, Plan, PlanStep, Refused, TriggerEvent, offer_of_charge, plan};
pub use transitions::OfferEnd;
