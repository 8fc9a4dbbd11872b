//! The shell of queue workers: reads the job in a message's body, runs it, and hides the message
//! until it is tried again.

use std::future::Future;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use umavez_domain::queue::Unreadable;
use umavez_domain::time::Timestamp;

use super::{Outcome, RecordError, messages};
use crate::invocation::Invocation;
use crate::store::StoreError;
use crate::visibility::{Visibility, receptions};

/// The first retry waits this long, and each one after it twice as long as the one before.
const FIRST_BACK_OFF_MS: i64 = 1_000;
/// No back-off is longer than this, before its spread.
const LONGEST_BACK_OFF_MS: i64 = 60_000;
/// Seconds over which messages that were received this often, or more, are spread.
const LARGEST_SPREAD: u32 = 20;

/// How a job ended that the store has answered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// The message leaves its queue. The code goes to the log.
    Done(&'static str),
    /// The message goes back to its queue, hidden until then.
    Later { why: &'static str, until: Timestamp },
}

impl Worked {
    /// Another worker has the lease on it until then. The message comes back a second later,
    /// because clocks differ.
    pub fn busy(until: Timestamp) -> Self {
        Self::Later { why: "busy", until: until.plus_ms(1_000) }
    }
}

/// Runs the jobs in the messages of one delivery, at most `at_once` at a time.
///
/// A message that `read` refuses is put aside after a few tries. One whose job is [`Worked::Later`]
/// is hidden until its time, and one whose job failed for a back-off that doubles with each
/// reception; both plus a spread, so that messages which fail together do not come back together.
pub async fn work<J, R, F, Fut>(
    visibility: &Visibility,
    invocation: &Invocation,
    event: SqsEvent,
    at_once: usize,
    read: R,
    run: F,
) -> SqsBatchResponse
where
    R: Fn(&str) -> Result<J, Unreadable>,
    F: Fn(J) -> Fut,
    Fut: Future<Output = Result<Worked, StoreError>>,
{
    let (read, run) = (&read, &run);
    messages(invocation, event, at_once, |message| one(visibility, invocation, message, read, run)).await
}

async fn one<J, R, F, Fut>(
    visibility: &Visibility,
    invocation: &Invocation,
    message: SqsMessage,
    read: &R,
    run: &F,
) -> Result<Outcome, RecordError>
where
    R: Fn(&str) -> Result<J, Unreadable>,
    F: Fn(J) -> Fut,
    Fut: Future<Output = Result<Worked, StoreError>>,
{
    let job = match read(message.body.as_deref().unwrap_or_default()) {
        Ok(job) => job,
        Err(unreadable) => {
            return match visibility.put_aside(invocation, &message).await {
                true => Ok(Outcome("put_aside")),
                false => Err(unreadable.into()),
            };
        }
    };
    let received = receptions(&message);
    let (error, wait_ms) = match run(job).await {
        Ok(Worked::Done(outcome)) => return Ok(Outcome(outcome)),
        Ok(Worked::Later { why, until }) => {
            (RecordError::Later(why), (until.millis() - invocation.current().millis()).max(0))
        }
        Err(error) => (RecordError::Store(error), back_off_ms(received)),
    };
    visibility.hide(invocation, &message, wait_ms + spread_ms(received, fastrand::u32(0..=1_000))).await;
    Err(error)
}

/// How long a message waits whose job failed: it was received this often, the last time included.
fn back_off_ms(received: u32) -> i64 {
    let doublings = received.saturating_sub(1).min(16);
    (FIRST_BACK_OFF_MS << doublings).min(LONGEST_BACK_OFF_MS)
}

/// What is added to a wait: up to a second for each reception, so that the longer the queue is, the
/// less often its messages come back. `random` is 0 to 1000.
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
    fn a_spread_is_at_most_a_second_for_each_reception_and_twenty_in_all() {
        for (received, most) in [(1, 1_000), (2, 2_000), (20, 20_000), (21, 20_000), (u32::MAX, 20_000)] {
            assert_eq!((spread_ms(received, 0), spread_ms(received, 1_000)), (0, most), "{received}");
        }
    }

    #[test]
    fn a_store_that_does_not_answer_for_sixteen_hours_sends_nothing_to_the_dead_letters() {
        // As often as the queues of workers let a message be received, and without any spread.
        let lasts_ms: i64 = (1..=1_000).map(back_off_ms).sum();
        assert!(lasts_ms >= 16 * 3_600_000, "{lasts_ms} ms");
    }

    #[test]
    fn a_lease_is_over_when_its_message_comes_back() {
        let until = Timestamp::from_seconds(60);
        assert_eq!(Worked::busy(until), Worked::Later { why: "busy", until: Timestamp::from_seconds(61) });
    }
}
