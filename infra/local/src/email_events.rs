//! The events that SES publishes about an email that it accepted: sent, and then delivered, bounced
//! or complained about.
//!
//! Email to an ordinary address is delivered. The addresses of SES's mailbox simulator behave as
//! they do on AWS, with or without a label (`bounce+label@…`).

mod history;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use self::history::{Email, history};
use crate::StackError;
use crate::bus::{self, Bus};
use crate::catcher::Caught;
use crate::clock::Clock;
use crate::model::{ConfigurationSet, Model};
use crate::template::configuration_set_arn;

/// A handle: clones are cheap and share one switch.
#[derive(Clone)]
pub struct EmailEvents {
    sets: Arc<[ConfigurationSet]>,
    bus: Bus,
    clock: Clock,
    on: Arc<AtomicBool>,
}

impl EmailEvents {
    pub fn new(sets: &[ConfigurationSet], bus: Bus, clock: Clock) -> Self {
        Self { sets: sets.into(), bus, clock, on: Arc::new(AtomicBool::new(true)) }
    }

    /// Turns the publishing of events on or off.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    pub fn are_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    /// Publishes the events of an email. Publishes nothing if SES rejected the email, if the email
    /// names no configuration set of the template, or if publishing is off.
    pub async fn publish(&self, request: &[u8], caught: &Caught) {
        let Some(message_id) = caught.body["MessageId"].as_str().filter(|_| caught.status == 200 && self.are_on())
        else {
            return;
        };
        let request: Value = serde_json::from_slice(request).unwrap_or(Value::Null);
        let named = request["ConfigurationSetName"].as_str().unwrap_or_default();
        let Some(set) = self.sets.iter().find(|set| set.name == named) else { return };
        let email = Email::of(&request, message_id, &set.name, self.clock.now_ms());
        if let Err(error) = self.publish_all(set, &email).await {
            tracing::warn!(%error, "the events of an email could not be published");
        }
    }

    async fn publish_all(&self, set: &ConfigurationSet, email: &Email) -> Result<(), StackError> {
        let resources = [configuration_set_arn(&set.name)];
        for event in history(email) {
            for _ in set.destinations.iter().filter(|types| types.contains(event.kind)) {
                self.bus.publish("aws.ses", event.detail_type, &resources, event.detail.clone()).await?;
            }
        }
        Ok(())
    }
}

/// Returns what an email puts into the queues of the template: each of its events, and the queue.
pub fn to_queues(model: &Model, request: &[u8], caught: &Caught, now_ms: i64) -> Vec<(String, String)> {
    let Some(message_id) = caught.body["MessageId"].as_str().filter(|_| caught.status == 200) else {
        return Vec::new();
    };
    let request: Value = serde_json::from_slice(request).unwrap_or(Value::Null);
    let named = request["ConfigurationSetName"].as_str().unwrap_or_default();
    let Some(set) = model.configuration_sets.iter().find(|set| set.name == named) else { return Vec::new() };
    let resources = [configuration_set_arn(&set.name)];
    let mut puts = Vec::new();
    for event in history(&Email::of(&request, message_id, &set.name, now_ms)) {
        for _ in set.destinations.iter().filter(|types| types.contains(event.kind)) {
            let sent = bus::event("aws.ses", event.detail_type, &resources, event.detail.clone(), now_ms);
            puts.extend(bus::takers(&model.rules, &sent).map(|queue| (queue.to_owned(), sent.to_string())));
        }
    }
    puts
}
