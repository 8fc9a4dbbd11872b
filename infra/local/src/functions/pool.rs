//! The pool of one function: its queue of invocations (first in, first out) and its processes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot, watch},
};

use super::{
    FunctionSpec, InvokeError, Logs,
    guard::Guard,
    instance::{self, Call},
    lock,
    process::Launch,
    random_uuid,
    runtime_api::Mailboxes,
};

/// The longest delay before the next start of a function whose processes fail to start. There is no
/// delay after the first failure; then the delay is 100 ms and doubles up to this value.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    pub(super) spec: FunctionSpec,
    address: SocketAddr,
    mailboxes: Mailboxes,
    logs: Logs,
    guard: Arc<Guard>,
    state: Mutex<State>,
    /// Notified when an invocation is queued.
    queued: Notify,
}

struct State {
    environment: BTreeMap<String, String>,
    queue: VecDeque<Job>,
    instances: HashMap<String, Entry>,
    init_failures: u32,
    /// The callers that wait for a process to ask for work.
    starting: Vec<oneshot::Sender<Result<(), InvokeError>>>,
    closed: bool,
}

struct Entry {
    mailbox: mpsc::UnboundedSender<Call>,
    pid: Option<u32>,
    /// The process is starting, idle, or about to ask for work again, so it will take an invocation
    /// from the queue by itself.
    available: bool,
}

/// An invocation that is queued or running.
pub(super) struct Job {
    pub(super) event: Bytes,
    reply: oneshot::Sender<(Result<Bytes, InvokeError>, Busy)>,
    busy: Busy,
}

/// Counts an invocation as busy. It is sent with the result, so the count decreases when the caller
/// has received the result.
pub(super) struct Busy(watch::Sender<usize>);

impl Pool {
    pub(super) fn new(
        spec: FunctionSpec,
        address: SocketAddr,
        mailboxes: Mailboxes,
        logs: Logs,
        guard: Arc<Guard>,
    ) -> Pool {
        let state = State {
            environment: spec.environment.clone(),
            queue: VecDeque::new(),
            instances: HashMap::new(),
            init_failures: 0,
            starting: Vec::new(),
            closed: false,
        };
        let (state, queued) = (Mutex::new(state), Notify::new());
        Pool { spec, address, mailboxes, logs, guard, state, queued }
    }

    pub(super) async fn invoke(self: &Arc<Self>, event: Bytes, busy: Busy) -> Result<Bytes, InvokeError> {
        let (reply, result) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(InvokeError::Stopped);
            }
            state.queue.push_back(Job { event, reply, busy });
        }
        self.queued.notify_one();
        self.staff();
        // If there is no result, the job was dropped together with the runtime of its instance.
        result.await.map_or(Err(InvokeError::Stopped), |(result, _busy)| result)
    }

    /// Starts a process and waits until it asks for work. Returns the error if it does not.
    pub(super) async fn start_one(self: &Arc<Self>) -> Result<(), InvokeError> {
        let (waiting, started) = oneshot::channel();
        {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(InvokeError::Stopped);
            }
            state.starting.push(waiting);
            self.start_instance(&mut state, &Handle::current());
        }
        started.await.unwrap_or(Err(InvokeError::Stopped))
    }

    pub(super) async fn kill(&self) -> usize {
        let (processes, ended) = self.send_stop();
        for ended in ended {
            // Nothing is sent; the sender is dropped when the instance has ended.
            let _ = ended.await;
        }
        processes
    }

    /// Kills one process and waits until it has ended. Returns whether the process belonged to this
    /// function.
    pub(super) async fn kill_instance(&self, instance: &str) -> bool {
        let (gone, ended) = oneshot::channel();
        let mailbox = lock(&self.state).instances.get(instance).map(|entry| entry.mailbox.clone());
        let Some(mailbox) = mailbox else { return false };
        let _ = mailbox.send(Call::Stop(gone));
        let _ = ended.await;
        true
    }

    /// Sends a stop to all instances. Returns the number of processes, and for each instance a
    /// receiver that wakes when the instance has ended.
    pub(super) fn send_stop(&self) -> (usize, Vec<oneshot::Receiver<()>>) {
        let state = lock(&self.state);
        let processes = state.instances.values().filter(|entry| entry.pid.is_some()).count();
        let stop = |entry: &Entry| {
            let (gone, ended) = oneshot::channel();
            // If the mailbox is closed, the instance is already ending.
            let _ = entry.mailbox.send(Call::Stop(gone));
            ended
        };
        (processes, state.instances.values().map(stop).collect())
    }

    /// Rejects new invocations and fails the queued ones.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        waiting.into_iter().for_each(|job| job.finish(Err(InvokeError::Stopped)));
    }

    pub(super) fn change_environment(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        change(&mut lock(&self.state).environment);
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        lock(&self.state).instances.values().filter_map(|entry| entry.pid).collect()
    }

    /// Starts processes while there are more queued invocations than processes that are about to
    /// take one.
    fn staff(self: &Arc<Self>) {
        // A runtime that is shutting down starts no processes.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = lock(&self.state);
        let available = state.instances.values().filter(|entry| entry.available).count();
        let room = self.spec.concurrency.max(1).saturating_sub(state.instances.len());
        for _ in 0..state.queue.len().saturating_sub(available).min(room) {
            self.start_instance(&mut state, &runtime);
        }
    }

    fn start_instance(self: &Arc<Self>, state: &mut State, runtime: &Handle) {
        let id = random_uuid();
        let (mailbox, calls) = mpsc::unbounded_channel();
        lock(&self.mailboxes).insert(id.clone(), mailbox.clone());
        state.instances.insert(id.clone(), Entry { mailbox, pid: None, available: true });
        runtime.spawn(instance::run(self.clone(), id, calls));
    }
}

