//! The Mailings table: names, mailings, shards and entries.
//!
//! Every change of a mailing's state reads the row, decides, and writes on condition that the row's
//! `version` is the one that was read. Every worker on a shard holds the lease of the shard. Only
//! the state of an entry decides about that entry.

mod counts;
mod course;
mod enqueue;
mod entries;
mod files;
mod imports;
mod lines;
mod link_secrets;
mod listing;
mod orders;
mod recovery;
mod shards;
mod unsubscribes;

use umavez_domain::change::Row;
use umavez_domain::keys;
use umavez_domain::mailings::{KeyRow, KeyedOrder, MailingContent, MailingId, MailingRow, NameRow, ShardRow};

pub use entries::{EntryApplied, EntryPage, MailingEntry};
pub use files::SameFile;
pub use imports::Checkpoint;
pub use link_secrets::{LinkSecrets, Signing};
pub use listing::EntryPlace;
pub use orders::OrderOutcome;
pub use recovery::MailingRecovery;
pub use shards::PassEnd;
pub use unsubscribes::{NoSendReason, Unsubscribes};

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::store::{Committed, Condition, Decided, Query, Start, Store, StoreError, Transacted, Write};

#[derive(Debug, Clone)]
pub struct Mailings {
    pub store: Store,
    pub table: String,
}

/// The outcome of creating a mailing.
#[derive(Debug)]
pub enum MailingCreated {
    New,
    /// Another mailing owns the name.
    Standing(Box<MailingRow>),
    /// The name was released meanwhile, or another mailing claimed the same file first: the caller
    /// starts again.
    Again,
}

/// The content of a mailing, in a row of its own.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MailingContentRow {
    pub version: u32,
    #[serde(flatten)]
    pub content: MailingContent,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct ListedRow {
    mailing_id: MailingId,
}

impl Mailings {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self { store: store.clone(), table: config::required("MAILINGS_TABLE")? })
    }

    pub async fn get(&self, invocation: &Invocation, id: &MailingId) -> Result<Option<MailingRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing(id)).await
    }

    /// Reads which mailing a request with this idempotency key created.
    pub async fn find_request(&self, invocation: &Invocation, key: &str) -> Result<Option<KeyRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_request(key)).await
    }

    /// Reads which mailing owns a name.
    pub async fn find_name(&self, invocation: &Invocation, file_name: &str) -> Result<Option<NameRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_name(file_name)).await
    }

    pub async fn content(
        &self,
        invocation: &Invocation,
        id: &MailingId,
    ) -> Result<Option<MailingContentRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::mailing_content(id)).await
    }

    /// Reads all shards of a mailing, in order.
    pub async fn shards(&self, invocation: &Invocation, id: &MailingId) -> Result<Vec<ShardRow>, StoreError> {
        let query = Query::partition(&self.table, keys::mailing_partition(id)).prefix(keys::MAILING_SHARD_PREFIX);
        Ok(self.store.page(invocation, &query.limit(100)).await?.rows)
    }

    /// Creates a mailing. One transaction writes the name, the mailing, its place in the list, its
    /// content, and the claim that it is the first with its file, so two uploads of one name create
    /// one mailing. `seen` is the row of the name from which the mailing's id was derived.
    /// `same_file` is the mailing that was known to have a file with the same bytes.
    pub async fn create(
        &self,
        invocation: &Invocation,
        seen: Option<&NameRow>,
        same_file: &SameFile,
        row: &MailingRow,
        content: Option<&MailingContent>,
        asked_as: Option<&KeyedOrder>,
    ) -> Result<MailingCreated, StoreError> {
        let id = &row.mailing_id;
        // No mailing owns the name: its row does not exist, or the name was released in the turn
        // that was read.
        let free = seen.map_or(Ok(Condition::Absent), |seen| Condition::of(&seen.fence()))?;
        let name = row.name();
        let listed = ListedRow { mailing_id: id.clone() };
        let mut writes = vec![
            Write::put(&self.table, name.key(), &name)?.when(free),
            Write::put(&self.table, keys::mailing(id), row)?.when(Condition::Absent),
            Write::put(&self.table, keys::mailing_listed(id, row.created_at), &listed)?,
        ];
        if let Some(content) = content {
            let content = MailingContentRow { version: row.content_version, content: content.clone() };
            writes.push(Write::put(&self.table, keys::mailing_content(id), &content)?);
        }
        writes.extend(self.claim_new_file(row, same_file)?);
        if let Some(KeyedOrder { key, body, .. }) = asked_as {
            let known = KeyRow { mailing_id: id.clone(), body: body.clone() };
            writes.push(Write::put(&self.table, keys::mailing_request(key), &known)?.when(Condition::Absent));
        }
        if self.store.transact(invocation, writes).await? == Transacted::Done {
            return Ok(MailingCreated::New);
        }
        // The same request ran twice at the same time.
        if let Some(order) = asked_as
            && self.find_request(invocation, &order.key).await?.is_some()
        {
            return Ok(MailingCreated::Again);
        }
        let Some(name) = self.find_name(invocation, &row.file_name).await? else { return Ok(MailingCreated::Again) };
        let Some(owner) = name.mailing_id else { return Ok(MailingCreated::Again) };
        match self.get(invocation, &owner).await? {
            Some(standing) => Ok(MailingCreated::Standing(Box::new(standing))),
            None => Err(StoreError::Corrupt("a name without its mailing")),
        }
    }

    /// Changes a mailing by a rule. The rule returns the next row, or `None` if there is nothing to
    /// change, and the output for the caller.
    async fn change<T>(
        &self,
        invocation: &Invocation,
        start: impl Into<Start<MailingRow>>,
        rule: impl Fn(&MailingRow) -> (Option<MailingRow>, T),
    ) -> Result<Committed<MailingRow, T>, StoreError> {
        let rule = |before: &MailingRow| {
            Ok(match rule(before) {
                (Some(after), out) => Decided::commit(after.changed(before, invocation.current()), out),
                (None, out) => Decided::Stop(out),
            })
        };
        self.store.change(invocation, &self.table, start, rule).await
    }
}
