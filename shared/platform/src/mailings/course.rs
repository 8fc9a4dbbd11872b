//! The start and end of a mailing: its first sender starts it, and the worker that finishes its
//! last shard ends it.

use umavez_domain::keys;
use umavez_domain::mailings::{Completion, MailingEvent, MailingId, MailingRow, Move, NotMoved, move_mailing};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Decided, Start, StoreError};

impl Mailings {
    /// Marks the mailing as being sent, after a sender has taken a shard. Returns `None` if the
    /// mailing must not be sent any more.
    pub async fn begin(&self, invocation: &Invocation, row: MailingRow) -> Result<Option<MailingRow>, StoreError> {
        let counts = match move_mailing(row.state, MailingEvent::Begun, row.is_ready()) {
            Move::To(_) => self.counts(invocation, &row.mailing_id).await?,
            Move::Already => return Ok(Some(row)),
            Move::Refused => return Ok(None),
        };
        let now = invocation.current();
        let rule = |row: &MailingRow| match row.begun(&counts, now) {
            Ok(after) => (Some(after), true),
            Err(why) => (None, why == NotMoved::Already),
        };
        let committed = self.change(invocation, &row, rule).await?;
        Ok(committed.row().and_then(|(row, is_begun)| is_begun.then_some(row)))
    }

    /// Ends the mailing if all of its shards are finished and their counts add up. Returns the
    /// completion that it found, and whether this call ended the mailing. Returns `None` if there
    /// is no such mailing.
    pub async fn complete(
        &self,
        invocation: &Invocation,
        id: &MailingId,
    ) -> Result<Option<(Completion, bool)>, StoreError> {
        let rule = |row: MailingRow| async move {
            let shards = self.shards(invocation, id).await?;
            let now = invocation.current();
            Ok(match row.completed(&shards, now) {
                (found, Some(after)) => {
                    let is_ended = after.state != row.state;
                    Decided::commit(after.changed(&row, now), (found, is_ended))
                }
                (found, None) => Decided::Stop((found, false)),
            })
        };
        let start = Start::Key(keys::mailing(id));
        Ok(self.store.change_with(invocation, &self.table, start, rule).await?.out())
    }
}
