//! How many entries of a shard are in which state: counted under its lease, and moved with an entry
//! that changes afterwards.

use umavez_domain::keys;
use umavez_domain::mailings::{EntryCounts, EntryState, MailingEntryId, MailingId, ShardState};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, Query, StoreError, Write};

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
    /// The write that moves an entry's place in the counts of its shard, in one transaction with
    /// the entry. A finished shard is not counted again, and one that is being counted must be
    /// counted anew. It is refused if the shard was finished or reopened meanwhile.
    pub(super) async fn recounted(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
        from: EntryState,
        to: EntryState,
    ) -> Result<Write, StoreError> {
        let Some(shard) = self.shard(invocation, &id.mailing, id.shard).await? else {
            return Err(StoreError::Corrupt("an entry without its shard"));
        };
        let touch = Write::update(&self.table, keys::mailing_shard(&id.mailing, id.shard)).increment("touched");
        let finished = ShardState::Finished.as_str();
        Ok(match shard.state == ShardState::Finished {
            true => touch.add(column(from), -1).add(column(to), 1).when(Condition::is("state", finished)),
            false => touch.when(Condition::is_not("state", finished)),
        })
    }

    /// Counts the entries of a shard, invalid rows included.
    pub async fn recount(&self, invocation: &Invocation, id: &MailingId, shard: u32) -> Result<Tally, StoreError> {
        let mut tally = Tally::default();
        let mut after = None;
        loop {
            let query = Query::partition(&self.table, keys::mailing_entries(id, shard)).after(after);
            let slice = self.store.slice(invocation, &query.limit(COUNTED_AT_ONCE)).await?.read()?;
            for Counted { state, not_before, deadline } in slice.rows {
                // A line that came twice is no entry.
                let Some(state) = state else { continue };
                let state = EntryState::of_stored(&state).ok_or(StoreError::Corrupt("the state of an entry"))?;
                tally.counts.add(state);
                let waits_for = match state {
                    EntryState::Pending => not_before,
                    EntryState::Sending => deadline.map(Timestamp::from_millis),
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
    state: Option<String>,
    not_before: Option<Timestamp>,
    deadline: Option<i64>,
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
