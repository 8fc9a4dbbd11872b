//! The index by time: one sweep and one recovery loop for all tables with rows that wait.
//!
//! The index only nominates rows, because it may lag behind its table; a conditional write on the
//! row itself decides. So each sweep or recovery may run twice, late or not at all, and it never
//! overwrites what another writer has changed since.

use std::time::Duration;

use futures::StreamExt;
use umavez_domain::keys::index::BY_TIME;
use umavez_domain::keys::{self, WAKE_SHARDS, Wake};
use umavez_domain::outbox::{self, Emit};
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_domain::work::{LOOK_AHEAD_MS, check_after_ms};

use crate::invocation::Invocation;
use crate::store::{Condition, Found, Query, Returned, Store, StoreError, Write, attribute};

/// The rows of one query, and the rows that are handled at the same time.
const PAGE: usize = 200;
const AT_ONCE: usize = 8;
/// With less time left than this, the remaining rows are left to the next run.
const LOW_TIME: Duration = Duration::from_secs(5);

/// The result of a run over the index.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Swept {
    pub found: u64,
    /// Rows that this run changed.
    pub done: u64,
    pub failed: u64,
    /// Shards that could not be read.
    pub unread: u64,
    /// Whether there was time for all rows.
    pub finished: bool,
}

/// Shares the time of an invocation among kinds of rows, so that a backlog of one kind does not
/// keep the next one from being handled.
#[derive(Debug)]
pub struct Shares<'a> {
    invocation: &'a Invocation,
    left: u32,
}

impl<'a> Shares<'a> {
    pub fn among(kinds: u32, invocation: &'a Invocation) -> Self {
        Self { invocation, left: kinds }
    }

    /// Returns the time that the next kind must leave for the kinds after it. Time that a kind does
    /// not need is shared among those after it.
    pub fn leave(&mut self) -> Duration {
        let leave = leave(self.invocation.time_left(), LOW_TIME, self.left);
        self.left = self.left.saturating_sub(1);
        leave
    }
}

/// Returns how much time is left when one of `parts` equal parts is used up. `low` is not shared.
fn leave(time_left: Duration, low: Duration, parts: u32) -> Duration {
    let parts = parts.max(1);
    low + time_left.saturating_sub(low) * (parts - 1) / parts
}

/// Returns the shards in the order of this run. Each minute starts with the next shard, so that
/// none is always the last one.
fn shards(now: Timestamp) -> impl Iterator<Item = u32> {
    let minute = u32::try_from(now.seconds() / 60 % i64::from(WAKE_SHARDS)).unwrap_or(0);
    (0..WAKE_SHARDS).map(move |shard| (minute + shard) % WAKE_SHARDS)
}

/// Returns whether a row is among those that this minute handles, of rows that are handled once an
/// hour.
pub fn is_of_this_minute(found: &Found, now: Timestamp) -> bool {
    let number = found.key.pk.bytes().fold(0_u32, |number, byte| number.wrapping_mul(31).wrapping_add(u32::from(byte)));
    i64::from(number % 60) == now.seconds() / 60 % 60
}

/// Enqueues all rows that are due within the look-ahead.
pub async fn sweep(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    hand_over: impl AsyncFn(Found) -> Result<bool, StoreError>,
) -> Swept {
    let until = invocation.now.plus_ms(LOOK_AHEAD_MS);
    each(store, invocation, table, (Wake::Due, Some(until)), LOW_TIME, hand_over).await
}

/// Recovers all rows that are overdue, and leaves the time `leave` for others.
pub async fn recover(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    wake: Wake,
    leave: Duration,
    recover: impl AsyncFn(Found) -> Result<bool, StoreError>,
) -> Swept {
    each(store, invocation, table, (wake, Some(invocation.now)), leave, recover).await
}

/// Handles all rows that wait for `wake`, up to `until` if given, the earliest of each shard first,
/// while more time is left than `leave_time`. Each shard has an equal share of the time; what one
/// does not need goes to those after it.
pub async fn each(
    store: &Store,
    invocation: &Invocation,
    table: &str,
    (wake, until): (Wake, Option<Timestamp>),
    leave_time: Duration,
    handle: impl AsyncFn(Found) -> Result<bool, StoreError>,
) -> Swept {
    let mut swept = Swept { finished: true, ..Swept::default() };
    let low = leave_time.max(LOW_TIME);
    // The shards are read one after the other: there are few, and the rows of one are handled in
    // parallel.
    for (shard, shards_left) in shards(invocation.now).zip((1..=WAKE_SHARDS).rev()) {
        let query = Query::waiting(table, wake, shard).until(until).limit(PAGE);
        let stop_at = leave(invocation.time_left(), low, shards_left);
        swept.finished &= each_of_shard(store, invocation, query, stop_at, &mut swept, &handle).await;
    }
    swept
}

