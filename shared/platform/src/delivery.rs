//! One attempt to deliver something, the same for messages, offers and recipients of mailings: the
//! claim, the one call, and its outcome.
//!
//! The order is the promise. The claim comes first: it is where a cancel, a closed gate and a
//! second sender are met. Then the call, once. A crash before the claim leaves the row queued, and
//! after it leaves it `SENDING`, which nobody repeats.

mod claim;
mod once;

pub use claim::{Claimed, Tables};
pub use once::{Attempt, Parcel, deadline, deliver_once, sender_unknown};
