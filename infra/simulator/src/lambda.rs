//! Lambda: starts instances of the functions, passes events to them, and ends them. An instance has
//! one invocation at a time, its own clock, and dependencies that it keeps between invocations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aws_sdk_dynamodb::config::SharedHttpClient;
use aws_sdk_dynamodb::config::retry::RetryPartition;
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use fastrand::Rng;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use umavez_domain::time::Timestamp;
use umavez_local::model::{Function, Model};
use umavez_platform::host::Host;
use umavez_platform::invocation::Invocation;

use crate::net::Net;
use umavez_simulator_registry::{self as registry, Handler};

/// Why an invocation has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The function returned an error or panicked.
    Failed(String),
    Killed,
    TimedOut,
}

#[derive(Clone)]
pub struct Lambda {
    net: Net,
    functions: Rc<BTreeMap<String, Function>>,
    instances: Rc<RefCell<Instances>>,
}

#[derive(Default)]
struct Instances {
    /// The instances that wait for an event, by function.
    idle: BTreeMap<String, Vec<Instance>>,
    started: BTreeMap<String, u32>,
    invocations: u64,
}

struct Instance {
    name: String,
    skew_ms: i64,
    handler: Handler,
    gate: Gate,
}

impl Lambda {
    pub fn new(model: &Model, net: Net) -> Self {
        let functions = model.functions.iter().map(|function| (function.name.clone(), function.clone())).collect();
        Self { net, functions: Rc::new(functions), instances: Rc::default() }
    }

    /// Invokes a function, by its physical name.
    pub async fn invoke(&self, function: &str, event: Value) -> Result<Value, Failure> {
        let function = &self.functions[function];
        let mut instance = self.instance(function);
        let decision = self.net.decision(&format!("invocation of {}", function.binary));
        let mut dice = self.net.dice().of(&decision);
        let is_killed = self.net.strikes(&format!("kill of {decision}"), self.net.profile().kills);
        let is_frozen = self.net.strikes(&format!("freeze of {decision}"), self.net.profile().freezes);
        let number = {
            let mut instances = self.instances.borrow_mut();
            instances.invocations += 1;
            instances.invocations
        };
        let now = Timestamp::from_millis(self.net.now_ms() + instance.skew_ms);
        let invocation = Invocation::new(format!("invocation-{number}"), now, function.timeout);
        let (answer, answered) = oneshot::channel();
        let (handler, gate, name) = (instance.handler.clone(), instance.gate.clone(), instance.name.clone());
        let running = tokio::task::spawn_local(Gated {
            gate: gate.clone(),
            inner: Box::pin(async move {
                let handled = AssertUnwindSafe(handler(invocation, event)).catch_unwind().await;
                // The caller may have gone.
                let _ = answer.send(handled.unwrap_or_else(|_| Err("panicked".to_owned())));
            }),
        });
        if is_frozen {
            let (net, name) = (self.net.clone(), name.clone());
            let (after, pause) = (moment(&mut dice), pause(&mut dice));
            let gate = gate.clone();
            tokio::task::spawn_local(async move {
                sleep(Duration::from_millis(after)).await;
                net.note(&format!("{name} freezes for {pause} ms"));
                gate.close();
                sleep(Duration::from_millis(pause)).await;
                net.note(&format!("{name} goes on"));
                gate.open();
            });
        }
        let ended = if is_killed {
            let after = Duration::from_millis(moment(&mut dice));
            match timeout(after, answered).await {
                Ok(ended) => ended,
                Err(_) => {
                    self.net.note(&format!("{name} is killed"));
                    running.abort();
                    return Err(Failure::Killed);
                }
            }
        } else {
            match timeout(function.timeout, answered).await {
                Ok(ended) => ended,
                Err(_) => {
                    self.net.note(&format!("{name} has no time left"));
                    // A frozen instance may go on later, although its caller has stopped
                    // waiting.
                    if !gate.is_closed() {
                        running.abort();
                    }
                    return Err(Failure::TimedOut);
                }
            }
        };
        let ended = ended.unwrap_or_else(|_| Err("dropped".to_owned()));
        // A failed process of the runtime is not used again.
        if ended.is_ok() {
            instance.name = name;
            self.instances.borrow_mut().idle.entry(function.name.clone()).or_default().push(instance);
        }
        ended.map_err(Failure::Failed)
    }

    /// Returns an idle instance, or a new one.
    fn instance(&self, function: &Function) -> Instance {
        let mut instances = self.instances.borrow_mut();
        if let Some(instance) = instances.idle.get_mut(&function.name).and_then(Vec::pop) {
            return instance;
        }
        let number = instances.started.entry(function.binary.clone()).or_default();
        *number += 1;
        let name = format!("{}/{number}", function.binary);
        let most = self.net.profile().skew_ms;
        let skew_ms = self.net.dice().of(&format!("clock of {name}")).i64(-most..=most);
        let connection = self.net.of(&name);
        let mut variables = function.environment.clone();
        for (name, value) in [
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "simulated".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "simulated".to_owned()),
            ("AWS_ENDPOINT_URL", "http://aws.local".to_owned()),
            ("CLOCK_OFFSET_MS", skew_ms.to_string()),
        ] {
            variables.insert(name.to_owned(), value);
        }
        let host = Host {
            variables,
            http: SharedHttpClient::new(connection.clone()),
            connector: SharedHttpConnector::new(connection),
            epoch: self.net.epoch(),
            retries: RetryPartition::custom(name.clone()).build(),
        };
        let handler = host.provide(|| registry::start(&function.binary));
        Instance { name, skew_ms, handler, gate: Gate::default() }
    }
}

/// Draws when an instance is killed or frozen, in milliseconds after its invocation began. Most
/// invocations are short, and recovery takes a second or two.
fn moment(dice: &mut Rng) -> u64 {
    let longest = if dice.u32(0..3) > 0 { 300 } else { 2_000 };
    dice.u64(1..longest)
}

/// Draws how long an instance is frozen, in milliseconds. After a short pause it has time left for
/// what it was about to do.
fn pause(dice: &mut Rng) -> u64 {
    let longest = if dice.bool() { 15_000 } else { 240_000 };
    dice.u64(1_000..longest)
}

/// Closes while an instance is frozen.
#[derive(Clone, Default)]
struct Gate(Rc<RefCell<Frozen>>);

#[derive(Default)]
struct Frozen {
    is_closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    fn close(&self) {
        self.0.borrow_mut().is_closed = true;
    }

    fn open(&self) {
        let waiting = {
            let mut frozen = self.0.borrow_mut();
            frozen.is_closed = false;
            std::mem::take(&mut frozen.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }
}

/// A future that is not polled while its gate is closed. When the gate opens, all timers that
/// expired meanwhile fire at once.
struct Gated {
    gate: Gate,
    inner: LocalBoxFuture<'static, ()>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut frozen = self.gate.0.borrow_mut();
            if frozen.is_closed {
                frozen.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(context)
    }
}
