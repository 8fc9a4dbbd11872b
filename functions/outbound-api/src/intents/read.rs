//! `GET /intents?client_id=` and `GET /intents/{fingerprint}?client_id=`.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::intents::{IntentView, is_fingerprint};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;
use uuid::Uuid;

use crate::Deps;

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let client = client_id(request, &mut errors);
    let limit = paging::limit(request, &mut errors);
    // The cursor applies within the requested client, so it gives no access to rows of another
    // client.
    let after = paging::cursor(request, &mut errors, is_fingerprint);
    let Some(client) = client.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let page = deps.intents.page(invocation, client, after.as_deref(), limit).await?;
    let intents: Vec<_> = page.rows.into_iter().map(IntentView::from).collect();
    let cursor = page.next.map(|fingerprint| paging::to_cursor(&fingerprint));
    Answer::json(200, &json!({"intents": intents, "cursor": cursor}))
}

pub async fn get(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let client = client_id(request, &mut errors);
    let fingerprint = fingerprint(request, &mut errors);
    let (Some(client), Some(fingerprint)) = (client, fingerprint) else { return Err(Problem::invalid(errors)) };
    match deps.intents.get(invocation, client, fingerprint).await? {
        Some(row) => Answer::json(200, &IntentView::from(row)),
        None => Err(Problem::not_found("this client has no such intent, or it has expired")),
    }
}

/// Returns the fingerprint in the path. If it is malformed, adds an error and returns `None`.
pub fn fingerprint<'a>(request: &'a Request, errors: &mut Vec<FieldError>) -> Option<&'a str> {
    let text = request.path.get("fingerprint").map(String::as_str).filter(|text| is_fingerprint(text));
    if text.is_none() {
        errors.push(FieldError::new("fingerprint", FieldProblem::Malformed, "must be 32 lower-case hex digits"));
    }
    text
}

fn client_id(request: &Request, errors: &mut Vec<FieldError>) -> Option<Uuid> {
    paging::required(request, "client_id", errors).and_then(|text| paging::client_id(text, errors))
}
