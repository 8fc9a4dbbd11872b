//! A mailing is begun by its first sender, and ended by whoever finishes its last shard.

use umavez_domain::mailings::{
    Completion, ImportState, MailingEvent, MailingId, MailingRow, MailingState, Move, SendingRun, ShardState,
    completion, move_mailing,
};

use super::{Mailings, ROUNDS};
use crate::invocation::Invocation;
use crate::store::StoreError;

impl Mailings {
    /// A sender has taken a shard: the mailing is being sent. `None`: it is not to be, by now.
    pub async fn begin(&self, invocation: &Invocation, row: MailingRow) -> Result<Option<MailingRow>, StoreError> {
        let mut row = row;
        for _ in 0..ROUNDS {
            let state = match move_mailing(row.state, MailingEvent::Begun, row.is_ready()) {
                Move::To(state) => state,
                Move::Already => return Ok(Some(row)),
                Move::Refused => return Ok(None),
            };
            let now = invocation.current();
            let started_at = row.started_at.or(Some(now));
            let counts = self.counts(invocation, &row.mailing_id).await?;
            let run = Some(SendingRun { since: now, sent: counts.sent, tried: counts.tried() });
            let mut after = MailingRow { state, started_at, last_attempt: Some(now), run, ..row.clone() };
            if row.wake.is_none() {
                after.is_watched(now);
            }
            match self.change(invocation, &row, after).await? {
                Ok(row) => return Ok(Some(row)),
                Err(Some(met)) => row = met,
                Err(None) => return Ok(None),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Ends the mailing if all of its shards are finished and their counts add up. What was found is told in any case.
    pub async fn complete(
        &self,
        invocation: &Invocation,
        id: &MailingId,
    ) -> Result<Option<(Completion, Option<MailingRow>)>, StoreError> {
        for _ in 0..ROUNDS {
            let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
            let shards = self.shards(invocation, id).await?;
            let finished: Vec<_> = shards
                .iter()
                .filter(|shard| shard.state == ShardState::Finished)
                .map(|shard| (shard.shard, shard.counts))
                .collect();
            let partial = row.progress.partial;
            let found = completion(row.shards, &finished, (!partial).then(|| row.progress.entries()));
            let imported = matches!(row.import, ImportState::Done | ImportState::Failed);
            let Completion::Complete(counts) = &found else { return Ok(Some((found, None))) };
            if !imported {
                return Ok(Some((found, None)));
            }
            // An order that a shard has not followed yet will reopen it.
            let ordered = shards.iter().any(|shard| shard.retried < row.retry);
            let mut after = row.clone();
            if partial {
                after.progress.correct(counts);
            }
            match move_mailing(row.state, MailingEvent::Finished, row.is_ready()) {
                _ if ordered && row.state != MailingState::Canceled => return Ok(Some((found, None))),
                Move::To(state) => {
                    (after.state, after.finished_at) = (state, Some(invocation.current()));
                    after.rests();
                }
                _ if row.wake.is_some() => after.rests(),
                _ => return Ok(Some((found, None))),
            }
            let ended = after.state != row.state;
            if let Ok(row) = self.change(invocation, &row, after).await? {
                return Ok(Some((found, Some(row).filter(|_| ended))));
            }
        }
        Err(StoreError::Conflict)
    }
}
