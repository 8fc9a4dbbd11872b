//! One contact, and one change of an offer with the slot that it is in.

use std::collections::BTreeSet;
use std::time::Duration;

use umavez_domain::downsells::{ChargesRow, Contact, ContactId, OfferId, OfferRow, SlotRow, Status};
use umavez_domain::keys::{self, OfContact};

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Beside, Condition, Item, Query, StoreError, Write, Written, attribute, read_row};

/// With less time than this whoever met others is told to come again.
const LOW_TIME: Duration = Duration::from_secs(2);
const LONGEST_WAIT_MS: u64 = 200;

/// What came of a change of an offer.
#[derive(Debug)]
pub(super) enum Committed {
    Done,
    /// The offer has changed: as it stands now, or nothing if it is gone.
    Lost(Option<Box<OfferRow>>),
}

impl Downsells {
    /// What is known of a contact, as of the last write: its charges, its slots with the offers in them, and these events.
    /// However often a person presses start, it is no more than there are downsells.
    pub async fn contact(
        &self,
        invocation: &Invocation,
        id: &ContactId,
        events: &[OfferId],
    ) -> Result<Contact, StoreError> {
        let mut contact = Contact::default();
        let slots = Query::partition(&self.table, keys::contact_partition(id)).prefix(keys::OFFER_SLOT_PREFIX);
        let slots: Vec<SlotRow> = self.store.rows(invocation, &slots).await?;
        contact.slots = slots.into_iter().map(|slot| (slot.downsell_id, slot)).collect();
        // An offer is made in one transaction with its slot: whoever sees the slot finds the offer.
        let wanted: BTreeSet<_> = contact.slots.values().map(|slot| &slot.offer).chain(events).collect();
        let rows = wanted.iter().map(|offer| keys::offer(id, offer)).chain([keys::charges(id)]);
        let rows: Vec<_> = rows.collect();
        for item in self.store.get_many(invocation, &self.table, &rows).await?.into_values() {
            add(&mut contact, item)?;
        }
        Ok(contact)
    }

    /// Reads these too, if there are any.
    pub(super) async fn read_offers(
        &self,
        invocation: &Invocation,
        id: &ContactId,
        offers: &[OfferId],
        contact: &mut Contact,
    ) -> Result<(), StoreError> {
        if offers.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = offers.iter().map(|offer| keys::offer(id, offer)).collect();
        let found = self.store.get_many(invocation, &self.table, &rows).await?;
        found.into_values().try_for_each(|item| add(contact, item))
    }

    pub async fn offer(
        &self,
        invocation: &Invocation,
        contact: &ContactId,
        id: &OfferId,
    ) -> Result<Option<OfferRow>, StoreError> {
        let item = self.store.get_item(invocation, &self.table, &keys::offer(contact, id)).await?;
        item.filter(is_offer).map(read_row).transpose()
    }

    /// An offer and the charges of its contact, in one request.
    pub async fn offer_and_charges(
        &self,
        invocation: &Invocation,
        contact: &ContactId,
        id: &OfferId,
    ) -> Result<(Option<OfferRow>, Option<ChargesRow>), StoreError> {
        let wanted = [keys::offer(contact, id), keys::charges(contact)];
        let mut found = self.store.get_many(invocation, &self.table, &wanted).await?;
        let offer = found.remove(&wanted[0]).filter(is_offer).map(read_row).transpose()?;
        Ok((offer, found.remove(&wanted[1]).map(read_row).transpose()?))
    }

    /// Changes an offer, and its slot if it has ended. Writes beside it that are refused are left out: what they would change
    /// is as it should be then.
    pub(super) async fn commit(
        &self,
        invocation: &Invocation,
        before: &OfferRow,
        after: &OfferRow,
        beside: Vec<Write>,
    ) -> Result<Committed, StoreError> {
        let offer = self.offer_write(before, after)?;
        let mut beside = beside;
        if !after.is_pending() {
            beside.push(self.slot_ended(after)?);
        }
        let beside = beside.into_iter().map(Beside::from).collect();
        match self.store.write_with(invocation, offer, beside).await? {
            Written::New | Written::Mine => Ok(Committed::Done),
            Written::Refused(item) => lost(item),
        }
    }

    /// What differs, if nobody has changed the offer meanwhile.
    pub(super) fn offer_write(&self, before: &OfferRow, after: &OfferRow) -> Result<Write, StoreError> {
        let key = keys::offer(&before.contact(), &before.id);
        let write = Write::changes(&self.table, key, before, after)?;
        Ok(write.when(Condition::is_number("version", before.version)))
    }

    /// The slot is free again, if it is this offer's.
    pub(super) fn slot_ended(&self, offer: &OfferRow) -> Result<Write, StoreError> {
        let write = Write::update(&self.table, keys::offer_slot(&offer.contact(), offer.downsell_id))
            .set_value("pending", attribute(&false)?)
            .set("ended_at", offer.updated_at.to_string())
            .increment("version");
        let write = match (offer.status, offer.sent_at) {
            (Status::Sent, Some(at)) => write.set("sent_at", at.to_string()).increment("sent"),
            _ => write,
        };
        let still_its =
            [Condition::is("offer", offer.id.as_str()), Condition::Is("pending".to_owned(), attribute(&true)?)];
        Ok(write.when(Condition::all(still_its)))
    }

    /// The charges are as they were read.
    pub(super) fn charges_as_read(read: Option<&ChargesRow>) -> Condition {
        match read.filter(|row| row.version > 0) {
            Some(row) => Condition::is_number("version", row.version),
            None => Condition::Absent,
        }
    }

    pub(super) fn charges_write(&self, before: Option<&ChargesRow>, after: &ChargesRow) -> Result<Write, StoreError> {
        let key = keys::charges(&ContactId::of(&after.bot, after.telegram_id));
        Ok(Write::put(&self.table, key, after)?.when(Self::charges_as_read(before)))
    }
}

fn add(contact: &mut Contact, item: Item) -> Result<(), StoreError> {
    let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default();
    match keys::contact_of(&keys::Key { pk: text("pk"), sk: text("sk") }) {
        Some((_, OfContact::Charges)) => contact.charges = Some(read_row(item)?),
        Some((_, OfContact::Offer(id))) if is_offer(&item) => {
            contact.offers.insert(id, read_row(item)?);
        }
        Some((_, OfContact::Offer(id))) => {
            contact.refused.insert(id, read_row(item)?);
        }
        Some((_, OfContact::Slot)) | None => {}
    }
    Ok(())
}

/// A refused event stands where its offer would be.
fn is_offer(item: &Item) -> bool {
    item.contains_key("status") && item.contains_key("scheduled_at")
}

pub(super) fn lost(item: Option<Item>) -> Result<Committed, StoreError> {
    Ok(Committed::Lost(item.map(read_row).transpose()?.map(Box::new)))
}

/// Each time a little longer, and never together with the others.
pub(super) async fn pause(invocation: &Invocation, tries: u32) -> Result<(), StoreError> {
    if invocation.time_left() < LOW_TIME {
        return Err(StoreError::Conflict);
    }
    let longest = (10_u64 << tries.min(5)).min(LONGEST_WAIT_MS);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=longest))).await;
    Ok(())
}
