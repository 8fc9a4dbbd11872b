//! Runs backfill jobs of both schemas, regardless of the test mode: a job keeps the schema in which
//! it was created.

mod input;
mod work;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::Error;
use umavez_domain::ingest::BackfillId;
use umavez_domain::queue::BackfillJob;
use umavez_domain::uploaded::Uploaded;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Worked};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::ingest::{Backfills, Entries, SettingsTable};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Store, StoreError};
use umavez_platform::uploads::Uploads;
use umavez_platform::visibility::Visibility;

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

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let work = async |job| match job {
        BackfillJob::Uploaded(uploads) => uploaded(deps, invocation, &uploads).await,
        BackfillJob::Work(id) => work::run(deps, invocation, &id).await,
    };
    Ok(batch::work(&deps.visibility, invocation, event, 1, BackfillJob::read, work).await)
}

async fn uploaded(
    deps: &Deps,
    invocation: &Invocation,
    uploads: &[Uploaded<BackfillId>],
) -> Result<Worked, StoreError> {
    for upload in uploads {
        deps.backfills.uploaded(invocation, upload).await?;
    }
    Ok(Worked::Done("uploaded"))
}
