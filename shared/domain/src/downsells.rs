//! Downsells: offers that follow a /start or a charge, wait for their time, and are sent only while
//! a charge is unpaid.
//!
//! An offer is one row. Pure functions of this row, of its contact's charges and of its downsell
//! decide every change. Each write is conditional: none of these may have changed since they were
//! read.

pub mod charges;
mod course;
mod definition;
mod offer;
mod passing;
mod schedule;
pub mod start;
pub mod views;
pub mod webhook;

pub use charges::{ChargeStatus, ChargesRow, TransactionRow};
pub use course::{End, GateState};
pub use definition::{DownsellRow, MOST_DOWNSELLS, NewDownsell, Rearm, Warning};
pub use offer::{ContactId, DeliveryView, OfferId, OfferRow, RefusedRow, SlotRow, Status, Trigger, Why};
pub use passing::Outdated;
pub use schedule::{Asked, Contact, Plan, Refused, Step, offer_of_charge, plan};
