//! Answers bursts of messages: claims a batch, asks the responder, hands the reply over to
//! outbound, and follows it until it is settled.

mod ask;
mod work;

use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::Error;
use umavez_domain::queue::WakeUp;
use umavez_platform::aws::Aws;
use umavez_platform::batch;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::conversations::Conversations;
use umavez_platform::invocation::Invocation;
use umavez_platform::outgoing::Outgoing;
use umavez_platform::store::Store;
use umavez_platform::visibility::Visibility;
use umavez_platform::webhooks::Webhooks;

/// All wake-ups of a batch run concurrently: most of the time they wait for responders.
const AT_ONCE: usize = 10;
/// The maximum responder timeout of any instance.
const LONGEST_CALL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Deps {
    pub conversations: Conversations,
    pub webhooks: Webhooks,
    pub outgoing: Outgoing,
    /// The responder for instances that do not name their own.
    pub responder_url: Option<String>,
    pub visibility: Visibility,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        Ok(Self {
            conversations: Conversations::from_env(&Store::new(aws.dynamodb()))?,
            webhooks: Webhooks::from_env(&aws)?,
            outgoing: Outgoing::new(LONGEST_CALL),
            responder_url: config::text("RESPONDER_URL"),
            visibility: Visibility::from_env(aws.sqs(), &["CONVERSATIONS_QUEUE"], Some("CONVERSATIONS_DLQ"))?,
        })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let work = async |wake| work::run(deps, invocation, &wake).await;
    Ok(batch::work(&deps.visibility, invocation, event, AT_ONCE, WakeUp::read, work).await)
}
