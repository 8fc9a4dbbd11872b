//! `GET`, `POST` and `DELETE /suppressions`: the addresses that are not written to.

use serde_json::json;
use umavez_domain::codes::{Event, FieldProblem};
use umavez_domain::fields::FieldError;
use umavez_domain::keys::SUPPRESSION_SHARDS;
use umavez_domain::outbound::Channel;
use umavez_domain::outbound::suppression::{self, SuppressionView, read_address};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// One channel's list; with `to`, that address only.
pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let channel = paging::required(request, "channel", &mut errors);
    if let Some((channel, to)) = channel.zip(paging::optional(request, "to")) {
        let Some((channel, to)) = read_address(channel, to, &mut errors) else { return Err(Problem::invalid(errors)) };
        let row = deps.suppressions.get(invocation, channel, &to).await?;
        let found: Vec<_> = row.into_iter().map(SuppressionView::from).collect();
        return Answer::json(200, &json!({"suppressions": found, "cursor": null}));
    }
    let channel = channel.and_then(|text| known_channel(text, &mut errors));
    let limit = paging::limit(request, &mut errors);
    let after = paging::cursor(request, &mut errors, |text| place(text).is_some());
    let Some(channel) = channel.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let after = after.as_deref().and_then(place);
    let (rows, next) = deps.suppressions.page(invocation, channel, after, limit).await?;
    let suppressions: Vec<_> = rows.into_iter().map(SuppressionView::from).collect();
    let cursor = next.map(|(shard, place)| paging::to_cursor(&format!("{shard}/{place}")));
    Answer::json(200, &json!({"suppressions": suppressions, "cursor": cursor}))
}

/// Putting an address on the list twice is as good as once: the first reason stands.
pub async fn add(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let row = suppression::read(&request.object()?, invocation.now).map_err(Problem::invalid)?;
    match deps.suppressions.add(invocation, &row).await? {
        None => {
            tell(invocation, row.channel, Event::SuppressionAdded);
            Answer::json(201, &SuppressionView::from(row))
        }
        Some(standing) => Answer::json(200, &SuppressionView::from(standing)),
    }
}

pub async fn remove(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let channel = paging::required(request, "channel", &mut errors);
    let to = paging::required(request, "to", &mut errors);
    let address = channel.zip(to).and_then(|(channel, to)| read_address(channel, to, &mut errors));
    let Some((channel, to)) = address else { return Err(Problem::invalid(errors)) };
    let removed = deps.suppressions.remove(invocation, channel, &to).await?;
    if removed {
        tell(invocation, channel, Event::SuppressionRemoved);
    }
    Answer::json(200, &json!({"channel": channel, "to": to, "removed": removed}))
}

fn known_channel(text: &str, errors: &mut Vec<FieldError>) -> Option<Channel> {
    let channel = Channel::parse(text);
    if channel.is_none() {
        let detail = "must be one of email, telegram, whatsapp";
        errors.push(FieldError::new("channel", FieldProblem::Unknown, detail));
    }
    channel
}

/// A shard, and where in it.
fn place(text: &str) -> Option<(u32, String)> {
    let (shard, place) = text.split_once('/')?;
    let shard = shard.parse().ok().filter(|shard| *shard < SUPPRESSION_SHARDS)?;
    let is_hash = place.bytes().all(|byte| byte.is_ascii_hexdigit()) && matches!(place.len(), 0 | 32);
    is_hash.then(|| (shard, place.to_owned()))
}

/// Without the address: it is personal, and the list has it.
fn tell(invocation: &Invocation, channel: Channel, event: Event) {
    tracing::info!(event = event.as_str(), channel = channel.as_str(), request_id = invocation.request_id);
    metrics::counter!("Suppressions", "Event" => event.as_str(), "Channel" => channel.as_str()).increment(1);
}
