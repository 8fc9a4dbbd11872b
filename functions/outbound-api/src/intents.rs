//! Intents: whether a caller may send an intent to a client, and who holds the intent.

pub mod check;
pub mod read;
pub mod release;

use umavez_domain::codes::Reason;
use umavez_domain::intents::IntentRow;
use umavez_domain::telemetry::Event;
use umavez_platform::invocation::Invocation;

/// Logs an event of an intent. The answer and the row name a blocking holder. The log does not,
/// because callers choose the text of their keys.
fn log_intent(invocation: &Invocation, row: &IntentRow, event: Event, reason: Option<Reason>) {
    tracing::info!(
        event = event.as_str(),
        reason_code = reason.map(Reason::as_str),
        intent_type = row.intent_type,
        fingerprint = row.fingerprint,
        client_id = row.client_id,
        request_id = invocation.request_id,
    );
}
