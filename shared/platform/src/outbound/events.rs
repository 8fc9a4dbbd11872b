//! What a provider's event changes about its message.

use umavez_domain::codes::Decision;
use umavez_domain::outbound::message::MessageRow;
use umavez_domain::outbound::ses_events::{SesEvent, effect};
use umavez_domain::outbound::suppression::{SuppressionRow, source};
use umavez_domain::outbound::{Channel, State};
use umavez_domain::time::Timestamp;

use super::change::{Change, Changed, as_read, entry};
use super::messages::Messages;
use super::suppressions::{self, Suppressions};
use crate::invocation::Invocation;
use crate::store::{StoreError, attribute};

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
        let Some((id, attempt)) = &event.message else { return Ok(Applied::NoMessage) };
        let Some(mut row) = self.get(invocation, id).await? else {
            self.suppress_alone(invocation, event, id).await?;
            return Ok(Applied::NoMessage);
        };
        for _ in 0..ROUNDS {
            let Some(effect) = effect(&row, event.kind, *attempt) else { return Ok(Applied::Known) };
            let now = invocation.current();
            let change = self.of_event(&row, event, *attempt, effect.state, effect.mark, now)?;
            match self.make(invocation, change).await? {
                Changed::Done => return Ok(effect.state.map_or(Applied::Marked, Applied::Reconciled)),
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
        state: Option<State>,
        mark: bool,
        now: Timestamp,
    ) -> Result<Change, StoreError> {
        let mut change = match state {
            Some(State::Sent) => self.sent(row, attempt, &event.provider_id, Decision::Reconciled, now)?,
            Some(state) => {
                let entry = entry(now, Decision::Rejected).attempt(attempt).rule("ses");
                self.ending(row, state, &entry, now)?
            }
            None => {
                let code = event.kind.mark().map_or(Decision::Reconciled, |(_, code)| code);
                Change::of(self.change(row, &entry(now, code).attempt(attempt).rule("ses"), now)?)
            }
        };
        if let Some((name, _)) = event.kind.mark().filter(|_| mark) {
            change.message = change.message.set_value(name, attribute(&event.at)?);
        }
        change.message = change.message.when(as_read(row));
        if let (Some(reason), true) = (event.kind.suppresses(), mark) {
            let found = SuppressionRow::by_message(row, reason, source::SES, event.at);
            change.beside.push(suppressions::adding(&self.table, &found)?);
        }
        Ok(change)
    }

    /// A bounce of a message that is gone is a bounce all the same.
    async fn suppress_alone(
        &self,
        invocation: &Invocation,
        event: &SesEvent,
        message_id: &str,
    ) -> Result<(), StoreError> {
        let Some(reason) = event.kind.suppresses() else { return Ok(()) };
        let list = Suppressions { store: self.store.clone(), table: self.table.clone() };
        for to in &event.recipients {
            let row = SuppressionRow::new(Channel::Email, to, reason, source::SES, Some(message_id), event.at);
            list.add(invocation, &row).await?;
        }
        Ok(())
    }
}
