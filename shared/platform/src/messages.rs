//! Messages on their way out: the Outbound table.
//!
//! Invariants. Every change of a message's row is computed by a rule of `umavez_domain::messages`
//! and committed on the row's version. Whatever a message waits for (its time, its sender, a
//! person) it is in the index by time, put there by the write that made it wait. A message that
//! ends without being sent releases its intent in the same transaction.

mod accept;
mod life;
mod resend;
mod table;

pub use accept::Accepted;
pub use life::{Applied, Canceled, Declared};
pub use resend::{Order, Resent};
pub use table::Messages;
