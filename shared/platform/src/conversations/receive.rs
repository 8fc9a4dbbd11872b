//! Receives a message: stores it once, with its number, in one transaction with the state of its
//! conversation.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::channels::{Channel, brazilian_twin};
use umavez_domain::conversations::inbound::Inbound;
use umavez_domain::conversations::{
    Author, BatchId, ConversationId, ConversationRow, HeldBy, Hold, Received, StoredMessage, Told, Via,
};
use umavez_domain::delivery::State;
use umavez_domain::keys;
use umavez_domain::keys::index::BY_RECIPIENT;
use umavez_domain::messages::MessageRow;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::time::{SECOND_MS, Timestamp};

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write, Written, read_row};

/// How long after an operator settled the outcome of a message its echo may still arrive.
const LATE_ECHO_MS: i64 = 10 * 60 * SECOND_MS;
/// How many of the latest messages to a contact are searched for one of ours.
const LATEST: usize = 20;

/// The outcome of receiving a message, and the current state of its conversation, if it is known.
#[derive(Debug)]
pub struct Taken {
    pub told: Told,
    pub row: Option<ConversationRow>,
}

impl Conversations {
    /// Receives a message that a provider reported. `row` is its conversation as it was read.
    pub async fn receive(
        &self,
        invocation: &Invocation,
        instance: &InstanceRow,
        row: Option<ConversationRow>,
        message: &Inbound,
    ) -> Result<Taken, StoreError> {
        let received = Received {
            via: instance.channel,
            instance: &instance.instance,
            message,
            retention_days: self.messages.retention_days,
        };
        if message.from_me {
            return self.ours_or_a_persons(invocation, instance, row, &received).await;
        }
        if instance.is_old(message.sent_at, invocation.now) {
            let aside = received.aside(Author::Contact, invocation.now);
            return self.stored_with(invocation, row, &received, Told::History, |_| aside.clone(), Clone::clone).await;
        }
        let (now, timing) = (invocation.now, instance.timing());
        let next = |row: &ConversationRow| row.received(message, now, &timing);
        let numbered = |row: &ConversationRow| received.numbered(row, now, &timing);
        self.stored_with(invocation, row, &received, Told::Stored, numbered, next).await
    }

    /// Handles a message from our own account: the echo of one of our messages, or the answer of a
    /// person.
    async fn ours_or_a_persons(
        &self,
        invocation: &Invocation,
        instance: &InstanceRow,
        row: Option<ConversationRow>,
        received: &Received<'_>,
    ) -> Result<Taken, StoreError> {
        if let Some(ours) = self.one_of_ours(invocation, row.as_ref(), received).await? {
            if ours.delivery.provider_id.is_none() || ours.delivery.state != State::Sent {
                // If the message has no provider's id, the echo belongs to the first attempt that
                // may have been sent, or else to the last attempt.
                let attempt = ours.delivery.doubts.first().copied().unwrap_or(ours.delivery.attempt);
                self.messages.confirm(invocation, &ours, attempt, &received.message.message_id).await?;
            }
            return Ok(Taken { told: Told::Ours, row });
        }
        // Another program sent the message through the gateway: no person has taken over.
        if received.message.by_gateway {
            return Ok(Taken { told: Told::Ours, row });
        }
        let (now, timing) = (invocation.now, instance.timing());
        let aside = received.aside(Author::Person, now);
        // An old message that a phone reports is not an answer to anything.
        if instance.is_old(received.message.sent_at, now) {
            return self.stored_with(invocation, row, received, Told::History, |_| aside.clone(), Clone::clone).await;
        }
        let silent_ms = i64::from(instance.person_hold_seconds) * SECOND_MS;
        let hold = Hold { by: HeldBy::Person, since: now.millis(), until: Some(now.millis() + silent_ms) };
        let next = |row: &ConversationRow| {
            let settled = row.course.answered_by_person(received.message.sent_at);
            let course = if silent_ms > 0 { settled.hold(hold) } else { settled };
            row.moved(course, now, &timing)
        };
        let taken = self.stored_with(invocation, row, received, Told::Person, |_| aside.clone(), next).await?;
        self.cancel_recalled(invocation, received, &taken).await?;
        Ok(taken)
    }

    /// Cancels the reply that a person's message made unnecessary, or that waits for the end of the
    /// hold. It runs after the transaction. If the function crashes in between, the redelivered
    /// message runs it again.
    async fn cancel_recalled(
        &self,
        invocation: &Invocation,
        received: &Received<'_>,
        taken: &Taken,
    ) -> Result<(), StoreError> {
        let read = match (taken.told, &taken.row) {
            (Told::Person, Some(_)) => None,
            _ => {
                let id = ConversationId::of(received.via, received.instance, &received.message.contact);
                self.get(invocation, &id).await?
            }
        };
        let row = read.as_ref().or(taken.row.as_ref()).filter(|row| row.course.is_recalled());
        if let Some((batch, row)) = row.and_then(|row| Some((row.batch()?, row))) {
            self.messages.cancel(invocation, &batch.message_id(row.course.handed)).await?;
        }
        Ok(())
    }

