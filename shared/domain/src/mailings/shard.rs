//! The unit of work: one shard of one mailing, under a lease. Recovery releases shards that no
//! worker processes. It never changes an entry, because an entry that is `SENDING` may have been
//! sent.

use super::mailing::{EntryCounts, MailingState};
use super::rows::{MailingRow, ShardRow};
use crate::codes::codes;
use crate::lease::Lease;
use crate::time::Timestamp;

/// The duration of a lease, renewed between sub-batches. It applies both to a worker that wants the
/// shard and to recovery.
pub const LEASE_MS: i64 = 30_000;

/// How many mails are sent between two checks for pause, cancel and suppression. At most this many
/// leave after such a request.
pub const SUB_BATCH: usize = 25;

codes! {
    ShardState {
        Pending = "PENDING",
        Processing = "PROCESSING",
        /// Every entry of the shard is settled.
        Finished = "FINISHED",
    }
}

/// Why a worker does not take the shard of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// Another worker has the lease. The queue message is not deleted: it is redelivered when the
    /// lease may have ended.
    Busy(Timestamp),
    /// Nothing is left to do in the shard; the caller checks whether that ends the mailing.
    Finished,
    NothingToDo,
}

impl ShardRow {
    /// Returns the lease of a worker that received the shard's job with number `seq`, or why it
    /// does not take the shard.
    pub fn take(&self, seq: u64, mailing: MailingState, owner: &str, now: Timestamp) -> Result<Lease, NotTaken> {
        if self.state == ShardState::Finished {
            return Err(NotTaken::Finished);
        }
        if matches!(mailing, MailingState::Paused | MailingState::Completed) {
            return Err(NotTaken::NothingToDo);
        }
        // Only a shard that is being processed is leased: a sender that releases it ends its lease.
        let is_leased = self.state == ShardState::Processing;
        let lease = self.lease.as_ref().map(|lease| if is_leased { lease.clone() } else { lease.ending(now) });
        let taken = Lease::taken(lease.as_ref(), owner, now, LEASE_MS).map_err(NotTaken::Busy)?;
        // The shard was enqueued again since: the sender that receives the newer job does the work,
        // at its time. Or the shard is not enqueued: its group has another active shard, and
        // enqueues this one in its turn.
        if seq < self.work.emits && seq > 0 || !self.is_active() {
            return Err(NotTaken::NothingToDo);
        }
        Ok(taken)
    }

    /// Returns the shard after a worker took its lease.
    #[must_use]
    pub fn taken(&self, lease: Lease, now: Timestamp) -> Self {
        let mut row = Self { state: ShardState::Processing, last_attempt: Some(now), due: None, ..self.clone() };
        row.work.emit = None;
        // A retry order that came since concerns all entries, so start from the first one.
        if self.cursor_order != self.retried {
            row.cursor = None;
        }
        row.wait_until(lease.until());
        row.lease = Some(lease);
        row
    }

    /// Returns whether this turn of this worker still holds the shard. Recovery takes a shard away
    /// from a late worker, and a finished shard stays finished.
    pub fn is_held_by(&self, held: &Lease) -> bool {
        self.state == ShardState::Processing && self.lease.as_ref().is_some_and(|lease| lease.is_same_turn(held))
    }

    /// Returns the shard after its worker released it in the middle of a pass. `worked` is the row
    /// as the worker knows it. The shard is enqueued no earlier than `again`; `None` enqueues it
    /// only if it was enqueued since the worker took it, because the mailing is held.
    #[must_use]
    pub fn released(&self, worked: &Self, again: Option<Timestamp>, now: Timestamp) -> Self {
        let mut row = self.ended(ShardState::Pending, now);
        (row.counts, row.cursor, row.cursor_order) = (worked.counts, worked.cursor.clone(), worked.retried);
        match again {
            Some(at) => row.enqueue(Some(at).filter(|at| *at > now), None, now),
            None if self.work.emits != worked.work.emits => row.enqueue(None, None, now),
            None => row.work.rest(),
        }
        row
    }

    /// Returns the shard after a pass over it. `counts` are a recount under the lease; `next_look`
    /// is the earliest time that an entry waits for. If no entry is open, the shard is finished.
    /// Otherwise it is due at that time, and its group enqueues it.
    #[must_use]
    pub fn passed(&self, counts: EntryCounts, next_look: Option<Timestamp>, now: Timestamp) -> Self {
        let state = if counts.open() == 0 { ShardState::Finished } else { ShardState::Pending };
        let mut row = Self { counts, cursor: None, ..self.ended(state, now) };
        if state == ShardState::Pending {
            row.due = Some(next_look.map_or(now, |at| at.max(now)));
        }
        row.work.rest();
        row
    }

