//! The states of a delivery.

use crate::codes::codes;

codes! {
    #[derive(Default)]
    State {
        /// To be sent, now or at its scheduled time.
        #[default]
        Queued = "QUEUED",
        /// An attempt is under way.
        Sending = "SENDING",
        /// The provider accepted it.
        Sent = "SENT",
        /// It was not sent and will not be sent, unless an operator orders it.
        Failed = "FAILED",
        /// An attempt may or may not have been sent.
        Unknown = "UNKNOWN",
        /// Not accepted: its intent was already sent, or is about to be sent.
        Deduped = "DEDUPED",
        /// An operator canceled it before it was sent.
        Canceled = "CANCELED",
        /// The address is on the suppression list.
        Suppressed = "SUPPRESSED",
        /// The delivery was not sent before its `not_after`.
        Expired = "EXPIRED",
    }
}

impl State {
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
