//! `POST /intents`: one conditional write decides. If it is refused, the conflicting row determines
//! the answer.

use umavez_domain::codes::{Event, Reason};
use umavez_domain::intents::{Check, CheckAnswer, Decision, Hold, Holder, judge};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::intents::Held;
use umavez_platform::invocation::Invocation;

use crate::Deps;
use crate::outbound::accept::too_many_scheduled;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let holder = holder(request, invocation)?;
    let check = Check::read(&body, &deps.types, invocation.now).map_err(Problem::invalid)?;
    let hold = Hold::of(&check, &holder, &request.body_hash(), invocation.now);
    let decision = match deps.messages.intents.hold(invocation, &hold).await? {
        Held::Now => {
            tell_held(invocation, &check);
            return Answer::json(200, &CheckAnswer::allowed(&hold.row));
        }
        Held::Refused(standing) => judge(&check, &hold, &standing),
        Held::Full => return Err(too_many_scheduled()),
    };
    match decision {
        Decision::Replayed(answer) => Ok(Answer::json(200, &answer)?.replayed()),
        Decision::Blocked(answer) => {
            tell_deduped(invocation, &check);
            Answer::json(200, &answer)
        }
        Decision::KeyReused => Err(Problem::key_reused("a check with another body, which holds the intent")),
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

fn tell_held(invocation: &Invocation, check: &Check) {
    let intent_type = &check.intent_type.intent_type;
    tracing::info!(
        event = Event::IntentHeld.as_str(),
        intent_type,
        fingerprint = check.fingerprint,
        client_id = %check.client,
        request_id = invocation.request_id,
    );
    metrics::counter!("IntentsHeld", "IntentType" => intent_type.clone()).increment(1);
}

/// Logs a duplicate intent. The answer and the row name the blocking holder. The log does not,
/// because callers choose the text of their keys.
fn tell_deduped(invocation: &Invocation, check: &Check) {
    let intent_type = &check.intent_type.intent_type;
    tracing::info!(
        event = Event::OutboundDeduped.as_str(),
        reason_code = Reason::IntentDuplicate.as_str(),
        intent_type,
        fingerprint = check.fingerprint,
        client_id = %check.client,
        request_id = invocation.request_id,
    );
    metrics::counter!("IntentsDeduped", "IntentType" => intent_type.clone()).increment(1);
}
