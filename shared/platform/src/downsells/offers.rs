//! All changes of an offer. The rules are in `umavez_domain::downsells`; this module commits their
//! changes, together with the slot that an offer leaves when it ends.

use umavez_domain::change::Next;
use umavez_domain::channels::Channel;
use umavez_domain::delivery::{Claim, Recovery, Settled, UnknownPolicy, Verdict};
use umavez_domain::downsells::{CancelReason, ChargesRow, OfferEnd, OfferRow};
use umavez_domain::keys::{self, OfContact};
use umavez_domain::queue::emit_offer;
use umavez_domain::suppression::{SuppressionRow, source};
use umavez_domain::time::Timestamp;

use super::{Downsells, log};
use crate::delivery::{Claimed, Tables};
use crate::due::{self, Emission};
use crate::invocation::Invocation;
use crate::store::{Beside, Committed, Condition, Decided, Found, Returned, StoreError, Write, attribute, read_row};
use crate::suppressions;

impl Downsells {
    /// Starts an attempt at an offer that may be sent. The claim holds only if the rows are as they
    /// were read: the contact has not paid, and no other sender has started the
    /// attempt.
    pub async fn claim(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        claim: &Claim,
        sender: &str,
    ) -> Result<Claimed<OfferRow>, StoreError> {
        let Some(after) = offer.claimed(claim, invocation.current()) else { return Ok(Claimed::Lost(None)) };
        let tables = Tables { own: &self.table, outbound: &self.outbound_table };
        self.store.claim(invocation, tables, offer, after, &offer.gates(charges, sender), Vec::new()).await
    }

    /// Writes the outcome of attempt n. `offer` is the offer as it was claimed.
    pub async fn settle(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        attempt: u32,
        verdict: &Verdict,
        sender: &str,
    ) -> Result<Settled<OfferRow>, StoreError> {
        let rule = |offer: &OfferRow| offer.settled(attempt, verdict, invocation.current(), self.keep_days).into_next();
        let suppression = match verdict {
            Verdict::Failed { code, suppress: true } => {
                let (to, id) = (offer.telegram_id.to_string(), Some(offer.id.as_str()));
                let now = invocation.current();
                let found = SuppressionRow::new(Channel::Telegram, &to, code, source::PROVIDER, id, now);
                Some(suppressions::adding(&self.outbound_table, &found.seen_by(sender))?)
            }
            _ => None,
        };
        self.change_offer(invocation, offer, rule, suppression).await.map(Committed::settled)
    }

    /// Ends an offer that may not be sent. If the end follows from the charges, it is conditional
    /// on the charges as they were read. Returns `None` if a row has changed since; the caller
    /// decides again.
    pub async fn end(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        charges: Option<&ChargesRow>,
        end: OfferEnd,
    ) -> Result<Option<OfferRow>, StoreError> {
        let Some(after) = offer.ended(end, invocation.current(), self.keep_days) else { return Ok(None) };
        let mut with = self.slot_writes(offer, &after)?;
        if end.rests_on_charges() {
            with.push(Beside::required(self.charges_unchanged(&offer.contact(), charges)));
        }
        let committed = self.store.commit(invocation, &self.table, offer, &after, with).await?;
        Ok(committed.then_some(after))
    }

    /// Cancels an offer. An offer that was not sent yet ends; an offer whose attempt is under way
    /// gets no further attempt. Returns the current offer; `None` if it no longer exists.
    pub(super) async fn cancel_offer(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        why: CancelReason,
    ) -> Result<Option<OfferRow>, StoreError> {
        let rule = |offer: &OfferRow| match offer.cancel(why, invocation.current(), self.keep_days).1 {
            Some(after) => Next::Commit(after, ()),
            None => Next::Stop(()),
        };
        let committed = self.change_offer(invocation, offer, rule, None).await?;
        if let Committed::Done(offer, ()) = &committed {
            log::ended(invocation, offer);
        }
        Ok(committed.row().map(|(offer, ())| offer))
    }

