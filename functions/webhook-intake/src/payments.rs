//! `POST /api/payment/webhook/…`: receives events of a payment gateway, signed, or from a caller
//! with an API key for payments. The event is stored before it is answered, and the answer says
//! what changed. Unknown fields are ignored.

use serde_json::{Value, json};
use umavez_domain::access::{PresentedKey, Scope, allows, bearer};
use umavez_domain::codes::{Event, ProblemCode};
use umavez_domain::downsells::views::Withdrawn;
use umavez_domain::downsells::webhook::{ChargeCreated, ChargeEnded, OwnerField};
use umavez_domain::idempotency::body_hash;
use umavez_domain::senders::bots::BotRow;
use umavez_domain::webhooks::{Verified, WebhookSecrets};
use umavez_platform::api_keys;
use umavez_platform::downsells::{Charged, tell};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::Deps;

const CHANNEL: &str = "payments";
const SCOPE: Scope = Scope("payments");
/// The gateway whose secret applies if the request names none.
const DEFAULT_GATEWAY: &str = "default";

pub async fn created(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    admit(deps, invocation, request).await?;
    let event = ChargeCreated::read(&request.object()?, invocation.now).map_err(Problem::invalid)?;
    let bot = known_bot(deps, invocation, &event).await?;
    let correlation_id = event.correlation_id.as_deref().unwrap_or(&invocation.request_id);
    match deps.downsells.charged(invocation, &bot, &event, correlation_id).await? {
        Charged::Another => Err(anothers()),
        Charged::Made { charge, triggered } => {
            tell::triggered(invocation, &triggered);
            let mut answer = json!(triggered.told);
            answer["ok"] = json!(true);
            answer["charge"] = json!(charge);
            told(invocation, "pix_created", correlation_id, &answer)
        }
    }
}

pub async fn approved(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    admit(deps, invocation, request).await?;
    let event = ChargeEnded::read(&request.object()?).map_err(Problem::invalid)?;
    let withdrawn = deps.downsells.paid(invocation, &event).await?;
    if !withdrawn.owner_known {
        // Log a hash, because a transaction id can identify a person.
        let (owner_unknown, transaction) =
            (Event::PaymentOwnerUnknown.as_str(), body_hash(event.transaction_id.as_bytes()));
        tracing::warn!(event = owner_unknown, transaction, request_id = invocation.request_id);
        metrics::counter!("PaymentsUnplaced").increment(1);
    }
    ended(invocation, "payment_approved", &event, &withdrawn)
}

pub async fn expired(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    admit(deps, invocation, request).await?;
    let event = ChargeEnded::read(&request.object()?).map_err(Problem::invalid)?;
    let withdrawn = deps.downsells.expired(invocation, &event).await?;
    ended(invocation, "pix_expired", &event, &withdrawn)
}

fn ended(invocation: &Invocation, what: &str, event: &ChargeEnded, withdrawn: &Withdrawn) -> Result<Answer, Problem> {
    if !withdrawn.differs.is_empty() {
        // Log only the names of the fields, because their values are personal data.
        let fields: Vec<_> = withdrawn.differs.iter().copied().map(OwnerField::as_str).collect();
        let (differs, fields) = (Event::PaymentOwnerDiffers.as_str(), fields.join(","));
        tracing::warn!(event = differs, what, fields, request_id = invocation.request_id);
    }
    let mut answer = json!(withdrawn);
    answer["ok"] = json!(true);
    let correlation_id = event.correlation_id.as_deref().unwrap_or(&invocation.request_id);
    told(invocation, what, correlation_id, &answer)
}

fn told(invocation: &Invocation, what: &str, correlation_id: &str, answer: &Value) -> Result<Answer, Problem> {
    let event = Event::PaymentWebhook.as_str();
    let charge = answer["charge"].as_str();
    tracing::info!(event, what, charge, correlation_id, request_id = invocation.request_id);
    Answer::json(200, answer)
}

/// Admits a request by its signature, or by an API key with the `payments` scope.
async fn admit(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<(), Problem> {
    if request.header("content-encoding").is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(Problem::new(415, ProblemCode::UnsupportedMediaType, "send the body without a content-encoding"));
    }
    if let Some(key) = request.header("authorization").and_then(bearer) {
        return admit_key(deps, invocation, key).await;
    }
    let gateway = paging::optional(request, "gateway").unwrap_or(DEFAULT_GATEWAY);
    let header = |name: &str| request.header(name);
    let verify = |secrets: &WebhookSecrets| secrets.verify_payment(gateway, header, request.body(), invocation.now);
    // If the cached secret does not verify the request, it is read again unless it is fresh: the
    // secret may have changed a moment ago.
    let secrets = deps.webhooks.get(invocation, |secrets| verify(secrets) == Verified::Yes).await;
    let secrets = secrets.map_err(|error| {
        Problem::new(503, ProblemCode::Unavailable, "it cannot be told who is calling; tell it again").because(&error)
    })?;
    if verify(&secrets) == Verified::Yes {
        return Ok(());
    }
    refused(invocation);
    Err(Problem::new(401, ProblemCode::Unverified, "the request does not prove where it comes from, or is too old"))
}

async fn admit_key(deps: &Deps, invocation: &Invocation, key: &str) -> Result<(), Problem> {
    let (presented, downsells) = (PresentedKey::of(key), &deps.downsells);
    let found = api_keys::find(&downsells.store, invocation, &downsells.bots.table, &presented).await?;
    match found.filter(|record| record.admits(&presented)) {
        None => {
            refused(invocation);
            Err(Problem::new(401, ProblemCode::InvalidKey, "the key is not known, or was revoked"))
        }
        Some(record) if allows(record.scopes.iter().map(String::as_str), SCOPE) => Ok(()),
        Some(_) => Err(Problem::new(403, ProblemCode::MissingScope, "the key has no scope that covers `payments`")),
    }
}

fn refused(invocation: &Invocation) {
    let event = Event::WebhookRefused.as_str();
    tracing::warn!(event, channel = CHANNEL, known = true, request_id = invocation.request_id);
    metrics::counter!("WebhooksRefused", "Channel" => CHANNEL).increment(1);
}

async fn known_bot(deps: &Deps, invocation: &Invocation, event: &ChargeCreated) -> Result<BotRow, Problem> {
    let bot = deps.downsells.bots.get(invocation, &event.bot).await?;
    let detail = "there is no such bot; make it with POST /api/admin/bots";
    bot.ok_or_else(|| Problem::not_found(detail))
}

fn anothers() -> Problem {
    Problem::new(409, ProblemCode::HeldByAnother, "the transaction is known as another person's")
}
