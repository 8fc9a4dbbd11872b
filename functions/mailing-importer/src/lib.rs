//! Files become entries, and mailings are handed to their senders.

mod import;

use std::sync::Arc;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::mailings::files::Arrived;
use umavez_domain::queue::ImportJob;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::Mailings;
use umavez_platform::store::{Store, StoreError};
use umavez_platform::uploads::Uploads;
use umavez_platform::visibility::Visibility;

use crate::import::Worked;

const RETRY_MS: i64 = 15_000;

#[derive(Debug)]
pub struct Deps {
    pub mailings: Mailings,
    pub uploads: Uploads,
    pub visibility: Visibility,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        Ok(Self {
            mailings: Mailings::from_env(&store)?,
            visibility: Visibility::from_env(aws.sqs(), &["MAILING_IMPORT_QUEUE"], Some("MAILING_IMPORT_DLQ"))?,
            uploads: Uploads::new(aws, config::required("UPLOADS_BUCKET")?),
        })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let (deps, at) = (&deps, &invocation);
    Ok(batch::messages(at, event, 1, |message| handle(deps, at, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Result<Outcome, RecordError> {
    let handled = match ImportJob::read(message.body.as_deref().unwrap_or_default()) {
        Ok(ImportJob::Uploaded(files)) => arrived(deps, invocation, &files).await,
        Ok(ImportJob::HandOut(id)) => deps.mailings.hand_out(invocation, &id).await.map(|_| Worked::Done("handed_out")),
        Ok(ImportJob::Import(id)) => import::run(deps, invocation, &id).await,
        Err(_) => return deps.visibility.unreadable(invocation, &message).await,
    };
    let (wait_ms, why) = match handled {
        Ok(Worked::Done(outcome)) => return Ok(Outcome(outcome)),
        Ok(Worked::Busy(until)) => (until.millis() - invocation.current().millis() + 1_000, RecordError::Later("busy")),
        // The queue hides a message for as long as a turn may take: too long to wait for a store that was busy.
        Err(_) => (RETRY_MS, RecordError::Retry("store")),
    };
    deps.visibility.hide(invocation, &message, wait_ms).await;
    Err(why)
}

async fn arrived(deps: &Deps, invocation: &Invocation, files: &[Arrived]) -> Result<Worked, StoreError> {
    for file in files {
        deps.mailings.arrived(invocation, file).await?;
    }
    Ok(Worked::Done("arrived"))
}
