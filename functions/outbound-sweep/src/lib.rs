//! Hands messages whose time is near to their queues. It never sends, and a tick that is missed, late or doubled changes
//! nothing: each message leaves the index of what is due by one conditional write.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
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
    let shards = (0..WAKE_SHARDS).map(|shard| sweep(&deps.messages, &invocation, shard));
    let swept = futures::future::try_join_all(shards).await?;
    let emitted: usize = swept.iter().map(|(emitted, _)| emitted).sum();
    let finished = swept.iter().all(|(_, finished)| *finished);
    tracing::info!(event = "SWEPT", emitted, finished, request_id = invocation.request_id);
    metrics::counter!("OutboundDue").increment(emitted as u64);
    Ok(json!({"emitted": emitted, "finished": finished}))
}

/// How many were handed over, and whether that was all.
async fn sweep(messages: &Messages, invocation: &Invocation, shard: u32) -> Result<(usize, bool), StoreError> {
    let until = invocation.now.plus_ms(LOOK_AHEAD_MS);
    let (mut emitted, mut after) = (0, None);
    while invocation.time_left() > LOW_TIME {
        let found = messages.waiting(invocation, Wake::Due, shard, Some(until), after, PAGE).await?;
        let last_page = found.len() < PAGE;
        after = found.last().map(|found| found.place.clone());
        emitted += futures::stream::iter(&found)
            .map(|found| messages.emit_due(invocation, found))
            .buffer_unordered(AT_ONCE)
            .try_fold(0, |emitted, mine| async move { Ok(emitted + usize::from(mine)) })
            .await?;
        if last_page {
            return Ok((emitted, true));
        }
    }
    Ok((emitted, false))
}
