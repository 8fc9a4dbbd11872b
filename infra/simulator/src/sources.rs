//! What invokes the functions: queues, streams and schedules, as AWS documents them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use umavez_domain::keys::Key;
use umavez_domain::outbox::{ATTRIBUTE, Emit, to_publish};
use umavez_domain::time::Timestamp;
use umavez_local::model::{Model, QueueSource, Schedule, StreamSource};
use umavez_local::sources::passes_filter as passes;
use umavez_platform::due::is_of_this_minute;
use umavez_platform::store::Found;

use crate::lambda::Lambda;
use crate::net::Net;
use crate::queues;
use crate::tables::plain;

/// How far ahead a sweep looks at most, and a margin for the clocks of instances.
const LOOK_AHEAD_MS: i64 = 20 * 60_000;
/// Recovery looks only at what is overdue: a margin for the clocks of instances.
const OVERDUE_AHEAD_MS: i64 = 10_000;
/// How the names of the relay and of recovery end.
const RELAY: &str = "-outbox-relay";
const RECOVERY: &str = "-recovery";
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
/// Recovery keeps what has waited for a person for half of the retention period.
const KEEPS_AFTER_MS: i64 = 45 * DAY_MS;
/// How many batches of a queue run at once.
const AT_ONCE: usize = 3;

#[derive(Clone)]
pub struct Sources {
    pub net: Net,
    pub lambda: Lambda,
}

impl Sources {
    /// Starts the mappings and schedules of the functions that the play runs.
    pub fn start(&self, model: &Model, functions: &[&str]) {
        tokio::task::spawn_local(self.clone().expire());
        for function in model.functions.iter().filter(|function| functions.contains(&function.binary.as_str())) {
            for source in &function.queue_sources {
                for _ in 0..AT_ONCE {
                    tokio::task::spawn_local(self.clone().poll(source.clone(), function.name.clone()));
                }
            }
            for source in &function.stream_sources {
                tokio::task::spawn_local(self.clone().follow(source.clone(), function.name.clone()));
            }
            for schedule in &function.schedules {
                tokio::task::spawn_local(self.clone().tick(schedule.clone(), function.name.clone()));
            }
        }
    }

    /// Delivers the messages of a queue, at least once and in any order.
    async fn poll(self, source: QueueSource, function: String) {
        loop {
            let now = self.net.now_ms();
            if self.net.with_queues(|queues| queues.next_visible(&source.queue)).is_none_or(|at| at > now) {
                self.wait(&source.queue).await;
                continue;
            }
            let decision = self.net.decision(&format!("batch of {}", source.queue));
            let mut dice = self.net.dice().of(&decision);
            let batch = self.net.with_queues(|queues| {
                queues.receive(&source.queue, source.batch_size, now, |number| dice.usize(0..number))
            });
            // All that was visible may have gone to the dead-letter queue.
            if batch.is_empty() {
                continue;
            }
            if self.net.strikes(&format!("lost {decision}"), self.net.profile().deliveries / 4) {
                self.net.note(&format!("a batch of {} is lost", source.queue));
                for message in &batch {
                    self.net.note_lost(&message.body);
                    self.net.with_queues(|queues| queues.delete(&source.queue, &message.receipt));
                }
                continue;
            }
            if self.net.strikes(&format!("late {decision}"), self.net.profile().deliveries) {
                sleep(Duration::from_millis(dice.u64(100..20_000))).await;
            }
            let answer = self.lambda.invoke(&function, queues::event(&source.queue, &batch)).await;
            let failed: Vec<&str> = match &answer {
                Ok(answer) => {
                    let failures = answer["batchItemFailures"].as_array().into_iter().flatten();
                    failures.filter_map(|failure| failure["itemIdentifier"].as_str()).collect()
                }
                Err(_) => continue,
            };
            let ids = queues::event(&source.queue, &batch);
            for (message, record) in batch.iter().zip(ids["Records"].as_array().into_iter().flatten()) {
                let is_failed = record["messageId"].as_str().is_some_and(|id| failed.contains(&id));
                // Now and then a message that was handled is delivered again.
                let again = format!("again message {} of {decision}", message.number);
                if !is_failed {
                    self.net.note_handled(&message.body);
                }
                if !is_failed && !self.net.strikes(&again, self.net.profile().deliveries / 2) {
                    self.net.with_queues(|queues| queues.delete(&source.queue, &message.receipt));
                }
            }
        }
    }

