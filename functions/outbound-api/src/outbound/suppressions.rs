//! `GET`, `POST` and `DELETE /suppressions`: the suppressed addresses. With `list`, the addresses
//! that unsubscribed from that list of mailings. Of those, only hashes are stored, so the answer
//! contains an address only if the request named it.

use serde_json::json;
use umavez_domain::channels::Channel;
use umavez_domain::fields::FieldError;
use umavez_domain::keys::SUPPRESSION_SHARDS;
use umavez_domain::mailings::{UnsubscribeRow, email_hash};
use umavez_domain::suppression::{Reach, SuppressionRequest, SuppressionRow, SuppressionView};
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::SpreadPlace;

use crate::Deps;

/// Lists the suppressed addresses of one channel or one list; with `to`, only that address.
pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let reach = reach(request, &mut errors);
    let limit = paging::limit(request, &mut errors);
    let after = paging::cursor(request, &mut errors, |text| place(text).is_some());
    if let Some((reach, to)) = reach.as_ref().zip(paging::optional(request, "to")) {
        let to = reach.read_to(to, &mut errors);
        let Some(to) = to.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
        let found: Vec<_> = one(deps, invocation, reach, &to).await?.into_iter().collect();
        return Answer::json(200, &json!({"suppressions": found, "cursor": null}));
    }
    let Some(reach) = reach.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let after = after.as_deref().and_then(place);
    let (suppressions, next) = page(deps, invocation, &reach, after, limit).await?;
    let cursor = next.map(|(shard, place)| paging::to_cursor(&format!("{shard}/{place}")));
    Answer::json(200, &json!({"suppressions": suppressions, "cursor": cursor}))
}

/// Suppresses an address. A duplicate request is a no-op: the first reason is kept.
pub async fn add(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = SuppressionRequest::read(&request.object()?).map_err(Problem::invalid)?;
    let SuppressionRequest { reach, to, note } = asked;
    let channel = reach.channel();
    let (is_new, view) = match reach {
        Reach::Channel(channel) => {
            let row = SuppressionRow::by_operator(channel, &to, note, invocation.now);
            let stored = deps.suppressions.add(invocation, &row).await?;
            (stored.is_none(), SuppressionView::from(stored.unwrap_or(row)))
        }
        Reach::List(list) => {
            let row = UnsubscribeRow::by_operator(list, &to, note, invocation.now);
            let stored = deps.unsubscribes.add(invocation, &row).await?;
            (stored.is_none(), stored.unwrap_or(row).view(Some(&to)))
        }
    };
    if is_new {
        log_change(invocation, channel, Event::SuppressionAdded);
    }
    Answer::json(if is_new { 201 } else { 200 }, &view)
}

pub async fn remove(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let reach = reach(request, &mut errors);
    let to = paging::required(request, "to", &mut errors);
    let asked = reach.zip(to).and_then(|(reach, to)| reach.read_to(to, &mut errors).map(|to| (reach, to)));
    let Some((reach, to)) = asked else { return Err(Problem::invalid(errors)) };
    let removed = match &reach {
        Reach::Channel(channel) => deps.suppressions.remove(invocation, *channel, &to).await?,
        Reach::List(list) => deps.unsubscribes.remove(invocation, list, &email_hash(&to)).await?,
    };
    let channel = reach.channel();
    if removed {
        log_change(invocation, channel, Event::SuppressionRemoved);
    }
    Answer::json(200, &json!({"channel": channel, "list": reach.list(), "to": to, "removed": removed}))
}

/// Reads `channel` and `list`. An empty `list` is an error and does not mean the whole channel.
fn reach(request: &Request, errors: &mut Vec<FieldError>) -> Option<Reach> {
    let channel = paging::required(request, "channel", errors)?;
    Reach::read(channel, request.query.get("list").map(String::as_str), errors)
}

async fn one(
    deps: &Deps,
    invocation: &Invocation,
    reach: &Reach,
    to: &str,
) -> Result<Option<SuppressionView>, Problem> {
    Ok(match reach {
        Reach::Channel(channel) => deps.suppressions.get(invocation, *channel, to).await?.map(SuppressionView::from),
        Reach::List(list) => {
            let row = deps.unsubscribes.get(invocation, list, &email_hash(to)).await?;
            row.map(|row| row.view(Some(to)))
        }
    })
}

async fn page(
    deps: &Deps,
    invocation: &Invocation,
    reach: &Reach,
    after: Option<SpreadPlace>,
    limit: usize,
) -> Result<(Vec<SuppressionView>, Option<SpreadPlace>), Problem> {
    Ok(match reach {
        Reach::Channel(channel) => {
            let (rows, next) = deps.suppressions.page(invocation, *channel, after, limit).await?;
            (rows.into_iter().map(SuppressionView::from).collect(), next)
        }
        Reach::List(list) => {
            let (rows, next) = deps.unsubscribes.page(invocation, list, after, limit).await?;
            (rows.into_iter().map(|row| row.view(None)).collect(), next)
        }
    })
}

/// Parses a cursor: a shard, and a position in it.
fn place(text: &str) -> Option<SpreadPlace> {
    let (shard, place) = text.split_once('/')?;
    let shard = paging::number(shard).and_then(|shard| u32::try_from(shard).ok());
    let shard = shard.filter(|shard| *shard < SUPPRESSION_SHARDS)?;
    let is_hash = place.bytes().all(|byte| byte.is_ascii_hexdigit()) && matches!(place.len(), 0 | 32);
    is_hash.then(|| (shard, place.to_owned()))
}

/// Logs a change without the address: it is personal data, and the list contains it.
fn log_change(invocation: &Invocation, channel: Channel, event: Event) {
    tracing::info!(event = event.as_str(), channel = channel.as_str(), request_id = invocation.request_id);
    metrics::counter!(Metric::Suppressions.as_str(), "Event" => event.as_str(), "Channel" => channel.as_str())
        .increment(1);
}
