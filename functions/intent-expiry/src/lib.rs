//! Tells of intents that TTL removed: an event and a metric per type, and how late TTL was.
//!
//! Nothing depends on it. A removal that is delivered twice is told twice.

use std::sync::Arc;

use aws_lambda_events::dynamodb::{Event as StreamEvent, EventRecord};
use aws_lambda_events::streams::DynamoDbEventResponse;
use lambda_runtime::Error;
use umavez_domain::codes::Event;
use umavez_domain::intents::{IntentRow, Status};
use umavez_domain::queue::Unreadable;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;

#[derive(Debug)]
pub struct Deps;

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self)
    }
}

pub async fn run(
    _: Arc<Deps>,
    invocation: Arc<Invocation>,
    event: StreamEvent,
) -> Result<DynamoDbEventResponse, Error> {
    let invocation = &invocation;
    Ok(batch::changes(invocation, event, |record| async move { expired(invocation, record) }).await)
}

/// The mapping's filter lets only TTL's removals of intent rows through; a record that is none of
/// that is poison.
fn expired(invocation: &Invocation, record: EventRecord) -> Result<Outcome, RecordError> {
    // The error's own text may repeat a stored value.
    let row: IntentRow = serde_dynamo::from_item(record.change.old_image).map_err(|_| Unreadable("an intent"))?;
    if row.status == Status::Released {
        return Ok(Outcome("was_released"));
    }
    let late_seconds = invocation.now.seconds() - row.expires_at;
    tracing::info!(
        event = Event::IntentExpired.as_str(),
        intent_type = row.intent_type,
        fingerprint = row.fingerprint,
        client_id = row.client_id,
        late_seconds,
        request_id = invocation.request_id,
    );
    metrics::counter!("IntentsExpired", "IntentType" => row.intent_type).increment(1);
    metrics::histogram!("IntentExpiryLateness")
        .record(std::time::Duration::from_secs(u64::try_from(late_seconds).unwrap_or(0)));
    Ok(Outcome("expired"))
}
