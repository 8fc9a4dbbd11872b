//! The views that callers get of the queue, of the effects of a webhook, and of a bot's numbers.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::charges::{ChargeStatus, gateway_and_id};
use super::offer::{CancelReason, DeliveryView, OfferRow, OfferStatus, Trigger};
use super::schedule::{Plan, Refused};
use super::webhook::OwnerField;
use crate::delivery::State;

impl DeliveryView {
    /// Returns `None` if the offer has ended.
    pub fn of(state: State) -> Option<Self> {
        match state {
            State::Queued => Some(Self::Queued),
            State::Sending => Some(Self::Sending),
            State::Unknown => Some(Self::Unknown),
            _ => None,
        }
    }
}

impl OfferRow {
    /// Returns the offer as the queue shows it.
    pub fn view(&self) -> Value {
        let charge = self.transaction_id.as_deref().map(gateway_and_id);
        let meta = self.meta.as_deref().and_then(|meta| serde_json::from_str(meta).ok());
        json!({
            "id": self.id,
            "event_id": self.event_id,
            "bot_slug": self.bot,
            "telegram_id": self.telegram_id,
            "downsell_id": self.downsell_id,
            "trigger": self.trigger,
            "gateway": charge.map(|(gateway, _)| gateway),
            "transaction_id": charge.map(|(_, id)| id),
            "scheduled_at": self.scheduled_at,
            "not_after": self.not_after,
            "status": self.status,
            // Set if the offer is pending.
            "delivery": DeliveryView::of(self.delivery.state),
            "cancel_reason": self.cancel_reason,
            // The result of the last attempt.
            "code": self.delivery.reason,
            "meta": meta.unwrap_or_else(|| json!({})),
            "correlation_id": self.correlation_id,
            "attempts": self.delivery.attempt,
            "last_attempt_at": self.last_attempt_at,
            "sent_at": self.delivery.sent_at,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        })
    }
}

/// The number of downsells by what the trigger did with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Scheduled {
    pub scheduled: u32,
    pub duplicates: u32,
    pub already_pending: u32,
    /// Pending offers of a /start that gained the charge.
    pub upgraded: u32,
    /// The downsell was sent before, and must not be sent again, or not yet.
    pub not_rearmed: u32,
}

impl Scheduled {
    pub fn of(plan: &Plan) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            scheduled: count(plan.scheduled().count()),
            duplicates: plan.duplicates,
            already_pending: count(plan.refused(Refused::AlreadyPending)),
            upgraded: count(plan.refused(Refused::Upgraded)),
            not_rearmed: count(plan.refused(Refused::NotRearmed)),
        }
    }
}

/// What a payment or an expiry did. After the answer to a payment, only the offers that it counts
/// as in flight may still be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Withdrawn {
    pub charge: ChargeStatus,
    pub canceled: u32,
    pub in_flight: u32,
    pub already_sent: u32,
    /// Offers of an expired charge that now belong to another unpaid charge.
    pub passed_on: u32,
    /// Fields of the request that disagree with the owner of the stored transaction.
    pub differs: Vec<OwnerField>,
    /// Whether the contact of the transaction is known.
    pub owner_known: bool,
}

impl Withdrawn {
    /// Returns the counts for a charge of a known contact that has no offers.
    pub fn of(charge: ChargeStatus) -> Self {
        let (differs, owner_known) = (Vec::new(), true);
        Self { charge, canceled: 0, in_flight: 0, already_sent: 0, passed_on: 0, differs, owner_known }
    }

    /// Counts an offer by its current state: canceled for this reason, possibly still to be sent,
    /// or sent.
    pub fn count(&mut self, offer: &OfferRow, why: CancelReason) {
        match (offer.status, offer.cancel_reason) {
            (OfferStatus::Canceled, Some(reason)) if reason == why => self.canceled += 1,
            (OfferStatus::Pending, _) => self.in_flight += 1,
            (OfferStatus::Sent, _) => self.already_sent += 1,
            _ => {}
        }
    }

    /// Returns the counts for a charge whose contact is not known.
    pub fn unplaced(charge: ChargeStatus) -> Self {
        Self { owner_known: false, ..Self::of(charge) }
    }
}

/// An offer as the index of a bot's offers contains it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedOffer {
    pub pk: String,
    pub sk: String,
    pub listed_at: String,
    pub status: OfferStatus,
    pub trigger: Trigger,
    pub downsell_id: u64,
    #[serde(default)]
    pub cancel_reason: Option<CancelReason>,
    #[serde(default)]
    pub enqueued: bool,
    #[serde(default)]
    pub unknown: bool,
    #[serde(default)]
    pub late_ms: Option<i64>,
}

/// Selects offers by fields that [`ListedOffer`] has. An absent field selects all offers.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
pub struct OfferFilter {
    pub status: Option<OfferStatus>,
    pub trigger: Option<Trigger>,
    pub downsell_id: Option<u64>,
    /// `true` selects the offers whose outcome is unknown.
    pub unknown: Option<bool>,
}

/// The numbers of a bot, under the names of the metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Numbers {
    pub downsells_scheduled_start: u64,
    pub downsells_scheduled_pix: u64,
    pub downsells_enqueued: u64,
    pub downsells_sent: u64,
    pub downsells_failed: u64,
    /// Skipped because the contact had no unpaid charge.
    pub downsells_skipped_gate: u64,
    /// Skipped because the downsell or the bot is inactive, or because the person cannot be
    /// messaged.
    pub downsells_skipped_other: u64,
    pub downsells_canceled_paid: u64,
    pub downsells_canceled_expired: u64,
    pub downsells_canceled_other: u64,
    pub downsells_expired: u64,
    pub downsells_unknown: u64,
    pub downsells_pending: u64,
    /// Milliseconds between the scheduled time of an offer and the time when it was sent.
    pub lateness_ms_average: Option<f64>,
    pub lateness_ms_largest: Option<i64>,
    #[serde(skip)]
    late_ms: i64,
    #[serde(skip)]
    with_lateness: u32,
}

impl Numbers {
    pub fn count(&mut self, offer: &ListedOffer) {
        match offer.trigger {
            Trigger::Start => self.downsells_scheduled_start += 1,
            Trigger::Pix => self.downsells_scheduled_pix += 1,
        }
        self.downsells_enqueued += u64::from(offer.enqueued);
        let of_status = match (offer.status, offer.cancel_reason) {
            (OfferStatus::Pending, _) if offer.unknown => &mut self.downsells_unknown,
            (OfferStatus::Pending, _) => &mut self.downsells_pending,
            (OfferStatus::Sent, _) => &mut self.downsells_sent,
            (OfferStatus::Failed, _) => &mut self.downsells_failed,
            (OfferStatus::Skipped, Some(CancelReason::NoUnpaidPix)) => &mut self.downsells_skipped_gate,
            (OfferStatus::Skipped, _) => &mut self.downsells_skipped_other,
            (OfferStatus::Canceled, Some(CancelReason::Paid)) => &mut self.downsells_canceled_paid,
            (OfferStatus::Canceled, Some(CancelReason::Expired)) => &mut self.downsells_canceled_expired,
            (OfferStatus::Canceled, _) => &mut self.downsells_canceled_other,
            (OfferStatus::Expired, _) => &mut self.downsells_expired,
        };
        *of_status += 1;
        if let Some(late_ms) = offer.late_ms {
            self.late_ms += late_ms;
            self.with_lateness += 1;
            self.lateness_ms_largest = self.lateness_ms_largest.max(Some(late_ms));
            self.lateness_ms_average = Some(self.late_ms as f64 / f64::from(self.with_lateness));
        }
    }
}
