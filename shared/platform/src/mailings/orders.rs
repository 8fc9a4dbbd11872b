//! Orders of an operator: set the content, pause, resume, cancel, and send failed entries again.

use std::collections::BTreeMap;
use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::codes::SendingHold;
use umavez_domain::keys;
use umavez_domain::mailings::{
    ContentRequest, EntryCounts, ImportState, MailingEvent, MailingId, MailingRow, MailingState, Move, Order, list_of,
    move_mailing,
};

use super::{ContentRow, Mailings};
use crate::invocation::Invocation;
use crate::store::{Committed, Start, StoreError, Write};

/// The number of orders with an idempotency key that a mailing remembers.
const MOST_ORDERS: usize = 50;

/// The outcome of an order.
#[derive(Debug)]
pub enum Ordered {
    Done(Box<MailingRow>),
    /// The mailing is already in the requested state.
    Already(Box<MailingRow>),
    /// The same order was executed before, for this many entries.
    Replayed(Box<MailingRow>, u64),
    /// The state of the mailing does not allow this order.
    Refused(Box<MailingRow>),
    /// The idempotency key was used for a different order.
    KeyReused,
    /// The content names columns that the file does not have: the unknown names by field.
    Misfits(BTreeMap<&'static str, Vec<String>>),
    NoMailing,
}

/// An order to send failed entries again (a retry order).
#[derive(Debug)]
pub struct Retry {
    pub include_unknown: bool,
    pub order: Order,
}

impl Mailings {
    /// Pauses, resumes or cancels a mailing, as an operator asks.
    pub async fn order(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        event: MailingEvent,
    ) -> Result<Ordered, StoreError> {
        self.order_unless(invocation, id, event, None, |_| false).await
    }

    /// Pauses a mailing because SES holds back its sending. `seen` is the mailing as it was when
    /// SES refused its sender. If an operator has paused or resumed the mailing since, it stays
    /// unchanged. Returns whether this call paused it.
    pub async fn hold(&self, invocation: &Invocation, seen: &MailingRow, why: SendingHold) -> Result<bool, StoreError> {
        let run_of = |row: &MailingRow| row.run.map(|run| run.since);
        let is_another_run = |row: &MailingRow| run_of(row) != run_of(seen);
        let pause = MailingEvent::Pause;
        let ordered = self.order_unless(invocation, &seen.mailing_id, pause, Some(why), is_another_run).await?;
        Ok(matches!(ordered, Ordered::Done(_)))
    }

    async fn order_unless(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        event: MailingEvent,
        paused_for: Option<SendingHold>,
        is_obsolete: impl Fn(&MailingRow) -> bool,
    ) -> Result<Ordered, StoreError> {
        let rule = |row: &MailingRow| {
            if is_obsolete(row) {
                return (None, Move::Already);
            }
            let moved = move_mailing(row.state, event, row.is_ready());
            let Move::To(state) = moved else { return (None, moved) };
            let mut after = MailingRow { state, paused_for, ..row.clone() };
            if state == MailingState::Paused {
                after.run = None;
            }
            let imported = row.import == ImportState::Done;
            match state {
                // During the import, keep the importer's own emission and wake-up.
                MailingState::Paused if imported => after.work.rest(),
                MailingState::Queued => after.hand_out(invocation.now),
                MailingState::Canceled => {
                    after.finished_at = Some(invocation.now);
                    match row.import {
                        // The senders cancel the entries.
                        ImportState::Done => after.hand_out(invocation.now),
                        // The senders also cancel the entries that exist by now, as soon as the
                        // importer has counted them.
                        ImportState::Queued | ImportState::Running => after.hand_to_importer(invocation.now),
                        ImportState::AwaitingUpload | ImportState::Failed => after.work.rest(),
                    }
                }
                _ => {}
            }
            (Some(after), moved)
        };
        Ok(match self.change(invocation, Start::Key(keys::mailing(id)), rule).await? {
            Committed::Done(row, _) => Ordered::Done(Box::new(row)),
            Committed::Stopped(row, Move::Refused) => Ordered::Refused(Box::new(row)),
            Committed::Stopped(row, _) => Ordered::Already(Box::new(row)),
            Committed::Gone => Ordered::NoMailing,
        })
    }

