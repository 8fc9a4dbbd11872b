//! Conversations that were lost sight of: a wake-up that did not come, a worker that was not heard
//! of, a late answer that did not come, a hold that is over.

use umavez_domain::conversations::ConversationRow;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Found, StoreError};

impl Conversations {
    /// Wakes one that was not heard of for too long. Whether it was so.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<Option<ConversationRow>, StoreError> {
        let row: Option<ConversationRow> = self.store.get(invocation, &self.table, &found.key).await?;
        let now = invocation.current();
        let Some(row) = row.filter(|row| row.is_overdue(now)) else { return Ok(None) };
        let timing = self.settings(invocation, &row).await?.timing();
        let after = row.recovered(now, &timing);
        let committed = self.store.commit(invocation, &self.table, &row, &after, Vec::new()).await?;
        Ok(committed.then_some(after))
    }
}
