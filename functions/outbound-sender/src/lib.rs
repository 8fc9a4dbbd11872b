//! The one that sends: rate token, then the claim with its gate, then the one call of the attempt, then its outcome.

mod offer;
mod rates;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::channels::Channel;
use umavez_domain::delivery::{UnknownPolicy, read_policies};
use umavez_domain::queue::SendJob;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::downsells::{Boards, Downsells};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Limiter;
use umavez_platform::messages::Messages;
use umavez_platform::providers::{ProviderConfig, Providers};
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;
use umavez_platform::visibility::{Visibility, receptions};

use crate::send::Step;

/// All messages of a delivery at once: most of their time they wait for their slot or for the provider.
const AT_ONCE: usize = 10;
/// Seconds over which messages that have come back this often, or more, are spread.
const LARGEST_SPREAD: u32 = 20;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
    pub boards: Boards,
    pub limiter: Limiter,
    pub senders: Senders,
    pub providers: Providers,
    pub policies: BTreeMap<Channel, UnknownPolicy>,
    pub visibility: Visibility,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let messages = Messages::from_env(&store)?;
        let option = |name: &str| config::text(name).unwrap_or_else(|| "{}".to_owned());
        let rates = RateTable::with_options(&option("SEND_RATES"))
            .map_err(|error| ConfigError::malformed("SEND_RATES", format!("usable: {error}")))?;
        let senders = Senders::from_env(&aws, &store, rates)?;
        let policies = read_policies(&option("UNKNOWN_POLICIES"))
            .map_err(|error| ConfigError::malformed("UNKNOWN_POLICIES", format!("usable: {error}")))?;
        let queues = ["OUTBOUND_START_QUEUE", "OUTBOUND_SHOT_QUEUE", "OUTBOUND_DOWNSELL_QUEUE"];
        Ok(Self {
            boards: Boards::new(Downsells::from_env(&store)?),
            limiter: Limiter { store, table: messages.table.clone() },
            messages,
            senders,
            providers: Providers::new(&aws, ProviderConfig::from_env()?),
            policies,
            visibility: Visibility::from_env(aws.sqs(), &queues, Some("OUTBOUND_DLQ"))?,
        })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let (deps, at) = (&deps, &invocation);
    Ok(batch::messages(at, event, AT_ONCE, |message| handle(deps, at, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Result<Outcome, RecordError> {
    let step = match SendJob::read(message.body.as_deref().unwrap_or_default()) {
        Ok(SendJob::Message { id, .. }) => send::run(deps, invocation, &id).await,
        Ok(SendJob::Offer { contact, id, .. }) => offer::run(deps, invocation, &contact, &id).await,
        Err(_) => return deps.visibility.unreadable(invocation, &message).await,
    };
    let (why, wait_ms) = match step {
        Ok(Step::Done(outcome)) => return Ok(Outcome(outcome)),
        Ok(Step::Later { why, at }) => (RecordError::Later(why), at.millis() - invocation.current().millis()),
        Err(_) => (RecordError::Retry("store"), i64::from(receptions(&message).min(60)) * 1_000),
    };
    // Those who were refused together do not come back together, and the longer the queue, the less often they do.
    let spread_ms = i64::from(fastrand::u32(0..=1_000) * receptions(&message).min(LARGEST_SPREAD));
    deps.visibility.hide(invocation, &message, wait_ms.max(0) + spread_ms).await;
    Err(why)
}
