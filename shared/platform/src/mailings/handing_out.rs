//! Shards are handed to senders: the first of each lane, what was given back, what an order is
//! about.

use std::ops::ControlFlow::{Break, Continue};

use futures::future::try_join_all;
use umavez_domain::keys;
use umavez_domain::mailings::{ImportState, MailingId, MailingRow, MailingState, ShardRow, ShardState, to_hand_out};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written};

impl Mailings {
    /// Hands a shard over, if nobody has done so since it was read.
    pub(super) fn handing_over(
        &self,
        seen: &ShardRow,
        not_before: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Write, StoreError> {
        let mut after = seen.clone();
        let lease_over = seen.lease.as_ref().is_none_or(|lease| lease.is_over(now));
        after.hand_over(not_before.filter(|at| *at > now), None, now);
        // Whoever works on it is looked after by its lease.
        if seen.state == ShardState::Processing && !lease_over {
            (after.work.wake, after.work.wake_at) = (seen.work.wake.clone(), seen.work.wake_at.clone());
        }
        let write = Write::changes(&self.table, keys::mailing_shard(&seen.mailing_id, seen.shard), seen, &after)?;
        let unchanged = Condition::of(&seen.handed_over_as_read())?;
        Ok(write.when(unchanged))
    }

    /// Hands a shard of each lane of a mailing to senders: after content, resume, cancel, or an
    /// order to send failed entries again. Done twice, a shard is handed over twice, which its
    /// lease makes the same.
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
                // Every shard is finished: it only has to be ended.
                self.complete(invocation, id).await?;
                return Ok(Break(0));
            }
            let mut refused = false;
            for (shard, not_before) in &to_hand_out {
                let write = self.handing_over(shard, *not_before, now)?;
                refused |= matches!(self.store.write(invocation, write).await?, Written::Refused(_));
            }
            // A sender has given one back, or gone on to the next of its lane, since they were
            // read: all are looked at again.
            if refused {
                return Ok(Continue(()));
            }
            self.handed_out(invocation, row).await?;
            Ok(Break(to_hand_out.len()))
        };
        self.store.retry(invocation, step).await
    }

    /// The mailing's own emission is done with, unless there is a newer one.
    async fn handed_out(&self, invocation: &Invocation, row: &MailingRow) -> Result<(), StoreError> {
        let emits = row.work.emits;
        let rule = |row: &MailingRow| {
            // Whoever ended it meanwhile has seen to it that nobody looks for it.
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

    /// Reopens a shard that has entries which an order is about, or records the order in it. `None`: the
    /// shard has changed since it was read.
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

/// Its shards are to be gone through: to be sent, or to be told that they will not be.
pub(super) fn is_worked_on(row: &MailingRow) -> bool {
    let canceled = row.state == MailingState::Canceled;
    let open = matches!(row.state, MailingState::Pending | MailingState::Queued | MailingState::Processing);
    match row.import {
        ImportState::Done => canceled || open && row.is_ready(),
        // It had come to its shards, and something may be there.
        ImportState::Failed => row.shards > 0 && row.progress.partial,
        ImportState::AwaitingUpload | ImportState::Queued | ImportState::Running => false,
    }
}
