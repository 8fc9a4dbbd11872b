//! The states of a mailing, and when it is over.

use std::collections::BTreeSet;
use std::iter::Sum;

use serde::{Deserialize, Serialize};

use super::entry::EntryState;
use super::rows::{ImportState, MailingRow, ShardRow};
use super::shard::ShardState;
use crate::codes::codes;
use crate::time::Timestamp;

codes! {
    MailingState {
        /// Being imported, waiting for its content, or released by recovery.
        Pending = "PENDING",
        /// Its shards are being enqueued.
        Queued = "QUEUED",
        /// Its mails are being sent.
        Processing = "PROCESSING",
        /// Every entry is settled; the counts prove it.
        Completed = "COMPLETED",
        /// Its file could not be read.
        Failed = "FAILED",
        /// An operator paused it, or it paused itself for the reason in `paused_for`.
        Paused = "PAUSED",
        /// An operator canceled it.
        Canceled = "CANCELED",
    }
}

/// An event that may change the state of a mailing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailingEvent {
    /// Its import ended, or it got content.
    Ready,
    /// A worker took the lease of one of its shards.
    Begun,
    /// Its last shard finished: [`Completion::Complete`].
    Finished,
    /// Its file cannot be read.
    Unreadable,
    Pause,
    Resume,
    Cancel,
    /// A `retry-failed`, a resend or a late event gave a shard something to do.
    Reopened,
    /// Recovery found no shard with a live lease.
    Abandoned,
}

/// The write for an event, conditional on the state that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    To(MailingState),
    /// The mailing is in the wanted state or beyond it: a no-op, not an error.
    Already,
    /// A mailing in this state does not allow the event: 409.
    Refused,
}

/// Decides what `event` does to a mailing in `state`. `ready` says whether the mailing is imported
/// and has content, counting what this event brings.
pub fn move_mailing(state: MailingState, event: MailingEvent, ready: bool) -> Move {
    use MailingEvent as E;
    use MailingState::{Canceled, Completed, Failed, Paused, Pending, Processing, Queued};
    let waiting = if ready { Queued } else { Pending };
    match (event, state) {
        (E::Ready, Pending) if ready => Move::To(Queued),
        (E::Ready, _) => Move::Already,
        (E::Begun, Pending | Queued) if ready => Move::To(Processing),
        (E::Begun, Processing) => Move::Already,
        // Also if it was paused, or released by recovery, while its last sends were under way.
        (E::Finished, Pending | Queued | Processing | Paused) if ready => Move::To(Completed),
        (E::Finished, Completed | Canceled) => Move::Already,
        (E::Unreadable, Pending | Paused) if !ready => Move::To(Failed),
        (E::Unreadable, Failed | Canceled) => Move::Already,
        (E::Pause, Pending | Queued | Processing) => Move::To(Paused),
        (E::Pause, Paused) => Move::Already,
        (E::Resume, Paused) => Move::To(waiting),
        // Also if the mailing completed before a repeated resume request.
        (E::Resume, Pending | Queued | Processing | Completed) => Move::Already,
        (E::Cancel, Pending | Queued | Processing | Paused) => Move::To(Canceled),
        (E::Cancel, Canceled) => Move::Already,
        (E::Reopened, Completed) => Move::To(Queued),
        (E::Reopened, Queued | Processing | Paused) => Move::Already,
        (E::Reopened, Pending) if ready => Move::Already,
        (E::Abandoned, Processing) => Move::To(Pending),
        (E::Abandoned, _) => Move::Already,
        (
            E::Begun | E::Finished | E::Unreadable | E::Pause | E::Resume | E::Cancel | E::Reopened,
            Pending | Queued | Processing | Completed | Failed | Paused | Canceled,
        ) => Move::Refused,
    }
}

/// Entries by state. A shard's counts are set from a recount under its lease, never incremented.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryCounts {
    pub pending: u64,
    pub sending: u64,
    pub sent: u64,
    pub failed: u64,
    pub invalid: u64,
    pub unknown: u64,
    pub suppressed: u64,
    pub canceled: u64,
}

