//! A recipient of a mailing: its states as callers see them, and its delivery.

use super::mailing::MailingState;
use super::rows::MailingEntryRow;
use crate::channels::email::ses_events::SesEvent;
use crate::codes::codes;
use crate::delivery::{
    Again, Claim, Delivery, NextStep, Outcome, Settled, State, UnknownPolicy, Verdict, Window, code,
};
use crate::time::Timestamp;

codes! {
    #[derive(Default)]
    EntryState {
        /// To be sent.
        #[default]
        Pending = "PENDING",
        /// An attempt is under way.
        Sending = "SENDING",
        /// The provider accepted it.
        Sent = "SENT",
        /// It was not sent and will not be sent, unless an operator orders it.
        Failed = "FAILED",
        /// A row of the file that is not a valid recipient.
        Invalid = "INVALID",
        /// The attempt may or may not have been sent.
        Unknown = "UNKNOWN",
        /// The address is on the suppression list, or unsubscribed from the list.
        Suppressed = "SUPPRESSED",
        /// Its mailing was canceled before it was sent, or the file of the mailing cannot be read.
        Canceled = "CANCELED",
    }
}

impl EntryState {
    /// Returns whether the entry changes no more without an order or an event.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Pending | Self::Sending)
    }

    /// Returns the text that is stored for this state, in a recipient's row or in that of an
    /// invalid line.
    pub fn stored(self) -> &'static str {
        match self {
            Self::Pending => State::Queued.as_str(),
            state => state.as_str(),
        }
    }

    pub fn of_stored(text: &str) -> Option<Self> {
        if text == State::Queued.as_str() { Some(Self::Pending) } else { Self::parse(text) }
    }
}

impl From<State> for EntryState {
    fn from(state: State) -> Self {
        match state {
            State::Queued => Self::Pending,
            State::Sending => Self::Sending,
            State::Sent => Self::Sent,
            State::Unknown => Self::Unknown,
            State::Suppressed => Self::Suppressed,
            State::Canceled => Self::Canceled,
            State::Failed | State::Expired | State::Deduped => Self::Failed,
        }
    }
}

/// What a worker does with an entry of its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryNext {
    /// Begin this attempt, then call the provider.
    Claim {
        attempt: u32,
    },
    Wait {
        until: Timestamp,
    },
    Suppress,
    Cancel,
    /// A call may be under way: check again at `until`.
    InFlight {
        until: Timestamp,
    },
    /// The worker did not report the outcome in time: the attempt becomes unknown.
    Lost,
    /// The mailing is paused or not sending, or the entry is settled: do nothing.
    Leave,
}

/// Decides what to do with an entry. The caller reads the gates (the mailing's state, and whether
/// the address is suppressed) consistently once per sub-batch.
pub fn next_of_entry(entry: &Delivery, mailing: MailingState, suppressed: bool, now: Timestamp) -> EntryNext {
    match (entry.state, mailing) {
        (State::Sending, _) if entry.is_lost(now) => EntryNext::Lost,
        (State::Sending, _) => EntryNext::InFlight { until: entry.deadline.map_or(now, Timestamp::from_millis) },
        // A file that proved unreadable is sent to no recipient.
        (State::Queued, MailingState::Canceled | MailingState::Failed) => EntryNext::Cancel,
        (State::Queued, MailingState::Processing) if suppressed => EntryNext::Suppress,
        (State::Queued, MailingState::Processing) => match entry.next(Window::default(), now) {
            NextStep::Claim { attempt } => EntryNext::Claim { attempt },
            NextStep::Wait { until } => EntryNext::Wait { until },
            NextStep::Expire | NextStep::Leave => EntryNext::Leave,
        },
        _ => EntryNext::Leave,
    }
}

impl MailingEntryRow {
    pub fn state(&self) -> EntryState {
        self.delivery.state.into()
    }

    /// Begins an attempt. `order` is the latest retry order; it does not apply to this attempt.
    pub fn claimed(&self, claim: &Claim, order: u32, now: Timestamp) -> Option<Self> {
        let delivery = self.delivery.claimed(claim)?;
        Some(Self { delivery, retried: order, last_attempt: Some(now), ..self.clone() })
    }

    /// Judges the outcome of the attempt under way. `jitter` is in thousandths.
    ///
    /// An entry whose sender is held gets no retry time of its own: its mailing pauses, and the
    /// entry continues when the mailing is resumed.
    pub fn verdict(&self, outcome: Outcome, now: Timestamp, jitter: u32) -> Verdict {
        match outcome {
            Outcome::Held { why } => Verdict::Again { why: Again::Throttled, code: why.as_str(), not_before: now },
            outcome => self.delivery.verdict(Window::default(), outcome, UnknownPolicy::Hold, now, jitter),
        }
    }

    /// Settles the attempt with number `attempt`.
    pub fn settled(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.delivery.settled(attempt, verdict, now).map(|delivery| Self { delivery, ..self.clone() })
    }

    /// Ends an entry without sending it. `None` if the entry is not pending.
    pub fn ended(&self, state: State, reason: &str) -> Option<Self> {
        let delivery = self.delivery.ended(state, Some(reason))?;
        Some(Self { delivery, ..self.clone() })
    }

    /// Marks an attempt unknown whose worker did not report in time. `None` if the attempt is not
    /// lost. `order` does not apply to it, as in [`Self::claimed`].
    pub fn lost(&self, order: u32, now: Timestamp) -> Option<Self> {
        let unknown = Verdict::Unknown { code: code::SENDER_LOST };
        let lost = self.delivery.is_lost(now).then(|| self.settled(self.delivery.attempt, &unknown, now));
        match lost {
            Some(Settled::Now(row)) => Some(Self { retried: order, ..row }),
            _ => None,
        }
    }

