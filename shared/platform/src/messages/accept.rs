//! A message is taken in: with its intent in one transaction, or not at all.
//!
//! Interleavings. Two requests with one identity: the message's row decides, the other is told by
//! it. Two messages with one intention: the intent's row decides, or its guard, and the other
//! leaves a row that says so. A repeated request gets its message's row: the row is written only
//! where there is none, also when the intent is refused.

use umavez_domain::intents::{Decision, Hold, Standing, judge};
use umavez_domain::keys;
use umavez_domain::messages::NewMessage;
use umavez_domain::messages::{ContentRow, MessageRow};

use crate::intents::Holding;
use crate::invocation::Invocation;
use crate::messages::table::Messages;
use crate::store::{Condition, Refusal, StoreError, Transacted, Write, Written, read_row};

/// How much longer than its message content in a row of its own is kept.
const CONTENT_DAYS: i64 = 31;

/// What came of a new message.
#[derive(Debug)]
pub enum Accepted {
    New(Box<MessageRow>),
    /// Its intention is another's: it was not taken in, and its row says so.
    Deduped(Box<MessageRow>),
    /// There is a message with this identity.
    Standing(Box<MessageRow>),
    /// A message with this identity and another body holds the intent; its own row is gone by
    /// retention.
    KeyReused,
    /// The contact already has `MOST_SCHEDULED` scheduled messages of this intent type.
    TooManyScheduled,
}

impl Messages {
    pub async fn accept(&self, invocation: &Invocation, new: &NewMessage) -> Result<Accepted, StoreError> {
        let row = MessageRow::accepted(new, invocation.now);
        let writes = self.accept_writes(new, &row, invocation)?;
        let refusals = match &new.hold {
            None if writes.len() == 1 => return self.alone(invocation, row).await,
            None => match self.store.transact(invocation, writes).await? {
                Transacted::Done => return Ok(Accepted::New(Box::new(row))),
                Transacted::Refused(refusals) => refusals,
            },
            Some(hold) => match self.intents.transact_holding(invocation, &writes, hold).await? {
                Holding::Done => return Ok(Accepted::New(Box::new(row))),
                Holding::Refused(refusals) => refusals,
                Holding::Standing(standing) => return self.deduped(invocation, new, hold, &standing).await,
                // The same request may have been accepted before.
                Holding::Full => {
                    return Ok(match self.get(invocation, &new.id).await? {
                        Some(standing) => Accepted::Standing(Box::new(standing)),
                        None => Accepted::TooManyScheduled,
                    });
                }
            },
        };
        match refusals.into_iter().next() {
            Some(Some(Refusal { item: Some(item) })) => Ok(Accepted::Standing(Box::new(read_row(item)?))),
            _ => Err(StoreError::Corrupt("a message that nothing refused")),
        }
    }

    /// The writes that take a message in, to stand in a transaction with others: the message, and
    /// its content if that is apart. Its intent, if it has one, is taken by
    /// [`Intents::transact_holding`](crate::intents::Intents).
    pub fn accept_writes(
        &self,
        new: &NewMessage,
        row: &MessageRow,
        invocation: &Invocation,
    ) -> Result<Vec<Write>, StoreError> {
        // Nobody has used this identity.
        let mut writes = vec![Write::put(&self.table, keys::message(&new.id), row)?.when(Condition::Absent)];
        if new.content_is_apart() {
            // Long after the message itself can be waiting for anything.
            let last_use = new.send_at.map_or(invocation.now, |at| at.max(invocation.now));
            let expires_at = last_use.plus_days(self.retention_days + CONTENT_DAYS).seconds();
            let row = ContentRow { content: new.content.clone(), expires_at };
            writes.push(Write::put(&self.table, keys::message_content(&new.id), &row)?);
        }
        Ok(writes)
    }

    async fn deduped(
        &self,
        invocation: &Invocation,
        new: &NewMessage,
        hold: &Hold,
        standing: &Standing,
    ) -> Result<Accepted, StoreError> {
        let unexplained = || StoreError::Corrupt("a message that nothing refused");
        let check = new.check.as_ref().ok_or_else(unexplained)?;
        let answer = match judge(check, hold, standing) {
            Decision::Blocked(answer) => answer,
            // The intent is held by a message of this very identity. Its row answers, if it is
            // still there; otherwise it was sent long ago.
            Decision::Replayed(answer) => answer,
            Decision::KeyReused => {
                let row = self.get(invocation, &new.id).await?;
                return Ok(row.map_or(Accepted::KeyReused, |row| Accepted::Standing(Box::new(row))));
            }
        };
        let row = MessageRow::deduped(new, &answer, self.retention_days, invocation.now);
        match self.alone(invocation, row).await? {
            Accepted::New(row) => Ok(Accepted::Deduped(row)),
            standing => Ok(standing),
        }
    }

    async fn alone(&self, invocation: &Invocation, row: MessageRow) -> Result<Accepted, StoreError> {
        let write = Write::put(&self.table, keys::message(&row.id), &row)?.when(Condition::Absent);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(Accepted::New(Box::new(row))),
            Written::Refused(item) => {
                let item = item.ok_or(StoreError::Corrupt("a message that nothing refused"))?;
                Ok(Accepted::Standing(Box::new(read_row(item)?)))
            }
        }
    }
}
