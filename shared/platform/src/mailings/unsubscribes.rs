//! Recipients who left a list, and recipients on the suppression list of the channel: rows of the
//! Outbound table.

use std::collections::HashSet;

use umavez_domain::channels::Channel;
use umavez_domain::keys::{self, Key, SUPPRESSION_SHARDS};
use umavez_domain::mailings::{MailingEntryId, UnsubscribeRow};
use umavez_domain::suppression::{SuppressionRow, SuppressionStatus, is_after_request, reason};

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::store::{Condition, Query, SpreadPlace, Store, StoreError, Write, Written, attribute, read_row};

#[derive(Debug, Clone)]
pub struct Unsubscribes {
    pub store: Store,
    /// The Outbound table.
    pub table: String,
}

/// Why a recipient must not be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoSendReason {
    /// The recipient left the mailing's list.
    Unsubscribed,
    /// The address is on the suppression list of the channel, for this reason.
    Suppressed(String),
}

impl NoSendReason {
    pub fn code(&self) -> &str {
        match self {
            Self::Unsubscribed => reason::UNSUBSCRIBED,
            Self::Suppressed(reason) => reason,
        }
    }
}

impl Unsubscribes {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self { store: store.clone(), table: config::required("OUTBOUND_TABLE")? })
    }

    /// Removes a recipient from a list. Returns `None` if this request did it; otherwise the
    /// existing row, which is the first one.
    pub async fn add(
        &self,
        invocation: &Invocation,
        row: &UnsubscribeRow,
    ) -> Result<Option<UnsubscribeRow>, StoreError> {
        let key = keys::unsubscribed(&row.list, &row.email_hash);
        let write = Write::put(&self.table, key, row)?.when(Condition::Absent);
        match self.store.write(invocation, write).await? {
            Written::New | Written::Mine => Ok(None),
            Written::Refused(item) => item.map(read_row).transpose(),
        }
    }

    pub async fn get(
        &self,
        invocation: &Invocation,
        list: &str,
        email_hash: &str,
    ) -> Result<Option<UnsubscribeRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::unsubscribed(list, email_hash)).await
    }

    /// Puts a recipient back on a list. Returns whether the recipient had left it when the request
    /// began, and has not left it again since.
    pub async fn remove(&self, invocation: &Invocation, list: &str, email_hash: &str) -> Result<bool, StoreError> {
        let Some(row) = self.get(invocation, list, email_hash).await? else { return Ok(false) };
        if is_after_request(row.created_at, invocation.now, invocation.current()) {
            return Ok(false);
        }
        // Delete only the row that was read: a repeated delete must not undo a later unsubscribe.
        let this_one = Condition::Is("created_at".to_owned(), attribute(&row.created_at)?);
        let write = Write::delete(&self.table, keys::unsubscribed(list, email_hash)).when(this_one);
        // A refusal without a row means that the row is already gone, perhaps because of this same
        // delete, whose reply was lost.
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(Some(_))))
    }

    /// Reads a page of the recipients who left a list, in the order of the hashes of their
    /// addresses.
    pub async fn page(
        &self,
        invocation: &Invocation,
        list: &str,
        after: Option<SpreadPlace>,
        limit: usize,
    ) -> Result<(Vec<UnsubscribeRow>, Option<SpreadPlace>), StoreError> {
        let pks = (0..SUPPRESSION_SHARDS).map(|shard| keys::unsubscribed_from(list, shard));
        let partitions = pks.map(|pk| Query::partition(&self.table, pk)).collect();
        self.store.page_spread(invocation, partitions, after, limit).await
    }

    /// Reads which of these recipients must not be written to, and why, by the hashes of their
    /// addresses. The reads are strongly consistent.
    pub async fn of(
        &self,
        invocation: &Invocation,
        list: Option<&str>,
        entries: &[(&MailingEntryId, &str)],
    ) -> Result<std::collections::HashMap<String, NoSendReason>, StoreError> {
        let mut asked: Vec<Key> = Vec::with_capacity(entries.len() * 2);
        let by_address = |email: &str| keys::suppression(Channel::Email.as_str(), email);
        asked.extend(entries.iter().map(|(_, email)| by_address(email)));
        asked.extend(
            list.into_iter().flat_map(|list| entries.iter().map(|(id, _)| keys::unsubscribed(list, &id.email_hash))),
        );
        let distinct: HashSet<Key> = asked.into_iter().collect();
        let asked: Vec<Key> = distinct.into_iter().collect();
        let mut found = self.store.get_many(invocation, &self.table, &asked).await?;
        let mut why = std::collections::HashMap::new();
        for (id, email) in entries {
            if let Some(item) = found.remove(&by_address(email)) {
                let row: SuppressionRow = read_row(item)?;
                if row.status == SuppressionStatus::Active {
                    why.insert(id.email_hash.clone(), NoSendReason::Suppressed(row.reason));
                    continue;
                }
            }
            let left = list.is_some_and(|list| found.contains_key(&keys::unsubscribed(list, &id.email_hash)));
            if left {
                why.insert(id.email_hash.clone(), NoSendReason::Unsubscribed);
            }
        }
        Ok(why)
    }
}
