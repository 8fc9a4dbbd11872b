//! Sends mailings, one shard at a time under its lease.

mod pass;
mod send;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::Error;
use umavez_domain::channels::Channel;
use umavez_domain::queue::ShardJob;
use umavez_domain::senders::Resolved;
use umavez_domain::senders::rates::RateTable;
use umavez_platform::aws::Aws;
use umavez_platform::batch;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::invocation::Invocation;
use umavez_platform::limiter::Limiter;
use umavez_platform::mailings::{LinkSecrets, Mailings, Unsubscribes};
use umavez_platform::providers::{ProviderConfig, Providers};
use umavez_platform::store::Store;
use umavez_platform::visibility::Visibility;

#[derive(Debug)]
pub struct Deps {
    pub mailings: Mailings,
    pub unsubscribes: Unsubscribes,
    pub limiter: Limiter,
    /// The rate bucket that all mail shares, and its limits.
    pub mail: Resolved,
    pub providers: Providers,
    pub links: LinkSecrets,
    /// The base URL of the unsubscribe pages.
    pub public_url: String,
    pub visibility: Visibility,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let unsubscribes = Unsubscribes::from_env(&store)?;
        let rates = config::options("SEND_RATES", RateTable::with_options)?;
        Ok(Self {
            mailings: Mailings::from_env(&store)?,
            limiter: Limiter::new(store.clone(), unsubscribes.table.clone()),
            unsubscribes,
            mail: Resolved::of_mail(rates.of(Channel::Email)),
            providers: Providers::new(&aws, ProviderConfig::of_mail()?),
            links: LinkSecrets::from_env(&aws)?,
            public_url: config::required("PUBLIC_URL")?,
            visibility: Visibility::from_env(aws.sqs(), &["MAILING_SEND_QUEUE"], "MAILING_SEND_DLQ")?,
        })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let send = async |job| pass::run(deps, invocation, &job).await;
    Ok(batch::work(&deps.visibility, invocation, event, 1, ShardJob::read, send).await)
}
