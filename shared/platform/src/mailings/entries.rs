//! One recipient: claimed, called, settled. The entry's own row is the arbiter: `SENDING(n)` is written once, and what came of
//! attempt n is accepted from `SENDING(n)` or `UNKNOWN(n)`, whoever says it first.

use umavez_domain::delivery::{Again, Verdict, code};
use umavez_domain::keys;
use umavez_domain::mailings::{EntryRow, EntryState, MailingEntryId, MailingId, ShardRow};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::lease::Held;
use crate::store::{Condition, Item, Query, StoreError, Write, Written, attribute, read_row};

#[derive(Debug, Clone)]
pub struct Entry {
    pub id: MailingEntryId,
    pub row: EntryRow,
}

/// Some of a shard's entries.
#[derive(Debug)]
pub struct EntryPage {
    pub entries: Vec<Entry>,
    /// Where the next page begins, if there may be one.
    pub next: Option<String>,
}

/// What came of beginning an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    Yes,
    /// It was begun, and it took so long to know that, that it is not to be called.
    Late,
    /// The entry is not as it was read: somebody else did something with it.
    Lost,
}

/// An attempt to be begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub number: u32,
    pub settle_by: Timestamp,
    /// The last order to send failed entries again that was given by now: it is not about what comes of this one.
    pub order: u32,
}

#[derive(serde::Deserialize)]
struct Claimed {
    state: EntryState,
    #[serde(default)]
    attempt: u32,
    epoch: Option<u64>,
}

/// What came of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntrySettled {
    /// The entry is this, by this write.
    Now(EntryState),
    /// Somebody had said so already, or knows better.
    Known(EntryState),
    Gone,
}

