//! Accepting a message: the message and its intent are stored in one transaction, or not at all.
//!
//! Interleavings:
//!
//! - Two requests have the same identity: the message's row decides, and the other request gets
//!   that row.
//! - Two messages have the same intention: the intent's row or its guard decides, and the other
//!   message leaves a row that says so.
//! - A request is repeated: it gets the row of its message. A row is written only if there is none,
//!   even if the intent is refused.

use umavez_domain::intents::{Decision, Hold, Standing, judge};
use umavez_domain::keys;
use umavez_domain::messages::NewMessage;
use umavez_domain::messages::{ContentRow, MessageRow};

use crate::intents::Holding;
use crate::invocation::Invocation;
use crate::messages::table::Messages;
use crate::store::{Condition, Refusal, StoreError, Transacted, Write, Written, read_row};

/// How many days longer than its message a separate content row is kept.
const CONTENT_DAYS: i64 = 31;

/// The outcome of accepting a message.
#[derive(Debug)]
pub enum Accepted {
    New(Box<MessageRow>),
    /// Another holder has its intention. The message was not accepted, and its row says so.
    Deduped(Box<MessageRow>),
    /// A message with this identity exists.
    Standing(Box<MessageRow>),
    /// A message with this identity and another body holds the intent; retention has removed its
    /// row.
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

    /// Returns the writes that accept a message, for a transaction with other writes: the message,
    /// and its content if it is in a separate row. If the message has an intent,
    /// [`Intents::transact_holding`](crate::intents::Intents) takes it.
    pub fn accept_writes(
        &self,
        new: &NewMessage,
        row: &MessageRow,
        invocation: &Invocation,
    ) -> Result<Vec<Write>, StoreError> {
        // No message has this identity yet.
        let mut writes = vec![Write::put(&self.table, keys::message(&new.id), row)?.when(Condition::Absent)];
        if new.content_is_apart() {
            // The content row expires long after the message can last be waiting.
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
            // A message with this same identity holds the intent. Its row is the answer if it still
            // exists; otherwise the message was sent long ago.
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
