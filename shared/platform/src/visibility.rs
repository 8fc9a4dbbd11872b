//! A message that is early goes back to its queue, hidden until its time. Nothing sends to its own
//! queue: Lambda takes that for a loop and stops it. How often a message was received says nothing
//! about it, so the queues that use this allow for many receptions, and a message that cannot be
//! read is put aside here.

use std::collections::BTreeMap;

use aws_lambda_events::sqs::SqsMessage;

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::queue::QueueError;

/// The longest that a queue hides a message, less what may have passed since it was received.
const LONGEST_SECONDS: i64 = 12 * 3_600 - 600;
/// A message that cannot be read is tried this often, that far apart, before it is put aside: a
/// deployment may be under way, and whoever reads it next be new.
const TRIES_OF_UNREADABLE: u32 = 3;
const UNREADABLE_MS: i64 = 60_000;

#[derive(Debug, Clone)]
pub struct Visibility {
    pub sqs: aws_sdk_sqs::Client,
    /// By the queue's name, which ends both its ARN and its URL.
    queues: BTreeMap<String, String>,
    dead_letters: Option<String>,
}

impl Visibility {
    /// Of the queues whose URLs these variables have, and the queue for what cannot be read, if it
    /// is put aside here.
    pub fn from_env(
        sqs: aws_sdk_sqs::Client,
        variables: &[&str],
        dead_letters: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let urls = variables.iter().map(|variable| config::required(variable)).collect::<Result<Vec<_>, _>>()?;
        let named = urls.into_iter().map(|url| (url.rsplit('/').next().unwrap_or_default().to_owned(), url));
        Ok(Self { sqs, queues: named.collect(), dead_letters: dead_letters.map(config::required).transpose()? })
    }

    /// Hides a message for that long, rounded up to whole seconds. If it cannot be, the queue's own
    /// time holds.
    pub async fn hide(&self, invocation: &Invocation, message: &SqsMessage, for_ms: i64) {
        let Some((url, receipt)) = self.url(message).zip(message.receipt_handle.as_ref()) else { return };
        let seconds = (for_ms.max(0).saturating_add(999) / 1_000).min(LONGEST_SECONDS);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let call = self.sqs.change_message_visibility().queue_url(url).receipt_handle(receipt);
        let hidden = invocation.within(call.visibility_timeout(seconds).send()).await;
        if let Err(error) = QueueError::check(hidden) {
            tracing::warn!(event = "NOT_HIDDEN", cause = %error, request_id = invocation.request_id);
        }
    }

    /// Copies a message that cannot be read to the dead letters, once it was tried a few times;
    /// hides it before that. Returns whether it was copied: if so, it can leave its queue.
    pub async fn put_aside(&self, invocation: &Invocation, message: &SqsMessage) -> bool {
        let tried = receptions(message) >= TRIES_OF_UNREADABLE;
        let Some(dead_letters) = self.dead_letters.as_ref().filter(|_| tried) else {
            self.hide(invocation, message, UNREADABLE_MS).await;
            return false;
        };
        let body = message.body.as_deref().filter(|body| !body.is_empty()).unwrap_or("(empty)");
        let call = self.sqs.send_message().queue_url(dead_letters).message_body(body);
        let sent = QueueError::check(invocation.within(call.send()).await);
        if let Err(error) = &sent {
            tracing::warn!(event = "NOT_PUT_ASIDE", cause = %error, request_id = invocation.request_id);
        }
        sent.is_ok()
    }

    fn url(&self, message: &SqsMessage) -> Option<&String> {
        let arn = message.event_source_arn.as_deref()?;
        self.queues.get(arn.rsplit(':').next()?)
    }
}

/// How often a message was received, this time included.
pub fn receptions(message: &SqsMessage) -> u32 {
    let count = message.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok());
    count.unwrap_or(1)
}
