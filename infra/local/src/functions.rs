//! Runs the functions of the stack as real processes against our own Lambda Runtime API. The
//! programs are the same as on Lambda, and the stack starts, feeds, times out and kills them in the
//! same way.
//!
//! - `pool`: the queued invocations of one function and the processes that serve them.
//! - `instance`: the life of one process, from start to end.
//! - `runtime_api`: the HTTP API that a process calls. It makes no decisions and forwards each call
//!   to the instance.
//! - `process`: the process as the operating system sees it; `guard` makes sure that no process
//!   outlives the stack.
//! - `logs`, `log_pipe`: the output of the processes.
//!
//! Two guarantees: `invoke` always returns, because each way in which a process can end or hang has
//! its own error. And when `invoke` returns, everything that the process printed before its answer
//! is in `Logs`.

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

/// Lambda's limit for the event and the response of a synchronous invocation.
const PAYLOAD_LIMIT: usize = 6 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct FunctionSpec {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// The complete environment of the process, except for the variables that Lambda itself sets.
    pub environment: BTreeMap<String, String>,
    /// The limit for one invocation, from the moment when a process receives it. The time in the
    /// queue does not count.
    pub timeout: Duration,
    pub memory_mb: u32,
    /// The maximum number of processes. Each process handles one invocation at a time.
    pub concurrency: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvokeError {
    #[error("there is no function {0}")]
    NoSuchFunction(String),
    #[error("the event has {0} bytes, more than Lambda accepts")]
    EventTooLarge(usize),
    /// The function answered with an error or a panic, or with a response that Lambda would reject.
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

/// A handle: clones are cheap and share the same functions. Dropping the last one kills the
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
    /// Opens the runtime API on a free loopback port. Processes start when there are invocations
    /// for them.
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

    /// Passes the event to an idle process or to a new one, or queues it, and returns the
    /// function's answer.
    ///
    /// If the caller drops the future, an invocation that a process has already received still runs
    /// to its end.
    pub async fn invoke(&self, function: &str, event: Bytes) -> Result<Bytes, InvokeError> {
        let pool = self.pool(function)?;
        if event.len() > PAYLOAD_LIMIT {
            return Err(InvokeError::EventTooLarge(event.len()));
        }
        self.0.invocations.fetch_add(1, Ordering::Relaxed);
        pool.invoke(event, Busy::new(&self.0.busy)).await
    }

    /// Starts one process of every function and waits until each of them asks for work. If some do
    /// not, returns the name and the error of the first such function; its output is in the logs by
    /// then.
    pub async fn start_one_of_each(&self) -> Result<(), (String, InvokeError)> {
        let starts = self
            .0
            .pools
            .iter()
            .map(|(name, pool)| async move { pool.start_one().await.map_err(|error| (name.clone(), error)) });
        join_all(starts).await.into_iter().collect()
    }

    /// Returns the number of invocations so far, over all functions.
    pub fn invocations(&self) -> u64 {
        self.0.invocations.load(Ordering::Relaxed)
    }

    /// Returns the number of invocations that are queued or running, over all functions.
    pub fn busy(&self) -> usize {
        *self.0.busy.borrow()
    }

    /// Waits until no invocation is queued or running.
    pub async fn quiet(&self) {
        // The sender is in `self`, so this wait cannot fail.
        let _ = self.0.busy.subscribe().wait_for(|busy| *busy == 0).await;
    }

    /// Kills all processes of the function, waits until they have ended, and returns how many there
    /// were. Their running invocations fail with `Died`; queued invocations go to new processes.
    pub async fn kill(&self, function: &str) -> Result<usize, InvokeError> {
        Ok(self.pool(function)?.kill().await)
    }

    /// Kills the process that signs with this session token, with the same effects as
    /// [`Self::kill`]. Returns whether there was such a process.
    pub async fn kill_process(&self, session_token: &str) -> bool {
        for pool in self.0.pools.values() {
            if pool.kill_instance(session_token).await {
                return true;
            }
        }
        false
    }

    /// Changes the environment of every function (for example the clock offset) and kills all
    /// processes, idle or busy, so that all later invocations run with the change. To lose no
    /// invocation, wait for `quiet` first.
    pub async fn restart(&self, mut change: impl FnMut(&mut BTreeMap<String, String>)) {
        for pool in self.0.pools.values() {
            pool.change_environment(&mut change);
        }
        for pool in self.0.pools.values() {
            pool.kill().await;
        }
    }

    /// Returns the function and the process id of each process.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let pools = self.0.pools.iter();
        pools.flat_map(|(name, pool)| pool.pids().into_iter().map(|pid| (name.clone(), pid))).collect()
    }

    /// Kills all processes and rejects new invocations. Queued invocations fail with `Stopped`.
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

/// Locks a mutex and ignores poisoning. The data behind the locks of this module is consistent
/// after every statement, so a panic while a lock is held does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn random_uuid() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_random_bytes(random).into_uuid().to_string()
}