    /// Returns the shard after the turn of its worker. Its lease ends now, so that the next worker
    /// need not wait for it.
    fn ended(&self, state: ShardState, now: Timestamp) -> Self {
        let mut row = Self { state, lease: self.lease.as_ref().map(|lease| lease.ending(now)), ..self.clone() };
        row.work.recoveries = 0;
        row
    }

    /// Returns the shard after recovery found it waiting, and whether it was stalled. `None` if a
    /// worker has it. `is_sent` says whether senders must go through the mailing's shards; if not,
    /// the shard waits for nothing any more.
    ///
    /// A shard whose lease is over is enqueued under an id that names the lost lease, so that a
    /// second run of recovery enqueues the same work. If the lease was renewed since, the write
    /// fails, because its worker is alive.
    pub fn recovered(&self, is_sent: bool, now: Timestamp) -> Option<(Self, bool)> {
        let mut row = self.clone();
        let id = match self.state {
            ShardState::Finished => {
                row.work.rest();
                return Some((row, false));
            }
            // The shard was enqueued, and no sender took it.
            ShardState::Pending => None,
            ShardState::Processing => {
                let lost = self.lease.as_ref().filter(|lease| lease.is_over(now))?;
                (row.state, row.last_attempt) = (ShardState::Pending, None);
                Some(format!("requeue#{}#{:02}#{}", self.mailing_id, self.shard, lost.lease_epoch))
            }
        };
        row.work.recovered();
        match is_sent {
            true => row.enqueue(None, id, now),
            false => row.work.rest(),
        }
        Some((row, true))
    }

    /// Returns the shard after it was enqueued for a sender. If a sender is working on it, its
    /// wake-up stays the one that follows from the lease.
    #[must_use]
    pub fn enqueued(&self, not_before: Option<Timestamp>, now: Timestamp) -> Self {
        let mut row = self.clone();
        row.enqueue(not_before.filter(|at| *at > now), None, now);
        let is_leased = self.lease.as_ref().is_some_and(|lease| !lease.is_over(now));
        if self.state == ShardState::Processing && is_leased {
            (row.work.wake, row.work.wake_at) = (self.work.wake.clone(), self.work.wake_at.clone());
        }
        row
    }

    /// Records the latest retry order of the mailing, and reopens the shard if it is finished and
    /// has entries that the order concerns.
    #[must_use]
    pub fn following_order(&self, mailing: &MailingRow) -> Self {
        let unknown = mailing.retry_unknown > self.retried_unknown && self.counts.unknown > 0;
        let is_concerned = self.counts.failed > 0 || unknown;
        let row = Self { retried: mailing.retry, retried_unknown: mailing.retry_unknown, ..self.clone() };
        match self.state == ShardState::Finished && is_concerned {
            true => Self { state: ShardState::Pending, begun: false, due: None, cursor: None, ..row },
            false => row,
        }
    }
}

