//! What a provider's event changes about its message.

use umavez_domain::channels::Channel;
use umavez_domain::channels::email::ses;
use umavez_domain::channels::email::ses_events::{Effect, Kind, Learned, SesEvent, effect};
use umavez_domain::codes::Decision;
use umavez_domain::delivery::State;
use umavez_domain::messages::{MessageId, MessageRow};
use umavez_domain::suppression::{SuppressionRow, source};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::messages::change::{Change, Changed, as_read, entry};
use crate::messages::table::Messages;
use crate::store::{StoreError, attribute};
use crate::suppressions;
use crate::suppressions::Suppressions;

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The message is known to have been sent, or not, by this event.
    Reconciled(State),
    Marked,
    Known,
    /// The message is gone, or was never ours; an address may have been suppressed all the same.
    NoMessage,
}

const ROUNDS: usize = 5;

impl Messages {
    pub async fn apply(&self, invocation: &Invocation, event: &SesEvent) -> Result<Applied, StoreError> {
        let Some((tag, attempt)) = &event.message else { return Ok(Applied::NoMessage) };
        let found = match MessageId::parse(tag) {
            Some(id) => self.get(invocation, &id).await?,
            None => None,
        };
        let Some(mut row) = found else {
            self.suppress(invocation, event, tag).await?;
            return Ok(Applied::NoMessage);
        };
        for _ in 0..ROUNDS {
            let Some(effect) = effect(&row, event.kind, *attempt) else {
                // A soft bounce may have set the mark before this one.
                self.suppress(invocation, event, tag).await?;
                return Ok(Applied::Known);
            };
            let change = self.of_event(&row, event, *attempt, effect, invocation.current())?;
            match self.make(invocation, change.when(as_read(&row))).await? {
                Changed::Done => {
                    return Ok(match effect.learned {
                        Some(Learned::Sent) => Applied::Reconciled(State::Sent),
                        Some(Learned::NotSent) => Applied::Reconciled(State::Failed),
                        Some(Learned::SentBefore | Learned::NoDoubt) | None => Applied::Marked,
                    });
                }
                Changed::Lost(Some(met)) => row = *met,
                Changed::Lost(None) => return Ok(Applied::NoMessage),
            }
        }
        Err(StoreError::Conflict)
    }

    fn of_event(
        &self,
        row: &MessageRow,
        event: &SesEvent,
        attempt: u32,
        effect: Effect,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        let provider_id = &event.provider_id;
        let told = |code: Decision| entry(now, code).attempt(attempt).rule("ses");
        let mut change = match effect.learned {
            Some(Learned::Sent) => self.sent(row, attempt, provider_id, Decision::Reconciled, now)?,
            Some(Learned::SentBefore) => self.sent_before(row, attempt, provider_id, now)?,
            Some(Learned::NotSent) => {
                let certain = MessageRow { doubt: None, ..row.clone() };
                let told = told(Decision::Rejected).reason(ses::code::MESSAGE_REJECTED);
                self.ending(&certain, State::Failed, &told, now)?
            }
            Some(Learned::NoDoubt) | None => Change::of(self.change(
                row,
                &told(event.kind.mark().map_or(Decision::Reconciled, |(_, code)| code)),
                now,
            )?),
        };
        if event.kind == Kind::Reject {
            change.message = change.message.set_number("rejected_attempt", attempt);
            if row.doubt == Some(attempt) {
                change.message = change.message.remove("doubt");
            }
        }
        if let Some((name, _)) = event.kind.mark().filter(|_| effect.mark) {
            change.message = change.message.set_value(name, attribute(&event.at)?);
        }
        if let Some(reason) = event.kind.suppresses() {
            let found = SuppressionRow::by_message(row, reason, source::SES, event.at);
            change.beside.push(suppressions::adding(&self.table, &found)?);
        }
        Ok(change)
    }

    /// Puts the addresses of a bounce or a complaint on the list, whatever else is known of its message.
    async fn suppress(&self, invocation: &Invocation, event: &SesEvent, message_id: &str) -> Result<(), StoreError> {
        let Some(reason) = event.kind.suppresses() else { return Ok(()) };
        let list = Suppressions { store: self.store.clone(), table: self.table.clone() };
        for to in &event.recipients {
            let row = SuppressionRow::new(Channel::Email, to, reason, source::SES, Some(message_id), event.at);
            list.add(invocation, &row).await?;
        }
        Ok(())
    }
}
