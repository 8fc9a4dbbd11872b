//! The start and end of a mailing: its first sender starts it, and the worker that finishes its
//! last shard ends it.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::mailings::{
    Completion, ImportState, MailingEvent, MailingId, MailingRow, MailingState, Move, SendingRun, ShardState,
    completion, move_mailing,
};

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::StoreError;

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
        let run = Some(SendingRun { since: now, sent: counts.sent, tried: counts.tried() });
        let rule = |row: &MailingRow| match move_mailing(row.state, MailingEvent::Begun, row.is_ready()) {
            Move::To(state) => {
                let started_at = row.started_at.or(Some(now));
                let mut after = MailingRow { state, started_at, last_attempt: Some(now), run, ..row.clone() };
                if row.work.wake.is_none() {
                    after.watch(now);
                }
                (Some(after), true)
            }
            Move::Already => (None, true),
            Move::Refused => (None, false),
        };
        let committed = self.change(invocation, &row, rule).await?;
        Ok(committed.row().and_then(|(row, is_begun)| is_begun.then_some(row)))
    }

    /// Ends the mailing if all of its shards are finished and their counts add up. Returns the
    /// completion that it found and, if this call ended the mailing, the new row. Returns `None` if
    /// there is no such mailing.
    pub async fn complete(
        &self,
        invocation: &Invocation,
        id: &MailingId,
    ) -> Result<Option<(Completion, Option<MailingRow>)>, StoreError> {
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else { return Ok(Break(None)) };
            let shards = self.shards(invocation, id).await?;
            let finished: Vec<_> = shards
                .iter()
                .filter(|shard| shard.state == ShardState::Finished)
                .map(|shard| (shard.shard, shard.counts))
                .collect();
            let partial = row.progress.partial;
            let found = completion(row.shards, &finished, (!partial).then(|| row.progress.entries()));
            let imported = matches!(row.import, ImportState::Done | ImportState::Failed);
            let Completion::Complete(counts) = &found else { return Ok(Break(Some((found, None)))) };
            if !imported {
                return Ok(Break(Some((found, None))));
            }
            // A shard that has not followed the latest retry order yet will be reopened.
            let ordered = shards.iter().any(|shard| shard.retried < row.retry);
            let mut after = row.clone();
            if partial {
                after.progress.correct(counts);
            }
            match move_mailing(row.state, MailingEvent::Finished, row.is_ready()) {
                _ if ordered && row.state != MailingState::Canceled => return Ok(Break(Some((found, None)))),
                Move::To(state) => {
                    (after.state, after.finished_at) = (state, Some(invocation.current()));
                    after.work.rest();
                }
                _ if row.work.wake.is_some() => after.work.rest(),
                _ => return Ok(Break(Some((found, None)))),
            }
            let ended = after.state != row.state;
            let committed = self.commit_with(invocation, &row, after, Vec::new()).await?;
            Ok(committed.map_or(Continue(()), |row| Break(Some((found, Some(row).filter(|_| ended))))))
        };
        self.store.retry(invocation, step).await
    }
}
