//! The life of one process: it starts, asks for work, receives an invocation, answers, and asks
//! again. Everything that happens to it arrives in one mailbox, so its state is in local variables
//! of one task and needs no lock.

use std::{
    ops::ControlFlow::{self, Break, Continue},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::StatusCode;
use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};

use super::{
    InvokeError,
    pool::{Job, Pool},
    process::Process,
    random_uuid,
};

/// The limit from the start of a process to its first request for work, and from an answer to the
/// next request.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// The start of the log line about a process that ended without being stopped.
pub const PROCESS_DIED: &str = "a process ended unexpectedly";

/// A message in the mailbox of an instance. A dropped sender means that the call is rejected.
pub(super) enum Call {
    /// The process asks for work.
    Next(oneshot::Sender<Invocation>),
    /// The process answers an invocation.
    Answer { request_id: String, result: Result<Bytes, InvokeError>, verdict: oneshot::Sender<StatusCode> },
    /// The process reports that it cannot start.
    InitError(InvokeError),
    /// Kill the process. The instance drops the sender when it has ended.
    Stop(oneshot::Sender<()>),
}

/// What a process receives when it asks for work.
pub(super) struct Invocation {
    pub(super) request_id: String,
    pub(super) deadline_ms: u128,
    pub(super) function: String,
    pub(super) event: Bytes,
}

/// Why an instance ended. Its process has ended by then.
enum End {
    Failed(InvokeError),
    Stopped { _gone: oneshot::Sender<()> },
}

pub(super) async fn run(pool: Arc<Pool>, id: String, mut mailbox: mpsc::UnboundedReceiver<Call>) {
    let end = live(&pool, &id, &mut mailbox).await;
    if let End::Failed(error) = &end {
        pool.log(&format!("{PROCESS_DIED}: {error}"));
    }
    pool.ended(&id);
    // Dropping the senders notifies the callers that asked for the stop: the one in `end`, and
    // those whose calls are still unread in the mailbox. This must come after `ended`.
    drop((end, mailbox));
}

async fn live(pool: &Arc<Pool>, id: &str, mailbox: &mut mpsc::UnboundedReceiver<Call>) -> End {
    let (mut instance, mut next) = match start(pool, id, mailbox).await {
        Ok(started) => started,
        Err(end) => {
            if let End::Failed(error) = &end {
                pool.init_failed(error.clone());
            }
            return end;
        }
    };
    pool.initialised();
    loop {
        next = match instance.serve_one(next).await {
            Continue(next) => next,
            Break(end) => return end,
        };
    }
}

async fn start<'a>(
    pool: &'a Arc<Pool>,
    id: &'a str,
    mailbox: &'a mut mpsc::UnboundedReceiver<Call>,
) -> Result<(Instance<'a>, oneshot::Sender<Invocation>), End> {
    let backoff = sleep(pool.backoff());
    tokio::pin!(backoff);
    loop {
        tokio::select! {
            () = &mut backoff => break,
            Some(call) = mailbox.recv() => if let Call::Stop(gone) = call {
                return Err(End::Stopped { _gone: gone });
            },
        }
    }
    let process = Process::start(pool.launch(id))
        .map_err(|error| End::Failed(init_failed("Runtime.InvalidEntrypoint", error.to_string())))?;
    pool.started(id, process.pid());
    let mut instance = Instance { pool, id, mailbox, process };
    match instance.until_ready().await {
        Continue(next) => Ok((instance, next)),
        Break(end) => Err(end),
    }
}

struct Instance<'a> {
    pool: &'a Arc<Pool>,
    id: &'a str,
    mailbox: &'a mut mpsc::UnboundedReceiver<Call>,
    process: Process,
}

