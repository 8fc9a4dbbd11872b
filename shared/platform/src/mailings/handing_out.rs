//! Hands shards to senders: the first of each lane, the shards that senders gave back, and the
//! shards that a retry order concerns.

use std::ops::ControlFlow::{Break, Continue};

use futures::future::try_join_all;
use umavez_domain::keys;
use umavez_domain::mailings::{ImportState, MailingId, MailingRow, MailingState, ShardRow, ShardState, to_hand_out};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written};

impl Mailings {
    /// Builds the write that hands a shard over. Its condition holds if nobody has handed the shard
    /// over, or taken it, since it was read.
    pub(super) fn handing_over(
        &self,
        seen: &ShardRow,
        not_before: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Write, StoreError> {
        let mut after = seen.clone();
        let lease_over = seen.lease.as_ref().is_none_or(|lease| lease.is_over(now));
        after.hand_over(not_before.filter(|at| *at > now), None, now);
        // A sender is working on the shard: keep the wake-up that follows from its lease.
        if seen.state == ShardState::Processing && !lease_over {
            (after.work.wake, after.work.wake_at) = (seen.work.wake.clone(), seen.work.wake_at.clone());
        }
        let write = Write::changes(&self.table, keys::mailing_shard(&seen.mailing_id, seen.shard), seen, &after)?;
        let unchanged = Condition::of(&seen.handed_over_as_read())?;
        Ok(write.when(unchanged))
    }

    /// Hands one shard of each lane of a mailing to senders: after new content, a resume, a cancel,
    /// or a retry order. If it runs twice, it hands a shard over twice; because of the lease, the
    /// effect is the same. Returns the number of shards.
    pub async fn hand_out(&self, invocation: &Invocation, id: &MailingId) -> Result<usize, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(0) };
        if !is_worked_on(&row) {
            return Ok(0);
        }
        if row.import == ImportState::Failed && self.shards(invocation, id).await?.is_empty() {
            self.make_shards(invocation, &row).await?;
        }
        let row = &row;
        let step = || async move {
            let now = invocation.current();
            let shards = self.shards(invocation, id).await?;
            let reopened = shards.iter().map(|shard| self.follow_order(invocation, row, shard));
            let Some(shards) = try_join_all(reopened).await?.into_iter().collect::<Option<Vec<_>>>() else {
                return Ok(Continue(()));
            };
            let to_hand_out = to_hand_out(&shards, now);
            if to_hand_out.is_empty() {
                // Every shard is finished: only the mailing is left to end.
                self.complete(invocation, id).await?;
                return Ok(Break(0));
            }
            let mut refused = false;
            for (shard, not_before) in &to_hand_out {
                let write = self.handing_over(shard, *not_before, now)?;
                refused |= matches!(self.store.write(invocation, write).await?, Written::Refused(_));
            }
            // Since the shards were read, a sender has given one back or continued with the next of
            // its lane. Look at all of them again.
            if refused {
                return Ok(Continue(()));
            }
            self.handed_out(invocation, row).await?;
            Ok(Break(to_hand_out.len()))
        };
        self.store.retry(invocation, step).await
    }

    /// Clears the mailing's own emission, unless there is a newer one.
    async fn handed_out(&self, invocation: &Invocation, row: &MailingRow) -> Result<(), StoreError> {
        let emits = row.work.emits;
        let rule = |row: &MailingRow| {
            // There is a newer emission, or another worker ended the mailing meanwhile and cleared
            // its wake-up.
            if row.work.emits != emits || row.work.wake.is_none() {
                return (None, ());
            }
            let mut after = row.clone();
            (after.work.emit, after.work.recoveries) = (None, 0);
            if is_worked_on(row) {
                after.watch(invocation.current());
            }
            (Some(after), ())
        };
        self.change(invocation, row, rule).await.map(drop)
    }

    /// Records the latest retry order in a shard, and reopens the shard if it is finished and has
    /// entries that the order concerns. Returns `None` if the shard has changed since it was read.
    async fn follow_order(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        shard: &ShardRow,
    ) -> Result<Option<ShardRow>, StoreError> {
        if shard.retried >= mailing.retry {
            return Ok(Some(shard.clone()));
        }
        let unknown = mailing.retry_unknown > shard.retried_unknown && shard.counts.unknown > 0;
        let concerned = shard.counts.failed > 0 || unknown;
        let mut after = ShardRow { retried: mailing.retry, retried_unknown: mailing.retry_unknown, ..shard.clone() };
        if shard.state == ShardState::Finished && concerned {
            after = ShardRow { state: ShardState::Pending, begun: false, due: None, cursor: None, ..after };
        }
        let unchanged = Condition::of(&shard.ordered_as_read())?;
        let key = keys::mailing_shard(&shard.mailing_id, shard.shard);
        let write = Write::changes(&self.table, key, shard, &after)?.when(unchanged);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(Some(after)),
            Written::Refused(_) => Ok(None),
        }
    }
}

/// Returns whether senders must go through the shards of the mailing: to send the entries, or to
/// mark them as not to be sent.
pub(super) fn is_worked_on(row: &MailingRow) -> bool {
    let canceled = row.state == MailingState::Canceled;
    let open = matches!(row.state, MailingState::Pending | MailingState::Queued | MailingState::Processing);
    match row.import {
        ImportState::Done => canceled || open && row.is_ready(),
        // The import had determined the shards, and there may be entries in them.
        ImportState::Failed => row.shards > 0 && row.progress.partial,
        ImportState::AwaitingUpload | ImportState::Queued | ImportState::Running => false,
    }
}
