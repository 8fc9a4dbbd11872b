//! What an operator may order: not to send a message, or to send it again.

use umavez_domain::codes::Decision;
use umavez_domain::delivery::{Cancel, State, cancel};
use umavez_domain::idempotency::{Replay, judge};
use umavez_domain::intents::{Check, Hold, Holder, IntentTypes};
use umavez_domain::messages::{HandOver, MessageId, MessageRow, Resend};
use umavez_domain::time::Timestamp;
use umavez_domain::work::Due;

use crate::intents::Holding;
use crate::invocation::Invocation;
use crate::messages::change::{Change, Changed, as_read, entry, is_state, stands};
use crate::messages::table::Messages;
use crate::store::{Condition, StoreError, attribute, read_row};

/// What came of a cancel: what could still be done, and the state of the message.
#[derive(Debug)]
pub struct Canceled {
    pub cancel: Cancel,
    pub state: State,
}

/// What came of an operator's word about an unknown message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// It was unknown, and is not any more.
    pub now: bool,
    pub state: State,
}

/// An order to send a message again, as it is asked.
#[derive(Debug)]
pub struct Order<'a> {
    /// What this order is known by.
    pub key: &'a str,
    pub body_hash: &'a str,
    /// Only if this was the last attempt.
    pub attempt: Option<u32>,
}

/// What came of it.
#[derive(Debug)]
pub enum Resent {
    Now(Box<MessageRow>),
    /// The same order was carried out before, after this attempt.
    Replayed(u32),
    /// The order's key was used with another body.
    KeyReused,
    /// The message is not one that may be sent again, or no longer after that attempt.
    NotNow(Box<MessageRow>),
    /// Its `not_after` has passed.
    Late(Box<MessageRow>),
    /// Its intention was sent by another meanwhile.
    IntentTaken,
    NotFound,
}

/// Races with senders and events are retried this often.
const ROUNDS: usize = 4;

impl Messages {
    /// Cancels a message that is still queued. One whose attempt is under way is recalled: if that attempt was not sent, there
    /// is no other. Otherwise tells why nothing can be done.
    pub async fn cancel(&self, invocation: &Invocation, id: &MessageId) -> Result<Option<Canceled>, StoreError> {
        let Some(mut row) = self.get(invocation, id).await? else { return Ok(None) };
        for _ in 0..ROUNDS {
            let told = cancel(row.state);
            if row.state == State::Sending && row.recalled.is_none() {
                match self.recall(invocation, &row).await? {
                    Changed::Done => {}
                    Changed::Lost(Some(met)) => {
                        row = *met;
                        continue;
                    }
                    Changed::Lost(None) => return Ok(None),
                }
            }
            if told != Cancel::Now {
                return Ok(Some(Canceled { cancel: told, state: row.state }));
            }
            let entry = entry(invocation.now, Decision::Canceled).rule("operator");
            match self.end_unsent(invocation, &row, State::Canceled, &entry).await? {
                None if row.doubt.is_some() => {
                    return Ok(Some(Canceled { cancel: Cancel::InFlight, state: State::Unknown }));
                }
                None => return Ok(Some(Canceled { cancel: Cancel::Now, state: State::Canceled })),
                Some(met) => row = *met,
            }
        }
        Err(StoreError::Conflict)
    }

    /// Marks the attempt that is under way as the last one.
    async fn recall(&self, invocation: &Invocation, row: &MessageRow) -> Result<Changed, StoreError> {
        let now = invocation.current();
        let entry = entry(now, Decision::Recalled).rule("operator").attempt(row.attempt);
        let write = self.change(row, &entry, now)?.set_number("recalled", row.attempt);
        // The attempt is still under way, and nothing else was learned about it.
        let as_seen = Condition::all([stands(State::Sending, row.attempt)?, as_read(row)]);
        self.make(invocation, Change::of(write.when(as_seen))).await
    }

