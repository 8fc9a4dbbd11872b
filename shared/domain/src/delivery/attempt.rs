//! The states of a message and the attempts to send it.
//!
//! `QUEUED → SENDING(n) → SENT | FAILED | UNKNOWN(n)`, or back to `QUEUED` when attempt n is known not to have been sent.
//! `SENDING` is never claimed again: without an answer its only exit is `UNKNOWN(n)`, once the call's own timeout plus a
//! margin has passed. `SENT(n)` is accepted from `SENDING(n)` and `UNKNOWN(n)`, from whoever knows first. A message that is
//! canceled while it is `SENDING(n)` is recalled: there is no attempt n+1, unless an operator orders to send it again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::channels::Channel;
use crate::delivery::{HELD_WAIT_MS, MAX_ATTEMPTS, Outcome, backoff_ms, code};
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    Queued,
    Sending,
    Sent,
    Failed,
    Unknown,
    Deduped,
    Canceled,
    Suppressed,
    Expired,
}

impl State {
    /// Nothing more happens to it, unless an operator or an event about an earlier attempt says so.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Sending)
    }

    /// Ended without being sent: its intent is given back in the same write. An `UNKNOWN` may have been sent, and keeps it.
    pub fn releases_intent(self) -> bool {
        matches!(self, Self::Failed | Self::Canceled | Self::Expired | Self::Suppressed)
    }

    /// What a message can end as, of which an earlier attempt may have been sent: that it was not, nobody can say.
    pub fn in_doubt(self, doubt: Option<u32>) -> Self {
        if doubt.is_some() && self.releases_intent() { Self::Unknown } else { self }
    }
}

/// Where a message stands, as its row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub state: State,
    /// The number of the last attempt that was begun.
    pub attempt: u32,
    /// Attempts that do not count as tries: those that met a limit, and those before an order to send it again.
    pub tries_from: u32,
    /// Not sent before: its own time, or that of its next attempt.
    pub send_at: Option<Timestamp>,
    /// Not sent after.
    pub not_after: Option<Timestamp>,
}

/// What a sender does with a message that it was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Write `SENDING(attempt)`, conditional on the attempt before it, and then call.
    Claim { attempt: u32 },
    /// It is early: leave it hidden until then.
    Wait { until: Timestamp },
    /// Too late to be sent: end it as `EXPIRED`.
    Expire,
    /// Somebody else has it, or it has ended.
    Leave,
}

pub fn next(progress: &Progress, now: Timestamp) -> Next {
    if progress.state != State::Queued {
        return Next::Leave;
    }
    if progress.not_after.is_some_and(|not_after| not_after < now) {
        return Next::Expire;
    }
    match progress.send_at {
        Some(until) if until > now => Next::Wait { until },
        _ => Next::Claim { attempt: progress.attempt + 1 },
    }
}

/// What is written after attempt n, conditional on `SENDING(n)`; a `Sent` also on `UNKNOWN(n)`.
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

impl Again {
    /// How a message ends instead, if it was canceled while the attempt was under way.
    pub fn when_recalled(self) -> State {
        match self {
            Self::Retry | Self::Throttled => State::Canceled,
            // It may have been sent.
            Self::Policy => State::Unknown,
        }
    }
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

/// Judges the outcome of an attempt. `jitter` is in thousandths, from whoever has dice.
pub fn settle(progress: &Progress, outcome: Outcome, policy: UnknownPolicy, now: Timestamp, jitter: u32) -> Verdict {
    let tries = progress.attempt.saturating_sub(progress.tries_from);
    let again = |why: Again, code: &'static str, wait_ms: i64| {
        let not_before = now.plus_ms(wait_ms);
        if progress.not_after.is_some_and(|not_after| not_after < not_before) {
            Verdict::Expired { code }
        } else {
            Verdict::Again { why, code, not_before }
        }
    };
    match outcome {
        Outcome::Sent { provider_id } => Verdict::Sent { provider_id },
        Outcome::Permanent { code, suppress } => Verdict::Failed { code, suppress },
        Outcome::Unknown { code } if policy == UnknownPolicy::Resend && tries < MAX_ATTEMPTS => {
            match again(Again::Policy, code, backoff_ms(tries, jitter)) {
                // Too late to be sent again, but it may have been sent.
                Verdict::Expired { code } => Verdict::Unknown { code },
                verdict => verdict,
            }
        }
        Outcome::Unknown { code } => Verdict::Unknown { code },
        // A limit is not the message's fault: it does not use up its attempts, and is honoured however long it is.
        Outcome::Throttled { retry_after_ms, .. } => again(Again::Throttled, code::THROTTLED, retry_after_ms),
        // A hold on the sender does not use up the message's attempts either.
        Outcome::Held { why } => again(Again::Throttled, why.as_str(), HELD_WAIT_MS),
        Outcome::Transient { code } if tries >= MAX_ATTEMPTS => Verdict::Failed { code, suppress: false },
        Outcome::Transient { code } => again(Again::Retry, code, backoff_ms(tries, jitter)),
    }
}

