//! Hands messages whose time is near to their queues. It never sends, and a tick that is missed, late or doubled changes
//! nothing: each message leaves the index of what is due by one conditional write.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use lambda_runtime::Error;
use serde_json::{Value, json};
use umavez_domain::keys::{WAKE_SHARDS, Wake};
use umavez_domain::outbound::LOOK_AHEAD_MS;
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;
use umavez_platform::outbound::Messages;
use umavez_platform::store::{Store, StoreError};

/// Rows of one query, and writes at once.
const PAGE: usize = 100;
const AT_ONCE: usize = 8;
/// With less time than this the rest is left to the next tick.
const LOW_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { messages: Messages::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, _tick: Value) -> Result<Value, Error> {
    let mut whole = Swept { finished: true, ..Swept::default() };
    let mut unread = 0;
    // One after the other: there are few, and what is due in one is handed over many at a time.
    for shard in 0..WAKE_SHARDS {
        match sweep(&deps.messages, &invocation, shard).await {
            Ok(shard) => {
                whole.emitted += shard.emitted;
                whole.failed += shard.failed;
                whole.finished &= shard.finished;
            }
            Err(_) => unread += 1,
        }
    }
    let Swept { emitted, failed, finished } = whole;
    tracing::info!(event = "SWEPT", emitted, failed, unread, finished, request_id = invocation.request_id);
    metrics::counter!("OutboundDue").increment(emitted);
    metrics::counter!("OutboundNotHandedOver").increment(failed);
    // The others were done; the schedule and the alarm see that not all were.
    if unread > 0 {
        return Err("a shard could not be read".into());
    }
    Ok(json!({"emitted": emitted, "failed": failed, "finished": finished}))
}

#[derive(Default)]
struct Swept {
    emitted: u64,
    failed: u64,
    /// That was all.
    finished: bool,
}

/// One row that cannot be written does not keep those after it from being handed over.
async fn sweep(messages: &Messages, invocation: &Invocation, shard: u32) -> Result<Swept, StoreError> {
    let until = invocation.now.plus_ms(LOOK_AHEAD_MS);
    let (mut swept, mut after) = (Swept::default(), None);
    while invocation.time_left() > LOW_TIME {
        let found = messages.waiting(invocation, Wake::Due, shard, Some(until), after, PAGE).await?;
        let last_page = found.len() < PAGE;
        after = found.last().map(|found| found.place.clone());
        let mut handed =
            futures::stream::iter(&found).map(|found| messages.emit_due(invocation, found)).buffer_unordered(AT_ONCE);
        while let Some(handed) = handed.next().await {
            match handed {
                Ok(mine) => swept.emitted += u64::from(mine),
                Err(_) => swept.failed += 1,
            }
        }
        if last_page {
            return Ok(Swept { finished: true, ..swept });
        }
    }
    Ok(swept)
}
