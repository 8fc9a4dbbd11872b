//! SQS in memory: at least once, in any order, with delays, visibility, receive counts and
//! dead-letter queues.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use umavez_local::model::{Model, Queue};
use umavez_platform::outbox::ID_ATTRIBUTE;

#[derive(Debug, Clone)]
pub struct Message {
    pub number: u64,
    pub body: String,
    pub attributes: Value,
    pub sent_ms: i64,
    pub first_received_ms: Option<i64>,
    pub received: u32,
    pub visible_ms: i64,
    /// The receipt of the newest reception. Older receipts have no effect.
    pub receipt: String,
}

#[derive(Debug)]
struct Waiting {
    settings: Queue,
    messages: Vec<Message>,
}

#[derive(Debug, Default)]
pub struct Queues {
    queues: BTreeMap<String, Waiting>,
    last: u64,
    /// The ids of the emissions that the relay has published.
    published: BTreeSet<String>,
}

impl Queues {
    pub fn new(model: &Model) -> Self {
        let queues = model
            .queues
            .iter()
            .map(|queue| (queue.name.clone(), Waiting { settings: queue.clone(), messages: Vec::new() }));
        Self { queues: queues.collect(), ..Self::default() }
    }

    /// Carries out an operation at this time. Returns the status and the body of the response.
    pub fn call(&mut self, operation: &str, request: &Value, now_ms: i64) -> (u16, Vec<u8>) {
        let queue = request["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default().to_owned();
        let answer = match operation {
            "SendMessage" => {
                let number = self.send(&queue, request, now_ms);
                json!({"MessageId": id(number), "MD5OfMessageBody": "unchecked"})
            }
            "SendMessageBatch" => {
                let entries = request["Entries"].as_array().into_iter().flatten();
                let sent = entries.map(|entry| {
                    let number = self.send(&queue, entry, now_ms);
                    json!({"Id": entry["Id"], "MessageId": id(number), "MD5OfMessageBody": "unchecked"})
                });
                json!({"Successful": sent.collect::<Vec<_>>(), "Failed": []})
            }
            "ChangeMessageVisibility" => {
                let receipt = request["ReceiptHandle"].as_str().unwrap_or_default();
                let seconds = request["VisibilityTimeout"].as_i64().unwrap_or(0);
                if let Some(message) = self.held(&queue, receipt) {
                    message.visible_ms = now_ms + seconds * 1_000;
                }
                json!({})
            }
            other => panic!("the simulator has no SQS operation {other}"),
        };
        (200, answer.to_string().into_bytes())
    }

    fn send(&mut self, queue: &str, entry: &Value, now_ms: i64) -> u64 {
        let body = entry["MessageBody"].as_str().unwrap_or_default().to_owned();
        let delay_ms = entry["DelaySeconds"].as_i64().unwrap_or(0) * 1_000;
        let emission = entry["MessageAttributes"][ID_ATTRIBUTE]["StringValue"].as_str();
        self.published.extend(emission.map(str::to_owned));
        self.put(queue, body, entry["MessageAttributes"].clone(), now_ms, delay_ms)
    }

    /// Returns whether an emission was published.
    pub fn is_published(&self, emission: &str) -> bool {
        self.published.contains(emission)
    }

    pub fn put(&mut self, queue: &str, body: String, attributes: Value, now_ms: i64, delay_ms: i64) -> u64 {
        self.last += 1;
        let number = self.last;
        let waiting = self.queues.get_mut(queue).unwrap_or_else(|| panic!("there is no queue {queue}"));
        let (first_received_ms, receipt) = (None, String::new());
        let visible_ms = now_ms + delay_ms;
        waiting.messages.push(Message {
            number,
            body,
            attributes,
            sent_ms: now_ms,
            first_received_ms,
            received: 0,
            visible_ms,
            receipt,
        });
        number
    }

    fn held(&mut self, queue: &str, receipt: &str) -> Option<&mut Message> {
        self.queues.get_mut(queue)?.messages.iter_mut().find(|message| message.receipt == receipt)
    }

    /// Receives up to `limit` visible messages; `pick` chooses the next of so many. Messages that
    /// were received too often move to the dead-letter queue.
    pub fn receive(
        &mut self,
        queue: &str,
        limit: usize,
        now_ms: i64,
        mut pick: impl FnMut(usize) -> usize,
    ) -> Vec<Message> {
        let mut received = Vec::new();
        let mut dead = Vec::new();
        let Some(waiting) = self.queues.get_mut(queue) else { return received };
        let redrive = waiting.settings.redrive.clone();
        while received.len() < limit {
            let visible: Vec<_> =
                (0..waiting.messages.len()).filter(|n| waiting.messages[*n].visible_ms <= now_ms).collect();
            if visible.is_empty() {
                break;
            }
            let chosen = visible[pick(visible.len())];
            if let Some((_, most)) = &redrive
                && waiting.messages[chosen].received >= *most
            {
                dead.push(waiting.messages.remove(chosen));
                continue;
            }
            let visibility = i64::try_from(waiting.settings.visibility.as_millis()).unwrap_or(i64::MAX);
            let message = &mut waiting.messages[chosen];
            message.received += 1;
            message.visible_ms = now_ms.saturating_add(visibility);
            message.first_received_ms.get_or_insert(now_ms);
            message.receipt = format!("{}-{}", message.number, message.received);
            received.push(message.clone());
        }
        if let Some((letters, _)) = redrive {
            for message in dead {
                self.put(&letters, message.body, message.attributes, now_ms, 0);
            }
        }
        received
    }

    /// Deletes a message, unless it was received again meanwhile.
    pub fn delete(&mut self, queue: &str, receipt: &str) {
        if let Some(waiting) = self.queues.get_mut(queue) {
            waiting.messages.retain(|message| message.receipt != receipt);
        }
    }

    /// Makes the messages of a failed batch visible after the visibility timeout, which is what
    /// their reception set, unless their visibility was changed.
    pub fn next_visible(&self, queue: &str) -> Option<i64> {
        self.queues.get(queue)?.messages.iter().map(|message| message.visible_ms).min()
    }

    pub fn len(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(0, |waiting| waiting.messages.len())
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.queues.keys()
    }
}

fn id(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

/// Returns the event that an event source mapping delivers.
pub fn event(queue: &str, messages: &[Message]) -> Value {
    let records: Vec<_> = messages
        .iter()
        .map(|message| {
            let attributes = message.attributes.as_object().cloned().unwrap_or_default();
            let attributes: serde_json::Map<_, _> = attributes
                .into_iter()
                .map(|(name, value)| {
                    let value = json!({
                        "stringValue": value["StringValue"], "dataType": value["DataType"],
                        "stringListValues": [], "binaryListValues": [],
                    });
                    (name, value)
                })
                .collect();
            json!({
                "messageId": id(message.number),
                "receiptHandle": message.receipt,
                "body": message.body,
                "attributes": {
                    "ApproximateReceiveCount": message.received.to_string(),
                    "SentTimestamp": message.sent_ms.to_string(),
                    "ApproximateFirstReceiveTimestamp": message.first_received_ms.unwrap_or(0).to_string(),
                },
                "messageAttributes": attributes,
                "md5OfBody": "unchecked",
                "eventSource": "aws:sqs",
                "eventSourceARN": format!("arn:aws:sqs:us-east-1:000000000000:{queue}"),
                "awsRegion": "us-east-1",
            })
        })
        .collect();
    json!({"Records": records})
}
