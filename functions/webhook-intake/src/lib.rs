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

use umavez_domain::downsells::ChargeStatus;
use umavez_platform::aws::Aws;
use umavez_platform::config::ConfigError;
use umavez_platform::conversations::Conversations;
use umavez_platform::downsells::Downsells;
use umavez_platform::http::Route;
use umavez_platform::store::Store;
use umavez_platform::suppressions::Suppressions;
use umavez_platform::webhooks::Webhooks;

/// The maximum body size. Evolution includes media in its messages if it is configured to; the
/// media are ignored.
const LARGEST_EVOLUTION: usize = 5 * 1024 * 1024;

// The routes are public: providers prove their identity with secrets of their own instead of an API
// key.
umavez_platform::routes! {
    Route::public("POST /webhooks/telegram/{bot}").any_query() => telegram::run,
    Route::public("POST /webhooks/evolution/{instance}").taking(LARGEST_EVOLUTION).any_query() => evolution::run,
    Route::public("POST /api/payment/webhook/pix-created").any_query() => payments::created,
    Route::public("POST /api/payment/webhook/payment-approved").any_query() =>
        async |deps, invocation, request| payments::ended(deps, invocation, request, ChargeStatus::Paid).await,
    Route::public("POST /api/payment/webhook/pix-expired").any_query() =>
        async |deps, invocation, request| payments::ended(deps, invocation, request, ChargeStatus::Expired).await,
}

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
