//! The states of a delivery.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// To be sent, now or at its scheduled time.
    #[default]
    Queued,
    /// An attempt is under way.
    Sending,
    Sent,
    Failed,
    /// An attempt may or may not have been sent.
    Unknown,
    Deduped,
    Canceled,
    Suppressed,
    /// The delivery was not sent before its `not_after`.
    Expired,
}

impl State {
    /// Returns the text that is stored and that callers see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Sending => "SENDING",
            Self::Sent => "SENT",
            Self::Failed => "FAILED",
            Self::Unknown => "UNKNOWN",
            Self::Deduped => "DEDUPED",
            Self::Canceled => "CANCELED",
            Self::Suppressed => "SUPPRESSED",
            Self::Expired => "EXPIRED",
        }
    }

    /// Returns whether the state is final, unless an operator or proof from the provider changes
    /// it.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Sending)
    }

    /// Returns whether the delivery ended without being sent. The write that ends it also releases
    /// everything that was reserved for it. An `UNKNOWN` delivery may have been sent, so it keeps
    /// its reservation.
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Failed | Self::Canceled | Self::Expired | Self::Suppressed)
    }
}
