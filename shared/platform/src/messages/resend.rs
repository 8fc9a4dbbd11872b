//! An operator's order to send a message again. Each order is carried out once.

use std::ops::ControlFlow::{self, Break, Continue};

use umavez_domain::fields::parse_uuid;
use umavez_domain::idempotency::Replay;
use umavez_domain::intents::{Check, HoldRequest, Holder, IntentTypes};
use umavez_domain::messages::{IntentRef, MessageId, MessageRow, Resend};
use umavez_domain::time::Timestamp;

use super::table::Messages;
use crate::intents::HoldOutcome;
use crate::invocation::Invocation;
use crate::store::{StoreError, Write};

/// An order to send a message again.
#[derive(Debug)]
pub struct Order<'a> {
    /// The idempotency key of this order.
    pub key: &'a str,
    pub body_hash: &'a str,
    /// Resend only if this was the last attempt.
    pub attempt: Option<u32>,
}

/// The outcome of an order.
#[derive(Debug)]
pub enum Resent {
    Now(Box<MessageRow>),
    /// The same order was carried out before, after this attempt.
    Replayed(u32),
    /// The key of the order was used with another body.
    KeyReused,
    /// The message may not be sent again, or that attempt is no longer its last.
    NotNow(Box<MessageRow>),
    /// The `not_after` of the message has passed.
    Late(Box<MessageRow>),
    /// Another holder has taken the intention meanwhile.
    IntentTaken,
    NotFound,
}

impl Messages {
    /// Enqueues a message again that failed or whose outcome is unknown.
    pub async fn resend(
        &self,
        invocation: &Invocation,
        id: &MessageId,
        order: &Order<'_>,
        types: &IntentTypes,
    ) -> Result<Resent, StoreError> {
        self.store.retry(invocation, || self.resend_once(invocation, id, order, types)).await
    }

    async fn resend_once(
        &self,
        invocation: &Invocation,
        id: &MessageId,
        order: &Order<'_>,
        types: &IntentTypes,
    ) -> Result<ControlFlow<Resent>, StoreError> {
        let now = invocation.now;
        let Some(row) = self.get(invocation, id).await? else { return Ok(Break(Resent::NotFound)) };
        if let Some(before) = row.resends.iter().find(|before| before.key == order.key) {
            return Ok(Break(match Replay::of(&before.body, order.body_hash) {
                Replay::Same => Resent::Replayed(before.after),
                Replay::OtherBody => Resent::KeyReused,
            }));
        }
        if order.attempt.is_some_and(|attempt| attempt != row.delivery.attempt) {
            return Ok(Break(Resent::NotNow(Box::new(row))));
        }
        let hold = retaken(&row, order, types, now);
        let intent = hold.as_ref().map(|hold| IntentRef::from(&hold.row));
        let attempt = row.delivery.attempt;
        let resend = Resend { key: order.key.to_owned(), body: order.body_hash.to_owned(), after: attempt };
        let Some(after) = row.resent(resend, intent, now) else { return Ok(Break(Resent::NotNow(Box::new(row)))) };
        if row.window().is_over(now) {
            return Ok(Break(Resent::Late(Box::new(row))));
        }
        let Some(hold) = hold else {
            let committed = self.store.commit(invocation, &self.table, &row, &after, Vec::new()).await?;
            return Ok(if committed { Break(Resent::Now(Box::new(row))) } else { Continue(()) });
        };
        // An intent that was released is taken again, as of the time of this resend.
        let write = Write::of_change(&self.table, &row, &after)?;
        match self.intents.transact_holding(invocation, &[write], &hold).await? {
            HoldOutcome::Done => Ok(Break(Resent::Now(Box::new(row)))),
            HoldOutcome::Refused(_) => Ok(Continue(())),
            // The hold in the way may be this message's own: another request may have carried out
            // the same order.
            HoldOutcome::Conflicting(_) | HoldOutcome::Full => {
                let stored = self.get(invocation, &row.id).await?;
                let is_same = stored.is_some_and(|stored| stored.version == row.version);
                Ok(if is_same { Break(Resent::IntentTaken) } else { Continue(()) })
            }
        }
    }
}

/// Returns the hold that takes the intent again, if the message released it when it ended unsent.
/// An unknown message still holds its intent.
fn retaken(row: &MessageRow, order: &Order<'_>, types: &IntentTypes, now: Timestamp) -> Option<HoldRequest> {
    let intent = row.intent.as_ref().filter(|_| row.delivery.state.is_unsent())?;
    let client = parse_uuid(&intent.client_id)?;
    let reference = intent.reference_id.as_deref().and_then(parse_uuid);
    let check = Check::new(client, types.get(&intent.intent_type)?, reference, now);
    Some(HoldRequest::of(check, &Holder::Message(row.id.clone()), order.body_hash, now))
}
