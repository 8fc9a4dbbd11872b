//! One message that a sender was handed.
//!
//! The order is the promise. The token first, because waiting for it may take longer than an attempt. Then the claim,
//! which is where cancel, suppression and a second sender are met. Then the call, once. A crash before the claim leaves
//! the message queued, and after it leaves it `SENDING`, which nobody repeats.

use std::time::Duration;

use umavez_domain::channels::Content;
use umavez_domain::codes::{Decision, Event};
use umavez_domain::delivery::{Again, Next, Outcome, Progress, State, Verdict, code, next, settle};
use umavez_domain::messages::MessageRow;
use umavez_domain::messages::ledger::Entry;
use umavez_domain::senders::Resolved;
use umavez_domain::time::Timestamp;
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::messages::{Claimed, Settled};
use umavez_platform::providers::Way;
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::rates::{self, RateRequest};

/// Between the end of a call and the moment when its attempt counts as lost.
pub const MARGIN_MS: i64 = 10_000;
/// What the writes around a call may take.
pub const AROUND_CALL: Duration = Duration::from_secs(6);
/// An outcome that was not written is an attempt that nobody knows: it is tried this often.
pub const OUTCOME_TRIES: usize = 4;
/// Races with other writers are looked at again this often.
const ROUNDS: usize = 4;

