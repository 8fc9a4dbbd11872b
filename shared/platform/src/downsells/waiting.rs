//! Offers whose time is near, and what was lost sight of.

use umavez_domain::delivery::UnknownPolicy;
use umavez_domain::downsells::{OfferRow, Recalled, job};
use umavez_domain::keys::{self, OfContact, Wake};
use umavez_domain::messages::CHECK_AFTER_MS;
use umavez_domain::time::Timestamp;

use super::contact::Committed;
use super::{Downsells, tell};
use crate::invocation::Invocation;
use crate::store::{Condition, Found, Query, Returned, StoreError, Write, attribute, read_row};

/// What recovery did.
#[derive(Debug)]
pub enum Woken {
    /// An offer was handed to its queue again.
    Emitted(Box<OfferRow>),
    /// Its attempt is known no more.
    Unknown(Box<OfferRow>),
    /// Charges were seen to, and offers with them.
    SeenTo,
    Left,
}

impl Downsells {
    /// What waits in one shard for something that lies at or before `until`, the earliest first.
    pub async fn waiting(
        &self,
        invocation: &Invocation,
        wake: Wake,
        shard: u32,
        until: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Found>, StoreError> {
        let query = Query::waiting(&self.table, wake, shard).until(until).after(after).limit(limit);
        self.store.nominate(invocation, &query).await
    }

    /// The time of an offer is near: hands it to its queue, which holds it until then. Whether it was this sweep's doing.
    pub async fn emit_due(&self, invocation: &Invocation, found: &Found) -> Result<bool, StoreError> {
        let Some((contact, OfContact::Offer(id))) = keys::contact_of(&found.key) else { return Ok(false) };
        let now = invocation.current();
        let due_at = keys::time_of(&found.place).unwrap_or(now).max(now);
        // It still waits for this very time.
        let as_found = [Condition::is("delivery", "QUEUED"), Condition::is("wake_at", &found.place)];
        let write = Write::update(&self.table, found.key.clone())
            .set_value("emit", attribute(&job(&contact, &id, Some(due_at.millis()), now))?)
            .set_value("enqueued", attribute(&true)?)
            .set("wake", keys::wake(Wake::Check, keys::wake_shard(id.as_str())))
            .set("wake_at", keys::at_time(due_at.plus_ms(CHECK_AFTER_MS), id.as_str()))
            .set("updated_at", now.to_string())
            .increment("version")
            .when(Condition::all(as_found));
        let Returned::Row(row) = self.store.update_returning(invocation, write).await? else { return Ok(false) };
        tell::enqueued(invocation, &read_row(row)?);
        Ok(true)
    }

    /// An offer goes back to its queue to wait: it is not to be looked for before that is over.
    pub async fn still_waits(
        &self,
        invocation: &Invocation,
        offer: &OfferRow,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        match offer.waits_until(until, invocation.current()) {
            Some(after) => self.commit(invocation, offer, &after, Vec::new()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Something was not heard of for too long.
    pub async fn recover(
        &self,
        invocation: &Invocation,
        found: &Found,
        policy: UnknownPolicy,
        jitter: u32,
    ) -> Result<Woken, StoreError> {
        match keys::contact_of(&found.key) {
            Some((contact, OfContact::Charges)) => {
                let seen_to = self.look_after(invocation, &contact).await?;
                Ok(if seen_to { Woken::SeenTo } else { Woken::Left })
            }
            Some((contact, OfContact::Offer(id))) => {
                let row = self.offer(invocation, &contact, &id).await?;
                // The index may lag behind.
                match row.filter(|row| row.wake_at.as_deref() == Some(&found.place)) {
                    Some(row) => self.recall(invocation, &row, policy, jitter).await,
                    None => Ok(Woken::Left),
                }
            }
            _ => Ok(Woken::Left),
        }
    }

    async fn recall(
        &self,
        invocation: &Invocation,
        row: &OfferRow,
        policy: UnknownPolicy,
        jitter: u32,
    ) -> Result<Woken, StoreError> {
        let recalled = row.recalled(policy, invocation.current(), jitter, self.keep_days);
        let after = match &recalled {
            Recalled::Emitted(after) | Recalled::Unknown(after) => after,
            Recalled::Left => return Ok(Woken::Left),
        };
        match (self.commit(invocation, row, after, Vec::new()).await?, recalled) {
            (Committed::Done, Recalled::Emitted(after)) => Ok(Woken::Emitted(after)),
            (Committed::Done, Recalled::Unknown(after)) => Ok(Woken::Unknown(after)),
            _ => Ok(Woken::Left),
        }
    }
}
