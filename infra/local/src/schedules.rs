//! Ticks. A schedule that was missed, because time was moved or the machine slept, fires once and goes on from there.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use umavez_domain::time::Timestamp;

use crate::activity::Activity;
use crate::clock::Clock;
use crate::functions::Functions;
use crate::model::Schedule;
use crate::template::{ACCOUNT, REGION};

#[derive(Clone)]
pub struct Ticker {
    pub schedule: Schedule,
    pub function: String,
    pub functions: Functions,
    pub clock: Clock,
    pub activity: Activity,
}

impl Ticker {
    pub fn spawn(&self, tasks: &mut JoinSet<()>) {
        let this = self.clone();
        tasks.spawn(async move {
            let every = i64::try_from(this.schedule.every.as_millis()).unwrap_or(i64::MAX);
            let mut next = this.clock.now_ms().saturating_add(every);
            loop {
                this.clock.sleep_until(next).await;
                this.tick().await;
                next = following(next, every, this.clock.now_ms());
            }
        });
    }

    /// Fires once, now.
    pub async fn tick(&self) {
        let event = self.schedule.input.clone().unwrap_or_else(|| self.event());
        if let Err(error) = self.functions.invoke(&self.function, Bytes::from(event.to_string())).await {
            tracing::warn!(function = self.function, schedule = self.schedule.id, %error, "a tick failed");
        }
        self.activity.moved();
    }

    fn event(&self) -> Value {
        json!({
            "version": "0",
            "id": format!("{}-{}", self.schedule.id, self.clock.now_ms()),
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": ACCOUNT,
            "time": Timestamp::from_seconds(self.clock.now_ms() / 1_000),
            "region": REGION,
            "resources": [format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{}", self.schedule.id)],
            "detail": {},
        })
    }
}

/// The next tick after one was fired: in step with the last, unless time has run past that.
fn following(fired: i64, every: i64, now: i64) -> i64 {
    let next = fired.saturating_add(every);
    if next > now { next } else { now.saturating_add(every) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_ticks_fire_once() {
        assert_eq!(following(1_000, 60, 1_010), 1_060);
        assert_eq!(following(1_000, 60, 5_000), 5_060);
    }
}
