//! What is decided about an attempt when its outcome is known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::channels::Channel;
use crate::time::Timestamp;

/// What the outcome of an attempt comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Sent {
        provider_id: String,
    },
    Failed {
        code: &'static str,
        suppress: bool,
    },
    /// Queued again, to be tried no earlier than this.
    Again {
        why: Again,
        code: &'static str,
        not_before: Timestamp,
    },
    /// Too late for another try.
    Expired {
        code: &'static str,
    },
    Unknown {
        code: &'static str,
    },
}

impl Verdict {
    /// What a log says of it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Sent { .. } => "sent",
            Self::Failed { .. } => "failed",
            Self::Again { .. } => "again",
            Self::Expired { .. } => "expired",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// The reason, as a code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Sent { .. } => "sent",
            Self::Failed { code, .. } | Self::Again { code, .. } | Self::Expired { code } | Self::Unknown { code } => {
                code
            }
        }
    }
}

/// Why there is another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Known not to have been sent.
    Retry,
    /// A limit: known not to have been sent, and not the message's fault.
    Throttled,
    /// Nobody knows, and the channel's policy is to send it again rather than not at all.
    Policy,
}

/// What becomes of an attempt that nobody knows the end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownPolicy {
    /// It waits for an event or a person.
    #[default]
    Hold,
    Resend,
}

/// The policies of a deployment: `{"telegram": "resend"}`; a channel that is not named holds.
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
