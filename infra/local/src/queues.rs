//! SQS: the embedded emulator, and the desk, which holds messages until they are due by the stack's
//! clock.
//!
//! The emulator knows only the time of the machine. Therefore a delayed message is sent to it
//! without the delay and parked on the desk when it is received. A failed message stays parked for
//! its visibility timeout before the emulator gets it back, counts the receive and redrives it. So
//! moving the stack's clock affects both.

mod desk;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::to_bytes;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use rustack_sqs_core::{config::SqsConfig, handler::RustackSqsHandler, provider::RustackSqs};
use rustack_sqs_http::{dispatch::SqsHandler, response::error_to_response, router::resolve_operation};
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;

use self::desk::Desk;
use crate::StackError;
use crate::activity::Activity;
use crate::clock::Clock;
use crate::model::Queue;
use crate::template::{ACCOUNT, REGION};

/// The longest visibility timeout of SQS. The desk, not this timeout, decides when a message
/// becomes visible again.
const HIDDEN_SECONDS: u64 = 43_200;

#[derive(Clone)]
pub struct Queues {
    provider: Arc<RustackSqs>,
    handler: Arc<RustackSqsHandler>,
    specs: Arc<BTreeMap<String, Queue>>,
    clock: Clock,
    activity: Activity,
    desk: Arc<Mutex<Desk>>,
    /// Held from a delayed send until its delay is noted, and while received messages are put on
    /// the desk, so that no message is taken in before its delay is known.
    sorting: Arc<AsyncMutex<()>>,
}

/// The message counts of a queue, used to detect that it is idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the emulator, not received yet.
    pub visible: usize,
    /// On the desk and ready for delivery, or with a function.
    pub moving: usize,
    /// Waiting for a time.
    pub waiting: usize,
    /// Received from the emulator but not yet on the desk.
    pub between: usize,
}

impl Queues {
    pub async fn start(
        queues: &[Queue],
        host: &str,
        port: u16,
        clock: Clock,
        activity: Activity,
    ) -> Result<Self, StackError> {
        let config = SqsConfig {
            host: host.to_owned(),
            port,
            account_id: ACCOUNT.to_owned(),
            default_region: REGION.to_owned(),
            ..SqsConfig::default()
        };
        let provider = Arc::new(RustackSqs::new(config));
        let handler = Arc::new(RustackSqsHandler::new(provider.clone()));
        let specs = queues.iter().map(|queue| (queue.name.clone(), queue.clone())).collect();
        let this = Self {
            provider,
            handler,
            specs: Arc::new(specs),
            clock,
            activity,
            desk: Arc::default(),
            sorting: Arc::default(),
        };
        // Create dead-letter queues first: a redrive policy must name a queue that exists.
        let (sources, targets): (Vec<_>, Vec<_>) = queues.iter().partition(|queue| queue.redrive.is_some());
        for queue in targets.into_iter().chain(sources) {
            this.create(queue).await?;
        }
        Ok(this)
    }

    async fn create(&self, queue: &Queue) -> Result<(), StackError> {
        let mut attributes = json!({
            "VisibilityTimeout": queue.visibility.as_secs().to_string(),
            "MessageRetentionPeriod": queue.retention.as_secs().to_string(),
        });
        if let Some((target, receives)) = &queue.redrive {
            let policy = json!({"deadLetterTargetArn": arn(target), "maxReceiveCount": receives});
            attributes["RedrivePolicy"] = json!(policy.to_string());
        }
        self.ask("CreateQueue", json!({"QueueName": queue.name, "Attributes": attributes})).await.map(drop)
    }

    pub async fn stop(&self) {
        self.provider.shutdown_all().await;
    }

