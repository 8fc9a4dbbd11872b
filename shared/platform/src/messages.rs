//! Messages on their way out: the Outbound table.
//!
//! Invariants. A message's row has one state, and every change of it is conditional on the state that it leaves. Attempt n
//! is begun by one writer, because `SENDING(n)` is written only over `QUEUED(n-1)`; outcomes name their attempt. Whatever a
//! message waits for (its time, its sender, a person) it is in the index by time, put there by the write that made it wait.
//! A message that ends without being sent gives its intent back in the same transaction.

mod accept;
mod attempts;
mod change;
mod events;
mod orders;
mod table;
mod waiting;

pub use accept::Accepted;
pub use attempts::{Claimed, Settled};
pub use events::Applied;
pub use orders::{Canceled, Declared, Order, Resent};
pub use table::Messages;
pub use waiting::Woken;
