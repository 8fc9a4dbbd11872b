//! One recipient: every change of its delivery. The rules are in `umavez_domain::mailings`. This
//! module commits them and, if an entry changes after it had ended, also the counts of its shard.

use umavez_domain::change::Next;
use umavez_domain::channels::email::ses_events::SesEvent;
use umavez_domain::delivery::{Claim, Settled, State, Verdict};
use umavez_domain::keys;
use umavez_domain::mailings::{EntryState, MailingEntryId, MailingEntryRow, MailingId, ShardRow};

use super::Mailings;
use crate::delivery::{Claimed, Tables};
use crate::invocation::Invocation;
use crate::store::{Beside, Committed, Condition, Decided, Item, Query, Start, StoreError, read_row};

#[derive(Debug, Clone)]
pub struct MailingEntry {
    pub id: MailingEntryId,
    pub row: MailingEntryRow,
}

/// Some entries of a shard.
#[derive(Debug)]
pub struct EntryPage {
    pub entries: Vec<MailingEntry>,
    /// Where the next page starts, if there may be one.
    pub next: Option<String>,
}

/// The effect of a provider's event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryApplied {
    /// The event shows whether the entry was sent, and the entry now has this state.
    Reconciled(EntryState),
    Marked,
    Known,
    NoEntry,
}

impl Mailings {
    /// Reads the entries of a shard that may need work, starting after a place. It evaluates at
    /// most `looked_at` rows.
    pub async fn entries(
        &self,
        invocation: &Invocation,
        shard: &ShardRow,
        after: Option<String>,
        looked_at: usize,
    ) -> Result<EntryPage, StoreError> {
        let mut open = vec![is_state(EntryState::Pending), is_state(EntryState::Sending)];
        if shard.retried > 0 {
            open.push(is_state(EntryState::Failed));
        }
        if shard.retried_unknown > 0 {
            open.push(is_state(EntryState::Unknown));
        }
        let query = Query::partition(&self.table, keys::mailing_entries(&shard.mailing_id, shard.shard))
            .prefix(keys::MAILING_ENTRY_PREFIX)
            .only(Condition::any(open))
            .after(after)
            .limit(looked_at);
        let slice = self.store.slice(invocation, &query).await?;
        let entries = slice.rows.into_iter().map(|item| entry_of(&shard.mailing_id, shard.shard, item));
        Ok(EntryPage { entries: entries.collect::<Result<_, _>>()?, next: slice.next })
    }

