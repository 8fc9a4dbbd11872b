//! The one call of an attempt, and the write of its outcome.

use std::time::Duration;

use umavez_domain::channels::Content;
use umavez_domain::delivery::{Outcome, Window, code};
use umavez_domain::telemetry::Metric;
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::providers::{Envelope, Providers};
use crate::senders::Senders;
use crate::store::{StoreError, persist};

/// The time between the end of a call and the moment when its attempt counts as lost.
const MARGIN_MS: i64 = 10_000;
/// No call is started with less time left than this.
const SHORTEST_CALL: Duration = Duration::from_secs(1);

/// Returns when an attempt that starts now counts as lost: after the timeout of the call and a
/// margin.
pub fn deadline(invocation: &Invocation, providers: &Providers) -> Timestamp {
    let timeout_ms = i64::try_from(providers.config.timeout.as_millis()).unwrap_or(i64::MAX);
    invocation.current().plus_ms(timeout_ms.saturating_add(MARGIN_MS))
}

/// An attempt that was claimed.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub number: u32,
    pub envelope: Envelope<'a>,
    /// The content to send, or the outcome if nothing can be sent.
    pub parcel: Result<Parcel<'a>, Outcome>,
    pub deadline: Timestamp,
    pub window: Window,
}

/// The content to send and the credential of its sender.
#[derive(Debug)]
pub struct Parcel<'a> {
    pub content: &'a Content,
    /// Empty for mail, which needs no credential.
    pub credential: &'a str,
}

/// Returns the outcome for a sender without a credential. An alarm watches the metric.
pub fn sender_unknown() -> Outcome {
    metrics::counter!(Metric::CredentialsMissing.as_str()).increment(1);
    Outcome::Unauthorized { code: code::SENDER_UNKNOWN }
}

/// Makes the one call of an attempt and writes its outcome. `settle` judges the outcome and writes
/// it. It is retried while the store does not answer, because an attempt without a written outcome
/// would end as unknown.
pub async fn deliver_once<T>(
    providers: &Providers,
    senders: Option<&Senders>,
    invocation: &Invocation,
    attempt: Attempt<'_>,
    settle: impl AsyncFn(Outcome) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let outcome = call(providers, invocation, attempt).await;
    if let (Outcome::Unauthorized { .. }, Some(senders)) = (&outcome, senders) {
        senders.invalidate();
    }
    persist(invocation, || settle(outcome.clone())).await
}

/// Makes the call, unless the claim took so long that the call could not end before the attempt
/// counts as lost, or the window is over.
async fn call(providers: &Providers, invocation: &Invocation, attempt: Attempt<'_>) -> Outcome {
    let Attempt { number, envelope, parcel, deadline, window } = attempt;
    let Parcel { content, credential } = match parcel {
        Ok(parcel) => parcel,
        Err(outcome) => return outcome,
    };
    let left_ms = deadline.millis() - MARGIN_MS / 2 - invocation.current().millis();
    let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(invocation.time_left());
    if left < SHORTEST_CALL || window.is_over(invocation.current()) {
        return Outcome::Transient { code: code::NOT_CALLED };
    }
    providers.send(&envelope, content, credential, number, left).await
}
