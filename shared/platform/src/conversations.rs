//! The Conversations table: the state of each conversation, its messages, and the reply of each
//! batch.
//!
//! Invariants. The state of a conversation is one row. [`Course`] computes each change of it from
//! the row as it was read, and the write is conditional on its version. A writer that loses the
//! race decides again on the row that won. A message is one row, keyed by its provider's id, and
//! commits in one transaction with the number that it gets. A reply is one row, keyed by its batch,
//! and commits in one transaction with the message that sends it. So a message is in exactly one
//! batch, and a batch has one reply.
//!
//! Interleavings. A message races a claim: the version decides, and the message is in this batch or
//! in the next. A worker has lost its turn: its epoch is not the epoch of the row. Two answers to
//! one batch race: the row of the batch decides. A hold races a reply: the version decides, and a
//! reply that lost is kept until the hold ends.

mod answers;
mod hold;
mod keep;
mod listing;
mod receive;

use umavez_domain::conversations::{BatchProgress, ConversationId, ConversationRow, Course, Phase, Via};
use umavez_domain::keys;
use umavez_domain::senders::instances::{InstanceRow, Timing};
use umavez_domain::time::Timestamp;

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::messages::Messages;
use crate::senders::Instances;
use crate::store::{Condition, Found, Store, StoreError, Write};

pub use answers::{Answered, ReplyProgress};
pub use hold::HoldOutcome;
pub use receive::Receipt;

#[derive(Debug, Clone)]
pub struct Conversations {
    pub store: Store,
    pub table: String,
    pub instances: Instances,
    pub messages: Messages,
}

impl Conversations {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self {
            store: store.clone(),
            table: config::required("CONVERSATIONS_TABLE")?,
            instances: Instances::from_env(store)?,
            messages: Messages::from_env(store)?,
        })
    }

    /// Reads the state of a conversation.
    pub async fn get(
        &self,
        invocation: &Invocation,
        id: &ConversationId,
    ) -> Result<Option<ConversationRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::conversation(id)).await
    }

    /// Reads an instance and one of its conversations in one request.
    pub async fn instance_and(
        &self,
        invocation: &Invocation,
        via: Via,
        name: &str,
        id: &ConversationId,
    ) -> Result<(Option<InstanceRow>, Option<ConversationRow>), StoreError> {
        let (instance, conversation) = (keys::instance(via, name), keys::conversation(id));
        self.store.get_both(invocation, (&self.instances.table, &instance), (&self.table, &conversation)).await
    }

    /// Reads the settings of a conversation. If its instance was deleted, the conversation
    /// continues with the default settings, without a responder of its own, so that its messages do
    /// not get lost.
    pub async fn settings(&self, invocation: &Invocation, row: &ConversationRow) -> Result<InstanceRow, StoreError> {
        let set = self.instances.get(invocation, row.channel, &row.instance).await?;
        Ok(set.unwrap_or_else(|| InstanceRow::by_default(row.channel, &row.instance, invocation.now)))
    }

    /// Changes the course of a conversation that was read as `row`. Returns `None` if the
    /// conversation has changed since.
    pub async fn move_on(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        course: Course,
        timing: &Timing,
    ) -> Result<Option<ConversationRow>, StoreError> {
        let after = row.moved(course, invocation.current(), timing);
        let with = self.unneeded_reply(row, &after, invocation.current())?;
        let committed = self.store.commit(invocation, &self.table, row, &after, with).await?;
        Ok(committed.then_some(after))
    }

    /// Returns the write that must commit with a change of a conversation, if there is one. It
    /// finishes a batch whose withheld reply is obsolete because a person answered, and removes its
    /// outcome, unless a part of the reply was sent.
    fn unneeded_reply<W: From<Write>>(
        &self,
        before: &ConversationRow,
        after: &ConversationRow,
        now: Timestamp,
    ) -> Result<Vec<W>, StoreError> {
        let unneeded = before.course.phase == Phase::Replied && after.course.phase == Phase::Idle;
        let Some(batch) = before.batch().filter(|_| unneeded) else { return Ok(Vec::new()) };
        let (finished_at, expires_at) = (Some(now), Some(self.expires_at(now)));
        let progress = BatchProgress { finished_at, expires_at, ..BatchProgress::default() };
        let write = Write::update(&self.table, keys::conversation_batch(&batch)).set_row(&progress, &[])?;
        let write = if before.course.part == 0 { write.remove("outcome") } else { write };
        // The row of a batch that has a reply exists.
        Ok(vec![write.when(Condition::exists()).into()])
    }

    /// Returns when the row of a batch that finished at `now` may expire.
    fn expires_at(&self, now: Timestamp) -> i64 {
        now.plus_days(self.messages.retention_days).seconds()
    }

    /// Wakes a conversation that is overdue: a wake-up was lost, a worker stopped, a late answer
    /// did not arrive, or a hold has ended. Returns its new row; `None` if it was not overdue, or
    /// has changed since it was read.
    pub async fn recover(&self, invocation: &Invocation, found: &Found) -> Result<Option<ConversationRow>, StoreError> {
        let row: Option<ConversationRow> = self.store.get(invocation, &self.table, &found.key).await?;
        let now = invocation.current();
        let Some(row) = row.filter(|row| row.is_overdue(now)) else { return Ok(None) };
        let timing = self.settings(invocation, &row).await?.timing();
        let after = row.recovered(now, &timing);
        let committed = self.store.commit(invocation, &self.table, &row, &after, Vec::new()).await?;
        Ok(committed.then_some(after))
    }
}
