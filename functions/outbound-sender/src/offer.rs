//! Sends one offer from the queue. The order is the same as for a message, and the claim checks the
//! gate: first the rate slot, then one transaction that begins the attempt only if the contact has
//! not paid, then the call. A payment that was answered before the claim has closed the gate. A
//! payment that arrives after the claim finds the offer in flight.

use umavez_domain::channels::{Channel, Content};
use umavez_domain::delivery::{NextStep, Outcome, Settled};
use umavez_domain::downsells::{CancelReason, ChargesRow, ClosedGate, ContactId, OfferEnd, OfferId, OfferRow};
use umavez_domain::queue::Priority;
use umavez_platform::batch::Worked;
use umavez_platform::delivery::{Attempt, Claimed, Parcel, deliver_once, sender_unknown};
use umavez_platform::downsells::{BotDownsells, log};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Grant;
use umavez_platform::providers::Envelope;
use umavez_platform::store::StoreError;

use crate::Deps;
use crate::deliver::{self, Round, done, later};
use crate::rates::{self, RateRequest};

/// An offer and the charges of its contact, as they were read. They are read together, because each
/// is judged by the other.
struct Seen {
    offer: OfferRow,
    charges: Option<ChargesRow>,
}

pub async fn send(
    deps: &Deps,
    invocation: &Invocation,
    contact: &ContactId,
    id: &OfferId,
) -> Result<Worked, StoreError> {
    deps.messages.store.retry(invocation, || attempt_offer(deps, invocation, contact, id)).await
}

async fn attempt_offer(
    deps: &Deps,
    invocation: &Invocation,
    contact: &ContactId,
    id: &OfferId,
) -> Result<Round, StoreError> {
    let downsells = &deps.bot_downsells.downsells;
    let (offer, charges) = downsells.offer_and_charges(invocation, contact, id).await?;
    let Some(offer) = offer else { return Ok(done("no_such_offer")) };
    let seen = Seen { offer, charges };
    let round = round(deps, invocation, &seen).await?;
    if let Round::Break(Worked::Later { until, .. }) = round
        && let Err(error) = downsells.postpone(invocation, &seen.offer, until).await
    {
        deliver::log_not_postponed(invocation, &error);
    }
    Ok(round)
}

async fn round(deps: &Deps, invocation: &Invocation, seen: &Seen) -> Result<Round, StoreError> {
    let (offer, charges) = (&seen.offer, seen.charges.as_ref());
    let attempt = match offer.delivery.next(offer.window(), invocation.current()) {
        NextStep::Leave => return Ok(done("not_to_be_sent")),
        NextStep::Wait { until } => return Ok(later("early", until)),
        NextStep::Expire => return end(deps, invocation, seen, OfferEnd::Expired).await,
        NextStep::Claim { attempt } => attempt,
    };
    if deliver::is_out_of_time(deps, invocation) {
        return Ok(later("out_of_time", invocation.current()));
    }
    let current = deps.bot_downsells.of(invocation, &offer.bot).await?;
    // Check the gate before the rate slot, so that no slot is wasted. The check in the claim is the
    // one that counts.
    if let Some(round) = closed(deps, invocation, &current, seen).await? {
        return Ok(round);
    }
    let (Some(bot), Some(downsell)) = (&current.bot, current.downsells.get(&offer.downsell_id)) else {
        return end(deps, invocation, seen, OfferEnd::Canceled(CancelReason::Deleted)).await;
    };
    let sender = deps.senders.of_bot(bot);
    let credential = match deliver::credential(deps, invocation, &sender).await {
        Ok(credential) => credential,
        Err(wait) => return Ok(wait),
    };
    let to = offer.telegram_id.to_string();
    let request = RateRequest {
        sender: &sender,
        to: &to,
        priority: Priority::Downsell,
        waited_ms: invocation.current().millis() - offer.scheduled_at.millis(),
    };
    let held = match rates::take(deps, invocation, &request).await? {
        Grant::At(held) => held,
        Grant::Later(at) => return Ok(later("rate_limited", at)),
    };
    if deliver::is_out_of_time(deps, invocation) {
        return Ok(later("out_of_time", invocation.current()));
    }
    // The wait for the slot took time: a charge or the offer itself may have expired.
    if offer.window().is_over(invocation.current()) {
        return end(deps, invocation, seen, OfferEnd::Expired).await;
    }
    if let Some(round) = closed(deps, invocation, &current, seen).await? {
        return Ok(round);
    }
    let claim = deliver::claim(deps, invocation, attempt);
    let claimed = match deps.bot_downsells.downsells.claim(invocation, offer, charges, &claim, &sender.bucket).await? {
        Claimed::Yes(claimed) => claimed,
        Claimed::Suppressed(_) => return end(deps, invocation, seen, OfferEnd::Skipped(CancelReason::Blocked)).await,
        Claimed::Lost(_) | Claimed::GateChanged | Claimed::Deferred(_) => return Ok(Round::Continue(())),
    };
    let content = Content::Telegram(downsell.content.clone());
    let parcel = match &credential {
        Some(credential) => {
            let checked = rates::before_call(deps, invocation, &request, held).await;
            checked.map(|()| Parcel { content: &content, credential })
        }
        None => Err(sender_unknown()),
    };
    let envelope = Envelope { id: claimed.id.as_str(), sender: &sender.bucket, to: &to };
    let call = Attempt { number: attempt, envelope, parcel, deadline: claim.deadline, window: claimed.window() };
    let settle = |outcome| settle(deps, invocation, &claimed, &request, outcome);
    deliver_once(&deps.providers, Some(&deps.senders), invocation, call, settle).await.map(done)
}

