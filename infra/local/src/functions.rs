//! The functions of the stack: each runs as real processes that talk to a Lambda Runtime API of our
//! own, so what runs on a laptop is the same program, started, fed, timed out and killed in the
//! same way, as on Lambda.
//!
//! - `pool`: the invocations that wait for a function, and how many processes serve them.
//! - `instance`: the life of one process, from its start to its end.
//! - `runtime_api`: what a process talks to. It decides nothing, it passes calls on to the
//!   instance.
//! - `process`: the operating system's side; `guard` sees that no process outlives the stack.
//! - `logs`, `log_pipe`: what the processes print.
//!
//! Two promises. `invoke` always returns: each way in which a process can end or hang has its
//! error. And when it returns, all that the process printed before its answer is in `Logs`.

mod guard;
mod instance;
mod log_pipe;
mod logs;
mod pool;
mod process;
mod runtime_api;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use tokio::{sync::watch, task::JoinHandle};

use self::{
    guard::Guard,
    pool::{Busy, Pool},
};
pub use self::{
    instance::PROCESS_DIED,
    logs::{LogLine, Logs},
    process::INSTANCE,
};

/// Lambda's limit for the event and for the response of a synchronous invocation.
const PAYLOAD_LIMIT: usize = 6 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct FunctionSpec {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// All that the process finds in its environment, besides what Lambda itself sets there.
    pub environment: BTreeMap<String, String>,
    /// For one invocation, from the moment a process has it. Waiting for a process does not count.
    pub timeout: Duration,
    pub memory_mb: u32,
    /// How many processes there are at most; a process has one invocation at a time.
    pub concurrency: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvokeError {
    #[error("there is no function {0}")]
    NoSuchFunction(String),
    #[error("the event has {0} bytes, more than Lambda takes")]
    EventTooLarge(usize),
    /// The function's own answer: an error, a panic, or a response that Lambda would not take.
    #[error("the function failed: {error_type}: {message}")]
    Failed { error_type: String, message: String },
    #[error("the process died: {0}")]
    Died(Exit),
    #[error("the function timed out and was killed")]
    TimedOut,
    #[error("the function did not start: {error_type}: {message}")]
    InitFailed { error_type: String, message: String },
    #[error("the functions were stopped")]
    Stopped,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// A handle: clones are cheap and mean the same functions. When the last one is gone, so are the
/// processes.
#[derive(Clone)]
pub struct Functions(Arc<Shared>);

struct Shared {
    pools: BTreeMap<String, Arc<Pool>>,
    busy: watch::Sender<usize>,
    invocations: AtomicU64,
    api: JoinHandle<()>,
}

impl Functions {
    /// Opens the runtime API on a free port of the loopback. Processes start when there is
    /// something for them to do.
    pub async fn start(specs: Vec<FunctionSpec>, logs: Logs) -> io::Result<Functions> {
        let (address, mailboxes, api) = runtime_api::start().await?;
        let guard = Arc::new(Guard::start()?);
        let pools = specs
            .into_iter()
            .map(|spec| {
                let name = spec.name.clone();
                let pool = Pool::new(spec, address, mailboxes.clone(), logs.clone(), guard.clone());
                (name, Arc::new(pool))
            })
            .collect();
        let busy = watch::Sender::new(0);
        Ok(Functions(Arc::new(Shared { pools, busy, invocations: AtomicU64::new(0), api })))
    }

    /// Hands the event to an idle process, to a new one, or waits its turn, and returns what the
    /// function answered.
    ///
    /// A caller that drops the future does not stop the invocation: once a process has it, it runs
    /// to its end.
    pub async fn invoke(&self, function: &str, event: Bytes) -> Result<Bytes, InvokeError> {
        let pool = self.pool(function)?;
        if event.len() > PAYLOAD_LIMIT {
            return Err(InvokeError::EventTooLarge(event.len()));
        }
        self.0.invocations.fetch_add(1, Ordering::Relaxed);
        pool.invoke(event, Busy::new(&self.0.busy)).await
    }

    /// Starts one process of every function and waits until each asks for work. The first function
    /// that does not is told with the reason; what it printed is in the logs by then.
    pub async fn start_one_of_each(&self) -> Result<(), (String, InvokeError)> {
        let starts = self
            .0
            .pools
            .iter()
            .map(|(name, pool)| async move { pool.start_one().await.map_err(|error| (name.clone(), error)) });
        join_all(starts).await.into_iter().collect()
    }

    /// Invocations so far, over all functions.
    pub fn invocations(&self) -> u64 {
        self.0.invocations.load(Ordering::Relaxed)
    }

    /// Invocations that wait or run, over all functions.
    pub fn busy(&self) -> usize {
        *self.0.busy.borrow()
    }

    /// Waits for a moment at which no invocation waits or runs.
    pub async fn quiet(&self) {
        // The sender is in `self`, so the wait cannot end in an error.
        let _ = self.0.busy.subscribe().wait_for(|busy| *busy == 0).await;
    }

    /// Kills all processes of the function, waits until they are gone, and says how many there
    /// were. What they had in hand fails as `Died`; what waits for its turn goes to new processes.
    pub async fn kill(&self, function: &str) -> Result<usize, InvokeError> {
        Ok(self.pool(function)?.kill().await)
    }

    /// Kills the process that signs with this session token, as [`Self::kill`] does all; whether
    /// there is one.
    pub async fn kill_process(&self, session_token: &str) -> bool {
        for pool in self.0.pools.values() {
            if pool.kill_instance(session_token).await {
                return true;
            }
        }
        false
    }

    /// Changes the environment of every function (a new clock offset, say) and kills all processes,
    /// idle or not, so that whatever runs after this call runs with the change. To lose no
    /// invocation, be `quiet` first.
    pub async fn restart(&self, mut change: impl FnMut(&mut BTreeMap<String, String>)) {
        for pool in self.0.pools.values() {
            pool.change_environment(&mut change);
        }
        for pool in self.0.pools.values() {
            pool.kill().await;
        }
    }

    /// The processes there are: function and process id.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let pools = self.0.pools.iter();
        pools.flat_map(|(name, pool)| pool.pids().into_iter().map(|pid| (name.clone(), pid))).collect()
    }

    /// Kills all processes and takes no more invocations; those that wait fail as `Stopped`.
    pub async fn stop(&self) {
        for pool in self.0.pools.values() {
            pool.close();
        }
        for pool in self.0.pools.values() {
            pool.kill().await;
        }
        self.0.api.abort();
    }

    fn pool(&self, function: &str) -> Result<&Arc<Pool>, InvokeError> {
        let pool = self.0.pools.get(function);
        pool.ok_or_else(|| InvokeError::NoSuchFunction(function.to_owned()))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for pool in self.pools.values() {
            pool.close();
            pool.send_stop();
        }
        self.api.abort();
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => write!(f, "exit status unknown"),
        }
    }
}

/// What the locks of this module protect is whole between any two statements, so a panic elsewhere
/// does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn random_uuid() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_random_bytes(random).into_uuid().to_string()
}
