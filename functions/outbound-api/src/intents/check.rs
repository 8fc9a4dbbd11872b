//! `POST /intents`: one conditional write decides. If it is refused, the conflicting hold
//! determines the answer.

use umavez_domain::codes::Reason;
use umavez_domain::intents::{Check, CheckAnswer, CheckDecision, HoldRequest, Holder, answer_conflict};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::intents::HoldOutcome;
use umavez_platform::invocation::Invocation;

use super::log_intent;
use crate::Deps;
use crate::outbound::accept::too_many_scheduled;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let holder = holder(request, invocation)?;
    let check = Check::read(&body, &deps.types, invocation.now).map_err(Problem::invalid)?;
    let hold = HoldRequest::of(check, &holder, &request.body_hash(), invocation.now);
    let decision = match deps.intents.hold(invocation, &hold).await? {
        HoldOutcome::Done => {
            log_intent(invocation, &hold.row, Event::IntentHeld, None);
            metrics::counter!(Metric::IntentsHeld.as_str(), "IntentType" => hold.row.intent_type.clone()).increment(1);
            return Answer::json(200, &CheckAnswer::allowed(&hold.check, &hold.row.hold()));
        }
        HoldOutcome::Conflicting(conflict) => answer_conflict(&hold, &conflict),
        HoldOutcome::Full => return Err(too_many_scheduled()),
        // A check has no other writes.
        HoldOutcome::Refused(_) => return Err(Problem::internal()),
    };
    match decision {
        CheckDecision::Replayed(answer) => Ok(Answer::json(200, &answer)?.replayed()),
        CheckDecision::Blocked(answer) => {
            log_intent(invocation, &hold.row, Event::OutboundDeduped, Some(Reason::IntentDuplicate));
            metrics::counter!(Metric::IntentsDeduped.as_str(), "IntentType" => hold.row.intent_type.clone())
                .increment(1);
            Answer::json(200, &answer)
        }
        CheckDecision::KeyReused => Err(Problem::key_reused("a check with another body, which holds the intent")),
    }
}

/// Returns the holder of the intent. Callers see the holder with the text of its idempotency key,
/// so it is not the hash of [`Request::identity`].
fn holder(request: &Request, invocation: &Invocation) -> Result<Holder, Problem> {
    Ok(match request.idempotency_key()? {
        Some(key) => Holder::IdempotencyKey { caller: request.caller()?.key_id.clone(), key },
        None => Holder::Request(invocation.request_id.clone()),
    })
}
