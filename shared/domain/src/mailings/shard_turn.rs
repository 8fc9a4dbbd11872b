//! What a worker knows about the shard that it holds.

use super::rows::ShardRow;
use crate::change::Row;
use crate::keys::Key;
use crate::lease::Lease;
use crate::time::Timestamp;

/// A shard that a worker holds, as of its last write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardTurn {
    pub held: Lease,
    /// The row as the current pass knows it.
    pub row: ShardRow,
    /// The row as it was last written.
    pub stored: ShardRow,
}

impl ShardTurn {
    /// Begins a turn at a shard that was just taken.
    pub fn new(held: Lease, taken: ShardRow) -> Self {
        Self { held, stored: taken.clone(), row: taken }
    }

    pub fn key(&self) -> Key {
        self.row.key()
    }

    /// Extends the lease to `until`. Returns the turn after the write, and the row to write in
    /// place of `stored`. Events and orders write some attributes and may have changed them since
    /// the last write, so this write leaves them unchanged.
    pub fn renewal(&self, until: Timestamp) -> (Self, ShardRow) {
        let held = self.held.ending(until);
        let mut row = self.row.clone();
        row.wait_until(until);
        (row.work.recoveries, row.cursor_order) = (0, row.retried);
        row.lease = Some(held.clone());
        let ShardRow { touched, retried, retried_unknown, .. } = self.stored;
        let mut written = ShardRow { touched, retried, retried_unknown, ..row.clone() };
        (written.work.emits, written.work.emit) = (self.stored.work.emits, self.stored.work.emit.clone());
        (Self { held, row, stored: self.stored.clone() }, written)
    }

    /// Records the row as the store returned it after the write of [`Self::renewal`]. `row` keeps
    /// the number of emissions that it had when the worker took the shard, so that the release
    /// knows whether the shard was enqueued since.
    #[must_use]
    pub fn renewed(self, stored: ShardRow) -> Self {
        Self { stored, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::{EntryCounts, MailingId, MailingState};

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    /// An operator pauses and resumes the mailing while a call is under way, which enqueues the
    /// shard. The sender renews its lease, and then its call is refused because the account is on
    /// hold.
    #[test]
    fn a_shard_that_was_enqueued_during_a_turn_stays_enqueued_after_its_release() {
        let mut shard = ShardRow::new(&MailingId::of("a.csv", 0), 0, EntryCounts::default());
        shard.enqueue(None, None, NOW);
        let held = shard.take(1, MailingState::Processing, "a", NOW).expect("a lease");
        let turn = ShardTurn::new(held.clone(), shard.taken(held, NOW));
        let enqueued = turn.row.enqueued(None, NOW);
        let (renewed, written) = turn.renewal(NOW.plus_ms(1));
        assert_eq!(written.work.emits, turn.stored.work.emits, "the write leaves the emission as it is");
        let stored = ShardRow { lease: written.lease.clone(), ..enqueued };
        let (renewed, written) = renewed.renewed(stored.clone()).renewal(NOW.plus_ms(2));
        assert_eq!(written.work.emits, stored.work.emits, "nor does the next write");
        let released = stored.released(&renewed.renewed(written).row, None, NOW);
        assert!(released.is_active(), "a sender receives the shard again");
    }
}
