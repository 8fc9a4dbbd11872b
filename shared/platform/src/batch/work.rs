//! The shell of queue workers. It decodes the job in a message's body and runs it. If the job must
//! be retried, it hides the message until then.

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use umavez_domain::queue::Unreadable;
use umavez_domain::time::Timestamp;

use super::{Handled, RecordError, messages};
use crate::invocation::Invocation;
use crate::store::StoreError;
use crate::visibility::{Visibility, receptions};

/// The wait before the first retry. Each further retry waits twice as long as the one before.
const FIRST_BACK_OFF_MS: i64 = 1_000;
/// The longest backoff, without the spread.
const LONGEST_BACK_OFF_MS: i64 = 60_000;
/// The receive count from which the spread no longer grows. It is also the longest spread, in
/// seconds.
const LARGEST_SPREAD: u32 = 20;

/// How a job ended when the store answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// The message leaves its queue. The log gets the code.
    Done(&'static str),
    /// The message returns to its queue, hidden until `until`.
    Later { why: &'static str, until: Timestamp },
}

impl Worked {
    /// Another worker holds the lease until `until`. The message is redelivered a second after
    /// that, because clocks differ.
    pub fn busy(until: Timestamp) -> Self {
        Self::Later { why: "busy", until: until.plus_ms(1_000) }
    }
}

/// Runs the jobs in the messages of one delivery, at most `at_once` at a time.
///
/// A message that `read` cannot decode goes to the dead-letter queue after a few tries. A message
/// whose job returns [`Worked::Later`] is hidden until then. A message whose job failed is hidden
/// for a backoff that doubles with each reception. Both waits get a random spread, so that messages
/// that fail together do not come back together.
pub async fn work<J>(
    visibility: &Visibility,
    invocation: &Invocation,
    event: SqsEvent,
    at_once: usize,
    read: fn(&str) -> Result<J, Unreadable>,
    run: impl AsyncFn(J) -> Result<Worked, StoreError>,
) -> SqsBatchResponse {
    let run_one = async |message: SqsMessage| match read(message.body.as_deref().unwrap_or_default()) {
        Ok(job) => finish(visibility, invocation, &message, run(job).await).await,
        Err(_) if visibility.set_aside(invocation, &message).await => Ok("set_aside"),
        Err(unreadable) => Err(unreadable.into()),
    };
    messages(invocation, event, at_once, run_one).await
}

/// Returns the outcome of a job. If the job must be retried, its message is hidden until then.
async fn finish(
    visibility: &Visibility,
    invocation: &Invocation,
    message: &SqsMessage,
    worked: Result<Worked, StoreError>,
) -> Handled {
    let received = receptions(message);
    let (error, wait_ms) = match worked {
        Ok(Worked::Done(outcome)) => return Ok(outcome),
        Ok(Worked::Later { why, until }) => {
            (RecordError::Later(why), (until.millis() - invocation.current().millis()).max(0))
        }
        Err(error) => (RecordError::Store(error), back_off_ms(received)),
    };
    visibility.hide(invocation, message, wait_ms + spread_ms(received, fastrand::u32(0..=1_000))).await;
    Err(error)
}

/// Returns the backoff for a failed job. `received` counts the receptions of its message, including
/// this one.
fn back_off_ms(received: u32) -> i64 {
    let doublings = received.saturating_sub(1).min(16);
    (FIRST_BACK_OFF_MS << doublings).min(LONGEST_BACK_OFF_MS)
}

/// Returns the random spread to add to a wait: up to a second per reception. The longer the queue
/// is, the less often its messages come back. `random` is 0 to 1000.
fn spread_ms(received: u32, random: u32) -> i64 {
    i64::from(random) * i64::from(received.min(LARGEST_SPREAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_doubles_from_a_second_to_a_minute() {
        let waits: Vec<_> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 1_000, u32::MAX].into_iter().map(back_off_ms).collect();
        let expected = [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60].map(|seconds| seconds * 1_000);
        assert_eq!(waits, expected);
    }

    #[test]
    fn a_spread_is_at_most_one_second_per_reception_and_twenty_seconds_in_total() {
        for (received, most) in [(1, 1_000), (2, 2_000), (20, 20_000), (21, 20_000), (u32::MAX, 20_000)] {
            assert_eq!((spread_ms(received, 0), spread_ms(received, 1_000)), (0, most), "{received}");
        }
    }

    #[test]
    fn a_store_outage_of_sixteen_hours_sends_no_message_to_the_dead_letters() {
        // The workers' queues allow this many receptions. The sum does not include the spread.
        let lasts_ms: i64 = (1..=1_000).map(back_off_ms).sum();
        assert!(lasts_ms >= 16 * 3_600_000, "{lasts_ms} ms");
    }

    #[test]
    fn a_lease_is_over_when_its_message_is_redelivered() {
        let until = Timestamp::from_seconds(60);
        assert_eq!(Worked::busy(until), Worked::Later { why: "busy", until: Timestamp::from_seconds(61) });
    }
}
