//! The unit of work: a shard under its lease. A sender takes the shard, goes through its entries,
//! and gives it back. Every write of the sender to the shard is conditional on the epoch of the
//! lease.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::keys;
use umavez_domain::keys::index::BY_TIME;
use umavez_domain::lease::Lease;
use umavez_domain::mailings::{
    AfterPass, EntryCounts, LEASE_MS, Lane, MailingId, MailingRow, ShardRow, ShardState, Take, after_pass, lane_of,
    take,
};
use umavez_domain::queue::ShardJob;
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, Returned, StoreError, Transacted, Write, Written, read_row};

/// A shard that this sender holds, as of its last write.
#[derive(Debug)]
pub struct ShardTurn {
    pub held: Lease,
    /// The row as the current pass knows it.
    pub row: ShardRow,
    /// The row as it was last written.
    stored: ShardRow,
}

#[derive(Debug)]
pub enum Taken {
    Mine(Box<ShardTurn>),
    Busy(Timestamp),
    /// Nothing is left to do in the shard; the caller checks whether that ends the mailing.
    Finished,
    NothingToDo,
}

/// The outcome of the end of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Yes,
    /// Some entries of the shard must be looked at again later.
    Again,
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
        work: &ShardJob,
    ) -> Result<Taken, StoreError> {
        let shard = work.shard;
        let Some(seen) = self.shard(invocation, &mailing.mailing_id, shard).await? else {
            return Ok(Taken::NothingToDo);
        };
        let now = invocation.current();
        let held = match take(seen.state, seen.lease.as_ref(), mailing.state, &invocation.request_id, now) {
            Take::Lease(held) => held,
            Take::Busy { until } => return Ok(Taken::Busy(until)),
            Take::Leave if seen.state == ShardState::Finished => return Ok(Taken::Finished),
            Take::Leave => return Ok(Taken::NothingToDo),
        };
        // The shard was handed over again since: the sender that receives the newer job does the
        // work, at its time. Or the shard rests: its lane has another shard, and hands this one
        // over in its turn.
        if work.seq < seen.work.emits && work.seq > 0 || !seen.is_handed_over() {
            return Ok(Taken::NothingToDo);
        }
        let mut row = ShardRow {
            state: ShardState::Processing,
            lease: Some(held.clone()),
            last_attempt: Some(now),
            due: None,
            ..seen.clone()
        };
        row.work.emit = None;
        // A retry order that came since concerns all entries, so start from the first one.
        if seen.cursor_order != seen.retried {
            row.cursor = None;
        }
        row.wait_until(held.until());
        let write = Write::changes(&self.table, keys::mailing_shard(&mailing.mailing_id, shard), &seen, &row)?;
        match self.store.write(invocation, write.when(Condition::of(&seen.unleased())?)).await? {
            Written::New | Written::Mine => Ok(Taken::Mine(Box::new(ShardTurn { held, stored: row.clone(), row }))),
            Written::Refused(_) => Ok(Taken::Busy(now.plus_ms(1_000))),
        }
    }

    /// Extends the lease and writes the progress of the pass. Returns whether this sender still
    /// holds the shard.
    pub async fn keep_shard(&self, invocation: &Invocation, turn: &mut ShardTurn) -> Result<bool, StoreError> {
        let until = invocation.current().plus_ms(LEASE_MS);
        let mut row = turn.row.clone();
        row.wait_until(until);
        (row.work.recoveries, row.cursor_order) = (0, row.retried);
        row.lease = Some(turn.held.ending(until));
        // Events and orders write these attributes and may have changed them since, so this write
        // leaves them unchanged.
        let ShardRow { touched, retried, retried_unknown, .. } = turn.stored;
        let written = ShardRow { touched, retried, retried_unknown, ..row.clone() };
        let key = keys::mailing_shard(&row.mailing_id, row.shard);
        let write = Write::changes(&self.table, key, &turn.stored, &written)?;
        match self.store.update_returning(invocation, write.when(working(&turn.held)?)).await? {
            Returned::Row(item) => {
                let stored: ShardRow = read_row(item)?;
                turn.held = turn.held.ending(until);
                (row.work.emits, row.work.emit) = (stored.work.emits, stored.work.emit.clone());
                (turn.stored, turn.row) = (stored, row);
                Ok(true)
            }
            Returned::Refused(_) => Ok(false),
        }
    }

    /// Gives the shard back in the middle of a pass. Hands it over again, no earlier than `again`;
    /// `None` hands it to nobody while the mailing is held. Returns whether this sender still held
    /// the shard.
    pub async fn give_back(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        again: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let step = || async {
            let id = &turn.row.mailing_id;
            let Some(seen) = self.shard(invocation, id, turn.row.shard).await? else { return Ok(Break(false)) };
            if !is_mine(&seen, &turn.held) || seen.state != ShardState::Processing {
                return Ok(Break(false));
            }
            let now = invocation.current();
            let ShardRow { counts, cursor, .. } = turn.row.clone();
            let cursor_order = turn.row.retried;
            let mut after = ShardRow { state: ShardState::Pending, counts, cursor, cursor_order, ..seen.clone() };
            after.work.recoveries = 0;
            after.lease = Some(turn.held.ending(now));
            match again {
                Some(at) => after.hand_over(Some(at).filter(|at| *at > now), None, now),
                // If the shard was handed out meanwhile, hand it over as any other. Otherwise it
                // needs no wake-up.
                None if seen.work.emits != turn.row.work.emits => after.hand_over(None, None, now),
                None => after.work.rest(),
            }
            // This sender still holds the shard, and nobody has handed it over since it was read.
            let mine = Condition::all([working(&turn.held)?, Condition::of(&seen.work.fence())?]);
            let write = Write::changes(&self.table, keys::mailing_shard(id, seen.shard), &seen, &after)?;
            Ok(match self.store.write(invocation, write.when(mine)).await? {
                Written::New | Written::Mine => Break(true),
                Written::Refused(_) => Continue(()),
            })
        };
        self.store.retry(invocation, step).await
    }

    /// Ends a pass after the sender went through the shard and counted it: the shard is finished,
    /// or waits. The same transaction hands over the next shard of the lane, which may be the same
    /// one at a later time.
    pub async fn pass_ended(
        &self,
        invocation: &Invocation,
        turn: &ShardTurn,
        counts: EntryCounts,
        next_look: Option<Timestamp>,
    ) -> Result<Finished, StoreError> {
        let id = &turn.row.mailing_id;
        let step = || async {
            let shards = self.shards(invocation, id).await?;
            let Some(seen) = shards.iter().find(|one| one.shard == turn.row.shard) else {
                return Ok(Break(Finished::Lost));
            };
            if !is_mine(seen, &turn.held) || seen.state != ShardState::Processing {
                return Ok(Break(Finished::Lost));
            }
            let same = seen.touched == turn.row.touched
                && (seen.retried, seen.retried_unknown) == (turn.row.retried, turn.row.retried_unknown);
            if !same {
                return Ok(Break(Finished::Changed));
            }
            let now = invocation.current();
            let mut after = ShardRow { counts, cursor: None, ..seen.clone() };
            after.work.recoveries = 0;
            after.work.rest();
            after.lease = Some(turn.held.ending(now));
            let ended = match after_pass(&counts, next_look, now) {
                AfterPass::Finished => {
                    after.state = ShardState::Finished;
                    Finished::Yes
                }
                AfterPass::Again { not_before } => {
                    (after.state, after.due) = (ShardState::Pending, Some(not_before));
                    Finished::Again
                }
            };
            let with_this: Vec<_> =
                shards.iter().map(|one| if one.shard == after.shard { &after } else { one }.clone()).collect();
            let other = match lane_of(after.shard, &with_this, now) {
                Lane::Next(next, at) if next.shard == after.shard => {
                    after.hand_over(at.filter(|at| *at > now), None, now);
                    None
                }
                Lane::Next(next, at) => Some(self.handing_over(next, at, now)?),
                // Check that the other shard is still handed over. Otherwise two shards could rely
                // on each other and both be forgotten.
                Lane::Busy(one) => {
                    let handed_over = Condition::has(BY_TIME.partition);
                    Some(Write::check(&self.table, keys::mailing_shard(id, one.shard), handed_over))
                }
                Lane::Finished => None,
            };
            // This sender holds the shard, its entries and orders are as they were when the entries
            // were counted, and nobody has handed the shard over since it was read.
            let counted = Condition::all([
                working(&turn.held)?,
                Condition::of(&seen.counted_as_read())?,
                Condition::of(&seen.work.fence())?,
            ]);
            let key = keys::mailing_shard(id, seen.shard);
            let mut writes = vec![Write::changes(&self.table, key, seen, &after)?.when(counted)];
            writes.extend(other);
            let done = self.store.transact(invocation, writes).await? == Transacted::Done;
            Ok(if done { Break(ended) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }
}

/// This sender holds the shard, and the shard is being processed. Recovery takes a shard away from
/// a late sender, and a finished shard stays finished.
fn working(held: &Lease) -> Result<Condition, StoreError> {
    Ok(Condition::all([Condition::of(&held.fence())?, Condition::of(&ShardRow::in_state(ShardState::Processing))?]))
}

fn is_mine(row: &ShardRow, held: &Lease) -> bool {
    row.lease.as_ref().is_some_and(|lease| lease.is_same_turn(held))
}
