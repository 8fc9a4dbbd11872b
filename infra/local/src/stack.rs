//! The whole local stack as one value: start it from a template, move its time, drain it, stop it.

mod launch;
mod mappings;
mod starts;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod time;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::launch::{Addresses, access_key, concurrency, spec};
use self::mappings::Mappings;
use crate::activity::Activity;
use crate::beside::{self, Beside};
use crate::bus::Bus;
use crate::calls::Calls;
use crate::catcher::Catcher;
use crate::clock::Clock;
use crate::dynamo::Dynamo;
use crate::email_events::EmailEvents;
use crate::faults::{Fault, Faults};
use crate::front::{self, Front};
use crate::functions::{Functions, Logs};
use crate::gateway::Gateway;
use crate::model::Model;
use crate::parts::Parts;
use crate::permissions::Permissions;
use crate::queues::Queues;
use crate::s3::S3;
use crate::secrets::{self, Secrets};
use crate::sources::check_filter;
use crate::state::{Kept, StateDirectory};
use crate::template;
use crate::{StackError, binaries, control};

/// The gateway times out a function after this.
const GATEWAY_LIMIT: Duration = Duration::from_secs(29);
/// How often expired rows and objects are removed. AWS can take days, so nothing may depend on
/// either.
const TTL_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Options {
    /// The text of the template.
    pub template: String,
    pub parameters: BTreeMap<String, String>,
    /// The port of the API; 0 means any free port.
    pub port: u16,
    /// The directory that persists the state. `None` keeps the state in memory only.
    pub data: Option<PathBuf>,
    /// A file with values of secrets by logical id, which replace those of the template. The file
    /// is optional.
    pub secrets: Option<PathBuf>,
    /// Processes per function, unless the template reserves a lower concurrency.
    pub concurrency: usize,
    /// Whether schedules fire by themselves. If not, [`Stack::tick`] fires them.
    pub schedules: bool,
    /// Whether the logs of the functions are printed as they arrive.
    pub echo_logs: bool,
    /// The minimum clock offset at the start. A larger offset in the persisted state takes
    /// precedence.
    pub clock_offset_ms: i64,
    /// How far the clocks of single functions are ahead of the stack's clock (behind, if negative),
    /// by the function's binary.
    pub clock_skews_ms: BTreeMap<String, i64>,
    /// Whether to start one process of every function at once, so that a function that cannot start
    /// fails [`Stack::start`] and not its first invocation.
    pub start_functions: bool,
    /// A second DynamoDB that gets every call too, and whose answers are compared with those of the
    /// emulator.
    pub beside: Option<beside::Settings>,
}

impl Options {
    /// Returns options for a stack that persists nothing, uses any free port and fires its
    /// schedules by itself.
    pub fn in_memory(template: impl Into<String>) -> Self {
        Self {
            template: template.into(),
            parameters: BTreeMap::new(),
            port: 0,
            data: None,
            secrets: None,
            concurrency: 4,
            schedules: true,
            echo_logs: false,
            clock_offset_ms: 0,
            clock_skews_ms: BTreeMap::new(),
            start_functions: false,
            beside: beside::Settings::of_environment(),
        }
    }
}

#[derive(Clone)]
pub struct Stack(Arc<Shared>);

struct Shared {
    model: Model,
    url: String,
    front_url: String,
    parts: Parts,
    permissions: Permissions,
    calls: Calls,
    catcher: Catcher,
    email_events: EmailEvents,
    secrets: Secrets,
    s3: S3,
    logs: Logs,
    mappings: Mappings,
    /// `None` after [`Stack::stop`], which also releases the lock of the directory.
    state: Mutex<Option<StateDirectory>>,
    /// The state as last persisted. Checkpoints and messages are from the same moment: a stack that
    /// is killed resumes from there and reads later changes from the streams.
    kept: Mutex<Kept>,
    tasks: Mutex<JoinSet<()>>,
    moving_time: tokio::sync::Mutex<()>,
}

