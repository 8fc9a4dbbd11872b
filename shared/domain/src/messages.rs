//! Outbound messages: what a caller asks to send to one recipient over one channel.

pub mod explain;
mod identity;
pub mod ledger;
mod request;
mod row;

pub use identity::MessageId;
pub use request::{Asked, DEFAULT_SENDER, NewMessage, Unfit};
pub use row::*;
