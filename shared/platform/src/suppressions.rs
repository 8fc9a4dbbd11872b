//! The suppression list: one row per channel and address, for all senders or for the senders that
//! it names. A removed row stays as a marker, so that a redelivered old event does not suppress the
//! address again.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::channels::Channel;
use umavez_domain::channels::email::ses_events::SesEvent;
use umavez_domain::keys::{self, SUPPRESSION_SHARDS};
use umavez_domain::suppression::{SuppressionRow, SuppressionStatus, is_after_request, source};
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Query, SpreadPlace, Store, StoreError, Write, Written, attribute, read_row};

#[derive(Debug, Clone)]
pub struct Suppressions {
    pub store: Store,
    pub table: String,
}

fn is(status: SuppressionStatus) -> Result<Condition, StoreError> {
    Ok(Condition::Is("status".to_owned(), attribute(&status)?))
}

/// Returns the check that an address is not suppressed for this sender: its row is absent or
/// removed, or it names only other senders.
pub(crate) fn not_suppressed(table: &str, channel: Channel, to: &str, sender: &str) -> Result<Write, StoreError> {
    let against_others = Condition::all([Condition::has("senders"), Condition::lacks("senders", sender)]);
    let free = Condition::any([Condition::Absent, is(SuppressionStatus::Removed)?, against_others]);
    Ok(Write::check(table, keys::suppression(channel.as_str(), to), free))
}

/// Returns the write that suppresses an address. The write is refused if the address is already
/// suppressed, or if it was removed from the list after the event that `row` reports. A suppression
/// for all senders replaces one for some senders. A suppression for one sender is added to those
/// for others.
pub(crate) fn adding(table: &str, row: &SuppressionRow) -> Result<Write, StoreError> {
    let key = keys::suppression(row.channel.as_str(), &row.to);
    let removed = is(SuppressionStatus::Removed)?;
    // An operator's suppression applies now, so it ignores the time of the removal: clocks differ.
    let since = if row.source == source::OPERATOR {
        removed
    } else {
        Condition::all([removed, Condition::at_most("as_of", row.as_of)])
    };
    let for_some = Condition::all([is(SuppressionStatus::Active)?, Condition::has("senders")]);
    let Some(sender) = row.senders.first() else {
        return Ok(Write::put(table, key, row)?.when(Condition::any([Condition::Absent, since, for_some])));
    };
    let for_others = Condition::all([for_some, Condition::lacks("senders", sender)]);
    Ok(Write::update(table, key)
        .set_row(row, &["senders"])?
        .append("senders", sender)
        .remove("note")
        .remove("expires_at")
        .when(Condition::any([Condition::Absent, since, for_others])))
}

impl Suppressions {
    /// Suppresses an address. Returns `None` if this call suppressed it, otherwise the current row.
    pub async fn add(
        &self,
        invocation: &Invocation,
        row: &SuppressionRow,
    ) -> Result<Option<SuppressionRow>, StoreError> {
        match self.store.write(invocation, adding(&self.table, row)?).await? {
            Written::New | Written::Mine => Ok(None),
            Written::Refused(item) => item.map(read_row).transpose(),
        }
    }

    /// Suppresses the addresses of a bounce or a complaint about a mail. Other events suppress
    /// nothing.
    pub async fn add_event(&self, invocation: &Invocation, event: &SesEvent, mail_id: &str) -> Result<(), StoreError> {
        let Some(reason) = event.kind.suppresses() else { return Ok(()) };
        for to in &event.recipients {
            let row = SuppressionRow::new(Channel::Email, to, reason, source::SES, Some(mail_id), event.at);
            self.add(invocation, &row).await?;
        }
        Ok(())
    }

