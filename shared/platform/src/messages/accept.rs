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

use umavez_domain::intents::{CheckDecision, Conflict, HoldRequest, answer_conflict};
use umavez_domain::keys;
use umavez_domain::messages::NewMessage;
use umavez_domain::messages::{ContentRow, MessageRow};

use crate::intents::HoldOutcome;
use crate::invocation::Invocation;
use crate::messages::table::Messages;
use crate::store::{Condition, Item, StoreError, Transacted, Write, Written, read_row};

/// How many days longer than its message a separate content row is kept.
const CONTENT_DAYS: i64 = 31;

/// The outcome of accepting a message.
#[derive(Debug)]
pub enum Accepted {
    /// The row is new. If another holder has the intention, the message was not accepted, and its
    /// row says so.
    New(Box<MessageRow>),
    /// A message with this identity exists.
    Existing(Box<MessageRow>),
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
                HoldOutcome::Done => return Ok(Accepted::New(Box::new(row))),
                HoldOutcome::Refused(refusals) => refusals,
                HoldOutcome::Conflicting(conflict) => return self.deduped(invocation, new, hold, &conflict).await,
                HoldOutcome::Full => return self.existing_or(invocation, new, Accepted::TooManyScheduled).await,
            },
        };
        existing(refusals.into_iter().next().flatten().and_then(|refusal| refusal.item))
    }

    /// Returns the message with this identity, because the same request may have been accepted
    /// before. Returns `otherwise` if there is none.
    async fn existing_or(
        &self,
        invocation: &Invocation,
        new: &NewMessage,
        otherwise: Accepted,
    ) -> Result<Accepted, StoreError> {
        let row = self.get(invocation, &new.id).await?;
        Ok(row.map_or(otherwise, |row| Accepted::Existing(Box::new(row))))
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
        hold: &HoldRequest,
        conflict: &Conflict,
    ) -> Result<Accepted, StoreError> {
        let answer = match answer_conflict(hold, conflict) {
            CheckDecision::Blocked(answer) => answer,
            // A message with this same identity holds the intent. Its row is the answer if it still
            // exists; otherwise the message was sent long ago.
            CheckDecision::Replayed(answer) => answer,
            CheckDecision::KeyReused => return self.existing_or(invocation, new, Accepted::KeyReused).await,
        };
        let row = MessageRow::deduped(new, &answer, self.retention_days, invocation.now);
        self.alone(invocation, row).await
    }

    async fn alone(&self, invocation: &Invocation, row: MessageRow) -> Result<Accepted, StoreError> {
        let write = Write::put(&self.table, keys::message(&row.id), &row)?.when(Condition::Absent);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(Accepted::New(Box::new(row))),
            Written::Refused(item) => existing(item),
        }
    }
}

/// Returns the message whose row refused a new one.
fn existing(stored: Option<Item>) -> Result<Accepted, StoreError> {
    let stored = stored.ok_or(StoreError::Corrupt("a message that nothing refused"))?;
    Ok(Accepted::Existing(Box::new(read_row(stored)?)))
}