impl EntryCounts {
    pub fn add(&mut self, state: EntryState) {
        *self.of(state) += 1;
    }

    /// Moves one entry from one state to another.
    pub fn moved(&mut self, from: EntryState, to: EntryState) {
        let before = self.of(from);
        *before = before.saturating_sub(1);
        *self.of(to) += 1;
    }

    fn of(&mut self, state: EntryState) -> &mut u64 {
        match state {
            EntryState::Pending => &mut self.pending,
            EntryState::Sending => &mut self.sending,
            EntryState::Sent => &mut self.sent,
            EntryState::Failed => &mut self.failed,
            EntryState::Invalid => &mut self.invalid,
            EntryState::Unknown => &mut self.unknown,
            EntryState::Suppressed => &mut self.suppressed,
            EntryState::Canceled => &mut self.canceled,
        }
    }

    /// Returns how many entries were sent, or tried for the last time.
    pub fn tried(&self) -> u64 {
        self.sent + self.failed + self.unknown
    }

    pub fn open(&self) -> u64 {
        self.pending + self.sending
    }

    pub fn total(&self) -> u64 {
        self.open() + self.sent + self.failed + self.invalid + self.unknown + self.suppressed + self.canceled
    }
}

impl Sum for EntryCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        for mut counts in all {
            EntryState::ALL.iter().for_each(|state| *sum.of(*state) += *counts.of(*state));
        }
        sum
    }
}

/// Whether a mailing is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    Complete(EntryCounts),
    /// These shards are not finished.
    Open(Vec<u32>),
    /// All shards report that they are finished, but together they have another number of entries
    /// than the import created: an operator must investigate.
    Mismatch {
        counted: u64,
        imported: u64,
    },
}

impl MailingRow {
    /// Returns whether the mailing is over, and the row after its end. `shards` are all its shards.
    /// The row is `None` if the mailing cannot end now, or if it ended before and waits for
    /// nothing.
    pub fn completed(&self, shards: &[ShardRow], now: Timestamp) -> (Completion, Option<Self>) {
        let finished = shards.iter().filter(|shard| shard.state == ShardState::Finished);
        let finished: Vec<_> = finished.map(|shard| (shard.shard, shard.counts)).collect();
        let is_partial = self.progress.partial;
        let found = completion(self.shards, &finished, (!is_partial).then(|| self.progress.entries()));
        let Completion::Complete(counts) = &found else { return (found, None) };
        let is_imported = matches!(self.import, ImportState::Done | ImportState::Failed);
        if !is_imported || self.has_new_order(shards) && self.state != MailingState::Canceled {
            return (found, None);
        }
        let mut after = self.clone();
        if is_partial {
            after.progress.correct(counts);
        }
        match move_mailing(self.state, MailingEvent::Finished, self.is_ready()) {
            Move::To(state) => (after.state, after.finished_at) = (state, Some(now)),
            _ if self.work.wake.is_none() => return (found, None),
            _ => {}
        }
        after.work.rest();
        (found, Some(after))
    }

    /// Returns whether a shard has not followed the latest retry order. The order may reopen it.
    pub fn has_new_order(&self, shards: &[ShardRow]) -> bool {
        shards.iter().any(|shard| shard.retried < self.retry)
    }
}

