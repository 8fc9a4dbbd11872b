//! `POST /conversations/{id}/replies`: a responder that answered "later" sends its reply, with the
//! id of its batch.

use std::ops::ControlFlow::{Break, Continue};

use serde_json::json;
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::conversations::requests::{Callback, read_callback};
use umavez_domain::conversations::{AnsweredBy, BatchRow, ConversationRow};
use umavez_domain::fields::FieldError;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::conversations::Answered;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::{Deps, id, no_such_conversation};

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let callback = read_callback(&request.object()?).map_err(Problem::invalid)?;
    let id = id(request)?;
    if callback.batch.conversation != id {
        let detail = "belongs to another conversation";
        return Err(Problem::invalid(vec![FieldError::new("batch_id", FieldProblem::Conflicting, detail)]));
    }
    let conversations = &deps.conversations;
    let said = callback.reply.as_deref();
    let step = || async {
        let row = conversations.get(invocation, &id).await?.ok_or_else(no_such_conversation)?;
        if !row.course.wants_reply(callback.batch.number) {
            return not_wanted(deps, invocation, &row, &callback).await.map(Break);
        }
        let timing = conversations.settings(invocation, &row).await?.timing();
        Ok(match conversations.answer(invocation, &row, said, AnsweredBy::Callback, &timing).await? {
            Answered::Now(row) => {
                log_callback(invocation, &row);
                Break(accepted(&callback)?)
            }
            Answered::Before(stored) => Break(before(&callback, &stored)?),
            Answered::Lost => Continue(()),
        })
    };
    conversations.store.retry(invocation, step).await
}

/// Answers a reply that the conversation does not wait for: it is too late or a duplicate, or its
/// batch does not exist.
async fn not_wanted(
    deps: &Deps,
    invocation: &Invocation,
    row: &ConversationRow,
    callback: &Callback,
) -> Result<Answer, Problem> {
    if callback.batch.number > row.course.claimed {
        return Err(Problem::not_found("there is no such batch"));
    }
    match deps.conversations.batch(invocation, &callback.batch).await? {
        Some(stored) => before(callback, &stored),
        None => Err(Problem::new(409, ProblemCode::WrongState, "the batch is over: a person has answered")),
    }
}

/// Answers a reply to a batch that already has one. The first reply is kept; the same reply again
/// is a replay, and another reply gets 409.
fn before(callback: &Callback, stored: &BatchRow) -> Result<Answer, Problem> {
    match stored.reply == callback.reply {
        true => Ok(accepted(callback)?.replayed()),
        false => Err(Problem::new(409, ProblemCode::AlreadyAnswered, "there is another reply to this batch")),
    }
}

fn accepted(callback: &Callback) -> Result<Answer, Problem> {
    Answer::json(202, &json!({"batch_id": callback.batch.to_string(), "accepted": true}))
}

fn log_callback(invocation: &Invocation, row: &ConversationRow) {
    let event = Event::ConversationBatchAdvanced.as_str();
    let (conversation_id, channel) = (row.id.as_str(), row.channel.as_str());
    tracing::info!(event, conversation_id, channel, outcome = "callback", request_id = invocation.request_id);
    metrics::counter!(Metric::ConversationBatches.as_str(), "Channel" => channel, "Outcome" => "callback").increment(1);
}
