//! What follows for offers from the charges of their contact: they end, or are passed on to another charge.

use umavez_domain::downsells::{ChargesRow, DownsellRow, OfferRow, Outdated};
use umavez_domain::keys;

use super::contact::pause;
use super::{Downsells, ROUNDS, tell};
use crate::invocation::Invocation;
use crate::store::{StoreError, Transacted, Write};

impl Downsells {
    /// Passes an offer on, on what was read. Returns `false` if the offer or the charges have changed since.
    pub async fn pass_on(
        &self,
        invocation: &Invocation,
        before: &OfferRow,
        charges: Option<&ChargesRow>,
        after: &OfferRow,
    ) -> Result<bool, StoreError> {
        // The charge that it goes to is still unpaid, and the newest.
        let as_read = Write::check(&self.table, keys::charges(&before.contact()), Self::charges_as_read(charges));
        let writes = vec![self.offer_write(before, after)?, as_read];
        let passed = self.store.transact(invocation, writes).await? == Transacted::Done;
        if passed {
            tell::passed_on(invocation, after);
        }
        Ok(passed)
    }

    /// Does what follows for an offer from the charges as they were read. `None`: one of them has changed since.
    pub(super) async fn follow(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        outdated: Outdated,
    ) -> Result<Option<OfferRow>, StoreError> {
        match outdated {
            Outdated::PassedOn(after) => Ok(self.pass_on(invocation, offer, charges, &after).await?.then_some(*after)),
            Outdated::Ends(end) => {
                let ended = self.end(invocation, offer, charges, end).await?;
                ended.iter().for_each(|after| tell::ended(invocation, after));
                Ok(ended)
            }
        }
    }

    /// Does what follows for an offer, however often it or the charges change meanwhile. Returns the offer as it stands then;
    /// nothing if it is gone.
    pub(super) async fn see_to(
        &self,
        invocation: &Invocation,
        offer: OfferRow,
        charges: Option<ChargesRow>,
        downsells: &[DownsellRow],
    ) -> Result<Option<OfferRow>, StoreError> {
        let (contact, mut seen) = (offer.contact(), (offer, charges));
        for tries in 0..ROUNDS {
            let (offer, charges) = (&seen.0, seen.1.as_ref());
            let downsell = downsells.iter().find(|row| row.id == offer.downsell_id);
            let Some(outdated) = offer.follow_charges(charges, downsell, invocation.current()) else {
                return Ok(Some(seen.0));
            };
            if let Some(after) = self.follow(invocation, offer, charges, outdated).await? {
                return Ok(Some(after));
            }
            let (Some(offer), charges) = self.offer_and_charges(invocation, &contact, &offer.id).await? else {
                return Ok(None);
            };
            seen = (offer, charges);
            pause(invocation, tries).await?;
        }
        Err(StoreError::Conflict)
    }
}
