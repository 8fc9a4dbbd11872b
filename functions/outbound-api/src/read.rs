//! `GET /intents?client_id=` and `GET /intents/{fingerprint}?client_id=`.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::{FieldError, parse_uuid};
use umavez_domain::intents::{IntentView, is_fingerprint};
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use uuid::Uuid;

use crate::Deps;

const DEFAULT_PAGE: usize = 50;
const LARGEST_PAGE: usize = 100;

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let client = client_id(request, &mut errors);
    let limit = limit(request, &mut errors);
    let after = cursor(request, &mut errors);
    let Some(client) = client.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let page = deps.intents.page(invocation, client, after.as_deref(), limit).await?;
    let intents: Vec<_> = page.rows.into_iter().map(IntentView::from).collect();
    let cursor = page.next.map(|fingerprint| BASE64_URL_SAFE_NO_PAD.encode(fingerprint));
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

/// The path's fingerprint, if it is one.
pub fn fingerprint<'a>(request: &'a Request, errors: &mut Vec<FieldError>) -> Option<&'a str> {
    let text = request.path.get("fingerprint").map(String::as_str).filter(|text| is_fingerprint(text));
    if text.is_none() {
        errors.push(FieldError::new("fingerprint", FieldProblem::Malformed, "must be 32 lower-case hex digits"));
    }
    text
}

fn client_id(request: &Request, errors: &mut Vec<FieldError>) -> Option<Uuid> {
    let Some(text) = request.query.get("client_id").filter(|text| !text.is_empty()) else {
        errors.push(FieldError::new("client_id", FieldProblem::Missing, "is required in the query"));
        return None;
    };
    let client = parse_uuid(text);
    if client.is_none() {
        errors.push(FieldError::new("client_id", FieldProblem::Malformed, "must be a UUID"));
    }
    client
}

fn limit(request: &Request, errors: &mut Vec<FieldError>) -> usize {
    let Some(text) = request.query.get("limit") else { return DEFAULT_PAGE };
    match text.parse() {
        Ok(limit) if (1..=LARGEST_PAGE).contains(&limit) => limit,
        _ => {
            errors.push(FieldError::new("limit", FieldProblem::OutOfRange, format!("must be 1 to {LARGEST_PAGE}")));
            DEFAULT_PAGE
        }
    }
}

/// A cursor is the last fingerprint of the page before; within the asked client, so it opens no other client's rows.
fn cursor(request: &Request, errors: &mut Vec<FieldError>) -> Option<String> {
    let text = request.query.get("cursor")?;
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let fingerprint = decoded.filter(|text| is_fingerprint(text));
    if fingerprint.is_none() {
        errors.push(FieldError::new("cursor", FieldProblem::Malformed, "is not one that a page gave"));
    }
    fingerprint
}