/// Returns whether a mailing is `PROCESSING` although no worker processes any of its shards.
/// `shards` are all of its shards.
pub fn is_abandoned<'a>(
    mailing: MailingState,
    shards: impl IntoIterator<Item = (ShardState, Option<&'a Lease>)>,
    now: Timestamp,
) -> bool {
    let alive =
        |state, lease: Option<&Lease>| state == ShardState::Processing && lease.is_some_and(|l| !l.is_over(now));
    let (mut unfinished, mut any_alive) = (false, false);
    for (state, lease) in shards {
        unfinished |= state != ShardState::Finished;
        any_alive |= alive(state, lease);
    }
    mailing == MailingState::Processing && unfinished && !any_alive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::MailingId;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn lease(left_ms: i64) -> Lease {
        Lease { lease_owner: "a".into(), lease_epoch: 4, lease_until: NOW.plus_ms(left_ms).millis() }
    }

    /// A shard that was enqueued.
    fn shard(state: ShardState, lease: Option<Lease>) -> ShardRow {
        let row = ShardRow::new(&MailingId::of("monthly.csv", 0), 7, EntryCounts::default());
        let mut row = ShardRow { state, lease, ..row };
        row.enqueue(None, None, NOW);
        row
    }

    #[test]
    fn one_sender_has_the_lease_of_a_shard_and_the_next_sender_has_the_next_epoch() {
        let take = |state, lease| shard(state, lease).take(1, MailingState::Processing, "b", NOW);
        let taken = |lease_epoch| {
            let lease_until = NOW.plus_ms(LEASE_MS).millis();
            Ok(Lease { lease_owner: "b".into(), lease_epoch, lease_until })
        };
        assert_eq!(take(ShardState::Pending, None), taken(1));
        assert_eq!(take(ShardState::Processing, Some(lease(1))), Err(NotTaken::Busy(NOW.plus_ms(1))));
        assert_eq!(take(ShardState::Processing, Some(lease(0))), taken(5));
        assert_eq!(take(ShardState::Pending, Some(lease(-9))), taken(5));
        assert_eq!(take(ShardState::Finished, Some(lease(-9))), Err(NotTaken::Finished));
    }

    #[test]
    fn a_shard_is_not_taken_by_an_outdated_job_or_while_it_is_not_enqueued() {
        let mut twice = shard(ShardState::Pending, None);
        twice.enqueue(None, None, NOW);
        let take = |shard: &ShardRow, seq| shard.take(seq, MailingState::Processing, "b", NOW).map(drop);
        assert_eq!((take(&twice, 1), take(&twice, 2)), (Err(NotTaken::NothingToDo), Ok(())));
        twice.work.rest();
        assert_eq!(take(&twice, 2), Err(NotTaken::NothingToDo));
    }

    #[test]
    fn a_shard_is_finished_when_none_of_its_entries_is_open() {
        let passed = |counts, next_look| {
            let row = shard(ShardState::Processing, Some(lease(9))).passed(counts, next_look, NOW);
            assert!(!row.is_active() && row.lease.is_some_and(|lease| lease.is_over(NOW)), "its lease must be over");
            (row.state, row.due)
        };
        let done = EntryCounts { sent: 3, unknown: 1, ..EntryCounts::default() };
        assert_eq!(passed(done, None), (ShardState::Finished, None));
        let later = NOW.plus_ms(5);
        for open in [EntryCounts { pending: 1, ..done }, EntryCounts { sending: 1, ..done }] {
            assert_eq!(passed(open, Some(later)), (ShardState::Pending, Some(later)));
            assert_eq!(passed(open, Some(NOW.plus_ms(-5))), (ShardState::Pending, Some(NOW)));
            assert_eq!(passed(open, None), (ShardState::Pending, Some(NOW)));
        }
    }

    #[test]
    fn a_shard_is_not_taken_while_paused_but_is_taken_to_clear_a_canceled_mailing() {
        for (mailing, taken) in [
            (MailingState::Paused, false),
            (MailingState::Failed, true),
            (MailingState::Completed, false),
            (MailingState::Queued, true),
            (MailingState::Canceled, true),
        ] {
            let take = shard(ShardState::Pending, None).take(1, mailing, "b", NOW);
            assert_eq!(take.is_ok(), taken, "{mailing}");
        }
    }

    #[test]
    fn recovery_enqueues_a_lost_shard_once_and_never_a_live_one() {
        let lost = shard(ShardState::Processing, Some(lease(-1)));
        let emit_id = |(row, is_stalled): (ShardRow, bool)| (row.work.emit.map(|emit| emit.id), is_stalled);
        let requeued = Some((Some(format!("requeue#{}#07#4", lost.mailing_id)), true));
        assert_eq!(lost.recovered(true, NOW).map(emit_id), requeued);
        assert_eq!(lost.recovered(true, NOW).map(emit_id), requeued, "the same job has the same id");
        assert_eq!(lost.recovered(false, NOW).map(emit_id), Some((None, true)), "it is not emitted for a sender");
        assert_eq!(shard(ShardState::Processing, Some(lease(1))).recovered(true, NOW), None);
        let finished = shard(ShardState::Finished, Some(lease(-1)));
        assert_eq!(finished.recovered(true, NOW).map(emit_id), Some((None, false)));
        for lease in [Some(lease(-1)), None] {
            let (row, is_stalled) = shard(ShardState::Pending, lease).recovered(true, NOW).expect("enqueued again");
            assert_eq!((row.work.emits, row.work.recoveries, is_stalled), (2, 1, true));
        }
    }

    #[test]
    fn a_mailing_is_abandoned_when_no_shard_is_alive() {
        let (live, over) = (lease(1), lease(0));
        let abandoned =
            |state, shards: &[(ShardState, Option<&Lease>)]| is_abandoned(state, shards.iter().copied(), NOW);
        let dead = [(ShardState::Processing, Some(&over)), (ShardState::Pending, None)];
        assert!(abandoned(MailingState::Processing, &dead));
        assert!(!abandoned(MailingState::Pending, &dead) && !abandoned(MailingState::Paused, &dead));
        assert!(!abandoned(MailingState::Processing, &[dead[0], (ShardState::Processing, Some(&live))]));
        assert!(
            !abandoned(MailingState::Processing, &[(ShardState::Finished, Some(&over))]),
            "a mailing with finished shards is not abandoned"
        );
    }
}
