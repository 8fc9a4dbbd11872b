//! Answers bursts of messages: claims them, asks the responder, hands its reply to outbound, and sees to its end.

mod ask;
mod work;

use std::sync::Arc;
use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::queue::WakeUp;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::conversations::{Conversations, Webhooks};
use umavez_platform::invocation::Invocation;
use umavez_platform::outgoing::Outgoing;
use umavez_platform::store::Store;
use umavez_platform::visibility::{Visibility, receptions};

use crate::work::Worked;

/// All wake-ups of a delivery at once: most of their time they wait for responders.
const AT_ONCE: usize = 10;
/// The longest that any instance may let its responder take.
const LONGEST_CALL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Deps {
    pub conversations: Conversations,
    pub webhooks: Webhooks,
    pub outgoing: Outgoing,
    /// Asked where an instance names no other.
    pub responder_url: Option<String>,
    pub visibility: Visibility,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        Ok(Self {
            conversations: Conversations::from_env(&Store::new(aws.dynamodb()))?,
            webhooks: Webhooks::from_env(&aws)?,
            outgoing: Outgoing::new(LONGEST_CALL),
            responder_url: config::text("RESPONDER_URL"),
            visibility: Visibility::from_env(aws.sqs(), &["CONVERSATIONS_QUEUE"], Some("CONVERSATIONS_DLQ"))?,
        })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let (deps, at) = (&deps, &invocation);
    Ok(batch::messages(at, event, AT_ONCE, |message| handle(deps, at, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Result<Outcome, RecordError> {
    let Ok(wake) = WakeUp::read(message.body.as_deref().unwrap_or_default()) else {
        return deps.visibility.unreadable(invocation, &message).await;
    };
    let (why, wait_ms) = match work::run(deps, invocation, &wake).await {
        Ok(Worked::Done(outcome)) => return Ok(Outcome(outcome)),
        Ok(Worked::Wait { why, until }) => (RecordError::Later(why), until.millis() - invocation.current().millis()),
        Err(_) => (RecordError::Retry("store"), i64::from(receptions(&message).min(60)) * 1_000),
    };
    deps.visibility.hide(invocation, &message, wait_ms).await;
    Err(why)
}
