//! Sends messages and offers: takes a rate slot, claims the attempt (the claim checks the gate),
//! makes the one call of the attempt, and writes its outcome.

mod deliver;
mod message;
mod offer;
mod rates;

use std::collections::BTreeMap;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::Error;
use umavez_domain::channels::Channel;
use umavez_domain::delivery::{UnknownPolicy, read_policies};
use umavez_domain::queue::SendJob;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::batch;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::downsells::{BotDownsellsCache, Downsells};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Limiter;
use umavez_platform::messages::Messages;
use umavez_platform::providers::{ProviderConfig, Providers};
use umavez_platform::senders::Senders;
use umavez_platform::store::Store;
use umavez_platform::visibility::Visibility;

/// All records of a batch run concurrently: most of the time they wait for their rate slot or for
/// the provider.
const AT_ONCE: usize = 10;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
    pub bot_downsells: BotDownsellsCache,
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
        let senders = Senders::from_env(&aws, &store, config::options("SEND_RATES", RateTable::with_options)?)?;
        let queues = ["OUTBOUND_START_QUEUE", "OUTBOUND_SHOT_QUEUE", "OUTBOUND_DOWNSELL_QUEUE"];
        Ok(Self {
            bot_downsells: BotDownsellsCache::new(Downsells::from_env(&store)?),
            limiter: Limiter::new(store, messages.table.clone()),
            messages,
            senders,
            providers: Providers::new(&aws, ProviderConfig::from_env()?),
            policies: config::options("UNKNOWN_POLICIES", read_policies)?,
            visibility: Visibility::from_env(aws.sqs(), &queues, "OUTBOUND_DLQ")?,
        })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let send = async |job| match job {
        SendJob::Message { id } => message::send(deps, invocation, &id).await,
        SendJob::Offer { contact, id } => offer::send(deps, invocation, &contact, &id).await,
    };
    Ok(batch::work(&deps.visibility, invocation, event, AT_ONCE, SendJob::read, send).await)
}