pub enum Step {
    Done(&'static str),
    /// It goes back to its queue until then.
    Later {
        why: &'static str,
        at: Timestamp,
    },
}

enum Round {
    Over(Step),
    /// The row has changed since it was read.
    Again(Option<Box<MessageRow>>),
}

pub async fn run(deps: &Deps, invocation: &Invocation, id: &str) -> Result<Step, StoreError> {
    let mut met = deps.messages.get(invocation, id).await?.map(Box::new);
    for _ in 0..ROUNDS {
        let Some(row) = met else { return Ok(Step::Done("no_such_message")) };
        match round(deps, invocation, &row).await? {
            Round::Over(Step::Later { why, at }) => {
                // Not told, recovery would take it for lost; that costs a second copy in the queue, and nothing else.
                let told = deps.messages.still_waits(invocation, &row, at.max(invocation.current())).await;
                if told.is_err() {
                    tracing::warn!(event = "NOT_POSTPONED", request_id = invocation.request_id);
                }
                return Ok(Step::Later { why, at });
            }
            Round::Over(step) => return Ok(step),
            Round::Again(row) => met = row,
        }
    }
    Err(StoreError::Conflict)
}

async fn round(deps: &Deps, invocation: &Invocation, row: &MessageRow) -> Result<Round, StoreError> {
    let attempt = match next(&row.progress(), invocation.current()) {
        Next::Leave => return Ok(Round::Over(Step::Done("not_to_be_sent"))),
        Next::Wait { until } => return later("early", until),
        Next::Expire => return expire(deps, invocation, row).await,
        Next::Claim { attempt } => attempt,
    };
    // What follows may take seconds: its last moment is looked at again before the claim and before the call.
    if invocation.time_left() < deps.providers.config.timeout + AROUND_CALL {
        return later("out_of_time", invocation.current());
    }
    let Some(content) = deps.messages.content(invocation, row).await? else {
        let entry = Entry::new(invocation.current(), Decision::Failed).reason(code::CONTENT_GONE);
        return end(deps, invocation, row, State::Failed, &entry).await;
    };
    let sender = deps.senders.resolve(invocation, row.channel, &row.sender).await?;
    let credential = match credential_of(deps, invocation, &sender).await {
        Ok(credential) => credential,
        Err(wait) => return Ok(Round::Over(wait)),
    };
    let slot = match rates::take(deps, invocation, &rate_request(invocation, row, &sender)).await? {
        Grant::At(slot) => slot,
        Grant::Later(at) => return later("rate_limited", at),
    };
    if row.is_late(invocation.current()) {
        return expire(deps, invocation, row).await;
    }
    let timeout_ms = i64::try_from(deps.providers.config.timeout.as_millis()).unwrap_or(i64::MAX);
    let deadline = invocation.current().plus_ms(timeout_ms + MARGIN_MS);
    match deps.messages.claim(invocation, row, attempt, deadline, &sender.bucket).await? {
        Claimed::Yes => {}
        Claimed::Lost(met) => return Ok(Round::Again(met)),
        Claimed::Suppressed(found) => {
            let entry = Entry::new(invocation.current(), Decision::Suppressed).reason(&found.reason);
            let entry = entry.rule("suppression").matched(format!("{}:{}", found.source, found.created_at));
            return end(deps, invocation, row, State::Suppressed, &entry).await;
        }
    }
    let outcome = attempt_once(deps, invocation, row, &content, credential.as_deref(), attempt, deadline).await;
    finish(deps, invocation, row, &sender, Made { attempt, slot }, outcome)
        .await
        .map(|done| Round::Over(Step::Done(done)))
}

/// An attempt that was made: its number, and the slot that it had.
#[derive(Clone, Copy)]
struct Made {
    attempt: u32,
    slot: Timestamp,
}

fn later(why: &'static str, at: Timestamp) -> Result<Round, StoreError> {
    Ok(Round::Over(Step::Later { why, at }))
}

/// The credential of a sender. A secret that cannot be read is nothing against the message, which
/// waits.
pub async fn credential_of(deps: &Deps, invocation: &Invocation, sender: &Resolved) -> Result<Option<String>, Step> {
    deps.senders.credential(invocation, sender).await.map_err(|error| {
        tracing::error!(event = "NO_CREDENTIALS", cause = %error, request_id = invocation.request_id);
        Step::Later { why: "no_credentials", at: invocation.current().plus_ms(30_000) }
    })
}

/// The outcome where the sender has no credential: it may be given one before the next try. An alarm watches the metric.
pub fn sender_unknown() -> Outcome {
    metrics::counter!("SenderUnknown").increment(1);
    Outcome::Transient { code: code::SENDER_UNKNOWN }
}

/// The one call of the attempt, unless the claim took so long that it could not end before its deadline.
async fn attempt_once(
    deps: &Deps,
    invocation: &Invocation,
    row: &MessageRow,
    content: &Content,
    credential: Option<&str>,
    attempt: u32,
    deadline: Timestamp,
) -> Outcome {
    let Some(credential) = credential else { return sender_unknown() };
    let left_ms = deadline.millis() - MARGIN_MS / 2 - invocation.current().millis();
    let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(invocation.time_left());
    if left < Duration::from_secs(1) || row.is_late(invocation.current()) {
        return Outcome::Transient { code: code::NOT_CALLED };
    }
    let way = Way { id: &row.id, sender: &row.sender, to: &row.to };
    deps.providers.send(&way, content, credential, attempt, left).await
}

fn rate_request<'a>(invocation: &Invocation, row: &'a MessageRow, sender: &'a Resolved) -> RateRequest<'a> {
    let waited_ms = invocation.current().millis() - row.due_since().millis();
    RateRequest { sender, to: &row.to, priority: row.priority, waited_ms }
}

/// Parks what was limited, and writes the outcome.
async fn finish(
    deps: &Deps,
    invocation: &Invocation,
    row: &MessageRow,
    sender: &Resolved,
    made: Made,
    outcome: Outcome,
) -> Result<&'static str, StoreError> {
    let attempt = made.attempt;
    let now = invocation.current();
    if let Outcome::Throttled { retry_after_ms, scope } = outcome {
        rates::park(deps, invocation, &rate_request(invocation, row, sender), scope, retry_after_ms).await;
    }
    if let Outcome::Held { why } = outcome {
        tracing::error!(event = Event::OutboundHeld.as_str(), code = why.as_str(), request_id = invocation.request_id);
        metrics::counter!("OutboundHeld").increment(1);
    }
    if let Outcome::Transient { code } = outcome
        && code.ends_with("_unauthorized")
    {
        deps.senders.invalidate();
    }
    let progress = Progress { state: State::Sending, attempt, ..row.progress() };
    let policy = deps.policies.get(&row.channel).copied().unwrap_or_default();
    let verdict = settle(&progress, outcome, policy, now, fastrand::u32(0..=1000));
    let settled = write_outcome(deps, invocation, row, &sender.bucket, attempt, &verdict).await?;
    tell(invocation, row, made, &verdict, settled);
    Ok(match (settled, &verdict) {
        (Settled::TooLate, _) => "too_late",
        (Settled::Recalled, _) => "recalled",
        (_, Verdict::Sent { .. }) => "sent",
        (_, Verdict::Failed { .. }) => "failed",
        (_, Verdict::Again { .. }) => "again",
        (_, Verdict::Expired { .. }) => "expired",
        (_, Verdict::Unknown { .. }) => "unknown",
    })
}

