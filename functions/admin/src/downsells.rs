//! `/api/admin/bots/{slug}/downsells`: what a bot offers, and how long after which event.

use serde_json::json;
use umavez_domain::codes::ProblemCode;
use umavez_domain::downsells::{DownsellRow, MOST_DOWNSELLS};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::telemetry::Event;
use umavez_platform::downsells::CreatedDownsell;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let downsells = deps.downsells.downsells(invocation, &bot.slug).await?;
    Answer::json(200, &json!({"ok": true, "downsells": downsells}))
}

pub async fn one(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    answer(200, &named_downsell(deps, invocation, request).await?.1)
}

pub async fn create(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let new = DownsellRow::read(&bot.slug, &request.object()?, invocation.now).map_err(Problem::invalid)?;
    let identity = request.identity(invocation)?;
    let asked = identity.given.then_some((identity.key.as_str(), identity.body.as_str()));
    match deps.downsells.create_downsell(invocation, &bot.slug, &new, asked).await? {
        CreatedDownsell::New(row) => {
            log_changed(invocation, &row, "created");
            answer(201, &row)
        }
        CreatedDownsell::Replayed(row) => Ok(answer(201, &row)?.replayed()),
        CreatedDownsell::KeyReused => Err(Problem::key_reused("a downsell with another body, or one that was deleted")),
        CreatedDownsell::TooMany => {
            let detail = format!("a bot can have at most {MOST_DOWNSELLS} downsells; delete one first");
            Err(Problem::new(409, ProblemCode::WrongState, detail))
        }
    }
}

/// Changes a downsell. Fields that the request leaves out keep their values. Pending offers keep
/// their scheduled time.
pub async fn change(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let body = request.object()?;
    let (_, stored) = named_downsell(deps, invocation, request).await?;
    let changed = deps.downsells.change_downsell(invocation, &stored, &body).await?;
    let row = changed.ok_or_else(no_such_downsell)?.map_err(Problem::invalid)?;
    log_changed(invocation, &row, "changed");
    answer(200, &row)
}

pub async fn delete(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let (_, row) = named_downsell(deps, invocation, request).await?;
    if !deps.downsells.delete_downsell(invocation, &row.slug, row.id).await? {
        return Err(no_such_downsell());
    }
    log_changed(invocation, &row, "deleted");
    Answer::json(200, &json!({"ok": true, "deleted": row.id}))
}

/// Returns the downsell that the path names, and its bot. Fails with 404 if either does not exist.
pub async fn named_downsell(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
) -> Result<(BotRow, DownsellRow), Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let id = request.path.get("id").and_then(|id| id.parse().ok()).ok_or_else(no_such_downsell)?;
    let row = deps.downsells.downsell(invocation, &bot.slug, id).await?.ok_or_else(no_such_downsell)?;
    Ok((bot, row))
}

fn answer(status: u16, row: &DownsellRow) -> Result<Answer, Problem> {
    Answer::json(status, &json!({"ok": true, "downsell": row, "warnings": row.warnings()}))
}

fn no_such_downsell() -> Problem {
    Problem::not_found("there is no such downsell")
}

fn log_changed(invocation: &Invocation, row: &DownsellRow, what: &str) {
    let (event, bot, downsell_id) = (Event::DownsellChanged.as_str(), row.slug.as_str(), row.id);
    tracing::info!(event, bot, downsell_id, what, version = row.version, request_id = invocation.request_id);
}
