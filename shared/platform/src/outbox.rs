//! The relay of the outbox: it publishes what rows emit, in order, and decides nothing.
//!
//! It runs on a table's stream. It publishes the changes of one delivery in as few requests as the
//! number of queues and the limit of ten messages allow, and checks each entry of each response. If
//! a publication fails, the delivery fails from that record on, and the stream redelivers it.
//! Consumers recognize the duplicates by their id.

use std::collections::BTreeMap;

use aws_lambda_events::dynamodb::{Event, EventRecord};
use aws_lambda_events::streams::DynamoDbEventResponse;
use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::types::{BatchResultErrorEntry, MessageAttributeValue, SendMessageBatchRequestEntry};
use umavez_domain::outbox::{ATTRIBUTE, Emit, delay_seconds, to_publish};
use umavez_domain::queue::Unreadable;

use crate::batch::{self, RecordError};
use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::queue::QueueError;

/// The message attribute that carries [`Emit::id`].
pub const ID_ATTRIBUTE: &str = "emit_id";

/// The limits of one request to a queue.
const MOST_ENTRIES: usize = 10;
const MOST_BYTES: usize = 200 * 1024;

/// The queue names that rows use, with their URLs in this deployment.
#[derive(Debug, Clone)]
pub struct Relay {
    pub sqs: aws_sdk_sqs::Client,
    pub queues: BTreeMap<String, String>,
}

/// A message to publish: the index of its record in the delivery, its queue, and its content.
struct Publication<'a> {
    record: usize,
    url: &'a str,
    emit: Emit,
}

impl Relay {
    /// `named` lists each queue as rows name it, with the variable that contains its URL.
    pub fn from_env(sqs: aws_sdk_sqs::Client, named: &[(&str, &str)]) -> Result<Self, ConfigError> {
        let urls = named.iter().map(|(name, variable)| Ok(((*name).to_owned(), config::required(variable)?)));
        Ok(Self { sqs, queues: urls.collect::<Result<_, ConfigError>>()? })
    }

    /// Publishes what the changes of one delivery emit. Reports the first record that failed.
    pub async fn relay(&self, invocation: &Invocation, event: &Event) -> DynamoDbEventResponse {
        let mut publications = Vec::new();
        let mut failures: Vec<(usize, RecordError)> = Vec::new();
        for (record, change) in event.records.iter().enumerate() {
            match self.publication(record, change) {
                Ok(publication) => publications.extend(publication),
                Err(error) => {
                    failures.push((record, error));
                    break;
                }
            }
        }
        for batch in batches(&publications) {
            match self.publish(invocation, batch).await {
                Ok(()) => log_published(invocation, batch),
                Err((record, error)) => failures.push((record, error.into())),
            }
        }
        // The stream redelivers from the first record that failed, so only that one is reported.
        let failed = failures.into_iter().min_by_key(|(record, _)| *record);
        let Some((record, error)) = failed else { return DynamoDbEventResponse::default() };
        let id = event.records[record].change.sequence_number.clone().unwrap_or_default();
        batch::log_record(invocation, &id, &Err(error));
        batch::failed_from(id)
    }

