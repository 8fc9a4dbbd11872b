//! One offer that a sender was handed.
//!
//! The order is that of any message, with the gate in the claim: the token first, then one transaction that begins the attempt
//! only if nobody has paid, and then the call. A payment that was answered before the claim has closed the gate; one that
//! comes after it finds the offer in flight.

use std::time::Duration;

use umavez_domain::channels::{Channel, Content};
use umavez_domain::delivery::{Next, Outcome, Progress, State, Verdict, code, next, settle};
use umavez_domain::downsells::{ChargesRow, ContactId, End, Gate, OfferId, OfferRow, Why};
use umavez_domain::queue::Priority;
use umavez_domain::time::Timestamp;
use umavez_platform::downsells::{Board, Claimed, Settled, tell};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::providers::Way;
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::rates::{self, RateRequest};
use crate::send::{AROUND_CALL, MARGIN_MS, OUTCOME_TRIES, Step, credential_of, sender_unknown};

/// Races with other writers are looked at again this often.
const ROUNDS: usize = 6;

/// An offer and the charges of its contact, as they were read.
struct Seen {
    offer: OfferRow,
    charges: Option<ChargesRow>,
}

enum Round {
    Over(Step),
    /// Something has changed since it was read: both are read again, because each is judged by the other.
    Again,
}

pub async fn run(deps: &Deps, invocation: &Invocation, contact: &ContactId, id: &OfferId) -> Result<Step, StoreError> {
    let downsells = &deps.boards.downsells;
    for _ in 0..ROUNDS {
        let (offer, charges) = downsells.offer_and_charges(invocation, contact, id).await?;
        let Some(offer) = offer else { return Ok(Step::Done("no_such_offer")) };
        let seen = Seen { offer, charges };
        match round(deps, invocation, &seen).await? {
            Round::Over(Step::Later { why, at }) => {
                // Not told, recovery would take it for lost; that costs a second copy in the queue, and nothing else.
                if downsells.still_waits(invocation, &seen.offer, at).await.is_err() {
                    tracing::warn!(event = "NOT_POSTPONED", request_id = invocation.request_id);
                }
                return Ok(Step::Later { why, at });
            }
            Round::Over(step) => return Ok(step),
            Round::Again => {}
        }
    }
    Err(StoreError::Conflict)
}

async fn round(deps: &Deps, invocation: &Invocation, seen: &Seen) -> Result<Round, StoreError> {
    let offer = &seen.offer;
    let attempt = match next(&offer.progress(), invocation.current()) {
        Next::Leave => return Ok(Round::Over(Step::Done("not_to_be_sent"))),
        Next::Wait { until } => return later("early", until),
        Next::Expire => return end(deps, invocation, seen, End::Expired).await,
        Next::Claim { attempt } => attempt,
    };
    if invocation.time_left() < deps.providers.config.timeout + AROUND_CALL {
        return later("out_of_time", invocation.current());
    }
    let board = deps.boards.of(invocation, &offer.bot).await?;
    // Looked at before the token, so that none is wasted; and again in the claim, where it counts.
    if let Some(round) = closed(deps, invocation, &board, seen).await? {
        return Ok(round);
    }
    let (Some(bot), Some(downsell)) = (&board.bot, board.downsells.get(&offer.downsell_id)) else {
        return end(deps, invocation, seen, End::Canceled(Why::Deleted)).await;
    };
    let sender = deps.senders.of_bot(bot);
    let credential = match credential_of(deps, invocation, &sender).await {
        Ok(credential) => credential,
        Err(wait) => return Ok(Round::Over(wait)),
    };
    let to = offer.telegram_id.to_string();
    let request = RateRequest {
        sender: &sender,
        to: &to,
        priority: Priority::Downsell,
        waited_ms: invocation.current().millis() - offer.scheduled_at.millis(),
    };
    if let Grant::Later(at) = rates::take(deps, invocation, &request).await? {
        return later("rate_limited", at);
    }
    // Waiting for the token took time: a charge may be over by now, or the offer itself.
    let now = invocation.current();
    if offer.not_after < now {
        return end(deps, invocation, seen, End::Expired).await;
    }
    if let Some(round) = closed(deps, invocation, &board, seen).await? {
        return Ok(round);
    }
    let timeout_ms = i64::try_from(deps.providers.config.timeout.as_millis()).unwrap_or(i64::MAX);
    let deadline = now.plus_ms(timeout_ms + MARGIN_MS);
    let charges = seen.charges.as_ref();
    let claimed =
        match deps.boards.downsells.claim(invocation, offer, charges, attempt, deadline, &sender.bucket).await? {
            Claimed::Yes(claimed) => claimed,
            Claimed::Suppressed => return end(deps, invocation, seen, End::Skipped(Why::Blocked)).await,
            Claimed::Changed => return Ok(Round::Again),
        };
    let content = Content::Telegram(downsell.content.clone());
    let way = Way { id: claimed.id.as_str(), sender: &sender.bucket, to: &to };
    let outcome = attempt_once(deps, invocation, &claimed, &way, &content, credential.as_deref(), deadline).await;
    if let Outcome::Throttled { retry_after_ms, scope } = outcome {
        rates::park(deps, invocation, &request, scope, retry_after_ms).await;
    }
    finish(deps, invocation, &claimed, outcome, &sender.bucket).await.map(|done| Round::Over(Step::Done(done)))
}

