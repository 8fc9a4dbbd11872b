//! The suppression list: one row per channel and address. A removed one stays as a mark, so that an old event that is
//! delivered again does not bring it back.

use umavez_domain::keys::{self, SUPPRESSION_SHARDS};
use umavez_domain::outbound::Channel;
use umavez_domain::outbound::suppression::{Status, SuppressionRow, source};

use crate::invocation::Invocation;
use crate::store::{Condition, SpreadOf, SpreadPlace, Store, StoreError, Write, Written, attribute, read_row};

#[derive(Debug, Clone)]
pub struct Suppressions {
    pub store: Store,
    pub table: String,
}

/// Nobody has suppressed the address, or it was taken off the list.
fn inactive() -> Result<Condition, StoreError> {
    let removed = Condition::Is("status".to_owned(), attribute(&Status::Removed)?);
    Ok(Condition::any([Condition::Absent, removed]))
}

/// Nothing is sent to an address that is on the list.
pub(crate) fn not_suppressed(table: &str, channel: Channel, to: &str) -> Result<Write, StoreError> {
    Ok(Write::check(table, keys::suppression(channel.as_str(), to), inactive()?))
}

/// Puts an address on the list, unless it is there, or was taken off after what this tells of.
pub(crate) fn adding(table: &str, row: &SuppressionRow) -> Result<Write, StoreError> {
    let key = keys::suppression(row.channel.as_str(), &row.to);
    let removed = Condition::Is("status".to_owned(), attribute(&Status::Removed)?);
    // An operator means now, whatever the clocks say.
    let since = if row.source == source::OPERATOR {
        removed
    } else {
        Condition::all([removed, Condition::at_most("as_of", row.as_of)])
    };
    let free = Condition::any([Condition::Absent, since]);
    Ok(Write::put(table, key, row)?.when(free))
}

impl Suppressions {
    /// Whether it was put on the list now; otherwise the row that stands.
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

    /// Takes an address off the list. Whether it was on it.
    pub async fn remove(&self, invocation: &Invocation, channel: Channel, to: &str) -> Result<bool, StoreError> {
        let active = Condition::Is("status".to_owned(), attribute(&Status::Active)?);
        let write = self.removal(invocation, channel, to)?.when(active);
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }

    /// A person has shown that they can be written to again: takes the address off the list if it is there for this reason,
    /// told by a provider. Whether it was.
    pub async fn lift(
        &self,
        invocation: &Invocation,
        channel: Channel,
        to: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let for_this = Condition::all([
            Condition::Is("status".to_owned(), attribute(&Status::Active)?),
            Condition::is("source", source::PROVIDER),
            Condition::is("reason", reason),
        ]);
        let write = self.removal(invocation, channel, to)?.when(for_this);
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }

    fn removal(&self, invocation: &Invocation, channel: Channel, to: &str) -> Result<Write, StoreError> {
        let now = invocation.now;
        Ok(Write::update(&self.table, keys::suppression(channel.as_str(), to))
            .set_value("status", attribute(&Status::Removed)?)
            .set_number("as_of", now.millis())
            .set_number("expires_at", now.plus_days(366).seconds()))
    }

    pub async fn get(
        &self,
        invocation: &Invocation,
        channel: Channel,
        to: &str,
    ) -> Result<Option<SuppressionRow>, StoreError> {
        let row: Option<SuppressionRow> =
            self.store.get(invocation, &self.table, &keys::suppression(channel.as_str(), to)).await?;
        Ok(row.filter(|row| row.status == Status::Active))
    }

    /// A page of a channel's list, in the order of the addresses' hashes.
    pub async fn page(
        &self,
        invocation: &Invocation,
        channel: Channel,
        after: Option<SpreadPlace>,
        limit: usize,
    ) -> Result<(Vec<SuppressionRow>, Option<SpreadPlace>), StoreError> {
        let pks = (0..SUPPRESSION_SHARDS).map(|shard| keys::suppressions(channel.as_str(), shard)).collect();
        let only = Some(Condition::Is("status".to_owned(), attribute(&Status::Active)?));
        self.store.page_spread(invocation, SpreadOf { table: &self.table, pks, only, after, limit }).await
    }
}
