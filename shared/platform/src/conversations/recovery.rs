//! Conversations that were lost sight of: a wake-up that did not come, a worker that was not heard of, a late answer that did
//! not come, a hold that is over.

use umavez_domain::conversations::ConversationRow;
use umavez_domain::keys::Wake;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Found, StoreError, Written};

impl Conversations {
    /// Those of one shard that wait for an answer, and those whose hold is over.
    pub async fn unanswered(
        &self,
        invocation: &Invocation,
        wake: Wake,
        shard: u32,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Found>, StoreError> {
        self.waiting(invocation, wake, shard, Some(invocation.now), after, limit).await
    }

    /// Wakes one that was not heard of for too long. Whether it was so.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<Option<ConversationRow>, StoreError> {
        let row: Option<ConversationRow> = self.store.get(invocation, &self.table, &found.key).await?;
        let now = invocation.current();
        let Some(row) = row.filter(|row| row.is_overdue(now)) else { return Ok(None) };
        let timing = self.settings(invocation, &row).await?.timing();
        let after = row.recovered(now, &timing);
        match self.store.write(invocation, self.state_write(&row, &after)?).await? {
            Written::New | Written::Mine => Ok(Some(after)),
            Written::Refused(_) => Ok(None),
        }
    }
}
