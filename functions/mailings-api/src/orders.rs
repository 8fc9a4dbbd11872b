//! Orders to a mailing: pause, resume, cancel, and retry of failed entries.

use serde_json::json;
use umavez_domain::codes::ProblemCode;
use umavez_domain::mailings::{KeyedOrder, MailingEvent, MailingRow, RetryRequest};
use umavez_domain::telemetry::Event;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::OrderOutcome;

use crate::upload::no_columns;
use crate::{Deps, id};

pub async fn order(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
    event: MailingEvent,
) -> Result<Answer, Problem> {
    request.object_or_nothing()?;
    let row = ordered(invocation, deps.mailings.order(invocation, &id(request)?, event).await?)?;
    Answer::json(200, &json!({"mailingId": row.mailing_id, "status": row.state}))
}

pub async fn retry_failed(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = RetryRequest::read(&request.object_or_nothing()?).map_err(Problem::invalid)?;
    // Without an idempotency key, the request id identifies the order, so that a lost answer of the
    // store does not create a second order.
    let identity = request.identity(invocation)?;
    let order = KeyedOrder { key: identity.key, body: identity.body, entries: 0 };
    let done = deps.mailings.retry_failed(invocation, &id(request)?, &order, asked.include_unknown).await?;
    let replayed = matches!(done, Some((_, OrderOutcome::Replayed)));
    let row = ordered(invocation, done)?;
    // A mailing without entries to send again does not keep the order.
    let retrying = row.orders.iter().find(|known| known.key == order.key).map_or(0, |known| known.entries);
    let answer = Answer::json(202, &json!({"mailingId": row.mailing_id, "status": row.state, "retrying": retrying}))?;
    Ok(if replayed { answer.replayed() } else { answer })
}

/// Returns the mailing after an order, or the problem that explains why the order was refused.
pub fn ordered(invocation: &Invocation, ordered: Option<(MailingRow, OrderOutcome)>) -> Result<MailingRow, Problem> {
    let Some((row, ordered)) = ordered else { return Err(Problem::not_found("there is no such mailing")) };
    match ordered {
        OrderOutcome::Done => {
            tracing::info!(
                event = Event::MailingChanged.as_str(),
                mailing_id = row.mailing_id.as_str(),
                state = row.state.as_str(),
                request_id = invocation.request_id,
            );
            Ok(row)
        }
        OrderOutcome::Already | OrderOutcome::Replayed => Ok(row),
        OrderOutcome::Refused => {
            let begun = if row.started_at.is_some() { ", and sending has begun" } else { "" };
            let detail = format!("the state of the mailing does not allow this: it is {}{begun}", row.state);
            Err(Problem::new(409, ProblemCode::WrongState, detail))
        }
        OrderOutcome::KeyReused => Err(Problem::key_reused("an order with another body")),
        OrderOutcome::Misfits(misfits) => Err(no_columns(misfits)),
    }
}
