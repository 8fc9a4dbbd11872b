//! Takes what is due soon out of the index of what waits. One mechanism for every table that has such rows: it finds, and a
//! conditional write on the row itself decides.

use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use umavez_domain::keys::{WAKE_SHARDS, Wake};
use umavez_domain::work::LOOK_AHEAD_MS;

use crate::invocation::Invocation;
use crate::store::{Found, Query, Store, StoreError};

/// Rows of one query, and writes at once.
const PAGE: usize = 200;
const AT_ONCE: usize = 8;
/// With less time than this the rest is left to the next tick.
const LOW_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Swept {
    pub found: u64,
    pub emitted: u64,
    pub failed: u64,
    /// Shards that could not be read.
    pub unread: u64,
    /// That was all.
    pub finished: bool,
}

/// Hands over all that is due within the look-ahead, as long as there is time.
pub async fn sweep<F, Fut>(store: &Store, invocation: &Invocation, table: &str, hand_over: F) -> Swept
where
    F: Fn(Found) -> Fut,
    Fut: Future<Output = Result<bool, StoreError>>,
{
    let mut swept = Swept { finished: true, ..Swept::default() };
    // One after the other: there are few, and what is due in one is handed over many at a time.
    for shard in 0..WAKE_SHARDS {
        match sweep_shard(store, invocation, table, shard, &hand_over, &mut swept).await {
            Ok(finished) => swept.finished &= finished,
            Err(_) => swept.unread += 1,
        }
    }
    swept
}

/// One row that cannot be written does not keep those after it from being handed over. Whether that was all.
async fn sweep_shard<F, Fut>(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    shard: u32,
    hand_over: &F,
    swept: &mut Swept,
) -> Result<bool, StoreError>
where
    F: Fn(Found) -> Fut,
    Fut: Future<Output = Result<bool, StoreError>>,
{
    let due = Query::waiting(table, Wake::Due, shard).until(invocation.now.plus_ms(LOOK_AHEAD_MS)).limit(PAGE);
    let mut after = None;
    while invocation.time_left() > LOW_TIME {
        let found = store.nominate(invocation, &due.clone().after(after)).await?;
        let last_page = found.len() < PAGE;
        after = found.last().map(|found| found.place.clone());
        swept.found += found.len() as u64;
        let mut handed = futures::stream::iter(found).map(hand_over).buffer_unordered(AT_ONCE);
        while let Some(handed) = handed.next().await {
            match handed {
                Ok(mine) => swept.emitted += u64::from(mine),
                Err(error) => {
                    tracing::error!(event = "NOT_HANDED_OVER", cause = %error, request_id = invocation.request_id);
                    swept.failed += 1;
                }
            }
        }
        if last_page {
            return Ok(true);
        }
    }
    Ok(false)
}
