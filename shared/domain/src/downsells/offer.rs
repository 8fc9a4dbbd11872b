//! The rows of one contact: its offers, the events that were refused, and the slot of each downsell.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::absent::is_default;
use crate::codes::codes;
use crate::id::{hash_id, is_hex};
use crate::keys::{self, Wake, short_hash};
use crate::messages::CHECK_AFTER_MS;
use crate::outbox::Emit;
use crate::queue::emit_offer;
use crate::time::Timestamp;
use crate::work::{Due, due};

codes! {
    /// What makes an offer.
    Trigger {
        Start = "start",
        Pix = "pix",
    }
}

codes! {
    /// Where an offer stands.
    Status {
        Pending = "pending",
        Sent = "sent",
        Failed = "failed",
        Canceled = "canceled",
        /// Its own `not_after` passed.
        Expired = "expired",
        Skipped = "skipped",
    }
}

codes! {
    /// How far a pending offer has come.
    Delivery {
        Queued = "QUEUED",
        Sending = "SENDING",
        /// It may have been sent or not.
        Unknown = "UNKNOWN",
    }
}

codes! {
    /// Why an offer was not sent.
    Why {
        Paid = "paid",
        /// Its charge expired.
        Expired = "expired",
        /// Its downsell was deleted.
        Deleted = "deleted",
        NoUnpaidPix = "no_unpaid_pix",
        Inactive = "inactive",
        /// The address is on the suppression list.
        Blocked = "blocked",
        /// Its bot was taken away, or put to rest.
        BotInactive = "bot_inactive",
    }
}

/// One person of one bot: the partition that holds everything about them. The person is hashed. Rows and queue bodies are
/// trusted to hold one: only we write them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContactId(String);

impl ContactId {
    /// Slugs have no `#` in them.
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
    /// What an event is known by: told again, it is the same offer.
    OfferId = "off_", 32
}

impl OfferId {
    pub fn of(event_id: &str) -> Self {
        Self::hash(event_id)
    }
}

/// An offer. It is written whole when it is made; afterwards only what changed is.
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
    /// The transactions that it was passed on from, because they expired; the last few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_from: Vec<String>,
    pub scheduled_at: Timestamp,
    pub not_after: Timestamp,
    pub status: Status,
    /// Only while it is pending.
    pub delivery: Option<Delivery>,
    pub cancel_reason: Option<Why>,
    /// What the last attempt came to: a code.
    pub code: Option<String>,
    /// What its trigger said, as JSON text.
    pub meta: Option<String>,
    pub correlation_id: String,
    /// How many payments the contact had made when it was scheduled: one that was scheduled before the last is not sent.
    pub pay_epoch: u64,
    /// The last attempt that was begun.
    pub attempts: u32,
    /// Attempts that do not count as tries.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tries_from: u32,
    /// An earlier attempt that may have been sent. While there is one, the offer cannot end as one that was not.
    pub doubt: Option<u32>,
    pub last_attempt_at: Option<Timestamp>,
    /// The next attempt is not made before this.
    pub not_before: Option<Timestamp>,
    /// Milliseconds; an attempt without an answer by then is unknown.
    pub deadline: Option<i64>,
    /// Which sender began the attempt.
    pub claim: Option<String>,
    pub provider_id: Option<String>,
    pub sent_at: Option<Timestamp>,
    /// How long after its time it was sent.
    pub late_ms: Option<i64>,
    /// It has been handed to its queue. In the index of a bot's offers, as the status is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub enqueued: bool,
    /// Nobody knows what became of it. In the same index, where the delivery is not: it changes with every attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown: bool,
    pub emit: Option<Emit>,
    pub wake: Option<String>,
    pub wake_at: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub recoveries: u32,
    /// The index of a bot's offers, in the order of their making.
    pub listed: String,
    pub listed_at: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: u64,
    pub expires_at: Option<i64>,
}

impl OfferRow {
    pub fn contact(&self) -> ContactId {
        ContactId::of(&self.bot, self.telegram_id)
    }

    pub fn is_pending(&self) -> bool {
        self.status == Status::Pending
    }

    pub fn is_queued(&self) -> bool {
        self.delivery == Some(Delivery::Queued)
    }

    /// Hands it to its queue, or leaves it to the sweep until its time is near. Emissions are numbered by the time at which
    /// they are made, so that a sweep need not know of the one before.
    pub(super) fn handed_over(mut self, at: Timestamp, now: Timestamp) -> Self {
        let shard = keys::wake_shard(self.id.as_str());
        match due(Some(at), now) {
            Due::Emitted { not_before } => {
                let from = not_before.map_or(now, |at| now.max(Timestamp::from_millis(at)));
                self.emit = Some(emit_offer(&self.contact(), &self.id, not_before, now));
                self.wake = Some(keys::wake(Wake::Check, shard));
                self.wake_at = Some(keys::at_time(from.plus_ms(CHECK_AFTER_MS), self.id.as_str()));
                self.enqueued = true;
            }
            Due::Indexed { due_at } => {
                self.emit = None;
                self.wake = Some(keys::wake(Wake::Due, shard));
                self.wake_at = Some(keys::at_time(Timestamp::from_millis(due_at), self.id.as_str()));
            }
        }
        self
    }

    pub(super) fn not_waiting(mut self) -> Self {
        (self.emit, self.wake, self.wake_at) = (None, None, None);
        (self.deadline, self.not_before, self.claim) = (None, None, None);
        self
    }

    pub(super) fn next_version(&self, now: Timestamp) -> Self {
        Self { updated_at: now, version: self.version + 1, ..self.clone() }
    }
}

/// An event that made no offer, in the place where its offer would be: told again, it gets the same answer.
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

/// One pending offer per contact and downsell. It stays when the offer has ended, so that re-arming is decided on it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRow {
    pub downsell_id: u64,
    pub offer: OfferId,
    pub pending: bool,
    pub ended_at: Option<Timestamp>,
    /// When an offer of it was last sent.
    pub sent_at: Option<Timestamp>,
    /// How many payments its offer knew of; and how many offers of it were sent between those and the next.
    #[serde(default)]
    pub pay_epoch: u64,
    #[serde(default)]
    pub sent: u32,
    pub version: u64,
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
