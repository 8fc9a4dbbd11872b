//! What messages and offers have in common on their way to a provider.

use std::ops::ControlFlow;
use std::time::Duration;

use umavez_domain::delivery::Claim;
use umavez_domain::senders::Resolved;
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::delivery::deadline;
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// What the writes around a call may take.
const AROUND_CALL: Duration = Duration::from_secs(6);

/// One try: `Continue` means that a row has changed since it was read, and that it is decided
/// again.
pub type Round = ControlFlow<Worked>;

pub fn later(why: &'static str, at: Timestamp) -> Round {
    Round::Break(Worked::Later { why, until: at })
}

pub fn done(outcome: &'static str) -> Round {
    Round::Break(Worked::Done(outcome))
}

/// Whether there is no time left to see an attempt through.
pub fn is_out_of_time(deps: &Deps, invocation: &Invocation) -> bool {
    invocation.time_left() < deps.providers.config.timeout + AROUND_CALL
}

/// The claim of an attempt that is begun now.
pub fn claim(deps: &Deps, invocation: &Invocation, attempt: u32) -> Claim {
    Claim { attempt, token: invocation.write_token(), deadline: deadline(invocation, &deps.providers) }
}

/// The credential of a sender, `None` if it has none. A secret that cannot be read is nothing
/// against the message: it waits.
pub async fn credential(deps: &Deps, invocation: &Invocation, sender: &Resolved) -> Result<Option<String>, Round> {
    deps.senders.credential(invocation, sender).await.map_err(|error| {
        tracing::error!(event = "NO_CREDENTIALS", cause = %error, request_id = invocation.request_id);
        later("no_credentials", invocation.current().plus_ms(30_000))
    })
}

/// Recovery would take a row for lost that waits in its queue. Not postponed, that costs a second
/// copy in the queue, and nothing else.
pub fn log_not_postponed(invocation: &Invocation, error: &umavez_platform::store::StoreError) {
    tracing::warn!(event = "NOT_POSTPONED", cause = %error, request_id = invocation.request_id);
}
