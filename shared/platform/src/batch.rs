//! Runs a handler of one record over a batch. The rules for retries are defined here, once:
//!
//! - A handled record is done, whatever its outcome code is.
//! - A failed record fails alone, and [`RecordError`] names the cause. It returns to its source.
//!   After the source's last retry it is in the dead-letter queue, where an operator sees it.
//!   Nothing is dropped.
//! - A panic fails only its own record.
//! - When little time is left, records that were not started return to their source untouched.
//! - A stream keeps its order: the first failure ends the batch, and the stream redelivers from
//!   that record.

mod work;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use aws_lambda_events::dynamodb::{Event as StreamEvent, EventRecord};
use aws_lambda_events::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use futures::{FutureExt, StreamExt};
use umavez_domain::queue::Unreadable;
use umavez_domain::telemetry::Event;

pub use self::work::{Worked, work};
use crate::invocation::Invocation;
use crate::queue::QueueError;
use crate::store::StoreError;

/// The outcome of a record: a code for the log, or the reason why the record returns to its source.
pub type Handled = Result<&'static str, RecordError>;

/// Why a record returns to its source. No variant's text repeats data of the record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A retry by this version of the code cannot succeed.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The record is not due yet. It returns to its queue, hidden until it is due. This is not a
    /// fault.
    #[error("{0}")]
    Later(&'static str),
    #[error("the handler panicked")]
    Panicked,
    #[error("too little time was left to begin")]
    OutOfTime,
}

impl RecordError {
    /// A code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Queue(error) => error.code(),
            Self::Unreadable(_) => "unreadable",
            Self::Later(why) => why,
            Self::Panicked => "panicked",
            Self::OutOfTime => "out_of_time",
        }
    }
}

/// No record is started with less time left than this.
const LOW_TIME: Duration = Duration::from_millis(700);

