//! The outcome of one attempt. The policy depends on one question: is it known that nothing was
//! sent? That is known if the call failed before a byte left, on a 429, and on a 4xx that the
//! provider documents. Every other failure is `Unknown`, and only the channel's policy or an
//! operator repeats it.

use crate::channels::email::ses;
use crate::channels::telegram;
use crate::channels::whatsapp::evolution;
use crate::codes::{Reason, SendingHold, texts};
use crate::suppression;

/// The maximum number of attempts of one message, the first included. A `Transient` outcome of the
/// last attempt ends the message as failed.
pub const MAX_ATTEMPTS: u32 = 8;

/// The wait after a 429 that does not say how long to wait.
pub const DEFAULT_RETRY_AFTER_MS: i64 = 1_000;

/// The wait of a message whose sender is held or has no valid credential, before the next attempt.
pub const HELD_WAIT_MS: i64 = 5 * 60 * 1_000;

const LONGEST_RETRY_AFTER_MS: i64 = 7 * 86_400 * 1_000;

const FIRST_BACKOFF_MS: i64 = 2_000;
const MAX_BACKOFF_MS: i64 = 300_000;

/// The outcome of one attempt after the call to the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message under the id `provider_id`.
    Sent { provider_id: String },
    /// Not sent, and the provider would refuse the same call again. `suppress`: it would also
    /// refuse any other message to this address.
    Permanent { code: &'static str, suppress: bool },
    /// Not sent; a later attempt may succeed.
    Transient { code: &'static str },
    /// Not sent. The sender has no credential, or the provider refuses it. The message is not at
    /// fault: it waits until an operator has fixed the credential.
    Unauthorized { code: &'static str },
    /// Not sent. Nothing is sent in this scope until the wait is over.
    Throttled { retry_after_ms: i64, scope: ThrottleScope },
    /// Not sent. The rate slot of the attempt was over before the call could begin, and there was
    /// no other one within reach.
    NoSlot { wait_ms: i64 },
    /// Not sent. The provider refuses all mail of this sender until an operator fixes the account
    /// or the identity.
    Held { why: SendingHold },
    /// It may or may not have been sent.
    Unknown { code: &'static str },
}

/// The scope of a 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleScope {
    /// Everything sent with the same credentials.
    Bot,
    /// Everything sent to the same address.
    Chat,
}

/// The reason why a call has no readable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFailure {
    /// The call failed before a byte left: DNS, connection or TLS.
    NotConnected,
    /// No answer arrived before the timeout.
    TimedOut,
    /// The connection broke after bytes had left.
    Broken,
    /// An answer arrived, but its body could not be read to the end.
    Unreadable,
}

texts! {
    /// The outcome codes that all providers share. Each provider's module has its own codes.
    code {
        /// The provider could not be reached; nothing was sent.
        NOT_CONNECTED = "provider_not_connected",
        /// The provider did not answer in time.
        TIMED_OUT = "provider_timed_out",
        /// The connection broke after bytes had left.
        BROKEN = "provider_connection_broken",
        /// The answer could not be read to its end.
        UNREADABLE = "provider_answer_unreadable",
        /// A 5xx.
        SERVER_ERROR = "provider_server_error",
        /// A status that the provider does not document for this call.
        UNEXPECTED = "provider_answer_unexpected",
        /// The provider refused the request for a reason that has no code of its own.
        REJECTED = "provider_rejected",
        /// The provider refuses the media.
        MEDIA_REJECTED = "media_rejected",
        /// The provider asked to wait.
        THROTTLED = "throttled",
        /// The sender that the message names has no credentials.
        SENDER_UNKNOWN = "sender_unknown",
        /// The attempt began and ended before the provider was called.
        NOT_CALLED = "provider_not_called",
        /// The address of the channel's provider is not configured.
        NOT_CONFIGURED = "channel_not_configured",
        /// The content of the message has expired: the message was queued for longer than its
        /// content is kept.
        CONTENT_GONE = "content_gone",
        /// With the recipient's own values filled in, the content is larger than a mail may be.
        TOO_LARGE = "content_too_large",
        /// The sender did not report an outcome in time.
        SENDER_LOST = "sender_lost",
    }
}

/// Returns the closed list of reasons for the state of a message.
pub fn reason_codes() -> Vec<&'static str> {
    let providers = [telegram::code::ALL, evolution::code::ALL, ses::code::ALL].concat();
    let holds: Vec<_> = SendingHold::ALL.iter().map(|why| why.as_str()).collect();
    [&[Reason::IntentDuplicate.as_str()], code::ALL, &providers, &holds, suppression::reason::ALL].concat()
}

