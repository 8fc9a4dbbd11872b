//! The decision about an attempt after its outcome is known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::channels::Channel;
use crate::time::Timestamp;

/// The decision that follows from the outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Sent {
        provider_id: String,
    },
    Failed {
        code: &'static str,
        suppress: bool,
    },
    /// Queued again. The next attempt begins no earlier than `not_before`.
    Again {
        why: Again,
        code: &'static str,
        not_before: Timestamp,
    },
    /// It is too late for another attempt.
    Expired {
        code: &'static str,
    },
    Unknown {
        code: &'static str,
    },
}

impl Verdict {
    /// Returns the word for logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Sent { .. } => "sent",
            Self::Failed { .. } => "failed",
            Self::Again { .. } => "again",
            Self::Expired { .. } => "expired",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns the reason as a code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Sent { .. } => "sent",
            Self::Failed { code, .. } | Self::Again { code, .. } | Self::Expired { code } | Self::Unknown { code } => {
                code
            }
        }
    }
}

/// The reason for another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The attempt is known not to have been sent.
    Retry,
    /// A rate limit: the attempt is known not to have been sent, and the message did not cause it.
    Throttled,
    /// It is unknown whether the attempt was sent, and the channel's policy prefers a duplicate to
    /// a lost message.
    Policy,
}

/// The policy for an attempt whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownPolicy {
    /// The message waits for an event or an operator.
    #[default]
    Hold,
    Resend,
}

/// Parses the policies of a deployment: `{"telegram": "resend"}`. A channel that is not listed has
/// the policy `hold`.
pub fn read_policies(options: &str) -> Result<BTreeMap<Channel, UnknownPolicy>, PoliciesError> {
    Ok(serde_json::from_str(options)?)
}

#[derive(Debug, thiserror::Error)]
#[error("not a JSON object of channels with `hold` or `resend`: {0}")]
pub struct PoliciesError(#[from] serde_json::Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_by_channel() {
        let policies = read_policies(r#"{"telegram": "resend"}"#).expect("policies");
        assert_eq!(policies.get(&Channel::Telegram), Some(&UnknownPolicy::Resend));
        assert!(read_policies(r#"{"telegram": "maybe"}"#).is_err());
    }
}
