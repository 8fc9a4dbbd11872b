//! Imports files into entries, and enqueues the shards of mailings for their senders.

mod import;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::Error;
use umavez_domain::mailings::MailingId;
use umavez_domain::queue::ImportJob;
use umavez_domain::uploaded::Uploaded;
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Worked};
use umavez_platform::config::{self, ConfigError};
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::Mailings;
use umavez_platform::store::{Store, StoreError};
use umavez_platform::uploads::Uploads;
use umavez_platform::visibility::Visibility;

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

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let work = async |job| match job {
        ImportJob::Uploaded(files) => uploaded(deps, invocation, &files).await,
        ImportJob::HandOut(id) => {
            deps.mailings.enqueue_shards(invocation, &id).await.map(|()| Worked::Done("handed_out"))
        }
        ImportJob::Import(id) => import::run(deps, invocation, &id).await,
    };
    Ok(batch::work(&deps.visibility, invocation, event, 1, ImportJob::read, work).await)
}

async fn uploaded(deps: &Deps, invocation: &Invocation, files: &[Uploaded<MailingId>]) -> Result<Worked, StoreError> {
    for file in files {
        deps.mailings.uploaded(invocation, file).await?;
    }
    Ok(Worked::Done("arrived"))
}
