//! Receives webhooks of providers: verifies, reads and stores them, and only then answers. It never
//! sends.
//!
//! This order is a guarantee. A request is verified before it is read, so that only the provider's
//! own data is processed. An event is stored before it is answered: if it cannot be stored, the
//! answer is 5xx and the provider delivers it again.

mod evolution;
mod intake;
mod payments;
mod telegram;

use std::sync::Arc;

use umavez_domain::downsells::ChargeStatus;
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::conversations::Conversations;
use umavez_platform::downsells::Downsells;
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;
use umavez_platform::suppressions::Suppressions;
use umavez_platform::webhooks::Webhooks;

const TELEGRAM: &str = "POST /webhooks/telegram/{bot}";
const EVOLUTION: &str = "POST /webhooks/evolution/{instance}";

const PIX_CREATED: &str = "POST /api/payment/webhook/pix-created";
const PAYMENT_APPROVED: &str = "POST /api/payment/webhook/payment-approved";
const PIX_EXPIRED: &str = "POST /api/payment/webhook/pix-expired";

/// The maximum body size. Evolution includes media in its messages if it is configured to; the
/// media are ignored.
const LARGEST_EVOLUTION: usize = 5 * 1024 * 1024;

/// The routes of this function. The template declares the same routes. They are public: providers
/// prove their identity with secrets of their own instead of an API key.
pub const ROUTES: &[Route] = &[
    Route::public(TELEGRAM).any_query(),
    Route::public(EVOLUTION).taking(LARGEST_EVOLUTION).any_query(),
    Route::public(PIX_CREATED).any_query(),
    Route::public(PAYMENT_APPROVED).any_query(),
    Route::public(PIX_EXPIRED).any_query(),
];

#[derive(Debug)]
pub struct Deps {
    pub conversations: Conversations,
    pub downsells: Downsells,
    pub suppressions: Suppressions,
    pub webhooks: Webhooks,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let (conversations, downsells) = (Conversations::from_env(&store)?, Downsells::from_env(&store)?);
        let suppressions = Suppressions { store, table: downsells.outbound_table.clone() };
        Ok(Self { conversations, downsells, suppressions, webhooks: Webhooks::from_env(&aws)? })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        TELEGRAM => telegram::run(deps, invocation, request).await,
        EVOLUTION => evolution::run(deps, invocation, request).await,
        PIX_CREATED => payments::created(deps, invocation, request).await,
        PAYMENT_APPROVED => payments::ended(deps, invocation, request, ChargeStatus::Paid).await,
        PIX_EXPIRED => payments::ended(deps, invocation, request, ChargeStatus::Expired).await,
        _ => Err(Problem::not_found("there is no such route")),
    }
}