/// Returns whether a mailing is over. `shards` is the number of shards; `finished` lists those that
/// report to be finished, with their counts. `imported` is the number of entries that the import
/// created, invalid ones included. It is `None` for a file that was not read to its end: then
/// nothing can be compared, and the entries that exist are all.
pub fn completion(shards: u32, finished: &[(u32, EntryCounts)], imported: Option<u64>) -> Completion {
    let done: BTreeSet<u32> =
        finished.iter().filter(|(_, counts)| counts.open() == 0).map(|(shard, _)| *shard).collect();
    let open: Vec<u32> = (0..shards).filter(|shard| !done.contains(shard)).collect();
    if !open.is_empty() {
        return Completion::Open(open);
    }
    let counts: EntryCounts = finished.iter().map(|(_, counts)| *counts).sum();
    match (counts.total(), imported) {
        (counted, Some(imported)) if counted != imported => Completion::Mismatch { counted, imported },
        _ => Completion::Complete(counts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_moves_a_mailing_to_its_next_state() {
        use MailingEvent as E;
        use MailingState::{Canceled, Completed, Failed, Paused, Pending, Processing, Queued};
        for (state, event, ready, moved) in [
            (Pending, E::Ready, false, Move::Already),
            (Pending, E::Ready, true, Move::To(Queued)),
            (Queued, E::Begun, true, Move::To(Processing)),
            (Processing, E::Begun, true, Move::Already),
            (Processing, E::Finished, true, Move::To(Completed)),
            (Completed, E::Finished, true, Move::Already),
            (Paused, E::Finished, true, Move::To(Completed)),
            (Pending, E::Finished, false, Move::Refused),
            (Pending, E::Reopened, true, Move::Already),
            (Processing, E::Abandoned, true, Move::To(Pending)),
            (Pending, E::Abandoned, true, Move::Already),
            (Pending, E::Begun, true, Move::To(Processing)),
            (Pending, E::Begun, false, Move::Refused),
            (Pending, E::Unreadable, false, Move::To(Failed)),
            (Pending, E::Pause, false, Move::To(Paused)),
            (Paused, E::Ready, true, Move::Already),
            (Paused, E::Begun, true, Move::Refused),
            (Paused, E::Resume, true, Move::To(Queued)),
            (Paused, E::Resume, false, Move::To(Pending)),
            (Completed, E::Reopened, true, Move::To(Queued)),
            (Completed, E::Resume, true, Move::Already),
            (Canceled, E::Resume, true, Move::Refused),
            (Completed, E::Cancel, true, Move::Refused),
        ] {
            assert_eq!(move_mailing(state, event, ready), moved, "{state} {event:?} {ready}");
        }
    }

    #[test]
    fn a_repeated_event_changes_nothing() {
        use MailingEvent as E;
        let events =
            [E::Ready, E::Begun, E::Finished, E::Unreadable, E::Pause, E::Resume, E::Cancel, E::Reopened, E::Abandoned];
        for state in MailingState::ALL.iter().copied() {
            for (event, ready) in events.into_iter().flat_map(|event| [(event, true), (event, false)]) {
                if let Move::To(next) = move_mailing(state, event, ready) {
                    assert_ne!(next, state);
                    assert_eq!(move_mailing(next, event, ready), Move::Already, "{state} {event:?} {ready}");
                }
            }
            let nothing_moves = |event| !matches!(move_mailing(state, event, true), Move::To(_));
            if matches!(state, MailingState::Canceled | MailingState::Failed) {
                assert!(events.into_iter().all(nothing_moves), "{state} is a final state");
            }
        }
    }

    #[test]
    fn a_mailing_is_complete_when_its_counts_match() {
        let mut one = EntryCounts::default();
        for state in [EntryState::Sent, EntryState::Unknown, EntryState::Invalid] {
            one.add(state);
        }
        let two = EntryCounts { sent: 2, ..EntryCounts::default() };
        let open = EntryCounts { sending: 1, ..two };
        assert_eq!(completion(2, &[(0, one)], Some(5)), Completion::Open(vec![1]));
        assert_eq!(completion(2, &[(0, one), (1, open)], Some(6)), Completion::Open(vec![1]));
        assert_eq!(completion(2, &[(0, one), (1, two)], Some(5)), Completion::Complete([one, two].into_iter().sum()));
        assert_eq!(completion(2, &[(1, two), (0, one)], Some(6)), Completion::Mismatch { counted: 5, imported: 6 });
        assert_eq!(
            completion(2, &[(0, one), (1, two)], None),
            Completion::Complete([one, two].into_iter().sum()),
            "the number of imported rows is unknown"
        );
        assert_eq!(completion(2, &[(0, one)], None), Completion::Open(vec![1]));
        let mut every = EntryCounts::default();
        EntryState::ALL.iter().for_each(|state| every.add(*state));
        assert_eq!((every.total(), every.open()), (8, 2));
        assert_eq!(EntryState::ALL.iter().filter(|state| !state.is_settled()).count(), 2);
    }
}
