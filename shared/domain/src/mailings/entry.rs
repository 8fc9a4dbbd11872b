//! The states of a recipient and the attempts to send to it: as for any outbound message, sending is not leased, it is
//! recorded. `SENDING` is never claimed again; without an answer its only exit is `UNKNOWN`.

use crate::codes::codes;
use crate::delivery::{self, Again, Outcome, UnknownPolicy, Verdict};
use crate::time::Timestamp;

use super::mailing::MailingState;

codes! {
    EntryState {
        Pending = "PENDING",
        Sending = "SENDING",
        Sent = "SENT",
        Failed = "FAILED",
        /// A row of the file that is no recipient.
        Invalid = "INVALID",
        /// It may have been sent.
        Unknown = "UNKNOWN",
        Suppressed = "SUPPRESSED",
        Canceled = "CANCELED",
    }
}

impl EntryState {
    /// Nothing more happens to it by itself.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Pending | Self::Sending)
    }

    /// Whether a write may take it from here to `next`. Who may say so, and of which attempt, is the write's condition.
    pub fn may_become(self, next: Self) -> bool {
        use EntryState::{Canceled, Failed, Pending, Sending, Sent, Suppressed, Unknown};
        match self {
            Pending => matches!(next, Sending | Suppressed | Canceled),
            // Back to PENDING only when the attempt is known not to have been sent.
            Sending => matches!(next, Sent | Failed | Unknown | Pending),
            // An event tells what became of it, or an operator says to send it again.
            Unknown => matches!(next, Sent | Failed | Pending),
            // By `retry-failed`.
            Failed => next == Pending,
            Sent | Suppressed | Canceled | Self::Invalid => false,
        }
    }

    /// What an attempt leaves an entry in.
    pub fn after(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Sent { .. } => Self::Sent,
            Verdict::Failed { .. } | Verdict::Expired { .. } => Self::Failed,
            Verdict::Again { .. } => Self::Pending,
            Verdict::Unknown { .. } => Self::Unknown,
        }
    }
}

/// Where an entry stands, as its row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryProgress {
    pub state: EntryState,
    /// The number of the last attempt that was begun.
    pub attempt: u32,
    /// Attempts that do not count as tries: those that met a limit, and those before `retry-failed` or a resend.
    pub tries_from: u32,
    /// Of its next attempt.
    pub not_before: Option<Timestamp>,
    /// When its sender must have been heard of: the call's own timeout and a margin, written by the claim.
    pub settle_by: Option<Timestamp>,
}

/// What a sender does with an entry of its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryNext {
    /// Write `SENDING(attempt)`, conditional on the attempt before it, and then call.
    Claim {
        attempt: u32,
    },
    Wait {
        until: Timestamp,
    },
    /// Write `SUPPRESSED`, conditional on `PENDING`.
    Suppress,
    /// Write `CANCELED`, conditional on `PENDING`.
    Cancel,
    /// A call may be under way: look again then.
    InFlight {
        until: Timestamp,
    },
    /// Its sender was not heard of again: write `UNKNOWN`, conditional on `SENDING` of this attempt.
    Lost {
        attempt: u32,
    },
    /// The mailing is held, or the entry has ended.
    Leave,
}

/// `mailing` and `suppressed` are read consistently once for each sub-batch.
pub fn next_of_entry(entry: &EntryProgress, mailing: MailingState, suppressed: bool, now: Timestamp) -> EntryNext {
    match (entry.state, mailing) {
        (EntryState::Sending, _) => match entry.settle_by {
            Some(until) if until > now => EntryNext::InFlight { until },
            _ => EntryNext::Lost { attempt: entry.attempt },
        },
        // Of a file that proved bad nobody gets anything.
        (EntryState::Pending, MailingState::Canceled | MailingState::Failed) => EntryNext::Cancel,
        (EntryState::Pending, MailingState::Processing) if suppressed => EntryNext::Suppress,
        (EntryState::Pending, MailingState::Processing) => match entry.not_before {
            Some(until) if until > now => EntryNext::Wait { until },
            _ => EntryNext::Claim { attempt: entry.attempt + 1 },
        },
        _ => EntryNext::Leave,
    }
}

