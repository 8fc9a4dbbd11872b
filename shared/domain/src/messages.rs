//! Outbound messages: requests of callers to send something to one recipient over one channel.

pub mod explain;
mod identity;
pub mod ledger;
mod life;
mod request;
mod row;
mod views;

pub use identity::MessageId;
pub use request::{DEFAULT_SENDER, InvalidMessage, NewMessage, RequestIdentity};
pub use row::{ContentRow, Deduped, INLINE_CONTENT, IntentRef, MessageRow, Resend, Then};
pub use views::AcceptAnswer;
