//! `POST /outbound/messages/{id}/cancel`, `/resend` and `/settle`.

use serde_json::json;
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::delivery::{Cancel, State};
use umavez_domain::fields::FieldError;
use umavez_domain::messages::MessageId;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::{Order, Resent};

use super::message::{id, no_such_message};
use crate::Deps;

/// Cancels a message. The answer is exact: a canceled message will not be sent, and a message that
/// is in flight or sent was not canceled.
pub async fn cancel(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let id = id(request)?;
    let Some((row, cancel)) = deps.messages.cancel(invocation, &id).await? else { return Err(no_such_message()) };
    if cancel == Cancel::Now {
        log_order(invocation, &id, Event::OutboundCanceled);
    }
    Answer::json(
        200,
        &json!({
            "message_id": id,
            "status": row.delivery.state,
            "canceled": matches!(cancel, Cancel::Now | Cancel::Already),
            "in_flight": cancel == Cancel::InFlight,
            "already_sent": cancel == Cancel::AlreadySent,
        }),
    )
}

/// Settles an UNKNOWN message: an operator has found out whether it was sent.
pub async fn settle(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let id = id(request)?;
    let body = request.object()?;
    let mut errors: Vec<_> = unknown_fields(&body, "sent");
    let sent = body.get("sent").and_then(serde_json::Value::as_bool);
    if sent.is_none() {
        errors.push(FieldError::new("sent", FieldProblem::WrongType, "must be true or false"));
    }
    let Some(sent) = sent.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let Some((row, is_settled)) = deps.messages.declare(invocation, &id, sent).await? else {
        return Err(no_such_message());
    };
    let state = row.delivery.state;
    let wanted = if sent { State::Sent } else { State::Failed };
    if !is_settled && state != wanted {
        let detail = format!("only an UNKNOWN message can be settled; this one is {state}");
        return Err(Problem::new(409, ProblemCode::NotUnknown, detail));
    }
    if is_settled {
        log_order(invocation, &id, Event::OutboundSettled);
    }
    Answer::json(200, &json!({"message_id": id, "status": state}))
}

pub async fn resend(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let id = id(request)?;
    let attempt = wanted_attempt(request)?;
    let identity = request.identity(invocation)?;
    let order = Order { key: &identity.key, body_hash: &identity.body, attempt };
    let answer = |attempts: Option<u32>| json!({"message_id": id, "status": State::Queued, "attempts": attempts});
    match deps.messages.resend(invocation, &id, &order, &deps.types).await? {
        Resent::Now(row) => {
            log_order(invocation, &id, Event::OutboundResent);
            Answer::json(202, &answer(Some(row.delivery.attempt)))
        }
        Resent::Replayed(attempts) => Ok(Answer::json(202, &answer(Some(attempts)))?.replayed()),
        Resent::KeyReused => Err(Problem::key_reused("an order with another body to send the message again")),
        Resent::NotNow(row) => {
            let (state, attempt) = (row.delivery.state, row.delivery.attempt);
            let detail =
                format!("only a FAILED or UNKNOWN message can be resent; this one is {state} after attempt {attempt}");
            Err(Problem::new(409, ProblemCode::NotResendable, detail))
        }
        Resent::Late(_) => {
            Err(Problem::new(409, ProblemCode::NotResendable, "its not_after has passed, so it would not be sent"))
        }
        Resent::IntentTaken => {
            let detail = "another message or check holds its intent now; GET /explain?message= shows which";
            Err(Problem::new(409, ProblemCode::IntentDuplicate, detail))
        }
        Resent::NotFound => Err(no_such_message()),
    }
}

/// Reads `{attempt?}`: resend only if that was the last attempt. The body is optional.
fn wanted_attempt(request: &Request) -> Result<Option<u32>, Problem> {
    if request.is_empty() {
        return Ok(None);
    }
    let body = request.object()?;
    let mut errors = unknown_fields(&body, "attempt");
    let attempt = match body.get("attempt") {
        None | Some(serde_json::Value::Null) => None,
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0);
            if number.is_none() {
                errors.push(FieldError::new(
                    "attempt",
                    FieldProblem::WrongType,
                    "must be a whole number of at least 1",
                ));
            }
            number
        }
    };
    if errors.is_empty() { Ok(attempt) } else { Err(Problem::invalid(errors)) }
}

fn unknown_fields(body: &serde_json::Map<String, serde_json::Value>, known: &str) -> Vec<FieldError> {
    let names = body.keys().filter(|name| *name != known).take(5);
    names
        .map(|name| {
            let name: String = name.chars().take(100).collect();
            FieldError::new(name, FieldProblem::Unknown, "is not a field of this request")
        })
        .collect()
}

fn log_order(invocation: &Invocation, message_id: &MessageId, event: Event) {
    tracing::info!(event = event.as_str(), message_id = message_id.as_str(), request_id = invocation.request_id);
    metrics::counter!(Metric::OutboundOrders.as_str(), "Event" => event.as_str()).increment(1);
}