/// Judges the outcome of an entry's attempt by the rules of every other message. `jitter` is in thousandths.
///
/// An entry whose sender is held has no time of its own to wait for: its mailing pauses, and goes on when it is resumed.
pub fn settle_entry(entry: &EntryProgress, outcome: Outcome, now: Timestamp, jitter: u32) -> Verdict {
    if let Outcome::Held { why } = outcome {
        return Verdict::Again { why: Again::Throttled, code: why.as_str(), not_before: now };
    }
    let progress = delivery::Progress {
        state: delivery::State::Sending,
        attempt: entry.attempt,
        tries_from: entry.tries_from,
        send_at: None,
        not_after: None,
    };
    delivery::settle(&progress, outcome, UnknownPolicy::Hold, now, jitter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SendingHold;
    use crate::delivery::MAX_ATTEMPTS;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn entry(state: EntryState) -> EntryProgress {
        EntryProgress { state, attempt: 2, tries_from: 0, not_before: None, settle_by: None }
    }

    #[test]
    fn what_was_or_may_have_been_sent_is_not_sent_again_by_itself() {
        for from in EntryState::ALL.iter().copied() {
            assert_eq!(from.may_become(EntryState::Sending), from == EntryState::Pending, "{from}");
            assert!(!from.may_become(from) && !from.may_become(EntryState::Invalid), "{from}");
            let next = next_of_entry(&entry(from), MailingState::Processing, false, NOW);
            assert_eq!(next == EntryNext::Claim { attempt: 3 }, from == EntryState::Pending, "{from}");
        }
        for to in EntryState::ALL.iter().copied() {
            assert!(!EntryState::Sent.may_become(to), "{to}");
        }
    }

    #[test]
    fn a_sub_batch_honours_pause_cancel_and_suppression() {
        let next = |mailing, suppressed| next_of_entry(&entry(EntryState::Pending), mailing, suppressed, NOW);
        assert_eq!(next(MailingState::Paused, false), EntryNext::Leave);
        assert_eq!(next(MailingState::Canceled, true), EntryNext::Cancel);
        assert_eq!(next(MailingState::Failed, false), EntryNext::Cancel, "its file proved bad");
        assert_eq!(next(MailingState::Processing, true), EntryNext::Suppress);
        assert_eq!(next(MailingState::Queued, false), EntryNext::Leave, "nothing is sent before the mailing is begun");
    }

    #[test]
    fn a_sender_that_is_not_heard_of_leaves_an_unknown_and_not_before_its_time() {
        let next = |settle_by| {
            let entry = EntryProgress { settle_by, ..entry(EntryState::Sending) };
            next_of_entry(&entry, MailingState::Canceled, true, NOW)
        };
        let until = NOW.plus_ms(1);
        assert_eq!(next(Some(until)), EntryNext::InFlight { until });
        assert_eq!(next(Some(NOW)), EntryNext::Lost { attempt: 2 });
        assert_eq!(next(None), EntryNext::Lost { attempt: 2 });
    }

    #[test]
    fn an_entry_waits_for_its_next_attempt() {
        let until = NOW.plus_ms(1);
        let next = |not_before| {
            let entry = EntryProgress { not_before: Some(not_before), ..entry(EntryState::Pending) };
            next_of_entry(&entry, MailingState::Processing, false, NOW)
        };
        assert_eq!(next(until), EntryNext::Wait { until });
        assert_eq!(next(NOW), EntryNext::Claim { attempt: 3 });
    }

    #[test]
    fn an_entry_whose_sender_is_held_can_be_sent_as_soon_as_its_mailing_goes_on() {
        let verdict =
            settle_entry(&entry(EntryState::Sending), Outcome::Held { why: SendingHold::NotAuthorized }, NOW, 0);
        assert_eq!(verdict, Verdict::Again { why: Again::Throttled, code: "not_authorized", not_before: NOW });
    }

    #[test]
    fn an_outcome_leads_where_the_states_allow() {
        let transient = || Outcome::Transient { code: "not_connected" };
        let last = EntryProgress { attempt: MAX_ATTEMPTS, ..entry(EntryState::Sending) };
        for (entry, outcome, state) in [
            (entry(EntryState::Sending), Outcome::Sent { provider_id: "x".into() }, EntryState::Sent),
            (entry(EntryState::Sending), transient(), EntryState::Pending),
            (last, transient(), EntryState::Failed),
            (EntryProgress { tries_from: MAX_ATTEMPTS, ..last }, transient(), EntryState::Pending),
            (last, Outcome::Unknown { code: "timed_out" }, EntryState::Unknown),
            (last, Outcome::Permanent { code: "rejected", suppress: true }, EntryState::Failed),
            (last, Outcome::Held { why: SendingHold::SendingPaused }, EntryState::Pending),
        ] {
            let verdict = settle_entry(&entry, outcome, NOW, 500);
            assert_eq!(EntryState::after(&verdict), state, "{verdict:?}");
            assert!(EntryState::Sending.may_become(state));
        }
    }
}