impl Mailings {
    pub async fn entry(&self, invocation: &Invocation, id: &MailingEntryId) -> Result<Option<EntryRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_entry(id)).await
    }

    /// The entries of a shard that may have something to be done, from a place on. `looked_at` rows are read at most.
    pub async fn entries(
        &self,
        invocation: &Invocation,
        shard: &ShardRow,
        after: Option<String>,
        looked_at: usize,
    ) -> Result<EntryPage, StoreError> {
        let state = |state: EntryState| Condition::is("state", state.as_str());
        let mut open = vec![state(EntryState::Pending), state(EntryState::Sending)];
        if shard.retried > 0 {
            open.push(state(EntryState::Failed));
        }
        if shard.retried_unknown > 0 {
            open.push(state(EntryState::Unknown));
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

    /// Begins attempt n: from here on it may be called once, and is never begun again.
    pub async fn claim(
        &self,
        invocation: &Invocation,
        held: &Held,
        entry: &Entry,
        Attempt { number: attempt, settle_by, order }: Attempt,
    ) -> Result<Claim, StoreError> {
        let write = Write::update(&self.table, keys::mailing_entry(&entry.id))
            .set("state", EntryState::Sending.as_str())
            .set_number("attempt", attempt)
            .set_value("last_attempt", attribute(&invocation.current())?)
            .set_value("settle_by", attribute(&settle_by)?)
            .set_number("epoch", held.epoch)
            .set_number("retried", order)
            .remove("not_before")
            .when(as_read(&entry.row));
        match self.store.write(invocation, write).await {
            Ok(Written::New | Written::Mine) => Ok(Claim::Yes),
            Ok(Written::Refused(_)) => Ok(Claim::Lost),
            // It may have been made, and nothing was called: that is known to nobody else.
            Err(error) if error.is_passing() => {
                let met = self.store.get::<Claimed>(invocation, &self.table, &keys::mailing_entry(&entry.id)).await?;
                let mine = met.is_some_and(|met| {
                    met.state == EntryState::Sending && met.attempt == attempt && met.epoch == Some(held.epoch)
                });
                if mine { Ok(Claim::Late) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a pending entry that is not to be sent. Whether it was still pending.
    pub async fn end_unsent(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        state: EntryState,
        reason: &str,
    ) -> Result<bool, StoreError> {
        // An earlier attempt may have been sent all the same.
        let state = if entry.row.doubt.is_some() { EntryState::Unknown } else { state };
        let write = Write::update(&self.table, keys::mailing_entry(&entry.id))
            .set("state", state.as_str())
            .set("reason", reason)
            .remove("not_before")
            .when(as_read(&entry.row));
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }

    /// The sender of an attempt was not heard of again. `order` is the last that was given: it is not about this. Whether it
    /// was so.
    pub async fn lost(&self, invocation: &Invocation, entry: &Entry, order: u32) -> Result<bool, StoreError> {
        let write = Write::update(&self.table, keys::mailing_entry(&entry.id))
            .set("state", EntryState::Unknown.as_str())
            .set("reason", code::SENDER_LOST)
            .set_number("retried", order)
            .remove("settle_by")
            .when(as_read(&entry.row));
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }

    /// Makes a failed or unknown entry pending again, by order. Whether it was still so.
    pub async fn send_again(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        order: u32,
    ) -> Result<Option<Entry>, StoreError> {
        let mut row = EntryRow {
            state: EntryState::Pending,
            tries_from: entry.row.attempt,
            retried: order,
            not_before: None,
            reason: None,
            // What was rejected was an earlier attempt.
            rejected_at: None,
            ..entry.row.clone()
        };
        if entry.row.state == EntryState::Unknown {
            row.doubt = row.doubt.or(Some(entry.row.attempt));
        }
        let write = Write::changes(&self.table, keys::mailing_entry(&entry.id), &entry.row, &row)?;
        match self.store.write(invocation, write.when(as_read(&entry.row))).await? {
            Written::New | Written::Mine => Ok(Some(Entry { id: entry.id.clone(), row })),
            Written::Refused(_) => Ok(None),
        }
    }

    /// Writes what came of attempt n.
    pub async fn settle(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        attempt: u32,
        verdict: &Verdict,
    ) -> Result<EntrySettled, StoreError> {
        let state = after(&entry.row, verdict);
        let write = self.outcome(entry, attempt, verdict, state, invocation.current())?;
        let under_way = of_attempt(EntryState::Sending, attempt);
        match self.store.write(invocation, write.when(under_way)).await? {
            Written::New | Written::Mine => Ok(EntrySettled::Now(state)),
            Written::Refused(None) => Ok(EntrySettled::Gone),
            Written::Refused(Some(item)) => {
                let met: EntryRow = read_row(item)?;
                // It was taken for lost, and is to be sent again by order: it need not be.
                if matches!(verdict, Verdict::Sent { .. }) && met.state == EntryState::Pending && met.attempt == attempt
                {
                    let entry = Entry { id: entry.id.clone(), row: met };
                    let write =
                        self.outcome(&entry, attempt, verdict, state, invocation.current())?.remove("not_before");
                    let waiting = of_attempt(EntryState::Pending, attempt);
                    let made = self.store.write(invocation, write.when(waiting)).await?;
                    let lost = matches!(made, Written::Refused(_));
                    return Ok(if lost { EntrySettled::Known(entry.row.state) } else { EntrySettled::Now(state) });
                }
                // It was given up as lost, and is known after all. Its shard may be finished: it is not sent again by itself,
                // and one that may have been sent before stays unknown.
                let state = match state {
                    EntryState::Pending if met.doubt.is_none() => EntryState::Failed,
                    EntryState::Pending => EntryState::Unknown,
                    state => state,
                };
                if met.state != EntryState::Unknown || met.attempt != attempt || state == EntryState::Unknown {
                    return Ok(EntrySettled::Known(met.state));
                }
                let entry = Entry { id: entry.id.clone(), row: met };
                let write = self.outcome(&entry, attempt, verdict, state, invocation.current())?;
                let moved = self.correct(invocation, &entry, state, write).await?;
                Ok(if moved { EntrySettled::Now(state) } else { EntrySettled::Known(entry.row.state) })
            }
        }
    }

    fn outcome(
        &self,
        entry: &Entry,
        attempt: u32,
        verdict: &Verdict,
        state: EntryState,
        now: Timestamp,
    ) -> Result<Write, StoreError> {
        let write =
            Write::update(&self.table, keys::mailing_entry(&entry.id)).set("state", state.as_str()).remove("settle_by");
        Ok(match verdict {
            Verdict::Sent { provider_id } => write
                .set("external_id", provider_id)
                .set_value("sent_at", attribute(&now)?)
                .remove("reason")
                .remove("doubt"),
            Verdict::Again { why, code, not_before } => {
                let write = write.set_value("not_before", attribute(not_before)?).set("reason", *code);
                // A limit does not use up an attempt.
                match why {
                    Again::Throttled => write.set_number("tries_from", entry.row.tries_from + 1),
                    Again::Retry | Again::Policy => write,
                }
            }
            Verdict::Failed { code, .. } | Verdict::Expired { code } | Verdict::Unknown { code } => {
                write.set("reason", *code).set_number("attempt", attempt)
            }
        })
    }
}

/// What an attempt leaves an entry in. One that may have been sent before cannot be said not to have been.
fn after(row: &EntryRow, verdict: &Verdict) -> EntryState {
    match EntryState::after(verdict) {
        EntryState::Failed if row.doubt.is_some() => EntryState::Unknown,
        state => state,
    }
}

pub(super) fn entry_of(mailing: &MailingId, shard: u32, item: Item) -> Result<Entry, StoreError> {
    let hash = item.get("sk").and_then(|sk| sk.as_s().ok()).and_then(|sk| sk.strip_prefix(keys::MAILING_ENTRY_PREFIX));
    let email_hash = hash.ok_or(StoreError::Corrupt("the key of an entry"))?.to_owned();
    Ok(Entry { id: MailingEntryId { mailing: mailing.clone(), shard, email_hash }, row: read_row(item)? })
}

/// The entry is in this state, with this attempt as its last.
pub(super) fn of_attempt(state: EntryState, attempt: u32) -> Condition {
    let same = match attempt {
        // No attempt was ever begun.
        0 => Condition::any([Condition::has_not("attempt"), Condition::is_number("attempt", 0)]),
        attempt => Condition::is_number("attempt", attempt),
    };
    Condition::all([Condition::is("state", state.as_str()), same])
}

fn as_read(row: &EntryRow) -> Condition {
    of_attempt(row.state, row.attempt)
}
