//! Recovers stalled conversations: a wake-up that was lost, a worker that stopped, a late answer
//! that did not arrive, a hold that has ended.

use umavez_domain::conversations::ConversationRow;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Found, StoreError};

impl Conversations {
    /// Wakes a conversation that is overdue. Returns its new row; `None` if it was not overdue, or
    /// has changed since it was read.
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
