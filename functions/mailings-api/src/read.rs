//! `GET /mailings` and `GET /mailings/{id}`.

use serde_json::json;
use umavez_domain::keys;
use umavez_domain::mailings::{MailingId, MailingRow};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::{Deps, mailing};

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let is_place = |text: &str| keys::id_at_time(text).is_some_and(|id| MailingId::parse(id).is_some());
    let after = paging::cursor(request, &mut errors, is_place);
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let (rows, next) = deps.mailings.page(invocation, after, limit).await?;
    let mailings: Vec<_> = rows.iter().map(MailingRow::summary).collect();
    Answer::json(200, &json!({"mailings": mailings, "cursor": next.map(|place| paging::to_cursor(&place))}))
}

pub async fn one(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let row = mailing(deps, invocation, request).await?;
    let shards = deps.mailings.shards(invocation, &row.mailing_id).await?;
    Answer::json(200, &row.view(&shards, invocation.now))
}
