//! Enqueues offers that are due soon. It never sends. A missed, late or duplicate tick changes
//! nothing: one conditional write per offer removes it from the index of due rows.

use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::downsells::Downsells;
use umavez_platform::due::{self, Swept};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;

#[derive(Debug)]
pub struct Deps {
    pub downsells: Downsells,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { downsells: Downsells::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, _tick: Value) -> Result<Value, Error> {
    let downsells = &deps.downsells;
    let emit_due = async |found| downsells.emit_due(invocation, &found).await;
    let swept = due::sweep(&downsells.store, invocation, &downsells.table, emit_due).await;
    let Swept { found, done: emitted, failed, unread, finished } = swept;
    let request_id = &invocation.request_id;
    if found > 0 {
        tracing::info!(event = Event::DownsellsSwept.as_str(), found, emitted, failed, finished, request_id);
    }
    metrics::counter!(Metric::DownsellsNotEnqueued.as_str()).increment(failed);
    // All other rows were handled. The error shows the schedule and the alarm that some were not.
    if unread > 0 {
        return Err("a shard could not be read".into());
    }
    Ok(json!({"found": found, "emitted": emitted, "failed": failed, "finished": finished}))
}
