//! Rate limits: every message and offer needs a slot of its address and a slot of its sender.

use std::time::Duration;

use umavez_domain::delivery::ThrottleScope;
use umavez_domain::keys::Key;
use umavez_domain::queue::Priority;
use umavez_domain::senders::Resolved;
use umavez_domain::senders::limiter::{ADDRESS_REACH_MS, Limit, reach_ms};
use umavez_domain::telemetry::Event;
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::store::StoreError;

use crate::Deps;

/// A request for rate slots: the sender, the address, the priority, and how long the message or
/// offer has waited.
pub struct RateRequest<'a> {
    pub sender: &'a Resolved,
    pub to: &'a str,
    pub priority: Priority,
    pub waited_ms: i64,
}

/// Takes a slot of the address and a slot of the sender, and waits for each. The address comes
/// first: an unused slot is lost, and there are many addresses. Returns `Later` if one of them has
/// no slot within reach.
pub async fn take(deps: &Deps, invocation: &Invocation, request: &RateRequest<'_>) -> Result<Grant, StoreError> {
    let mut last = Grant::At(invocation.current());
    for (key, limit, reach) in buckets(request) {
        last = deps.limiter.grant(invocation, &key, limit, reach, 1).await?;
        let Grant::At(slot) = last else { break };
        if let Ok(wait) = u64::try_from(slot.millis() - invocation.current().millis()) {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
    Ok(last)
}

/// Parks a bucket after the provider answered with a rate limit. If the write fails, the provider
/// itself will throttle the next call.
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
        tracing::warn!(event = Event::RateLimitNotStored.as_str(), cause = %error, request_id = invocation.request_id);
    }
}

/// Returns the buckets, each with its limit and how far ahead a slot may be reserved.
fn buckets(request: &RateRequest<'_>) -> Vec<(Key, Limit, i64)> {
    let (sender, to) = (request.sender, request.to);
    let reach = reach_ms(request.priority, request.waited_ms);
    let of_address =
        sender.rates.of_address(sender.channel, to).map(|limit| (sender.chat_bucket(to), limit, ADDRESS_REACH_MS));
    of_address.into_iter().chain([(sender.sender_bucket(), sender.rates.sender, reach)]).collect()
}
