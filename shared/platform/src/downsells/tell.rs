//! What is told of offers, in the log and as metrics: by the names that people look for. Ids and
//! codes, never who it is for.

use umavez_domain::codes::Event;
use umavez_domain::delivery::State;
use umavez_domain::downsells::{OfferRow, Status, Trigger, Why};

use super::Triggered;
use crate::invocation::Invocation;

/// What a trigger made.
pub fn triggered(invocation: &Invocation, triggered: &Triggered) {
    for offer in &triggered.offers {
        let (event, metric) = match offer.trigger {
            Trigger::Start => (Event::DownsellScheduledStart, "downsells_scheduled_start"),
            Trigger::Pix => (Event::DownsellScheduledPix, "downsells_scheduled_pix"),
        };
        line(invocation, offer, event);
        metrics::counter!(metric).increment(1);
        if offer.enqueued {
            enqueued(invocation, offer);
        }
    }
    triggered.ended.iter().for_each(|offer| changed(invocation, offer));
}

/// An offer was passed on to another charge, because its own expired.
pub fn passed_on(invocation: &Invocation, offer: &OfferRow) {
    line(invocation, offer, Event::DownsellPassedOn);
    metrics::counter!("downsells_passed_on").increment(1);
}

/// An offer has ended, unless it waits for a person to say whether it was sent.
pub fn ended(invocation: &Invocation, offer: &OfferRow) {
    if !offer.is_pending() {
        changed(invocation, offer);
    }
}

/// An offer was handed to its queue.
pub fn enqueued(invocation: &Invocation, offer: &OfferRow) {
    line(invocation, offer, Event::DownsellEnqueued);
    metrics::counter!("downsells_enqueued").increment(1);
}

/// How an offer stands after a change that is worth telling.
pub fn changed(invocation: &Invocation, offer: &OfferRow) {
    let (event, metric) = match (offer.status, offer.cancel_reason, offer.delivery.state) {
        (Status::Sent, ..) => (Event::DownsellSendOk, "downsells_sent"),
        (Status::Failed, ..) => (Event::DownsellSendErr, "downsells_failed"),
        (Status::Skipped, Some(Why::NoUnpaidPix), _) => (Event::DownsellSkip, "downsells_skipped_gate"),
        (Status::Skipped, ..) => (Event::DownsellSkip, "downsells_skipped_other"),
        (Status::Canceled, Some(Why::Paid), _) => (Event::DownsellCancelPaid, "downsells_canceled_paid"),
        (Status::Canceled, Some(Why::Expired), _) => (Event::DownsellCancelExpired, "downsells_canceled_expired"),
        (Status::Canceled, ..) => (Event::DownsellCancelOther, "downsells_canceled_other"),
        (Status::Expired, ..) => (Event::DownsellExpired, "downsells_expired"),
        (Status::Pending, _, State::Unknown) => (Event::DownsellSendUnknown, "downsells_unknown"),
        // There will be another attempt.
        (Status::Pending, ..) => return line(invocation, offer, Event::DownsellSendErr),
    };
    line(invocation, offer, event);
    metrics::counter!(metric).increment(1);
    if let Some(late_ms) = offer.late_ms {
        metrics::histogram!("downsells_lateness_ms").record(late_ms as f64);
    }
}

pub fn line(invocation: &Invocation, offer: &OfferRow, event: Event) {
    tracing::info!(
        event = event.as_str(),
        offer_id = offer.id.as_str(),
        bot = offer.bot,
        downsell_id = offer.downsell_id,
        trigger = offer.trigger.as_str(),
        reason = offer.cancel_reason.map(Why::as_str),
        code = offer.delivery.reason,
        attempts = offer.delivery.attempt,
        late_ms = offer.late_ms,
        correlation_id = offer.correlation_id,
        request_id = invocation.request_id,
    );
}
