//! A change of a message's state together with what must change with it.

use umavez_domain::codes::Decision;
use umavez_domain::delivery::State;
use umavez_domain::keys::{self, Wake};
use umavez_domain::messages::ledger::{Entry, has_room};
use umavez_domain::messages::{HandOver, MessageId, MessageRow};
use umavez_domain::time::Timestamp;

use crate::intents::GuardRelease;
use crate::invocation::Invocation;
use crate::messages::table::Messages;
use crate::store::{Beside, Condition, StoreError, Write, Written, attribute, read_row};

/// What came of a change.
#[derive(Debug)]
pub(super) enum Changed {
    Done,
    /// The row was not as it had to be. As it stood, or nothing if there is none.
    Lost(Option<Box<MessageRow>>),
}

/// A change of one message, and writes beside it that may be refused: what they would change is as it should be then.
#[derive(Debug)]
pub(super) struct Change {
    pub message: Write,
    pub beside: Vec<Write>,
    /// The place in a guard that the message gives back.
    pub guard: Option<GuardRelease>,
}

impl Change {
    pub(super) fn of(message: Write) -> Self {
        Self { message, beside: Vec::new(), guard: None }
    }

    pub(super) fn when(mut self, condition: Condition) -> Self {
        self.message = self.message.when(condition);
        self
    }
}

impl Messages {
    /// A change of the message's row: when, its version, and what its ledger tells.
    pub(super) fn change(&self, row: &MessageRow, entry: &Entry, now: Timestamp) -> Result<Write, StoreError> {
        let write =
            Write::update(&self.table, keys::message(&row.id)).set("updated_at", now.to_string()).increment("version");
        Ok(match has_room(row.ledger.len(), entry.code) {
            true => write.append_value("ledger", attribute(entry)?),
            false => write,
        })
    }

    /// A change that ends the message, for good unless an operator says otherwise. Ended without being sent, it gives its
    /// intent back; if an earlier attempt may have been sent, it ends as unknown instead, and keeps it.
    pub(super) fn ending(
        &self,
        row: &MessageRow,
        state: State,
        entry: &Entry,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        let state = state.in_doubt(row.doubt);
        let message = self
            .change(row, entry, now)?
            .set_value("state", attribute(&state)?)
            .remove("deadline")
            .remove("later")
            .remove("not_before");
        let message = match &entry.reason {
            Some(reason) => message.set("reason", reason),
            None => message.remove("reason"),
        };
        if state == State::Unknown {
            return Ok(Change::of(self.unknown_since(message, row, now)?));
        }
        let message = telling(message, row)?
            .set_number("expires_at", now.plus_days(self.retention_days).seconds())
            .remove("wake")
            .remove("wake_at");
        let Some(intent) = row.intent.as_ref().filter(|_| state.releases_intent()) else {
            return Ok(Change::of(message));
        };
        let holder = holder_of(&row.id);
        let beside = self.intents.give_back_write(intent, &holder, now).into_iter().collect();
        Ok(Change { message, beside, guard: GuardRelease::of_message(intent, &holder) })
    }

    /// It waits for an event or a person.
    pub(super) fn unknown_since(&self, write: Write, row: &MessageRow, now: Timestamp) -> Result<Write, StoreError> {
        let write = write
            .set("wake", keys::wake(Wake::Unknown, keys::wake_shard(row.id.as_str())))
            .set("wake_at", keys::at_time(now, row.id.as_str()));
        telling(write, row)
    }

    /// Hands the message to its queue, or to the sweep.
    pub(super) fn handing_over(write: Write, handed: &HandOver, seq: u64) -> Result<Write, StoreError> {
        let write = write.set_number("emits", seq).set("wake", &handed.wake).set("wake_at", &handed.wake_at);
        let write = match &handed.emit {
            Some(emit) => write.set_value("emit", attribute(emit)?),
            None => write.remove("emit"),
        };
        Ok(match &handed.later {
            Some(later) => write.set_value("later", attribute(later)?),
            None => write.remove("later"),
        })
    }

    /// Makes a change. Writes beside it that are refused are left out: the message's own condition decides.
    pub(super) async fn make(&self, invocation: &Invocation, change: Change) -> Result<Changed, StoreError> {
        let Change { message, beside, guard } = change;
        let mut beside: Vec<Beside> = beside.into_iter().map(Beside::from).collect();
        if let Some(guard) = guard {
            beside.extend(self.intents.releasing_guard(invocation, guard).await?);
        }
        match self.store.write_with(invocation, message, beside).await? {
            Written::New | Written::Mine => Ok(Changed::Done),
            Written::Refused(item) => lost(item),
        }
    }
}

/// Tells whoever waits for the end of the message, in the write that ends it.
fn telling(write: Write, row: &MessageRow) -> Result<Write, StoreError> {
    let Some(then) = &row.then else { return Ok(write.remove("emit")) };
    let seq = row.emits + 1;
    Ok(write.set_value("emit", attribute(&then.emit(&row.id, seq))?).set_number("emits", seq))
}

fn lost(item: Option<crate::store::Item>) -> Result<Changed, StoreError> {
    Ok(Changed::Lost(item.map(read_row).transpose()?.map(Box::new)))
}

/// How a message is written as the holder of its intent.
pub(super) fn holder_of(id: &MessageId) -> String {
    umavez_domain::intents::Holder::Message(id.clone()).to_string()
}

/// The message is in this state, after this attempt.
pub(super) fn stands(state: State, attempt: u32) -> Result<Condition, StoreError> {
    Ok(Condition::all([is_state(state)?, Condition::is_number("attempt", attempt)]))
}

pub(super) fn is_state(state: State) -> Result<Condition, StoreError> {
    Ok(Condition::Is("state".to_owned(), attribute(&state)?))
}

/// Nothing has changed about the row since it was read.
pub(super) fn as_read(row: &MessageRow) -> Condition {
    Condition::is_number("version", row.version)
}

pub(super) fn entry(now: Timestamp, code: Decision) -> Entry {
    Entry::new(now, code)
}
