//! The steps that all sources share: verify, read, store, answer.

use serde_json::{Value, json};
use umavez_domain::codes::{Event, FieldProblem, ProblemCode};
use umavez_domain::conversations::inbound::{Inbound, Reading, Unreadable};
use umavez_domain::conversations::{ConversationId, ConversationRow, Told, Via};
use umavez_domain::fields::FieldError;
use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::senders::is_name;
use umavez_domain::webhooks::{Verified, WebhookSecrets};
use umavez_platform::http::{Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// The source that the request claims to come from.
pub struct Source<'a> {
    pub via: Via,
    pub name: &'a str,
}

/// How a source proved its identity.
pub enum Admitted {
    BySecret,
    /// By the secret in the bot's own row.
    ByBot(Box<BotRow>),
}

/// Verifies that the request comes from the source. Refuses it otherwise.
pub async fn admit(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
    source: &Source<'_>,
    verify: impl Fn(&WebhookSecrets) -> Verified,
    by_bot: impl Fn(&BotRow) -> bool,
) -> Result<Admitted, Problem> {
    if request.header("content-encoding").is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(Problem::new(415, ProblemCode::UnsupportedMediaType, "send the body without a content-encoding"));
    }
    if !is_name(source.name) {
        return Err(no_such_source());
    }
    // If the cached secret does not verify the request, it is read again unless it is fresh: the
    // secret may have changed a moment ago.
    let secrets = deps.webhooks.get(invocation, |secrets| verify(secrets) == Verified::Yes).await;
    let secrets = secrets.map_err(|error| {
        Problem::new(503, ProblemCode::Unavailable, "it cannot be told who is calling; tell it again").because(&error)
    })?;
    let verified = verify(&secrets);
    if verified == Verified::Yes {
        return Ok(Admitted::BySecret);
    }
    let bot = match source.via {
        Via::Telegram => deps.downsells.bots.get(invocation, source.name).await?,
        _ => None,
    };
    let known = match (verified, bot) {
        (_, Some(bot)) if by_bot(&bot) => return Ok(Admitted::ByBot(Box::new(bot))),
        (Verified::NoSuchSource, None) => {
            deps.conversations.instances.get(invocation, source.via, source.name).await?.is_some()
        }
        _ => true,
    };
    let channel = source.via.as_str();
    tracing::warn!(event = Event::WebhookRefused.as_str(), channel, known, request_id = invocation.request_id);
    metrics::counter!("WebhooksRefused", "Channel" => channel).increment(1);
    match known {
        true => Err(Problem::new(401, ProblemCode::Unverified, "the request does not prove where it comes from")),
        false => Err(no_such_source()),
    }
}

fn no_such_source() -> Problem {
    Problem::not_found("there is no such bot or instance; set it up with PUT /instances/{channel}/{instance}")
}

pub fn unreadable(unreadable: Unreadable) -> Problem {
    match unreadable {
        Unreadable::NotJson => Problem::new(400, ProblemCode::InvalidJson, "the body is not a JSON object"),
        Unreadable::Missing(field) => {
            Problem::invalid(vec![FieldError::new(field, FieldProblem::Missing, "is required")])
        }
    }
}

/// Stores each message separately, and returns the number of messages per outcome. A bot that only
/// sends offers has no conversations, so the messages to it are ignored.
pub async fn take(
    deps: &Deps,
    invocation: &Invocation,
    source: &Source<'_>,
    reading: &Reading,
    offers_alone: bool,
) -> Result<Value, Problem> {
    let channel = source.via.as_str();
    for why in &reading.ignored {
        metrics::counter!("WebhooksIgnored", "Channel" => channel, "Why" => why.as_str()).increment(1);
    }
    let mut known: Option<(InstanceRow, Option<ConversationRow>)> = None;
    let mut counts = [0_u64; Told::ALL.len()];
    let mut ignored = reading.ignored.len();
    for message in &reading.messages {
        let (instance, row) = match known.take() {
            Some((instance, Some(row))) if row.id == id_of(source, message) => (instance, Some(row)),
            _ => match look(deps, invocation, source, message).await? {
                (Some(instance), row) => (instance, row),
                (None, _) if offers_alone || is_bot(deps, invocation, source).await? => {
                    metrics::counter!("WebhooksIgnored", "Channel" => channel, "Why" => "no_conversations")
                        .increment(1);
                    ignored += 1;
                    continue;
                }
                (None, _) => return Err(no_such_source()),
            },
        };
        let taken = deps.conversations.receive(invocation, &instance, row, message).await?;
        tell(invocation, source, message, taken.told);
        let of_told = Told::ALL.iter().zip(&mut counts).find(|(told, _)| **told == taken.told);
        of_told.into_iter().for_each(|(_, count)| *count += 1);
        known = Some((instance, taken.row));
    }
    let mut answer = json!({"ok": true, "ignored": ignored});
    for (told, count) in Told::ALL.iter().zip(counts) {
        answer[told.as_str()] = json!(count);
    }
    Ok(answer)
}

async fn is_bot(deps: &Deps, invocation: &Invocation, source: &Source<'_>) -> Result<bool, Problem> {
    Ok(source.via == Via::Telegram && deps.downsells.bots.get(invocation, source.name).await?.is_some())
}

/// Reads the settings of the source and the conversation of the message, in one read.
async fn look(
    deps: &Deps,
    invocation: &Invocation,
    source: &Source<'_>,
    message: &Inbound,
) -> Result<(Option<InstanceRow>, Option<ConversationRow>), Problem> {
    let id = id_of(source, message);
    Ok(deps.conversations.instance_and(invocation, source.via, source.name, &id).await?)
}

fn id_of(source: &Source<'_>, message: &Inbound) -> ConversationId {
    ConversationId::of(source.via, source.name, &message.contact)
}

fn tell(invocation: &Invocation, source: &Source<'_>, message: &Inbound, told: Told) {
    tracing::info!(
        event = Event::ConversationMessage.as_str(),
        conversation_id = id_of(source, message).as_str(),
        channel = source.via.as_str(),
        outcome = told.as_str(),
        request_id = invocation.request_id,
    );
    metrics::counter!("ConversationMessages", "Channel" => source.via.as_str(), "Outcome" => told.as_str())
        .increment(1);
}
