//! What SES tells after it took a mail: reconciles unknown attempts, notes deliveries, and suppresses addresses that
//! bounced for good or complained. Delivered twice or in another order, events leave the same state.

use std::sync::Arc;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::codes::Event;
use umavez_domain::outbound::State;
use umavez_domain::outbound::ses_events::{self, Kind, Read, SesEvent};
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Outcome, RecordError};
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;
use umavez_platform::outbound::{Applied, Messages};
use umavez_platform::store::Store;

const AT_ONCE: usize = 5;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self { messages: Messages::from_env(&Store::new(Aws::from_env()?.dynamodb()))? })
    }
}

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    let (deps, at) = (&deps, &invocation);
    Ok(batch::messages(at, event, AT_ONCE, |message| handle(deps, at, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Result<Outcome, RecordError> {
    let event = match ses_events::read(&message.body.unwrap_or_default()) {
        Ok(event) => event,
        Err(Read::Ignored) => return Ok(Outcome("of_no_consequence")),
        Err(Read::Unreadable) => return Err(RecordError::Poison("unreadable_event")),
    };
    let applied = deps.messages.apply(invocation, &event).await.map_err(|_| RecordError::Retry("store"))?;
    tell(invocation, &event, &applied);
    Ok(Outcome(match applied {
        Applied::Reconciled(State::Sent) => "reconciled_sent",
        Applied::Reconciled(_) => "reconciled_failed",
        Applied::Marked => "marked",
        Applied::Known => "known",
        Applied::NoMessage => "no_message",
    }))
}

fn tell(invocation: &Invocation, event: &SesEvent, applied: &Applied) {
    let kind = match event.kind {
        Kind::Send => "send",
        Kind::Delivery => "delivery",
        Kind::Bounce { permanent: true } => "hard_bounce",
        Kind::Bounce { permanent: false } => "soft_bounce",
        Kind::Complaint => "complaint",
        Kind::Reject => "reject",
    };
    let told = match applied {
        Applied::Reconciled(_) => Event::OutboundReconciled,
        Applied::Marked => Event::OutboundDelivery,
        Applied::Known | Applied::NoMessage => return,
    };
    let message_id = event.message.as_ref().map(|(id, _)| id.as_str()).unwrap_or_default();
    tracing::info!(event = told.as_str(), kind, message_id, request_id = invocation.request_id);
    metrics::counter!("DeliveryEvents", "Kind" => kind).increment(1);
}