/// Handles the messages of one delivery, at most `at_once` at a time. A failed message is
/// redelivered when the visibility timeout of its queue ends; with [`work`] it is redelivered
/// sooner.
pub async fn messages(
    invocation: &Invocation,
    event: SqsEvent,
    at_once: usize,
    handle: impl AsyncFn(SqsMessage) -> Handled,
) -> SqsBatchResponse {
    let failed = futures::stream::iter(event.records)
        .map(|message| {
            let id = message.message_id.clone().unwrap_or_default();
            let handle = &handle;
            async move {
                let handled = contained(invocation, async { handle(message).await }).await;
                log_record(invocation, &id, &handled);
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

/// Handles the changes of one delivery in order and stops at the first failure.
pub async fn changes(
    invocation: &Invocation,
    event: StreamEvent,
    handle: impl AsyncFn(EventRecord) -> Handled,
) -> DynamoDbEventResponse {
    for record in event.records {
        let id = record.change.sequence_number.clone().unwrap_or_default();
        let handled = contained(invocation, async { handle(record).await }).await;
        log_record(invocation, &id, &handled);
        if handled.is_err() {
            return failed_from(id);
        }
    }
    DynamoDbEventResponse::default()
}

/// Returns the response with which a stream redelivers from the record with this sequence number.
pub(crate) fn failed_from(sequence_number: String) -> DynamoDbEventResponse {
    let mut failure = DynamoDbBatchItemFailure::default();
    failure.item_identifier = Some(sequence_number);
    let mut response = DynamoDbEventResponse::default();
    response.batch_item_failures.push(failure);
    response
}

/// Runs a handler if enough time is left, and catches its panics. `handled` must call the handler
/// itself, because a handler may panic before its first await.
async fn contained(invocation: &Invocation, handled: impl Future<Output = Handled>) -> Handled {
    if invocation.time_left() < LOW_TIME {
        return Err(RecordError::OutOfTime);
    }
    AssertUnwindSafe(handled).catch_unwind().await.unwrap_or(Err(RecordError::Panicked))
}

/// Logs one line per record. The line of a failed record names the cause.
pub(crate) fn log_record(invocation: &Invocation, record: &str, handled: &Handled) {
    let request_id = &invocation.request_id;
    let error = match handled {
        Ok(outcome) => return tracing::info!(event = Event::RecordHandled.as_str(), outcome, record, request_id),
        Err(error) => error,
    };
    let outcome = error.code();
    match error {
        RecordError::Later(_) => tracing::info!(event = Event::RecordPostponed.as_str(), outcome, record, request_id),
        RecordError::Unreadable(_) => {
            tracing::error!(event = Event::RecordUnreadable.as_str(), outcome, cause = %error, record, request_id);
        }
        _ => tracing::warn!(event = Event::RecordFailed.as_str(), outcome, cause = %error, record, request_id),
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

    fn stream(ids: &[&str]) -> StreamEvent {
        let mut event = StreamEvent::default();
        for id in ids {
            let mut record = EventRecord::default();
            record.change.sequence_number = Some((*id).to_owned());
            event.records.push(record);
        }
        event
    }

    async fn judge(id: Option<String>) -> Handled {
        match id.as_deref() {
            Some("poison") => Err(Unreadable("a test's record").into()),
            Some("store") => Err(StoreError::Throttled.into()),
            Some("later") => Err(RecordError::Later("busy")),
            Some("panic") => panic!("a handler's own panic"),
            _ => Ok("done"),
        }
    }

    fn failed(response: &SqsBatchResponse) -> Vec<&str> {
        let mut ids: Vec<_> = response.batch_item_failures.iter().map(|f| f.item_identifier.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    #[tokio::test]
    async fn a_failed_message_does_not_affect_the_others_of_its_batch() {
        for bad in ["poison", "store", "later", "panic"] {
            for place in 0..3 {
                let mut ids = vec!["a", "b"];
                ids.insert(place, bad);
                let event = batch(&ids);
                let response = messages(&invocation(Duration::from_secs(9)), event, 2, async |message| {
                    judge(message.message_id).await
                })
                .await;
                assert_eq!(failed(&response), [bad], "{bad} at {place}");
            }
        }
    }

    #[tokio::test]
    async fn a_stream_stops_at_its_first_failure_and_names_it() {
        let event = stream(&["a", "panic", "c", "poison"]);
        let response = changes(&invocation(Duration::from_secs(9)), event, async |record| {
            judge(record.change.sequence_number).await
        })
        .await;
        let ids: Vec<_> = response.batch_item_failures.iter().map(|f| f.item_identifier.as_deref()).collect();
        assert_eq!(ids, [Some("panic")]);
    }

    #[tokio::test]
    async fn records_without_enough_time_return_to_their_queue_unprocessed() {
        let untouched = |_: SqsMessage| async { panic!("the handler must not run without time") };
        let response = messages(&invocation(Duration::from_millis(500)), batch(&["a", "b"]), 1, untouched).await;
        assert_eq!(failed(&response), ["a", "b"]);
    }

    #[test]
    fn every_cause_of_an_error_has_its_own_code_and_text() {
        let rejected = |code: &str| StoreError::Rejected(code.to_owned());
        let causes: [(RecordError, &str, &str); 13] = [
            (StoreError::Throttled.into(), "throttled", "the store is throttling"),
            (StoreError::Unavailable.into(), "unavailable", "the store did not answer"),
            (StoreError::Conflict.into(), "conflict", "the write conflicted with others too often"),
            (StoreError::Corrupt("Row").into(), "corrupt", "the stored data is not as expected: Row"),
            (
                rejected("AccessDeniedException").into(),
                "access_denied",
                "the store refused the request: AccessDeniedException",
            ),
            (rejected("ValidationException").into(), "rejected", "the store refused the request: ValidationException"),
            (QueueError::Unavailable.into(), "unavailable", "the queue did not answer"),
            (
                QueueError::Rejected("AccessDenied".into()).into(),
                "access_denied",
                "the queue refused the request: AccessDenied",
            ),
            (
                QueueError::Malformed("no id".into()).into(),
                "malformed",
                "the request to the queue cannot be built: no id",
            ),
            (Unreadable("a job").into(), "unreadable", "the record cannot be read as a job"),
            (RecordError::Later("rate_limited"), "rate_limited", "rate_limited"),
            (RecordError::Panicked, "panicked", "the handler panicked"),
            (RecordError::OutOfTime, "out_of_time", "too little time was left to begin"),
        ];
        for (error, code, text) in causes {
            assert_eq!((error.code(), error.to_string().as_str()), (code, text));
        }
    }

    #[tokio::test]
    async fn a_panic_and_a_lack_of_time_have_separate_errors() {
        let in_time = invocation(Duration::from_secs(9));
        assert_eq!(contained(&in_time, judge(Some("panic".to_owned()))).await, Err(RecordError::Panicked));
        let late = invocation(Duration::from_millis(500));
        assert_eq!(contained(&late, judge(None)).await, Err(RecordError::OutOfTime));
    }
}
