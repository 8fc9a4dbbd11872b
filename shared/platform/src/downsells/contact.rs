//! One contact, and the change of one offer together with its slot.

use std::collections::BTreeSet;

use umavez_domain::downsells::{ChargesRow, Contact, ContactId, OfferId, OfferRow, SlotRow};
use umavez_domain::keys::{self, Key, OfContact};

use super::Downsells;
use crate::invocation::Invocation;
use crate::store::{Condition, Item, Query, StoreError, Write, read_row};

impl Downsells {
    /// Reads a contact, including the last write: its charges, its slots with the offers in them,
    /// and the offers of `events`. The number of slots is at most the number of downsells, however
    /// often the contact presses start.
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
        // An offer is created in one transaction with its slot, so a reader that sees the slot also
        // finds the offer.
        let wanted: BTreeSet<_> = contact.slots.values().map(|slot| &slot.offer).chain(events).collect();
        let rows = wanted.iter().map(|offer| keys::offer(id, offer)).chain([keys::charges(id)]);
        self.add_rows(invocation, rows.collect(), &mut contact).await?;
        Ok(contact)
    }

    /// Adds the rows with these keys to `contact`.
    pub(super) async fn add_rows(
        &self,
        invocation: &Invocation,
        rows: Vec<Key>,
        contact: &mut Contact,
    ) -> Result<(), StoreError> {
        let found = self.store.get_many(invocation, &self.table, &rows).await?;
        found.into_iter().try_for_each(|found| add(contact, found))
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

    /// Reads an offer and the charges of its contact in one request.
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

    /// Returns the check that the charges of a contact have not changed since they were read.
    pub(super) fn charges_unchanged(&self, id: &ContactId, read: Option<&ChargesRow>) -> Write {
        Write::check(&self.table, keys::charges(id), Condition::version(read.map_or(0, |row| row.version)))
    }
}

fn add(contact: &mut Contact, (key, item): (Key, Item)) -> Result<(), StoreError> {
    match keys::contact_of(&key) {
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

/// Distinguishes an offer from a refused event, which has the key that its offer would have.
fn is_offer(item: &Item) -> bool {
    item.contains_key("status") && item.contains_key("scheduled_at")
}
