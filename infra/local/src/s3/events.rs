//! Events of a new object: an S3 notification to queues, and an event on the default bus.

use std::sync::atomic::Ordering;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use umavez_domain::time::Timestamp;

use super::S3;
use crate::StackError;
use crate::functions::random_uuid;
use crate::model::{Bucket, Notification};
use crate::template::{ACCOUNT, REGION, bucket_arn};

/// A new object.
pub struct Created<'a> {
    /// For example `ObjectCreated:Put`.
    pub event: &'static str,
    pub key: &'a str,
    pub size: u64,
    pub etag: &'a str,
}

impl S3 {
    /// Publishes the events before the caller gets its response. On AWS, too, an event can arrive
    /// first.
    pub(super) async fn publish_or_warn(&self, bucket: &Bucket, created: &Created<'_>) {
        if let Err(error) = self.publish(bucket, created).await {
            tracing::warn!(%error, bucket = bucket.name, "the events of an object are lost");
        }
    }

    async fn publish(&self, bucket: &Bucket, created: &Created<'_>) -> Result<(), StackError> {
        let now = self.0.clock.now_ms();
        // For one key, a later event has the lexicographically greater sequencer.
        let sequencer = format!("{now:012X}{:06X}", self.0.sequence.fetch_add(1, Ordering::SeqCst) & 0xFF_FFFF);
        let request = random_uuid();
        for (queue, body) in notifications(bucket, created, Timestamp::from_millis(now), &sequencer, &request) {
            self.0.queues.put(&queue, &body).await?;
        }
        if bucket.to_bus {
            let detail = detail(bucket, created, &sequencer, &request);
            self.0.bus.publish("aws.s3", "Object Created", &[bucket_arn(&bucket.name)], detail).await?;
        }
        Ok(())
    }
}

/// Returns the notifications about a new object: the queue and the body of each.
pub fn notifications(
    bucket: &Bucket,
    created: &Created<'_>,
    at: Timestamp,
    sequencer: &str,
    request: &str,
) -> Vec<(String, String)> {
    let wanted = bucket.notifications.iter().filter(|notification| wants(notification, created));
    let body = notification_body(bucket, created, at, sequencer, request).to_string();
    wanted.map(|notification| (notification.queue.clone(), body.clone())).collect()
}

fn wants(notification: &Notification, created: &Created) -> bool {
    let all = notification.event.strip_suffix('*');
    all.map_or(notification.event == created.event, |begins| created.event.starts_with(begins))
        && created.key.starts_with(&notification.prefix)
        && created.key.ends_with(&notification.suffix)
}

fn notification_body(bucket: &Bucket, created: &Created, at: Timestamp, sequencer: &str, request: &str) -> Value {
    json!({"Records": [{
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": REGION,
        "eventTime": at,
        "eventName": created.event,
        "userIdentity": {"principalId": "local"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": request, "x-amz-id-2": "local"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "local",
            "bucket": {
                "name": bucket.name,
                "ownerIdentity": {"principalId": "local"},
                "arn": bucket_arn(&bucket.name),
            },
            "object": {
                "key": form_encoded(created.key),
                "size": created.size,
                "eTag": created.etag,
                "sequencer": sequencer,
            },
        },
    }]})
}

/// Builds the detail of the bus event. Unlike in a notification, the key is not encoded.
fn detail(bucket: &Bucket, created: &Created, sequencer: &str, request: &str) -> Value {
    let reason = match created.event {
        "ObjectCreated:Post" => "POST Object",
        "ObjectCreated:Copy" => "CopyObject",
        "ObjectCreated:CompleteMultipartUpload" => "CompleteMultipartUpload",
        _ => "PutObject",
    };
    json!({
        "version": "0",
        "bucket": {"name": bucket.name},
        "object": {"key": created.key, "size": created.size, "etag": created.etag, "sequencer": sequencer},
        "request-id": request,
        "requester": ACCOUNT,
        "source-ip-address": "127.0.0.1",
        "reason": reason,
    })
}

/// Encodes a key as a notification does: form encoding, except for slashes.
fn form_encoded(key: &str) -> String {
    const PLAIN: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'*').remove(b'/').remove(b' ');
    utf8_percent_encode(key, PLAIN).to_string().replace(' ', "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_encoded_as_in_a_form() {
        assert_eq!(form_encoded("in/a b+c=ç (1).csv"), "in/a+b%2Bc%3D%C3%A7+%281%29.csv");
    }

    #[test]
    fn a_queue_gets_the_events_that_match_its_filter() {
        let notification = |event: &str, prefix: &str, suffix: &str| Notification {
            event: event.into(),
            queue: "q".into(),
            prefix: prefix.into(),
            suffix: suffix.into(),
        };
        let created = Created { event: "ObjectCreated:Put", key: "in/a.csv", size: 1, etag: "e" };
        for (event, prefix, suffix, wanted) in [
            ("ObjectCreated:*", "", "", true),
            ("ObjectCreated:Put", "in/", ".csv", true),
            ("ObjectCreated:Post", "", "", false),
            ("ObjectCreated:*", "out/", "", false),
            ("ObjectCreated:*", "", ".txt", false),
        ] {
            assert_eq!(wants(&notification(event, prefix, suffix), &created), wanted, "{event} {prefix} {suffix}");
        }
    }
}
