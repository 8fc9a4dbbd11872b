//! The logs and metrics of offers, under the names that people search for. A log line has ids and
//! codes, never the recipient.

use umavez_domain::codes::Event;
use umavez_domain::delivery::State;
use umavez_domain::downsells::{CancelReason, OfferRow, OfferStatus, Plan, Trigger};

use crate::invocation::Invocation;

/// Logs the offers that a trigger created and ended.
pub fn triggered(invocation: &Invocation, plan: &Plan) {
    for offer in plan.scheduled() {
        let (event, metric) = match offer.trigger {
            Trigger::Start => (Event::DownsellScheduledStart, "downsells_scheduled_start"),
            Trigger::Pix => (Event::DownsellScheduledPix, "downsells_scheduled_pix"),
        };
        offer_event(invocation, offer, event);
        metrics::counter!(metric).increment(1);
        if offer.enqueued {
            enqueued(invocation, offer);
        }
    }
    plan.ended().for_each(|offer| changed(invocation, offer));
}

/// Logs that an offer was passed on to another charge because its own expired.
pub fn passed_on(invocation: &Invocation, offer: &OfferRow) {
    offer_event(invocation, offer, Event::DownsellPassedOn);
    metrics::counter!("downsells_passed_on").increment(1);
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
    metrics::counter!("downsells_enqueued").increment(1);
}

/// Logs the state of an offer after a change.
pub fn changed(invocation: &Invocation, offer: &OfferRow) {
    let (event, metric) = match (offer.status, offer.cancel_reason, offer.delivery.state) {
        (OfferStatus::Sent, ..) => (Event::DownsellSendOk, "downsells_sent"),
        (OfferStatus::Failed, ..) => (Event::DownsellSendErr, "downsells_failed"),
        (OfferStatus::Skipped, Some(CancelReason::NoUnpaidPix), _) => (Event::DownsellSkip, "downsells_skipped_gate"),
        (OfferStatus::Skipped, ..) => (Event::DownsellSkip, "downsells_skipped_other"),
        (OfferStatus::Canceled, Some(CancelReason::Paid), _) => (Event::DownsellCancelPaid, "downsells_canceled_paid"),
        (OfferStatus::Canceled, Some(CancelReason::Expired), _) => {
            (Event::DownsellCancelExpired, "downsells_canceled_expired")
        }
        (OfferStatus::Canceled, ..) => (Event::DownsellCancelOther, "downsells_canceled_other"),
        (OfferStatus::Expired, ..) => (Event::DownsellExpired, "downsells_expired"),
        (OfferStatus::Pending, _, State::Unknown) => (Event::DownsellSendUnknown, "downsells_unknown"),
        // The offer gets another attempt.
        (OfferStatus::Pending, ..) => return offer_event(invocation, offer, Event::DownsellSendErr),
    };
    offer_event(invocation, offer, event);
    metrics::counter!(metric).increment(1);
    if let Some(late_ms) = offer.late_ms {
        metrics::histogram!("downsells_lateness_ms").record(late_ms as f64);
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