    /// Makes a failed or unknown entry pending again, as a retry order asks. `None` if it is
    /// neither.
    pub fn sent_again(&self, order: u32) -> Option<Self> {
        let mut row = Self { delivery: self.delivery.resent()?, retried: order, ..self.clone() };
        // The rejection was of an earlier attempt.
        row.marks.rejected_at = None;
        Some(row)
    }

    /// Applies an event about `attempt`. Returns the changed row and whether its state changed;
    /// `None` if the event says nothing new.
    pub fn of_event(&self, event: &SesEvent, attempt: u32) -> Option<(Self, bool)> {
        let effect = self.delivery.of_event(self.marks, event, attempt)?;
        Some((Self { delivery: effect.delivery, marks: effect.marks, ..self.clone() }, effect.reconciled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SendingHold;
    use crate::delivery::MAX_ATTEMPTS;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn delivery(state: State) -> Delivery {
        Delivery { state, attempt: 2, ..Delivery::default() }
    }

    fn entry(state: State, attempt: u32) -> MailingEntryRow {
        let (pk, sk, email) = ("p".into(), "s".into(), "a@example.com".into());
        let delivery = Delivery { state, attempt, ..Delivery::default() };
        MailingEntryRow {
            pk,
            sk,
            email,
            line: 1,
            variables: Default::default(),
            delivery,
            marks: Default::default(),
            retried: 0,
            last_attempt: None,
        }
    }

    #[test]
    fn the_next_step_of_an_entry_follows_pause_cancel_and_suppression() {
        let next = |mailing, suppressed| next_of_entry(&delivery(State::Queued), mailing, suppressed, NOW);
        assert_eq!(next(MailingState::Paused, false), EntryNext::Leave);
        assert_eq!(next(MailingState::Canceled, true), EntryNext::Cancel);
        assert_eq!(next(MailingState::Failed, false), EntryNext::Cancel, "the file of the mailing is invalid");
        assert_eq!(next(MailingState::Processing, true), EntryNext::Suppress);
        assert_eq!(next(MailingState::Processing, false), EntryNext::Claim { attempt: 3 });
        assert_eq!(next(MailingState::Queued, false), EntryNext::Leave, "nothing is sent before the mailing is begun");
        for state in [State::Sent, State::Unknown, State::Failed, State::Suppressed, State::Canceled] {
            let next = next_of_entry(&delivery(state), MailingState::Processing, false, NOW);
            assert_eq!(next, EntryNext::Leave, "{state:?}");
        }
    }

    #[test]
    fn an_attempt_of_a_lost_sender_is_unknown_after_its_deadline_and_not_before() {
        let next = |deadline| {
            let entry = Delivery { deadline, ..delivery(State::Sending) };
            next_of_entry(&entry, MailingState::Canceled, true, NOW)
        };
        let until = NOW.plus_ms(1);
        assert_eq!(next(Some(until.millis())), EntryNext::InFlight { until });
        assert_eq!(next(Some(NOW.millis())), EntryNext::Lost);
        assert_eq!(next(None), EntryNext::Lost);
        let lost = entry(State::Sending, 2).lost(7, NOW).expect("lost");
        assert_eq!((lost.state(), lost.retried), (EntryState::Unknown, 7));
        assert_eq!(entry(State::Queued, 2).lost(7, NOW), None);
    }

    #[test]
    fn an_entry_waits_for_its_next_attempt() {
        let until = NOW.plus_ms(1);
        let next = |not_before| {
            let entry = Delivery { not_before: Some(not_before), ..delivery(State::Queued) };
            next_of_entry(&entry, MailingState::Processing, false, NOW)
        };
        assert_eq!(next(until), EntryNext::Wait { until });
        assert_eq!(next(NOW), EntryNext::Claim { attempt: 3 });
    }

    #[test]
    fn an_entry_with_a_sending_hold_can_be_sent_as_soon_as_its_mailing_resumes() {
        let held = Outcome::Held { why: SendingHold::NotAuthorized };
        let verdict = entry(State::Sending, 2).verdict(held, NOW, 0);
        assert_eq!(verdict, Verdict::Again { why: Again::Throttled, code: "not_authorized", not_before: NOW });
    }

    #[test]
    fn each_outcome_leads_to_the_entry_state_that_callers_see() {
        let transient = || Outcome::Transient { code: "not_connected" };
        for (attempt, outcome, state) in [
            (2, Outcome::Sent { provider_id: "x".into() }, EntryState::Sent),
            (2, transient(), EntryState::Pending),
            (MAX_ATTEMPTS, transient(), EntryState::Failed),
            (MAX_ATTEMPTS, Outcome::Unknown { code: "timed_out" }, EntryState::Unknown),
            (MAX_ATTEMPTS, Outcome::Permanent { code: "rejected", suppress: true }, EntryState::Failed),
            (MAX_ATTEMPTS, Outcome::Held { why: SendingHold::SendingPaused }, EntryState::Pending),
        ] {
            let row = entry(State::Sending, attempt);
            let verdict = row.verdict(outcome, NOW, 500);
            let Settled::Now(settled) = row.settled(attempt, &verdict, NOW) else { panic!("{verdict:?}") };
            assert_eq!(settled.state(), state, "{verdict:?}");
        }
    }

    #[test]
    fn the_state_of_an_entry_is_stored_as_a_delivery_state() {
        for state in EntryState::ALL.iter().copied() {
            assert_eq!(EntryState::of_stored(state.stored()), Some(state));
        }
        assert_eq!(EntryState::Pending.stored(), "QUEUED");
    }
}
