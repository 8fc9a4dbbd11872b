//! Reports intents that TTL removed: a log event, a metric per intent type, and how late TTL was.
//!
//! Nothing depends on it. If the stream delivers a removal twice, it is reported twice.

use aws_lambda_events::dynamodb::{Event as StreamEvent, EventRecord};
use aws_lambda_events::streams::DynamoDbEventResponse;
use lambda_runtime::Error;
use umavez_domain::intents::{IntentRow, IntentStatus};
use umavez_domain::queue::Unreadable;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::batch::{self, Handled};
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;

#[derive(Debug)]
pub struct Deps;

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self)
    }
}

pub async fn run(_: &Deps, invocation: &Invocation, event: StreamEvent) -> Result<DynamoDbEventResponse, Error> {
    Ok(batch::changes(invocation, event, async |record| expired(invocation, record)).await)
}

/// Reports one removed intent. The filter of the event source mapping passes only removals of
/// intent rows by TTL; any other record is a poison record.
fn expired(invocation: &Invocation, record: EventRecord) -> Handled {
    // Drop the error: its text may contain a stored value.
    let row: IntentRow = serde_dynamo::from_item(record.change.old_image).map_err(|_| Unreadable("an intent"))?;
    if row.status == IntentStatus::Released {
        return Ok("was_released");
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
    metrics::counter!(Metric::IntentsExpired.as_str(), "IntentType" => row.intent_type).increment(1);
    metrics::histogram!(Metric::IntentExpiryLatenessSeconds.as_str())
        .record(std::time::Duration::from_secs(u64::try_from(late_seconds).unwrap_or(0)));
    Ok("expired")
}
