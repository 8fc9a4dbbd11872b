//! The lists for operators: the offers of a bot, and its counts.

use std::collections::VecDeque;
use std::time::Duration;

use umavez_domain::change::Fence;
use umavez_domain::downsells::views::{ListedOffer, Numbers, OfferFilter};
use umavez_domain::downsells::{ContactId, OfferRow};
use umavez_domain::keys::index::BY_BOT;
use umavez_domain::keys::{self, Key, WAKE_SHARDS};
use umavez_domain::time::Timestamp;

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, Page, Query, StoreError, read_row};

/// The most requests for one page, when few offers match its filters.
const MOST_REQUESTS: usize = 10;
/// The most offers that one call of `count` reads.
const COUNTED_AT_ONCE: usize = 5_000;

/// With less time left than this, `numbers` returns what it has counted so far.
const LOW_TIME: Duration = Duration::from_secs(5);

/// Selects offers of a bot, newest first.
#[derive(Debug, Default)]
pub struct QueueFilter {
    pub telegram_id: Option<i64>,
    pub offers: OfferFilter,
    pub after: Option<String>,
    pub limit: usize,
}

impl QueueFilter {
    fn filter(&self) -> Result<Option<Condition>, StoreError> {
        match Fence::same(&self.offers) {
            Fence::Same(parts) if parts.is_empty() => Ok(None),
            same => Condition::of(&same).map(Some),
        }
    }
}

impl Downsells {
    pub async fn queue(
        &self,
        invocation: &Invocation,
        slug: &str,
        of: &QueueFilter,
    ) -> Result<Page<OfferRow>, StoreError> {
        match of.telegram_id {
            Some(telegram_id) => self.queue_of_contact(invocation, &ContactId::of(slug, telegram_id), of).await,
            None => self.queue_of_bot(invocation, slug, of).await,
        }
    }

    /// Reads the offers of a contact from the table itself, not from an index. Offers are sorted
    /// newest first within a page; pages follow the order of the offers' ids.
    async fn queue_of_contact(
        &self,
        invocation: &Invocation,
        contact: &ContactId,
        of: &QueueFilter,
    ) -> Result<Page<OfferRow>, StoreError> {
        let mut parts = vec![Condition::has("scheduled_at")];
        parts.extend(of.filter()?);
        let query = Query::partition(&self.table, keys::contact_partition(contact))
            .prefix(keys::OFFER_PREFIX)
            .only(Condition::All(parts))
            .after(of.after.clone())
            .limit(of.limit);
        let mut page = self.store.page::<OfferRow>(invocation, &query).await?;
        page.rows.sort_by(|a, b| b.listed_at.cmp(&a.listed_at));
        Ok(page)
    }

    async fn queue_of_bot(
        &self,
        invocation: &Invocation,
        slug: &str,
        of: &QueueFilter,
    ) -> Result<Page<OfferRow>, StoreError> {
        let shards = (0..WAKE_SHARDS).map(|shard| async move {
            let query = Query::index(&self.table, BY_BOT, keys::offers_of_bot(slug, shard))
                .after(of.after.clone())
                .only(of.filter()?)
                .newest_first()
                .limit(of.limit)
                .requests(MOST_REQUESTS);
            self.store.page::<ListedOffer>(invocation, &query).await
        });
        let pages = futures::future::try_join_all(shards).await?;
        // Show nothing beyond the place up to which all shards were read.
        let seen_to = pages.iter().filter_map(|page| page.next.clone()).max();
        let mut listed: Vec<_> = pages.into_iter().flat_map(|page| page.rows).collect();
        listed.retain(|row| seen_to.as_ref().is_none_or(|place| row.listed_at >= *place));
        listed.sort_by(|a, b| b.listed_at.cmp(&a.listed_at));
        let more = listed.len() > of.limit;
        listed.truncate(of.limit);
        let next = if more { listed.last().map(|row| row.listed_at.clone()) } else { seen_to };
        let wanted: Vec<_> = listed.into_iter().map(|row| Key { pk: row.pk, sk: row.sk }).collect();
        let items = self.store.get_many(invocation, &self.table, &wanted).await?;
        let mut rows = items.into_values().map(read_row).collect::<Result<Vec<OfferRow>, _>>()?;
        rows.sort_by(|a, b| b.listed_at.cmp(&a.listed_at));
        Ok(Page { rows, next })
    }

    /// Counts the offers of a bot that were made between two times, from the newest on. Also
    /// returns whether there was time to count all of them.
    pub async fn numbers(
        &self,
        invocation: &Invocation,
        slug: &str,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<(Numbers, bool), StoreError> {
        let mut numbers = Numbers::default();
        let shards = (0..WAKE_SHARDS).map(|shard| (keys::offers_of_bot(slug, shard), keys::until_time(to)));
        let mut left: VecDeque<_> = shards.collect();
        // Count one page of each shard in turn, so that only the oldest offers are left out when
        // the time runs out.
        while let Some((listed, until)) = left.pop_front() {
            if let Some(next) = self.count(invocation, &listed, (from, until), &mut numbers).await? {
                left.push_back((listed, next));
                if invocation.time_left() < LOW_TIME {
                    return Ok((numbers, false));
                }
            }
        }
        Ok((numbers, true))
    }

    /// Counts one page of a shard of a bot's offers, up to the place `until`. Returns the `until`
    /// of the next page, if there is one.
    async fn count(
        &self,
        invocation: &Invocation,
        listed: &str,
        (from, until): (Timestamp, String),
        numbers: &mut Numbers,
    ) -> Result<Option<String>, StoreError> {
        let query = Query::index(&self.table, BY_BOT, listed)
            .between(keys::at_time(from, ""), until)
            .newest_first()
            .limit(COUNTED_AT_ONCE)
            .requests(MOST_REQUESTS);
        let page = self.store.page::<ListedOffer>(invocation, &query).await?;
        page.rows.iter().for_each(|offer| numbers.count(offer));
        Ok(page.next.map(|next| before(&next)))
    }
}

/// Returns the last text before a place. A place ends with an id of fixed length, whose last
/// character is a hex digit.
fn before(place: &str) -> String {
    let mut bytes = place.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last -= 1;
    }
    bytes.push(b'~');
    String::from_utf8(bytes).unwrap_or_default()
}