    pub async fn entry(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
    ) -> Result<Option<MailingEntryRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_entry(id)).await
    }

    /// Claims an attempt. After the claim, the provider may be called once for this attempt, and
    /// the attempt is never claimed again.
    pub async fn claim(
        &self,
        invocation: &Invocation,
        entry: &MailingEntry,
        claim: &Claim,
        order: u32,
    ) -> Result<Claimed<MailingEntryRow>, StoreError> {
        let Some(after) = entry.row.claimed(claim, order, invocation.current()) else { return Ok(Claimed::Lost(None)) };
        let tables = Tables { own: &self.table, outbound: &self.table };
        self.store.claim(invocation, tables, &entry.row, after, &[], Vec::new()).await
    }

    /// Ends a pending entry that must not be sent. Returns its new state; `None` if it was no
    /// longer pending.
    pub async fn end_unsent(
        &self,
        invocation: &Invocation,
        entry: &MailingEntry,
        state: State,
        reason: &str,
    ) -> Result<Option<EntryState>, StoreError> {
        self.commit(invocation, entry, entry.row.ended(state, reason)).await
    }

    /// Marks an attempt `UNKNOWN` because its sender timed out. `order` is the latest retry order;
    /// it does not apply to this attempt. Returns the new state; `None` if the attempt was no
    /// longer under way.
    pub async fn lost(
        &self,
        invocation: &Invocation,
        entry: &MailingEntry,
        order: u32,
    ) -> Result<Option<EntryState>, StoreError> {
        self.commit(invocation, entry, entry.row.lost(order, invocation.current())).await
    }

    /// Makes a failed or unknown entry pending again, because of a retry order. Returns `None` if
    /// it has changed since it was read.
    pub async fn send_again(
        &self,
        invocation: &Invocation,
        entry: &MailingEntry,
        order: u32,
    ) -> Result<Option<MailingEntry>, StoreError> {
        let Some(after) = entry.row.sent_again(order) else { return Ok(None) };
        let committed = self.store.commit(invocation, &self.table, &entry.row, &after, Vec::new()).await?;
        Ok(committed.then(|| MailingEntry { id: entry.id.clone(), row: after }))
    }

    async fn commit(
        &self,
        invocation: &Invocation,
        entry: &MailingEntry,
        after: Option<MailingEntryRow>,
    ) -> Result<Option<EntryState>, StoreError> {
        let Some(after) = after else { return Ok(None) };
        let committed = self.store.commit(invocation, &self.table, &entry.row, &after, Vec::new()).await?;
        Ok(committed.then(|| after.state()))
    }

    /// Writes the outcome of an attempt. Returns the resulting state of the entry; `None` if the
    /// entry does not exist.
    pub async fn settle(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
        row: &MailingEntryRow,
        attempt: u32,
        verdict: &Verdict,
    ) -> Result<Option<EntryState>, StoreError> {
        let rule = |row: &MailingEntryRow| match row.settled(attempt, verdict, invocation.current()) {
            Settled::Now(after) => Next::Commit(after, ()),
            Settled::Already | Settled::TooLate => Next::Stop(()),
        };
        let committed = self.change_entry(invocation, id, row, rule).await?;
        Ok(committed.row().map(|(row, ())| row.state()))
    }

    /// Applies a provider's event to its entry.
    pub async fn apply(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
        attempt: u32,
        event: &SesEvent,
    ) -> Result<EntryApplied, StoreError> {
        let rule = |row: &MailingEntryRow| match row.of_event(event, attempt) {
            Some((after, true)) => {
                let state = after.state();
                Next::Commit(after, EntryApplied::Reconciled(state))
            }
            Some((after, false)) => Next::Commit(after, EntryApplied::Marked),
            None => Next::Stop(EntryApplied::Known),
        };
        let start = Start::Key(keys::mailing_entry(id));
        Ok(self.change_entry(invocation, id, start, rule).await?.out().unwrap_or(EntryApplied::NoEntry))
    }

    /// Changes an entry by a rule. If the entry had already ended and its state changes, the same
    /// transaction also changes the counts of its shard.
    async fn change_entry<T>(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
        start: impl Into<Start<MailingEntryRow>>,
        rule: impl Fn(&MailingEntryRow) -> Next<MailingEntryRow, T>,
    ) -> Result<Committed<MailingEntryRow, T>, StoreError> {
        let rule = &rule;
        let asked = |before: MailingEntryRow| async move {
            let (row, out) = match rule(&before) {
                Next::Stop(out) => return Ok(Decided::Stop(out)),
                Next::Commit(row, out) => (row, out),
            };
            let (from, to) = (before.state(), row.state());
            let with = match from.is_settled() && from != to {
                true => vec![Beside::required(self.recounted(invocation, id, from, to).await?)],
                false => Vec::new(),
            };
            Ok(Decided::Commit { row, with, out })
        };
        self.store.change_with(invocation, &self.table, start, asked).await
    }
}

pub(super) fn entry_of(mailing: &MailingId, shard: u32, item: Item) -> Result<MailingEntry, StoreError> {
    let row: MailingEntryRow = read_row(item)?;
    let hash = row.sk.strip_prefix(keys::MAILING_ENTRY_PREFIX);
    let email_hash = hash.ok_or(StoreError::Corrupt("the key of an entry"))?.to_owned();
    Ok(MailingEntry { id: MailingEntryId { mailing: mailing.clone(), shard, email_hash }, row })
}

/// The recipient, or the invalid line, is in this state.
pub(super) fn is_state(state: EntryState) -> Condition {
    Condition::is("state", state.stored())
}
