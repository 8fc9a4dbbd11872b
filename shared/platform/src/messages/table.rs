//! The Outbound table: one message, its content, and the messages of a recipient or a client.

use umavez_domain::channels::Content;
use umavez_domain::keys;
use umavez_domain::keys::index::Index;
use umavez_domain::messages::{ContentRow, MessageId, MessageRow};

use crate::config::{self, ConfigError};
use crate::intents::Intents;
use crate::invocation::Invocation;
use crate::store::{Found, Query, Store, StoreError};
use crate::suppressions::Suppressions;

#[derive(Debug, Clone)]
pub struct Messages {
    pub store: Store,
    pub table: String,
    pub intents: Intents,
    /// How many days a settled message is kept.
    pub retention_days: i64,
}

impl Messages {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self {
            store: store.clone(),
            table: config::required("OUTBOUND_TABLE")?,
            intents: Intents { store: store.clone(), table: config::required("INTENTS_TABLE")? },
            retention_days: Self::retention_from_env()?,
        })
    }

    /// Reads how many days settled messages and ended offers are kept.
    pub fn retention_from_env() -> Result<i64, ConfigError> {
        Ok(config::number("MESSAGE_RETENTION_DAYS", 90, 1..=3_650, "a number of days")?.into())
    }

    pub async fn get(&self, invocation: &Invocation, id: &MessageId) -> Result<Option<MessageRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::message(id)).await
    }

    /// Reads the content of a message from its row or from its separate content row. Of a deduped
    /// message, only small content is kept.
    pub async fn content(&self, invocation: &Invocation, row: &MessageRow) -> Result<Option<Content>, StoreError> {
        if row.content.is_some() {
            return Ok(row.content.clone());
        }
        let apart = self.store.get::<ContentRow>(invocation, &self.table, &keys::message_content(&row.id)).await?;
        Ok(apart.map(|row| row.content))
    }

    /// Returns the suppression list, which is in the same table.
    pub fn suppressions(&self) -> Suppressions {
        Suppressions { store: self.store.clone(), table: self.table.clone() }
    }

    /// Returns messages of one partition of an index, newest first, starting after the place
    /// `after`.
    pub async fn latest(
        &self,
        invocation: &Invocation,
        index: Index,
        partition: String,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<(MessageRow, Found)>, StoreError> {
        let query = Query::index(&self.table, index, partition).newest_first().after(after).limit(limit);
        let found = self.store.nominate(invocation, &query).await?;
        self.rows_of(invocation, found).await
    }

    /// Reads the rows that an index nominated. Skips rows that no longer exist.
    pub(super) async fn rows_of(
        &self,
        invocation: &Invocation,
        found: Vec<Found>,
    ) -> Result<Vec<(MessageRow, Found)>, StoreError> {
        let reads = found.into_iter().map(|found| async move {
            let row: Option<MessageRow> = self.store.get(invocation, &self.table, &found.key).await?;
            Ok::<_, StoreError>(row.map(|row| (row, found)))
        });
        let rows = futures::future::try_join_all(reads).await?;
        Ok(rows.into_iter().flatten().collect())
    }
}
