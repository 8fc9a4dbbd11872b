//! Works on backfills, of both schemas whatever the test mode says: a job keeps the schema that it was made in.

mod input;
mod work;

use std::sync::Arc;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::ingest::Upload;
use umavez_domain::queue::BackfillJob;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::ingest::{Backfills, Entries, SettingsTable};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Store, StoreError};
use umavez_platform::uploads::Uploads;
use umavez_platform::visibility::Visibility;

use crate::work::Worked;

const RETRY_MS: i64 = 20_000;

#[derive(Debug)]
pub struct Deps {
    pub entries: Entries,
    pub settings: SettingsTable,
    pub backfills: Backfills,
    pub visibility: Visibility,
    pub uploads: Uploads,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let table = config::required("ENTRIES_TABLE")?;
        let test_table = config::required("ENTRIES_TEST_TABLE")?;
        Ok(Self {
            backfills: Backfills { store: store.clone(), table: table.clone() },
            entries: Entries { store: store.clone(), table, test_table },
            settings: SettingsTable { store, table: config::required("CONFIG_TABLE")? },
            visibility: Visibility::from_env(aws.sqs(), &["BACKFILL_QUEUE"], Some("BACKFILL_DLQ"))?,
            uploads: Uploads::new(aws, config::required("UPLOADS_BUCKET")?),
        })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let (deps, at) = (&deps, &invocation);
    Ok(batch::messages(at, event, 1, |message| handle(deps, at, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Result<Outcome, RecordError> {
    let handled = match BackfillJob::read(message.body.as_deref().unwrap_or_default()) {
        Ok(BackfillJob::Uploaded(uploads)) => uploaded(deps, invocation, &uploads).await,
        Ok(BackfillJob::Work(id)) => work::run(deps, invocation, &id).await,
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

async fn uploaded(deps: &Deps, invocation: &Invocation, uploads: &[Upload]) -> Result<Worked, StoreError> {
    for upload in uploads {
        deps.backfills.uploaded(invocation, upload).await?;
    }
    Ok(Worked::Done("uploaded"))
}
