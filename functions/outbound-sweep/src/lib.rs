//! Enqueues messages that are due soon. It never sends. A missed, late or duplicate tick changes
//! nothing: one conditional write per message removes it from the index of due rows.

use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::due::{self, Swept};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Messages;
use umavez_platform::store::Store;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { messages: Messages::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, _tick: Value) -> Result<Value, Error> {
    let messages = &deps.messages;
    let emit_due = async |found| messages.emit_due(invocation, &found).await;
    let swept = due::sweep(&messages.store, invocation, &messages.table, emit_due).await;
    let Swept { done: emitted, failed, unread, finished, .. } = swept;
    tracing::info!(
        event = Event::OutboundSwept.as_str(),
        emitted,
        failed,
        unread,
        finished,
        request_id = invocation.request_id
    );
    metrics::counter!(Metric::OutboundEnqueued.as_str()).increment(emitted);
    metrics::counter!(Metric::OutboundNotEnqueued.as_str()).increment(failed);
    // All other rows were handled. The error shows the schedule and the alarm that some were not.
    if unread > 0 {
        return Err("a shard could not be read".into());
    }
    Ok(json!({"emitted": emitted, "failed": failed, "finished": finished}))
}
