//! One run of a scenario, from a clean state, with at most a few faults.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use reqwest::Method;
use serde_json::{Value, json};
use umavez_local::calls::Call;
use umavez_local::faults::{CallFault, Fault};
use umavez_tests::{Answer, Expected, KEY, Setup, World};

use crate::scenario::{Kind, Scenario};

/// Longer than any visibility timeout, lease and check of the scenarios.
const SWEEP: Duration = Duration::from_secs(700);
/// Longer than the visibility timeout of any queue.
const HIDDEN: Duration = Duration::from_secs(5_600);
/// After the faults are cleared, every accepted request reaches a terminal state within this many
/// sweeps.
const SWEEPS: usize = 3;
/// How often a client with a key retries when it gets no answer.
const TRIES: usize = 8;
const STALL_MS: u64 = 150;

pub struct Run {
    pub world: World,
    answers: Mutex<Vec<(u64, String)>>,
}

/// A call that a fault can hit: the nth of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    pub function: String,
    pub service: String,
    pub operation: String,
    pub target: String,
    pub nth: u64,
}

#[derive(Debug, Clone)]
pub struct Strike {
    pub point: Point,
    pub kind: Kind,
}

/// The outcome of a run.
pub struct Outcome {
    pub violation: Option<String>,
    pub points: Vec<Point>,
    pub trace: Vec<String>,
    /// Faults that were armed but never hit a call.
    pub unstruck: usize,
}

pub async fn run(scenario: &Scenario, setup: Setup, strikes: &[Strike]) -> Outcome {
    let whole = AssertUnwindSafe(run_to_its_end(scenario, setup, strikes)).catch_unwind().await;
    // A stack that fails to start or stop is a violation too.
    whole.unwrap_or_else(|panic| Outcome {
        violation: Some(message(&*panic)),
        points: Vec::new(),
        trace: Vec::new(),
        unstruck: 0,
    })
}

async fn run_to_its_end(scenario: &Scenario, setup: Setup, strikes: &[Strike]) -> Outcome {
    let world = World::start(setup).await;
    let run = Run { world, answers: Mutex::default() };
    for strike in strikes {
        run.world.stack.add_fault(strike.fault()).await.expect("armed");
    }
    let played = AssertUnwindSafe(async {
        (scenario.play)(&run).await;
        run.world.drain().await;
        if scenario.swept {
            run.sweep().await;
        }
    });
    let mut violation = played.catch_unwind().await.err().map(|panic| message(&*panic));
    // A scenario may arm faults of its own.
    let waiting = run.world.stack.faults().waiting();
    let unstruck = strikes.iter().filter(|strike| waiting.contains(&strike.fault())).count();
    // Calls from here on run without faults and are not crash points.
    let points = run.points();
    run.world.stack.clear_faults();
    if violation.is_none() {
        let audited = AssertUnwindSafe(async {
            for _ in 0..if scenario.swept { SWEEPS } else { 0 } {
                if run.is_settled().await {
                    break;
                }
                run.sweep().await;
            }
            // The messages of a killed worker become visible again after the visibility timeout.
            if run.is_anything_hidden().await {
                run.world.advance(HIDDEN).await;
            }
            // The scenario's own audit checks what was sent.
            let sent = run.world.stack.catcher().sent(None, None).len();
            let server_errors = run.unavailable(strikes.len());
            run.world.audit(Expected { server_errors, sent, ..Expected::default() }).await;
            (scenario.audit)(&run).await;
        });
        violation = audited.catch_unwind().await.err().map(|panic| message(&*panic));
    }
    let outcome = Outcome { violation, points, trace: run.trace(), unstruck };
    run.world.stack.stop().await.expect("the stack stops");
    outcome
}

impl Run {
    /// Sends a request like a careful client: with an idempotency key, and again until there is an
    /// answer.
    pub async fn ask(&self, what: &str, key: &str, path: &str, body: &Value) -> Answer {
        for _ in 0..TRIES {
            let answer = self.once(what, Some(key), path, body).await;
            if answer.status < 500 {
                return answer;
            }
        }
        panic!("{what}: no answer in {TRIES} tries");
    }

