//! Sends one message from the queue. It takes the rate slot first, because the wait for it may take
//! longer than an attempt. Then come the claim, the call and its outcome
//! (`umavez_platform::delivery`).

use std::time::Duration;

use umavez_domain::codes::{Decision, Reason};
use umavez_domain::delivery::{NextStep, Outcome, Settled, State, Verdict, code};
use umavez_domain::messages::ledger::LedgerEntry;
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_domain::senders::Resolved;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::time::Timestamp;
use umavez_platform::batch::Worked;
use umavez_platform::delivery::{Attempt, Claimed, Parcel, deliver_once, sender_unknown};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::providers::Envelope;
use umavez_platform::store::{Committed, StoreError};

use crate::Deps;
use crate::deliver::{self, Round, done, later};
use crate::rates::{self, RateRequest};

pub async fn send(deps: &Deps, invocation: &Invocation, id: &MessageId) -> Result<Worked, StoreError> {
    deps.messages.store.retry(invocation, || attempt_message(deps, invocation, id)).await
}

async fn attempt_message(deps: &Deps, invocation: &Invocation, id: &MessageId) -> Result<Round, StoreError> {
    let Some(row) = deps.messages.get(invocation, id).await? else { return Ok(done("no_such_message")) };
    let round = round(deps, invocation, &row).await?;
    if let Round::Break(Worked::Later { until, .. }) = round
        && let Err(error) = deps.messages.postpone(invocation, &row, until.max(invocation.current())).await
    {
        deliver::log_not_postponed(invocation, &error);
    }
    Ok(round)
}

async fn round(deps: &Deps, invocation: &Invocation, row: &MessageRow) -> Result<Round, StoreError> {
    let attempt = match row.delivery.next(row.window(), invocation.current()) {
        NextStep::Leave => return Ok(done("not_to_be_sent")),
        NextStep::Wait { until } => return Ok(later("early", until)),
        NextStep::Expire => return expire(deps, invocation, row).await,
        NextStep::Claim { attempt } => attempt,
    };
    // The next steps may take seconds. The window of the message is therefore checked again before
    // the claim and before the call.
    if deliver::is_out_of_time(deps, invocation) {
        return Ok(later("out_of_time", invocation.current()));
    }
    let Some(content) = deps.messages.content(invocation, row).await? else {
        let entry = LedgerEntry::new(invocation.current(), Decision::Failed).reason(code::CONTENT_GONE);
        return end(deps, invocation, row, State::Failed, &entry).await;
    };
    let sender = deps.senders.resolve(invocation, row.channel, &row.sender).await?;
    let credential = match deliver::credential(deps, invocation, &sender).await {
        Ok(credential) => credential,
        Err(wait) => return Ok(wait),
    };
    let request = rate_request(invocation, row, &sender);
    let held = match rates::take(deps, invocation, &request).await? {
        Grant::At(held) => held,
        Grant::Later(at) => return Ok(later("rate_limited", at)),
    };
    // The wait for the slot took time.
    if deliver::is_out_of_time(deps, invocation) {
        return Ok(later("out_of_time", invocation.current()));
    }
    if row.window().is_over(invocation.current()) {
        return expire(deps, invocation, row).await;
    }
    let claim = deliver::claim(deps, invocation, attempt);
    let claimed = match deps.messages.claim(invocation, row, &claim, &sender.bucket).await? {
        Claimed::Yes(claimed) => claimed,
        Claimed::Lost(_) | Claimed::GateChanged => return Ok(Round::Continue(())),
        Claimed::Deferred(row) => {
            log(invocation, &row, Event::OutboundDeferred, None, Reason::IntentDuplicate.as_str());
            return Ok(done("deferred"));
        }
        Claimed::Suppressed(found) => {
            let entry = LedgerEntry::new(invocation.current(), Decision::Suppressed).reason(&found.reason);
            let entry = entry.rule("suppression").matched(format!("{}:{}", found.source, found.created_at));
            return end(deps, invocation, row, State::Suppressed, &entry).await;
        }
    };
    let made = Made { attempt, slot: deps.limiter.own_time(held.slot) };
    let parcel = match &credential {
        Some(credential) => {
            let checked = rates::before_call(deps, invocation, &request, held).await;
            checked.map(|()| Parcel { content: &content, credential })
        }
        None => Err(sender_unknown()),
    };
    let envelope = Envelope { id: row.id.as_str(), sender: &row.sender, to: &row.to };
    let call = Attempt { number: attempt, envelope, parcel, deadline: claim.deadline, window: row.window() };
    let settle = |outcome| settle(deps, invocation, &claimed, &sender, made, outcome);
    deliver_once(&deps.providers, Some(&deps.senders), invocation, call, settle).await.map(done)
}

/// An attempt that was made: its number and its rate slot.
#[derive(Clone, Copy)]
struct Made {
    attempt: u32,
    slot: Timestamp,
}

