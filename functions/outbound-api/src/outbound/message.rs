//! `GET /outbound/messages/{id}` and `GET /outbound/unknown`.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::keys;
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn get(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let id = id(request)?;
    let Some(row) = deps.messages.get(invocation, &id).await? else { return Err(no_such_message()) };
    let content = deps.messages.content(invocation, &row).await?;
    let mut view = row.view();
    let mut content = serde_json::to_value(content).map_err(|error| Problem::internal().because(&error))?;
    if let Some(content) = content.as_object_mut() {
        content.remove("channel");
    }
    view["content"] = content;
    Answer::json(200, &view)
}

pub async fn unknown(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let after = paging::cursor(request, &mut errors, is_place);
    Problem::if_any(errors)?;
    let (rows, next) = deps.messages.unknown_page(invocation, after.as_deref(), limit).await?;
    let messages: Vec<_> = rows.iter().map(MessageRow::view).collect();
    Answer::json(200, &json!({"messages": messages, "cursor": next.map(|place| paging::to_cursor(&place))}))
}

/// Returns whether a cursor is the position of a message in an index by time.
pub fn is_place(place: &str) -> bool {
    keys::id_at_time(place).and_then(MessageId::parse).is_some()
}

/// Returns the message id in the path. Fails if it is malformed.
pub fn id(request: &Request) -> Result<MessageId, Problem> {
    let id = request.path.get("id").and_then(|id| MessageId::parse(id));
    id.ok_or_else(|| Problem::invalid(vec![malformed("id")]))
}

pub fn malformed(field: &str) -> FieldError {
    FieldError::new(field, FieldProblem::Malformed, "must be a message_id, as POST /outbound/messages returns it")
}

pub fn no_such_message() -> Problem {
    Problem::not_found("there is no such message, or its retention period is over")
}
