//! `GET /mailings/{id}/entries` and `GET /mailings/{id}/report`.

use std::time::Duration;

use serde_json::json;
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::keys;
use umavez_domain::mailings::{EntryState, LineRow, MailingRow, report_csv};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::EntryPlace;

use crate::{Deps, mailing};

/// The maximum number of lines of one CSV report. The size of a response is limited; the caller
/// gets the rest with the cursor.
const LINES_OF_CSV: usize = 20_000;
const LINES_AT_ONCE: usize = 1_000;
const ENOUGH_TIME: Duration = Duration::from_secs(5);

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let state = paging::optional(request, "status").and_then(|text| {
        let state = EntryState::parse(&text.to_ascii_uppercase());
        if state.is_none() {
            let names: Vec<_> = EntryState::ALL.iter().map(|state| state.as_str()).collect();
            let detail = format!("must be one of {}", names.join(", "));
            errors.push(FieldError::new("status", FieldProblem::Unknown, detail));
        }
        state
    });
    let after = paging::cursor(request, &mut errors, |text| place(text).is_some());
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let row = mailing(deps, invocation, request).await?;
    let after = after.as_deref().and_then(place).unwrap_or((0, None));
    let (entries, next) = deps.mailings.entries_page(invocation, &row, state, after, limit).await?;
    let cursor = next.map(|(shard, place)| paging::to_cursor(&format!("{shard}/{}", place.unwrap_or_default())));
    Answer::json(200, &json!({"entries": entries, "cursor": cursor}))
}

/// Parses a cursor: a shard, and a sort key in it.
fn place(text: &str) -> Option<EntryPlace> {
    let (shard, place) = text.split_once('/')?;
    let shard = paging::number(shard).and_then(|shard| u32::try_from(shard).ok()).filter(|shard| *shard < 100)?;
    match place {
        "" => Some((shard, None)),
        place => keys::is_mailing_place(place).then(|| (shard, Some(place.to_owned()))),
    }
}

pub async fn report(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let limit = paging::limit(request, &mut errors);
    let after = paging::cursor(request, &mut errors, |text| paging::number(text).is_some());
    let as_csv = match paging::optional(request, "format") {
        Some("csv") => true,
        Some("json") => false,
        Some(_) => {
            errors.push(FieldError::new("format", FieldProblem::Unknown, "must be json or csv"));
            false
        }
        None => request.header("accept").is_some_and(|accept| accept.to_ascii_lowercase().starts_with("text/csv")),
    };
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let row = mailing(deps, invocation, request).await?;
    let after = after.and_then(|text| text.parse().ok()).unwrap_or(0);
    if as_csv {
        return csv(deps, invocation, &row, after).await;
    }
    let (lines, next) = deps.mailings.lines(invocation, &row, after, limit).await?;
    let line = |line: &LineRow| json!({"line": line.line, "reason": line.reason, "of_line": line.of_line});
    let lines: Vec<_> = lines.iter().map(line).collect();
    let body = json!({
        "mailingId": row.mailing_id,
        "file_name": row.file_name,
        "rows": row.progress.rows,
        "recipients": row.progress.recipients,
        "duplicates": row.progress.duplicates,
        "invalid": row.progress.invalid,
        "problem": row.problem_view(),
        "lines": lines,
        "cursor": next.map(|line| paging::to_cursor(&line.to_string())),
    });
    Answer::json(200, &body)
}

async fn csv(deps: &Deps, invocation: &Invocation, row: &MailingRow, after: u64) -> Result<Answer, Problem> {
    let (mut all, mut next) = (Vec::new(), Some(after));
    while let Some(after) = next
        && all.len() < LINES_OF_CSV
        && invocation.time_left() > ENOUGH_TIME
    {
        let (lines, more) = deps.mailings.lines(invocation, row, after, LINES_AT_ONCE).await?;
        all.extend(lines);
        next = more;
    }
    let answer = Answer::text(200, "text/csv; charset=utf-8", report_csv(&all));
    let answer = answer.header("content-disposition", "attachment; filename=\"report.csv\"");
    Ok(match next {
        Some(line) => answer.header("x-next-cursor", paging::to_cursor(&line.to_string())),
        None => answer,
    })
}
