//! A small capability that uses every primitive of the platform and nothing else, so that tests can
//! break them one by one: jobs are created once, enqueued through the outbox, processed under a
//! lease, and found again by recovery.

pub mod api;
pub mod broken;
pub mod job;
pub mod recovery;
pub mod relay;
pub mod worker;

use std::collections::BTreeMap;

use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::outbox::Relay;
use umavez_platform::store::Store;

use crate::broken::Broken;

/// The dependencies of all four functions.
#[derive(Debug)]
pub struct Deps {
    pub store: Store,
    pub table: String,
    pub relay: Relay,
    pub broken: Option<Broken>,
    pub telegram_url: String,
    pub http: reqwest::Client,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let queues = BTreeMap::from([("work".to_owned(), config::required("WORK_QUEUE")?)]);
        let relay = Relay { sqs: aws.sqs(), queues };
        let broken = config::text("BROKEN").map(|name| Broken::parse(&name)).transpose()?;
        Ok(Self {
            store: Store::new(aws.dynamodb()),
            table: config::required("JOBS_TABLE")?,
            relay,
            broken,
            telegram_url: config::required("TELEGRAM_URL")?,
            http: reqwest::Client::new(),
        })
    }
}

/// Logs an event, and never returns.
pub async fn hang<T>() -> T {
    tracing::info!(event = "HANGING");
    std::future::pending().await
}