    /// Waits until a message of the queue may be visible.
    async fn wait(&self, queue: &str) {
        let now = self.net.now_ms();
        let next = self.net.with_queues(|queues| queues.next_visible(queue));
        match next.and_then(|at| u64::try_from(at - now).ok()) {
            Some(left) => {
                tokio::select! {
                    biased;
                    () = self.net.moved() => {}
                    () = sleep(Duration::from_millis(left.max(1))) => {}
                }
            }
            None => self.net.moved().await,
        }
    }

    /// Delivers the changes of a table, in order, until each is handled or given up.
    async fn follow(self, source: StreamSource, function: String) {
        let mut delivered = 0;
        let mut seen = 0;
        loop {
            let writes = self.net.writes(&source.table);
            if writes == seen {
                self.net.moved().await;
                continue;
            }
            let changes = self.net.tables().changes(&source.table, delivered, source.batch_size);
            if changes.is_empty() {
                seen = writes;
                continue;
            }
            delivered += changes.len();
            let decision = self.net.decision(&format!("changes of {} for {function}", source.table));
            let mut dice = self.net.dice().of(&decision);
            let mut wanted: Vec<_> = changes.into_iter().filter(|change| passes(&source.filters, change)).collect();
            if self.net.strikes(&format!("lost {decision}"), self.net.profile().deliveries / 4) && !wanted.is_empty() {
                let lost = wanted.remove(dice.usize(0..wanted.len()));
                self.net.note(&format!("a change of {} is lost: {}", source.table, number_of(&lost)));
            }
            if self.net.strikes(&format!("late {decision}"), self.net.profile().deliveries) {
                sleep(Duration::from_millis(dice.u64(100..60_000))).await;
            }
            if self.net.strikes(&format!("twice {decision}"), self.net.profile().deliveries) && !wanted.is_empty() {
                let _ = self.lambda.invoke(&function, json!({"Records": wanted})).await;
            }
            let mut retries = 0;
            while !wanted.is_empty() {
                if let Ok(answer) = self.lambda.invoke(&function, json!({"Records": wanted})).await {
                    let failed = answer["batchItemFailures"][0]["itemIdentifier"].as_str().map(str::to_owned);
                    let first = failed.as_ref().map_or(wanted.len(), |failed| {
                        wanted.iter().position(|change| number_of(change) == *failed).unwrap_or(0)
                    });
                    if function.ends_with(RELAY) {
                        self.check_published(&wanted[..first]);
                    }
                    if failed.is_none() {
                        break;
                    }
                    if first > 0 {
                        retries = 0;
                    }
                    wanted.drain(..first);
                }
                retries += 1;
                if source.max_retries.is_some_and(|most| retries > most) {
                    self.net.note(&format!("a change of {} is given up", source.table));
                    // Batches are split until the change that fails is alone.
                    match source.bisect {
                        true => drop(wanted.remove(0)),
                        false => break,
                    }
                    retries = 0;
                }
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// I2: what the relay acknowledges is in its queue.
    fn check_published(&self, changes: &[Value]) {
        for change in changes {
            let emit = |image: &str| -> Option<Emit> {
                serde_json::from_value(plain(&change["dynamodb"][image][ATTRIBUTE])).ok()
            };
            let (old, new) = (emit("OldImage"), emit("NewImage"));
            let unpublished = to_publish(old.as_ref(), new.as_ref())
                .filter(|emit| !self.net.with_queues(|queues| queues.is_published(&emit.id)));
            if let Some(emit) = unpublished {
                self.net.note_violation(format!("the relay acknowledged {} and did not publish it", emit.id));
            }
        }
    }

    /// Deletes rows after their time to live, as TTL does: within minutes or days.
    async fn expire(self) {
        loop {
            let Some(next) = self.net.tables().next_expiry_ms() else {
                self.net.moved().await;
                continue;
            };
            self.sleep_until_or_moved(next + 1).await;
            if self.net.now_ms() <= next {
                continue;
            }
            let decision = self.net.decision("expiry");
            let mut dice = self.net.dice().of(&decision);
            sleep(Duration::from_secs(dice.u64(1..3_600))).await;
            let deleted = self.net.tables().expire(self.net.now_ms(), || dice.bool());
            for (table, number) in deleted {
                self.net.note(&format!("{number} rows of {table} expire"));
                self.net.count_writes(&table);
            }
            self.net.wake();
        }
    }

    /// Invokes a function at regular times. A tick that would find nothing due is skipped, because
    /// it changes nothing and costs time.
    async fn tick(self, schedule: Schedule, function: String) {
        let event = schedule.input.clone().unwrap_or_else(|| json!({}));
        let is_recovery = function.ends_with(RECOVERY);
        let ahead_ms = if is_recovery { OVERDUE_AHEAD_MS } else { LOOK_AHEAD_MS };
        let mut last_ms = self.net.now_ms();
        loop {
            let decision = self.net.decision(&format!("tick of {}", schedule.id));
            let mut dice = self.net.dice().of(&decision);
            // Several ticks in a row are skipped now and then, as if they were lost.
            let every = if self.net.is_quiet() { 5 } else { dice.u32(2..6) };
            sleep(schedule.every * every).await;
            while let Some(next) = self.idle_until(ahead_ms, is_recovery.then_some(last_ms)) {
                self.sleep_until_or_moved(next).await;
            }
            let now_ms = self.net.now_ms();
            if self.net.strikes(&format!("twice {decision}"), self.net.profile().deliveries) {
                let _ = self.lambda.invoke(&function, event.clone()).await;
            }
            let is_done = self.lambda.invoke(&function, event.clone()).await.is_ok();
            // What a run that failed would have kept is looked at again an hour later.
            last_ms = if is_done { now_ms } else { now_ms - DAY_MS + HOUR_MS + MINUTE_MS };
        }
    }

    /// Returns until when a function that looks so far ahead finds nothing, if nothing is written.
    /// Returns `None` if it may find something now. Recovery, which ran last at this time, also
    /// looks at what has waited for a person for long, each row in its own minute of the hour: once
    /// a day is enough.
    fn idle_until(&self, ahead_ms: i64, recovered_ms: Option<i64>) -> Option<i64> {
        let next = self.net.tables().next_due_ms().unwrap_or(i64::MAX).saturating_sub(ahead_ms);
        let kept = |(pk, since): (String, i64)| {
            let from = (since + KEEPS_AFTER_MS).max(recovered_ms? + DAY_MS - HOUR_MS);
            let minutes = (0..60).map(|minute| from - from % MINUTE_MS + minute * MINUTE_MS + MINUTE_MS / 2);
            let found = Found { key: Key { pk, sk: String::new() }, place: String::new() };
            minutes.into_iter().find(|at| is_of_this_minute(&found, Timestamp::from_millis(*at)))
        };
        let kept = self.net.tables().waiting().into_iter().filter_map(kept).min();
        let next = kept.map_or(next, |kept| kept.min(next));
        (next > self.net.now_ms()).then_some(next)
    }

    /// Waits until this time, or until something was written.
    async fn sleep_until_or_moved(&self, at_ms: i64) {
        let left = u64::try_from(at_ms - self.net.now_ms()).unwrap_or(0);
        // Timers of tokio end after some years.
        let left = Duration::from_millis(left.min(365 * 86_400_000));
        tokio::select! {
            biased;
            () = self.net.moved() => {}
            () = sleep(left) => {}
        }
    }
}

fn number_of(change: &Value) -> String {
    change["dynamodb"]["SequenceNumber"].as_str().unwrap_or_default().to_owned()
}