/// Returns the outcome of a call without a readable answer.
pub fn of_failure(failure: CallFailure) -> Outcome {
    match failure {
        CallFailure::NotConnected => Outcome::Transient { code: code::NOT_CONNECTED },
        CallFailure::TimedOut => Outcome::Unknown { code: code::TIMED_OUT },
        CallFailure::Broken => Outcome::Unknown { code: code::BROKEN },
        CallFailure::Unreadable => Outcome::Unknown { code: code::UNREADABLE },
    }
}

/// Returns the wait after attempt `attempt` (from 1) ended `Transient`: 2 s, doubled each time, at
/// most 5 min. `jitter` (permille; more than 1000 counts as 1000) scales the second half of the
/// wait.
pub fn backoff_ms(attempt: u32, jitter: u32) -> i64 {
    // Eight doublings exceed the cap, so the shift cannot overflow.
    let full = (FIRST_BACKOFF_MS << attempt.saturating_sub(1).min(8)).min(MAX_BACKOFF_MS);
    let half = full / 2;
    half + half * i64::from(jitter.min(1000)) / 1000
}

/// Returns the wait that a 429 asks for, even if it is an hour. A wait of more than a week cannot
/// be right, so it is cut to a week.
pub(crate) fn retry_after_ms(seconds: Option<i64>) -> i64 {
    let seconds = seconds.filter(|seconds| *seconds > 0);
    seconds.map_or(DEFAULT_RETRY_AFTER_MS, |seconds| seconds.saturating_mul(1_000).min(LONGEST_RETRY_AFTER_MS))
}

/// Returns the outcome of a status whose body adds no information.
pub(crate) fn of_unexpected(status: u16) -> Outcome {
    Outcome::Unknown { code: if status >= 500 { code::SERVER_ERROR } else { code::UNEXPECTED } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_never_connected_was_surely_not_sent() {
        assert_eq!(of_failure(CallFailure::NotConnected), Outcome::Transient { code: "provider_not_connected" });
        for failure in [CallFailure::TimedOut, CallFailure::Broken, CallFailure::Unreadable] {
            assert!(matches!(of_failure(failure), Outcome::Unknown { .. }), "{failure:?}");
        }
    }

    #[test]
    fn backoff_doubles_from_two_seconds_to_five_minutes() {
        let waits: Vec<_> = (1..=10).map(|attempt| backoff_ms(attempt, 1000)).collect();
        assert_eq!(
            waits,
            [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000],
            "full jitter is the full wait"
        );
    }

    #[test]
    fn jitter_keeps_the_wait_between_half_and_all_of_the_backoff() {
        assert_eq!(backoff_ms(3, 0), 4_000);
        assert_eq!(backoff_ms(3, 500), 6_000);
        assert_eq!(backoff_ms(3, 1000), 8_000);
        assert_eq!(backoff_ms(3, u32::MAX), 8_000);
    }

    #[test]
    fn backoff_stays_within_its_limits_for_any_attempt_number() {
        assert_eq!(backoff_ms(0, 1000), 2_000);
        assert_eq!(backoff_ms(u32::MAX, 1000), 300_000);
    }

    #[test]
    fn a_retry_after_is_honoured_and_an_invalid_one_is_replaced_by_the_default() {
        assert_eq!(retry_after_ms(Some(3_600)), 3_600_000);
        assert_eq!(retry_after_ms(Some(i64::MAX)), 7 * 86_400_000);
        for nonsense in [None, Some(0), Some(-5)] {
            assert_eq!(retry_after_ms(nonsense), DEFAULT_RETRY_AFTER_MS);
        }
    }

    #[test]
    fn the_reason_codes_are_distinct_and_come_from_every_source() {
        let all = reason_codes();
        for code in [
            "intent_duplicate",
            "sender_lost",
            "bot_blocked",
            "not_on_whatsapp",
            "message_rejected",
            "sending_paused",
            "hard_bounce",
        ] {
            assert!(all.contains(&code), "{code}");
        }
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }
}
