//! Fault injection: failures between a function and other services, armed in advance.
//!
//! A fault waits for a matching call, delivery or tick, applies as many times as configured, and is
//! then spent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Model;
use crate::s3::PRESIGNED;

/// The access key of tests, to whose calls faults can apply too.
const TOOL: &str = "test";
/// The operation whose statements can fail individually.
const BATCH: &str = "BatchExecuteStatement";

/// A fault, in the format of `POST /_local/faults`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    Call(CallFault),
    Delivery(DeliveryFault),
    Tick(TickFault),
    /// From now on, queries of indexes see the tables as they are now, except for consistent reads.
    FrozenIndexes {},
}

/// Applies to the nth matching call. An omitted field matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFault {
    pub function: Option<String>,
    pub service: Option<String>,
    pub operation: Option<String>,
    pub target: Option<String>,
    #[serde(default = "one")]
    pub nth: u64,
    /// How many consecutive matching calls it applies to, from the nth on.
    #[serde(default = "one")]
    pub times: u64,
    pub action: Action,
    /// For `delay_before` and `delay_after`.
    #[serde(default)]
    pub delay_ms: u64,
    /// For `answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Scripted>,
}

/// The answer that a caller gets instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    pub status: u16,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Value,
}

impl CallFault {
    /// Returns a fault that applies once, to the first matching call.
    pub fn first(action: Action) -> Self {
        let (function, service, operation, target) = (None, None, None, None);
        Self { function, service, operation, target, nth: 1, times: 1, action, delay_ms: 0, answer: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call is not carried out; the caller gets the answer of the fault.
    Answer,
    /// The call is not carried out; the process is killed.
    KillBefore,
    /// The call is carried out; the process is killed before it gets the reply.
    KillAfter,
    /// The call is carried out; the reply is lost.
    DropReply,
    /// The call is not carried out; the caller gets a 500.
    ErrorBefore,
    /// The call is carried out; the caller gets a 500.
    ErrorAfter,
    Throttle,
    /// The first half of a batch of statements is carried out; each of the rest is throttled.
    Partial,
    /// The call fails with a conflict with another transaction on the same rows.
    Conflict,
    /// The call is carried out after the delay, when the caller may have timed out.
    DelayBefore,
    /// The call is carried out at once; the reply is delayed.
    DelayAfter,
}

/// A fault of the nth batch of a queue, or of the stream of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveryFault {
    /// The name of the queue or table.
    pub source: String,
    #[serde(default = "one")]
    pub nth: u64,
    #[serde(default = "one")]
    pub times: u64,
    pub action: DeliveryAction,
    /// For `late`.
    #[serde(default)]
    pub seconds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryAction {
    Twice,
    /// By this many seconds of the stack's time.
    Late,
    /// Newest first. Streams keep their order on AWS too, so this has no effect on them.
    Reversed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TickFault {
    pub schedule: String,
    #[serde(default = "one")]
    pub nth: u64,
    #[serde(default = "one")]
    pub times: u64,
    pub action: TickAction,
    /// For `late`.
    #[serde(default)]
    pub seconds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TickAction {
    Twice,
    Late,
    Skip,
}

impl Fault {
    /// Checks that the fault can apply: the names in it exist in the template, and its fields are
    /// complete.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        let functions = || model.functions.iter();
        let (named, known, what): (Option<&str>, Vec<&str>, _) = match self {
            Self::Call(call) => {
                let named = call.function.as_deref().filter(|name| ![TOOL, PRESIGNED].contains(name));
                (named, functions().map(|function| function.binary.as_str()).collect(), "function")
            }
            Self::Delivery(delivery) => {
                let queues =
                    functions().flat_map(|function| &function.queue_sources).map(|source| source.queue.as_str());
                let tables =
                    functions().flat_map(|function| &function.stream_sources).map(|source| source.table.as_str());
                (Some(delivery.source.as_str()), queues.chain(tables).collect(), "queue or table with a mapping")
            }
            Self::Tick(tick) => {
                let schedules =
                    functions().flat_map(|function| &function.schedules).map(|schedule| schedule.id.as_str());
                (Some(tick.schedule.as_str()), schedules.collect(), "schedule")
            }
            Self::FrozenIndexes {} => (None, Vec::new(), ""),
        };
        if let Some(name) = named.filter(|name| !known.contains(name)) {
            return Err(format!("there is no {what} {name:?}; there are {}", known.join(", ")));
        }
        if let Self::Call(CallFault { action: Action::DelayBefore | Action::DelayAfter, delay_ms: 0, .. }) = self {
            return Err("a delay needs delay_ms".to_owned());
        }
        if let Self::Call(CallFault { action: Action::Answer, answer: None, .. }) = self {
            return Err("an answer needs answer: {status, body}".to_owned());
        }
        if let Self::Call(CallFault { action: Action::Partial, operation, .. }) = self
            && operation.as_deref() != Some(BATCH)
        {
            return Err(format!("partial needs operation: {BATCH}, whose parts fail one by one"));
        }
        let (nth, times) = match self {
            Self::Call(call) => (call.nth, call.times),
            Self::Delivery(delivery) => (delivery.nth, delivery.times),
            Self::Tick(tick) => (tick.nth, tick.times),
            Self::FrozenIndexes {} => (1, 1),
        };
        if nth == 0 || times == 0 { Err("nth and times count from 1".to_owned()) } else { Ok(()) }
    }
}

fn one() -> u64 {
    1
}

/// The armed faults. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Armed>>>);

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// The number of matching calls, deliveries or ticks so far.
    seen: u64,
}

impl Faults {
    pub fn add(&self, fault: Fault) {
        self.armed().push(Armed { fault, seen: 0 });
    }

    pub fn clear(&self) {
        self.armed().clear();
    }

    /// Returns the faults that can still apply.
    pub fn waiting(&self) -> Vec<Fault> {
        self.armed().iter().filter(|armed| !armed.is_spent()).map(|armed| armed.fault.clone()).collect()
    }

    pub fn on_call(&self, function: &str, service: &str, operation: &str, target: &str) -> Option<CallFault> {
        let fits = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        self.strike(|fault| match fault {
            Fault::Call(call) => {
                let all = fits(&call.function, function)
                    && fits(&call.service, service)
                    && fits(&call.operation, operation)
                    && fits(&call.target, target);
                all.then(|| call.clone())
            }
            _ => None,
        })
    }

    pub fn on_delivery(&self, source: &str) -> Option<DeliveryFault> {
        self.strike(|fault| match fault {
            Fault::Delivery(delivery) if delivery.source == source => Some(delivery.clone()),
            _ => None,
        })
    }

    pub fn on_tick(&self, schedule: &str) -> Option<TickFault> {
        self.strike(|fault| match fault {
            Fault::Tick(tick) if tick.schedule == schedule => Some(tick.clone()),
            _ => None,
        })
    }

    pub fn indexes_are_frozen(&self) -> bool {
        self.armed().iter().any(|armed| matches!(armed.fault, Fault::FrozenIndexes {}))
    }

    /// Counts the event for every matching fault. Returns the first fault whose turn it is.
    fn strike<T>(&self, fits: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        let mut struck = None;
        for armed in self.armed().iter_mut() {
            let Some(found) = fits(&armed.fault) else { continue };
            armed.seen += 1;
            let (nth, times) = armed.turns();
            if struck.is_none() && armed.seen >= nth && armed.seen < nth.saturating_add(times) {
                struck = Some(found);
            }
        }
        struck
    }

    fn armed(&self) -> MutexGuard<'_, Vec<Armed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Armed {
    fn turns(&self) -> (u64, u64) {
        match &self.fault {
            Fault::Call(call) => (call.nth, call.times),
            Fault::Delivery(delivery) => (delivery.nth, delivery.times),
            Fault::Tick(tick) => (tick.nth, tick.times),
            Fault::FrozenIndexes {} => (1, u64::MAX),
        }
    }

    fn is_spent(&self) -> bool {
        let (nth, times) = self.turns();
        self.seen.saturating_add(1) >= nth.saturating_add(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(nth: u64, times: u64) -> Fault {
        Fault::Call(CallFault {
            function: Some("f".into()),
            service: None,
            operation: Some("PutItem".into()),
            target: None,
            nth,
            times,
            action: Action::Throttle,
            delay_ms: 0,
            answer: None,
        })
    }

    #[test]
    fn a_fault_applies_to_the_nth_matching_call_and_is_then_spent() {
        let faults = Faults::default();
        faults.add(call(2, 2));
        let strikes: Vec<_> = (0..5).map(|_| faults.on_call("f", "dynamodb", "PutItem", "t").is_some()).collect();
        assert_eq!(strikes, [false, true, true, false, false]);
        assert_eq!(faults.waiting(), []);
    }

    #[test]
    fn a_call_that_does_not_match_does_not_count() {
        let faults = Faults::default();
        faults.add(call(1, 1));
        assert!(faults.on_call("g", "dynamodb", "PutItem", "t").is_none());
        assert!(faults.on_call("f", "dynamodb", "GetItem", "t").is_none());
        assert!(faults.on_delivery("f").is_none());
        assert!(faults.on_call("f", "dynamodb", "PutItem", "t").is_some());
    }

    #[test]
    fn only_a_batch_of_statements_can_fail_partially() {
        let check = |operation: Option<&str>| {
            let operation = operation.map(str::to_owned);
            let fault = Fault::Call(CallFault { operation, ..CallFault::first(Action::Partial) });
            fault.check(&Model::default())
        };
        assert_eq!(check(Some("BatchExecuteStatement")), Ok(()));
        let refused = "partial needs operation: BatchExecuteStatement, whose parts fail one by one";
        assert_eq!(check(Some("PutItem")), Err(refused.to_owned()));
        assert_eq!(check(None), Err(refused.to_owned()));
    }

    #[test]
    fn a_fault_is_read_from_json() {
        let said = r#"{"call": {"function": "f", "operation": "PutItem", "action": "kill_after"}}"#;
        let fault: Fault = serde_json::from_str(said).expect("the fault is valid");
        assert!(matches!(fault, Fault::Call(CallFault { nth: 1, times: 1, action: Action::KillAfter, .. })));
        let late = r#"{"delivery": {"source": "q", "action": "late", "seconds": 30}}"#;
        assert!(matches!(serde_json::from_str(late), Ok(Fault::Delivery(DeliveryFault { seconds: 30, .. }))));
        assert!(serde_json::from_str::<Fault>(r#"{"call": {"functoin": "f", "action": "throttle"}}"#).is_err());
    }
}