impl Stack {
    /// Starts everything. The binaries of the functions must exist ([`binaries::build`]). Processes
    /// start on demand, except that `start_functions` starts one of each at once.
    pub async fn start(options: Options) -> Result<Self, StackError> {
        let mut model = template::load(&options.template, &options.parameters)?;
        check(&model)?;
        let permissions = Permissions::of(&model, access_key)?;
        let directory = binaries::directory()?;
        binaries::check(&model, &directory)?;
        let listener = listen(options.port).await?;
        let url = format!("http://{}", listener.local_addr()?);
        model.outputs.values_mut().for_each(|value| *value = value.replace(template::API_URL, &url));
        let state = options.data.as_deref().map(StateDirectory::open).transpose()?;
        let mut kept = state.as_ref().map(StateDirectory::load).transpose()?.unwrap_or_default();
        kept.clock_offset_ms = kept.clock_offset_ms.max(options.clock_offset_ms);

        let (clock, activity, calls) = (Clock::new(kept.clock_offset_ms), Activity::default(), Calls::default());
        let faults = Faults::default();
        let (front_listener, front_address) = front::bind().await?;
        let front_url = format!("http://{front_address}");
        let database = state.as_ref().map(StateDirectory::database);
        let (tables, removed, beside) = (&model.tables, &kept.removed_by_ttl, options.beside.as_ref());
        let dynamo = Dynamo::start(database.as_deref(), tables, clock.clone(), removed, beside).await?;
        let host = front_address.ip().to_string();
        let queues = Queues::start(&model.queues, &host, front_address.port(), clock.clone(), activity.clone()).await?;
        queues.import(&kept.messages).await?;
        let now = {
            let clock = clock.clone();
            Arc::new(move || clock.now_ms())
        };
        let catcher = Catcher::new(now.clone());
        let bus = Bus::new(&model.rules, queues.clone(), clock.clone());
        let email_events = EmailEvents::new(&model.configuration_sets, bus.clone(), clock.clone());
        let objects = state.as_ref().map(StateDirectory::objects);
        let s3 = S3::start(&model.buckets, objects, queues.clone(), bus, clock.clone(), permissions.clone())?;
        let given = options.secrets.as_deref().map(secrets::read_values).transpose()?.unwrap_or_default();
        let put = state.as_ref().map(StateDirectory::secrets);
        let secrets = Secrets::open(&model.secrets, &given, put, clock.clone())?;
        let logs = match &state {
            Some(state) => Logs::new(Some(&state.logs()), options.echo_logs)?,
            None => Logs::new(None, options.echo_logs)?,
        };
        let at = Addresses { api: &url, front: &front_url };
        let specs = model.functions.iter().map(|function| spec(function, &directory, at, &clock, &options));
        let functions = Functions::start(specs.collect(), logs.clone()).await?;
        if options.start_functions {
            starts::check(&model, &functions, &logs).await?;
        }

        let mut tasks = JoinSet::new();
        let http = reqwest::Client::builder().no_proxy().build().map_err(|e| StackError::Emulator(e.to_string()))?;
        let parts = Parts { functions, dynamo, queues, clock, activity, faults };
        let front = Front {
            permissions: permissions.clone(),
            parts: parts.clone(),
            catcher: catcher.clone(),
            email_events: email_events.clone(),
            secrets: secrets.clone(),
            s3: s3.clone(),
            calls: calls.clone(),
            http,
        };
        front::serve(front, front_listener, &mut tasks);

        let mappings = Mappings::of(&model, &parts, &kept.checkpoints, |function| concurrency(function, &options));
        mappings.spawn(options.schedules, &mut tasks);
        if options.schedules {
            tasks.spawn(sweep(parts.clone(), s3.clone()));
        }

        let api = model.api.clone().unwrap_or_default();
        let gateway = Gateway { api, functions: parts.functions.clone(), timeout: GATEWAY_LIMIT, now };
        let shared = Shared {
            model,
            url,
            front_url,
            parts,
            permissions,
            calls,
            catcher,
            email_events,
            secrets,
            s3,
            logs,
            mappings,
            state: Mutex::new(state),
            kept: Mutex::new(kept),
            tasks: Mutex::new(JoinSet::new()),
            moving_time: tokio::sync::Mutex::new(()),
        };
        let stack = Self(Arc::new(shared));
        control::serve(&stack, gateway, listener, &mut tasks);
        *stack.0.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(stack)
    }

    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// The URL of the API.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The URL of the emulators, for tools that use it as their AWS endpoint.
    pub fn front_url(&self) -> &str {
        &self.0.front_url
    }

    pub fn clock(&self) -> &Clock {
        &self.0.parts.clock
    }

    pub fn calls(&self) -> &Calls {
        &self.0.calls
    }

    /// The granted permissions, those that were used, and the calls that were denied.
    pub fn permissions(&self) -> &Permissions {
        &self.0.permissions
    }

