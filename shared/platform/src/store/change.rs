//! The one loop that reads a row, applies a rule, commits, and applies the rule again if another
//! writer was faster.
//!
//! Every change of a row goes through [`Store::change`]. A decision that depends on several rows
//! goes through [`Store::retry`]. Both own the number of tries, the jitter between them and the log
//! line about conflicts. Three things are not rows in this sense and keep their own expressions:
//! the arithmetic of the rate limiter (`limiter`), the intent hold that takes one request
//! (`intents`), and counters and lists to which several writers add without reading
//! (`suppressions`, the counts of a shard).

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use umavez_domain::change::{self, Fence, Row};
use umavez_domain::keys::Key;
use umavez_domain::telemetry::Event;

use super::transact::{Beside, Made};
use super::{Condition, Store, StoreError, Write, attribute, read_row};
use crate::invocation::Invocation;

/// More consecutive conflicts than this are a fault, not a race.
const MOST_TRIES: u32 = 60;
const LONGEST_WAIT_MS: u64 = 200;
/// With less time left than this, the change fails with [`StoreError::Conflict`] so that the caller
/// retries later.
const LOW_TIME: Duration = Duration::from_secs(2);
/// A change logs a warning when it reaches this many conflicts.
const MANY_CONFLICTS: u32 = 5;

/// Where a change starts: from a row that the caller has read, or from a key to read.
#[derive(Debug)]
pub enum Start<R> {
    Row(R),
    Key(Key),
}

impl<R> From<&R> for Start<R>
where
    R: Clone,
{
    fn from(row: &R) -> Self {
        Self::Row(row.clone())
    }
}

/// The decision of a rule, with the writes that must commit together with the row.
#[derive(Debug)]
pub enum Decided<R, T> {
    Commit { row: R, with: Vec<Beside>, out: T },
    Stop(T),
}

impl<R, T> Decided<R, T> {
    /// Writes `row` and nothing else.
    pub fn commit(row: R, out: T) -> Self {
        Self::Commit { row, with: Vec::new(), out }
    }
}

impl<R, T> From<change::Next<R, T>> for Decided<R, T> {
    fn from(next: change::Next<R, T>) -> Self {
        match next {
            change::Next::Commit(row, out) => Self::commit(row, out),
            change::Next::Stop(out) => Self::Stop(out),
        }
    }
}

/// The outcome of a change.
#[derive(Debug)]
pub enum Committed<R, T> {
    /// The row as this change wrote it.
    Done(R, T),
    /// The rule found nothing to write. Contains the current row.
    Stopped(R, T),
    /// There is no such row.
    Gone,
}

impl<R, T> Committed<R, T> {
    /// Returns the current row and the output of the rule; `None` if there is no row.
    pub fn row(self) -> Option<(R, T)> {
        match self {
            Self::Done(row, out) | Self::Stopped(row, out) => Some((row, out)),
            Self::Gone => None,
        }
    }

    /// Returns the row if this change wrote it.
    pub fn done(self) -> Option<R> {
        match self {
            Self::Done(row, _) => Some(row),
            Self::Stopped(..) | Self::Gone => None,
        }
    }

    /// Returns the output of the rule; `None` if there is no row.
    pub fn out(self) -> Option<T> {
        self.row().map(|(_, out)| out)
    }
}

impl Store {
    /// Changes a row by a rule that needs only the row.
    pub async fn change<R: Row, T>(
        &self,
        invocation: &Invocation,
        table: &str,
        start: impl Into<Start<R>>,
        rule: impl Fn(&R) -> Result<Decided<R, T>, StoreError>,
    ) -> Result<Committed<R, T>, StoreError> {
        self.change_with(invocation, table, start, |row| std::future::ready(rule(&row))).await
    }

    /// Changes a row by a rule that also reads other rows. Each time the commit loses a race, the
    /// rule runs again with the row that won.
    pub async fn change_with<R, T, F, Fut>(
        &self,
        invocation: &Invocation,
        table: &str,
        start: impl Into<Start<R>>,
        rule: F,
    ) -> Result<Committed<R, T>, StoreError>
    where
        R: Row,
        F: Fn(R) -> Fut,
        Fut: Future<Output = Result<Decided<R, T>, StoreError>>,
    {
        let mut row = match start.into() {
            Start::Row(row) => Some(row),
            Start::Key(key) => self.get(invocation, table, &key).await?,
        };
        let mut conflicts = Backoff::of::<R>();
        while let Some(before) = row {
            let (after, with, out) = match rule(before.clone()).await? {
                Decided::Stop(out) => return Ok(Committed::Stopped(before, out)),
                Decided::Commit { row, with, out } => (row, with, out),
            };
            match self.write_all(invocation, Write::of_change(table, &before, &after)?, with).await? {
                Made::Done => return Ok(Committed::Done(after, out)),
                Made::Refused(item) => row = item.map(read_row).transpose()?,
                // Keep this row: the rule reads the other row again.
                Made::OtherRefused => row = Some(before),
            }
            conflicts.wait(invocation).await?;
        }
        Ok(Committed::Gone)
    }