/// Handles the rows of one shard and counts them, while more time is left than `stop_at`. Returns
/// whether it has read all of them. A row that cannot be read or written does not block the rows
/// after it.
async fn each_of_shard(
    store: &Store,
    invocation: &Invocation,
    mut query: Query<'_>,
    stop_at: Duration,
    swept: &mut Swept,
    handle: &impl AsyncFn(Found) -> Result<bool, StoreError>,
) -> bool {
    while invocation.time_left() > stop_at {
        let found = match store.nominate(invocation, &query).await {
            Ok(found) => found,
            Err(error) => {
                log_failure(invocation, Event::IndexNotRead, &error);
                swept.unread += 1;
                return false;
            }
        };
        let is_last = found.len() < PAGE;
        query = query.after(found.last().map(|found| found.place.clone()));
        swept.found += found.len() as u64;
        let mut handled = futures::stream::iter(found).map(|found| handle(found)).buffer_unordered(AT_ONCE);
        while let Some(handled) = handled.next().await {
            match handled {
                Ok(mine) => swept.done += u64::from(mine),
                Err(error) => {
                    log_failure(invocation, Event::RowNotHandled, &error);
                    swept.failed += 1;
                }
            }
        }
        if is_last {
            return true;
        }
    }
    false
}

fn log_failure(invocation: &Invocation, event: Event, error: &StoreError) {
    tracing::error!(event = event.as_str(), cause = %error, request_id = invocation.request_id);
}

/// A row that the index by time found.
pub struct DueRow<'a> {
    pub table: &'a str,
    pub found: &'a Found,
    /// The id of the row in the index by time.
    pub id: &'a str,
    pub emission: Emission,
}

/// The job that a due row enqueues.
pub enum Emission {
    /// The row contains the prepared job.
    Prepared,
    /// The job is built from the row's key, because the row does not contain it.
    Made(Box<dyn Fn(u64, Option<i64>) -> Emit + Send + Sync>),
}

/// Enqueues a due row; its queue holds it until it is due. It takes one write and does not read the
/// row. The write is refused if the row no longer waits for exactly this time, or if `when` does
/// not hold.
pub async fn hand_over(
    store: &Store,
    invocation: &Invocation,
    row: &DueRow<'_>,
    when: Option<Condition>,
    also: impl FnOnce(Write) -> Write,
) -> Result<Returned, StoreError> {
    let now = invocation.current();
    let due_at = keys::time_of(&row.found.place).unwrap_or(now).max(now);
    let shard = keys::wake_shard(row.id);
    let write = Write::update(row.table, row.found.key.clone())
        .set(BY_TIME.partition, keys::wake(Wake::Check, shard))
        .set(BY_TIME.sort, keys::at_time(due_at.plus_ms(check_after_ms(0)), row.id))
        .set("updated_at", now.to_string())
        .increment("version");
    let write = match &row.emission {
        Emission::Prepared => write.copy(outbox::ATTRIBUTE, "later").remove("later"),
        Emission::Made(make) => {
            // Use the clock as the sequence number: it is greater than every number that was
            // counted.
            let seq = u64::try_from(now.millis()).unwrap_or(0);
            let emit = make(seq, Some(due_at.millis()));
            write.set_value(outbox::ATTRIBUTE, attribute(&emit)?).set_number("emits", seq)
        }
    };
    // The row still waits for exactly this time.
    let waits =
        [Condition::is(BY_TIME.partition, keys::wake(Wake::Due, shard)), Condition::is(BY_TIME.sort, &row.found.place)];
    let waits = Condition::all(waits.into_iter().chain(when));
    store.update_returning(invocation, also(write).when(waits)).await
}

#[cfg(test)]
mod tests {
    use umavez_domain::keys::Key;

    use super::*;

    #[test]
    fn the_time_is_shared_equally_and_unused_time_goes_to_the_next_kind() {
        let seconds = Duration::from_secs;
        assert_eq!(leave(seconds(45), seconds(5), 4), seconds(35));
        // The first kind needed no time, and the next one has a third of the rest.
        assert_eq!(leave(seconds(45), seconds(5), 3), seconds(5) + seconds(80) / 3);
        assert_eq!(leave(seconds(45), seconds(5), 1), seconds(5));
        assert_eq!(leave(seconds(3), seconds(5), 4), seconds(5), "no time is left to share");
    }

    #[test]
    fn every_minute_starts_with_another_shard_and_no_shard_is_left_out() {
        let order = |minute: i64| shards(Timestamp::from_seconds(60 * minute)).collect::<Vec<_>>();
        assert_eq!((0..5).map(|minute| order(minute)[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 0]);
        assert_eq!(order(2), [2, 3, 0, 1]);
    }

    #[test]
    fn a_row_is_read_in_exactly_one_minute_of_the_hour() {
        let found =
            Found { key: Key { pk: "CONVERSATION#1".to_owned(), sk: "STATE".to_owned() }, place: String::new() };
        let minutes = (0..60).filter(|minute| is_of_this_minute(&found, Timestamp::from_seconds(60 * minute)));
        assert_eq!(minutes.count(), 1);
    }
}
