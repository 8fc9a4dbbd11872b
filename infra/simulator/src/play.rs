//! One play: a seed, a workload, and the outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use umavez_local::binaries::workspace_root;
use umavez_local::clock::Clock;
use umavez_local::local_parameters::with_local;
use umavez_local::model::Model;
use umavez_local::secrets::{self, Secrets};
use umavez_local::template;

use crate::clients::Client;
use crate::dice::Dice;
use crate::lambda::Lambda;
use crate::net::Net;
use crate::profile::Profile;
use crate::sources::Sources;
use crate::trace::Trace;
use crate::workloads::{ROLLING, Workload};

/// When plays begin: 2026-01-01, 12:34 UTC, in milliseconds since 1970.
pub const EPOCH_MS: i64 = 1_767_270_840_000;

/// The outcome of a play.
#[derive(Debug)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub trace: Trace,
    pub calls: u64,
    pub virtual_ms: u64,
    /// What the play has reached.
    pub reached: Vec<String>,
    /// The broken variants of what was written.
    pub variants: BTreeSet<String>,
}

/// The template, read once per process.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let text = std::fs::read_to_string(workspace_root().join("template.yaml")).expect("the template");
        let rolling = |(name, scope): &(&str, &str)| (name.to_string(), json!({"window": "rolling", "scope": scope}));
        let options = Value::from_iter(ROLLING.iter().map(rolling)).to_string();
        let given = BTreeMap::from([("IntentTypeOptions".to_owned(), options)]);
        let parameters = with_local(given).expect("the local parameters");
        template::load(&text, &parameters).expect("the template")
    })
}

/// What a workload works with.
#[derive(Clone)]
pub struct Setting {
    pub model: &'static Model,
    pub net: Net,
    pub lambda: Lambda,
}

impl Setting {
    pub fn client(&self, name: &str) -> Client {
        Client { model: self.model, net: self.net.clone(), lambda: self.lambda.clone(), name: name.to_owned() }
    }

    /// Returns whether no queue has a message, except those for dead letters.
    pub fn queues_are_empty(&self) -> bool {
        self.net.with_queues(|queues| {
            let names: Vec<_> = queues.names().filter(|name| !name.ends_with("-dlq")).cloned().collect();
            names.iter().all(|name| queues.len(name) == 0)
        })
    }

    /// Returns the physical name of a table, from its logical id.
    pub fn table(&self, logical_id: &str) -> &'static str {
        let table = self.model.tables.iter().find(|table| table.logical_id == logical_id);
        &table.unwrap_or_else(|| panic!("there is no table {logical_id}")).name
    }
}

/// Plays a seed.
pub fn play(seed: u64, workload: &dyn Workload, profile: Profile) -> Outcome {
    // The SDK and our own code draw their jitter from this generator.
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let began = Instant::now();
        let model = model();
        let given = secrets::read_values(&secrets::local_file()).expect("the local secrets");
        let secrets = Secrets::open(&model.secrets, &given, None, Clock::new(0)).expect("the secrets");
        let profile = Profile { retry_after_seconds: workload.longest_retry_after_seconds(), ..profile };
        let net = Net::new(model, secrets, Dice(seed), profile, began, EPOCH_MS);
        let lambda = Lambda::new(model, net.clone());
        let setting = Rc::new(Setting { model, net: net.clone(), lambda: lambda.clone() });
        Sources { net: net.clone(), lambda }.start(model, &workload.functions());
        let (rough, longest) = (workload.run(setting.clone()), workload.longest_rest());
        // If every task waits and no timer is set, the play would never end. The time limit makes
        // it fail.
        let mut violations = match timeout(workload.longest_run(), rough).await {
            Ok(()) => Vec::new(),
            Err(_) => vec!["the clients never end".to_owned()],
        };
        net.be_quiet();
        net.wake();
        let rested = timeout(longest, async {
            loop {
                sleep(Duration::from_secs(120)).await;
                let is_over = setting.queues_are_empty() && workload.is_at_rest(&setting);
                // A play that has broken a rule need not come to rest.
                if is_over || !net.violations().is_empty() {
                    break;
                }
                // If only time is missing, nothing ends before the next row is due.
                if setting.queues_are_empty() {
                    let next = net.tables().next_due_ms().unwrap_or(0).saturating_sub(net.now_ms());
                    sleep(Duration::from_millis(u64::try_from(next).unwrap_or(0))).await;
                }
            }
        });
        if rested.await.is_err() {
            violations.push(format!("not at rest after {} hours", longest.as_secs() / 3_600));
        }
        violations.extend(workload.audit(&setting));
        violations.extend(net.violations());
        for violation in &violations {
            net.note(&format!("VIOLATION: {violation}"));
        }
        let (calls, virtual_ms, variants) = (net.calls(), net.elapsed_ms(), net.variants());
        Outcome {
            violations,
            calls,
            virtual_ms,
            reached: workload.reached(&setting),
            variants,
            trace: net.take_trace(),
        }
    })
}
