//! `/api/admin/bots`: the bots that send offers, and their rate limits.

use serde_json::json;
use umavez_domain::codes::ProblemCode;
use umavez_domain::senders::bots::{BotRow, BotWarning};
use umavez_domain::telemetry::Event;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::senders::bots::{ChangedBot, CreatedBot};

use crate::{Deps, no_such_bot, slug};

pub async fn list(deps: &Deps, invocation: &Invocation) -> Result<Answer, Problem> {
    let rows = deps.downsells.bots.list(invocation).await?;
    Answer::json(200, &json!({"ok": true, "bots": rows.iter().map(BotRow::view).collect::<Vec<_>>()}))
}

pub async fn one(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    answer(deps, invocation, 200, &crate::bot(deps, invocation, request).await?).await
}

/// Creates a bot. The slug identifies it: a repeated request with the same settings returns the
/// stored bot with 200, marked as replayed. A request with other settings for a slug in use gets
/// 409.
pub async fn create(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let row = BotRow::read(&request.object()?, invocation.now).map_err(Problem::invalid)?;
    match deps.downsells.bots.create(invocation, &row).await? {
        CreatedBot::New => {
            log_changed(invocation, &row);
            answer(deps, invocation, 201, &row).await
        }
        CreatedBot::Exists(stored) if is_same(&stored, &row) => {
            Ok(answer(deps, invocation, 200, &stored).await?.replayed())
        }
        CreatedBot::Exists(_) => {
            let detail = "there is a bot with this slug; change it with PUT /api/admin/bots/{slug}";
            Err(Problem::new(409, ProblemCode::NameTaken, detail))
        }
        CreatedBot::Refused(error) => Err(Problem::invalid(vec![error])),
    }
}

pub async fn change(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let row = match deps.downsells.bots.change(invocation, slug(request)?, &request.object()?).await? {
        ChangedBot::Done(row) => row,
        ChangedBot::NoSuchBot => return Err(no_such_bot()),
        ChangedBot::Refused(errors) => return Err(Problem::invalid(errors)),
    };
    log_changed(invocation, &row);
    answer(deps, invocation, 200, &row).await
}

async fn answer(deps: &Deps, invocation: &Invocation, status: u16, row: &BotRow) -> Result<Answer, Problem> {
    let missing = deps.senders.lacks_credential(invocation, &deps.senders.of_bot(row)).await;
    let warnings: Vec<_> = missing.then_some(BotWarning::TokenMissing).into_iter().collect();
    Answer::json(status, &json!({"ok": true, "bot": row.view(), "warnings": warnings}))
}

fn is_same(stored: &BotRow, asked: &BotRow) -> bool {
    let of_asked = BotRow {
        created_at: stored.created_at,
        updated_at: stored.updated_at,
        version: stored.version,
        ..asked.clone()
    };
    *stored == of_asked
}

fn log_changed(invocation: &Invocation, row: &BotRow) {
    let (event, slug) = (Event::BotChanged.as_str(), row.slug.as_str());
    tracing::info!(event, slug, version = row.version, active = row.active, request_id = invocation.request_id);
}