    /// Like [`Self::ask`], with any body.
    pub async fn ask_with(
        &self,
        what: &str,
        key: &str,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Answer {
        for _ in 0..TRIES {
            let request = self.world.request(method.clone(), path).bearer_auth(KEY).header("idempotency-key", key);
            let request = request.header("content-type", content_type).body(body.clone());
            let answer = self.record(what, self.world.send(request).await);
            if answer.status < 500 {
                return answer;
            }
        }
        panic!("{what}: no answer in {TRIES} tries");
    }

    /// Sends a request once, without a key: a lost answer is not recovered.
    pub async fn ask_once(&self, what: &str, path: &str, body: &Value) -> Answer {
        self.once(what, None, path, body).await
    }

    async fn once(&self, what: &str, key: Option<&str>, path: &str, body: &Value) -> Answer {
        let request = self.world.request(Method::POST, path).bearer_auth(KEY).json(body);
        let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
        self.record(what, self.world.send(request).await)
    }

    fn record(&self, what: &str, answer: Answer) -> Answer {
        let at = self.world.stack.calls().position();
        let mut line = format!("client: {what} -> {}", answer.status);
        for name in ["can_send", "released", "created"] {
            if let Some(value) = answer.body.get(name) {
                let _ = write!(line, " {name}={value}");
            }
        }
        if answer.is_replayed() {
            line.push_str(" replayed");
        }
        self.answers.lock().expect("no panic here").push((at, line));
        answer
    }

    /// Runs one round of recovery: all schedules tick, hidden messages become visible, time passes.
    async fn sweep(&self) {
        let model = self.world.stack.model();
        let mut moved = false;
        for schedule in model.functions.iter().flat_map(|function| &function.schedules) {
            // Runs the schedules one after the other, each until the stack is idle, so that a
            // replay does not depend on timing.
            self.world.stack.tick(&schedule.id).await;
            self.world.drain().await;
            moved = true;
        }
        self.world.drain().await;
        if moved || model.functions.iter().any(|function| !function.queue_sources.is_empty()) {
            self.world.advance(SWEEP).await;
        }
    }

    /// Returns whether nothing is due or waits to be checked, so that a sweep would find no work.
    async fn is_settled(&self) -> bool {
        // Only the product's tables have the index by time.
        if self.world.stack.output("OutboundTable").is_none() {
            return false;
        }
        for table in &self.world.stack.model().tables {
            let waits = |row: &Value| {
                let wake = row["wake"].as_str().unwrap_or_default();
                // A charge that can still be paid needs no work.
                let open = row["sk"] == "CHARGES" && row["look_at"].is_null();
                !open && wake.starts_with("CHECK")
                    || wake.starts_with("DUE")
                    || row["emit"].is_object() && row["sk"] == "STATE"
            };
            if self.world.rows_of(&table.name).await.iter().any(waits) {
                return false;
            }
        }
        true
    }

    async fn is_anything_hidden(&self) -> bool {
        for queue in &self.world.stack.model().queues {
            if self.world.stack.queues().counts(&queue.name).await.is_ok_and(|counts| counts.waiting > 0) {
                return true;
            }
        }
        false
    }

    /// Returns the number of requests answered with 503. Only faults cause them, and nothing causes
    /// a 500.
    fn unavailable(&self, strikes: usize) -> usize {
        let lines = self.world.events("REQUEST_ANSWERED");
        let failed: Vec<_> =
            lines.iter().filter_map(|line| line["status"].as_u64()).filter(|status| *status >= 500).collect();
        assert!(failed.iter().all(|status| *status == 503), "a fault caused the answers {failed:?}");
        assert!(failed.len() <= strikes, "{strikes} faults, but {} answers of 503", failed.len());
        failed.len()
    }

    fn calls(&self) -> Vec<Call> {
        let binaries: Vec<_> = self.world.stack.model().functions.iter().map(|function| &function.binary).collect();
        self.world.stack.calls().since(0).into_iter().filter(|call| binaries.contains(&&call.caller)).collect()
    }

    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for call in self.calls() {
            let same = |point: &&Point| {
                point.function == call.caller && point.operation == call.operation && point.target == call.target
            };
            let nth = points.iter().filter(same).count() as u64 + 1;
            let Call { caller, service, operation, target, .. } = call;
            points.push(Point { function: caller, service, operation, target, nth });
        }
        points
    }

    /// Returns calls and answers in their order, without anything that differs between runs.
    fn trace(&self) -> Vec<String> {
        let mut lines: Vec<(u64, String)> = self
            .calls()
            .into_iter()
            .map(|call| {
                let fault = call.fault.map(|fault| format!("  << {fault}")).unwrap_or_default();
                let status = if call.status == 0 { "lost".to_owned() } else { call.status.to_string() };
                let line = format!(
                    "  {:<16} {}.{} {} -> {status}{fault}",
                    call.caller, call.service, call.operation, call.target
                );
                (call.number, line)
            })
            .collect();
        lines.extend(self.answers.lock().expect("no panic here").iter().cloned());
        // An answer comes after the calls that it took.
        lines.sort_by_key(|(at, line)| (*at, !line.starts_with("client")));
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

impl Strike {
    fn fault(&self) -> Fault {
        let Point { function, service, operation, target, nth } = self.point.clone();
        Fault::Call(CallFault {
            function: Some(function),
            service: Some(service),
            operation: Some(operation),
            target: Some(target),
            nth,
            times: 1,
            action: self.kind.action(),
            delay_ms: STALL_MS,
            answer: None,
        })
    }
}

impl std::fmt::Display for Strike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Point { function, service, operation, nth, .. } = &self.point;
        write!(f, "{:?} at {function}'s {service}.{operation} no. {nth}", self.kind)
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

pub fn body(of: &[(&str, &str)]) -> Value {
    of.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}
