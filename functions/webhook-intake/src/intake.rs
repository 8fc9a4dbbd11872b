//! The steps that all sources share: verify, read, store, answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::conversations::inbound::{Reading, UnreadableWebhook};
use umavez_domain::conversations::{ConversationId, ConversationRow, ReceiveOutcome, Via};
use umavez_domain::fields::FieldError;
use umavez_domain::senders::bots::BotRow;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::senders::is_name;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::webhooks::{Verified, WebhookSecrets};
use umavez_platform::http::{Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;

/// The source that the request claims to come from.
pub struct WebhookSource<'a> {
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
    source: &WebhookSource<'_>,
    verify: impl Fn(&WebhookSecrets) -> Verified,
    by_bot: impl Fn(&BotRow) -> bool,
) -> Result<Admitted, Problem> {
    refuse_encoded(request)?;
    if !is_name(source.name) {
        return Err(no_such_source());
    }
    let verified = verify_by_secret(deps, invocation, verify).await?;
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
    log_refused(invocation, source.via.as_str(), known);
    match known {
        true => Err(Problem::new(401, ProblemCode::Unverified, "the request does not prove where it comes from")),
        false => Err(no_such_source()),
    }
}

/// Refuses a body with a content-encoding: signatures cover the bytes as they are sent.
pub fn refuse_encoded(request: &Request) -> Result<(), Problem> {
    match request.header("content-encoding") {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            Err(Problem::new(415, ProblemCode::UnsupportedMediaType, "send the body without a content-encoding"))
        }
        _ => Ok(()),
    }
}

/// Verifies a request by the webhook secrets. If the cached secret does not verify the request, it
/// is read again unless it is fresh: the secret may have changed a moment ago.
pub async fn verify_by_secret(
    deps: &Deps,
    invocation: &Invocation,
    verify: impl Fn(&WebhookSecrets) -> Verified,
) -> Result<Verified, Problem> {
    let secrets = deps.webhooks.get(invocation, |secrets| verify(secrets) == Verified::Yes).await;
    let secrets = secrets.map_err(|error| {
        Problem::new(
            503,
            ProblemCode::Unavailable,
            "the caller cannot be verified at the moment; send the request again",
        )
        .because(&error)
    })?;
    Ok(verify(&secrets))
}

/// Logs a request that did not prove its origin. `known` is whether its source exists.
pub fn log_refused(invocation: &Invocation, channel: &'static str, known: bool) {
    tracing::warn!(event = Event::WebhookRefused.as_str(), channel, known, request_id = invocation.request_id);
    metrics::counter!(Metric::WebhooksRefused.as_str(), "Channel" => channel).increment(1);
}

fn no_such_source() -> Problem {
    Problem::not_found("there is no such bot or instance; set it up with PUT /instances/{channel}/{instance}")
}

pub fn unreadable(unreadable: UnreadableWebhook) -> Problem {
    match unreadable {
        UnreadableWebhook::NotJson => Problem::new(400, ProblemCode::InvalidJson, "the body is not a JSON object"),
        UnreadableWebhook::Missing(field) => {
            Problem::invalid(vec![FieldError::new(field, FieldProblem::Missing, "is required")])
        }
    }
}

/// Stores each message separately, and returns the number of messages per outcome. A bot that only
/// sends offers has no conversations, so the messages to it are ignored.
pub async fn store_messages(
    deps: &Deps,
    invocation: &Invocation,
    source: &WebhookSource<'_>,
    reading: &Reading,
    offers_alone: bool,
) -> Result<Value, Problem> {
    let channel = source.via.as_str();
    for why in &reading.ignored {
        metrics::counter!(Metric::WebhooksIgnored.as_str(), "Channel" => channel, "Why" => why.as_str()).increment(1);
    }
    let mut known: Option<(InstanceRow, Option<ConversationRow>)> = None;
    let mut counts: BTreeMap<_, u64> = ReceiveOutcome::ALL.iter().map(|outcome| (outcome.as_str(), 0)).collect();
    let mut ignored = reading.ignored.len();
    for message in &reading.messages {
        let id = ConversationId::of(source.via, source.name, &message.contact);
        let (instance, row) = match known.take() {
            Some((instance, Some(row))) if row.id == id => (instance, Some(row)),
            _ => match deps.conversations.instance_and(invocation, source.via, source.name, &id).await? {
                (Some(instance), row) => (instance, row),
                (None, _) if offers_alone || is_bot(deps, invocation, source).await? => {
                    metrics::counter!(Metric::WebhooksIgnored.as_str(), "Channel" => channel, "Why" => "no_conversations")
                        .increment(1);
                    ignored += 1;
                    continue;
                }
                (None, _) => return Err(no_such_source()),
            },
        };
        let receipt = deps.conversations.receive(invocation, &instance, row, message).await?;
        *counts.entry(receipt.outcome.as_str()).or_default() += 1;
        known = Some((instance, receipt.row));
    }
    let mut answer = json!(counts);
    answer["ok"] = json!(true);
    answer["ignored"] = json!(ignored);
    Ok(answer)
}

async fn is_bot(deps: &Deps, invocation: &Invocation, source: &WebhookSource<'_>) -> Result<bool, Problem> {
    Ok(source.via == Via::Telegram && deps.downsells.bots.get(invocation, source.name).await?.is_some())
}
