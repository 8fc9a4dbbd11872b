//! The number of a shard's entries per state. The sender counts them under the lease of the shard;
//! an entry that changes afterwards also changes the counts.

use umavez_domain::keys;
use umavez_domain::mailings::{EntryState, MailingEntryId, MailingId, ShardState, Tally};
use umavez_domain::time::Timestamp;

use super::Mailings;
use crate::invocation::Invocation;
use crate::store::{Condition, Query, StoreError, Write};

/// The number of rows that one request counts.
const COUNTED_AT_ONCE: usize = 1_000;

impl Mailings {
    /// Builds the write that moves an entry in the counts of its shard. It must commit in one
    /// transaction with the entry. A finished shard is not counted again, so the write changes its
    /// counts. A shard that is being counted must be counted again, so the write only marks it as
    /// touched. The write is refused if the shard was finished or reopened meanwhile.
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
            true => touch.add(&column(from), -1).add(&column(to), 1).when(Condition::is("state", finished)),
            false => touch.when(Condition::is_not("state", finished)),
        })
    }

    /// Counts the entries of a shard, including invalid rows.
    pub async fn recount(&self, invocation: &Invocation, id: &MailingId, shard: u32) -> Result<Tally, StoreError> {
        let mut tally = Tally::default();
        let mut after = None;
        loop {
            let query = Query::partition(&self.table, keys::mailing_entries(id, shard)).after(after);
            let slice = self.store.slice(invocation, &query.limit(COUNTED_AT_ONCE)).await?.read()?;
            for Counted { state, not_before, deadline } in slice.rows {
                // The row of a duplicate line has no state: it is not an entry.
                let Some(state) = state else { continue };
                let state = EntryState::of_stored(&state).ok_or(StoreError::Corrupt("the state of an entry"))?;
                tally.add(state, not_before, deadline.map(Timestamp::from_millis), invocation.current());
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

/// Returns the attribute of a shard that counts the entries in a state: a field of [`EntryCounts`].
fn column(state: EntryState) -> String {
    state.as_str().to_ascii_lowercase()
}
