//! The delivery of a message, an offer or a mailing's recipient to a provider.
//!
//! `QUEUED → SENDING(n) → SENT | FAILED | UNKNOWN`, or back to `QUEUED` if attempt n is known not
//! to have been sent. A sender does not lease a delivery; it records the attempt. The write of
//! `SENDING(n)` over `QUEUED(n-1)` begins attempt n, and the outcome names the attempt. No sender
//! begins an attempt again that is `SENDING`. Without an answer, its only exit is `UNKNOWN`, after
//! the call's own timeout and a margin.
//!
//! [`Delivery`] is embedded in the row of each of the three. No other code changes the state of a
//! delivery.
//!
//! - "Sent" counts from every source and at any time: the sender, an event of the provider, our own
//!   echo.
//! - While an attempt may have been sent, the delivery cannot end as one that was not sent.
//! - A cancel during an attempt is a recall: no further attempt follows, unless an operator orders
//!   a resend.

mod events;
mod outcome;
mod state;
mod transitions;
mod verdict;

pub use events::{EventEffect, Marks};
pub use outcome::*;
pub use state::State;
pub use transitions::{Cancel, Claim, Delivered, Delivery, Gate, NextStep, Recovery, Settled, Window};
pub use verdict::{Again, UnknownPolicy, Verdict, read_policies};
