//! The effects of charges on the offers of their contact: an offer ends, or is passed on to another
//! charge.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::downsells::{ChargesRow, ClosedGate, DownsellRow, OfferRow};

use super::{Downsells, log};
use crate::invocation::Invocation;
use crate::store::{Beside, StoreError};

impl Downsells {
    /// Passes an offer on to another charge. Returns `false` if the offer or the charges have
    /// changed since they were read.
    pub async fn pass_on(
        &self,
        invocation: &Invocation,
        before: &OfferRow,
        charges: Option<&ChargesRow>,
        after: &OfferRow,
    ) -> Result<bool, StoreError> {
        // The charge that takes over the offer is still unpaid and still the newest.
        let with = vec![Beside::required(self.charges_unchanged(&before.contact(), charges))];
        let passed = self.store.commit(invocation, &self.table, before, after, with).await?;
        if passed {
            log::passed_on(invocation, after);
        }
        Ok(passed)
    }

    /// Ends an offer or passes it on, as the charges that were read require. Returns `None` if the
    /// offer or the charges have changed since.
    pub(super) async fn follow(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        closed: ClosedGate,
    ) -> Result<Option<OfferRow>, StoreError> {
        match closed {
            ClosedGate::PassedOn(after) => {
                Ok(self.pass_on(invocation, offer, charges, &after).await?.then_some(*after))
            }
            ClosedGate::Ends(end) => {
                let ended = self.end(invocation, offer, charges, end).await?;
                ended.iter().for_each(|after| log::ended(invocation, after));
                Ok(ended)
            }
        }
    }

    /// Ends an offer or passes it on, as the charges require, and retries if the offer or the
    /// charges change meanwhile. Returns the current offer; `None` if it no longer exists.
    pub(super) async fn follow_until_current(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<ChargesRow>,
        downsells: &[DownsellRow],
    ) -> Result<Option<OfferRow>, StoreError> {
        let contact = &offer.contact();
        let step = |(offer, charges): (OfferRow, Option<ChargesRow>)| async move {
            let downsell = downsells.iter().find(|row| row.id == offer.downsell_id);
            let Some(closed) = offer.follow_charges(charges.as_ref(), downsell, invocation.current()) else {
                return Ok(Break(Some(offer)));
            };
            if let Some(after) = self.follow(invocation, &offer, charges.as_ref(), closed).await? {
                return Ok(Break(Some(after)));
            }
            Ok(match self.offer_and_charges(invocation, contact, &offer.id).await? {
                (Some(offer), charges) => Continue((offer, charges)),
                (None, _) => Break(None),
            })
        };
        self.store.retry_from(invocation, (offer.clone(), charges), step).await
    }
}
