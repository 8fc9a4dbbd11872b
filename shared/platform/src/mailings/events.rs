//! What SES tells of a mail of a mailing: proof that an attempt was sent or not, and marks.

use umavez_domain::channels::email::ses;
use umavez_domain::channels::email::ses_events::{Kind, SesEvent};
use umavez_domain::keys;
use umavez_domain::mailings::{EntryRow, EntryState, MailingEntryId};

use super::entries::{Entry, of_attempt};
use super::{Mailings, ROUNDS};
use crate::invocation::Invocation;
use crate::store::{Condition, StoreError, Write, Written, attribute, read_row};

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryApplied {
    /// The entry is known to have been sent, or not, by this event.
    Reconciled(EntryState),
    Marked,
    Known,
    NoEntry,
}

impl Mailings {
    pub async fn apply(
        &self,
        invocation: &Invocation,
        id: &MailingEntryId,
        attempt: u32,
        event: &SesEvent,
    ) -> Result<EntryApplied, StoreError> {
        let mut met = self.entry(invocation, id).await?;
        for _ in 0..ROUNDS {
            let Some(row) = met else { return Ok(EntryApplied::NoEntry) };
            let entry = Entry { id: id.clone(), row };
            // Whatever comes of the later attempt, this one proves that it was sent: told again when that is settled.
            if event.kind.proves_sent() && entry.row.state == EntryState::Sending && attempt < entry.row.attempt {
                return Err(StoreError::Conflict);
            }
            if let Some(state) = learned(&entry.row, event.kind, attempt) {
                if self.learn(invocation, &entry, attempt, state, event).await? {
                    return Ok(EntryApplied::Reconciled(state));
                }
                met = self.entry(invocation, id).await?;
                continue;
            }
            let Some((name, _)) = event.kind.mark().filter(|(name, _)| is_to_be_marked(&entry.row, name, attempt))
            else {
                return Ok(EntryApplied::Known);
            };
            // Set once; the first that is heard of is as good as any.
            let write = Write::update(&self.table, keys::mailing_entry(id)).set_value(name, attribute(&event.at)?);
            let unmarked = Condition::all([Condition::has("email"), Condition::has_not(name)]);
            match self.store.write(invocation, write.when(unmarked)).await? {
                Written::New | Written::Mine => return Ok(EntryApplied::Marked),
                Written::Refused(item) => met = item.map(read_row).transpose()?,
            }
        }
        Err(StoreError::Conflict)
    }

    async fn learn(
        &self,
        invocation: &Invocation,
        entry: &Entry,
        attempt: u32,
        state: EntryState,
        event: &SesEvent,
    ) -> Result<bool, StoreError> {
        let mut write = Write::update(&self.table, keys::mailing_entry(&entry.id))
            .set("state", state.as_str())
            .remove("settle_by")
            .remove("not_before");
        write = match state {
            EntryState::Sent => write
                .remove("doubt")
                .set("external_id", &event.provider_id)
                .set_value("sent_at", attribute(&entry.row.sent_at.unwrap_or(event.at))?)
                .remove("reason"),
            _ => write.set("reason", ses::code::MESSAGE_REJECTED),
        };
        if let Some((name, _)) = event.kind.mark().filter(|(name, _)| is_to_be_marked(&entry.row, name, attempt)) {
            write = write.set_value(name, attribute(&event.at)?);
        }
        if entry.row.state.is_settled() {
            return self.correct(invocation, entry, state, write).await;
        }
        // Its shard is not finished while it is open: whoever works on it counts it.
        let unchanged = of_attempt(entry.row.state, entry.row.attempt);
        Ok(!matches!(self.store.write(invocation, write.when(unchanged)).await?, Written::Refused(_)))
    }
}

/// The state that an event proves, if it is another than the entry's.
fn learned(row: &EntryRow, kind: Kind, attempt: u32) -> Option<EntryState> {
    if attempt > row.attempt {
        return None;
    }
    let last = attempt == row.attempt;
    match (kind.proves_sent(), row.state) {
        // SES took it and told afterwards that it would not send it: nothing proves it sent any more.
        (true, _) if row.rejected_at.is_some() => None,
        (true, EntryState::Unknown | EntryState::Pending | EntryState::Failed) => Some(EntryState::Sent),
        (true, EntryState::Sending) if last => Some(EntryState::Sent),
        // An earlier attempt may have been sent all the same.
        (false, EntryState::Sending) if last && row.doubt.is_some_and(|doubt| doubt != attempt) => {
            Some(EntryState::Unknown)
        }
        (false, EntryState::Unknown) if row.doubt.is_some_and(|doubt| doubt != attempt) => None,
        (false, EntryState::Sending | EntryState::Unknown | EntryState::Sent) if last => Some(EntryState::Failed),
        _ => None,
    }
}

/// Each once; and that it was rejected only of the last attempt, because of an earlier one it says nothing any more.
fn is_to_be_marked(row: &EntryRow, name: &str, attempt: u32) -> bool {
    let old = name == "rejected_at" && (attempt != row.attempt || row.state == EntryState::Pending);
    !old && !is_marked(row, name)
}

fn is_marked(row: &EntryRow, name: &str) -> bool {
    match name {
        "delivered_at" => row.delivered_at.is_some(),
        "bounced_at" => row.bounced_at.is_some(),
        "complained_at" => row.complained_at.is_some(),
        "rejected_at" => row.rejected_at.is_some(),
        _ => true,
    }
}
