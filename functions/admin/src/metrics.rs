//! `GET /api/admin/bots/{slug}/metrics?from=&to=` or `?days=`: the metrics of a bot, counted over
//! the offers that were created in the period. `days` counts back from the server's clock, because
//! the caller's clock may differ.

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::time::Timestamp;
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::Deps;

const DEFAULT_DAYS: i64 = 1;
const MOST_DAYS: i64 = 31;
const SLACK_MS: i64 = 60_000;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let mut errors = Vec::new();
    let to = time(request, "to", &mut errors).unwrap_or(invocation.now);
    let days = days(request, &mut errors).unwrap_or(DEFAULT_DAYS);
    let from = time(request, "from", &mut errors).unwrap_or(to.plus_days(-days));
    // A caller that asks for the maximum number of days up to now computed `from` a moment ago, so
    // the limit has some slack.
    if errors.is_empty() && (from > to || from < to.plus_ms(-SLACK_MS).plus_days(-MOST_DAYS)) {
        let detail = format!("must be before `to`, by at most {MOST_DAYS} days");
        errors.push(FieldError::new("from", FieldProblem::OutOfRange, detail));
    }
    Problem::if_any(errors)?;
    let (numbers, complete) = deps.downsells.numbers(invocation, &bot.slug, (from, to)).await?;
    let answer = json!({
        "ok": true, "bot_slug": bot.slug, "from": from, "to": to, "complete": complete, "metrics": numbers,
    });
    Answer::json(200, &answer)
}

fn days(request: &Request, errors: &mut Vec<FieldError>) -> Option<i64> {
    paging::optional(request, "days")?;
    if paging::optional(request, "from").is_some() {
        errors.push(FieldError::new("days", FieldProblem::Conflicting, "cannot be combined with `from`"));
        return None;
    }
    let parse = |text: &str| text.parse().ok().filter(|days| (1..=MOST_DAYS).contains(days));
    paging::parsed(
        request,
        "days",
        parse,
        (FieldProblem::OutOfRange, &format!("must be a whole number from 1 to {MOST_DAYS}")),
        errors,
    )
}

fn time(request: &Request, name: &'static str, errors: &mut Vec<FieldError>) -> Option<Timestamp> {
    let refused = (FieldProblem::Malformed, "must be an RFC 3339 time, such as 2026-01-31T12:00:00Z");
    paging::parsed(request, name, Timestamp::parse, refused, errors)
}
