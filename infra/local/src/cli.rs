//! The commands.

mod clock;
mod demo;
mod explain;
mod keys;
mod logs;
mod open;
mod remote;
mod sent;
mod start;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use umavez_local::{StackError, binaries};

use remote::Remote;

const DEFAULT_PORT: u16 = 3000;

#[derive(Parser)]
#[command(
    name = "umavez",
    bin_name = "umavez",
    version,
    about = "Umavez on this machine: every message that should go out goes out, once."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The API's port on 127.0.0.1. `start` listens on it (0 takes a free one); all other commands
    /// talk to the stack that runs there
    #[arg(long, global = true, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    start: StartArguments,
}

#[derive(Subcommand)]
enum Command {
    /// Start the stack (also what no command does)
    Start(StartArguments),
    /// Play a day on a stack of its own and check every count
    Demo,
    /// Create, list and revoke API keys, here or in an AWS account
    Keys(keys::KeysArguments),
    /// Move the running stack's time forward: 45s, 20m, 12h, 7d
    Advance {
        /// A number and a unit: s, m, h or d
        duration: String,
    },
    /// Show the running stack's time, which `advance` moves, or set it back to the machine's
    Clock {
        /// Print nothing but seconds since 1970, for scripts
        #[arg(long)]
        unix: bool,
        /// Return to the machine's time. Rows do not change: what was scheduled for later stays so
        #[arg(long, conflicts_with = "unix")]
        reset: bool,
    },
    /// Show the messages that the running stack has sent
    Sent(sent::SentArguments),
    /// Show the log lines of the functions
    Logs(logs::LogsArguments),
    /// Show every decision about a message, an address or a client
    Explain(explain::ExplainArguments),
    /// Open the running stack's start page in a browser
    Open,
    /// Play random schedules of the product with faults, and audit each (`simulate --help`)
    #[command(disable_help_flag = true)]
    Simulate {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print completions for a shell, for example `umavez completions bash`
    Completions { shell: clap_complete::Shell },
}

#[derive(Args, Clone)]
pub struct StartArguments {
    /// Keep state in this directory [default: .umavez in the workspace]
    #[arg(long, conflicts_with = "ephemeral")]
    data: Option<PathBuf>,
    /// Keep no state
    #[arg(long)]
    ephemeral: bool,
    /// Processes per function at most [default: 4]
    #[arg(long)]
    concurrency: Option<usize>,
    /// A parameter of the template, as Name=Value; can be given again
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// Show the functions' logs as they come
    #[arg(long)]
    logs: bool,
}

impl StartArguments {
    /// Adds the options that stood before the word `start`.
    fn or(self, before: Self) -> Self {
        Self {
            data: self.data.or(before.data),
            ephemeral: self.ephemeral || before.ephemeral,
            concurrency: self.concurrency.or(before.concurrency),
            parameters: [before.parameters, self.parameters].concat(),
            logs: self.logs || before.logs,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
    #[error("no stack answers on port {0}; start one with `cargo run`")]
    NoStack(u16),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

pub async fn run(arguments: Arguments) -> Result<(), CliError> {
    let (port, json) = (arguments.port, arguments.json);
    let remote = Remote { port, json };
    match arguments.command {
        None => start::run(arguments.start, port, json).await,
        Some(Command::Start(start)) => start::run(start.or(arguments.start), port, json).await,
        Some(Command::Demo) => demo::run(json).await,
        Some(Command::Keys(keys)) => keys::run(keys, &remote).await,
        Some(Command::Advance { duration }) => clock::advance(&remote, &duration).await,
        Some(Command::Clock { reset: true, .. }) => clock::reset(&remote).await,
        Some(Command::Clock { unix, .. }) => clock::show(&remote, unix).await,
        Some(Command::Sent(sent)) => sent::run(&remote, sent).await,
        Some(Command::Logs(logs)) => logs::run(&remote, logs).await,
        Some(Command::Explain(explain)) => explain::run(&remote, explain).await,
        Some(Command::Open) => open::run(&remote).await,
        Some(Command::Simulate { arguments }) => {
            let program = binaries::directory()?.join("umavez-simulator");
            let error = std::process::Command::new(&program).args(arguments).exec();
            Err(CliError::Failed(format!("{} cannot be started: {error}", program.display())))
        }
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Arguments::command(), "umavez", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Reads a file. The error names the file.
fn read_file(path: &Path) -> Result<String, CliError> {
    Ok(std::fs::read_to_string(path).map_err(|error| StackError::unreadable(path, error))?)
}
