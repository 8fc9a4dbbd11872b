//! Holds a conversation for an operator, and releases it. The functions return `None` if there is
//! no such conversation.

use umavez_domain::conversations::{ConversationHold, ConversationId, ConversationRow, Course, HeldBy, Phase};
use umavez_domain::delivery::Cancel;
use umavez_domain::messages::MessageId;
use umavez_domain::time::Timestamp;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Decided, StoreError};

/// The outcome of a hold.
#[derive(Debug)]
pub struct HoldOutcome {
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
    ) -> Result<Option<HoldOutcome>, StoreError> {
        let since = invocation.now.millis();
        let hold = ConversationHold { by: HeldBy::Operator, since, until: until.map(Timestamp::millis) };
        let Some((row, _)) = self.change(invocation, id, |course| course.hold(hold)).await? else { return Ok(None) };
        let on_its_way = row.batch().filter(|_| row.course.phase == Phase::Sending);
        let mut held = HoldOutcome { row, in_flight: None, already_sent: None };
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
    /// meanwhile. Returns the conversation and whether the release changed anything.
    pub async fn release(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
        answer_pending: bool,
    ) -> Result<Option<(ConversationRow, bool)>, StoreError> {
        let released = |course: &Course| match answer_pending {
            true => course.release(),
            false => Course { hold: None, ..course.settle() },
        };
        self.change(invocation, id, released).await
    }

    async fn change(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
        next: impl Fn(&Course) -> Course,
    ) -> Result<Option<(ConversationRow, bool)>, StoreError> {
        let Some(row) = self.get(invocation, id).await? else { return Ok(None) };
        let timing = self.settings(invocation, &row).await?.timing();
        let now = invocation.current();
        let rule = |row: &ConversationRow| {
            let course = next(&row.course);
            if course == row.course {
                return Ok(Decided::Stop(false));
            }
            let after = row.moved(course, now, &timing);
            let with = self.unneeded_reply(row, &after, now)?;
            Ok(Decided::Commit { row: after, with, out: true })
        };
        Ok(self.store.change(invocation, &self.table, &row, rule).await?.row())
    }
}