async fn write_outcome(
    deps: &Deps,
    invocation: &Invocation,
    row: &MessageRow,
    sender: &str,
    attempt: u32,
    verdict: &Verdict,
) -> Result<Settled, StoreError> {
    // The claim added its own line and took the emission out.
    let mut tries = 0;
    loop {
        match deps.messages.settle(invocation, row, attempt, verdict, sender).await {
            Err(error) if error.is_passing() && tries < OUTCOME_TRIES && !invocation.time_left().is_zero() => {
                tries += 1
            }
            settled => return settled,
        }
    }
}

async fn expire(deps: &Deps, invocation: &Invocation, row: &MessageRow) -> Result<Round, StoreError> {
    let entry = Entry::new(invocation.current(), Decision::Expired).rule("not_after");
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
    entry: &Entry,
) -> Result<Round, StoreError> {
    if let Some(met) = deps.messages.end_unsent(invocation, row, state, entry).await? {
        return Ok(Round::Again(Some(met)));
    }
    let (event, done) = match state {
        State::Suppressed => (Event::OutboundSuppressed, "suppressed"),
        State::Failed => (Event::OutboundFailed, "failed"),
        _ => (Event::OutboundExpired, "expired"),
    };
    log(invocation, row, event, None, entry.reason.as_deref().unwrap_or_default());
    Ok(Round::Over(Step::Done(done)))
}

fn tell(invocation: &Invocation, row: &MessageRow, made: Made, verdict: &Verdict, settled: Settled) {
    let (event, code) = match verdict {
        Verdict::Sent { .. } => (Event::OutboundSent, "sent"),
        Verdict::Failed { code, .. } => (Event::OutboundFailed, *code),
        Verdict::Again { code, .. } => (Event::OutboundRetry, *code),
        Verdict::Expired { code } => (Event::OutboundExpired, *code),
        Verdict::Unknown { code } => (Event::OutboundUnknown, *code),
    };
    match (settled, verdict) {
        (Settled::Now, _) => log(invocation, row, event, Some(made), code),
        (Settled::Recalled, Verdict::Again { why: Again::Policy, .. }) => {
            log(invocation, row, Event::OutboundUnknown, Some(made), code);
        }
        (Settled::Recalled, _) => log(invocation, row, Event::OutboundCanceled, Some(made), code),
        (Settled::Already | Settled::TooLate, _) => {}
    }
    if matches!(verdict, Verdict::Sent { .. }) {
        let waited_ms = invocation.current().millis() - row.due_since().millis();
        metrics::histogram!("OutboundWait", "Priority" => word(row))
            .record(Duration::from_millis(u64::try_from(waited_ms).unwrap_or(0)));
    }
}

fn log(invocation: &Invocation, row: &MessageRow, event: Event, made: Option<Made>, code: &str) {
    tracing::info!(
        event = event.as_str(),
        message_id = row.id,
        channel = row.channel.as_str(),
        priority = word(row),
        attempt = made.map(|made| made.attempt),
        slot_ms = made.map(|made| made.slot.millis()),
        code,
        request_id = invocation.request_id,
    );
    metrics::counter!("Outbound", "Event" => event.as_str(), "Channel" => row.channel.as_str()).increment(1);
}

fn word(row: &MessageRow) -> &'static str {
    use umavez_domain::queue::Priority::{Downsell, Shot, Start};
    match row.priority {
        Start => "start",
        Shot => "shot",
        Downsell => "downsell",
    }
}