/// The calls that an instance makes to its pool.
impl Pool {
    pub(super) fn backoff(&self) -> Duration {
        match lock(&self.state).init_failures {
            0 | 1 => Duration::ZERO,
            failures => LONGEST_BACKOFF.min(Duration::from_millis(50) * 2_u32.pow(failures.min(10) - 1)),
        }
    }

    /// Returns the settings with which a process starts, with the current environment.
    pub(super) fn launch(&self, instance: &str) -> Launch<'_> {
        Launch {
            spec: &self.spec,
            environment: lock(&self.state).environment.clone(),
            instance: instance.to_owned(),
            address: self.address,
            logs: &self.logs,
            guard: &self.guard,
        }
    }

    pub(super) fn started(&self, instance: &str, pid: u32) {
        if let Some(entry) = lock(&self.state).instances.get_mut(instance) {
            entry.pid = Some(pid);
        }
    }

    /// Logs a line of the stack among the lines of the function.
    pub(super) fn log(&self, line: &str) {
        self.logs.append(&self.spec.name, line.to_owned());
    }

    pub(super) fn initialised(&self) {
        let mut state = lock(&self.state);
        state.init_failures = 0;
        state.notify_starting(&Ok(()));
    }

    /// Fails the oldest queued invocation, so that no invocation waits forever for a function that
    /// never starts.
    pub(super) fn init_failed(&self, error: InvokeError) {
        tracing::warn!(function = self.spec.name, %error, "a process failed to start");
        let job = {
            let mut state = lock(&self.state);
            state.init_failures = state.init_failures.saturating_add(1);
            state.notify_starting(&Err(error.clone()));
            state.next_wanted()
        };
        if let Some(job) = job {
            job.finish(Err(error));
        }
    }

    /// Marks an instance as available. This is called before the result is sent, so that a caller
    /// that invokes again at once does not find all instances busy.
    pub(super) fn available(&self, instance: &str) {
        lock(&self.state).set_available(instance, true);
    }

    /// Waits for the next invocation in the queue. Safe to cancel: a job is either in the queue or
    /// returned.
    pub(super) async fn next_job(&self, instance: &str) -> Job {
        loop {
            let queued = self.queued.notified();
            {
                let mut state = lock(&self.state);
                if let Some(job) = state.next_wanted() {
                    state.set_available(instance, false);
                    // `Notify` stores only one permit; notify again for the rest of the queue.
                    if !state.queue.is_empty() {
                        self.queued.notify_one();
                    }
                    return job;
                }
            }
            queued.await;
        }
    }

    /// Puts an invocation that no process has received back at the front of the queue.
    pub(super) fn put_back(&self, job: Job) {
        lock(&self.state).queue.push_front(job);
        self.queued.notify_one();
    }

    /// Removes an instance whose process has ended, and starts another one if invocations are
    /// queued.
    pub(super) fn ended(self: &Arc<Self>, instance: &str) {
        lock(&self.mailboxes).remove(instance);
        lock(&self.state).instances.remove(instance);
        self.staff();
    }
}

impl State {
    /// Removes and returns the next invocation whose caller still waits. Drops those whose caller
    /// is gone: no process has received them.
    fn next_wanted(&mut self) -> Option<Job> {
        std::iter::from_fn(|| self.queue.pop_front()).find(|job| !job.reply.is_closed())
    }

    fn notify_starting(&mut self, started: &Result<(), InvokeError>) {
        for waiting in self.starting.drain(..) {
            // The caller may be gone.
            let _ = waiting.send(started.clone());
        }
    }

    fn set_available(&mut self, instance: &str, available: bool) {
        if let Some(entry) = self.instances.get_mut(instance) {
            entry.available = available;
        }
    }
}

impl Job {
    pub(super) fn finish(self, result: Result<Bytes, InvokeError>) {
        // If the caller is gone, the result is dropped.
        let _ = self.reply.send((result, self.busy));
    }
}

impl Busy {
    pub(super) fn new(count: &watch::Sender<usize>) -> Busy {
        count.send_modify(|busy| *busy += 1);
        Busy(count.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|busy| *busy -= 1);
    }
}
