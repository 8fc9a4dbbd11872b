//! Receives a message: stores it once, with its number, in one transaction with the state of its
//! conversation.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::channels::{Channel, brazilian_twin};
use umavez_domain::conversations::inbound::Inbound;
use umavez_domain::conversations::{ConversationRow, ReceiveOutcome, Received, Via};
use umavez_domain::delivery::State;
use umavez_domain::keys;
use umavez_domain::keys::index::BY_RECIPIENT;
use umavez_domain::messages::MessageRow;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::time::{SECOND_MS, Timestamp};

use super::Conversations;
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Transacted, Write, Written, read_row};

/// How long after an operator settled the outcome of a message its echo may still arrive.
const LATE_ECHO_MS: i64 = 10 * 60 * SECOND_MS;
/// How many of the latest messages to a contact are searched for one of ours.
const LATEST: usize = 20;
/// How many of the latest batches are searched for the reply that came back.
const LATEST_BATCHES: usize = 5;

/// The outcome of receiving a message, and the current state of its conversation, if it is known.
#[derive(Debug)]
pub struct Receipt {
    pub outcome: ReceiveOutcome,
    pub row: Option<ConversationRow>,
}

impl Conversations {
    /// Receives a message that a provider reported, and logs it. `row` is its conversation as it
    /// was read.
    pub async fn receive(
        &self,
        invocation: &Invocation,
        instance: &InstanceRow,
        row: Option<ConversationRow>,
        message: &Inbound,
    ) -> Result<Receipt, StoreError> {
        let received = Received { instance, message, retention_days: self.messages.retention_days };
        let receipt = match message.from_me && self.is_ours(invocation, row.as_ref(), &received).await? {
            true => Receipt { outcome: ReceiveOutcome::Ours, row },
            false => self.store_message(invocation, row, &received).await?,
        };
        let (event, request_id) = (Event::ConversationMessageReceived.as_str(), &invocation.request_id);
        let (channel, outcome) = (instance.channel.as_str(), receipt.outcome.as_str());
        tracing::info!(event, conversation_id = received.conversation().as_str(), channel, outcome, request_id);
        metrics::counter!(Metric::ConversationMessages.as_str(), "Channel" => channel, "Outcome" => outcome)
            .increment(1);
        Ok(receipt)
    }

    /// Returns whether a message from our own account is the echo of a message that this system or
    /// its gateway sent, and so not the answer of a person. Confirms the message that was echoed.
    async fn is_ours(
        &self,
        invocation: &Invocation,
        row: Option<&ConversationRow>,
        received: &Received<'_>,
    ) -> Result<bool, StoreError> {
        let Some(ours) = self.one_of_ours(invocation, row, received).await? else {
            // Another program sent the message through the gateway: no person has taken over.
            return Ok(received.message.by_gateway);
        };
        if ours.delivery.provider_id.is_none() || ours.delivery.state != State::Sent {
            // If the message has no provider's id, the echo belongs to the first attempt that may
            // have been sent, or else to the last attempt.
            let attempt = ours.delivery.doubts.first().copied().unwrap_or(ours.delivery.attempt);
            self.messages.confirm(invocation, &ours, attempt, &received.message.message_id).await?;
        }
        Ok(true)
    }

