//! Rate limits: a slot of the address and one of the sender for everything that leaves.

use std::time::Duration;

use umavez_domain::delivery::ThrottleScope;
use umavez_domain::keys::Key;
use umavez_domain::queue::Priority;
use umavez_domain::senders::Resolved;
use umavez_domain::senders::limiter::{ADDRESS_REACH_MS, Limit, reach_ms};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::store::StoreError;

use crate::Deps;

/// What is to be sent, by which sender, and how long it has waited.
pub struct RateRequest<'a> {
    pub sender: &'a Resolved,
    pub to: &'a str,
    pub priority: Priority,
    pub waited_ms: i64,
}

/// Takes a slot of the address and one of the sender, and waits for them. The address comes first:
/// a slot that is not used is lost, and there are many addresses.
pub async fn take(deps: &Deps, invocation: &Invocation, request: &RateRequest<'_>) -> Result<Grant, StoreError> {
    let mut last = Grant::At(invocation.current());
    for (key, limit, reach) in buckets(request) {
        last = deps.limiter.grant(invocation, &key, limit, reach).await?;
        let Grant::At(slot) = last else { break };
        if let Ok(wait) = u64::try_from(slot.millis() - invocation.current().millis()) {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
    Ok(last)
}

/// A provider said to wait. Not parked, the next one is told so by the provider itself.
pub async fn park(
    deps: &Deps,
    invocation: &Invocation,
    request: &RateRequest<'_>,
    scope: ThrottleScope,
    retry_after_ms: i64,
) {
    let bucket = match scope {
        ThrottleScope::Bot => request.sender.sender_bucket(),
        ThrottleScope::Chat => request.sender.chat_bucket(request.to),
    };
    let until = invocation.current().plus_ms(retry_after_ms);
    if let Err(error) = deps.limiter.park(invocation, &bucket, until).await {
        tracing::warn!(event = "NOT_PARKED", cause = %error, request_id = invocation.request_id);
    }
}

/// Each with its limit and how far ahead a slot of it may be.
fn buckets(request: &RateRequest<'_>) -> Vec<(Key, Limit, i64)> {
    let (sender, to) = (request.sender, request.to);
    let reach = reach_ms(request.priority, request.waited_ms);
    let of_address =
        sender.rates.of_address(sender.channel, to).map(|limit| (sender.chat_bucket(to), limit, ADDRESS_REACH_MS));
    of_address.into_iter().chain([(sender.sender_bucket(), sender.rates.sender, reach)]).collect()
}
