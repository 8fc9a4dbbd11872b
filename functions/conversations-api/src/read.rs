//! `GET /conversations` and `GET /conversations/{id}`: the conversations with a given status, and
//! the state of one conversation.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::conversations::{ConversationId, StoredMessage};
use umavez_domain::fields::FieldError;
use umavez_domain::keys::{self, Wake};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::{Deps, id, no_such_conversation};

/// The number of asides (messages that need no answer) that the first page shows beside its
/// messages.
const ASIDES: usize = 20;

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let is_place = |place: &str| keys::id_at_time(place).is_some_and(|id| ConversationId::parse(id).is_some());
    let after = paging::cursor(request, &mut errors, is_place);
    let wake = match paging::required(request, "status", &mut errors) {
        Some("needs_human") => Wake::Human,
        Some("held") => Wake::Held,
        Some("unanswered") => Wake::Check,
        Some(_) => {
            let detail = "must be one of needs_human, held, unanswered";
            errors.push(FieldError::new("status", FieldProblem::NotAllowed, detail));
            Wake::Human
        }
        None => Wake::Human,
    };
    Problem::if_any(errors)?;
    let (rows, next) = deps.conversations.waiting_page(invocation, wake, after.as_deref(), limit).await?;
    let rows: Vec<_> = rows.iter().map(|row| row.view(None, invocation.now)).collect();
    Answer::json(200, &json!({"conversations": rows, "cursor": next.map(|place| paging::to_cursor(&place))}))
}

pub async fn one(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let conversations = &deps.conversations;
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let before = paging::cursor(request, &mut errors, |place| paging::number(place) > Some(1));
    Problem::if_any(errors)?;
    let row = conversations.get(invocation, &id(request)?).await?.ok_or_else(no_such_conversation)?;
    let timing = conversations.settings(invocation, &row).await?.timing();
    let before = before.and_then(|place| place.parse().ok());
    let messages = conversations.latest_messages(invocation, &row, before, limit).await?;
    let newest = messages.first().and_then(|message| message.number).unwrap_or(0);
    let oldest = messages.last().and_then(|message| message.number).unwrap_or(0);
    let batches = match messages.is_empty() {
        true => Vec::new(),
        false => conversations.batches(invocation, &row, oldest, newest).await?,
    };
    let asides = match before {
        None => conversations.asides(invocation, &row, ASIDES).await?,
        Some(_) => Vec::new(),
    };
    let next = (messages.len() == limit && oldest > 1).then(|| paging::to_cursor(&oldest.to_string()));
    let view = |message: &StoredMessage| message.view(&row, &batches);
    Answer::json(
        200,
        &json!({
            "conversation": row.view(Some(&timing), invocation.now),
            "messages": messages.iter().map(view).collect::<Vec<_>>(),
            "asides": asides.iter().map(view).collect::<Vec<_>>(),
            "batches": batches.iter().map(|batch| batch.view(&row)).collect::<Vec<_>>(),
            "cursor": next,
        }),
    )
}
