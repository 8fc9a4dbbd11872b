//! The rules that change the row of a mailing: orders of an operator, the end of the import, the
//! start of sending, and recovery.

use super::identity::MailingId;
use super::mailing::{EntryCounts, MailingEvent, MailingState, Move, move_mailing};
use super::rows::{ImportProgress, ImportState, KeyedOrder, MailingRow, SendingRun, ShardRow};
use super::shard::is_abandoned;
use super::shard_groups::{SHARD_GROUPS, shards_to_enqueue};
use crate::codes::{FileProblem, SendingHold};
use crate::lease::Lease;
use crate::mailings::ImportProblem;
use crate::time::Timestamp;

/// The number of orders with an idempotency key that a mailing remembers.
const MOST_ORDERS: usize = 50;

/// Why an event or an order changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotMoved {
    /// The mailing is already in the requested state, or no entry is concerned.
    Already,
    /// The state of the mailing does not allow it.
    Refused,
}

impl MailingRow {
    /// Returns the state that follows from `event`.
    fn moved(&self, event: MailingEvent) -> Result<MailingState, NotMoved> {
        match move_mailing(self.state, event, self.is_ready()) {
            Move::To(state) => Ok(state),
            Move::Already => Err(NotMoved::Already),
            Move::Refused => Err(NotMoved::Refused),
        }
    }

    /// Pauses, resumes or cancels the mailing. `paused_for` says why it pauses by itself.
    pub fn ordered(
        &self,
        event: MailingEvent,
        paused_for: Option<SendingHold>,
        now: Timestamp,
    ) -> Result<Self, NotMoved> {
        let state = self.moved(event)?;
        let mut after = Self { state, paused_for, ..self.clone() };
        match state {
            MailingState::Paused => {
                after.run = None;
                // During the import, keep the importer's own emission and wake-up.
                if self.import == ImportState::Done {
                    after.work.rest();
                }
            }
            MailingState::Queued => after.enqueue_hand_out(now),
            MailingState::Canceled => {
                after.finished_at = Some(now);
                match self.import {
                    // The senders cancel the entries.
                    ImportState::Done => after.enqueue_hand_out(now),
                    // The senders also cancel the entries that exist by now, as soon as the
                    // importer has counted them.
                    ImportState::Queued | ImportState::Running => after.enqueue_import(now),
                    ImportState::AwaitingUpload | ImportState::Failed => after.work.rest(),
                }
            }
            _ => {}
        }
        Ok(after)
    }

    /// Returns whether an operator has paused or resumed the mailing since it was read as `seen`.
    pub fn is_another_run(&self, seen: &Self) -> bool {
        let since = |row: &Self| row.run.map(|run| run.since);
        since(self) != since(seen)
    }

    /// Orders failed entries to be sent again, and also unknown ones if `include_unknown` is set.
    /// `counts` are those of all shards.
    pub fn retry_ordered(
        &self,
        order: &KeyedOrder,
        include_unknown: bool,
        counts: &EntryCounts,
        now: Timestamp,
    ) -> Result<Self, NotMoved> {
        let moved = self.moved(MailingEvent::Reopened);
        let entries = counts.failed + if include_unknown { counts.unknown } else { 0 };
        if moved == Err(NotMoved::Refused) {
            return Err(NotMoved::Refused);
        }
        if entries == 0 {
            return Err(NotMoved::Already);
        }
        let mut after = Self { retry: self.retry + 1, ..self.clone() };
        if include_unknown {
            after.retry_unknown = after.retry;
        }
        if let Ok(state) = moved {
            (after.state, after.finished_at) = (state, None);
        }
        if self.state != MailingState::Paused {
            after.enqueue_hand_out(now);
        }
        after.orders.push(KeyedOrder { entries, ..order.clone() });
        let surplus = after.orders.len().saturating_sub(MOST_ORDERS);
        after.orders.drain(..surplus);
        Ok(after)
    }

    /// Records a checkpoint of the import, under the lease of its importer, which now ends at
    /// `until`.
    #[must_use]
    pub fn checkpointed(&self, held: &Lease, progress: ImportProgress, until: Timestamp) -> Self {
        let lease = Some(held.ending(until));
        let mut after = Self { progress, import: ImportState::Running, lease, ..self.clone() };
        after.work.emit = None;
        after.wait_until(until);
        after
    }

