//! Recovers stalled work: a shard whose sender stopped, an emission that no worker received, a file
//! that did not arrive.

use umavez_domain::codes::Reason;
use umavez_domain::keys;
use umavez_domain::mailings::{
    Completion, ImportState, MailingEvent, MailingId, MailingRow, Move, Recover, ShardRow, ShardState, is_abandoned,
    move_mailing, recover_shard, to_hand_out,
};

use super::Mailings;
use super::handing_out::is_worked_on;
use crate::invocation::Invocation;
use crate::store::{Condition, Found, StoreError, Write, Written};

/// The action that recovery took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    Shard,
    Import,
    /// The file did not arrive.
    GivenUp,
    HandedOut,
    Completed,
    Mismatch,
    Left,
}

impl Mailings {
    /// Hands stalled work over again. Returns what it did.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<Recovered, StoreError> {
        match keys::mailing_of(&found.key) {
            Some((id, Some(shard))) => self.recover_shard(invocation, &id, shard, found).await,
            Some((id, None)) => self.recover_mailing(invocation, &id, found).await,
            None => Ok(Recovered::Left),
        }
    }

    async fn recover_shard(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        shard: u32,
        found: &Found,
    ) -> Result<Recovered, StoreError> {
        let (Some(mailing), Some(seen)) = (self.get(invocation, id).await?, self.shard(invocation, id, shard).await?)
        else {
            return Ok(Recovered::Left);
        };
        if seen.work.wake_at.as_deref() != Some(&found.place) {
            return Ok(Recovered::Left);
        }
        let now = invocation.now;
        let lost = recover_shard(id, shard, seen.state, seen.lease.as_ref(), now);
        let mut after = seen.clone();
        after.work.recovered();
        let unchanged = match (&lost, seen.state) {
            (Recover::Requeue { .. }, _) => {
                (after.state, after.last_attempt) = (ShardState::Pending, None);
                Condition::of(&seen.unleased())?
            }
            // The shard was handed over, and no sender took it.
            (Recover::Leave, ShardState::Pending) => Condition::of(&seen.handed_over_as_read())?,
            // The shard is finished and needs no wake-up.
            (Recover::Leave, ShardState::Finished) => {
                after.work.recoveries = seen.work.recoveries;
                Condition::of(&ShardRow::in_state(ShardState::Finished))?
            }
            (Recover::Leave, ShardState::Processing) => return Ok(Recovered::Left),
        };
        let emit_id = match lost {
            Recover::Requeue { emit_id, .. } => Some(emit_id),
            Recover::Leave => None,
        };
        match is_worked_on(&mailing) && seen.state != ShardState::Finished {
            true => after.hand_over(None, emit_id, now),
            false => after.work.rest(),
        }
        let key = keys::mailing_shard(id, shard);
        let write = Write::changes(&self.table, key, &seen, &after)?.when(unchanged);
        let refused = matches!(self.store.write(invocation, write).await?, Written::Refused(_));
        if refused || seen.state == ShardState::Finished {
            return Ok(Recovered::Left);
        }
        self.abandon(invocation, id).await?;
        Ok(Recovered::Shard)
    }

    /// Moves a mailing from `PROCESSING` back to `PENDING` if no sender works on it any more.
    async fn abandon(&self, invocation: &Invocation, id: &MailingId) -> Result<(), StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(()) };
        let shards = self.shards(invocation, id).await?;
        let leases = shards.iter().map(|shard| (shard.state, shard.lease.as_ref()));
        if !is_abandoned(row.state, leases, invocation.now) {
            return Ok(());
        }
        if let Move::To(state) = move_mailing(row.state, MailingEvent::Abandoned, row.is_ready()) {
            let after = MailingRow { state, last_attempt: None, ..row.clone() };
            // If the row has changed meanwhile, a worker is active: the lost race is a no-op.
            self.commit_with(invocation, &row, after, Vec::new()).await?;
        }
        Ok(())
    }

    async fn recover_mailing(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        found: &Found,
    ) -> Result<Recovered, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(Recovered::Left) };
        if row.work.wake_at.as_deref() != Some(&found.place) {
            return Ok(Recovered::Left);
        }
        let now = invocation.now;
        let mut after = row.clone();
        after.work.recovered();
        let recovered = match row.import {
            ImportState::AwaitingUpload => {
                let missing = Self::missing(Reason::InputMissing);
                let failed = self.import_failed(invocation, None, id, missing).await?;
                return Ok(failed.map_or(Recovered::Left, |_| Recovered::GivenUp));
            }
            ImportState::Queued | ImportState::Running => {
                after.hand_to_importer(now);
                Recovered::Import
            }
            ImportState::Done | ImportState::Failed => {
                let shards = self.shards(invocation, id).await?;
                let ordered = shards.iter().any(|shard| shard.retried < row.retry);
                match self.complete(invocation, id).await? {
                    Some((Completion::Complete(_), Some(_))) => return Ok(Recovered::Completed),
                    // Nothing is left to do, unless a shard has not followed the latest retry
                    // order. In that case, the mailing is handed out again below.
                    Some((Completion::Complete(_), None)) if !ordered => return Ok(Recovered::Left),
                    Some((Completion::Complete(_), None)) => {}
                    Some((Completion::Mismatch { .. }, _)) => {
                        after.watch(now);
                        self.commit_with(invocation, &row, after, Vec::new()).await?;
                        return Ok(Recovered::Mismatch);
                    }
                    Some((Completion::Open(_), _)) | None => {}
                }
                let still = to_hand_out(&shards, now).into_iter().any(|(shard, _)| !shard.is_handed_over());
                let told = row.work.emit.is_some() || ordered;
                match is_worked_on(&row) && (still || told) {
                    true => after.hand_out(now),
                    false => {
                        after.work.recoveries = 0;
                        after.watch(now);
                    }
                }
                if still || told { Recovered::HandedOut } else { Recovered::Left }
            }
        };
        let committed = self.commit_with(invocation, &row, after, Vec::new()).await?;
        Ok(committed.map_or(Recovered::Left, |_| recovered))
    }
}
