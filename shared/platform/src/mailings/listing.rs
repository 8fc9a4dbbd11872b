//! Lists: mailings, entries of a mailing, and lines that are not recipients.

use umavez_domain::keys;
use umavez_domain::mailings::{EntryState, LineRow, MailingEntryRow, MailingEntryView, MailingId, MailingRow};

use super::entries::{entry_of, is_state};
use super::{ListedRow, Mailings};
use crate::invocation::Invocation;
use crate::store::{Condition, Query, StoreError, read_row};

/// The maximum number of rows that one request for entries evaluates. A page may therefore be
/// short, and says where the next one starts.
const LOOKED_AT: usize = 2_000;

/// A place in the entries of a mailing: a shard and a sort key in it; `None` is the start of the
/// shard.
pub type EntryPlace = (u32, Option<String>);

impl Mailings {
    /// Reads a page of mailings, the newest first.
    pub async fn page(
        &self,
        invocation: &Invocation,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<MailingRow>, Option<String>), StoreError> {
        let query = Query::partition(&self.table, keys::MAILINGS).after(after).limit(limit);
        let page = self.store.page::<ListedRow>(invocation, &query).await?;
        let asked: Vec<_> = page.rows.iter().map(|row| keys::mailing(&row.mailing_id)).collect();
        let mut found = self.store.get_many(invocation, &self.table, &asked).await?;
        let rows = asked.iter().filter_map(|key| found.remove(key)).map(read_row).collect::<Result<_, _>>()?;
        Ok((rows, page.next))
    }

    /// Reads any one recipient, to preview the content of the mailing.
    pub async fn first_entry(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
    ) -> Result<Option<MailingEntryRow>, StoreError> {
        for shard in 0..mailing.shards {
            let query = Query::partition(&self.table, keys::mailing_entries(&mailing.mailing_id, shard))
                .prefix(keys::MAILING_ENTRY_PREFIX)
                .limit(1);
            if let Some(item) = self.store.slice(invocation, &query).await?.rows.into_iter().next() {
                return read_row(item).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads entries in one state, or in any, in the order of their shards.
    pub async fn entries_page(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        state: Option<EntryState>,
        after: EntryPlace,
        limit: usize,
    ) -> Result<(Vec<MailingEntryView>, Option<EntryPlace>), StoreError> {
        let (mut entries, mut looked_at) = (Vec::new(), 0);
        let (mut shard, mut place) = after;
        while shard < mailing.shards {
            // Duplicate lines have no state: they are not entries.
            let only = state.map_or(Condition::has("state"), is_state);
            let left = limit - entries.len();
            // Without a filter, read as many rows as are wanted. With one, read more, because some
            // rows do not match.
            let step = if state.is_none() { left } else { left.max(500) };
            let query = Query::partition(&self.table, keys::mailing_entries(&mailing.mailing_id, shard))
                .only(only)
                .after(place.take())
                .limit(step);
            let slice = self.store.slice(invocation, &query).await?;
            looked_at += step;
            for item in slice.rows {
                let sk = item.get("sk").and_then(|sk| sk.as_s().ok()).cloned().unwrap_or_default();
                entries.extend(view(&mailing.mailing_id, shard, &sk, item)?);
                if entries.len() == limit {
                    return Ok((entries, Some((shard, Some(sk)))));
                }
            }
            match slice.next {
                Some(next) => place = Some(next),
                None => shard += 1,
            }
            if looked_at >= LOOKED_AT && shard < mailing.shards {
                return Ok((entries, Some((shard, place))));
            }
        }
        Ok((entries, None))
    }

    /// Reads lines that are not recipients, in the order of the file: takes the next lines of each
    /// shard and returns the first of all of them.
    pub async fn lines(
        &self,
        invocation: &Invocation,
        mailing: &MailingRow,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<LineRow>, Option<u64>), StoreError> {
        use futures::{StreamExt, TryStreamExt};
        const AT_ONCE: usize = 16;
        // Lines are spread evenly over the shards. From each shard, read no more than are wanted.
        let share = (limit * 2 / usize::try_from(mailing.shards.max(1)).unwrap_or(1)).max(16).min(limit + 1);
        let of_shard = |shard: u32| async move {
            let query = Query::partition(&self.table, keys::mailing_entries(&mailing.mailing_id, shard))
                .prefix(keys::MAILING_LINE_PREFIX)
                .after((after > 0).then(|| keys::mailing_line(&mailing.mailing_id, shard, after).sk))
                .limit(share);
            self.store.slice(invocation, &query).await?.read::<LineRow>()
        };
        let slices: Vec<_> =
            futures::stream::iter(0..mailing.shards).map(of_shard).buffer_unordered(AT_ONCE).try_collect().await?;
        let (mut lines, mut known_to) = (Vec::<LineRow>::new(), u64::MAX);
        for slice in slices {
            // A shard with more rows may have any line after its last one that was read.
            if let (Some(_), Some(last)) = (&slice.next, slice.rows.last()) {
                known_to = known_to.min(last.line);
            }
            lines.extend(slice.rows);
        }
        lines.sort_unstable_by_key(|line| line.line);
        let found = lines.len();
        lines.retain(|line| line.line <= known_to);
        lines.truncate(limit);
        let more = known_to < u64::MAX || lines.len() < found;
        let next = lines.last().map(|line| line.line).filter(|_| more);
        Ok((lines, next))
    }
}

fn view(
    mailing: &MailingId,
    shard: u32,
    sk: &str,
    item: crate::store::Item,
) -> Result<Option<MailingEntryView>, StoreError> {
    if sk.starts_with(keys::MAILING_LINE_PREFIX) {
        return Ok(MailingEntryView::of_line(read_row(item)?));
    }
    let entry = entry_of(mailing, shard, item)?;
    Ok(Some(MailingEntryView::of(&entry.id, entry.row)))
}