    /// Ends the import: the file was read to its end, or to the point where the mailing was
    /// canceled. `fits` says whether the content names only columns of the file. Returns the
    /// mailing and its new shards. If senders must go through the shards, the first of each group
    /// is enqueued.
    pub fn imported(&self, progress: &ImportProgress, fits: bool, now: Timestamp) -> (Self, Vec<ShardRow>) {
        // From here on, the rows of the shards hold these counts.
        let reported = ImportProgress { by_shard: Vec::new(), hash: None, ..progress.clone() };
        let mut after = Self { import: ImportState::Done, progress: reported, ..self.clone() };
        after.work.recoveries = 0;
        after.work.rest();
        if !fits {
            // The mailing waits for content that names only columns of the file.
            after.content_version = 0;
            after.problem = Some(ImportProblem::in_file(None, FileProblem::MissingColumn));
        }
        if let Ok(state) = after.moved(MailingEvent::Ready) {
            after.state = state;
        }
        let mut shards = self.new_shards(progress);
        // Senders must go through the shards: to send the entries, or to mark them as not to be
        // sent.
        if matches!(after.state, MailingState::Queued | MailingState::Canceled) {
            after.watch(now);
            shards.iter_mut().take(SHARD_GROUPS as usize).for_each(|shard| shard.enqueue(None, None, now));
        }
        (after, shards)
    }

    /// Returns the shards of the mailing, with the entries that the import has counted.
    pub fn new_shards(&self, progress: &ImportProgress) -> Vec<ShardRow> {
        let id: &MailingId = &self.mailing_id;
        (0..self.shards).map(|number| ShardRow::new(id, number, progress.of_shard(number))).collect()
    }

    /// Marks the mailing as being sent, after a sender has taken one of its shards. `counts` are
    /// those of all shards. Returns `NotMoved::Already` if the mailing is being sent, and
    /// `NotMoved::Refused` if it must not be sent any more.
    pub fn begun(&self, counts: &EntryCounts, now: Timestamp) -> Result<Self, NotMoved> {
        let state = self.moved(MailingEvent::Begun)?;
        let run = Some(SendingRun { since: now, sent: counts.sent, tried: counts.tried() });
        let started_at = self.started_at.or(Some(now));
        let mut after = Self { state, started_at, last_attempt: Some(now), run, ..self.clone() };
        if after.work.wake.is_none() {
            after.watch(now);
        }
        Ok(after)
    }

    /// Clears the mailing's own emission after its shards were enqueued. `emits` is the number of
    /// the emission that caused it. Returns `None` if there is a newer emission, or if another
    /// worker ended the mailing meanwhile and cleared its wake-up.
    pub fn shards_enqueued(&self, emits: u64, now: Timestamp) -> Option<Self> {
        if self.work.emits != emits || self.work.wake.is_none() {
            return None;
        }
        let mut after = self.clone();
        (after.work.emit, after.work.recoveries) = (None, 0);
        if self.needs_senders() {
            after.watch(now);
        }
        Some(after)
    }

    /// Moves the mailing from `PROCESSING` back to `PENDING` if no sender works on it any more.
    /// `shards` are all its shards.
    pub fn abandoned(&self, shards: &[ShardRow], now: Timestamp) -> Option<Self> {
        let leases = shards.iter().map(|shard| (shard.state, shard.lease.as_ref()));
        if !is_abandoned(self.state, leases, now) {
            return None;
        }
        let state = self.moved(MailingEvent::Abandoned).ok()?;
        Some(Self { state, last_attempt: None, ..self.clone() })
    }

    /// Returns the mailing after recovery found it waiting and not to be completed, and whether it
    /// was stalled: a group has no active shard, the job to enqueue the shards was lost, or a shard
    /// has not followed the latest retry order. `shards` are all its shards.
    pub fn shards_recovered(&self, shards: &[ShardRow], now: Timestamp) -> (Self, bool) {
        let is_stalled = shards_to_enqueue(shards, now).into_iter().any(|(shard, _)| !shard.is_active())
            || self.work.emit.is_some()
            || self.has_new_order(shards);
        let mut after = self.clone();
        after.work.recovered();
        match self.needs_senders() && is_stalled {
            true => after.enqueue_hand_out(now),
            false => {
                after.work.recoveries = 0;
                after.watch(now);
            }
        }
        (after, is_stalled)
    }
}
