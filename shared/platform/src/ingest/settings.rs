//! Test mode and policies. They are in one partition, which every insert reads as a whole and
//! strongly consistent. So a request that starts after a change has returned never uses the old
//! settings, on any instance.

use umavez_domain::change::Row as _;
use umavez_domain::ingest::{PolicyKey, PolicyPatch, PolicyRow, Schema, TestModeRow};
use umavez_domain::keys::{self, INGEST_CONFIG};
use umavez_domain::telemetry::Event;

use crate::invocation::Invocation;
use crate::store::{Condition, Query, Returned, Store, StoreError, Write, read_row};

#[derive(Debug, Clone)]
pub struct SettingsTable {
    pub store: Store,
    pub table: String,
}

/// The settings as of one read.
#[derive(Debug, Clone)]
pub struct Settings {
    pub test_mode: TestModeRow,
    pub policies: Vec<PolicyRow>,
}

impl Settings {
    pub fn schema(&self) -> Schema {
        self.test_mode.schema()
    }
}

/// More than the number of rows in the partition.
const ALL: usize = 200;

impl SettingsTable {
    /// Reads the settings. First writes the policies that a new deployment added and that are
    /// missing.
    pub async fn read(&self, invocation: &Invocation) -> Result<Settings, StoreError> {
        let settings = self.query(invocation).await?;
        let seeds = PolicyRow::seeds(invocation.now);
        let known = |seed: &PolicyRow| settings.policies.iter().any(|row| row.key() == seed.key());
        let missing: Vec<_> = seeds.into_iter().filter(|seed| !known(seed)).collect();
        if missing.is_empty() {
            return Ok(settings);
        }
        for seed in missing {
            let write = Write::put(&self.table, seed.key(), &seed)?.when(Condition::Absent);
            self.store.write(invocation, write).await?;
        }
        self.query(invocation).await
    }

    async fn query(&self, invocation: &Invocation) -> Result<Settings, StoreError> {
        let query = Query::partition(&self.table, INGEST_CONFIG).limit(ALL);
        let mut settings = Settings { test_mode: TestModeRow::default(), policies: Vec::new() };
        for item in self.store.page_items(invocation, &query).await?.rows {
            match item.get("policy_key") {
                Some(_) => settings.policies.push(read_row(item)?),
                None => settings.test_mode = read_row(item)?,
            }
        }
        Ok(settings)
    }

    /// Flips the mode with one addition, which is safe if others flip at the same time. If the
    /// reply to a flip was lost, its retry finds its token and does not flip again. Returns the
    /// row, the mode right after this flip, and whether the flip had been made before.
    pub async fn toggle(&self, invocation: &Invocation, token: &str) -> Result<(TestModeRow, bool, bool), StoreError> {
        let not_made = Condition::any([Condition::has_not("recent"), Condition::lacks("recent", token)]);
        let write = Write::update(&self.table, keys::test_mode())
            .increment("flips")
            .append("recent", token)
            .set("updated_at", invocation.now.to_string())
            .when(not_made);
        let (row, again) = match self.store.update_returning(invocation, write).await? {
            Returned::Row(item) => (read_row::<TestModeRow>(item)?, false),
            Returned::Refused(Some(item)) => (read_row(item)?, true),
            Returned::Refused(None) => return Err(StoreError::Corrupt("a flip that nothing refused")),
        };
        // Remove old flips: every insert reads the row, so it must stay short. If the write loses a
        // race, it is a no-op. The flip is made, even if there was no time to remove old flips.
        let trimmed = row.clone().trimmed();
        if trimmed != row && self.store.commit(invocation, &self.table, &row, &trimmed, Vec::new()).await.is_err() {
            tracing::warn!(event = Event::TestModeHistoryNotPruned.as_str(), request_id = invocation.request_id);
        }
        let mode = row.mode_after(token).unwrap_or_else(|| row.is_test_mode());
        Ok((row, mode, again))
    }

    /// Sets the mode; a no-op if the mode is already set.
    pub async fn set(
        &self,
        invocation: &Invocation,
        is_test_mode: bool,
        token: &str,
    ) -> Result<TestModeRow, StoreError> {
        let row: TestModeRow = self.store.get(invocation, &self.table, &keys::test_mode()).await?.unwrap_or_default();
        let rule = |row: &TestModeRow| Ok(row.set(is_test_mode, token, invocation.now).into());
        let changed = self.store.change(invocation, &self.table, &row, rule).await?;
        changed.row().map(|(row, ())| row).ok_or(StoreError::Conflict)
    }

    /// Changes a policy of one schema. Returns the policy and whether this patch changed it; `None`
    /// if there is no such policy.
    pub async fn patch(
        &self,
        invocation: &Invocation,
        schema: Schema,
        key: PolicyKey,
        patch: &PolicyPatch,
    ) -> Result<Option<(PolicyRow, bool)>, StoreError> {
        let settings = self.read(invocation).await?;
        let row = settings.policies.iter().find(|row| row.schema == schema && row.policy_key == key);
        let Some(row) = row else { return Ok(None) };
        let rule = |row: &PolicyRow| Ok(patch.apply(row, invocation.now).into());
        Ok(self.store.change(invocation, &self.table, row, rule).await?.row())
    }
}
