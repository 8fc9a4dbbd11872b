//! Outbound messages: the rules of one way out for everything but mailings.
//!
//! Sending is not leased, it is recorded: the claim is the write `SENDING(attempt n)`, and outcomes are keyed by the attempt.
//! What may be written when is decided here; whoever loses the race is told by the row that won.

mod address;
mod attempt;
mod call;
pub mod content;
mod due;
pub mod evolution;
pub mod explain;
mod identity;
pub mod job;
pub mod ledger;
pub mod limiter;
pub mod markdown_v2;
pub mod message;
mod outcome;
pub mod rates;
mod request;
pub mod ses;
pub mod ses_events;
pub mod suppression;
pub mod telegram;
pub mod telegram_html;
pub mod wire;

pub use address::{Channel, brazilian_twin, is_group, normalize_to};
pub use attempt::{
    Again, Cancel, Next, Priority, Progress, State, UnknownPolicy, Verdict, cancel, next, read_policies, settle,
};
pub use call::HttpCall;
pub use content::{Content, read as read_content};
pub use due::{Due, LOOK_AHEAD_MS, due};
pub use identity::message_id;
pub use outcome::*;
pub use request::{Asked, DEFAULT_SENDER, NewMessage, Unfit};
