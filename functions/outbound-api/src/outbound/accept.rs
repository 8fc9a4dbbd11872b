//! `POST /outbound/messages`: one transaction accepts the message together with its intent, or
//! determines why not.

use umavez_domain::codes::{FieldProblem, ProblemCode, Reason};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::Replay;
use umavez_domain::intents::MOST_SCHEDULED;
use umavez_domain::messages::{AcceptAnswer, MessageId, MessageRow};
use umavez_domain::messages::{InvalidMessage, NewMessage, RequestIdentity};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Accepted;

use crate::Deps;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    // The idempotency key or the `id` identifies the message; both mean the same. This is the
    // identity of the message and not of the request.
    let (key, body_hash) = (request.idempotency_key()?, request.body_hash());
    let asked = RequestIdentity { caller: &request.caller()?.key_id, key: key.as_ref(), body_hash: &body_hash };
    let new = match NewMessage::read(&body, asked, &deps.types, invocation.now) {
        Ok(new) => new,
        Err(InvalidMessage::Fields(errors)) => return Err(Problem::invalid(errors)),
        Err(InvalidMessage::NoIdentity) => {
            let detail = "send an Idempotency-Key, or an id in the body: it identifies the message";
            return Err(Problem::new(400, ProblemCode::MissingIdentity, detail));
        }
        Err(InvalidMessage::Times { id, errors }) => {
            return replay_or_refuse(deps, invocation, &id, &body_hash, errors).await;
        }
    };
    if deps.senders.is_missing(invocation, new.content.channel(), &new.sender).await {
        let detail = "there is no credential for this sender; add it to the secret of senders";
        let errors = vec![FieldError::new("sender", FieldProblem::NotAllowed, detail)];
        return replay_or_refuse(deps, invocation, &new.id, &body_hash, errors).await;
    }
    match deps.messages.accept(invocation, &new).await? {
        Accepted::New(row) => {
            log_accepted(invocation, &row);
            answer(&row)
        }
        Accepted::Existing(row) => replay(&row, &body_hash),
        Accepted::KeyReused => Err(key_reused()),
        Accepted::TooManyScheduled => Err(too_many_scheduled()),
    }
}

/// Refuses a request that can no longer be accepted. If its message was accepted earlier, the
/// request is a replay of that message.
async fn replay_or_refuse(
    deps: &Deps,
    invocation: &Invocation,
    id: &MessageId,
    body_hash: &str,
    errors: Vec<FieldError>,
) -> Result<Answer, Problem> {
    match deps.messages.get(invocation, id).await? {
        Some(stored) => replay(&stored, body_hash),
        None => Err(Problem::invalid(errors)),
    }
}

/// Answers a request for a message that exists. The same key with the same body is the same
/// message, whatever its current state.
fn replay(row: &MessageRow, body_hash: &str) -> Result<Answer, Problem> {
    match Replay::of(&row.body_hash, body_hash) {
        Replay::Same => Ok(answer(row)?.replayed()),
        Replay::OtherBody => Err(key_reused()),
    }
}

fn key_reused() -> Problem {
    Problem::key_reused("a message with another body, as its key or as its id")
}

/// Returns the problem for a guard that accepts no more holds for a later time: the contact has the
/// maximum number of scheduled messages of this intent type.
pub fn too_many_scheduled() -> Problem {
    let detail = format!(
        "this contact has {MOST_SCHEDULED} scheduled messages of this intent type: cancel one, or wait until one is sent"
    );
    Problem::new(409, ProblemCode::TooManyScheduled, detail)
}

fn answer(row: &MessageRow) -> Result<Answer, Problem> {
    let answer = AcceptAnswer::of(row);
    Answer::json(answer.http_status(), &answer)
}

fn log_accepted(invocation: &Invocation, row: &MessageRow) {
    let intent = row.intent.as_ref();
    let event = if row.deduped.is_some() { Event::OutboundDeduped } else { Event::OutboundAccepted };
    let reason_code = row.deduped.as_ref().map(|_| Reason::IntentDuplicate.as_str());
    tracing::info!(
        event = event.as_str(),
        reason_code,
        message_id = row.id.as_str(),
        channel = row.channel.as_str(),
        intent_type = intent.map(|intent| intent.intent_type.as_str()),
        fingerprint = intent.map(|intent| intent.fingerprint.as_str()),
        request_id = invocation.request_id,
    );
    metrics::counter!(Metric::OutboundEvents.as_str(), "Event" => event.as_str(), "Channel" => row.channel.as_str())
        .increment(1);
}
