//! Answers a batch: stores its one reply, sends it part by part, and follows it to its end.

use umavez_domain::conversations::batch::MOST_MESSAGES;
use umavez_domain::conversations::responder::reply_message;
use umavez_domain::conversations::{
    AnsweredBy, BatchId, BatchProgress, BatchRow, ConversationRow, Course, PartEnd, Phase, StoredMessage, Via, reply,
};
use umavez_domain::delivery::State;
use umavez_domain::keys;
use umavez_domain::keys::index::BY_PLACE;
use umavez_domain::messages::MessageRow;
use umavez_domain::senders::instances::Timing;

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Condition, Query, StoreError, Transacted, Write, read_row};

/// The outcome of a reply that is kept for the client that brought the messages.
const KEPT: &str = "KEPT";
/// The outcome of a batch that needed no reply.
const NOTHING: &str = "NOTHING_TO_SAY";

/// The outcome of an answer to a batch.
#[derive(Debug)]
pub enum Answered {
    Now(Box<ConversationRow>),
    /// The conversation has changed since it was read.
    Lost,
    /// The batch already has a reply.
    Before(Box<BatchRow>),
}

/// The result of looking at a reply that was handed over.
#[derive(Debug)]
pub enum ReplyProgress {
    /// The message is not settled yet: its end wakes the conversation.
    InFlight,
    /// The message is settled, and the conversation has moved on. `None` if the conversation has
    /// changed since it was read.
    Moved(Option<Box<ConversationRow>>),
}

