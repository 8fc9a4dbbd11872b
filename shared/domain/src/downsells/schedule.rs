//! Plans what a trigger makes: for each downsell of the bot an offer, or the reason why there is
//! none. One transaction writes the whole plan.

use std::collections::BTreeMap;

use super::charges::ChargesRow;
use super::definition::{DownsellRow, Rearm};
use super::offer::{OfferId, OfferRow, OfferStatus, RefusedRow, SlotRow, Trigger};
use super::transitions::OfferEnd;
use crate::codes::codes;
use crate::delivery::Delivery;
use crate::keys;
use crate::time::Timestamp;
use crate::work::Work;

codes! {
    /// Why an event made no offer.
    Refused {
        /// The user already has a pending offer of the downsell.
        AlreadyPending = "already_pending",
        /// The downsell was sent before, and must not be sent again, or not yet.
        NotRearmed = "not_rearmed",
        /// The pending offer of a /start gained the charge.
        Upgraded = "upgraded",
    }
}

/// The rows of one contact as they were read: its charges, its slots with their offers, and the
/// events that were asked for.
#[derive(Debug, Clone, Default)]
pub struct Contact {
    pub charges: Option<ChargesRow>,
    pub slots: BTreeMap<u64, SlotRow>,
    pub offers: BTreeMap<OfferId, OfferRow>,
    pub refused: BTreeMap<OfferId, RefusedRow>,
}

impl Contact {
    pub fn pay_epoch(&self) -> u64 {
        self.charges.as_ref().map_or(0, |charges| charges.pay_epoch)
    }

    /// Returns the pending offer that holds the slot of this downsell.
    pub fn pending(&self, downsell_id: u64) -> Option<&OfferRow> {
        let slot = self.slots.get(&downsell_id).filter(|slot| slot.pending)?;
        self.offers.get(&slot.offer).filter(|offer| offer.is_pending())
    }

    /// Returns how many offers were sent in this epoch whose slots other offers hold now. This
    /// happens because a downsell may be sent again.
    pub fn sent_count_beyond_current_slots(&self, pay_epoch: u64) -> u32 {
        let in_epoch = self.slots.values().filter(|slot| slot.pay_epoch == pay_epoch);
        let before = in_epoch.map(|slot| {
            // A slot counts its own offer if the offer had ended when the slot was read. It does
            // not count an offer that was still pending then.
            let sent = self.offers.get(&slot.offer).is_some_and(|offer| offer.status == OfferStatus::Sent);
            slot.sent.saturating_sub(u32::from(sent && !slot.pending))
        });
        before.sum()
    }
}

/// Returns the id of the offer that a charge would have made of a downsell.
pub fn offer_of_charge(bot: &str, telegram_id: i64, downsell_id: u64, transaction_id: &str) -> OfferId {
    OfferId::of(&event_id(bot, telegram_id, downsell_id, Trigger::Pix, transaction_id))
}

/// Returns the id of an event. It contains no wall-clock time, so a redelivered event has the same
/// id and is the same offer.
fn event_id(bot: &str, telegram_id: i64, downsell_id: u64, trigger: Trigger, source: &str) -> String {
    format!("{bot}:{telegram_id}:{downsell_id}:{trigger}:{source}")
}

/// A trigger: what happened, and to which contact.
#[derive(Debug, Clone)]
pub struct TriggerEvent<'a> {
    pub bot: &'a str,
    pub telegram_id: i64,
    pub trigger: Trigger,
    /// The transaction, or the id of the update that contained the /start.
    pub source: &'a str,
    /// The time of the trigger itself.
    pub at: Timestamp,
    pub correlation_id: &'a str,
    pub meta: Option<&'a str>,
    /// How long ended rows are kept.
    pub keep_days: i64,
}

/// How long refused events are stored: as long as they may be redelivered.
const REFUSED_DAYS: i64 = 8;

impl TriggerEvent<'_> {
    /// Returns the ids of the offers that this trigger could make.
    pub fn events(&self, downsells: &[DownsellRow]) -> Vec<OfferId> {
        downsells.iter().map(|downsell| OfferId::of(&self.event_id(downsell.id))).collect()
    }

    fn event_id(&self, downsell_id: u64) -> String {
        event_id(self.bot, self.telegram_id, downsell_id, self.trigger, self.source)
    }
}

/// One change that a trigger makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep {
    /// A new offer takes the slot. `stale` is the outdated offer that held the slot, before and
    /// after the change; it ends in the same write.
    Schedule {
        offer: Box<OfferRow>,
        slot: SlotRow,
        slot_before: Option<SlotRow>,
        stale: Option<Box<(OfferRow, OfferRow)>>,
    },
    /// Stores the event as refused. `pending` is the slot that a charge found taken. If the offer
    /// of this slot ends before the write, the trigger decides again; otherwise the charge would be
    /// left without an offer.
    Refuse { event: Box<RefusedRow>, pending: Option<SlotRow> },
    /// Changes a pending offer, and stores the event as part of it.
    Join { before: Box<OfferRow>, after: Box<OfferRow>, event: Box<RefusedRow> },
}

/// All changes that a trigger makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<PlanStep>,
    /// The number of events that were delivered before.
    pub duplicates: u32,
}

impl Plan {
    pub fn scheduled(&self) -> impl Iterator<Item = &OfferRow> {
        self.steps.iter().filter_map(|step| match step {
            PlanStep::Schedule { offer, .. } => Some(&**offer),
            _ => None,
        })
    }