    pub fn faults(&self) -> &Faults {
        &self.0.parts.faults
    }

    /// Arms a fault.
    pub async fn add_fault(&self, fault: Fault) -> Result<(), StackError> {
        fault.check(&self.0.model).map_err(StackError::Fault)?;
        if fault == (Fault::FrozenIndexes {}) {
            self.0.parts.dynamo.freeze().await?;
        }
        self.0.parts.faults.add(fault);
        Ok(())
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.0.parts.faults.clear();
        self.0.parts.dynamo.thaw();
    }

    pub fn catcher(&self) -> &Catcher {
        &self.0.catcher
    }

    /// The switch that turns the publishing of SES events on and off.
    pub fn email_events(&self) -> &EmailEvents {
        &self.0.email_events
    }

    /// The second DynamoDB, if the answers are compared.
    pub fn beside(&self) -> Option<&Beside> {
        self.0.parts.dynamo.beside.as_ref()
    }

    pub fn secrets(&self) -> &Secrets {
        &self.0.secrets
    }

    pub fn logs(&self) -> &Logs {
        &self.0.logs
    }

    pub fn functions(&self) -> &Functions {
        &self.0.parts.functions
    }

    pub fn queues(&self) -> &Queues {
        &self.0.parts.queues
    }

    pub fn output(&self, name: &str) -> Option<&str> {
        self.0.model.outputs.get(name).map(String::as_str)
    }

    /// Returns the physical name of the function with this binary.
    pub fn function_name(&self, binary: &str) -> Option<&str> {
        self.0.model.functions.iter().find(|function| function.binary == binary).map(|function| function.name.as_str())
    }

    /// Fires a schedule once. Returns `false` if there is no schedule with this id.
    pub async fn tick(&self, schedule: &str) -> bool {
        match self.0.mappings.ticker(schedule) {
            Some(ticker) => {
                ticker.tick().await;
                true
            }
            None => false,
        }
    }

    /// Stops everything and persists the state if there is a data directory.
    pub async fn stop(&self) -> Result<(), StackError> {
        let parts = &self.0.parts;
        parts.activity.stop();
        let keeping = self.0.state.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if keeping {
            // A message that is being received is neither in the queue nor on the desk. Wait until
            // all receives have ended, so that the export includes it.
            while parts.activity.receiving() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let mut tasks = std::mem::take(&mut *self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        parts.functions.stop().await;
        let kept = if keeping { self.keep_everything().await } else { Ok(()) };
        parts.queues.stop().await;
        parts.dynamo.stop_beside().await;
        let dynamo = parts.dynamo.clone();
        let stopped = tokio::task::spawn_blocking(move || dynamo.stop()).await;
        self.0.s3.stop();
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.and(stopped.map_err(|error| StackError::Emulator(error.to_string())))
    }

    async fn keep_everything(&self) -> Result<(), StackError> {
        let messages = self.0.parts.queues.export().await?;
        self.keep(|kept| {
            kept.checkpoints = self.0.mappings.checkpoints();
            kept.messages = messages;
            kept.removed_by_ttl = self.0.parts.dynamo.removed_by_ttl();
        })
    }

    fn keep(&self, change: impl FnOnce(&mut Kept)) -> Result<(), StackError> {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut kept);
        state.as_ref().map_or(Ok(()), |state| state.save(&kept))
    }
}

/// Checks that the stack supports the filters and patterns of the template.
fn check(model: &Model) -> Result<(), StackError> {
    for source in model.functions.iter().flat_map(|function| &function.stream_sources) {
        source.filters.iter().try_for_each(check_filter)?;
    }
    Ok(model.rules.iter().map(|rule| &rule.pattern).try_for_each(check_filter)?)
}

async fn listen(port: u16) -> Result<TcpListener, StackError> {
    TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => StackError::PortInUse(port),
        _ => StackError::Io(error),
    })
}

async fn sweep(parts: Parts, s3: S3) {
    loop {
        tokio::time::sleep(TTL_EVERY).await;
        if let Err(error) = s3.expire() {
            tracing::warn!(%error, "expired objects could not be removed");
        }
        match parts.dynamo.sweep_ttl().await {
            Ok(0) => {}
            Ok(_) => parts.activity.moved(),
            Err(error) => tracing::warn!(%error, "expired rows could not be removed"),
        }
    }
}
