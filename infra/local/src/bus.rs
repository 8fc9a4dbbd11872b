//! EventBridge: the default bus, whose rules route the events of services to queues.

use std::slice;
use std::sync::Arc;

use serde_json::{Value, json};
use umavez_domain::time::Timestamp;

use crate::StackError;
use crate::clock::Clock;
use crate::functions::random_uuid;
use crate::model::Rule;
use crate::queues::Queues;
use crate::sources::passes_filter;
use crate::template::{ACCOUNT, REGION};

#[derive(Clone)]
pub struct Bus {
    rules: Arc<[Rule]>,
    queues: Queues,
    clock: Clock,
}

impl Bus {
    pub fn new(rules: &[Rule], queues: Queues, clock: Clock) -> Self {
        Self { rules: rules.into(), queues, clock }
    }

    /// Puts an event into the queues of every rule that it matches, in the order of the template.
    pub async fn publish(
        &self,
        source: &str,
        detail_type: &str,
        resources: &[String],
        detail: Value,
    ) -> Result<(), StackError> {
        let event = event(source, detail_type, resources, detail, self.clock.now_ms());
        let body = event.to_string();
        for queue in takers(&self.rules, &event) {
            self.queues.put(queue, &body).await?;
        }
        Ok(())
    }
}

/// Returns an event as EventBridge delivers it.
pub(crate) fn event(source: &str, detail_type: &str, resources: &[String], detail: Value, now_ms: i64) -> Value {
    json!({
        "version": "0",
        "id": random_uuid(),
        "detail-type": detail_type,
        "source": source,
        "account": ACCOUNT,
        "time": Timestamp::from_seconds(now_ms / 1_000),
        "region": REGION,
        "resources": resources,
        "detail": detail,
    })
}

/// Returns the queues of the rules that an event matches.
pub(crate) fn takers<'a>(rules: &'a [Rule], event: &Value) -> impl Iterator<Item = &'a str> {
    let wanted = rules.iter().filter(|rule| passes_filter(slice::from_ref(&rule.pattern), event));
    wanted.flat_map(|rule| &rule.queues).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_goes_to_the_queues_of_the_rules_that_it_matches() {
        let rule = |pattern: Value, queues: &[&str]| Rule {
            name: "r".into(),
            pattern,
            queues: queues.iter().map(|&queue| queue.to_owned()).collect(),
        };
        let rules = [
            rule(json!({"source": ["a"]}), &["one", "two"]),
            rule(json!({"source": ["a"], "detail-type": ["X", "Y"]}), &["three"]),
            rule(json!({"source": ["b"]}), &["four"]),
            rule(json!({"detail": {"kind": ["k"]}}), &["five"]),
        ];
        let went = |event: Value| takers(&rules, &event).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(went(json!({"source": "a", "detail-type": "Y", "detail": {}})), ["one", "two", "three"]);
        assert_eq!(went(json!({"source": "a", "detail-type": "Z", "detail": {"kind": "k"}})), ["one", "two", "five"]);
        assert_eq!(went(json!({"source": "c", "detail-type": "X"})), Vec::<String>::new());
    }
}
