//! One-record functions lifted to batches. What is retried and what is not is decided here, once:
//!
//! - A record that was handled is done, whatever its outcome says.
//! - A record that failed fails alone: [`RecordError::Retry`] because the world was not ready, [`RecordError::Poison`]
//!   because the record itself cannot be read, [`RecordError::Later`] because it is early. All go back; after the source's retries they are in its DLQ, where a
//!   person sees them. Nothing is dropped.
//! - A panic fails its record only.
//! - When the time left runs low, records that were not begun go back untouched.
//! - A stream keeps its order: the first failure ends the batch, and the stream delivers again from there.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use aws_lambda_events::dynamodb::{Event, EventRecord};
use aws_lambda_events::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use futures::{FutureExt, StreamExt};

use crate::invocation::Invocation;

/// What became of a record, as a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome(pub &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("{0}")]
    Retry(&'static str),
    #[error("{0}")]
    Poison(&'static str),
    /// Its time has not come: it goes back, hidden until then, and nothing is wrong.
    #[error("{0}")]
    Later(&'static str),
}

/// Begin no record with less time than this.
const LOW_TIME: Duration = Duration::from_millis(700);

/// Handles the messages of one delivery, at most `at_once` at a time.
pub async fn messages<F, Fut>(invocation: &Invocation, event: SqsEvent, at_once: usize, handle: F) -> SqsBatchResponse
where
    F: Fn(SqsMessage) -> Fut,
    Fut: Future<Output = Result<Outcome, RecordError>>,
{
    let failed = futures::stream::iter(event.records)
        .map(|message| {
            let id = message.message_id.clone().unwrap_or_default();
            let handle = &handle;
            async move {
                let handled = if out_of_time(invocation) {
                    Err(RecordError::Retry("out_of_time"))
                } else {
                    contained(|| handle(message)).await
                };
                tell(invocation, &id, handled);
                handled.is_err().then_some(id)
            }
        })
        .buffer_unordered(at_once.max(1))
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    let mut response = SqsBatchResponse::default();
    response.batch_item_failures = failed.into_iter().map(message_failure).collect();
    response
}

/// Handles the changes of one delivery in order, up to the first that fails.
pub async fn changes<F, Fut>(invocation: &Invocation, event: Event, handle: F) -> DynamoDbEventResponse
where
    F: Fn(EventRecord) -> Fut,
    Fut: Future<Output = Result<Outcome, RecordError>>,
{
    let mut response = DynamoDbEventResponse::default();
    for record in event.records {
        let id = record.change.sequence_number.clone().unwrap_or_default();
        let handled = if out_of_time(invocation) {
            Err(RecordError::Retry("out_of_time"))
        } else {
            contained(|| handle(record)).await
        };
        tell(invocation, &id, handled);
        if handled.is_err() {
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(id);
            response.batch_item_failures.push(failure);
            break;
        }
    }
    response
}

fn out_of_time(invocation: &Invocation) -> bool {
    invocation.time_left() < LOW_TIME
}

/// Also the making of the future is contained: a handler may panic before its first await.
async fn contained<Fut>(handle: impl FnOnce() -> Fut) -> Result<Outcome, RecordError>
where
    Fut: Future<Output = Result<Outcome, RecordError>>,
{
    let handled = AssertUnwindSafe(async { handle().await }).catch_unwind().await;
    handled.unwrap_or(Err(RecordError::Retry("panicked")))
}

/// One line per record.
pub(crate) fn tell(invocation: &Invocation, record: &str, handled: Result<Outcome, RecordError>) {
    let request_id = &invocation.request_id;
    match handled {
        Ok(Outcome(outcome)) => tracing::info!(event = "RECORD", outcome, record, request_id),
        Err(RecordError::Retry(outcome)) => tracing::warn!(event = "RECORD_RETRY", outcome, record, request_id),
        Err(RecordError::Later(outcome)) => tracing::info!(event = "RECORD_LATER", outcome, record, request_id),
        Err(RecordError::Poison(outcome)) => tracing::error!(event = "RECORD_POISON", outcome, record, request_id),
    }
}

fn message_failure(id: String) -> BatchItemFailure {
    let mut failure = BatchItemFailure::default();
    failure.item_identifier = id;
    failure
}

#[cfg(test)]
mod tests {
    use umavez_domain::time::Timestamp;

    use super::*;

    fn invocation(left: Duration) -> Invocation {
        Invocation::new("r", Timestamp::from_seconds(0), left)
    }

    fn batch(ids: &[&str]) -> SqsEvent {
        let mut event = SqsEvent::default();
        for id in ids {
            let mut message = SqsMessage::default();
            message.message_id = Some((*id).to_owned());
            event.records.push(message);
        }
        event
    }

    fn stream(ids: &[&str]) -> Event {
        let mut event = Event::default();
        for id in ids {
            let mut record = EventRecord::default();
            record.change.sequence_number = Some((*id).to_owned());
            event.records.push(record);
        }
        event
    }

    async fn judge(id: Option<String>) -> Result<Outcome, RecordError> {
        match id.as_deref() {
            Some("poison") => Err(RecordError::Poison("unreadable")),
            Some("later") => Err(RecordError::Retry("busy")),
            Some("panic") => panic!("a handler's own panic"),
            _ => Ok(Outcome("done")),
        }
    }

    fn failed(response: &SqsBatchResponse) -> Vec<&str> {
        let mut ids: Vec<_> = response.batch_item_failures.iter().map(|f| f.item_identifier.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    #[tokio::test]
    async fn a_bad_message_fails_alone_wherever_it_stands() {
        for bad in ["poison", "later", "panic"] {
            for place in 0..3 {
                let mut ids = vec!["a", "b"];
                ids.insert(place, bad);
                let event = batch(&ids);
                let response =
                    messages(&invocation(Duration::from_secs(9)), event, 2, |message| judge(message.message_id)).await;
                assert_eq!(failed(&response), [bad], "{bad} at {place}");
            }
        }
    }

    #[tokio::test]
    async fn a_stream_stops_at_its_first_failure_and_names_it() {
        let event = stream(&["a", "panic", "c", "poison"]);
        let response =
            changes(&invocation(Duration::from_secs(9)), event, |record| judge(record.change.sequence_number)).await;
        let ids: Vec<_> = response.batch_item_failures.iter().map(|f| f.item_identifier.as_deref()).collect();
        assert_eq!(ids, [Some("panic")]);
    }

    #[tokio::test]
    async fn records_that_there_is_no_time_for_go_back_untouched() {
        let untouched = |_: SqsMessage| async { panic!("begun without time") };
        let response = messages(&invocation(Duration::from_millis(500)), batch(&["a", "b"]), 1, untouched).await;
        assert_eq!(failed(&response), ["a", "b"]);
    }
}
