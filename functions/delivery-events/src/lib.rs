//! Handles the events that SES sends after it accepted a mail: reconciles unknown attempts, marks
//! deliveries, and suppresses addresses after a permanent bounce or a complaint. Duplicate or
//! reordered events lead to the same state.

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::Error;
use umavez_domain::channels::email::ses_events::{self, Kind, NoEvent, SesEvent};
use umavez_domain::delivery::State;
use umavez_domain::mailings::{EntryState, MailingEntryId};
use umavez_domain::queue::Unreadable;
use umavez_domain::telemetry::{Event, Metric};
use umavez_platform::aws::Aws;
use umavez_platform::batch::{self, Handled};
use umavez_platform::config::ConfigError;
use umavez_platform::invocation::Invocation;
use umavez_platform::mailings::{EntryApplied, Mailings};
use umavez_platform::messages::{Applied, Messages};
use umavez_platform::store::{Store, StoreError};
use umavez_platform::suppressions::Suppressions;

const AT_ONCE: usize = 5;

#[derive(Debug)]
pub struct Deps {
    pub messages: Messages,
    pub mailings: Mailings,
    pub suppressions: Suppressions,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let store = Store::new(Aws::from_env()?.dynamodb());
        let messages = Messages::from_env(&store)?;
        Ok(Self { suppressions: messages.suppressions(), messages, mailings: Mailings::from_env(&store)? })
    }
}

pub async fn run(deps: &Deps, invocation: &Invocation, event: SqsEvent) -> Result<SqsBatchResponse, Error> {
    Ok(batch::messages(invocation, event, AT_ONCE, |message| handle(deps, invocation, message)).await)
}

async fn handle(deps: &Deps, invocation: &Invocation, message: SqsMessage) -> Handled {
    let event = match ses_events::read(&message.body.unwrap_or_default()) {
        Ok(event) => event,
        Err(NoEvent::Ignored) => return Ok("of_no_consequence"),
        Err(NoEvent::Unreadable) => return Err(Unreadable("an event of SES").into()),
    };
    let entry = event.message.as_ref().and_then(|(id, attempt)| Some((MailingEntryId::parse(id)?, *attempt)));
    if let Some((entry, attempt)) = entry {
        return Ok(of_mailing(deps, invocation, &entry, attempt, &event).await?);
    }
    let applied = deps.messages.apply(invocation, &event).await?;
    log_applied(invocation, &event, &applied);
    Ok(match applied {
        Applied::Reconciled(State::Sent) => "reconciled_sent",
        Applied::Reconciled(_) => "reconciled_failed",
        Applied::Marked => "marked",
        Applied::Known => "known",
        Applied::NoMessage => "no_message",
    })
}

/// Applies an event about a mail of a mailing to its entry, and suppresses the address if the event
/// requires it. Returns the outcome for the log.
async fn of_mailing(
    deps: &Deps,
    invocation: &Invocation,
    entry: &MailingEntryId,
    attempt: u32,
    event: &SesEvent,
) -> Result<&'static str, StoreError> {
    // Suppress the addresses first, so that no sender writes to them again. A duplicate event
    // changes nothing.
    deps.suppressions.add_event(invocation, event, &entry.to_string()).await?;
    let applied = deps.mailings.apply(invocation, entry, attempt, event).await?;
    let (logged, outcome) = match applied {
        EntryApplied::Reconciled(EntryState::Sent) => (Event::MailingReconciled, "reconciled_sent"),
        EntryApplied::Reconciled(_) => (Event::MailingReconciled, "reconciled_failed"),
        EntryApplied::Marked => (Event::MailingDeliveryReported, "marked"),
        EntryApplied::Known => return Ok("known"),
        EntryApplied::NoEntry => return Ok("no_entry"),
    };
    let (kind, entry_id) = (kind(event), entry.to_string());
    tracing::info!(event = logged.as_str(), kind, entry_id, outcome, request_id = invocation.request_id);
    metrics::counter!(Metric::DeliveryEvents.as_str(), "Kind" => kind).increment(1);
    Ok(outcome)
}

fn kind(event: &SesEvent) -> &'static str {
    match event.kind {
        Kind::Send => "send",
        Kind::Delivery => "delivery",
        Kind::Bounce { permanent: true } => "hard_bounce",
        Kind::Bounce { permanent: false } => "soft_bounce",
        Kind::Complaint => "complaint",
        Kind::Reject => "reject",
    }
}

fn log_applied(invocation: &Invocation, event: &SesEvent, applied: &Applied) {
    let kind = kind(event);
    let logged = match applied {
        Applied::Reconciled(_) => Event::OutboundReconciled,
        Applied::Marked => Event::OutboundDeliveryReported,
        Applied::Known | Applied::NoMessage => return,
    };
    let message_id = event.message.as_ref().map(|(id, _)| id.as_str()).unwrap_or_default();
    tracing::info!(event = logged.as_str(), kind, message_id, request_id = invocation.request_id);
    metrics::counter!(Metric::DeliveryEvents.as_str(), "Kind" => kind).increment(1);
}
