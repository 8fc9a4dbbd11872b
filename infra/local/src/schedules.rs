//! Schedules. A schedule that missed ticks, because time was moved or the machine was suspended,
//! fires once and continues from there. When time is set back, the next tick is one period after
//! the new time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use umavez_domain::time::Timestamp;

use crate::faults::{TickAction, TickFault};
use crate::model::Schedule;
use crate::parts::Parts;
use crate::template::{ACCOUNT, REGION};

#[derive(Clone)]
pub struct Ticker {
    pub schedule: Schedule,
    function: String,
    parts: Parts,
    /// When it fires next, if it runs by itself.
    next: Arc<AtomicI64>,
}

impl Ticker {
    pub fn new(schedule: Schedule, function: String, parts: Parts) -> Self {
        Self { schedule, function, parts, next: Arc::new(AtomicI64::new(i64::MAX)) }
    }

    pub fn spawn(&self, tasks: &mut JoinSet<()>) {
        let this = self.clone();
        tasks.spawn(async move {
            let every = i64::try_from(this.schedule.every.as_millis()).unwrap_or(i64::MAX);
            let mut next = this.parts.clock.now_ms().saturating_add(every);
            loop {
                this.next.store(next, Ordering::SeqCst);
                tokio::select! {
                    () = this.parts.clock.sleep_until(next) => {}
                    () = this.parts.clock.set_back() => {
                        next = this.parts.clock.now_ms().saturating_add(every);
                        continue;
                    }
                }
                this.tick().await;
                next = following(next, every, this.parts.clock.now_ms());
            }
        });
    }

    /// Returns whether no due tick is left to fire.
    pub fn is_at_rest(&self) -> bool {
        self.next.load(Ordering::SeqCst) > self.parts.clock.now_ms()
    }

    /// Fires once, now or as a fault says.
    pub async fn tick(&self) {
        match self.parts.faults.on_tick(&self.schedule.id) {
            Some(TickFault { action: TickAction::Skip, .. }) => return,
            Some(TickFault { action: TickAction::Late, seconds, .. }) => {
                let late = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000);
                let at = self.parts.clock.now_ms().saturating_add(late);
                // A schedule that is only fired by hand has no next tick.
                if self.next.load(Ordering::SeqCst) != i64::MAX {
                    self.next.store(at, Ordering::SeqCst);
                }
                self.parts.clock.sleep_until(at).await;
            }
            Some(TickFault { action: TickAction::Twice, .. }) => self.fire().await,
            None => {}
        }
        self.fire().await;
    }

    async fn fire(&self) {
        let event = self.schedule.input.clone().unwrap_or_else(|| self.event());
        if let Err(error) = self.parts.functions.invoke(&self.function, Bytes::from(event.to_string())).await {
            tracing::warn!(function = self.function, schedule = self.schedule.id, %error, "a tick failed");
        }
        self.parts.activity.moved();
    }

    fn event(&self) -> Value {
        json!({
            "version": "0",
            "id": format!("{}-{}", self.schedule.id, self.parts.clock.now_ms()),
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": ACCOUNT,
            "time": Timestamp::from_seconds(self.parts.clock.now_ms() / 1_000),
            "region": REGION,
            "resources": [format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{}", self.schedule.id)],
            "detail": {},
        })
    }
}

/// Returns the time of the next tick: one period after the last one, unless that time has passed or
/// the clock was set back.
fn following(fired: i64, every: i64, now: i64) -> i64 {
    let (next, latest) = (fired.saturating_add(every), now.saturating_add(every));
    if (now + 1..=latest).contains(&next) { next } else { latest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_ticks_fire_once() {
        assert_eq!(following(1_000, 60, 1_010), 1_060);
        assert_eq!(following(1_000, 60, 5_000), 5_060);
    }

    #[test]
    fn the_next_tick_is_never_more_than_a_period_ahead() {
        assert_eq!(following(9_000, 60, 1_000), 1_060);
    }
}
