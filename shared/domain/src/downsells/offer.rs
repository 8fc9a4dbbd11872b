//! The rows of one contact: its offers, the refused events, and the slot of each downsell.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::absent::is_default;
use crate::change::{Fence, Row};
use crate::codes::codes;
use crate::delivery::{Delivered, Delivery, State, Window};
use crate::id::{hash_id, is_hex};
use crate::keys::{self, Key, short_hash};
use crate::queue::emit_offer;
use crate::time::Timestamp;
use crate::work::Work;

codes! {
    /// The kind of event that makes an offer.
    Trigger {
        Start = "start",
        Pix = "pix",
    }
}

codes! {
    /// The status of an offer.
    OfferStatus {
        /// It waits for its time, or is being sent.
        Pending = "pending",
        /// Telegram accepted it.
        Sent = "sent",
        /// Telegram refused it.
        Failed = "failed",
        /// It was ended before it was sent, for example by a payment.
        Canceled = "canceled",
        /// The offer's own `not_after` has passed.
        Expired = "expired",
        /// It was due, and was not sent for one of the reasons below.
        Skipped = "skipped",
    }
}

codes! {
    /// The delivery state of a pending offer, as callers see it.
    DeliveryView {
        /// It waits for its time, or for another attempt.
        Queued = "QUEUED",
        /// An attempt is under way.
        Sending = "SENDING",
        /// The offer may or may not have been sent.
        Unknown = "UNKNOWN",
    }
}

codes! {
    /// Why an offer was not sent.
    CancelReason {
        /// The charge was paid.
        Paid = "paid",
        /// Its charge expired.
        Expired = "expired",
        /// Its downsell was deleted.
        Deleted = "deleted",
        /// The contact has no unpaid charge.
        NoUnpaidPix = "no_unpaid_pix",
        /// Its downsell was switched off.
        Inactive = "inactive",
        /// The address is on the suppression list.
        Blocked = "blocked",
        /// The offer's bot was removed or deactivated.
        BotInactive = "bot_inactive",
    }
}

/// Identifies one contact of one bot, and names the partition that holds all rows of the contact.
/// The person's id is hashed. Deserialization does not check the format, because only this system
/// writes rows and queue bodies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContactId(String);

impl ContactId {
    /// A bot's slug contains no `#`.
    pub fn of(bot: &str, telegram_id: i64) -> Self {
        Self(format!("{bot}#{}", short_hash(&telegram_id.to_string())))
    }

    /// Reads the id that a key names; `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split_once('#').filter(|(_, hash)| is_hex(hash, 32)).map(|_| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn bot(&self) -> &str {
        self.0.split('#').next().unwrap_or_default()
    }
}

hash_id! {
    /// Identifies an event and its offer. A redelivered event has the same id, so it is the same
    /// offer.
    OfferId = "off_", 32
}

impl OfferId {
    pub fn of(event_id: &str) -> Self {
        Self::hash(event_id)
    }
}

/// An offer. The whole row is written when the offer is made; later writes only contain what
/// changed.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OfferRow {
    pub id: OfferId,
    pub event_id: String,
    pub bot: String,
    pub telegram_id: i64,
    pub downsell_id: u64,
    pub trigger: Trigger,
    pub transaction_id: Option<String>,
    /// The last few transactions that the offer was passed on from because they expired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_from: Vec<String>,
    pub scheduled_at: Timestamp,
    pub not_after: Timestamp,
    pub status: OfferStatus,
    pub cancel_reason: Option<CancelReason>,
    /// What the trigger contained, as JSON text.
    pub meta: Option<String>,
    pub correlation_id: String,
    /// How many payments the contact had made when the offer was scheduled. An offer that was
    /// scheduled before the last payment is not sent.
    pub pay_epoch: u64,
    #[serde(flatten)]
    pub delivery: Delivery,
    #[serde(flatten)]
    pub work: Work,
    pub last_attempt_at: Option<Timestamp>,
    /// How long after its scheduled time the offer was sent.
    pub late_ms: Option<i64>,
    /// Whether the offer has been handed to its queue. The index of a bot's offers contains this
    /// field, like the status.
    #[serde(default, skip_serializing_if = "is_default")]
    pub enqueued: bool,
    /// Whether the outcome of the offer is unknown. The same index contains this field, but not the
    /// delivery, which changes with every attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown: bool,
    /// The key of the index of a bot's offers, in the order in which they were made.
    pub listed: String,
    pub listed_at: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    pub expires_at: Option<i64>,
}

