//! Keeps unanswered messages from expiring while their conversation is held, or waits for a
//! person, for longer than the retention period.
//!
//! Messages are stored with the retention period, and most are answered within it. Recovery looks
//! at each conversation that waits, and extends the time of its unanswered messages shortly before
//! it ends. The messages are written first and the conversation last, so a crash in between is
//! repeated by the next run. A message that is answered meanwhile is kept a few days longer.

use futures::StreamExt;
use umavez_domain::conversations::{ConversationRow, KeptMessages, unanswered_before};
use umavez_domain::keys::EXPIRES_AT;
use umavez_domain::time::Timestamp;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Condition, Found, StoreError, Write, Written};

/// The messages of one query, and the writes that are made at the same time.
const PAGE: usize = 200;
const AT_ONCE: usize = 8;

impl Conversations {
    /// Returns the time before which the oldest unanswered message of a conversation must have
    /// arrived for the conversation to be looked at.
    pub fn unanswered_before(&self, now: Timestamp) -> Timestamp {
        unanswered_before(now, self.messages.retention_days)
    }

    /// Extends the time of the unanswered messages of a conversation, if it ends soon. Returns what
    /// was extended; `None` if there was nothing to do, or if the conversation has changed since it
    /// was read.
    pub async fn keep_messages(
        &self,
        invocation: &Invocation,
        found: &Found,
    ) -> Result<Option<KeptMessages>, StoreError> {
        let row: Option<ConversationRow> = self.store.get(invocation, &self.table, &found.key).await?;
        let Some(row) = row else { return Ok(None) };
        let kept = row.keeping_messages(invocation.current(), self.messages.retention_days);
        let Some(kept) = kept else { return Ok(None) };
        let mut query = self.numbered(&row, row.course.answered + 1, row.course.received).limit(PAGE);
        let mut is_last = false;
        while !is_last {
            let found = self.store.nominate(invocation, &query).await?;
            is_last = found.len() < PAGE;
            query = query.after(found.last().map(|found| found.place.clone()));
            self.extend(invocation, found, kept.until).await?;
        }
        let committed = self.store.commit(invocation, &self.table, &row, &kept.row, Vec::new()).await?;
        Ok(committed.then_some(kept))
    }

    async fn extend(&self, invocation: &Invocation, found: Vec<Found>, until: i64) -> Result<(), StoreError> {
        let writes = found.into_iter().map(|found| {
            // The message still exists, and would expire earlier.
            let expires_earlier = Condition::at_most(EXPIRES_AT, until - 1);
            Write::update(&self.table, found.key).set_number(EXPIRES_AT, until).when(expires_earlier)
        });
        let made = writes.map(|write| self.store.write(invocation, write));
        let made: Vec<Result<Written, StoreError>> =
            futures::stream::iter(made).buffer_unordered(AT_ONCE).collect().await;
        made.into_iter().try_for_each(|written| written.map(drop))
    }
}
