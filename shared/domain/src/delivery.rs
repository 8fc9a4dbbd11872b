//! The life of one thing on its way to a provider: a message, an offer, or a mailing's recipient.
//!
//! `QUEUED → SENDING(n) → SENT | FAILED | UNKNOWN`, or back to `QUEUED` when attempt n is known not
//! to have been sent. Sending is not leased, it is recorded: attempt n is begun by the write
//! `SENDING(n)` over `QUEUED(n-1)`, and its outcome names the attempt. `SENDING` is never begun
//! again; without an answer its only exit is `UNKNOWN`, once the call's own timeout and a margin
//! have passed.
//!
//! [`Delivery`] is embedded in the row of each of the three, and its transitions are the only ones
//! there are.
//!
//! - "Sent" is true whoever says it and whenever: the sender, an event of the provider, our own
//!   echo.
//! - While an attempt may have been sent, the delivery cannot end as one that was not.
//! - A cancel during an attempt is a recall: there is no further attempt, unless an operator orders
//!   to send it again.

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
