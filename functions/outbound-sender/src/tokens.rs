//! How fast: a slot of the address and one of the sender for everything that leaves.

use std::time::Duration;

use umavez_domain::channels::Channel;
use umavez_domain::delivery::ThrottleScope;
use umavez_domain::keys::{self, Key};
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::{ADDRESS_REACH_MS, Limit, reach_ms};
use umavez_domain::senders::rates::Rates;
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::store::StoreError;

use crate::Deps;

/// What wants to leave, and since when.
pub struct Lane<'a> {
    pub channel: Channel,
    pub sender: &'a str,
    pub to: &'a str,
    pub priority: Priority,
    pub waited_ms: i64,
    /// Of the sender and of the address.
    pub rates: Rates,
}

/// Takes a slot of the address and one of the sender, and waits for them. The address comes first: a slot that is not
/// used is lost, and there are many addresses.
pub async fn take(deps: &Deps, invocation: &Invocation, lane: &Lane<'_>) -> Result<Grant, StoreError> {
    let mut last = Grant::At(invocation.current());
    for (key, limit, reach) in buckets(lane) {
        last = deps.limiter.grant(invocation, &key, limit, reach).await?;
        let Grant::At(slot) = last else { break };
        if let Ok(wait) = u64::try_from(slot.millis() - invocation.current().millis()) {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
    Ok(last)
}

/// A provider said to wait. Not parked, the next one is told so by the provider itself.
pub async fn park(deps: &Deps, invocation: &Invocation, lane: &Lane<'_>, scope: ThrottleScope, retry_after_ms: i64) {
    let bucket = match scope {
        ThrottleScope::Bot => sender_bucket(lane),
        ThrottleScope::Chat => chat_bucket(lane),
    };
    let until = invocation.current().plus_ms(retry_after_ms);
    if let Err(error) = deps.limiter.park(invocation, &bucket, until).await {
        tracing::warn!(event = "NOT_PARKED", cause = %error, request_id = invocation.request_id);
    }
}

/// Each with its limit and how far ahead a slot of it may be.
fn buckets(lane: &Lane<'_>) -> Vec<(Key, Limit, i64)> {
    let reach = reach_ms(lane.priority, lane.waited_ms);
    let of_address =
        lane.rates.of_address(lane.channel, lane.to).map(|limit| (chat_bucket(lane), limit, ADDRESS_REACH_MS));
    of_address.into_iter().chain([(sender_bucket(lane), lane.rates.sender, reach)]).collect()
}

/// An account has one limit for mail, whoever it is from.
fn sender_bucket(lane: &Lane<'_>) -> Key {
    let sender = if lane.channel == Channel::Email { "ses" } else { lane.sender };
    keys::rate_of_sender(lane.channel.as_str(), sender)
}

fn chat_bucket(lane: &Lane<'_>) -> Key {
    keys::rate_of_chat(lane.channel.as_str(), lane.sender, lane.to)
}
