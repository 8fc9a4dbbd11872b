//! How many entries of a shard are in which state: counted under its lease, and moved with an entry that changes afterwards.

use umavez_domain::keys;
use umavez_domain::mailings::{EntryCounts, EntryState, MailingId, ShardState};
use umavez_domain::time::Timestamp;

use super::entries::{Entry, of_attempt};
use super::{Mailings, ROUNDS};
use crate::invocation::Invocation;
use crate::store::{Condition, Query, StoreError, Transacted, Write};

/// Rows that are counted by one request.
const COUNTED_AT_ONCE: usize = 1_000;

/// A recount of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub counts: EntryCounts,
    /// The earliest time that an entry waits for.
    pub next_look: Option<Timestamp>,
}

impl Mailings {
    /// Changes a settled entry after the fact, with the counts of its shard: one transaction, because a shard that is finished
    /// is not counted again, and one that is being counted must be counted anew. Whether the entry was as it was read.
    pub(super) async fn correct(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        to: EntryState,
        write: Write,
    ) -> Result<bool, StoreError> {
        let from = entry.row.state;
        for _ in 0..ROUNDS {
            let id = &entry.id;
            let Some(shard) = self.shard(invocation, &id.mailing, id.shard).await? else {
                return Err(StoreError::Corrupt("an entry without its shard"));
            };
            let mut touch = Write::update(&self.table, keys::mailing_shard(&id.mailing, id.shard)).increment("touched");
            if shard.state == ShardState::Finished {
                touch = touch.add(column(from), -1).add(column(to), 1);
            }
            let finished = shard.state == ShardState::Finished;
            let same = match finished {
                true => Condition::is("state", ShardState::Finished.as_str()),
                false => Condition::is_not("state", ShardState::Finished.as_str()),
            };
            let writes = vec![write.clone().when(of_attempt(from, entry.row.attempt)), touch.when(same)];
            match self.store.transact(invocation, writes).await? {
                Transacted::Done => return Ok(true),
                Transacted::Refused(refusals) => {
                    if refusals.first().is_some_and(Option::is_some) {
                        return Ok(false);
                    }
                }
            }
        }
        Err(StoreError::Conflict)
    }

    /// Counts the entries of a shard, invalid rows included.
    pub async fn recount(&self, invocation: &Invocation, id: &MailingId, shard: u32) -> Result<Tally, StoreError> {
        let mut tally = Tally::default();
        let mut after = None;
        loop {
            let query = Query::partition(&self.table, keys::mailing_entries(id, shard)).after(after);
            let slice = self.store.slice(invocation, &query.limit(COUNTED_AT_ONCE)).await?.read()?;
            for Counted { state, not_before, settle_by } in slice.rows {
                // A line that came twice is no entry.
                let Some(state) = state else { continue };
                tally.counts.add(state);
                let waits_for = match state {
                    EntryState::Pending => not_before,
                    EntryState::Sending => settle_by,
                    _ => continue,
                };
                let at = waits_for.unwrap_or(invocation.current());
                tally.next_look = Some(tally.next_look.map_or(at, |earlier| earlier.min(at)));
            }
            after = slice.next;
            if after.is_none() {
                return Ok(tally);
            }
        }
    }
}

#[derive(serde::Deserialize)]
struct Counted {
    state: Option<EntryState>,
    not_before: Option<Timestamp>,
    settle_by: Option<Timestamp>,
}

/// The attribute of a shard that counts entries of a state.
fn column(state: EntryState) -> &'static str {
    match state {
        EntryState::Pending => "pending",
        EntryState::Sending => "sending",
        EntryState::Sent => "sent",
        EntryState::Failed => "failed",
        EntryState::Invalid => "invalid",
        EntryState::Unknown => "unknown",
        EntryState::Suppressed => "suppressed",
        EntryState::Canceled => "canceled",
    }
}
