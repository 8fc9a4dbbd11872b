//! Test mode and policies. They are in one partition, which every insert reads as a whole and
//! strongly consistent. So a request that starts after a change has returned never uses the old
//! settings, on any instance.

use std::ops::ControlFlow::{Break, Continue};

use umavez_domain::ingest::{PolicyKey, PolicyPatch, PolicyRow, Schema, TestModeRow};
use umavez_domain::keys::{self, INGEST_CONFIG};

use crate::invocation::Invocation;
use crate::store::{Condition, Query, Returned, Store, StoreError, Write, Written, read_row};

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

/// The outcome of a change to a policy.
#[derive(Debug)]
pub enum Patched {
    Now(Box<PolicyRow>),
    /// The policy already had these values.
    Already(Box<PolicyRow>),
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
        // The flip is made, even if there was no time to remove old flips.
        if self.forget_old_flips(invocation, &row).await.is_err() {
            tracing::warn!(event = "NOT_TIDIED", request_id = invocation.request_id);
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
        let step = || async {
            let row: TestModeRow =
                self.store.get(invocation, &self.table, &keys::test_mode()).await?.unwrap_or_default();
            // This same request has set the mode, and its reply was lost. Later changes by others
            // stay.
            if row.mode_after(token).is_some() {
                return Ok(Break(row));
            }
            let Some(next) = row.set(is_test_mode, token, invocation.now) else { return Ok(Break(row)) };
            Ok(if self.replace(invocation, &row, &next).await? { Break(next) } else { Continue(()) })
        };
        self.store.retry(invocation, step).await
    }

    /// Replaces the row. Returns `false` if another request has flipped the mode since it was read.
    async fn replace(
        &self,
        invocation: &Invocation,
        seen: &TestModeRow,
        next: &TestModeRow,
    ) -> Result<bool, StoreError> {
        let as_seen = match seen.flips {
            0 => Condition::any([Condition::Absent, Condition::is_number("flips", 0)]),
            flips => Condition::is_number("flips", flips),
        };
        let write = Write::put(&self.table, keys::test_mode(), next)?.when(as_seen);
        Ok(!matches!(self.store.write(invocation, write).await?, Written::Refused(_)))
    }

    /// Removes old flips. Every insert reads the row, so it must stay short. If the write loses a
    /// race, it is a no-op.
    async fn forget_old_flips(&self, invocation: &Invocation, row: &TestModeRow) -> Result<(), StoreError> {
        let trimmed = row.clone().trimmed();
        if trimmed != *row {
            self.replace(invocation, row, &trimmed).await?;
        }
        Ok(())
    }

    /// Changes a policy of one schema. Returns `None` if there is no such policy.
    pub async fn patch(
        &self,
        invocation: &Invocation,
        schema: Schema,
        key: PolicyKey,
        patch: &PolicyPatch,
    ) -> Result<Option<Patched>, StoreError> {
        let step = || async {
            let settings = self.read(invocation).await?;
            let row = settings.policies.into_iter().find(|row| row.schema == schema && row.policy_key == key);
            let Some(row) = row else { return Ok(Break(None)) };
            let Some(next) = patch.apply(&row, invocation.now) else {
                return Ok(Break(Some(Patched::Already(Box::new(row)))));
            };
            let as_seen = Condition::version(row.version);
            let write = Write::put(&self.table, next.key(), &next)?.when(as_seen);
            Ok(match self.store.write(invocation, write).await? {
                Written::New | Written::Mine => Break(Some(Patched::Now(Box::new(next)))),
                Written::Refused(_) => Continue(()),
            })
        };
        self.store.retry(invocation, step).await
    }
}