/// What a change of a conversation writes to the row of its batch.
enum OfBatch<'a> {
    /// The one reply of the batch, and who answered.
    Reply(Option<&'a str>, AnsweredBy),
    /// How a message of the batch ended, if one did.
    Ended(Option<&'a str>),
}

impl Conversations {
    /// Reads the messages of the batch in process, by their number.
    pub async fn messages_of(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let query = self.numbered(row, row.course.answered + 1, row.course.claimed).limit(MOST_MESSAGES);
        self.store.rows(invocation, &query).await
    }

    /// Reads the first pending messages, by their number, in one request: as many as one batch
    /// takes, and one more. One request reads up to 1 MB of rows, which is more than the bytes that
    /// a batch takes.
    pub async fn pending_messages(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let query = self.numbered(row, row.course.claimed + 1, row.course.received).limit(MOST_MESSAGES + 1);
        Ok(self.store.slice(invocation, &query).await?.read()?.rows)
    }

    /// Selects the messages of a conversation from one number to another, both inclusive.
    pub(super) fn numbered(&self, row: &ConversationRow, from: u64, to: u64) -> Query<'_> {
        Query::index(&self.table, BY_PLACE, keys::conversation_partition(&row.id))
            .between(keys::conversation_place(from), keys::conversation_place(to))
    }

    pub async fn batch(&self, invocation: &Invocation, id: &BatchId) -> Result<Option<BatchRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::conversation_batch(id)).await
    }

    /// Stores the reply to the batch in process of a conversation that was read as `row`, and hands
    /// the reply over unless the conversation is held. The caller decides from that row whether the
    /// reply is wanted.
    pub async fn answer(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        said: Option<&str>,
        by: AnsweredBy,
        timing: &Timing,
    ) -> Result<Answered, StoreError> {
        let parts = said.map_or(0, |said| reply::split(row.channel, said).len());
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let course = row.course.replied(parts, invocation.current());
        self.commit(invocation, row, course, said, &OfBatch::Reply(said, by), timing).await
    }

    /// Hands over the reply that was withheld.
    pub async fn hand_over(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        course: Course,
        timing: &Timing,
    ) -> Result<Option<ConversationRow>, StoreError> {
        let said = self.reply_of(invocation, row).await?;
        self.commit(invocation, row, course, said.as_deref(), &OfBatch::Ended(None), timing).await?.moved()
    }

    /// Looks at the outcome of the part of a reply that was handed over, and moves the conversation
    /// on if the part is settled.
    pub async fn check_reply(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        timing: &Timing,
    ) -> Result<ReplyProgress, StoreError> {
        let Some(batch) = row.batch() else { return Ok(ReplyProgress::InFlight) };
        let message = self.messages.get(invocation, &batch.message_id(row.course.handed)).await?;
        let Some((end, state)) = end_of(message.as_ref()) else { return Ok(ReplyProgress::InFlight) };
        let course = row.course.part_ended(end, invocation.current());
        let said = if course.phase == Phase::Sending { self.reply_of(invocation, row).await? } else { None };
        // If a reply was canceled because a person had answered, do not record it as undelivered.
        let unneeded = end == PartEnd::Canceled && row.course.settled >= row.course.claimed;
        let of_batch = OfBatch::Ended((!unneeded).then_some(state));
        self.commit(invocation, row, course, said.as_deref(), &of_batch, timing)
            .await?
            .moved()
            .map(|row| ReplyProgress::Moved(row.map(Box::new)))
    }

    async fn reply_of(&self, invocation: &Invocation, row: &ConversationRow) -> Result<Option<String>, StoreError> {
        let gone = || StoreError::Corrupt("a batch without its reply");
        let batch = self.batch(invocation, &row.batch().ok_or_else(gone)?).await?;
        Ok(batch.ok_or_else(gone)?.reply)
    }

    /// Writes, in one transaction, the state of the conversation, the row of its batch, and the
    /// message that sends the next part.
    async fn commit(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        course: Course,
        said: Option<&str>,
        of_batch: &OfBatch<'_>,
        timing: &Timing,
    ) -> Result<Answered, StoreError> {
        let now = invocation.current();
        let gone = || StoreError::Corrupt("an answer to no batch");
        let batch = row.batch().ok_or_else(gone)?;
        // A reply to an API conversation is kept for its client; nothing else sends it.
        let keeps = row.channel == Via::Api && course.phase == Phase::Sending;
        let course = if keeps { course.part_ended(PartEnd::Sent, now) } else { course };
        let after = row.moved(course, now, timing);
        let hands_over = after.course.phase == Phase::Sending && after.course.handed > row.course.handed;
        let part = said.and_then(|said| {
            let part = usize::try_from(after.course.part).ok()?;
            reply::split(row.channel, said).into_iter().nth(part)
        });
        let message = match (hands_over, part) {
            (true, Some(part)) => reply_message(row, &batch, after.course.handed, &part),
            (true, None) => return Err(StoreError::Corrupt("a reply that has fewer parts than it had")),
            (false, _) => None,
        };
        let finished = after.course.phase == Phase::Idle;
        let (finished_at, expires_at) = (finished.then_some(now), finished.then(|| self.expires_at(now)));
        let mut writes = vec![Write::of_change(&self.table, row, &after)?];
        writes.push(match of_batch {
            OfBatch::Reply(reply, by) => {
                let outcome = match (finished, reply) {
                    (true, None) => Some(NOTHING),
                    (true, Some(_)) => Some(KEPT),
                    (false, _) => None,
                };
                let stored = BatchRow {
                    batch: batch.number,
                    from: row.course.answered + 1,
                    reply: reply.map(str::to_owned),
                    answered_by: *by,
                    attempts: row.course.attempts,
                    messages: message.iter().map(|message| message.id.clone()).collect(),
                    outcome: outcome.map(str::to_owned),
                    replied_at: now,
                    finished_at,
                    expires_at,
                };
                // This batch has no answer yet.
                Write::put(&self.table, keys::conversation_batch(&batch), &stored)?.when(Condition::Absent)
            }
            OfBatch::Ended(outcome) => {
                let outcome = outcome.or((finished && keeps).then_some(KEPT));
                let parts_ended = Some(after.course.part);
                let progress = BatchProgress { parts_ended, outcome, finished_at, expires_at };
                let write = Write::update(&self.table, keys::conversation_batch(&batch))
                    .set_row(&progress, &[])?
                    .when(Condition::exists());
                match &message {
                    Some(message) => write.append("messages", message.id.as_str()),
                    // No part was sent, and the end has no outcome: a person has answered.
                    None if finished && outcome.is_none() && row.course.part == 0 => write.remove("outcome"),
                    None => write,
                }
            }
        });
        if let Some(message) = &message {
            let accepted = MessageRow::accepted(message, now);
            writes.extend(self.messages.accept_writes(message, &accepted, invocation)?);
        }
        match self.store.transact(invocation, writes).await? {
            Transacted::Done => Ok(Answered::Now(Box::new(after))),
            Transacted::Refused(refusals) => {
                let mut items = refusals.into_iter().map(|refusal| refusal.and_then(|refusal| refusal.item));
                match (items.next().flatten(), items.next().flatten()) {
                    (_, Some(item)) if matches!(of_batch, OfBatch::Reply(..)) => {
                        Ok(Answered::Before(Box::new(read_row(item)?)))
                    }
                    (Some(_), _) => Ok(Answered::Lost),
                    _ => Err(StoreError::Corrupt("an answer that nothing refused")),
                }
            }
        }
    }
}

impl Answered {
    /// Returns the new row of a conversation whose batch already had its reply; `None` if it lost
    /// the race.
    fn moved(self) -> Result<Option<ConversationRow>, StoreError> {
        match self {
            Self::Now(row) => Ok(Some(*row)),
            Self::Lost => Ok(None),
            Self::Before(_) => Err(StoreError::Corrupt("a second reply to a batch")),
        }
    }
}

/// Returns how the message with a part of a reply ended, and the code for it; `None` while it has
/// not ended. A message that no longer exists was settled long ago.
fn end_of(message: Option<&MessageRow>) -> Option<(PartEnd, &'static str)> {
    let Some(message) = message else { return Some((PartEnd::Sent, "SENT")) };
    match message.delivery.state {
        State::Queued | State::Sending => None,
        State::Sent => Some((PartEnd::Sent, "SENT")),
        State::Unknown => Some((PartEnd::Sent, "UNKNOWN")),
        State::Canceled => Some((PartEnd::Canceled, "CANCELED")),
        State::Failed => Some((PartEnd::NotSent, "FAILED")),
        State::Suppressed => Some((PartEnd::NotSent, "SUPPRESSED")),
        State::Expired | State::Deduped => Some((PartEnd::NotSent, "EXPIRED")),
    }
}
