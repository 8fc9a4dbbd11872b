//! The steps that messages and offers share on their way to a provider.

use std::ops::ControlFlow;
use std::time::Duration;

use umavez_domain::delivery::Claim;
use umavez_domain::senders::Resolved;
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::delivery::deadline;
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// The time allowed for the writes before and after a call.
const AROUND_CALL: Duration = Duration::from_secs(6);

/// The result of one round. `Continue` means that a row changed since it was read: decide again on
/// the current row.
pub type Round = ControlFlow<Worked>;

pub fn later(why: &'static str, at: Timestamp) -> Round {
    Round::Break(Worked::Later { why, until: at })
}

pub fn done(outcome: &'static str) -> Round {
    Round::Break(Worked::Done(outcome))
}

/// Returns whether the invocation has too little time left to complete an attempt.
pub fn is_out_of_time(deps: &Deps, invocation: &Invocation) -> bool {
    invocation.time_left() < deps.providers.config.timeout + AROUND_CALL
}

/// Returns the claim of an attempt that begins now.
pub fn claim(deps: &Deps, invocation: &Invocation, attempt: u32) -> Claim {
    Claim { attempt, token: invocation.write_token(), deadline: deadline(invocation, &deps.providers) }
}

/// Returns the credential of a sender, or `None` if it has none. If the secret cannot be read, the
/// message is not at fault: it waits, and the error is the round to return.
pub async fn credential(deps: &Deps, invocation: &Invocation, sender: &Resolved) -> Result<Option<String>, Round> {
    deps.senders.credential(invocation, sender).await.map_err(|error| {
        tracing::error!(event = Event::CredentialsNotRead.as_str(), cause = %error, request_id = invocation.request_id);
        later("no_credentials", invocation.current().plus_ms(30_000))
    })
}

/// Logs that a row could not be postponed. Recovery then treats the row as lost while it waits in
/// its queue. The only cost is a duplicate in the queue.
pub fn log_not_postponed(invocation: &Invocation, error: &umavez_platform::store::StoreError) {
    tracing::warn!(event = Event::OutboundNotPostponed.as_str(), cause = %error, request_id = invocation.request_id);
}
