//! The logs and metrics of offers, under the names that people search for. A log line has ids and
//! codes, never the recipient.

use umavez_domain::delivery::State;
use umavez_domain::downsells::{CancelReason, OfferRow, OfferStatus, Plan, Trigger};
use umavez_domain::telemetry::{Event, Metric};

use crate::invocation::Invocation;

/// Logs the offers that a trigger created and ended.
pub fn triggered(invocation: &Invocation, plan: &Plan) {
    for offer in plan.scheduled() {
        let metric = match offer.trigger {
            Trigger::Start => Metric::DownsellsScheduledStart,
            Trigger::Pix => Metric::DownsellsScheduledPix,
        };
        offer_event(invocation, offer, Event::DownsellScheduled);
        metrics::counter!(metric.as_str()).increment(1);
        if offer.enqueued {
            enqueued(invocation, offer);
        }
    }
    plan.ended().for_each(|offer| changed(invocation, offer));
}

/// Logs that an offer was passed on to another charge because its own expired.
pub fn passed_on(invocation: &Invocation, offer: &OfferRow) {
    offer_event(invocation, offer, Event::DownsellPassedOn);
    metrics::counter!(Metric::DownsellsPassedOn.as_str()).increment(1);
}

/// Logs that an offer has ended. A no-op while the offer is still pending, for example until an
/// operator declares whether it was sent.
pub fn ended(invocation: &Invocation, offer: &OfferRow) {
    if !offer.is_pending() {
        changed(invocation, offer);
    }
}

/// Logs that an offer was enqueued.
pub fn enqueued(invocation: &Invocation, offer: &OfferRow) {
    offer_event(invocation, offer, Event::DownsellEnqueued);
    metrics::counter!(Metric::DownsellsEnqueued.as_str()).increment(1);
}

/// Logs the state of an offer after a change.
pub fn changed(invocation: &Invocation, offer: &OfferRow) {
    let (event, metric) = match (offer.status, offer.cancel_reason, offer.delivery.state) {
        (OfferStatus::Sent, ..) => (Event::DownsellSent, Metric::DownsellsSent),
        (OfferStatus::Failed, ..) => (Event::DownsellFailed, Metric::DownsellsFailed),
        (OfferStatus::Skipped, Some(CancelReason::NoUnpaidPix), _) => {
            (Event::DownsellSkipped, Metric::DownsellsSkippedGate)
        }
        (OfferStatus::Skipped, ..) => (Event::DownsellSkipped, Metric::DownsellsSkippedOther),
        (OfferStatus::Canceled, Some(CancelReason::Paid), _) => {
            (Event::DownsellCanceled, Metric::DownsellsCanceledPaid)
        }
        (OfferStatus::Canceled, Some(CancelReason::Expired), _) => {
            (Event::DownsellCanceled, Metric::DownsellsCanceledExpired)
        }
        (OfferStatus::Canceled, ..) => (Event::DownsellCanceled, Metric::DownsellsCanceledOther),
        (OfferStatus::Expired, ..) => (Event::DownsellExpired, Metric::DownsellsExpired),
        (OfferStatus::Pending, _, State::Unknown) => (Event::DownsellUnknown, Metric::DownsellsUnknown),
        // The offer gets another attempt.
        (OfferStatus::Pending, ..) => return offer_event(invocation, offer, Event::DownsellRetryScheduled),
    };
    offer_event(invocation, offer, event);
    metrics::counter!(metric.as_str()).increment(1);
    if let Some(late_ms) = offer.late_ms {
        metrics::histogram!(Metric::DownsellLatenessMs.as_str()).record(late_ms as f64);
    }
}

/// Logs an event of an offer.
pub fn offer_event(invocation: &Invocation, offer: &OfferRow, event: Event) {
    tracing::info!(
        event = event.as_str(),
        offer_id = offer.id.as_str(),
        bot = offer.bot,
        downsell_id = offer.downsell_id,
        trigger = offer.trigger.as_str(),
        reason = offer.cancel_reason.map(CancelReason::as_str),
        code = offer.delivery.reason,
        attempts = offer.delivery.attempt,
        late_ms = offer.late_ms,
        correlation_id = offer.correlation_id,
        request_id = invocation.request_id,
    );
}
