//! One attempt to deliver a message, an offer or a mailing to a recipient: the claim, the one call,
//! and the write of the outcome.
//!
//! The order gives the guarantee. The claim comes first: it detects a cancel, a closed gate or a
//! second sender. The call follows, once. A crash before the claim leaves the row queued. A crash
//! after the claim leaves it `SENDING`, and no other sender repeats the attempt.

mod claim;
mod once;

use umavez_domain::delivery::Settled;

use crate::store::Committed;

pub use claim::{Claimed, Tables};
pub use once::{Attempt, Parcel, deadline, deliver_once, sender_unknown};

impl<R> Committed<R, Settled<()>> {
    /// Returns the outcome of a rule that ends with [`Settled::into_next`].
    pub fn settled(self) -> Settled<R> {
        match self {
            Self::Done(row, _) => Settled::Now(row),
            Self::Stopped(_, Settled::Already) => Settled::Already,
            Self::Stopped(..) | Self::Gone => Settled::TooLate,
        }
    }
}
