//! The event source mapping of a stream: reads the changes of a table in order, delivers them in
//! batches, retries, and sends those that it gives up on to the failure queue. It does not wait for
//! a batching window, which is only an upper bound of Lambda's delay.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Verdict, filter, verdict};
use crate::StackError;
use crate::faults::DeliveryAction;
use crate::model::StreamSource;
use crate::parts::Parts;

/// The most retries of one batch if the template sets no limit. AWS would retry until the record
/// expires.
const UNLIMITED: u32 = 100;
/// How many records are read at once if there is a filter, which may leave few of them: the page
/// size of the emulator.
const PAGE: usize = 1_000;

#[derive(Clone)]
pub struct StreamMapping {
    pub source: Arc<StreamSource>,
    function: String,
    parts: Parts,
    /// The last sequence number that needs no more work.
    checkpoint: Arc<Mutex<Option<String>>>,
    /// Until when a fault delays a delivery.
    late_until: Arc<AtomicI64>,
}

impl StreamMapping {
    pub fn new(source: StreamSource, function: String, parts: Parts, checkpoint: Option<String>) -> Self {
        let checkpoint = Arc::new(Mutex::new(checkpoint));
        Self { source: Arc::new(source), function, parts, checkpoint, late_until: Arc::new(AtomicI64::new(i64::MIN)) }
    }

    pub fn spawn(&self, tasks: &mut JoinSet<()>) {
        let this = self.clone();
        tasks.spawn(async move {
            if let Err(error) = this.read().await {
                tracing::error!(source = this.source.id, %error, "stopped reading the stream");
            }
        });
    }

    pub fn checkpoint(&self) -> Option<String> {
        self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether every change has been handled or waits for a later time.
    pub async fn is_at_rest(&self) -> Result<bool, StackError> {
        if self.late_until.load(Ordering::SeqCst) > self.parts.clock.now_ms() {
            return Ok(true);
        }
        let left = self.parts.dynamo.records_after(&self.source.table, self.checkpoint().as_deref(), 1).await?;
        Ok(left.is_empty())
    }

    async fn read(&self) -> Result<(), StackError> {
        if self.source.from_latest && self.checkpoint().is_none() {
            self.set_checkpoint(self.parts.dynamo.newest(&self.source.table).await?);
        }
        let mut moved = self.parts.activity.watch();
        loop {
            moved.mark_unchanged();
            let at = self.checkpoint();
            let page = if self.source.filters.is_empty() { self.source.batch_size } else { PAGE };
            let records = self.parts.dynamo.records_after(&self.source.table, at.as_deref(), page).await?;
            let Some(last) = records.last().map(sequence_number) else {
                if moved.changed().await.is_err() {
                    return Ok(());
                }
                continue;
            };
            let mut wanted: Vec<_> =
                records.into_iter().filter(|record| filter::passes(&self.source.filters, record)).collect();
            while !wanted.is_empty() {
                let rest = wanted.split_off(self.source.batch_size.clamp(1, wanted.len()));
                let delivered = wanted.last().map(sequence_number);
                self.deliver(wanted).await?;
                self.set_checkpoint(delivered);
                wanted = rest;
            }
            self.set_checkpoint(Some(last));
            self.parts.activity.moved();
        }
    }

    /// Delivers until every record is handled or given up. Keeps a stack of parts: if the template
    /// asks for it, a failed batch is split, so that one bad record does not fail its neighbours.
    async fn deliver(&self, records: Vec<Value>) -> Result<(), StackError> {
        let mut parts = vec![(records, 0)];
        while let Some((part, attempts)) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let Some(left) = self.attempt(&part).await else { continue };
            let rest = part[left..].to_vec();
            let failures = if left > 0 { 1 } else { attempts + 1 };
            if self.source.bisect && rest.len() > 1 && left == 0 {
                // A split does not count as a retry, so that the good half is not given up with the
                // bad one.
                let second = rest[rest.len() / 2..].to_vec();
                let first = rest[..rest.len() / 2].to_vec();
                parts.push((second, attempts));
                parts.push((first, attempts));
            } else if failures > self.source.max_retries.unwrap_or(UNLIMITED) {
                self.give_up(&rest, failures).await?;
            } else {
                parts.push((rest, failures));
            }
        }
        Ok(())
    }

    /// Delivers the records. Returns the index of the first record to deliver again, if any.
    async fn attempt(&self, records: &[Value]) -> Option<usize> {
        let ids: Vec<_> = records.iter().map(sequence_number).collect();
        let known: HashSet<_> = ids.iter().cloned().collect();
        let event = Bytes::from(json!({"Records": records}).to_string());
        let fault = self.parts.faults.on_delivery(&self.source.table);
        if let Some(fault) = fault.as_ref().filter(|fault| fault.action == DeliveryAction::Late) {
            let late = i64::try_from(fault.seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
            let until = self.parts.clock.now_ms().saturating_add(late);
            self.late_until.store(until, Ordering::SeqCst);
            self.parts.clock.sleep_until(until).await;
        }
        let twice = fault.is_some_and(|fault| fault.action == DeliveryAction::Twice);
        let mut said = Verdict::AllFailed;
        for _ in 0..=usize::from(twice) {
            said = match self.parts.functions.invoke(&self.function, event.clone()).await {
                Ok(answer) => verdict(&answer, self.source.partial_failures, &known),
                Err(error) => {
                    tracing::warn!(function = self.function, table = self.source.table, %error, "a batch failed");
                    Verdict::AllFailed
                }
            };
        }
        match said {
            Verdict::AllDone => None,
            Verdict::AllFailed => Some(0),
            Verdict::Failed(failed) => ids.iter().position(|id| failed.contains(id)),
        }
    }

    /// Sends pointers to the records to the failure queue, as AWS does. The records themselves stay
    /// in the table.
    async fn give_up(&self, records: &[Value], attempts: u32) -> Result<(), StackError> {
        tracing::error!(
            function = self.function,
            table = self.source.table,
            records = records.len(),
            "gave up on changes"
        );
        let Some(queue) = &self.source.on_failure_queue else { return Ok(()) };
        let first = records.first().map(sequence_number).unwrap_or_default();
        let last = records.last().map(sequence_number).unwrap_or_default();
        let body = json!({
            "version": "1.0",
            "timestamp": self.parts.clock.now_ms(),
            "requestContext": {
                "functionArn": format!("arn:aws:lambda:us-east-1:000000000000:function:{}", self.function),
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": attempts,
            },
            "DDBStreamBatchInfo": {
                "shardId": "local",
                "startSequenceNumber": first,
                "endSequenceNumber": last,
                "batchSize": records.len(),
                "streamArn": records.first().map(|record| record["eventSourceARN"].clone()),
            },
        });
        self.parts.queues.put(queue, &body.to_string()).await
    }

    fn set_checkpoint(&self, at: Option<String>) {
        *self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

fn sequence_number(record: &Value) -> String {
    record["dynamodb"]["SequenceNumber"].as_str().unwrap_or_default().to_owned()
}