    /// Settles an unknown offer by an operator's decision. Returns the current offer and whether
    /// this call settled it; `None` if the offer no longer exists.
    pub async fn declare(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        was_sent: bool,
    ) -> Result<Option<(OfferRow, bool)>, StoreError> {
        let rule = |offer: &OfferRow| match offer.declared(was_sent, invocation.now, self.keep_days) {
            Some(after) => Next::Commit(after, true),
            None => Next::Stop(false),
        };
        Ok(self.change_offer(invocation, offer, rule, None).await?.row())
    }

    /// Postpones recovery's check of an offer, because its queue hides it until `until`.
    pub async fn postpone(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(after) = offer.postponed(until, invocation.current()) else { return Ok(()) };
        self.store.commit(invocation, &self.table, offer, &after, Vec::new()).await.map(drop)
    }

    /// Enqueues an offer that is due soon. Returns whether this sweep enqueued it.
    pub async fn emit_due(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let Some((contact, OfContact::Offer(id))) = keys::contact_of(&found.key) else { return Ok(false) };
        let offer_id = id.clone();
        let make = move |seq, not_before| emit_offer(&contact, &offer_id, seq, not_before);
        let due = due::DueRow { table: &self.table, found, id: id.as_str(), emission: Emission::Made(Box::new(make)) };
        let enqueued = attribute(&true)?;
        let handed = due::hand_over(&self.store, invocation, &due, None, |write| write.set_value("enqueued", enqueued));
        let Returned::Row(row) = handed.await? else { return Ok(false) };
        log::enqueued(invocation, &read_row(row)?);
        Ok(true)
    }

    /// Recovers an overdue row: an offer, or the charges of a contact with the offers that depend
    /// on them. Those are logged one by one, so the result for charges is always `Nothing`.
    pub async fn recover(
        &self,
        invocation: &Invocation,
        found: &Found,
        policy: UnknownPolicy,
        jitter: u32,
    ) -> Result<Recovery<OfferRow>, StoreError> {
        let (contact, id) = match keys::contact_of(&found.key) {
            Some((contact, OfContact::Offer(id))) => (contact, id),
            Some((contact, OfContact::Charges)) => {
                self.check_charges(invocation, &contact).await?;
                return Ok(Recovery::Nothing);
            }
            _ => return Ok(Recovery::Nothing),
        };
        let row = self.offer(invocation, &contact, &id).await?;
        let Some(row) = row.filter(|row| row.work.waits_at(&found.place)) else { return Ok(Recovery::Nothing) };
        let recovery = row.recovered(policy, invocation.current(), jitter, self.keep_days);
        let (Recovery::Emitted(after) | Recovery::GivenUp(after)) = &recovery else { return Ok(recovery) };
        let with = self.slot_writes(&row, after)?;
        let committed = self.store.commit(invocation, &self.table, &row, after, with).await?;
        Ok(if committed { recovery } else { Recovery::Nothing })
    }

    async fn change_offer<T>(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        rule: impl Fn(&OfferRow) -> Next<OfferRow, T>,
        also: Option<Write>,
    ) -> Result<Committed<OfferRow, T>, StoreError> {
        self.store
            .change(invocation, &self.table, offer, |before| {
                Ok(match rule(before) {
                    Next::Stop(out) => Decided::Stop(out),
                    Next::Commit(row, out) => {
                        let mut with = self.slot_writes(before, &row)?;
                        with.extend(also.clone().map(Beside::from));
                        Decided::Commit { row, with, out }
                    }
                })
            })
            .await
    }

    /// Returns the writes to the slot of an offer that has ended: the slot is free again, and
    /// counts the offer if it was sent. If another offer has taken the slot since, the slot stays
    /// unchanged.
    pub(super) fn slot_writes(&self, before: &OfferRow, after: &OfferRow) -> Result<Vec<Beside>, StoreError> {
        let Some((end, fence)) = before.slot_end(after) else { return Ok(Vec::new()) };
        let write = Write::update(&self.table, keys::offer_slot(&after.contact(), after.downsell_id));
        let write = write.set_row(&end, &[])?.increment("version");
        let write = if end.sent_at.is_some() { write.increment("sent") } else { write };
        Ok(vec![write.when(Condition::of(&fence)?).into()])
    }
}