    /// Returns the outdated offers that the new offers replace, as they end.
    pub fn ended(&self) -> impl Iterator<Item = &OfferRow> {
        self.steps.iter().filter_map(|step| match step {
            PlanStep::Schedule { stale: Some(stale), .. } => Some(&stale.1),
            _ => None,
        })
    }

    pub fn refused(&self, why: Refused) -> usize {
        let is_it = |step: &&PlanStep| match step {
            PlanStep::Refuse { event, .. } | PlanStep::Join { event, .. } => event.refused == why,
            PlanStep::Schedule { .. } => false,
        };
        self.steps.iter().filter(is_it).count()
    }
}

/// Decides on every downsell that the trigger applies to.
pub fn plan(event: &TriggerEvent<'_>, downsells: &[DownsellRow], contact: &Contact, now: Timestamp) -> Plan {
    let is_for = |row: &&DownsellRow| {
        row.active
            && match event.trigger {
                Trigger::Start => row.after_start,
                Trigger::Pix => row.after_pix,
            }
    };
    let mut plan = Plan::default();
    for downsell in downsells.iter().filter(is_for) {
        match step(event, downsell, contact, now) {
            Some(step) => plan.steps.push(step),
            None => plan.duplicates += 1,
        }
    }
    plan
}

/// Decides on one downsell. `None` if the event is a duplicate.
fn step(event: &TriggerEvent<'_>, downsell: &DownsellRow, contact: &Contact, now: Timestamp) -> Option<PlanStep> {
    let event_id = event.event_id(downsell.id);
    let id = OfferId::of(&event_id);
    if contact.offers.contains_key(&id) || contact.refused.contains_key(&id) {
        return None;
    }
    let scheduled_at = downsell.scheduled_at(event.at);
    let refuse = |refused: Refused, by: Option<&OfferRow>| RefusedRow {
        id: id.clone(),
        event_id: event_id.clone(),
        refused,
        by: by.map(|offer| offer.id.clone()),
        correlation_id: event.correlation_id.to_owned(),
        created_at: now,
        expires_at: now.plus_days(event.keep_days.min(REFUSED_DAYS)).seconds(),
    };
    let mut stale = None;
    if let Some(pending) = contact.pending(downsell.id) {
        let outdated = pending.outdated(contact.charges.as_ref(), now);
        match outdated.and_then(|end: OfferEnd| pending.ended(end, now, event.keep_days)) {
            // An offer that may have been sent keeps its slot.
            Some(ended) if !ended.is_pending() => stale = Some(Box::new((pending.clone(), ended))),
            _ => {
                let joined = match event.trigger {
                    Trigger::Pix => pending.joined(event.source, scheduled_at, now),
                    Trigger::Start => None,
                };
                return Some(match joined {
                    Some(after) => PlanStep::Join {
                        before: Box::new(pending.clone()),
                        after: Box::new(after),
                        event: Box::new(refuse(Refused::Upgraded, Some(pending))),
                    },
                    None => PlanStep::Refuse {
                        event: Box::new(refuse(Refused::AlreadyPending, Some(pending))),
                        pending: contact.slots.get(&downsell.id).filter(|_| event.trigger == Trigger::Pix).cloned(),
                    },
                });
            }
        }
    }
    let slot = contact.slots.get(&downsell.id);
    if !is_rearmed(downsell, slot, now) {
        return Some(PlanStep::Refuse { event: Box::new(refuse(Refused::NotRearmed, None)), pending: None });
    }
    let offer = new_offer(event, downsell, (id.clone(), event_id.clone()), contact.pay_epoch(), now);
    let taken = SlotRow::taken(slot, &offer);
    Some(PlanStep::Schedule { offer: Box::new(offer), slot: taken, slot_before: slot.cloned(), stale })
}

fn is_rearmed(downsell: &DownsellRow, slot: Option<&SlotRow>, now: Timestamp) -> bool {
    let Some(sent_at) = slot.and_then(|slot| slot.sent_at) else { return true };
    match downsell.rearm {
        Rearm::OncePerTrigger => true,
        Rearm::OnceEver => false,
        Rearm::CooldownDays => sent_at.plus_days(i64::from(downsell.cooldown_days.unwrap_or(0))) <= now,
    }
}

fn new_offer(
    event: &TriggerEvent<'_>,
    downsell: &DownsellRow,
    (id, event_id): (OfferId, String),
    pay_epoch: u64,
    now: Timestamp,
) -> OfferRow {
    let scheduled_at = downsell.scheduled_at(event.at);
    let transaction = (event.trigger == Trigger::Pix).then(|| event.source.to_owned());
    let row = OfferRow {
        listed: keys::offers_of_bot(event.bot, keys::wake_shard(id.as_str())),
        listed_at: keys::at_time(now, id.as_str()),
        id,
        event_id,
        bot: event.bot.to_owned(),
        telegram_id: event.telegram_id,
        downsell_id: downsell.id,
        trigger: event.trigger,
        transaction_id: transaction,
        passed_from: Vec::new(),
        scheduled_at,
        not_after: downsell.not_after(scheduled_at),
        status: OfferStatus::Pending,
        cancel_reason: None,
        meta: event.meta.map(str::to_owned),
        correlation_id: event.correlation_id.to_owned(),
        pay_epoch,
        delivery: Delivery::default(),
        work: Work::default(),
        last_attempt_at: None,
        late_ms: None,
        enqueued: false,
        unknown: false,
        created_at: now,
        updated_at: now,
        version: 1,
        expires_at: None,
    };
    row.scheduled(scheduled_at, now)
}

#[cfg(test)]
pub(super) mod tests;
