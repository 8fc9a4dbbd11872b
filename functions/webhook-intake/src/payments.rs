//! `POST /api/payment/webhook/…`: receives events of a payment gateway, signed, or from a caller
//! with an API key for payments. The event is stored before it is answered, and the answer says
//! what changed. Unknown fields are ignored.

use serde_json::{Value, json};
use umavez_domain::access::{PresentedKey, Scope, allows, bearer};
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::downsells::ChargeStatus;
use umavez_domain::downsells::charges::{DEFAULT_GATEWAY, MOST_OPEN};
use umavez_domain::downsells::views::Scheduled;
use umavez_domain::downsells::webhook::{ChargeCreated, ChargeEnded, OwnerField};
use umavez_domain::fields::FieldError;
use umavez_domain::idempotency::body_hash;
use umavez_domain::senders::is_name;
use umavez_domain::telemetry::{Event, Metric};
use umavez_domain::webhooks::{Verified, WebhookSecrets};
use umavez_platform::api_keys;
use umavez_platform::downsells::{Charged, log};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::{Deps, intake};

const CHANNEL: &str = "payments";
const SCOPE: Scope = Scope("payments");

pub async fn created(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let gateway = admit(deps, invocation, request).await?;
    let event = ChargeCreated::read(&request.object()?, gateway, invocation.now).map_err(Problem::invalid)?;
    let bot = deps.downsells.bots.get(invocation, &event.bot).await?;
    let bot = bot.ok_or_else(|| Problem::not_found("there is no such bot; create it with POST /api/admin/bots"))?;
    let correlation_id = event.correlation_id.as_deref().unwrap_or(&invocation.request_id);
    match deps.downsells.charged(invocation, &bot, &event, correlation_id).await? {
        Charged::OtherContact => {
            Err(Problem::new(409, ProblemCode::HeldByAnother, "the transaction belongs to another person"))
        }
        Charged::TooMany => {
            let detail = format!("this contact has {MOST_OPEN} open charges: report those that have ended");
            Err(Problem::new(409, ProblemCode::TooManyCharges, detail))
        }
        Charged::Made { charge, plan } => {
            log::triggered(invocation, &plan);
            let mut answer = json!(Scheduled::of(&plan));
            answer["charge"] = json!(charge);
            accepted(invocation, "pix_created", correlation_id, answer)
        }
    }
}

/// Receives the end of a charge: it was paid, or it has expired.
pub async fn ended(
    deps: &Deps,
    invocation: &Invocation,
    request: &Request,
    status: ChargeStatus,
) -> Result<Answer, Problem> {
    let gateway = admit(deps, invocation, request).await?;
    let event = ChargeEnded::read(&request.object()?, gateway).map_err(Problem::invalid)?;
    let withdrawn = deps.downsells.charge_ended(invocation, &event, status).await?;
    let is_paid = status == ChargeStatus::Paid;
    let what = if is_paid { "payment_approved" } else { "pix_expired" };
    if is_paid && !withdrawn.owner_known {
        // Log a hash, because a transaction id can identify a person.
        let (owner_unknown, transaction) =
            (Event::PaymentOwnerUnknown.as_str(), body_hash(event.transaction_id.as_bytes()));
        tracing::warn!(event = owner_unknown, transaction, request_id = invocation.request_id);
        metrics::counter!(Metric::PaymentsOwnerUnknown.as_str()).increment(1);
    }
    if !withdrawn.differs.is_empty() {
        // Log only the names of the fields, because their values are personal data.
        let fields: Vec<_> = withdrawn.differs.iter().copied().map(OwnerField::as_str).collect();
        let (differs, fields) = (Event::PaymentOwnerDiffers.as_str(), fields.join(","));
        tracing::warn!(event = differs, what, fields, request_id = invocation.request_id);
    }
    let correlation_id = event.correlation_id.as_deref().unwrap_or(&invocation.request_id);
    accepted(invocation, what, correlation_id, json!(withdrawn))
}

/// Logs a stored event and answers it.
fn accepted(invocation: &Invocation, what: &str, correlation_id: &str, mut answer: Value) -> Result<Answer, Problem> {
    let (event, charge) = (Event::PaymentReported.as_str(), answer["charge"].as_str());
    tracing::info!(event, what, charge, correlation_id, request_id = invocation.request_id);
    answer["ok"] = json!(true);
    Answer::json(200, &answer)
}

/// Admits a request by its signature, or by an API key with the `payments` scope. Returns the
/// gateway that the request names.
async fn admit<'a>(deps: &Deps, invocation: &Invocation, request: &'a Request) -> Result<&'a str, Problem> {
    intake::refuse_encoded(request)?;
    let gateway = paging::optional(request, "gateway").unwrap_or(DEFAULT_GATEWAY);
    if let Some(key) = request.header("authorization").and_then(bearer) {
        admit_key(deps, invocation, key).await?;
        let detail = "must have 1 to 64 letters, digits, dots, hyphens or underscores";
        let malformed = || Problem::invalid(vec![FieldError::new("gateway", FieldProblem::Malformed, detail)]);
        return is_name(gateway).then_some(gateway).ok_or_else(malformed);
    }
    let header = |name: &str| request.header(name);
    let verify = |secrets: &WebhookSecrets| secrets.verify_payment(gateway, header, request.body(), invocation.now);
    if intake::verify_by_secret(deps, invocation, verify).await? == Verified::Yes {
        return Ok(gateway);
    }
    intake::log_refused(invocation, CHANNEL, true);
    Err(Problem::new(401, ProblemCode::Unverified, "the request does not prove where it comes from, or is too old"))
}

async fn admit_key(deps: &Deps, invocation: &Invocation, key: &str) -> Result<(), Problem> {
    let (presented, downsells) = (PresentedKey::of(key), &deps.downsells);
    let found = api_keys::find(&downsells.store, invocation, &downsells.bots.table, &presented).await?;
    match found.filter(|record| record.admits(&presented)) {
        None => {
            intake::log_refused(invocation, CHANNEL, true);
            Err(Problem::new(401, ProblemCode::InvalidKey, "the key is not known, or was revoked"))
        }
        Some(record) if allows(record.scopes.iter().map(String::as_str), SCOPE) => Ok(()),
        Some(_) => Err(Problem::new(403, ProblemCode::MissingScope, "the key has no scope that covers `payments`")),
    }
}