    fn publication(&self, record: usize, change: &EventRecord) -> Result<Option<Publication<'_>>, RecordError> {
        let (old, new) = (emit_of(&change.change.old_image)?, emit_of(&change.change.new_image)?);
        let Some(emit) = to_publish(old.as_ref(), new.as_ref()).cloned() else { return Ok(None) };
        let url = self.queues.get(&emit.queue).ok_or(Unreadable("an emission to a known queue"))?;
        Ok(Some(Publication { record, url, emit }))
    }

    /// Publishes a batch in one request. The error contains the first record that was not
    /// published, and the cause.
    async fn publish(&self, invocation: &Invocation, batch: &[Publication<'_>]) -> Result<(), (usize, QueueError)> {
        let Some(first) = batch.first() else { return Ok(()) };
        let entries = batch.iter().enumerate().map(|(n, one)| entry(n, &one.emit, invocation));
        let entries = entries
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| (first.record, QueueError::Malformed(error.to_string())))?;
        let call = self.sqs.send_message_batch().queue_url(first.url).set_entries(Some(entries));
        let answer = QueueError::check(invocation.within(call.send()).await).map_err(|error| (first.record, error))?;
        // If the id of an entry is not ours, it counts as the first one: the whole batch is
        // published again.
        let place = |failed: &BatchResultErrorEntry| failed.id().parse::<usize>().unwrap_or(0);
        match answer.failed().iter().min_by_key(|failed| place(failed)) {
            None => Ok(()),
            Some(refused) => {
                let record = batch.get(place(refused)).map_or(first.record, |one| one.record);
                Err((record, QueueError::Rejected(refused.code().to_owned())))
            }
        }
    }
}

/// Groups neighbours that go to the same queue, up to the limits of one request. What one row emits
/// stays in order.
fn batches<'p, 'a>(publications: &'p [Publication<'a>]) -> Vec<&'p [Publication<'a>]> {
    let mut batches = Vec::new();
    let mut begin = 0;
    let mut bytes = 0;
    for (n, one) in publications.iter().enumerate() {
        let size = one.emit.body.len() + one.emit.id.len() + 64;
        let full = n - begin == MOST_ENTRIES || bytes + size > MOST_BYTES || publications[begin].url != one.url;
        if full && n > begin {
            batches.push(&publications[begin..n]);
            (begin, bytes) = (n, 0);
        }
        bytes += size;
    }
    if begin < publications.len() {
        batches.push(&publications[begin..]);
    }
    batches
}

fn entry(n: usize, emit: &Emit, invocation: &Invocation) -> Result<SendMessageBatchRequestEntry, BuildError> {
    let id = MessageAttributeValue::builder().data_type("String").string_value(&emit.id).build()?;
    let delay = i32::try_from(delay_seconds(emit.not_before, invocation.current())).unwrap_or(0);
    SendMessageBatchRequestEntry::builder()
        .id(n.to_string())
        .message_body(&emit.body)
        .delay_seconds(delay)
        .message_attributes(ID_ATTRIBUTE, id)
        .build()
}

fn emit_of(image: &serde_dynamo::Item) -> Result<Option<Emit>, RecordError> {
    let Some(emit) = image.get(ATTRIBUTE) else { return Ok(None) };
    // The error's own text may repeat a stored value.
    serde_dynamo::from_attribute_value(emit.clone()).map(Some).map_err(|_| Unreadable("an emission").into())
}

/// Logs one line per publication. It is not called for a failed request, where it is unknown which
/// messages were published.
fn log_published(invocation: &Invocation, batch: &[Publication<'_>]) {
    batch.iter().for_each(|one| batch::log_record(invocation, &one.emit.id, &Ok("published")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publications<'a>(urls: &[&'a str], body: usize) -> Vec<Publication<'a>> {
        let emit =
            |n: usize| Emit { seq: 1, queue: "q".into(), not_before: None, id: n.to_string(), body: "b".repeat(body) };
        urls.iter().enumerate().map(|(record, url)| Publication { record, url, emit: emit(record) }).collect()
    }

    fn sizes(publications: &[Publication<'_>]) -> Vec<usize> {
        batches(publications).iter().map(|batch| batch.len()).collect()
    }

    #[test]
    fn consecutive_messages_to_one_queue_share_a_request_up_to_its_limits() {
        assert_eq!(sizes(&publications(&["a"; 23], 10)), [10, 10, 3]);
        assert_eq!(sizes(&publications(&["a", "a", "b", "a"], 10)), [2, 1, 1]);
        assert_eq!(sizes(&publications(&["a"; 3], 150 * 1024)), [1, 1, 1]);
        assert!(sizes(&[]).is_empty());
    }
}