    /// Stores a message and the change of its conversation together, and retries if others write at
    /// the same time.
    async fn stored_with(
        &self,
        invocation: &Invocation,
        row: Option<ConversationRow>,
        received: &Received<'_>,
        told: Told,
        message: impl Fn(&ConversationRow) -> StoredMessage,
        next: impl Fn(&ConversationRow) -> ConversationRow,
    ) -> Result<Taken, StoreError> {
        let (message, next) = (&message, &next);
        let step = |row: Option<ConversationRow>| async move {
            let before = row.unwrap_or_else(|| new_row(received, invocation.now));
            let mut after = next(&before);
            let key = keys::conversation_message(&before.id, &received.message.message_id);
            // This message was not stored by an earlier delivery.
            let stored = Write::put(&self.table, key, &message(&after))?.when(Condition::Absent);
            if after == before && before.version > 0 {
                return Ok(Break(match self.store.write(invocation, stored).await? {
                    Written::New | Written::Mine => Taken { told, row: Some(before) },
                    Written::Refused(_) => Taken { told: Told::Duplicate, row: Some(before) },
                }));
            }
            after.version = before.version + 1;
            let mut writes = vec![stored, Write::of_change(&self.table, &before, &after)?];
            writes.extend(self.unneeded_reply_write(&before, &after, invocation.now)?);
            Ok(match self.store.transact(invocation, writes).await? {
                Transacted::Done => Break(Taken { told, row: Some(after) }),
                Transacted::Refused(refusals) if refusals.first().is_some_and(Option::is_some) => {
                    Break(Taken { told: Told::Duplicate, row: None })
                }
                // Another message was faster, so this message gets a later number.
                Transacted::Refused(mut refusals) => {
                    let stored = refusals.get_mut(1).and_then(Option::take).and_then(|refusal| refusal.item);
                    Continue(stored.map(read_row).transpose()?)
                }
            })
        };
        self.store.retry_from(invocation, row, step).await
    }

    /// Finds a message of ours by its provider's id, or else one with the same text whose outcome
    /// is not known yet.
    async fn one_of_ours(
        &self,
        invocation: &Invocation,
        row: Option<&ConversationRow>,
        received: &Received<'_>,
    ) -> Result<Option<MessageRow>, StoreError> {
        let channel = match received.via {
            Via::Whatsapp => Channel::Whatsapp,
            Via::Telegram => Channel::Telegram,
            Via::Api => return Ok(None),
        };
        let mut candidates = Vec::new();
        // The last reply is known without the index, which may lag behind.
        if let Some(row) = row.filter(|row| row.course.claimed > 0) {
            let last = BatchId { conversation: row.id.clone(), number: row.course.claimed };
            for id in self.batch(invocation, &last).await?.map(|batch| batch.messages).unwrap_or_default() {
                candidates.extend(self.messages.get(invocation, &id).await?);
            }
        }
        let to = &received.message.contact;
        for to in [Some(to.clone()), brazilian_twin(to)].into_iter().flatten() {
            let partition = keys::recipient(channel.as_str(), &to);
            let latest = self.messages.latest(invocation, BY_RECIPIENT, partition, None, LATEST).await?;
            candidates.extend(latest.into_iter().map(|(row, _)| row));
        }
        candidates.retain(|row| row.sender == received.instance);
        let id = &received.message.message_id;
        if let Some(known) = candidates.iter().position(|row| row.delivery.provider_id.as_ref() == Some(id)) {
            return Ok(Some(candidates.swap_remove(known)));
        }
        let text = received.message.text.as_deref().map(str::trim);
        // Check the oldest first: if the same text was sent twice, the echoes arrive in that order.
        for row in candidates.into_iter().rev() {
            if !may_come_back(&row, invocation.now) {
                continue;
            }
            let content = self.messages.content(invocation, &row).await?;
            // Media without a caption match a message without a text.
            if content.is_some_and(|content| content.text().map(str::trim) == text) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// Returns whether the echo of a message of ours may still arrive that we cannot match by its
/// provider's id: an attempt may have been sent, or an operator settled its outcome recently.
fn may_come_back(row: &MessageRow, now: Timestamp) -> bool {
    let delivery = &row.delivery;
    let is_recent = |at: Option<Timestamp>| at.is_some_and(|at| at.plus_ms(LATE_ECHO_MS) > now);
    match delivery.state {
        State::Sending | State::Unknown => true,
        State::Queued => !delivery.doubts.is_empty(),
        State::Sent => delivery.provider_id.is_none() && is_recent(delivery.sent_at),
        State::Failed => is_recent(row.declared_unsent_at()),
        _ => false,
    }
}

fn new_row(received: &Received<'_>, now: Timestamp) -> ConversationRow {
    ConversationRow::new(received.via, received.instance, &received.message.contact, now)
}
