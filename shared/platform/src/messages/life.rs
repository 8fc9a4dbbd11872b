//! All changes of a message after it was accepted. The rules are in `umavez_domain::messages`; this
//! module commits their changes, together with the intent that a message releases when it ends
//! unsent.

use std::collections::BTreeMap;

use umavez_domain::change::Next;
use umavez_domain::channels::Channel;
use umavez_domain::channels::email::ses_events::SesEvent;
use umavez_domain::codes::Decision;
use umavez_domain::delivery::{Cancel, Claim, Recovery, Settled, State, UnknownPolicy, Verdict};
use umavez_domain::intents::Holder;
use umavez_domain::keys::{self, Wake};
use umavez_domain::messages::ledger::{LONGEST, LedgerEntry};
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_domain::suppression::{SuppressionRow, source};
use umavez_domain::time::Timestamp;

use super::table::Messages;
use crate::delivery::{Claimed, Tables};
use crate::due::{self, Emission};
use crate::intents::Begin;
use crate::invocation::Invocation;
use crate::store::{Beside, Committed, Condition, Decided, Found, Returned, Start, StoreError, attribute, read_row};
use crate::suppressions;

/// The effect of a provider's event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The event shows whether the message was sent.
    Reconciled(State),
    Marked,
    Known,
    /// The message no longer exists or was never ours. The event may still have suppressed an
    /// address.
    NoMessage,
}

impl Messages {
    /// Starts an attempt at a message that was read as `row`, unless its address is suppressed for
    /// all senders or for `sender` (the name of its credential). A message with a rolling window
    /// takes its place in the guard of its intent with the claim, or is deferred.
    pub async fn claim(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        claim: &Claim,
        sender: &str,
    ) -> Result<Claimed<MessageRow>, StoreError> {
        let lost = || Ok(Claimed::Lost(Some(row.clone())));
        let Some(after) = row.claimed(claim, invocation.current()) else { return lost() };
        let begin = match row.rolling_intent() {
            Some(intent) => self.intents.begin(invocation, intent, &holder_of(row), claim).await?,
            None => Begin::Now(Vec::new()),
        };
        match begin {
            Begin::Now(with) => {
                let tables = Tables { own: &self.table, outbound: &self.table };
                self.store.claim(invocation, tables, row, after, &row.gates(sender), with).await
            }
            Begin::Later { by, writes } => {
                let Some(after) = row.deferred(&by, invocation.current()) else { return lost() };
                let committed = self.store.commit(invocation, &self.table, row, &after, writes).await?;
                Ok(if committed { Claimed::Deferred(after) } else { Claimed::GateChanged })
            }
        }
    }

    /// Writes the outcome of attempt n. `row` is the message as it was claimed. A block of one bot
    /// is stored for `sender` (the name of its credential).
    pub async fn settle(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        attempt: u32,
        verdict: &Verdict,
        sender: &str,
    ) -> Result<Settled<MessageRow>, StoreError> {
        let rule =
            |row: &MessageRow| row.settled(attempt, verdict, invocation.current(), self.retention_days).into_next();
        let also = |row: &MessageRow| match verdict {
            Verdict::Failed { code, suppress: true } => {
                let found = SuppressionRow::by_message(row, code, source::PROVIDER, invocation.current());
                Ok(vec![suppressions::adding(&self.table, &found.seen_by(sender))?.into()])
            }
            _ => Ok(Vec::new()),
        };
        self.change(invocation, row, rule, also).await.map(Committed::settled)
    }

    /// Records that the provider confirmed an attempt of a message as sent.
    pub async fn confirm(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        attempt: u32,
        provider_id: &str,
    ) -> Result<Settled<MessageRow>, StoreError> {
        let verdict = Verdict::Sent { provider_id: provider_id.to_owned() };
        self.settle(invocation, row, attempt, &verdict, &row.sender).await
    }