/// Ends an offer that must not be sent, or passes it on to another charge. Returns `None` if the
/// gate is open.
async fn closed(
    deps: &Deps,
    invocation: &Invocation,
    current: &BotDownsells,
    seen: &Seen,
) -> Result<Option<Round>, StoreError> {
    let (offer, charges) = (&seen.offer, seen.charges.as_ref());
    let downsell = current.downsells.get(&offer.downsell_id);
    match offer.gate(current.bot.as_ref(), downsell, charges, invocation.current()) {
        None => Ok(None),
        Some(ClosedGate::Ends(why)) => end(deps, invocation, seen, why).await.map(Some),
        Some(ClosedGate::PassedOn(after)) => {
            // Whether this write or another one changed the offer, decide again on the stored row.
            deps.bot_downsells.downsells.pass_on(invocation, offer, charges, &after).await?;
            Ok(Some(Round::Continue(())))
        }
    }
}

/// Writes the outcome of an attempt. If the provider throttled the call, it first parks the bucket
/// of that limit.
async fn settle(
    deps: &Deps,
    invocation: &Invocation,
    offer: &OfferRow,
    request: &RateRequest<'_>,
    outcome: Outcome,
) -> Result<&'static str, StoreError> {
    if let Outcome::Throttled { retry_after_ms, scope } = outcome {
        rates::park(deps, invocation, request, scope, retry_after_ms).await;
    }
    let policy = deps.policies.get(&Channel::Telegram).copied().unwrap_or_default();
    let (now, jitter) = (invocation.current(), fastrand::u32(0..=1000));
    let verdict = offer.delivery.verdict(offer.window(), outcome, policy, now, jitter);
    let attempt = offer.delivery.attempt;
    Ok(
        match deps.bot_downsells.downsells.settle(invocation, offer, attempt, &verdict, &request.sender.bucket).await? {
            Settled::Now(offer) => {
                log::changed(invocation, &offer);
                verdict.word()
            }
            Settled::Already => verdict.word(),
            Settled::TooLate => "too_late",
        },
    )
}

/// Ends an offer that must not be sent. Returns `Continue` if the offer, or charges that the end
/// depends on, changed since they were read.
async fn end(deps: &Deps, invocation: &Invocation, seen: &Seen, end: OfferEnd) -> Result<Round, StoreError> {
    let ended = deps.bot_downsells.downsells.end(invocation, &seen.offer, seen.charges.as_ref(), end).await?;
    Ok(match ended {
        Some(after) => {
            log::changed(invocation, &after);
            done(after.status.as_str())
        }
        None => Round::Continue(()),
    })
}
