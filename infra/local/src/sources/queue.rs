//! The event source mapping of a queue: receives messages, delivers them in batches and deletes
//! those that were handled.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Verdict, verdict};
use crate::StackError;
use crate::faults::DeliveryAction;
use crate::model::QueueSource;
use crate::parts::Parts;
use crate::queues::arn;
use crate::template::REGION;

/// The pause after an error of the emulator, to avoid a hot loop.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct QueueMapping {
    pub source: Arc<QueueSource>,
    function: String,
    parts: Parts,
    running: Arc<AtomicUsize>,
    slots: Arc<Semaphore>,
}

impl QueueMapping {
    pub fn new(source: QueueSource, function: String, parts: Parts, concurrency: usize) -> Self {
        let slots = source.max_concurrency.map_or(concurrency, |most| (most as usize).min(concurrency));
        let slots = Arc::new(Semaphore::new(slots.max(1)));
        Self { source: Arc::new(source), function, parts, running: Arc::default(), slots }
    }

    /// Spawns the three loops of the mapping: receive messages, wake those that are due, deliver.
    pub fn spawn(&self, tasks: &mut JoinSet<()>) {
        let this = self.clone();
        tasks.spawn(async move { this.receive().await });
        let this = self.clone();
        tasks.spawn(async move { this.wake().await });
        let this = self.clone();
        tasks.spawn(async move { this.deliver().await });
    }

    /// Returns whether no work is left except delayed messages.
    pub async fn is_at_rest(&self) -> Result<bool, StackError> {
        let counts = self.parts.queues.counts(&self.source.queue).await?;
        let none = counts.visible == 0 && counts.moving == 0 && counts.between == 0;
        Ok(none && self.running.load(Ordering::SeqCst) == 0)
    }

    /// Returns when the next message is due.
    pub fn next_due(&self) -> Option<i64> {
        self.parts.queues.next_due(&self.source.queue)
    }

    async fn receive(&self) {
        self.parts.activity.receiver_began();
        while self.parts.queues.is_running() && !self.parts.activity.is_stopping() {
            if let Err(error) = self.parts.queues.receive(&self.source.queue).await {
                tracing::warn!(queue = self.source.queue, %error, "could not receive messages");
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.parts.activity.receiver_ended();
    }

    async fn wake(&self) {
        let mut moved = self.parts.activity.watch();
        loop {
            let due = self.next_due().unwrap_or(i64::MAX);
            tokio::select! {
                () = self.parts.clock.sleep_until(due) => self.parts.queues.wake(&self.source.queue).await,
                changed = moved.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn deliver(&self) {
        let mut moved = self.parts.activity.watch();
        loop {
            moved.mark_unchanged();
            let Ok(slot) = self.slots.clone().acquire_owned().await else { return };
            if !self.parts.queues.has_ready(&self.source.queue) {
                drop(slot);
                if moved.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let fault = self.parts.faults.on_delivery(&self.source.queue);
            let action = fault.as_ref().map(|fault| fault.action);
            let newest_first = action == Some(DeliveryAction::Reversed);
            let messages = self.parts.queues.take_ready(&self.source.queue, self.source.batch_size, newest_first);
            if let Some(fault) = fault.filter(|fault| fault.action == DeliveryAction::Late) {
                let late = i64::try_from(fault.seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
                self.parts.queues.postpone(&messages, self.parts.clock.now_ms().saturating_add(late));
                continue;
            }
            let deliveries = if action == Some(DeliveryAction::Twice) { 2 } else { 1 };
            self.running.fetch_add(1, Ordering::SeqCst);
            let this = self.clone();
            tokio::spawn(async move {
                this.deliver_batch(&messages, deliveries).await;
                drop(slot);
                this.running.fetch_sub(1, Ordering::SeqCst);
                this.parts.activity.moved();
            });
        }
    }

    /// Delivers a batch. The last delivery decides which messages are deleted.
    async fn deliver_batch(&self, messages: &[Value], deliveries: usize) {
        let event = event(&self.source.queue, messages, self.parts.clock.offset_ms());
        let ids: HashSet<_> =
            messages.iter().filter_map(|message| message["MessageId"].as_str()).map(str::to_owned).collect();
        let mut said = Verdict::AllFailed;
        for _ in 0..deliveries {
            said = match self.parts.functions.invoke(&self.function, event.clone()).await {
                Ok(answer) => verdict(&answer, self.source.partial_failures, &ids),
                Err(error) => {
                    tracing::warn!(function = self.function, queue = self.source.queue, %error, "a batch failed");
                    Verdict::AllFailed
                }
            };
        }
        let failed = |id: &str| match &said {
            Verdict::AllDone => false,
            Verdict::AllFailed => true,
            Verdict::Failed(ids) => ids.contains(id),
        };
        if let Err(error) = self.parts.queues.settle(&self.source.queue, messages, failed).await {
            tracing::warn!(queue = self.source.queue, %error, "could not settle a batch");
        }
    }
}

/// Builds the event as Lambda's poller does, with the emulator's timestamps shifted to the stack's
/// clock.
fn event(queue: &str, messages: &[Value], offset_ms: i64) -> Bytes {
    let records: Vec<_> = messages
        .iter()
        .map(|message| {
            let attributes = message["MessageAttributes"].as_object().cloned().unwrap_or_default();
            let attributes: Map<_, _> = attributes.into_iter().map(|(name, value)| (name, attribute(&value))).collect();
            let mut system = message["Attributes"].clone();
            for name in ["SentTimestamp", "ApproximateFirstReceiveTimestamp"] {
                if let Some(at) = system[name].as_str().and_then(|text| text.parse::<i64>().ok()) {
                    system[name] = json!((at + offset_ms).to_string());
                }
            }
            json!({
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": system,
                "messageAttributes": attributes,
                "md5OfBody": message["MD5OfBody"],
                "eventSource": "aws:sqs",
                "eventSourceARN": arn(queue),
                "awsRegion": REGION,
            })
        })
        .collect();
    Bytes::from(json!({"Records": records}).to_string())
}

fn attribute(value: &Value) -> Value {
    json!({
        "stringValue": value["StringValue"], "binaryValue": value["BinaryValue"], "dataType": value["DataType"],
        "stringListValues": [], "binaryListValues": [],
    })
}
