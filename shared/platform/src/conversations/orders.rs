//! Orders of an operator: hold a conversation, and release it.

use umavez_domain::conversations::{ConversationId, ConversationRow, Course, HeldBy, Hold, Phase};
use umavez_domain::delivery::Cancel;
use umavez_domain::messages::MessageId;
use umavez_domain::time::Timestamp;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Committed, Next, StoreError};

/// The outcome of an order. The functions return `None` if there is no such conversation.
#[derive(Debug)]
pub struct Ordered {
    pub row: ConversationRow,
    /// Whether the order changed anything.
    pub changed: bool,
}

/// The outcome of a hold.
#[derive(Debug)]
pub struct Held {
    pub row: ConversationRow,
    /// A reply that was in flight before the hold, and one that was already sent.
    pub in_flight: Option<MessageId>,
    pub already_sent: Option<MessageId>,
}

impl Conversations {
    /// Keeps the bot silent, and cancels a reply that was not sent yet.
    pub async fn hold(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
        until: Option<Timestamp>,
    ) -> Result<Option<Held>, StoreError> {
        let since = invocation.now.millis();
        let hold = Hold { by: HeldBy::Operator, since, until: until.map(Timestamp::millis) };
        let Some(ordered) = self.order(invocation, id, |course| course.hold(hold)).await? else { return Ok(None) };
        let on_its_way = ordered.row.batch().filter(|_| ordered.row.course.phase == Phase::Sending);
        let mut held = Held { row: ordered.row, in_flight: None, already_sent: None };
        let Some(batch) = on_its_way else { return Ok(Some(held)) };
        let message_id = batch.message_id(held.row.course.handed);
        match self.messages.cancel(invocation, &message_id).await?.map(|(_, cancel)| cancel) {
            Some(Cancel::InFlight) => held.in_flight = Some(message_id),
            Some(Cancel::AlreadySent) => held.already_sent = Some(message_id),
            Some(Cancel::Now | Cancel::Already | Cancel::Ended) | None => {}
        }
        Ok(Some(held))
    }

    /// Lets the bot answer again. `answer_pending` says whether it answers the messages that came
    /// meanwhile.
    pub async fn release(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
        answer_pending: bool,
    ) -> Result<Option<Ordered>, StoreError> {
        let released = |course: &Course| match answer_pending {
            true => course.release(),
            false => Course { hold: None, ..course.settle() },
        };
        self.order(invocation, id, released).await
    }

    async fn order(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
        next: impl Fn(&Course) -> Course,
    ) -> Result<Option<Ordered>, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
        let timing = self.settings(invocation, &row).await?.timing();
        let now = invocation.current();
        let rule = |row: &ConversationRow| {
            let course = next(&row.course);
            if course == row.course {
                return Ok(Next::Stop(()));
            }
            let after = row.moved(course, now, &timing);
            Ok(Next::Commit { with: self.with(row, &after, now)?, row: after, out: () })
        };
        Ok(match self.store.change(invocation, &self.table, &row, rule).await? {
            Committed::Done(row, ()) => Some(Ordered { row, changed: true }),
            Committed::Stopped(row, ()) => Some(Ordered { row, changed: false }),
            Committed::Gone => None,
        })
    }
}
