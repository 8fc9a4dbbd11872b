//! One invocation: its id, its `now`, and the time that it has left.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::Context;
use tokio::time::Instant;
use umavez_domain::time::Timestamp;

use crate::clock::Clock;

/// Time reserved at the end of an invocation for the response.
const MARGIN: Duration = Duration::from_millis(300);
/// The longest time for one call to AWS, however much time is left.
const CALL_LIMIT: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub struct Invocation {
    pub request_id: String,
    /// The start of the invocation. All its decisions use this one `now`.
    pub now: Timestamp,
    started: Instant,
    deadline: Instant,
    /// Distinguishes two runs of one request: Lambda retries an asynchronous invocation with the
    /// same request id.
    run: u32,
    writes: AtomicU32,
}

/// No time was left for a call, or the call timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call timed out")]
pub struct TimedOut;

impl Invocation {
    pub fn new(request_id: impl Into<String>, now: Timestamp, time_left: Duration) -> Self {
        let started = Instant::now();
        let deadline = started + time_left;
        Self {
            request_id: request_id.into(),
            now,
            started,
            deadline,
            run: fastrand::u32(..),
            writes: AtomicU32::new(0),
        }
    }

    pub fn of_lambda(context: &Context, clock: Clock) -> Self {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let left_ms = u128::from(context.deadline).saturating_sub(now_ms);
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        Self::new(context.request_id.clone(), clock.now(), left)
    }

    /// Returns the current time, for durations that start at this moment, such as a lease.
    pub fn current(&self) -> Timestamp {
        self.now.plus_ms(i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the time left for work, without the margin for the response.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).saturating_sub(MARGIN)
    }

    /// Runs a call within the time left. The SDK has no timeout over all its attempts.
    pub async fn within<F: Future>(&self, call: F) -> Result<F::Output, TimedOut> {
        tokio::time::timeout(self.time_left().min(CALL_LIMIT), call).await.map_err(|_| TimedOut)
    }

    /// Returns a unique token for one write. With it, a writer distinguishes its own earlier
    /// write from a duplicate by another.
    pub fn write_token(&self) -> String {
        format!("{}/{:08x}/{}", self.request_id, self.run, self.writes.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_has_a_unique_token_even_if_lambda_retries_a_request() {
        let run = || Invocation::new("r", Timestamp::from_seconds(0), Duration::from_secs(1));
        let (first, again) = (run(), run());
        let tokens = [first.write_token(), first.write_token(), again.write_token(), again.write_token()];
        let different: std::collections::BTreeSet<_> = tokens.iter().collect();
        assert_eq!(different.len(), 4, "{tokens:?}");
        assert!(tokens.iter().all(|token| token.starts_with("r/")), "{tokens:?}");
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_with_the_invocation() {
        let invocation = Invocation::new("r", Timestamp::from_seconds(0), Duration::from_millis(310));
        assert_eq!(invocation.within(std::future::pending::<()>()).await, Err(TimedOut));
        assert_eq!(invocation.time_left(), Duration::ZERO);
    }
}
