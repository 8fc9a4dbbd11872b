//! One attempt to send an offer: begun by one transaction with the gate in it, ended by one write.

use umavez_domain::channels::Channel;
use umavez_domain::delivery::Verdict;
use umavez_domain::downsells::{ChargesRow, End, Learned, OfferRow};
use umavez_domain::keys;
use umavez_domain::suppression::{SuppressionRow, source};
use umavez_domain::time::Timestamp;

use super::contact::{Committed, pause};
use super::{Downsells, ROUNDS};
use crate::invocation::Invocation;
use crate::store::{StoreError, Transacted, Write};
use crate::suppressions::{adding as suppressing, not_suppressed};

/// What came of the claim of an attempt.
#[derive(Debug)]
pub enum Claimed {
    /// It is this sender's to make; the offer as it stands now.
    Yes(Box<OfferRow>),
    Suppressed,
    /// The offer or the charges have changed: whether it may leave is to be decided again, on both as they are then.
    Changed,
}

/// What came of the outcome of an attempt.
#[derive(Debug)]
pub enum Settled {
    Now(Box<OfferRow>),
    Already,
    TooLate,
}

impl Downsells {
    /// Begins attempt n of an offer that may leave, on what was read: nobody has paid, and nobody has begun it.
    pub async fn claim(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        attempt: u32,
        deadline: Timestamp,
        sender: &str,
    ) -> Result<Claimed, StoreError> {
        let claim = invocation.write_token();
        let Some(after) = offer.claimed(attempt, &claim, deadline, invocation.current()) else {
            return Ok(Claimed::Changed);
        };
        let contact = offer.contact();
        let address = offer.telegram_id.to_string();
        let writes = vec![
            self.offer_write(offer, &after)?,
            Write::check(&self.table, keys::charges(&contact), Self::charges_as_read(charges)),
            not_suppressed(&self.outbound_table, Channel::Telegram, &address, sender)?,
        ];
        let refusals = match self.store.transact(invocation, writes).await {
            Ok(Transacted::Done) => return Ok(Claimed::Yes(Box::new(after))),
            Ok(Transacted::Refused(refusals)) => refusals,
            // The store did not say whether the claim was made; not asking would make an attempt unknown that never was.
            Err(error) if error.is_passing() => {
                return match self.offer_and_charges(invocation, &contact, &offer.id).await {
                    Ok((Some(met), _)) if met.claim.as_deref() == Some(&claim) => Ok(Claimed::Yes(Box::new(met))),
                    _ => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        match refusals.iter().position(Option::is_some) {
            Some(0 | 1) => Ok(Claimed::Changed),
            Some(_) => Ok(Claimed::Suppressed),
            None => Err(StoreError::Corrupt("a claim that nothing refused")),
        }
    }

    /// Writes what came of attempt n.
    pub async fn settle(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        attempt: u32,
        verdict: &Verdict,
        sender: &str,
    ) -> Result<Settled, StoreError> {
        let mut offer = offer.clone();
        for tries in 0..ROUNDS {
            let now = invocation.current();
            let after = match offer.settled(attempt, verdict, now, self.keep_days) {
                Learned::New(after) => after,
                Learned::Already => return Ok(Settled::Already),
                Learned::TooLate => return Ok(Settled::TooLate),
            };
            let beside = match verdict {
                Verdict::Failed { code, suppress: true } => {
                    let (to, id) = (offer.telegram_id.to_string(), Some(offer.id.as_str()));
                    let found = SuppressionRow::new(Channel::Telegram, &to, code, source::PROVIDER, id, now);
                    vec![suppressing(&self.outbound_table, &found.seen_by(sender))?]
                }
                _ => Vec::new(),
            };
            match self.commit(invocation, &offer, &after, beside).await? {
                Committed::Done => return Ok(Settled::Now(after)),
                Committed::Lost(Some(met)) => offer = *met,
                Committed::Lost(None) => return Ok(Settled::TooLate),
            }
            pause(invocation, tries).await?;
        }
        Err(StoreError::Conflict)
    }

    /// Ends an offer that may not leave, on what was read: where the end follows from the charges, they have not changed.
    /// `None`: something has; it is to be read again.
    pub async fn end(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        end: End,
    ) -> Result<Option<OfferRow>, StoreError> {
        let Some(after) = offer.ended(end, invocation.current(), self.keep_days) else { return Ok(None) };
        if !end.rests_on_charges() {
            let committed = self.commit(invocation, offer, &after, Vec::new()).await?;
            return Ok(matches!(committed, Committed::Done).then_some(after));
        }
        let as_read = Write::check(&self.table, keys::charges(&offer.contact()), Self::charges_as_read(charges));
        let mut writes = vec![self.offer_write(offer, &after)?, as_read];
        if !after.is_pending() {
            writes.push(self.slot_ended(&after)?);
        }
        match self.store.transact(invocation, writes.clone()).await? {
            Transacted::Done => return Ok(Some(after)),
            Transacted::Refused(refusals) if refusals.iter().take(2).any(Option::is_some) => return Ok(None),
            Transacted::Refused(_) => {}
        }
        // The slot is another's, and as it should be.
        writes.truncate(2);
        Ok((self.store.transact(invocation, writes).await? == Transacted::Done).then_some(after))
    }

    /// Changes an offer that was read as `before`. Nothing: it was so; otherwise the offer as it stands.
    pub async fn change(
        &self,
        invocation: &Invocation,
        before: &OfferRow,
        after: &OfferRow,
    ) -> Result<Option<Option<Box<OfferRow>>>, StoreError> {
        Ok(match self.commit(invocation, before, after, Vec::new()).await? {
            Committed::Done => None,
            Committed::Lost(met) => Some(met),
        })
    }
}