    /// Sets the content of a mailing, or replaces it as long as nothing was sent.
    pub async fn put_content(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        asked: &ContentRequest,
    ) -> Result<Ordered, StoreError> {
        let content = &asked.content;
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else { return Ok(Break(Ordered::NoMailing)) };
            let stored = self.content(invocation, id).await?;
            // A setting that the request omits keeps the mailing's value, by default that of the
            // upload.
            let named_list = asked.list.clone().or_else(|| row.named_list.clone());
            let list = list_of(named_list.as_deref(), Some(&content.from));
            let unsubscribe = asked.unsubscribe.unwrap_or(row.unsubscribe);
            let same_list = row.list == list && row.unsubscribe == unsubscribe;
            if stored.is_some_and(|stored| stored.content == *content && stored.version == row.content_version)
                && same_list
            {
                return Ok(Break(Ordered::Already(Box::new(row))));
            }
            // Check the row that the write is conditional on. If an import ends meanwhile, the
            // commit fails and the next round sees it.
            let misfits = row.progress.format.as_ref().map(|format| content.misfits(format, unsubscribe));
            if let Some(misfits) = misfits.filter(|misfits| !misfits.is_empty()) {
                return Ok(Break(Ordered::Misfits(misfits)));
            }
            let open = matches!(row.state, MailingState::Pending | MailingState::Queued | MailingState::Paused);
            if !open || row.started_at.is_some() {
                return Ok(Break(Ordered::Refused(Box::new(row))));
            }
            let mut after = MailingRow {
                content_version: row.content_version + 1,
                named_list,
                list,
                unsubscribe,
                problem: None,
                ..row.clone()
            };
            if let Move::To(state) = move_mailing(row.state, MailingEvent::Ready, after.is_ready()) {
                after.state = state;
                after.hand_out(invocation.now);
            }
            let stored = ContentRow { version: after.content_version, content: content.clone() };
            let write = Write::put(&self.table, keys::mailing_content(id), &stored)?;
            // The version guarantees that nothing was sent: the start of sending changes it.
            let committed = self.commit_with(invocation, &row, after, vec![write]).await?;
            Ok(committed.map_or(Continue(()), |row| Break(Ordered::Done(Box::new(row)))))
        };
        self.store.retry(invocation, step).await
    }

    /// Orders failed entries to be sent again, and also unknown ones if the request says so.
    pub async fn retry_failed(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        asked: &Retry,
    ) -> Result<(Ordered, EntryCounts), StoreError> {
        let step = || async {
            let Some(row) = self.get(invocation, id).await? else {
                return Ok(Break((Ordered::NoMailing, EntryCounts::default())));
            };
            if let Some(known) = row.orders.iter().find(|one| one.key == asked.order.key) {
                let (entries, same) = (known.entries, known.body == asked.order.body);
                let answer = if same { Ordered::Replayed(Box::new(row), entries) } else { Ordered::KeyReused };
                return Ok(Break((answer, EntryCounts::default())));
            }
            let moved = move_mailing(row.state, MailingEvent::Reopened, row.is_ready());
            let counts = self.counts(invocation, id).await?;
            if moved == Move::Refused {
                return Ok(Break((Ordered::Refused(Box::new(row)), counts)));
            }
            if counts.failed == 0 && !(asked.include_unknown && counts.unknown > 0) {
                return Ok(Break((Ordered::Already(Box::new(row)), counts)));
            }
            let mut after = MailingRow { retry: row.retry + 1, ..row.clone() };
            if asked.include_unknown {
                after.retry_unknown = after.retry;
            }
            if let Move::To(state) = moved {
                (after.state, after.finished_at) = (state, None);
            }
            if row.state != MailingState::Paused {
                after.hand_out(invocation.now);
            }
            let entries = counts.failed + if asked.include_unknown { counts.unknown } else { 0 };
            after.orders.push(Order { entries, ..asked.order.clone() });
            let surplus = after.orders.len().saturating_sub(MOST_ORDERS);
            after.orders.drain(..surplus);
            let committed = self.commit_with(invocation, &row, after, Vec::new()).await?;
            Ok(committed.map_or(Continue(()), |row| Break((Ordered::Done(Box::new(row)), counts))))
        };
        self.store.retry(invocation, step).await
    }

    /// Adds up the counts of all shards.
    pub(super) async fn counts(&self, invocation: &Invocation, id: &MailingId) -> Result<EntryCounts, StoreError> {
        let shards = self.shards(invocation, id).await?;
        Ok(shards.iter().fold(EntryCounts::default(), |all, shard| all.plus(shard.counts)))
    }
}
