//! The one call of an attempt, and the write of its outcome.

use std::future::Future;
use std::time::Duration;

use umavez_domain::channels::Content;
use umavez_domain::delivery::{Outcome, Window, code};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::providers::{Envelope, Providers};
use crate::senders::Senders;
use crate::store::{StoreError, persist};

/// Between the end of a call and the moment when its attempt counts as lost.
const MARGIN_MS: i64 = 10_000;
/// No call is begun with less time than this.
const SHORTEST_CALL: Duration = Duration::from_secs(1);

/// When an attempt that is begun now counts as lost: after the call's own timeout and a margin.
pub fn deadline(invocation: &Invocation, providers: &Providers) -> Timestamp {
    let timeout_ms = i64::try_from(providers.config.timeout.as_millis()).unwrap_or(i64::MAX);
    invocation.current().plus_ms(timeout_ms.saturating_add(MARGIN_MS))
}

/// An attempt that was begun.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub number: u32,
    pub envelope: Envelope<'a>,
    /// What is sent, or why nothing can be.
    pub parcel: Result<Parcel<'a>, Outcome>,
    pub deadline: Timestamp,
    pub window: Window,
}

/// What is sent, and what its sender signs in with.
#[derive(Debug)]
pub struct Parcel<'a> {
    pub content: &'a Content,
    /// Empty for mail, which needs none.
    pub credential: &'a str,
}

/// The outcome where the sender has no credential: it may be given one before the next try. An
/// alarm watches the metric.
pub fn sender_unknown() -> Outcome {
    metrics::counter!("SenderUnknown").increment(1);
    Outcome::Transient { code: code::SENDER_UNKNOWN }
}

/// Makes the one call of an attempt and has its outcome written. `settle` judges and writes it; it
/// is asked again while the store does not answer, because an outcome that is not written leaves an
/// attempt that nobody knows.
pub async fn deliver_once<T, S, Fut>(
    providers: &Providers,
    senders: Option<&Senders>,
    invocation: &Invocation,
    attempt: Attempt<'_>,
    settle: S,
) -> Result<T, StoreError>
where
    S: Fn(Outcome) -> Fut,
    Fut: Future<Output = Result<T, StoreError>>,
{
    let outcome = call(providers, invocation, attempt).await;
    if let (Outcome::Transient { code }, Some(senders)) = (&outcome, senders)
        && code.ends_with("_unauthorized")
    {
        senders.invalidate();
    }
    persist(invocation, || settle(outcome.clone())).await
}

/// The call, unless the claim took so long that it could not end before the attempt counts as lost.
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