    /// Cancels the reply that a person's message made unnecessary, or that waits for the end of the
    /// hold. It runs after the transaction. If the function crashes in between, the redelivered
    /// message runs it again.
    async fn cancel_recalled(
        &self,
        invocation: &Invocation,
        received: &Received<'_>,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        let read = match (receipt.outcome, &receipt.row) {
            (ReceiveOutcome::Person, Some(_)) => None,
            _ => self.get(invocation, &received.conversation()).await?,
        };
        let row = read.as_ref().or(receipt.row.as_ref()).filter(|row| row.course.is_recalled());
        if let Some((batch, row)) = row.and_then(|row| Some((row.batch()?, row))) {
            self.messages.cancel(invocation, &batch.message_id(row.course.handed)).await?;
        }
        Ok(())
    }

    /// Stores a message and the change of its conversation together, and retries if others write at
    /// the same time.
    async fn store_message(
        &self,
        invocation: &Invocation,
        row: Option<ConversationRow>,
        received: &Received<'_>,
    ) -> Result<Receipt, StoreError> {
        let outcome = received.outcome(invocation.now);
        let step = |row: Option<ConversationRow>| async move {
            let InstanceRow { channel, instance, .. } = received.instance;
            let contact = &received.message.contact;
            let before = row.unwrap_or_else(|| ConversationRow::new(*channel, instance, contact, invocation.now));
            let (mut after, message) = received.apply(&before, invocation.now);
            let key = keys::conversation_message(&before.id, &received.message.message_id);
            // This message was not stored by an earlier delivery.
            let stored = Write::put(&self.table, key, &message)?.when(Condition::Absent);
            if after == before && before.version > 0 {
                let outcome = match self.store.write(invocation, stored).await? {
                    Written::New | Written::Mine => outcome,
                    Written::Refused(_) => ReceiveOutcome::Duplicate,
                };
                return Ok::<_, StoreError>(Break(Receipt { outcome, row: Some(before) }));
            }
            after.version = before.version + 1;
            let mut writes = vec![stored, Write::of_change(&self.table, &before, &after)?];
            writes.extend(self.unneeded_reply::<Write>(&before, &after, invocation.now)?);
            Ok(match self.store.transact(invocation, writes).await? {
                Transacted::Done => Break(Receipt { outcome, row: Some(after) }),
                Transacted::Refused(refusals) if refusals.first().is_some_and(Option::is_some) => {
                    Break(Receipt { outcome: ReceiveOutcome::Duplicate, row: None })
                }
                // Another message was faster, so this message gets a later number.
                Transacted::Refused(mut refusals) => {
                    let stored = refusals.get_mut(1).and_then(Option::take).and_then(|refusal| refusal.item);
                    Continue(stored.map(read_row).transpose()?)
                }
            })
        };
        let receipt = self.store.retry_from(invocation, row, step).await?;
        if outcome == ReceiveOutcome::Person {
            self.cancel_recalled(invocation, received, &receipt).await?;
        }
        Ok(receipt)
    }

    /// Reads the replies to the latest batches, the newest first, up to the one with this id of the
    /// provider. The echo of a reply may arrive after later batches were asked or settled. The
    /// replies are known without the index, which may lag behind.
    async fn latest_replies(
        &self,
        invocation: &Invocation,
        row: &ConversationRow,
        provider_id: &str,
    ) -> Result<Vec<MessageRow>, StoreError> {
        let mut replies: Vec<MessageRow> = Vec::new();
        let batches = self.latest_batches(invocation, row, LATEST_BATCHES).await?;
        let ids = batches.iter().flat_map(|batch| batch.messages.iter().rev());
        for id in ids.take(LATEST) {
            replies.extend(self.messages.get(invocation, id).await?);
            if replies.last().is_some_and(|reply| reply.delivery.provider_id.as_deref() == Some(provider_id)) {
                break;
            }
        }
        Ok(replies)
    }

    /// Finds a message of ours by its provider's id, or else one with the same text whose outcome
    /// is not known yet.
    async fn one_of_ours(
        &self,
        invocation: &Invocation,
        row: Option<&ConversationRow>,
        received: &Received<'_>,
    ) -> Result<Option<MessageRow>, StoreError> {
        let channel = match received.instance.channel {
            Via::Whatsapp => Channel::Whatsapp,
            Via::Telegram => Channel::Telegram,
            Via::Api => return Ok(None),
        };
        let mut candidates = Vec::new();
        if let Some(row) = row {
            candidates.extend(self.latest_replies(invocation, row, &received.message.message_id).await?);
        }
        let to = &received.message.contact;
        for to in [Some(to.clone()), brazilian_twin(to)].into_iter().flatten() {
            let partition = keys::recipient(channel.as_str(), &to);
            let latest = self.messages.latest(invocation, BY_RECIPIENT, partition, None, LATEST).await?;
            candidates.extend(latest.into_iter().map(|(row, _)| row));
        }
        candidates.retain(|row| row.sender == received.instance.instance);
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
