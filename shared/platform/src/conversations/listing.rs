//! Lists for people: a conversation with its messages and batches, and the conversations that wait
//! for a person.

use umavez_domain::conversations::batch::MOST_MESSAGES;
use umavez_domain::conversations::{BatchRow, ConversationRow, StoredMessage};
use umavez_domain::keys::index::BY_PLACE;
use umavez_domain::keys::{self, WAKE_SHARDS, Wake};
use umavez_domain::time::Timestamp;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Query, StoreError};

impl Conversations {
    /// Reads messages that are answered or will be, the newest first, with numbers below `before`.
    pub async fn latest_messages(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let last = before.map_or(row.course.received, |before| before.saturating_sub(1));
        if last == 0 {
            return Ok(Vec::new());
        }
        self.store.rows(invocation, &self.numbered(row, 1, last).newest_first().limit(limit)).await
    }

    /// Reads messages that get no answer: history, and messages that persons wrote.
    pub async fn asides(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let (from, to) = keys::conversation_asides();
        let query = Query::index(&self.table, BY_PLACE, keys::conversation_partition(&row.id)).between(from, to);
        self.store.rows(invocation, &query.newest_first().limit(limit)).await
    }

    /// Reads the batches that contain one of these messages, the newest first. The key of a batch
    /// is its last message, and the batch with the newest of these messages ends at most
    /// [`MOST_MESSAGES`] later.
    pub async fn batches(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        oldest: u64,
        newest: u64,
    ) -> Result<Vec<BatchRow>, StoreError> {
        let last = newest + MOST_MESSAGES as u64;
        let (from, to) = (keys::conversation_batch_place(oldest), keys::conversation_batch_place(last));
        let most = usize::try_from(last - oldest + 1).unwrap_or(usize::MAX);
        let query = Query::partition(&self.table, keys::conversation_partition(&row.id)).between(from, to);
        let mut batches: Vec<BatchRow> = self.store.rows(invocation, &query.newest_first().limit(most)).await?;
        batches.retain(|batch| batch.from <= newest);
        Ok(batches)
    }

    /// Reads the latest batches, the newest first.
    pub async fn latest_batches(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        limit: usize,
    ) -> Result<Vec<BatchRow>, StoreError> {
        let query = Query::partition(&self.table, keys::conversation_partition(&row.id));
        let query = query.prefix(keys::CONVERSATION_BATCH_PREFIX).newest_first().limit(limit);
        self.store.rows(invocation, &query).await
    }

    /// Reads a page of the conversations that wait for `wake`, the longest waiting first. Returns
    /// it with the place where the next page starts.
    pub async fn waiting_page(
        &self,
        invocation: &Invocation,
        wake: Wake,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<ConversationRow>, Option<String>), StoreError> {
        let (found, next) = self.store.waiting_page(invocation, &self.table, wake, after, limit).await?;
        let rows = found.into_iter().map(|found| async move {
            let row: Option<ConversationRow> = self.store.get(invocation, &self.table, &found.key).await?;
            // The index may lag behind.
            Ok::<_, StoreError>(row.filter(|row| row.work.waits_at(&found.place)))
        });
        let rows = futures::future::try_join_all(rows).await?;
        Ok((rows.into_iter().flatten().collect(), next))
    }

    /// Returns since when the contact with the longest wait has waited for an answer. Conversations
    /// that are held do not count.
    pub async fn oldest_unanswered(&self, invocation: &Invocation) -> Result<Option<Timestamp>, StoreError> {
        let mut oldest: Option<Timestamp> = None;
        for (wake, shard) in
            [Wake::Check, Wake::Human].into_iter().flat_map(|wake| (0..WAKE_SHARDS).map(move |s| (wake, s)))
        {
            let first = self.store.nominate(invocation, &Query::waiting(&self.table, wake, shard).limit(1)).await?;
            let since = first.first().and_then(|found| keys::time_of(&found.place));
            oldest = oldest.into_iter().chain(since).min();
        }
        Ok(oldest)
    }
}