    /// Ends a message that must not be sent. Returns the row that this call wrote, or the row of
    /// the writer that was faster.
    pub async fn end_unsent(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        state: State,
        entry: &LedgerEntry,
    ) -> Result<Committed<MessageRow, ()>, StoreError> {
        let (now, read_version) = (invocation.current(), row.version);
        // The decision depends on the row as it was read. If the row has changed, the caller
        // decides again.
        let rule = |row: &MessageRow| match row.ended(state, entry, now, self.retention_days) {
            Some(after) if row.version == read_version => Next::Commit(after, ()),
            _ => Next::Stop(()),
        };
        self.change(invocation, row, rule, nothing).await
    }

    /// Cancels a queued message. A message whose attempt is under way gets no further attempt.
    /// Returns the message and the outcome; `None` if the message does not exist.
    pub async fn cancel(
        &self,
        invocation: &Invocation,
        id: &MessageId,
    ) -> Result<Option<(MessageRow, Cancel)>, StoreError> {
        let rule = |row: &MessageRow| match row.cancel(invocation.current(), self.retention_days) {
            (cancel, Some(after)) => Next::Commit(after, cancel),
            (cancel, None) => Next::Stop(cancel),
        };
        let committed = self.change(invocation, Start::Key(keys::message(id)), rule, nothing).await?;
        Ok(committed.row())
    }

    /// Settles an unknown message by an operator's decision. Returns the message and whether this
    /// request settled it; `None` if the message does not exist.
    pub async fn declare(
        &self,
        invocation: &Invocation,
        id: &MessageId,
        was_sent: bool,
    ) -> Result<Option<(MessageRow, bool)>, StoreError> {
        let rule = |row: &MessageRow| match row.declared(was_sent, invocation.now, self.retention_days) {
            Some(after) => Next::Commit(after, true),
            None => Next::Stop(false),
        };
        let committed = self.change(invocation, Start::Key(keys::message(id)), rule, nothing).await?;
        Ok(committed.row())
    }

    /// Applies a provider's event to its message.
    pub async fn apply(&self, invocation: &Invocation, event: &SesEvent) -> Result<Applied, StoreError> {
        let Some((id, attempt)) = &event.message else { return Ok(Applied::NoMessage) };
        let rule = |row: &MessageRow| match row.of_event(event, *attempt, invocation.current(), self.retention_days) {
            Some((after, true)) => {
                let state = after.delivery.state;
                Next::Commit(after, Applied::Reconciled(state))
            }
            Some((after, false)) => Next::Commit(after, Applied::Marked),
            None => Next::Stop(Applied::Known),
        };
        let also = |row: &MessageRow| match event.kind.suppresses() {
            Some(reason) => {
                let found = SuppressionRow::by_message(row, reason, source::SES, event.at);
                Ok(vec![suppressions::adding(&self.table, &found)?.into()])
            }
            None => Ok(Vec::new()),
        };
        let committed = match MessageId::parse(id) {
            Some(id) => self.change(invocation, Start::Key(keys::message(&id)), rule, also).await?,
            None => Committed::Gone,
        };
        let applied = match committed {
            Committed::Done(_, applied) => return Ok(applied),
            Committed::Stopped(_, applied) => applied,
            Committed::Gone => Applied::NoMessage,
        };
        // Another event may have set the mark before. The address is also suppressed if the message
        // no longer exists.
        self.suppressions().add_event(invocation, event, id).await?;
        Ok(applied)
    }

    /// Enqueues a message again if no sender claimed it, or gives up an attempt whose sender did
    /// not report in time.
    pub async fn recover(
        &self,
        invocation: &Invocation,
        found: &Found,
        policies: &BTreeMap<Channel, UnknownPolicy>,
        jitter: u32,
    ) -> Result<Recovery<MessageRow>, StoreError> {
        let row: Option<MessageRow> = self.store.get(invocation, &self.table, &found.key).await?;
        let Some(row) = row.filter(|row| row.work.waits_at(&found.place)) else { return Ok(Recovery::Nothing) };
        let policy = policies.get(&row.channel).copied().unwrap_or_default();
        let recovery = row.recovered(policy, invocation.current(), jitter, self.retention_days);
        let (Recovery::Emitted(after) | Recovery::GivenUp(after)) = &recovery else { return Ok(recovery) };
        let with = self.intent_writes(invocation, &row, after).await?;
        // If the commit is refused, another writer was faster and has put the row into the index.
        let committed = self.store.commit(invocation, &self.table, &row, after, with).await?;
        Ok(if committed { recovery } else { Recovery::Nothing })
    }