    /// Removes an address from the list. Returns whether it was suppressed when the request began:
    /// what was suppressed since then stays.
    pub async fn remove(&self, invocation: &Invocation, channel: Channel, to: &str) -> Result<bool, StoreError> {
        let step = || async {
            let Some(row) = self.get(invocation, channel, to).await? else { return Ok(Break(false)) };
            let at = Timestamp::from_millis(row.as_of);
            if is_after_request(at, invocation.now, invocation.current()) {
                return Ok(Break(false));
            }
            // A delayed first attempt of this write does not remove what was suppressed after it.
            let as_read = Condition::all([is(SuppressionStatus::Active)?, Condition::is_number("as_of", row.as_of)]);
            let write = self.removal(invocation, channel, to)?.when(as_read);
            Ok(match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => Break(true),
                Written::Refused(_) => Continue(()),
            })
        };
        self.store.retry(invocation, step).await
    }

    /// Lifts the suppression for one sender, because the person has shown that this sender can
    /// write to them again. Suppressions for other senders, or for all, stay.
    pub async fn lift(
        &self,
        invocation: &Invocation,
        channel: Channel,
        to: &str,
        sender: &str,
    ) -> Result<(), StoreError> {
        let step = |senders: Vec<String>| async move {
            let as_read = Condition::all([
                is(SuppressionStatus::Active)?,
                Condition::Is("senders".to_owned(), attribute(&senders)?),
            ]);
            let rest: Vec<_> = senders.iter().filter(|other| *other != sender).cloned().collect();
            let write = match rest.is_empty() {
                true => self.removal(invocation, channel, to)?,
                false => Write::update(&self.table, keys::suppression(channel.as_str(), to))
                    .set_value("senders", attribute(&rest)?),
            };
            let Written::Refused(stored) = self.store.write(invocation, write.when(as_read)).await? else {
                return Ok(Break(()));
            };
            let stored: Option<SuppressionRow> = stored.map(read_row).transpose()?;
            match stored.filter(|row| row.status == SuppressionStatus::Active) {
                Some(row) if row.is_against(sender) => Ok(Continue(row.senders)),
                // The row is from before rows named senders.
                Some(row) if row.is_of_one_bot() && row.senders.is_empty() => {
                    let reason = Condition::is("reason", row.reason);
                    let as_read =
                        Condition::all([is(SuppressionStatus::Active)?, Condition::has_not("senders"), reason]);
                    let write = self.removal(invocation, channel, to)?.when(as_read);
                    self.store.write(invocation, write).await.map(|_| Break(()))
                }
                _ => Ok(Break(())),
            }
        };
        self.store.retry_from(invocation, vec![sender.to_owned()], step).await
    }

    fn removal(&self, invocation: &Invocation, channel: Channel, to: &str) -> Result<Write, StoreError> {
        let now = invocation.now;
        Ok(Write::update(&self.table, keys::suppression(channel.as_str(), to))
            .set_value("status", attribute(&SuppressionStatus::Removed)?)
            .set_number("as_of", now.millis())
            .set_number("expires_at", now.plus_days(366).seconds())
            .remove("senders"))
    }

    pub async fn get(
        &self,
        invocation: &Invocation,
        channel: Channel,
        to: &str,
    ) -> Result<Option<SuppressionRow>, StoreError> {
        let row: Option<SuppressionRow> =
            self.store.get(invocation, &self.table, &keys::suppression(channel.as_str(), to)).await?;
        Ok(row.filter(|row| row.status == SuppressionStatus::Active))
    }

    /// Returns a page of a channel's list, ordered by the hashes of the addresses.
    pub async fn page(
        &self,
        invocation: &Invocation,
        channel: Channel,
        after: Option<SpreadPlace>,
        limit: usize,
    ) -> Result<(Vec<SuppressionRow>, Option<SpreadPlace>), StoreError> {
        let active = is(SuppressionStatus::Active)?;
        let pks = (0..SUPPRESSION_SHARDS).map(|shard| keys::suppressions(channel.as_str(), shard));
        let partitions = pks.map(|pk| Query::partition(&self.table, pk).only(active.clone())).collect();
        self.store.page_spread(invocation, partitions, after, limit).await
    }
}