    /// Commits one change of a row that the caller read as `before`. It does not retry. Returns
    /// `false` if another writer has since changed the row, or a row that a required write beside
    /// it depends on.
    pub async fn commit<R: Row>(
        &self,
        invocation: &Invocation,
        table: &str,
        before: &R,
        after: &R,
        with: Vec<Beside>,
    ) -> Result<bool, StoreError> {
        let made = self.write_all(invocation, Write::of_change(table, before, after)?, with).await?;
        Ok(matches!(made, Made::Done))
    }

    /// Repeats a step that depends on several rows until it commits. The step returns `Continue` if
    /// one of those rows changed since it was read.
    pub async fn retry<T, E, F, Fut>(&self, invocation: &Invocation, step: F) -> Result<T, E>
    where
        E: From<StoreError>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<ControlFlow<T>, E>>,
    {
        self.retry_from(invocation, (), |()| step()).await
    }

    /// Works as [`Self::retry`], for a step that passes data to its next run: rows that it read, or
    /// rows that refused its write.
    pub async fn retry_from<S, T, E, F, Fut>(&self, invocation: &Invocation, start: S, step: F) -> Result<T, E>
    where
        E: From<StoreError>,
        F: Fn(S) -> Fut,
        Fut: Future<Output = Result<ControlFlow<T, S>, E>>,
    {
        let mut known = start;
        let mut conflicts = Backoff::of::<T>();
        loop {
            match step(known).await? {
                ControlFlow::Break(done) => return Ok(done),
                ControlFlow::Continue(next) => known = next,
            }
            conflicts.wait(invocation).await?;
        }
    }
}

/// How often [`persist`] tries a write. A result from outside the store is lost if it is not
/// written.
const PERSIST_TRIES: u32 = 6;

/// Repeats a write of a result that cannot be obtained again (the answer of a provider or a
/// responder) while the store does not answer and time is left.
pub async fn persist<T>(
    invocation: &Invocation,
    write: impl AsyncFn() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut tries = 1;
    loop {
        match write().await {
            Err(error) if error.is_passing() && tries < PERSIST_TRIES && !invocation.time_left().is_zero() => {
                tries += 1
            }
            written => return written,
        }
    }
}

impl Write {
    /// Builds the write of one change: it writes what differs between the two rows, on condition of
    /// the fence of `before`.
    pub fn of_change<R: Row>(table: &str, before: &R, after: &R) -> Result<Self, StoreError> {
        let fence = before.fence();
        let write = match fence {
            Fence::Absent => Self::put(table, after.key(), after)?,
            _ => Self::changes(table, before.key(), before, after)?,
        };
        Ok(write.when(Condition::of(&fence)?))
    }

    /// Builds the check that a row has not changed since it was read.
    pub fn unchanged<R: Row>(table: &str, row: &R) -> Result<Self, StoreError> {
        Ok(Self::check(table, row.key(), Condition::of(&row.fence())?))
    }
}

impl Condition {
    /// Builds the condition for a fence.
    pub fn of(fence: &Fence) -> Result<Self, StoreError> {
        Ok(match fence {
            Fence::Absent => Self::Absent,
            Fence::Version(version) => Self::is_number("version", version),
            Fence::Same(parts) => {
                let same = |(name, value): &(String, serde_json::Value)| match value {
                    serde_json::Value::Null => Ok(Self::has_not(name)),
                    value => attribute(value).map(|value| Self::Is(name.clone(), value)),
                };
                Self::all(parts.iter().map(same).collect::<Result<Vec<_>, StoreError>>()?)
            }
        })
    }
}

/// Waits between the tries of one change: longer each time, and with jitter so that competing
/// writers do not retry together.
struct Backoff {
    tries: u32,
    what: &'static str,
}

impl Backoff {
    fn of<T>() -> Self {
        Self { tries: 0, what: std::any::type_name::<T>() }
    }

    async fn wait(&mut self, invocation: &Invocation) -> Result<(), StoreError> {
        self.tries += 1;
        if self.tries == MANY_CONFLICTS {
            let (conflicts, what) = (self.tries, self.what);
            tracing::warn!(
                event = Event::WriteConflicted.as_str(),
                what,
                conflicts,
                request_id = invocation.request_id
            );
        }
        if self.tries >= MOST_TRIES || invocation.time_left() < LOW_TIME {
            return Err(StoreError::Conflict);
        }
        let longest = (10_u64 << self.tries.min(5)).min(LONGEST_WAIT_MS);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=longest))).await;
        Ok(())
    }
}
