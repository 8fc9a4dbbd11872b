//! `GET /explain?message=…|to=…|client_id=…`: lists the decisions in order.

use serde_json::json;
use umavez_domain::channels::{Channel, normalize_to};
use umavez_domain::codes::FieldProblem;
use umavez_domain::fields::FieldError;
use umavez_domain::intents::IntentRow;
use umavez_domain::keys;
use umavez_domain::keys::index::{BY_CLIENT, BY_RECIPIENT};
use umavez_domain::messages::explain::explain;
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_domain::suppression::SuppressionRow;
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Found;

use super::message::{is_place, malformed, no_such_message};
use crate::Deps;

/// The maximum number of messages per page: each one is read separately.
const LARGEST_PAGE: usize = 25;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let asked = ["message", "to", "client_id"].map(|name| paging::optional(request, name));
    match asked {
        [Some(id), None, None] => by_message(deps, invocation, request, id).await,
        [None, Some(to), None] => by_address(deps, invocation, request, to).await,
        [None, None, Some(client)] => by_client(deps, invocation, request, client).await,
        [None, None, None] => Err(one_of(FieldProblem::Missing)),
        _ => Err(one_of(FieldProblem::Conflicting)),
    }
}

fn one_of(problem: FieldProblem) -> Problem {
    Problem::invalid(vec![FieldError::new("message", problem, "the query needs one of message, to and client_id")])
}

async fn by_message(deps: &Deps, invocation: &Invocation, request: &Request, id: &str) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    // One message is one page; a bad cursor is an error all the same.
    page_of(request, &mut errors);
    let id = MessageId::parse(id);
    if id.is_none() {
        errors.push(malformed("message"));
    }
    let Some(id) = id.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let Some(row) = deps.messages.get(invocation, &id).await? else { return Err(no_such_message()) };
    answer(vec![row], Vec::new(), Vec::new(), None)
}

/// Explains an address. It may be valid in several channels; `channel` selects one of them.
async fn by_address(deps: &Deps, invocation: &Invocation, request: &Request, to: &str) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let (limit, after) = page_of(request, &mut errors);
    let wanted = paging::optional(request, "channel");
    if wanted.is_some_and(|channel| Channel::parse(channel).is_none()) {
        let detail = "must be one of email, telegram, whatsapp";
        errors.push(FieldError::new("channel", FieldProblem::Unknown, detail));
    }
    let channels = Channel::ALL.iter().filter(|channel| wanted.is_none_or(|wanted| wanted == channel.as_str()));
    let addresses: Vec<_> =
        channels.filter_map(|channel| normalize_to(*channel, to).ok().map(|to| (*channel, to))).collect();
    if addresses.is_empty() && errors.is_empty() {
        errors.push(FieldError::new("to", FieldProblem::Malformed, "is not an address of any channel"));
    }
    Problem::if_any(errors)?;
    let (mut found, mut suppressed) = (Vec::new(), Vec::new());
    for (channel, to) in addresses {
        let partition = keys::recipient(channel.as_str(), &to);
        found.extend(deps.messages.latest(invocation, BY_RECIPIENT, partition, after.clone(), limit).await?);
        suppressed.extend(deps.suppressions.get(invocation, channel, &to).await?);
    }
    let (messages, next) = newest(found, limit);
    answer(messages, Vec::new(), if after.is_none() { suppressed } else { Vec::new() }, next)
}

async fn by_client(deps: &Deps, invocation: &Invocation, request: &Request, client: &str) -> Result<Answer, Problem> {
    let mut errors = Vec::new();
    let (limit, after) = page_of(request, &mut errors);
    let client = paging::client_id(client, &mut errors);
    let Some(client) = client.filter(|_| errors.is_empty()) else { return Err(Problem::invalid(errors)) };
    let partition = client.hyphenated().to_string();
    let found = deps.messages.latest(invocation, BY_CLIENT, partition, after.clone(), limit).await?;
    let (messages, next) = newest(found, limit);
    // Intents of checks without a message have no message to appear with: list them on the first
    // page.
    let intents = match after {
        None => deps.intents.page(invocation, client, None, 100).await?.rows,
        Some(_) => Vec::new(),
    };
    answer(messages, intents, Vec::new(), next)
}

fn page_of(request: &Request, errors: &mut Vec<FieldError>) -> (usize, Option<String>) {
    let limit = paging::limit(request, errors).min(LARGEST_PAGE);
    (limit, paging::cursor(request, errors, is_place))
}

/// Returns the newest messages of several channels, and where the next page begins.
fn newest(mut found: Vec<(MessageRow, Found)>, limit: usize) -> (Vec<MessageRow>, Option<String>) {
    found.sort_by(|(_, a), (_, b)| b.place.cmp(&a.place));
    let more = found.len() >= limit;
    found.truncate(limit);
    let next = found.last().map(|(_, found)| found.place.clone()).filter(|_| more);
    (found.into_iter().map(|(row, _)| row).collect(), next)
}

fn answer(
    messages: Vec<MessageRow>,
    intents: Vec<IntentRow>,
    suppressions: Vec<SuppressionRow>,
    next: Option<String>,
) -> Result<Answer, Problem> {
    let explained = explain(messages, intents, suppressions);
    let cursor = next.map(|place| paging::to_cursor(&place));
    let (messages, decisions) = (explained.messages, explained.decisions);
    Answer::json(200, &json!({"messages": messages, "decisions": decisions, "cursor": cursor}))
}
