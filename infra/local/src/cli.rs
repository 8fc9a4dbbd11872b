//! The commands.

mod demo;
mod keys;
mod remote;
mod start;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use umavez_local::StackError;

const DEFAULT_PORT: u16 = 3000;

#[derive(Parser)]
#[command(name = "umavez", version, about = "Umavez on this machine: every message that should go out goes out, once.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The port of the API on 127.0.0.1, of the stack to start (0 takes a free one) or of the one
    /// that runs
    #[arg(long, global = true, default_value_t = DEFAULT_PORT)]
    port: u16,
    #[command(flatten)]
    start: StartArguments,
}

#[derive(Subcommand)]
enum Command {
    /// Start the stack (also what no command does)
    Start(StartArguments),
    /// Play a day on a stack of its own and check that everything adds up
    Demo,
    /// Make, list and revoke API keys, here or in an AWS account
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
        /// Return to the machine's time. Rows stay as they are: what was scheduled for later stays
        /// so
        #[arg(long, conflicts_with = "unix")]
        reset: bool,
    },
    /// Show what the running stack has sent
    Sent {
        /// Only this one: telegram, whatsapp or email; or responder, whose questions are not shown
        /// otherwise
        #[arg(long)]
        channel: Option<String>,
        /// Only to this address
        #[arg(long)]
        to: Option<String>,
        /// Wait first until nothing more is due within half a minute; two minutes at most
        #[arg(long)]
        wait: bool,
    },
}

#[derive(Args, Clone)]
pub struct StartArguments {
    /// Where state is kept [default: .umavez in the workspace]
    #[arg(long, conflicts_with = "ephemeral")]
    data: Option<PathBuf>,
    /// Keep nothing
    #[arg(long)]
    ephemeral: bool,
    /// Processes per function at most
    #[arg(long, default_value_t = 4)]
    concurrency: usize,
    /// A parameter of the template, as Name=Value; can be given again
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// Show the functions' logs as they come
    #[arg(long)]
    logs: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

pub async fn run(arguments: Arguments) -> Result<(), CliError> {
    match arguments.command {
        None => start::run(arguments.start, arguments.port).await,
        Some(Command::Start(start)) => start::run(start, arguments.port).await,
        Some(Command::Demo) => demo::run().await,
        Some(Command::Keys(keys)) => keys::run(keys, arguments.port).await,
        Some(Command::Advance { duration }) => remote::advance(&duration, arguments.port).await,
        Some(Command::Clock { reset: true, .. }) => remote::reset_clock(arguments.port).await,
        Some(Command::Clock { unix, .. }) => remote::clock(unix, arguments.port).await,
        Some(Command::Sent { channel, to, wait }) => remote::sent(channel, to, wait, arguments.port).await,
    }
}
