//! Visibility of queue messages. A message that is early returns to its queue, hidden until it is
//! due. No function sends to its own queue, because Lambda detects that as a loop and stops it. So
//! the receive count does not show whether a message is bad. The queues that use this module allow
//! many receptions, and this module itself dead-letters a message that cannot be read.

use std::collections::BTreeMap;

use aws_lambda_events::sqs::SqsMessage;
use umavez_domain::telemetry::Event;

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::queue::QueueError;

/// The longest time that a queue hides a message, minus the time that may have passed since it was
/// received.
const LONGEST_SECONDS: i64 = 12 * 3_600 - 600;
/// The number of tries of an unreadable message, and the time between them, before it goes to the
/// dead-letter queue. A deployment may be under way, and a newer version may be able to read it.
const TRIES_OF_UNREADABLE: u32 = 3;
const UNREADABLE_MS: i64 = 60_000;

#[derive(Debug, Clone)]
pub struct Visibility {
    pub sqs: aws_sdk_sqs::Client,
    /// The URLs by queue name. The name is the last part of both the ARN and the URL.
    queues: BTreeMap<String, String>,
    /// The URL of the queue for unreadable messages.
    dead_letters: String,
}

impl Visibility {
    /// `variables` name the URLs of the queues, and `dead_letters` that of the queue for unreadable
    /// messages.
    pub fn from_env(sqs: aws_sdk_sqs::Client, variables: &[&str], dead_letters: &str) -> Result<Self, ConfigError> {
        let urls = variables.iter().map(|variable| config::required(variable)).collect::<Result<Vec<_>, _>>()?;
        let named = urls.into_iter().map(|url| (url.rsplit('/').next().unwrap_or_default().to_owned(), url));
        Ok(Self { sqs, queues: named.collect(), dead_letters: config::required(dead_letters)? })
    }

    /// Hides a message for this long, rounded up to whole seconds. If that fails, the visibility
    /// timeout of the queue applies.
    pub async fn hide(&self, invocation: &Invocation, message: &SqsMessage, for_ms: i64) {
        let Some((url, receipt)) = self.url(message).zip(message.receipt_handle.as_ref()) else { return };
        let seconds = (for_ms.max(0).saturating_add(999) / 1_000).min(LONGEST_SECONDS);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let call = self.sqs.change_message_visibility().queue_url(url).receipt_handle(receipt);
        let hidden = invocation.within(call.visibility_timeout(seconds).send()).await;
        if let Err(error) = QueueError::check(hidden) {
            tracing::warn!(event = Event::RecordNotHidden.as_str(), cause = %error, request_id = invocation.request_id);
        }
    }

    /// Copies an unreadable message to the dead-letter queue after a few tries; before that, it
    /// hides the message. Returns whether it copied the message; if so, the message can leave its
    /// queue.
    pub async fn set_aside(&self, invocation: &Invocation, message: &SqsMessage) -> bool {
        if receptions(message) < TRIES_OF_UNREADABLE {
            self.hide(invocation, message, UNREADABLE_MS).await;
            return false;
        }
        let body = message.body.as_deref().filter(|body| !body.is_empty()).unwrap_or("(empty)");
        let call = self.sqs.send_message().queue_url(&self.dead_letters).message_body(body);
        let sent = QueueError::check(invocation.within(call.send()).await);
        if let Err(error) = &sent {
            tracing::warn!(event = Event::RecordNotSetAside.as_str(), cause = %error, request_id = invocation.request_id);
        }
        sent.is_ok()
    }

    fn url(&self, message: &SqsMessage) -> Option<&String> {
        let arn = message.event_source_arn.as_deref()?;
        self.queues.get(arn.rsplit(':').next()?)
    }
}

/// Returns how often a message was received, including this time.
pub fn receptions(message: &SqsMessage) -> u32 {
    let count = message.attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok());
    count.unwrap_or(1)
}