    /// An operator knows what nobody else does: whether an unknown message was sent. `None`: there is no such message.
    pub async fn declare(
        &self,
        invocation: &Invocation,
        id: &MessageId,
        was_sent: bool,
    ) -> Result<Option<Declared>, StoreError> {
        let Some(mut row) = self.get(invocation, id).await? else { return Ok(None) };
        for _ in 0..ROUNDS {
            let state = if was_sent { State::Sent } else { State::Failed };
            if row.state != State::Unknown {
                return Ok(Some(Declared { now: false, state: row.state }));
            }
            let now = invocation.now;
            let code = if was_sent { Decision::Sent } else { Decision::Failed };
            let entry = entry(now, code).rule("operator").attempt(row.attempt);
            let certain = MessageRow { doubt: None, ..row.clone() };
            let mut change = self.ending(&certain, state, &entry, now)?.when(as_read(&row));
            change.message = change.message.remove("doubt");
            if was_sent {
                change.message = change.message.set("sent_at", now.to_string());
            }
            match self.make(invocation, change).await? {
                Changed::Done => return Ok(Some(Declared { now: true, state })),
                Changed::Lost(Some(met)) => row = *met,
                Changed::Lost(None) => return Ok(None),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Queues a message again whose attempt failed, or whose outcome nobody knows.
    pub async fn resend(
        &self,
        invocation: &Invocation,
        id: &MessageId,
        order: &Order<'_>,
        types: &IntentTypes,
    ) -> Result<Resent, StoreError> {
        let Some(mut row) = self.get(invocation, id).await? else { return Ok(Resent::NotFound) };
        for _ in 0..ROUNDS {
            if let Some(before) = row.resends.iter().find(|before| before.key == order.key) {
                return Ok(match judge(&before.body, order.body_hash) {
                    Replay::Same => Resent::Replayed(before.after),
                    Replay::OtherBody => Resent::KeyReused,
                });
            }
            let after_that = order.attempt.is_none_or(|attempt| attempt == row.attempt);
            if !matches!(row.state, State::Failed | State::Unknown) || !after_that {
                return Ok(Resent::NotNow(Box::new(row)));
            }
            if row.not_after.is_some_and(|until| until < invocation.now) {
                return Ok(Resent::Late(Box::new(row)));
            }
            match self.resend_seen(invocation, &row, order, types).await? {
                Seen::Done => return Ok(Resent::Now(Box::new(row))),
                Seen::IntentTaken => return Ok(Resent::IntentTaken),
                Seen::Lost(Some(met)) => row = *met,
                Seen::Lost(None) => return Ok(Resent::NotFound),
            }
        }
        Err(StoreError::Conflict)
    }

    async fn resend_seen(
        &self,
        invocation: &Invocation,
        row: &MessageRow,
        order: &Order<'_>,
        types: &IntentTypes,
    ) -> Result<Seen, StoreError> {
        let now = invocation.now;
        let seq = row.emits + 1;
        let handed = HandOver::of(&row.id, row.priority, Due::Emitted { not_before: None }, now, seq);
        let entry = entry(now, Decision::Resent).rule("operator").attempt(row.attempt);
        let told = Resend { key: order.key.to_owned(), body: order.body_hash.to_owned(), after: row.attempt };
        let write = self
            .change(row, &entry, now)?
            .set_value("state", attribute(&State::Queued)?)
            .set_number("tries_from", row.attempt)
            .append_value("resends", attribute(&told)?)
            .remove("not_before")
            // The order to send it again is the later one.
            .remove("recalled")
            .remove("expires_at");
        // An attempt that nobody knows stays in doubt, whatever comes of the next one.
        let write = match (row.state, row.doubt) {
            (State::Unknown, None) => write.set_number("doubt", row.attempt),
            _ => write,
        };
        let mut write = Self::handing_over(write, &handed, seq)?;
        // Nobody has sent it again, and no event has told what became of it.
        let as_seen = Condition::all([is_state(row.state)?, as_read(row)]);
        let Some(hold) = retaken(row, order, types, now) else {
            return Ok(match self.make(invocation, Change::of(write.when(as_seen))).await? {
                Changed::Done => Seen::Done,
                Changed::Lost(met) => Seen::Lost(met),
            });
        };
        // An intent that was given back is taken again, for the time of this sending.
        let mut intent = row.intent.clone();
        if let Some(intent) = &mut intent {
            intent.fingerprint.clone_from(&hold.row.fingerprint);
            intent.guard.clone_from(&hold.row.guard);
        }
        write = write.set_value("intent", attribute(&intent)?);
        match self.intents.transact_holding(invocation, &[write.when(as_seen)], &hold).await? {
            Holding::Done => Ok(Seen::Done),
            Holding::Refused(refusals) => {
                let met = refusals.into_iter().flatten().next().and_then(|refusal| refusal.item);
                Ok(Seen::Lost(met.map(read_row).transpose()?.map(Box::new)))
            }
            // The hold in the way may be this message's own, by the same order that another request has carried out.
            Holding::Standing(_) | Holding::Full => match self.get(invocation, &row.id).await? {
                Some(met) if met.version == row.version => Ok(Seen::IntentTaken),
                met => Ok(Seen::Lost(met.map(Box::new))),
            },
        }
    }
}

enum Seen {
    Done,
    Lost(Option<Box<MessageRow>>),
    IntentTaken,
}

/// The intent of a message that gave it back when it failed. An unknown one still has it.
fn retaken(row: &MessageRow, order: &Order<'_>, types: &IntentTypes, now: Timestamp) -> Option<Hold> {
    let intent = row.intent.as_ref().filter(|_| row.state.releases_intent())?;
    let client = umavez_domain::fields::parse_uuid(&intent.client_id)?;
    let reference = intent.reference_id.as_deref().and_then(umavez_domain::fields::parse_uuid);
    let check = Check::new(client, types.get(&intent.intent_type)?, reference, now);
    Some(Hold::of(&check, &Holder::Message(row.id.clone()), order.body_hash, now))
}
