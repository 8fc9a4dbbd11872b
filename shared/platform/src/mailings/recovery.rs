//! Recovers stalled work: a shard whose sender stopped, an emission that no worker received, a file
//! that did not arrive.

use umavez_domain::codes::Reason;
use umavez_domain::keys;
use umavez_domain::mailings::{Completion, ImportProblem, ImportState, MailingId, MailingRow, ShardRow};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Decided, Found, Start, StoreError};

/// The action that recovery took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailingRecovery {
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
    /// Enqueues stalled work again. Returns what it did.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<MailingRecovery, StoreError> {
        match keys::mailing_of(&found.key) {
            Some((id, Some(shard))) => self.recover_shard(invocation, &id, shard, found).await,
            Some((id, None)) => self.recover_mailing(invocation, &id, found).await,
            None => Ok(MailingRecovery::Left),
        }
    }

    async fn recover_shard(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        shard: u32,
        found: &Found,
    ) -> Result<MailingRecovery, StoreError> {
        let Some(mailing) = self.get(invocation, id).await? else { return Ok(MailingRecovery::Left) };
        let rule = |shard: &ShardRow| {
            let recovered =
                shard.work.waits_at(&found.place).then(|| shard.recovered(mailing.needs_senders(), invocation.now));
            Ok(match recovered.flatten() {
                Some((after, is_stalled)) => Decided::commit(after, is_stalled),
                None => Decided::Stop(false),
            })
        };
        let start = Start::Key(keys::mailing_shard(id, shard));
        if self.store.change(invocation, &self.table, start, rule).await?.out() != Some(true) {
            return Ok(MailingRecovery::Left);
        }
        self.abandon(invocation, id).await?;
        Ok(MailingRecovery::Shard)
    }

    /// Moves a mailing from `PROCESSING` back to `PENDING` if no sender works on it any more.
    async fn abandon(&self, invocation: &Invocation, id: &MailingId) -> Result<(), StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(()) };
        let shards = self.shards(invocation, id).await?;
        if let Some(after) = row.abandoned(&shards, invocation.now) {
            // If the row has changed meanwhile, a worker is active: the lost race is a no-op.
            self.commit_once(invocation, &row, after).await?;
        }
        Ok(())
    }

    /// Commits a change of a mailing that was read as `before`. Returns `false` if the mailing has
    /// changed since it was read.
    async fn commit_once(
        &self,
        invocation: &Invocation,
        before: &MailingRow,
        after: MailingRow,
    ) -> Result<bool, StoreError> {
        let after = after.changed(before, invocation.current());
        self.store.commit(invocation, &self.table, before, &after, Vec::new()).await
    }

    async fn recover_mailing(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        found: &Found,
    ) -> Result<MailingRecovery, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(MailingRecovery::Left) };
        if !row.work.waits_at(&found.place) {
            return Ok(MailingRecovery::Left);
        }
        let now = invocation.now;
        let mut after = row.clone();
        after.work.recovered();
        let recovered = match row.import {
            ImportState::AwaitingUpload => {
                let missing = ImportProblem::of_object(Reason::InputMissing);
                let failed = self.import_failed(invocation, None, id, missing).await?;
                return Ok(failed.map_or(MailingRecovery::Left, |_| MailingRecovery::GivenUp));
            }
            ImportState::Queued | ImportState::Running => {
                after.enqueue_import(now);
                MailingRecovery::Import
            }
            ImportState::Done | ImportState::Failed => {
                let shards = self.shards(invocation, id).await?;
                let ordered = row.has_new_order(&shards);
                match self.complete(invocation, id).await? {
                    Some((Completion::Complete(_), true)) => return Ok(MailingRecovery::Completed),
                    // Nothing is left to do, unless a shard has not followed the latest retry
                    // order. In that case, its shards are enqueued again below.
                    Some((Completion::Complete(_), false)) if !ordered => return Ok(MailingRecovery::Left),
                    Some((Completion::Mismatch { .. }, _)) => {
                        after.watch(now);
                        self.commit_once(invocation, &row, after).await?;
                        return Ok(MailingRecovery::Mismatch);
                    }
                    Some((Completion::Complete(_) | Completion::Open(_), _)) | None => {}
                }
                let (recovered, is_stalled) = row.shards_recovered(&shards, now);
                after = recovered;
                if is_stalled { MailingRecovery::HandedOut } else { MailingRecovery::Left }
            }
        };
        let committed = self.commit_once(invocation, &row, after).await?;
        Ok(if committed { recovered } else { MailingRecovery::Left })
    }
}
