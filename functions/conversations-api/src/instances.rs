//! `/instances`: the settings of an Evolution instance, a Telegram bot, or an instance of the `api`
//! channel, which the caller names.

use serde_json::json;
use umavez_domain::conversations::Via;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::senders::is_name;
use umavez_domain::telemetry::Event;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn list(deps: &Deps, invocation: &Invocation) -> Result<Answer, Problem> {
    Answer::json(200, &json!({"instances": deps.conversations.instances.list(invocation).await?}))
}

pub async fn one(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let (channel, name) = place(request)?;
    let row = deps.conversations.instances.get(invocation, channel, name).await?;
    Answer::json(200, &row.ok_or_else(no_such_instance)?)
}

pub async fn put(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let (channel, name) = place(request)?;
    let wanted = InstanceRow::read(channel, name, &request.object()?, invocation.now).map_err(Problem::invalid)?;
    let (row, new) = deps.conversations.instances.put(invocation, wanted).await?;
    let (event, channel) = (Event::InstanceChanged.as_str(), row.channel.as_str());
    tracing::info!(event, channel, instance = row.instance, version = row.version, request_id = invocation.request_id);
    Answer::json(if new { 201 } else { 200 }, &row)
}

fn place(request: &Request) -> Result<(Via, &str), Problem> {
    let part = |name: &str| request.path.get(name).map(String::as_str).unwrap_or_default();
    let channel = Via::parse(part("channel")).ok_or_else(no_such_instance)?;
    let name = Some(part("instance")).filter(|name| is_name(name)).ok_or_else(no_such_instance)?;
    Ok((channel, name))
}

fn no_such_instance() -> Problem {
    Problem::not_found(
        "there is no such instance: a channel is telegram, whatsapp or api, a name has up to 64 letters, digits, . - and _",
    )
}