impl Row for OfferRow {
    fn key(&self) -> Key {
        keys::offer(&self.contact(), &self.id)
    }

    fn fence(&self) -> Fence {
        Fence::version(self.version)
    }
}

impl Delivered for OfferRow {
    fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

impl OfferRow {
    pub fn contact(&self) -> ContactId {
        ContactId::of(&self.bot, self.telegram_id)
    }

    pub fn is_pending(&self) -> bool {
        self.status == OfferStatus::Pending
    }

    pub fn is_queued(&self) -> bool {
        self.delivery.state == State::Queued
    }

    /// Returns the times between which the offer may be sent.
    pub fn window(&self) -> Window {
        Window { not_before: Some(self.scheduled_at), not_after: Some(self.not_after) }
    }

    /// Hands the offer to its queue, or leaves it to the sweep until `at` is near. The sweep builds
    /// the job from the offer's key, so the row does not store the job in advance.
    pub(super) fn scheduled(mut self, at: Timestamp, now: Timestamp) -> Self {
        let (contact, id) = (self.contact(), &self.id);
        self.work.schedule(id.as_str(), Some(at), now, |seq, not_before| emit_offer(&contact, id, seq, not_before));
        self.work.later = None;
        self.enqueued |= self.work.emit.is_some();
        self
    }

    pub(super) fn next_version(&self, now: Timestamp) -> Self {
        Self { updated_at: now, version: self.version + 1, ..self.clone() }
    }
}

/// An event that made no offer, stored under the key that its offer would have. A redelivered event
/// gets the same answer.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    pub id: OfferId,
    pub event_id: String,
    pub refused: super::Refused,
    /// The offer that was pending.
    pub by: Option<OfferId>,
    pub correlation_id: String,
    pub created_at: Timestamp,
    pub expires_at: i64,
}

/// Allows one pending offer per contact and downsell. The row stays after the offer has ended,
/// because it decides whether the downsell may be sent again.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRow {
    pub downsell_id: u64,
    pub offer: OfferId,
    pub pending: bool,
    pub ended_at: Option<Timestamp>,
    /// When an offer of the downsell was last sent.
    pub sent_at: Option<Timestamp>,
    /// The `pay_epoch` of its offer. `sent` is the number of the downsell's offers that were sent
    /// in this epoch.
    #[serde(default)]
    pub pay_epoch: u64,
    #[serde(default)]
    pub sent: u32,
    pub version: u64,
}

/// What the end of an offer changes in its slot, which is not read for that.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotEnd {
    pub pending: bool,
    pub ended_at: Timestamp,
    /// Set if the offer was sent. The slot counts the offer then.
    pub sent_at: Option<Timestamp>,
}

impl OfferRow {
    /// Returns what a change of this offer to `after` changes in its slot, on condition that no
    /// other offer has taken the slot since. `None` if the offer neither ends nor was sent.
    pub fn slot_end(&self, after: &Self) -> Option<(SlotEnd, Fence)> {
        #[derive(Serialize)]
        struct Held<'a> {
            offer: &'a OfferId,
            pending: bool,
        }
        let ends = self.is_pending() && !after.is_pending();
        let was_sent = self.status != OfferStatus::Sent && after.status == OfferStatus::Sent;
        let sent_at = after.delivery.sent_at.filter(|_| was_sent);
        let end = SlotEnd { pending: false, ended_at: after.updated_at, sent_at };
        let fence = Fence::same(&Held { offer: &after.id, pending: self.is_pending() });
        (ends || was_sent).then_some((end, fence))
    }
}

impl SlotRow {
    pub(super) fn taken(before: Option<&Self>, offer: &OfferRow) -> Self {
        Self {
            downsell_id: offer.downsell_id,
            offer: offer.id.clone(),
            pending: true,
            ended_at: None,
            sent_at: before.and_then(|slot| slot.sent_at),
            pay_epoch: offer.pay_epoch,
            sent: before.filter(|slot| slot.pay_epoch == offer.pay_epoch).map_or(0, |slot| slot.sent),
            version: before.map_or(1, |slot| slot.version + 1),
        }
    }
}
