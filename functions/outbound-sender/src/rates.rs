//! Rate limits: every message and offer needs a slot of its sender and a slot of its address.

use umavez_domain::delivery::{Outcome, ThrottleScope};
use umavez_domain::queue::Priority;
use umavez_domain::senders::Resolved;
use umavez_domain::senders::limiter::reach_ms;
use umavez_domain::telemetry::Event;
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::{Buckets, Grant, Held};
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

/// Takes a slot of the sender and a slot of the address, and waits for their time. Returns `Later`
/// if one of them has no slot within reach.
pub async fn take(deps: &Deps, invocation: &Invocation, request: &RateRequest<'_>) -> Result<Grant, StoreError> {
    deps.limiter.take(invocation, &buckets(request)).await
}

/// Checks the slot directly before the call. Returns the outcome of the attempt if the call may not
/// be made now.
pub async fn before_call(
    deps: &Deps,
    invocation: &Invocation,
    request: &RateRequest<'_>,
    held: Held,
) -> Result<(), Outcome> {
    deps.limiter.before_call(invocation, &buckets(request), held).await
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
    if let Err(error) = deps.limiter.park(invocation, &bucket, retry_after_ms).await {
        tracing::warn!(event = Event::RateLimitNotStored.as_str(), cause = %error, request_id = invocation.request_id);
    }
}

fn buckets(request: &RateRequest<'_>) -> Buckets {
    let (sender, to) = (request.sender, request.to);
    let limit = sender.rates.of_address(sender.channel, to);
    Buckets {
        sender: (sender.sender_bucket(), sender.rates.sender),
        reach_ms: reach_ms(request.priority, request.waited_ms),
        address: limit.map(|limit| (sender.chat_bucket(to), limit)),
    }
}