/// What a request to cancel can still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// Write `CANCELED`, conditional on `QUEUED`.
    Now,
    Already,
    /// An attempt is under way, or its outcome is unknown. An attempt under way is recalled: write that it is the last one.
    InFlight,
    AlreadySent,
    /// It ended without being sent.
    Ended,
}

pub fn cancel(state: State) -> Cancel {
    match state {
        State::Queued => Cancel::Now,
        State::Canceled => Cancel::Already,
        State::Sending | State::Unknown => Cancel::InFlight,
        State::Sent => Cancel::AlreadySent,
        State::Failed | State::Deduped | State::Suppressed | State::Expired => Cancel::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SendingHold;
    use crate::delivery::ThrottleScope;

    const HOLD: UnknownPolicy = UnknownPolicy::Hold;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_000_000)
    }

    fn queued() -> Progress {
        Progress { state: State::Queued, attempt: 0, tries_from: 0, send_at: None, not_after: None }
    }

    #[test]
    fn only_a_queued_message_is_claimed_and_each_claim_is_the_next_attempt() {
        assert_eq!(next(&queued(), now()), Next::Claim { attempt: 1 });
        assert_eq!(next(&Progress { attempt: 3, ..queued() }, now()), Next::Claim { attempt: 4 });
        for state in [State::Sending, State::Sent, State::Failed, State::Unknown, State::Deduped, State::Canceled] {
            assert_eq!(next(&Progress { state, ..queued() }, now()), Next::Leave, "{state:?}");
        }
    }

    #[test]
    fn a_message_is_neither_early_nor_late() {
        let until = now().plus_ms(1);
        assert_eq!(next(&Progress { send_at: Some(until), ..queued() }, now()), Next::Wait { until });
        assert_eq!(next(&Progress { send_at: Some(now()), ..queued() }, now()), Next::Claim { attempt: 1 });
        assert_eq!(next(&Progress { not_after: Some(now().plus_ms(-1)), ..queued() }, now()), Next::Expire);
        assert_eq!(next(&Progress { not_after: Some(now()), ..queued() }, now()), Next::Claim { attempt: 1 });
    }

    #[test]
    fn what_may_have_been_sent_is_never_tried_again_by_itself() {
        let sending = Progress { state: State::Sending, attempt: 1, ..queued() };
        let unknown = settle(&sending, Outcome::Unknown { code: "timed_out" }, HOLD, now(), 0);
        assert_eq!(unknown, Verdict::Unknown { code: "timed_out" });
        assert!(!State::Unknown.releases_intent(), "it may have been sent");
    }

    #[test]
    fn a_transient_failure_is_tried_again_a_bounded_number_of_times() {
        let transient = || Outcome::Transient { code: "not_connected" };
        for attempt in 1..MAX_ATTEMPTS {
            let verdict =
                settle(&Progress { state: State::Sending, attempt, ..queued() }, transient(), HOLD, now(), 500);
            assert!(matches!(verdict, Verdict::Again { not_before, .. } if not_before > now()), "{attempt}");
        }
        let last = Progress { state: State::Sending, attempt: MAX_ATTEMPTS, ..queued() };
        let failed = Verdict::Failed { code: "not_connected", suppress: false };
        assert_eq!(settle(&last, transient(), HOLD, now(), 500), failed);
    }

    #[test]
    fn a_limit_is_honoured_exactly_and_costs_no_attempt() {
        let hour = 3_600_000;
        let throttled = || Outcome::Throttled { retry_after_ms: hour, scope: ThrottleScope::Bot };
        let last = Progress { state: State::Sending, attempt: MAX_ATTEMPTS, ..queued() };
        let again = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: now().plus_ms(hour) };
        assert_eq!(settle(&last, throttled(), HOLD, now(), 0), again);
        let impatient = Progress { not_after: Some(now().plus_ms(hour - 1)), ..last };
        assert_eq!(settle(&impatient, throttled(), HOLD, now(), 0), Verdict::Expired { code: "throttled" });
    }

    #[test]
    fn a_message_whose_sender_is_held_waits_by_name_and_uses_up_no_attempt() {
        let held = || Outcome::Held { why: SendingHold::SendingPaused };
        let last = Progress { state: State::Sending, attempt: MAX_ATTEMPTS, ..queued() };
        let not_before = now().plus_ms(HELD_WAIT_MS);
        let again = Verdict::Again { why: Again::Throttled, code: "sending_paused", not_before };
        assert_eq!(settle(&last, held(), HOLD, now(), 0), again);
        let impatient = Progress { not_after: Some(now()), ..last };
        assert_eq!(settle(&impatient, held(), HOLD, now(), 0), Verdict::Expired { code: "sending_paused" });
    }

    #[test]
    fn tries_are_counted_from_the_last_order_to_send_it_again() {
        let resent =
            Progress { state: State::Sending, attempt: MAX_ATTEMPTS + 1, tries_from: MAX_ATTEMPTS, ..queued() };
        let verdict = settle(&resent, Outcome::Transient { code: "not_connected" }, HOLD, now(), 1000);
        let again = Verdict::Again { why: Again::Retry, code: "not_connected", not_before: now().plus_ms(2_000) };
        assert_eq!(verdict, again);
    }

    #[test]
    fn an_unknown_is_sent_again_only_by_policy_and_not_for_ever() {
        let unknown = || Outcome::Unknown { code: "timed_out" };
        let sending = Progress { state: State::Sending, attempt: 1, ..queued() };
        let verdict = settle(&sending, unknown(), UnknownPolicy::Resend, now(), 1000);
        let again = Verdict::Again { why: Again::Policy, code: "timed_out", not_before: now().plus_ms(2_000) };
        assert_eq!(verdict, again);
        let held = Verdict::Unknown { code: "timed_out" };
        let last = Progress { attempt: MAX_ATTEMPTS, ..sending };
        assert_eq!(settle(&last, unknown(), UnknownPolicy::Resend, now(), 0), held);
        let late = Progress { not_after: Some(now()), ..sending };
        assert_eq!(settle(&late, unknown(), UnknownPolicy::Resend, now(), 0), held, "it may have been sent");
    }

    #[test]
    fn what_may_have_been_sent_does_not_end_as_unsent() {
        for state in [State::Failed, State::Canceled, State::Expired, State::Suppressed] {
            assert_eq!((state.in_doubt(Some(1)), state.in_doubt(None)), (State::Unknown, state));
        }
        assert_eq!(State::Sent.in_doubt(Some(1)), State::Sent);
    }

    #[test]
    fn a_recalled_message_is_not_tried_again() {
        for why in [Again::Retry, Again::Throttled] {
            assert_eq!(why.when_recalled(), State::Canceled, "known not to have been sent");
        }
        assert_eq!(Again::Policy.when_recalled(), State::Unknown, "it may have been sent");
    }

    #[test]
    fn policies_are_read_by_channel() {
        let policies = read_policies(r#"{"telegram": "resend"}"#).expect("policies");
        assert_eq!(policies.get(&Channel::Telegram), Some(&UnknownPolicy::Resend));
        assert!(read_policies(r#"{"telegram": "maybe"}"#).is_err());
    }

    #[test]
    fn a_cancel_tells_the_truth() {
        let told: Vec<_> = [State::Queued, State::Sending, State::Unknown, State::Sent, State::Canceled, State::Failed]
            .into_iter()
            .map(cancel)
            .collect();
        use Cancel::{Already, AlreadySent, Ended, InFlight, Now};
        assert_eq!(told, [Now, InFlight, InFlight, AlreadySent, Already, Ended]);
    }
}