fn rate_request<'a>(invocation: &Invocation, row: &'a MessageRow, sender: &'a Resolved) -> RateRequest<'a> {
    let waited_ms = invocation.current().millis() - row.due_since().millis();
    RateRequest { sender, to: &row.to, priority: row.priority, waited_ms }
}

/// Writes the outcome of an attempt. If the provider throttled the call, it first parks the bucket
/// of that limit.
async fn settle(
    deps: &Deps,
    invocation: &Invocation,
    row: &MessageRow,
    sender: &Resolved,
    made: Made,
    outcome: Outcome,
) -> Result<&'static str, StoreError> {
    if let Outcome::Throttled { retry_after_ms, scope } = outcome {
        rates::park(deps, invocation, &rate_request(invocation, row, sender), scope, retry_after_ms).await;
    }
    if let Outcome::Held { why } = outcome {
        let (event, message_id, code) = (Event::OutboundHeld.as_str(), row.id.as_str(), why.as_str());
        tracing::error!(event, message_id, code, request_id = invocation.request_id);
        metrics::counter!(Metric::OutboundHeld.as_str()).increment(1);
    }
    let policy = deps.policies.get(&row.channel).copied().unwrap_or_default();
    let (now, jitter) = (invocation.current(), fastrand::u32(0..=1000));
    let verdict = row.delivery.verdict(row.window(), outcome, policy, now, jitter);
    Ok(match deps.messages.settle(invocation, row, made.attempt, &verdict, &sender.bucket).await? {
        Settled::Now(row) => log_settled(invocation, &row, made, &verdict),
        Settled::Already => verdict.word(),
        Settled::TooLate => "too_late",
    })
}

async fn expire(deps: &Deps, invocation: &Invocation, row: &MessageRow) -> Result<Round, StoreError> {
    let entry = LedgerEntry::new(invocation.current(), Decision::Expired).rule("not_after");
    let entry = match row.not_after {
        Some(not_after) => entry.matched(not_after.to_string()),
        None => entry,
    };
    end(deps, invocation, row, State::Expired, &entry).await
}

async fn end(
    deps: &Deps,
    invocation: &Invocation,
    row: &MessageRow,
    state: State,
    entry: &LedgerEntry,
) -> Result<Round, StoreError> {
    let Committed::Done(..) = deps.messages.end_unsent(invocation, row, state, entry).await? else {
        return Ok(Round::Continue(()));
    };
    let (event, outcome) = match state {
        State::Suppressed => (Event::OutboundSuppressed, "suppressed"),
        State::Failed => (Event::OutboundFailed, "failed"),
        _ => (Event::OutboundExpired, "expired"),
    };
    log(invocation, row, event, None, entry.reason.as_deref().unwrap_or_default());
    Ok(done(outcome))
}

/// Logs how an attempt was settled, and returns the outcome's name.
fn log_settled(invocation: &Invocation, row: &MessageRow, made: Made, verdict: &Verdict) -> &'static str {
    let (event, word) = match (row.delivery.state, verdict) {
        (State::Canceled, _) => (Event::OutboundCanceled, "recalled"),
        (State::Unknown, Verdict::Again { .. }) => (Event::OutboundUnknown, "recalled"),
        (State::Unknown, _) => (Event::OutboundUnknown, verdict.word()),
        (_, Verdict::Sent { .. }) => (Event::OutboundSent, verdict.word()),
        (_, Verdict::Failed { .. }) => (Event::OutboundFailed, verdict.word()),
        (_, Verdict::Again { .. }) => (Event::OutboundRetryScheduled, verdict.word()),
        (_, Verdict::Expired { .. }) => (Event::OutboundExpired, verdict.word()),
        (_, Verdict::Unknown { .. }) => (Event::OutboundUnknown, verdict.word()),
    };
    log(invocation, row, event, Some(made), verdict.code());
    if row.delivery.state == State::Sent {
        let waited_ms = invocation.current().millis() - row.due_since().millis();
        metrics::histogram!(Metric::OutboundWaitSeconds.as_str(), "Priority" => row.priority.as_str())
            .record(Duration::from_millis(u64::try_from(waited_ms).unwrap_or(0)));
    }
    word
}

fn log(invocation: &Invocation, row: &MessageRow, event: Event, made: Option<Made>, code: &str) {
    tracing::info!(
        event = event.as_str(),
        message_id = row.id.as_str(),
        channel = row.channel.as_str(),
        priority = row.priority.as_str(),
        attempt = made.map(|made| made.attempt),
        slot_ms = made.map(|made| made.slot.millis()),
        code,
        request_id = invocation.request_id,
    );
    metrics::counter!(Metric::OutboundEvents.as_str(), "Event" => event.as_str(), "Channel" => row.channel.as_str())
        .increment(1);
}
