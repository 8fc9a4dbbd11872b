//! A process of a function, as the operating system sees it.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use tokio::process::{Child, Command};

use super::{Exit, FunctionSpec, Logs, guard::Guard, log_pipe::LogPipe};

/// A placeholder for the process's own token in the values of its environment.
pub const INSTANCE: &str = "{instance}";

/// The settings with which a process starts.
pub(super) struct Launch<'a> {
    pub(super) spec: &'a FunctionSpec,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) instance: String,
    pub(super) address: SocketAddr,
    pub(super) logs: &'a Logs,
    pub(super) guard: &'a Arc<Guard>,
}

pub(super) struct Process {
    child: Child,
    pid: u32,
    output: LogPipe,
    guard: Arc<Guard>,
}

impl Process {
    pub(super) fn start(launch: Launch<'_>) -> io::Result<Process> {
        let output = LogPipe::open(&launch.spec.name, launch.logs, &launch.instance)?;
        let child = Command::new(&launch.spec.program)
            .args(&launch.spec.arguments)
            .env_clear()
            .envs(launch.environment.iter().map(|(name, value)| (name, value.replace(INSTANCE, &launch.instance))))
            .envs(lambda_environment(&launch))
            .stdin(Stdio::null())
            .stdout(output.writer()?)
            .stderr(output.writer()?)
            // In its own process group, the process does not receive Ctrl-C from the terminal: only
            // the stack does, and it then stops its processes in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("the process has no id"))?;
        launch.guard.watch(pid);
        Ok(Process { child, pid, output, guard: launch.guard.clone() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the process to end. Safe to cancel and to call again.
    pub(super) async fn exited(&mut self) -> Exit {
        exit(self.child.wait().await)
    }

    pub(super) fn has_exited(&mut self) -> Option<Exit> {
        self.child.try_wait().transpose().map(exit)
    }

    /// Kills the process and waits until it has ended. Returns the process's own exit status if it
    /// had already ended.
    pub(super) async fn kill(&mut self) -> Exit {
        // This fails only if the process has already ended.
        let _ = self.child.start_kill();
        self.exited().await
    }

    /// Waits until everything that the process has printed so far is in the logs.
    pub(super) async fn settle_logs(&mut self) {
        self.output.settle().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.guard.release(self.pid);
    }
}

fn lambda_environment(launch: &Launch<'_>) -> Vec<(&'static str, String)> {
    let FunctionSpec { name, program, memory_mb, .. } = launch.spec;
    let root = program.parent().map(|directory| directory.display().to_string());
    vec![
        // On Lambda this is a host and a port. `lambda_runtime` also accepts a path, but then
        // requires the scheme.
        ("AWS_LAMBDA_RUNTIME_API", format!("http://{}/{}", launch.address, launch.instance)),
        // Every process signs with its own token, as on Lambda. The token identifies the process
        // that made a call.
        ("AWS_SESSION_TOKEN", launch.instance.clone()),
        ("AWS_LAMBDA_FUNCTION_NAME", name.clone()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb.to_string()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{name}")),
        ("AWS_LAMBDA_LOG_STREAM_NAME", format!("[$LATEST]{}", launch.instance)),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("_HANDLER", "bootstrap".to_owned()),
        ("LAMBDA_TASK_ROOT", root.unwrap_or_default()),
        ("TZ", ":UTC".to_owned()),
    ]
}

fn exit(status: io::Result<ExitStatus>) -> Exit {
    let status = status.ok();
    Exit { code: status.and_then(|status| status.code()), signal: status.and_then(|status| status.signal()) }
}
