//! What SES publishes of an email that it took: sent, and then delivered, bounced or complained of.
//!
//! An ordinary address is delivered to. The addresses of SES's mailbox simulator behave as they do
//! on AWS, with a label (`bounce+label@…`) or without.

mod history;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use self::history::{Email, history};
use crate::StackError;
use crate::bus::Bus;
use crate::catcher::Caught;
use crate::clock::Clock;
use crate::model::ConfigurationSet;
use crate::template::configuration_set_arn;

/// A handle: clones are cheap and mean the same switch.
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

    /// Whether anything is published, from now on.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    pub fn are_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    /// Publishes what becomes of an email. Of one that was refused, or that names no configuration
    /// set of the template, nothing is heard.
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
