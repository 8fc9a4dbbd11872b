//! Orders of an operator: set the content, pause, resume, cancel, and send failed entries again.

use std::collections::BTreeMap;

use umavez_domain::codes::SendingHold;
use umavez_domain::keys;
use umavez_domain::mailings::{
    ContentRequest, EntryCounts, KeyedOrder, MailingEvent, MailingId, MailingRow, MailingState, Move, NotMoved,
    list_of, move_mailing,
};

use super::{MailingContentRow, Mailings};
use crate::invocation::Invocation;
use crate::store::{Beside, Decided, Start, StoreError, Write};

/// The outcome of an order, beside the mailing.
#[derive(Debug, PartialEq, Eq)]
pub enum OrderOutcome {
    Done,
    /// The mailing is already in the requested state.
    Already,
    /// The same order was executed before.
    Replayed,
    /// The state of the mailing does not allow this order.
    Refused,
    /// The idempotency key was used for a different order.
    KeyReused,
    /// The content names columns that the file does not have: the unknown names by field.
    Misfits(BTreeMap<&'static str, Vec<String>>),
}

impl From<NotMoved> for OrderOutcome {
    fn from(why: NotMoved) -> Self {
        match why {
            NotMoved::Already => Self::Already,
            NotMoved::Refused => Self::Refused,
        }
    }
}

impl Mailings {
    /// Pauses, resumes or cancels a mailing, as an operator asks. Returns `None` if there is no
    /// such mailing, as all orders do.
    pub async fn order(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        event: MailingEvent,
    ) -> Result<Option<(MailingRow, OrderOutcome)>, StoreError> {
        self.order_unless(invocation, id, event, None, |_| false).await
    }

    /// Pauses a mailing because SES holds back its sending. `seen` is the mailing as it was when
    /// SES refused its sender. If an operator has paused or resumed the mailing since, it stays
    /// unchanged. Returns whether this call paused it.
    pub async fn hold(&self, invocation: &Invocation, seen: &MailingRow, why: SendingHold) -> Result<bool, StoreError> {
        let is_another_run = |row: &MailingRow| row.is_another_run(seen);
        let pause = MailingEvent::Pause;
        let ordered = self.order_unless(invocation, &seen.mailing_id, pause, Some(why), is_another_run).await?;
        Ok(matches!(ordered, Some((_, OrderOutcome::Done))))
    }

    async fn order_unless(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        event: MailingEvent,
        paused_for: Option<SendingHold>,
        is_obsolete: impl Fn(&MailingRow) -> bool,
    ) -> Result<Option<(MailingRow, OrderOutcome)>, StoreError> {
        let rule = |row: &MailingRow| {
            if is_obsolete(row) {
                return (None, OrderOutcome::Already);
            }
            match row.ordered(event, paused_for, invocation.now) {
                Ok(after) => (Some(after), OrderOutcome::Done),
                Err(why) => (None, why.into()),
            }
        };
        Ok(self.change(invocation, Start::Key(keys::mailing(id)), rule).await?.row())
    }

    /// Sets the content of a mailing, or replaces it as long as nothing was sent.
    pub async fn put_content(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        asked: &ContentRequest,
    ) -> Result<Option<(MailingRow, OrderOutcome)>, StoreError> {
        let content = &asked.content;
        let rule = |row: MailingRow| async move {
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
                return Ok(Decided::Stop(OrderOutcome::Already));
            }
            // Check the row that the write is conditional on. If an import ends meanwhile, the
            // commit fails and the next round sees it.
            let misfits = row.progress.format.as_ref().map(|format| content.misfits(format, unsubscribe));
            if let Some(misfits) = misfits.filter(|misfits| !misfits.is_empty()) {
                return Ok(Decided::Stop(OrderOutcome::Misfits(misfits)));
            }
            let open = matches!(row.state, MailingState::Pending | MailingState::Queued | MailingState::Paused);
            if !open || row.started_at.is_some() {
                return Ok(Decided::Stop(OrderOutcome::Refused));
            }
            let content_version = row.content_version + 1;
            let mut after = MailingRow { content_version, named_list, list, unsubscribe, problem: None, ..row.clone() };
            if let Move::To(state) = move_mailing(row.state, MailingEvent::Ready, after.is_ready()) {
                after.state = state;
                after.enqueue_hand_out(invocation.now);
            }
            let stored = MailingContentRow { version: content_version, content: content.clone() };
            let write = Write::put(&self.table, keys::mailing_content(id), &stored)?;
            // The version guarantees that nothing was sent: the start of sending changes it.
            let row = after.changed(&row, invocation.current());
            Ok(Decided::Commit { row, with: vec![Beside::required(write)], out: OrderOutcome::Done })
        };
        let start = Start::Key(keys::mailing(id));
        Ok(self.store.change_with(invocation, &self.table, start, rule).await?.row())
    }

    /// Orders failed entries to be sent again, and also unknown ones if the request says so. The
    /// mailing's row keeps the order with the number of its entries.
    pub async fn retry_failed(
        &self,
        invocation: &Invocation,
        id: &MailingId,
        order: &KeyedOrder,
        include_unknown: bool,
    ) -> Result<Option<(MailingRow, OrderOutcome)>, StoreError> {
        let rule = |row: MailingRow| async move {
            if let Some(known) = row.orders.iter().find(|one| one.key == order.key) {
                let is_same = known.body == order.body;
                return Ok(Decided::Stop(if is_same { OrderOutcome::Replayed } else { OrderOutcome::KeyReused }));
            }
            let counts = self.counts(invocation, id).await?;
            Ok(match row.retry_ordered(order, include_unknown, &counts, invocation.now) {
                Ok(after) => Decided::commit(after.changed(&row, invocation.current()), OrderOutcome::Done),
                Err(why) => Decided::Stop(why.into()),
            })
        };
        let start = Start::Key(keys::mailing(id));
        Ok(self.store.change_with(invocation, &self.table, start, rule).await?.row())
    }

    /// Adds up the counts of all shards.
    pub(super) async fn counts(&self, invocation: &Invocation, id: &MailingId) -> Result<EntryCounts, StoreError> {
        let shards = self.shards(invocation, id).await?;
        Ok(shards.iter().map(|shard| shard.counts).sum())
    }
}
