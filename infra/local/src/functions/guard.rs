//! Makes sure that no process outlives the stack, however the stack ends.
//!
//! A process that waits for work ends by itself when the stack is gone: `lambda_runtime` returns
//! when its connection breaks. A process in the middle of an invocation continues, possibly
//! forever. Therefore a small shell, in its own process group, reads the ids of the running
//! processes from a pipe. When the stack ends, even by SIGKILL, the kernel closes the pipe, and the
//! shell kills the remaining processes. (The direct way, PR_SET_PDEATHSIG, needs unsafe code.)

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use super::lock;

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=' '
while read -r verb pid; do
    case $verb in
        watch) pids="$pids$pid " ;;
        release) case $pids in *" $pid "*) pids="${pids%% $pid *} ${pids#* $pid }" ;; esac ;;
    esac
done
for pid in $pids; do kill -KILL "$pid"; done
"#;

pub(super) struct Guard(Mutex<Child>);

impl Guard {
    pub(super) fn start() -> io::Result<Guard> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Guard(Mutex::new(shell)))
    }

    pub(super) fn watch(&self, pid: u32) {
        self.send("watch", pid);
    }

    /// Stops watching a process that has ended. The system may soon reuse its id.
    pub(super) fn release(&self, pid: u32) {
        self.send("release", pid);
    }

    fn send(&self, verb: &str, pid: u32) {
        let written = match &mut lock(&self.0).stdin {
            Some(stdin) => stdin.write_all(format!("{verb} {pid}\n").as_bytes()),
            None => Ok(()),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the guard has ended: a process may outlive the stack");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the pipe first, which ends the shell.
        let _ = lock(&self.0).wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn when_the_stack_ends_the_guard_kills_only_the_processes_that_it_watches() {
        let guard = Guard::start().unwrap();
        let mut sleeps: Vec<Child> = (0..3).map(|_| Command::new("/bin/sleep").arg("600").spawn().unwrap()).collect();
        sleeps.iter().for_each(|sleep| guard.watch(sleep.id()));
        guard.release(sleeps[1].id());
        guard.release(sleeps[1].id());
        drop(guard);
        assert_eq!(sleeps[0].wait().unwrap().signal(), Some(9));
        assert_eq!(sleeps[2].wait().unwrap().signal(), Some(9));
        assert_eq!(sleeps[1].try_wait().unwrap(), None);
        sleeps[1].kill().unwrap();
        sleeps[1].wait().unwrap();
    }
}
