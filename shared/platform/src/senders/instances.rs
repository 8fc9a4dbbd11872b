//! Instances: what is set for an Evolution instance, a Telegram bot, or a name of a caller's own.

use umavez_domain::conversations::Via;
use umavez_domain::keys;
use umavez_domain::senders::instances::InstanceRow;

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::store::{Condition, Store, StoreError, Write, Written, read_row};

const ROUNDS: usize = 4;

#[derive(Debug, Clone)]
pub struct Instances {
    pub store: Store,
    /// The Config table.
    pub table: String,
}

impl Instances {
    pub fn from_env(store: &Store) -> Result<Self, ConfigError> {
        Ok(Self { store: store.clone(), table: config::required("CONFIG_TABLE")? })
    }

    pub async fn get(&self, invocation: &Invocation, via: Via, name: &str) -> Result<Option<InstanceRow>, StoreError> {
        self.store.get(invocation, &self.table, &keys::instance(via, name)).await
    }

    /// All that are set up.
    pub async fn list(&self, invocation: &Invocation) -> Result<Vec<InstanceRow>, StoreError> {
        let mut rows: Vec<InstanceRow> = self.store.scan_prefix(invocation, &self.table, keys::INSTANCE_PREFIX).await?;
        rows.sort_by(|a, b| (a.channel, &a.instance).cmp(&(b.channel, &b.instance)));
        Ok(rows)
    }

    /// Sets an instance up, or anew. Whether it is new.
    pub async fn put(&self, invocation: &Invocation, wanted: InstanceRow) -> Result<(InstanceRow, bool), StoreError> {
        let key = keys::instance(wanted.channel, &wanted.instance);
        let mut standing: Option<InstanceRow> = self.store.get(invocation, &self.table, &key).await?;
        for _ in 0..ROUNDS {
            let (row, free) = match &standing {
                None => (wanted.clone(), Condition::Absent),
                Some(before) => {
                    let (created_at, version) = (before.created_at, before.version + 1);
                    let as_read = Condition::is_number("version", before.version);
                    (InstanceRow { created_at, version, ..wanted.clone() }, as_read)
                }
            };
            let write = Write::put(&self.table, key.clone(), &row)?.when(free);
            match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => return Ok((row, standing.is_none())),
                Written::Refused(item) => standing = item.map(read_row).transpose()?,
            }
        }
        Err(StoreError::Conflict)
    }
}
