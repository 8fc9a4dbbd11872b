//! The stack's time: it comes to rest, moves forward, and returns to the machine's.

use std::collections::BTreeMap;
use std::time::Duration;

use umavez_platform::clock::OFFSET_VARIABLE;

use super::Stack;
use crate::StackError;

/// The longest that [`Stack::drain`] and [`Stack::drain_within`] wait for rest.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

impl Stack {
    /// Returns when nothing is left to do before a delay: no invocation, no change unread, no
    /// message to deliver.
    pub async fn drain(&self) -> Result<(), StackError> {
        self.limited(self.rest()).await
    }

    /// Returns when nothing is left to do within this time either: waits for messages in queues
    /// that are due by then, and for what follows from them.
    pub async fn drain_within(&self, within: Duration) -> Result<(), StackError> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        self.limited(async {
            loop {
                self.rest().await?;
                let clock = &self.0.parts.clock;
                match self.0.mappings.next_due().filter(|due| *due <= clock.now_ms().saturating_add(within)) {
                    Some(due) => clock.sleep_until(due).await,
                    None => return Ok(()),
                }
            }
        })
        .await
    }

    async fn rest(&self) -> Result<(), StackError> {
        let mut moved = self.0.parts.activity.watch();
        loop {
            moved.mark_unchanged();
            // The looks are taken one after the other: rest is only what nothing disturbed
            // meanwhile.
            if self.busy_with().await?.is_none() && !moved.has_changed().unwrap_or(false) {
                return Ok(());
            }
            // Invocations end without anything moving: look again soon in any case.
            let _ = tokio::time::timeout(Duration::from_millis(20), moved.changed()).await;
        }
    }

    async fn limited(&self, resting: impl Future<Output = Result<(), StackError>>) -> Result<(), StackError> {
        match tokio::time::timeout(DRAIN_LIMIT, resting).await {
            Ok(rested) => rested,
            Err(_) => {
                let what = self.busy_with().await?.unwrap_or_else(|| "messages that are tried again".to_owned());
                Err(StackError::Restless { seconds: DRAIN_LIMIT.as_secs(), what })
            }
        }
    }

    async fn busy_with(&self) -> Result<Option<String>, StackError> {
        if let Some(what) = self.0.mappings.busy_with().await? {
            return Ok(Some(what));
        }
        let calls = self.0.parts.activity.under_way();
        if calls > 0 {
            return Ok(Some(format!("{calls} calls")));
        }
        let busy = self.0.parts.functions.busy();
        Ok((busy > 0).then(|| format!("{busy} invocations")))
    }

    /// Moves time forward: drains, restarts the functions with the new clock, lets everything that
    /// waited follow (delays, schedules, TTL unless told not to), and drains again.
    pub async fn advance(&self, by: Duration, sweep_ttl: bool) -> Result<(), StackError> {
        let _one_at_a_time = self.0.moving_time.lock().await;
        self.drain().await?;
        let offset = self.0.parts.clock.offset_ms().saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
        self.restart_at(offset).await;
        self.0.parts.clock.advance(by);
        self.0.parts.activity.moved();
        if sweep_ttl {
            self.sweep_ttl().await?;
        }
        self.drain().await?;
        self.keep(|kept| kept.clock_offset_ms = offset)
    }

    /// Returns to the machine's time. Rows are not changed: what was scheduled for a later time, or
    /// is held until then, stays so. Messages in queues wait as long as they would have waited.
    pub async fn reset_clock(&self) -> Result<(), StackError> {
        let _one_at_a_time = self.0.moving_time.lock().await;
        self.drain().await?;
        self.restart_at(0).await;
        let ahead = self.0.parts.clock.offset_ms();
        self.0.parts.clock.reset();
        self.0.parts.queues.set_back(ahead);
        self.keep(|kept| kept.clock_offset_ms = 0)?;
        self.drain().await
    }

    /// The functions get a new time before anything else: what wakes when the clock moves must not
    /// meet a process that is about to be replaced.
    async fn restart_at(&self, offset_ms: i64) {
        let set_offset = |environment: &mut BTreeMap<String, String>| {
            environment.insert(OFFSET_VARIABLE.to_owned(), offset_ms.to_string());
        };
        self.0.parts.functions.restart(set_offset).await;
    }

    /// Removes expired rows and objects now.
    pub async fn sweep_ttl(&self) -> Result<usize, StackError> {
        let removed = self.0.parts.dynamo.sweep_ttl().await? + self.0.s3.expire()?;
        self.0.parts.activity.moved();
        Ok(removed)
    }
}
