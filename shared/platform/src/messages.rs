//! Outgoing messages: the Outbound table.
//!
//! Invariants. A rule of `umavez_domain::messages` computes every change of a message's row, and
//! the commit is conditional on the row's version. A message that waits (for its time, its sender
//! or an operator) is in the index by time; the write that makes it wait puts it there. A message
//! that ends without being sent releases its intent in the same transaction.

mod accept;
mod life;
mod resend;
mod table;

pub use accept::Accepted;
pub use life::Applied;
pub use resend::{Order, Resent};
pub use table::Messages;
