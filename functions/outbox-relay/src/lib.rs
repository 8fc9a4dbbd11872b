//! Publishes the messages that rows emit. It makes no decisions: the write that it sees in the
//! stream has already decided what to emit.

use aws_lambda_events::dynamodb::Event;
use aws_lambda_events::streams::DynamoDbEventResponse;
use lambda_runtime::Error;
use umavez_domain::queue::{
    BACKFILL_QUEUE, CONVERSATIONS_QUEUE, MAILING_IMPORT_QUEUE, MAILING_SEND_QUEUE, Priority, queue,
};
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;
use umavez_platform::outbox::Relay;

#[derive(Debug)]
pub struct Deps {
    pub relay: Relay,
}

/// Every queue that a row may name, and the variable that contains its URL.
const QUEUES: &[(&str, &str)] = &[
    (queue(Priority::Start), "OUTBOUND_START_QUEUE"),
    (queue(Priority::Shot), "OUTBOUND_SHOT_QUEUE"),
    (queue(Priority::Downsell), "OUTBOUND_DOWNSELL_QUEUE"),
    (BACKFILL_QUEUE, "BACKFILL_QUEUE"),
    (MAILING_IMPORT_QUEUE, "MAILING_IMPORT_QUEUE"),
    (MAILING_SEND_QUEUE, "MAILING_SEND_QUEUE"),
    (CONVERSATIONS_QUEUE, "CONVERSATIONS_QUEUE"),
];

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { relay: Relay::from_env(Aws::from_env()?.sqs(), QUEUES)? })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, event: Event) -> Result<DynamoDbEventResponse, Error> {
    Ok(deps.relay.relay(invocation, &event).await)
}
