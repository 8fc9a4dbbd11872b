//! Instances: the settings of an Evolution instance, a Telegram bot, or a name that a caller chose.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::change::Fence;
use umavez_domain::conversations::Via;
use umavez_domain::keys;
use umavez_domain::senders::instances::InstanceRow;

use crate::config::{self, ConfigError};
use crate::invocation::Invocation;
use crate::store::{Condition, Store, StoreError, Write, Written, read_row};

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

    /// Returns all instances that are set up.
    pub async fn list(&self, invocation: &Invocation) -> Result<Vec<InstanceRow>, StoreError> {
        let mut rows: Vec<InstanceRow> = self.store.scan_prefix(invocation, &self.table, keys::INSTANCE_PREFIX).await?;
        rows.sort_by(|a, b| (a.channel, &a.instance).cmp(&(b.channel, &b.instance)));
        Ok(rows)
    }

    /// Creates or replaces an instance. Returns its row and whether it is new.
    pub async fn put(&self, invocation: &Invocation, wanted: InstanceRow) -> Result<(InstanceRow, bool), StoreError> {
        let key = keys::instance(wanted.channel, &wanted.instance);
        let (key, wanted) = (&key, &wanted);
        let stored: Option<InstanceRow> = self.store.get(invocation, &self.table, key).await?;
        let step = |stored: Option<InstanceRow>| async move {
            let version = stored.as_ref().map_or(0, |stored| stored.version);
            let created_at = stored.as_ref().map_or(wanted.created_at, |stored| stored.created_at);
            let row = InstanceRow { created_at, version: version + 1, ..wanted.clone() };
            let as_read = Condition::of(&Fence::version(version))?;
            let write = Write::put(&self.table, key.clone(), &row)?.when(as_read);
            Ok(match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => Break((row, stored.is_none())),
                Written::Refused(item) => Continue(item.map(read_row).transpose()?),
            })
        };
        self.store.retry_from(invocation, stored, step).await
    }
}
