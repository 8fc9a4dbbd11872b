//! The states of a delivery.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// To be sent, now or at its time.
    #[default]
    Queued,
    /// An attempt is under way.
    Sending,
    Sent,
    Failed,
    /// An attempt may have been sent or not.
    Unknown,
    Deduped,
    Canceled,
    Suppressed,
    /// It was not sent before its `not_after`.
    Expired,
}

impl State {
    /// As it is stored, and as callers see it.
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

    /// Nothing more happens to it, unless an operator or proof from the provider says so.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Sending)
    }

    /// Ended without being sent: what was reserved for it is released in the same write. An
    /// `UNKNOWN` may have been sent, and keeps it.
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Failed | Self::Canceled | Self::Expired | Self::Suppressed)
    }
}
