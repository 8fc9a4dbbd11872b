//! The time of the stack: drain it, move it forward, and reset it to the time of the machine.

use std::time::Duration;

use super::Stack;
use super::launch::move_clock;
use crate::StackError;

/// The longest that [`Stack::drain`] and [`Stack::drain_within`] wait for the stack to become idle.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

impl Stack {
    /// Returns when all work that is due has been done: no invocation runs, no stream record is
    /// unread and no message is ready to be delivered. Delayed messages may remain.
    pub async fn drain(&self) -> Result<(), StackError> {
        self.limited(self.rest()).await
    }

    /// Like [`Self::drain`], but also waits for messages that become due within this time, and for
    /// the work that follows from them.
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
            // The parts are checked one after the other, so the stack is idle only if nothing
            // changed during the checks.
            if self.busy_with().await?.is_none() && !moved.has_changed().unwrap_or(false) {
                return Ok(());
            }
            // Invocations end without a notification, so check again soon in any case.
            let _ = tokio::time::timeout(Duration::from_millis(20), moved.changed()).await;
        }
    }

    async fn limited(&self, resting: impl Future<Output = Result<(), StackError>>) -> Result<(), StackError> {
        match tokio::time::timeout(DRAIN_LIMIT, resting).await {
            Ok(rested) => rested,
            Err(_) => {
                let what = self.busy_with().await?.unwrap_or_else(|| "messages that are retried".to_owned());
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

    /// Moves time forward: drains, restarts the functions with the new clock, wakes everything
    /// whose time has come (delays, schedules, and TTL if `sweep_ttl` is set), and drains again.
    pub async fn advance(&self, by: Duration, sweep_ttl: bool) -> Result<(), StackError> {
        let _one_at_a_time = self.0.moving_time.lock().await;
        self.drain().await?;
        let offset = self.0.parts.clock.offset_ms().saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
        self.restart_moved(offset).await;
        self.0.parts.clock.advance(by);
        self.0.parts.activity.moved();
        if sweep_ttl {
            self.sweep_ttl().await?;
        }
        self.drain().await?;
        self.keep(|kept| kept.clock_offset_ms = offset)
    }

    /// Returns to the time of the machine. Rows are not changed: work that is scheduled for, or
    /// held until, a later time stays so. Messages in queues keep their remaining delay.
    pub async fn reset_clock(&self) -> Result<(), StackError> {
        let _one_at_a_time = self.0.moving_time.lock().await;
        self.drain().await?;
        self.restart_moved(0).await;
        let ahead = self.0.parts.clock.offset_ms();
        self.0.parts.clock.reset();
        self.0.parts.queues.set_back(ahead);
        self.keep(|kept| kept.clock_offset_ms = 0)?;
        self.drain().await
    }

    /// Restarts the functions for a new offset of the clock; each keeps its own skew. This comes
    /// before the clock moves: an invocation that the move triggers must not get a process that is
    /// about to be replaced.
    async fn restart_moved(&self, offset_ms: i64) {
        let by_ms = offset_ms.saturating_sub(self.0.parts.clock.offset_ms());
        self.0.parts.functions.restart(|environment| move_clock(environment, by_ms)).await;
    }

    /// Removes expired rows and objects now.
    pub async fn sweep_ttl(&self) -> Result<usize, StackError> {
        let removed = self.0.parts.dynamo.sweep_ttl().await? + self.0.s3.expire()?;
        self.0.parts.activity.moved();
        Ok(removed)
    }
}
