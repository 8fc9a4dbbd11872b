//! The unit of work: a shard under its lease. A sender takes the shard, goes through its entries,
//! and releases it. Every write of the sender to the shard is conditional on the epoch of the
//! lease. The rules are in `umavez_domain::mailings`.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::change::Row;
use umavez_domain::keys;
use umavez_domain::keys::index::BY_TIME;
use umavez_domain::mailings::{
    LEASE_MS, MailingId, MailingRow, NotTaken, PassEnding, ShardRow, ShardState, ShardTurn, Sibling, Tally, end_of_pass,
};
use umavez_domain::queue::ShardJob;
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Beside, Condition, Decided, Returned, Start, StoreError, Write, read_row};

/// The outcome of the end of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassEnd {
    Finished,
    /// Some entries of the shard must be looked at again later.
    Waiting,
    /// The entries have changed since they were counted, or there is a new retry order: the sender
    /// counts again, or goes through the shard again.
    Changed,
    /// Another sender has taken over.
    Lost,
}

impl Mailings {
    pub async fn shard(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        shard: u32,
    ) -> Result<Option<ShardRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_shard(id, shard)).await
    }

    /// Takes the lease of a shard, if there is work to do and no other sender does it.
    pub async fn take_shard(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        job: &ShardJob,
    ) -> Result<Result<ShardTurn, NotTaken>, StoreError> {
        let rule = |shard: &ShardRow| {
            let now = invocation.current();
            Ok(match shard.take(job.seq, mailing.state, &invocation.request_id, now) {
                Ok(held) => Decided::commit(shard.taken(held.clone(), now), Ok(held)),
                Err(why) => Decided::Stop(Err(why)),
            })
        };
        let start = Start::Key(keys::mailing_shard(&mailing.mailing_id, job.shard));
        Ok(match self.store.change(invocation, &self.table, start, rule).await?.row() {
            Some((row, Ok(held))) => Ok(ShardTurn::new(held, row)),
            Some((_, Err(why))) => Err(why),
            None => Err(NotTaken::NothingToDo),
        })
    }

    /// Extends the lease and writes the progress of the pass. Returns whether this sender still
    /// holds the shard.
    pub async fn renew_shard(&self, invocation: &Invocation, turn: &mut ShardTurn) -> Result<bool, StoreError> {
        let until = invocation.current().plus_ms(LEASE_MS);
        let (renewed, written) = turn.renewal(until);
        // This sender holds the shard, and the shard is being processed.
        let processing = Condition::is("state", ShardState::Processing.as_str());
        let is_held = Condition::all([Condition::of(&turn.held.fence())?, processing]);
        let write = Write::changes(&self.table, turn.key(), &turn.stored, &written)?.when(is_held);
        match self.store.update_returning(invocation, write).await? {
            Returned::Row(item) => {
                *turn = renewed.renewed(read_row(item)?);
                Ok(true)
            }
            Returned::Refused(_) => Ok(false),
        }
    }

    /// Releases the shard in the middle of a pass. Enqueues it again, no earlier than `again`;
    /// `None` does not enqueue it while the mailing is held. Returns whether this sender still held
    /// the shard.
    pub async fn release_shard(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        again: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let rule = |shard: &ShardRow| {
            Ok(match shard.is_held_by(&turn.held) {
                true => Decided::commit(shard.released(&turn.row, again, invocation.current()), ()),
                false => Decided::Stop(()),
            })
        };
        let committed = self.store.change(invocation, &self.table, Start::Key(turn.key()), rule).await?;
        Ok(committed.done().is_some())
    }

    /// Ends a pass after the sender went through the shard and counted it: the shard is finished,
    /// or waits. The same transaction enqueues the next shard of the group, which may be the same
    /// one at a later time.
    pub async fn end_pass(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        tally: Tally,
    ) -> Result<PassEnd, StoreError> {
        let id = &turn.row.mailing_id;
        let step = || async {
            let shards = self.shards(invocation, id).await?;
            let now = invocation.current();
            let (before, after, sibling) = match end_of_pass(&turn.row, &turn.held, &shards, tally, now) {
                PassEnding::Ends { before, after, sibling } => (before, after, sibling),
                PassEnding::Changed => return Ok(Break(PassEnd::Changed)),
                PassEnding::Lost => return Ok(Break(PassEnd::Lost)),
            };
            let other = match sibling {
                Sibling::Enqueued { before, after } => Some(Write::of_change(&self.table, before, &*after)?),
                Sibling::Active(one) => Some(Write::check(&self.table, one.key(), Condition::has(BY_TIME.partition))),
                Sibling::None => None,
            };
            let ended = if after.state == ShardState::Finished { PassEnd::Finished } else { PassEnd::Waiting };
            let with = other.into_iter().map(Beside::required).collect();
            let committed = self.store.commit(invocation, &self.table, before, &*after, with).await?;
            Ok(if committed { Break(ended) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }
}
