//! Enqueues shards for senders: the first of each group, the shards that senders released, and the
//! shards that a retry order concerns.

use std::ops::ControlFlow::{Break, Continue};

use futures::future::try_join_all;
use umavez_domain::mailings::{ImportState, MailingId, MailingRow, ShardRow, shards_to_enqueue};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::StoreError;

impl Mailings {
    /// Enqueues one shard of each group of a mailing: after new content, a resume, a cancel, or a
    /// retry order. If it runs twice, it enqueues a shard twice; because of the lease, the effect
    /// is the same.
    pub async fn enqueue_shards(&self, invocation: &Invocation, id: &MailingId) -> Result<(), StoreError> {
        let Some(row) = self.get(invocation, id).await?.filter(MailingRow::needs_senders) else { return Ok(()) };
        if row.import == ImportState::Failed && self.shards(invocation, id).await?.is_empty() {
            self.create_shards(invocation, &row).await?;
        }
        let row = &row;
        let step = || async move {
            let now = invocation.current();
            let shards = self.shards(invocation, id).await?;
            let following = shards.iter().map(|shard| self.follow_order(invocation, row, shard));
            let Some(shards) = try_join_all(following).await?.into_iter().collect::<Option<Vec<_>>>() else {
                return Ok(Continue(()));
            };
            let to_enqueue = shards_to_enqueue(&shards, now);
            if to_enqueue.is_empty() {
                // Every shard is finished: only the mailing is left to end.
                self.complete(invocation, id).await?;
                return Ok(Break(()));
            }
            let mut refused = false;
            for (shard, not_before) in to_enqueue {
                let after = shard.enqueued(not_before, now);
                refused |= !self.store.commit(invocation, &self.table, shard, &after, Vec::new()).await?;
            }
            // Since the shards were read, a sender has released one or continued with the next of
            // its group. Look at all of them again.
            if refused {
                return Ok(Continue(()));
            }
            self.shards_enqueued(invocation, row).await.map(Break)
        };
        self.store.retry(invocation, step).await
    }

    /// Clears the mailing's own emission, unless there is a newer one.
    async fn shards_enqueued(&self, invocation: &Invocation, row: &MailingRow) -> Result<(), StoreError> {
        let emits = row.work.emits;
        let rule = |row: &MailingRow| (row.shards_enqueued(emits, invocation.current()), ());
        self.change(invocation, row, rule).await.map(drop)
    }

    /// Records the latest retry order in a shard. Returns `None` if the shard has changed since it
    /// was read.
    async fn follow_order(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        shard: &ShardRow,
    ) -> Result<Option<ShardRow>, StoreError> {
        if shard.retried >= mailing.retry {
            return Ok(Some(shard.clone()));
        }
        let after = shard.following_order(mailing);
        let committed = self.store.commit(invocation, &self.table, shard, &after, Vec::new()).await?;
        Ok(committed.then_some(after))
    }
}