    /// Handles a call that arrived over HTTP. Everything that depends on time is done here, not by
    /// the emulator.
    pub async fn handle(&self, operation: &str, body: Bytes) -> Response {
        let Ok(request) = serde_json::from_slice::<Value>(&body) else { return self.forward(operation, body).await };
        let response = match operation {
            "SendMessage" => self.send(request).await,
            "SendMessageBatch" => self.send_batch(request).await,
            "ChangeMessageVisibility" if self.hide(&request) => axum::Json(json!({})).into_response(),
            "ChangeMessageVisibilityBatch" => self.hide_batch(&request),
            "DeleteMessage" => {
                let response = self.forward(operation, body).await;
                self.desk().forget(text(&request, "ReceiptHandle"));
                response
            }
            "DeleteMessageBatch" => {
                let response = self.forward(operation, body).await;
                for entry in request["Entries"].as_array().into_iter().flatten() {
                    self.desk().forget(text(entry, "ReceiptHandle"));
                }
                response
            }
            _ => self.forward(operation, body).await,
        };
        self.activity.moved();
        response
    }

    async fn send(&self, mut request: Value) -> Response {
        let delay = self.take_delay(&queue_name(&request), &mut request);
        let _sorting = self.sorting.lock().await;
        let (status, body) = self.forward_bytes("SendMessage", to_body(&request)).await;
        if let (Some(due), Ok(answer)) = (delay, serde_json::from_slice::<Value>(&body)) {
            self.note_delay(&answer["MessageId"], due);
        }
        (status, [("content-type", "application/x-amz-json-1.0")], body).into_response()
    }

    async fn send_batch(&self, mut request: Value) -> Response {
        let queue = queue_name(&request);
        let mut due = HashMap::new();
        for entry in request["Entries"].as_array_mut().into_iter().flatten() {
            if let Some(at) = self.take_delay(&queue, entry) {
                due.insert(entry["Id"].as_str().unwrap_or_default().to_owned(), at);
            }
        }
        let _sorting = self.sorting.lock().await;
        let (status, body) = self.forward_bytes("SendMessageBatch", to_body(&request)).await;
        if let Ok(answer) = serde_json::from_slice::<Value>(&body) {
            for sent in answer["Successful"].as_array().into_iter().flatten() {
                if let Some(at) = due.get(sent["Id"].as_str().unwrap_or_default()) {
                    self.note_delay(&sent["MessageId"], *at);
                }
            }
        }
        (status, [("content-type", "application/x-amz-json-1.0")], body).into_response()
    }

