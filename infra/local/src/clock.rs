//! The stack's time: the machine's, moved forward or set back to it by command. Everything that
//! waits here waits on this clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

/// How long a sleeper trusts the machine's timer before it looks again: laptops are suspended.
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

    /// Moves time forward; whoever sleeps looks again.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offset_ms.send_modify(|offset| *offset = offset.saturating_add(by));
    }

    /// Returns to the machine's time.
    pub fn reset(&self) {
        self.offset_ms.send_replace(0);
    }

    /// Returns when time is set back; never, if it only moves forward.
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

    /// Returns at or after this point of the stack's time, also when time is moved.
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
    async fn moving_time_wakes_whoever_waits_for_it() {
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
    async fn a_reset_is_told_and_moving_forward_is_not() {
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
        waiting.await.expect("told");
        assert_eq!(clock.offset_ms(), 0);
    }
}
