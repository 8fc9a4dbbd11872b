//! The stack's clock: the machine's time plus an offset, which a command can advance or reset. All
//! waits of the stack use this clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

/// The longest sleep before the clock is checked again, because a laptop may be suspended
/// meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Clock {
    offset_ms: watch::Sender<i64>,
}

impl Clock {
    pub fn new(offset_ms: i64) -> Self {
        Self { offset_ms: watch::Sender::new(offset_ms) }
    }

    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX).saturating_add(self.offset_ms())
    }

    pub fn offset_ms(&self) -> i64 {
        *self.offset_ms.borrow()
    }

    /// Moves time forward. Sleeping tasks check the time again.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offset_ms.send_modify(|offset| *offset = offset.saturating_add(by));
    }

    /// Resets the clock to the machine's time.
    pub fn reset(&self) {
        self.offset_ms.send_replace(0);
    }

    /// Returns when time is set back. Does not return while it only moves forward.
    pub async fn set_back(&self) {
        let mut moved = self.offset_ms.subscribe();
        let mut known = *moved.borrow_and_update();
        while moved.changed().await.is_ok() {
            let offset = *moved.borrow_and_update();
            if offset < known {
                return;
            }
            known = offset;
        }
    }

    /// Returns at or after this point of the stack's time, even if the clock is moved.
    pub async fn sleep_until(&self, at_ms: i64) {
        let mut moved = self.offset_ms.subscribe();
        loop {
            let left = at_ms.saturating_sub(self.now_ms());
            let Ok(left @ 1..) = u64::try_from(left) else { return };
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(left).min(LOOK_AGAIN)) => {}
                _ = moved.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moving_time_wakes_sleeping_tasks() {
        let clock = Clock::new(0);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            let at = clock.now_ms() + 3_600_000;
            async move { clock.sleep_until(at).await }
        });
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(3_600));
        sleeper.await.expect("woken");
    }

    #[tokio::test]
    async fn only_a_reset_counts_as_setting_time_back() {
        let clock = Clock::new(5_000);
        let mut waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.set_back().await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut waiting).is_pending());
        clock.reset();
        waiting.await.expect("woken by the reset");
        assert_eq!(clock.offset_ms(), 0);
    }
}