    /// Removes the delay from a send. Returns the time at which the message is due if it has a
    /// delay. An invalid delay stays in the request, so that the emulator rejects it.
    fn take_delay(&self, queue: &str, entry: &mut Value) -> Option<i64> {
        let own = entry.get("DelaySeconds").and_then(Value::as_i64);
        let seconds = match own {
            Some(seconds) if !(0..=900).contains(&seconds) => return None,
            Some(seconds) => seconds,
            None => self.specs.get(queue).map_or(0, |spec| i64::try_from(spec.delay.as_secs()).unwrap_or(0)),
        };
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("DelaySeconds");
        }
        (seconds > 0).then(|| self.clock.now_ms() + seconds * 1_000)
    }

    fn note_delay(&self, message_id: &Value, due: i64) {
        if let Some(id) = message_id.as_str() {
            self.desk().note_delay(id, due);
        }
    }

    /// Changes the visibility timeout of a message on the desk. Returns `false` if the receipt is
    /// not there or the timeout is invalid.
    fn hide(&self, request: &Value) -> bool {
        let seconds = request["VisibilityTimeout"].as_i64().unwrap_or(-1);
        let until = self.clock.now_ms() + seconds * 1_000;
        (0..=43_200).contains(&seconds) && self.desk().hide(text(request, "ReceiptHandle"), until)
    }

    fn hide_batch(&self, request: &Value) -> Response {
        let entries = request["Entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (done, failed): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| self.hide(entry));
        let done: Vec<_> = done.iter().map(|entry| json!({"Id": entry["Id"]})).collect();
        let why = json!("MessageNotInflight");
        let failed = failed.iter().map(|entry| json!({"Id": entry["Id"], "SenderFault": true, "Code": why}));
        axum::Json(json!({"Successful": done, "Failed": failed.collect::<Vec<_>>()})).into_response()
    }

    /// Receives the available messages, waiting up to a second for the first, and puts them on the
    /// desk.
    pub async fn receive(&self, queue: &str) -> Result<(), StackError> {
        let request = json!({
            "QueueUrl": url(queue), "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1,
            "VisibilityTimeout": HIDDEN_SECONDS,
            "MessageSystemAttributeNames": ["All"], "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
        });
        let answer = self.ask("ReceiveMessage", request).await?;
        let Some(messages) = answer["Messages"].as_array().filter(|messages| !messages.is_empty()) else {
            return Ok(());
        };
        let _sorting = self.sorting.lock().await;
        let now = self.clock.now_ms();
        messages.iter().for_each(|message| self.desk().take_in(queue, message, now));
        self.activity.moved();
        Ok(())
    }

    /// Takes up to `limit` messages to deliver now, oldest first unless `newest_first` is set.
    pub fn take_ready(&self, queue: &str, limit: usize, newest_first: bool) -> Vec<Value> {
        let hidden = self.specs.get(queue).map_or(Duration::from_secs(30), |spec| spec.visibility);
        let until = self.clock.now_ms() + i64::try_from(hidden.as_millis()).unwrap_or(i64::MAX);
        self.desk().hand_out(queue, limit, newest_first, until)
    }

    /// Returns whether there is a message to deliver now.
    pub fn has_ready(&self, queue: &str) -> bool {
        self.desk().has_ready(queue)
    }

    /// Puts messages that were taken back on the desk, to wait until `due`.
    pub fn postpone(&self, messages: &[Value], due: i64) {
        self.desk().postpone(messages, due);
        self.activity.moved();
    }

    /// Deletes the messages that succeeded and hides those that failed for the rest of their
    /// visibility timeout.
    pub async fn settle(
        &self,
        queue: &str,
        messages: &[Value],
        failed: impl Fn(&str) -> bool,
    ) -> Result<(), StackError> {
        for message in messages {
            let receipt = text(message, "ReceiptHandle");
            if failed(text(message, "MessageId")) {
                self.desk().failed(receipt);
            } else {
                self.ask("DeleteMessage", json!({"QueueUrl": url(queue), "ReceiptHandle": receipt})).await?;
                self.desk().forget(receipt);
            }
        }
        self.activity.moved();
        Ok(())
    }

    /// Makes delayed messages ready if they are due, and returns messages whose visibility timeout
    /// has passed to the emulator, which counts the receive and redrives them. If the emulator no
    /// longer knows a message, its function has deleted it.
    pub async fn wake(&self, queue: &str) {
        let over = self.desk().wake(queue, self.clock.now_ms());
        for receipt in over {
            let request = json!({"QueueUrl": url(queue), "ReceiptHandle": receipt, "VisibilityTimeout": 0});
            if let Err(error) = self.ask("ChangeMessageVisibility", request).await {
                tracing::warn!(queue, %error, "a message could not be returned to the emulator");
            }
            self.desk().forget(&receipt);
        }
        self.activity.moved();
    }

    /// Moves all due times back after the clock was set back, because delays and visibility
    /// timeouts are durations.
    pub fn set_back(&self, by_ms: i64) {
        self.desk().set_back(by_ms);
        self.activity.moved();
    }

    /// Returns the earliest time at which a message on the desk of this queue is due.
    pub fn next_due(&self, queue: &str) -> Option<i64> {
        self.desk().next_due(queue)
    }

    /// Returns whether the emulator is running.
    pub fn is_running(&self) -> bool {
        self.provider.is_ready()
    }

    pub async fn counts(&self, queue: &str) -> Result<Counts, StackError> {
        let names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
        let request = json!({"QueueUrl": url(queue), "AttributeNames": names});
        let answer = self.ask("GetQueueAttributes", request).await?;
        let number =
            |name: &str| answer["Attributes"][name].as_str().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
        let (moving, waiting) = self.desk().count(queue, self.clock.now_ms());
        let between = number(names[1]).saturating_sub(moving + waiting);
        Ok(Counts { visible: number(names[0]), moving, waiting, between })
    }

    /// Returns every message, to be persisted over a restart: queue, body, attributes and due time.
    /// The messages that it receives from the emulator stay hidden.
    pub async fn export(&self) -> Result<Vec<Value>, StackError> {
        let mut kept = Vec::new();
        for queue in self.specs.keys() {
            loop {
                let request = json!({
                    "QueueUrl": url(queue), "MaxNumberOfMessages": 10, "VisibilityTimeout": HIDDEN_SECONDS,
                    "MessageAttributeNames": ["All"],
                });
                let answer = self.ask("ReceiveMessage", request).await?;
                let Some(messages) = answer["Messages"].as_array().filter(|messages| !messages.is_empty()) else {
                    break;
                };
                for message in messages {
                    let due = self.desk().delay_of(text(message, "MessageId"));
                    kept.push(saved(queue, message, due));
                }
            }
        }
        kept.extend(self.desk().all().map(|(queue, message, due)| saved(queue, message, due)));
        Ok(kept)
    }

    /// Sends the messages that [`Self::export`] returned.
    pub async fn import(&self, kept: &[Value]) -> Result<(), StackError> {
        for message in kept {
            let queue = message["queue"].as_str().unwrap_or_default();
            if !self.specs.contains_key(queue) {
                continue;
            }
            let mut request = json!({"QueueUrl": url(queue), "MessageBody": message["body"]});
            if message["attributes"].is_object() {
                request["MessageAttributes"] = message["attributes"].clone();
            }
            let _sorting = self.sorting.lock().await;
            let answer = self.ask("SendMessage", request).await?;
            if let Some(due) = message["due"].as_i64() {
                self.note_delay(&answer["MessageId"], due);
            }
        }
        Ok(())
    }

    /// Deletes every message of a queue that waits for a time. This simulates a loss that SQS would
    /// not cause.
    pub async fn forget(&self, queue: &str) -> Result<(), StackError> {
        let waiting = self.desk().waiting(queue);
        for receipt in waiting {
            self.ask("DeleteMessage", json!({"QueueUrl": url(queue), "ReceiptHandle": receipt})).await?;
            self.desk().forget(&receipt);
        }
        Ok(())
    }

    /// Sends a message of the stack itself to a queue.
    pub async fn put(&self, queue: &str, body: &str) -> Result<(), StackError> {
        self.ask("SendMessage", json!({"QueueUrl": url(queue), "MessageBody": body})).await?;
        self.activity.moved();
        Ok(())
    }

    async fn ask(&self, operation: &str, request: Value) -> Result<Value, StackError> {
        let (status, body) = self.forward_bytes(operation, to_body(&request)).await;
        let answer = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status.is_success() { Ok(answer) } else { Err(StackError::Emulator(format!("SQS {operation}: {answer}"))) }
    }

    async fn forward(&self, operation: &str, body: Bytes) -> Response {
        let (status, body) = self.forward_bytes(operation, body).await;
        (status, [("content-type", "application/x-amz-json-1.0")], body).into_response()
    }

    async fn forward_bytes(&self, operation: &str, body: Bytes) -> (StatusCode, Bytes) {
        let mut headers = http::HeaderMap::new();
        if let Ok(target) = http::HeaderValue::from_str(&format!("AmazonSQS.{operation}")) {
            headers.insert("x-amz-target", target);
        }
        let answered = match resolve_operation(&headers) {
            Ok(operation) => self.handler.handle_operation(operation, body).await,
            Err(error) => Err(error),
        };
        let response = answered.unwrap_or_else(|error| error_to_response(&error, "local"));
        let (parts, body) = response.into_parts();
        let body = to_bytes(axum::body::Body::new(body), usize::MAX).await.unwrap_or_default();
        (parts.status, body)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn arn(queue: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}")
}

/// Returns a queue URL. The emulator reads only its last segment.
fn url(queue: &str) -> String {
    format!("http://sqs.local/{ACCOUNT}/{queue}")
}

fn queue_name(request: &Value) -> String {
    let url = request["QueueUrl"].as_str().unwrap_or_default();
    url.rsplit('/').next().unwrap_or_default().to_owned()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn to_body(request: &Value) -> Bytes {
    Bytes::from(request.to_string())
}

fn saved(queue: &str, message: &Value, due: Option<i64>) -> Value {
    json!({"queue": queue, "body": message["Body"], "attributes": message["MessageAttributes"], "due": due})
}