/// Ends an offer that may not leave, or passes it on to another charge. Nothing if the gate is open.
async fn closed(deps: &Deps, invocation: &Invocation, board: &Board, seen: &Seen) -> Result<Option<Round>, StoreError> {
    let (offer, charges) = (&seen.offer, seen.charges.as_ref());
    let downsell = board.downsells.get(&offer.downsell_id);
    match offer.gate(board.bot.as_ref(), downsell, charges, invocation.current()) {
        Gate::Open => Ok(None),
        Gate::Closed(why) => end(deps, invocation, seen, why).await.map(Some),
        Gate::PassedOn(after) => {
            // Passed on or changed by another: either way it is decided again on what is stored then.
            deps.boards.downsells.pass_on(invocation, offer, charges, &after).await?;
            Ok(Some(Round::Again))
        }
    }
}

fn later(why: &'static str, at: Timestamp) -> Result<Round, StoreError> {
    Ok(Round::Over(Step::Later { why, at }))
}

/// The one call of the attempt, unless the claim took so long that it could not end before its deadline.
async fn attempt_once(
    deps: &Deps,
    invocation: &Invocation,
    offer: &OfferRow,
    way: &Way<'_>,
    content: &Content,
    credential: Option<&str>,
    deadline: Timestamp,
) -> Outcome {
    let Some(credential) = credential else { return sender_unknown() };
    let left_ms = deadline.millis() - MARGIN_MS / 2 - invocation.current().millis();
    let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(invocation.time_left());
    if left < Duration::from_secs(1) || offer.not_after < invocation.current() {
        return Outcome::Transient { code: code::NOT_CALLED };
    }
    deps.providers.send(way, content, credential, offer.attempts, left).await
}

/// Writes the outcome: one that was not written is an attempt that nobody knows.
async fn finish(
    deps: &Deps,
    invocation: &Invocation,
    offer: &OfferRow,
    outcome: Outcome,
    sender: &str,
) -> Result<&'static str, StoreError> {
    if let Outcome::Transient { code } = outcome
        && code.ends_with("_unauthorized")
    {
        deps.senders.invalidate();
    }
    let progress = Progress { state: State::Sending, ..offer.progress() };
    let policy = deps.policies.get(&Channel::Telegram).copied().unwrap_or_default();
    let verdict = settle(&progress, outcome, policy, invocation.current(), fastrand::u32(0..=1000));
    let mut tries = 0;
    let settled = loop {
        match deps.boards.downsells.settle(invocation, offer, offer.attempts, &verdict, sender).await {
            Err(error) if error.is_passing() && tries < OUTCOME_TRIES && !invocation.time_left().is_zero() => {
                tries += 1
            }
            settled => break settled?,
        }
    };
    if let Settled::Now(row) = &settled {
        tell::changed(invocation, row);
    }
    Ok(match (settled, &verdict) {
        (Settled::TooLate, _) => "too_late",
        (_, Verdict::Sent { .. }) => "sent",
        (_, Verdict::Failed { .. }) => "failed",
        (_, Verdict::Again { .. }) => "again",
        (_, Verdict::Expired { .. }) => "expired",
        (_, Verdict::Unknown { .. }) => "unknown",
    })
}

/// Ends an offer that may not leave.
async fn end(deps: &Deps, invocation: &Invocation, seen: &Seen, end: End) -> Result<Round, StoreError> {
    let ended = deps.boards.downsells.end(invocation, &seen.offer, seen.charges.as_ref(), end).await?;
    Ok(match ended {
        Some(after) => {
            tell::changed(invocation, &after);
            Round::Over(Step::Done(after.status.as_str()))
        }
        None => Round::Again,
    })
}