impl Instance<'_> {
    /// Serves one invocation, from one request for work to the next.
    async fn serve_one(&mut self, next: oneshot::Sender<Invocation>) -> ControlFlow<End, oneshot::Sender<Invocation>> {
        let (job, next) = self.until_job(next).await?;
        let request_id = random_uuid();
        let deadline = Instant::now() + self.pool.spec.timeout;
        let invocation = Invocation {
            request_id: request_id.clone(),
            deadline_ms: epoch_ms(SystemTime::now() + self.pool.spec.timeout),
            function: self.pool.spec.name.clone(),
            event: job.event.clone(),
        };
        if next.send(invocation).is_err() {
            // The process closed the connection before it received the event.
            self.pool.put_back(job);
            self.pool.available(self.id);
            return self.until_ready().await;
        }
        let (result, end) = match self.until_answer(&request_id, deadline).await {
            Continue(result) => (result, None),
            Break((error, end)) => (Err(error), Some(end)),
        };
        self.process.settle_logs().await;
        if end.is_none() {
            self.pool.available(self.id);
        }
        job.finish(result);
        match end {
            Some(end) => Break(end),
            None => self.until_ready().await,
        }
    }

    /// Waits until the process asks for work.
    async fn until_ready(&mut self) -> ControlFlow<End, oneshot::Sender<Invocation>> {
        let limit = Instant::now() + READY_LIMIT;
        loop {
            let error = tokio::select! {
                biased;
                Some(call) = self.mailbox.recv() => match call {
                    Call::Next(next) => return Continue(next),
                    Call::Stop(gone) => return Break(self.stop(gone).await),
                    Call::InitError(error) => error,
                    Call::Answer { verdict, .. } => { refuse(verdict); continue }
                },
                exit = self.process.exited() => init_failed("Runtime.ExitError", format!("{exit} before it asked for work")),
                () = sleep_until(limit) => {
                    let message = format!("it did not ask for work within {} s", READY_LIMIT.as_secs());
                    init_failed("Sandbox.Timedout", message)
                }
            };
            self.process.kill().await;
            self.process.settle_logs().await;
            return Break(End::Failed(error));
        }
    }

    /// Waits for an invocation on behalf of a process that has asked for work.
    async fn until_job(
        &mut self,
        mut next: oneshot::Sender<Invocation>,
    ) -> ControlFlow<End, (Job, oneshot::Sender<Invocation>)> {
        loop {
            tokio::select! {
                biased;
                Some(call) = self.mailbox.recv() => match call {
                    Call::Next(again) => next = again,
                    Call::Stop(gone) => return Break(self.stop(gone).await),
                    Call::Answer { verdict, .. } => refuse(verdict),
                    Call::InitError(_) => {}
                },
                exit = self.process.exited() => return Break(End::Failed(InvokeError::Died(exit))),
                job = self.pool.next_job(self.id) => {
                    // The notification of an exit may be late. Do not pass an invocation to a
                    // process that is known to have ended.
                    if let Some(exit) = self.process.has_exited() {
                        self.pool.put_back(job);
                        return Break(End::Failed(InvokeError::Died(exit)));
                    }
                    return Continue((job, next));
                }
            }
        }
    }

    /// Waits for the answer to the current invocation. If there is none, the process has ended.
    async fn until_answer(
        &mut self,
        current: &str,
        deadline: Instant,
    ) -> ControlFlow<(InvokeError, End), Result<Bytes, InvokeError>> {
        loop {
            let error = tokio::select! {
                biased;
                Some(call) = self.mailbox.recv() => match call {
                    Call::Answer { request_id, result, verdict } if request_id == current => {
                        let too_large = matches!(&result, Err(InvokeError::Failed { error_type, .. })
                            if error_type == RESPONSE_TOO_LARGE);
                        let status = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::ACCEPTED };
                        let _ = verdict.send(status);
                        return Continue(result);
                    }
                    Call::Answer { verdict, .. } => { refuse(verdict); continue }
                    Call::Next(_) | Call::InitError(_) => continue,
                    Call::Stop(gone) => {
                        let exit = self.process.kill().await;
                        return Break((InvokeError::Died(exit), End::Stopped { _gone: gone }));
                    }
                },
                exit = self.process.exited() => InvokeError::Died(exit),
                () = sleep_until(deadline) => {
                    self.process.kill().await;
                    InvokeError::TimedOut
                }
            };
            return Break((error.clone(), End::Failed(error)));
        }
    }

    async fn stop(&mut self, gone: oneshot::Sender<()>) -> End {
        self.process.kill().await;
        self.process.settle_logs().await;
        End::Stopped { _gone: gone }
    }
}

/// Lambda's error type for a response that is too large.
pub(super) const RESPONSE_TOO_LARGE: &str = "Function.ResponseSizeTooLarge";

fn refuse(verdict: oneshot::Sender<StatusCode>) {
    let _ = verdict.send(StatusCode::BAD_REQUEST);
}

fn init_failed(error_type: &str, message: String) -> InvokeError {
    InvokeError::InitFailed { error_type: error_type.to_owned(), message }
}

fn epoch_ms(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}
