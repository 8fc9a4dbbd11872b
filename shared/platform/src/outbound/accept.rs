//! A message is taken in: with its intent in one transaction, or not at all.
//!
//! Interleavings. Two requests with one identity: the message's row decides, the other is told by it. Two messages with one
//! intention: the intent's row decides, and the other leaves a row that says so. A repeated request finds its message's
//! row before its intent is looked at, because the row's own condition is told with the intent's.

use umavez_domain::intents::{Decision, judge};
use umavez_domain::keys;
use umavez_domain::outbound::NewMessage;
use umavez_domain::outbound::message::{ContentRow, MessageRow};

use super::messages::Messages;
use crate::invocation::Invocation;
use crate::store::{Condition, Item, Refusal, StoreError, Transacted, Write, Written, read_row};

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
}

impl Messages {
    pub async fn accept(&self, invocation: &Invocation, new: &NewMessage) -> Result<Accepted, StoreError> {
        let row = MessageRow::accepted(new, invocation.now);
        let writes = self.accept_writes(new, &row, invocation)?;
        if writes.len() == 1 {
            return self.alone(invocation, row).await;
        }
        let refusals = match self.store.transact(invocation, writes).await? {
            Transacted::Done => return Ok(Accepted::New(Box::new(row))),
            Transacted::Refused(refusals) => refusals,
        };
        let mut refusals = refusals.into_iter();
        if let Some(Some(Refusal { item: Some(item) })) = refusals.next() {
            return Ok(Accepted::Standing(Box::new(read_row(item)?)));
        }
        let skip = usize::from(new.content_is_apart());
        let mut held = refusals.skip(skip).map(|refusal| refusal.and_then(|refusal| refusal.item));
        self.deduped(invocation, new, held.next().flatten(), held.next().flatten()).await
    }

    /// The writes that take a message in, to stand in a transaction with others: the message, its content if that is apart,
    /// its intent and the intent's guard.
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
        if let Some(hold) = &new.hold {
            writes.extend(self.intents.hold_writes(hold, invocation.now)?);
        }
        Ok(writes)
    }

    async fn deduped(
        &self,
        invocation: &Invocation,
        new: &NewMessage,
        row: Option<Item>,
        guard: Option<Item>,
    ) -> Result<Accepted, StoreError> {
        let unexplained = || StoreError::Corrupt("a message that nothing refused");
        let (check, hold) = new.check.as_ref().zip(new.hold.as_ref()).ok_or_else(unexplained)?;
        let standing = self.intents.standing_of(row, guard)?;
        let answer = match judge(check, hold, &standing) {
            Decision::Blocked(answer) => answer,
            // The intent is held by a message of this very identity whose own row is gone: it was sent long ago.
            Decision::Replayed(answer) => answer,
            Decision::KeyReused => return Err(unexplained()),
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