    /// Postpones recovery's check of a message, because its queue hides it until `until`.
    pub async fn postpone(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(after) = row.postponed(until, invocation.current()) else { return Ok(()) };
        self.store.commit(invocation, &self.table, row, &after, Vec::new()).await.map(drop)
    }

    /// Enqueues a message that is due soon, with the job that its row contains. Returns whether
    /// this sweep enqueued it.
    pub async fn emit_due(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let Some(id) = keys::message_id_of(&found.key) else { return Ok(false) };
        let entry = attribute(&LedgerEntry::new(invocation.current(), Decision::Due).rule("send_at"))?;
        let due = due::DueRow { table: &self.table, found, id: id.as_str(), emission: Emission::Prepared };
        // A message that hits its rate limit repeatedly is due repeatedly: a long ledger gets no
        // further entry.
        let is_short = Condition::shorter("ledger", LONGEST);
        let enqueued =
            due::hand_over(&self.store, invocation, &due, Some(is_short), |write| write.append_value("ledger", entry));
        Ok(match enqueued.await? {
            Returned::Row(_) => true,
            Returned::Refused(Some(item)) if read_row::<MessageRow>(item.clone())?.ledger.len() >= LONGEST => {
                let enqueued = due::hand_over(&self.store, invocation, &due, None, |write| write).await?;
                matches!(enqueued, Returned::Row(_))
            }
            Returned::Refused(_) => false,
        })
    }

    /// Returns messages whose outcome is unknown, oldest first, starting after the place `after`.
    pub async fn unknown_page(
        &self,
        invocation: &Invocation,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<MessageRow>, Option<String>), StoreError> {
        let (found, next) = self.store.waiting_page(invocation, &self.table, Wake::Unknown, after, limit).await?;
        let rows = self.rows_of(invocation, found).await?;
        let is_unknown = |row: &MessageRow| row.delivery.state == State::Unknown;
        Ok((rows.into_iter().map(|(row, _)| row).filter(is_unknown).collect(), next))
    }

    /// Changes a message by a rule. The transaction includes the writes that follow from the change
    /// and those that `also` adds.
    pub(super) async fn change<T>(
        &self,
        invocation: &Invocation,
        start: impl Into<Start<MessageRow>>,
        rule: impl Fn(&MessageRow) -> Next<MessageRow, T>,
        also: impl Fn(&MessageRow) -> Result<Vec<Beside>, StoreError>,
    ) -> Result<Committed<MessageRow, T>, StoreError> {
        let (rule, also) = (&rule, &also);
        let asked = |before: MessageRow| async move {
            let (after, out) = match rule(&before) {
                Next::Stop(out) => return Ok(Decided::Stop(out)),
                Next::Commit(after, out) => (after, out),
            };
            let mut with = also(&after)?;
            with.extend(self.intent_writes(invocation, &before, &after).await?);
            Ok(Decided::Commit { row: after, with, out })
        };
        self.store.change_with(invocation, &self.table, start, asked).await
    }

    /// Returns the writes that release the intent of a message if it ends unsent, that take it
    /// again if a message that had ended unsent turns out to have been sent, or that make its hold
    /// pending if it is queued again.
    pub(super) async fn intent_writes(
        &self,
        invocation: &Invocation,
        before: &MessageRow,
        after: &MessageRow,
    ) -> Result<Vec<Beside>, StoreError> {
        let holder = holder_of(after);
        if let Some(intent) = after.suspended_intent(before) {
            return Ok(self.intents.suspend(invocation, intent, &holder).await?.into_iter().collect());
        }
        if let Some(intent) = after.released_intent(before) {
            return self.intents.give_back(invocation, intent, &holder).await;
        }
        match after.retaken_intent(before) {
            Some(intent) => self.intents.take_back(invocation, intent, &holder).await,
            None => Ok(Vec::new()),
        }
    }
}

fn holder_of(row: &MessageRow) -> String {
    Holder::Message(row.id.clone()).to_string()
}

fn nothing(_: &MessageRow) -> Result<Vec<Beside>, StoreError> {
    Ok(Vec::new())
}
