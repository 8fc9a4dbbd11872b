//! `cargo run [-- start]`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;
use umavez_local::functions::{LogLine, PROCESS_DIED};
use umavez_local::greeting::ready;
use umavez_local::local_parameters::with_local;
use umavez_local::{Options, Stack, beside, binaries, secrets};

use super::{CliError, StartArguments, clock, keys, read_file};

/// Processes per function, unless `--concurrency` says otherwise.
const CONCURRENCY: usize = 4;

/// The API key that the first start creates.
pub const FIRST_KEY: &str = "local";

pub async fn run(arguments: StartArguments, port: u16, json: bool) -> Result<(), CliError> {
    let options = options(&arguments, port)?;
    // Checked before the build: a second start should not take minutes to be refused.
    if port != 0 && tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
        return Err(umavez_local::StackError::PortInUse(port).into());
    }
    binaries::build(false).await?;
    say("starting the emulators and the functions");
    let stack = Stack::start(options).await?;
    let is_valid = keys::ensure(&stack, FIRST_KEY).await?;
    if json {
        let clock = stack.clock();
        println!("{}", json!({"ready": stack.url(), "key": FIRST_KEY, "offset_seconds": clock.offset_ms() / 1_000}));
    } else {
        greet(&stack)?;
    }
    if !is_valid {
        say("the key `local` was revoked; create another with `cargo run -- keys create`");
    }
    tokio::select! {
        () = report_failures(&stack) => {}
        ended = wait_for_the_end() => ended?,
    }
    say("stopping (Ctrl-C again leaves at once)");
    tokio::select! {
        stopped = stack.stop() => stopped?,
        again = wait_for_the_end() => again?,
    }
    Ok(())
}

pub fn options(arguments: &StartArguments, port: u16) -> Result<Options, CliError> {
    let root = binaries::workspace_root();
    let data =
        if arguments.ephemeral { None } else { Some(arguments.data.clone().unwrap_or_else(|| root.join(".umavez"))) };
    Ok(Options {
        template: read_file(&root.join("template.yaml"))?,
        parameters: with_local(parameters(&arguments.parameters)?)?,
        port,
        data,
        secrets: Some(secrets::local_file()),
        concurrency: arguments.concurrency.unwrap_or(CONCURRENCY),
        schedules: true,
        echo_logs: arguments.logs,
        clock_offset_ms: 0,
        clock_skews_ms: BTreeMap::new(),
        start_functions: true,
        beside: beside::Settings::of_environment(),
    })
}

fn parameters(given: &[String]) -> Result<BTreeMap<String, String>, CliError> {
    let split = |text: &String| {
        let parts = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        parts.ok_or_else(|| CliError::Usage(format!("--parameter takes Name=Value, not {text:?}")))
    };
    given.iter().map(split).collect()
}

/// Prints the lines that people and programs wait for, and something to try.
fn greet(stack: &Stack) -> Result<(), CliError> {
    let url = stack.url();
    let first_steps = read_file(&binaries::workspace_root().join("infra/first-steps.txt"))?;
    let first_steps = first_steps.replace("{url}", url).replace("{key}", FIRST_KEY);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", ready(url, FIRST_KEY))?;
    if let Some(ahead) = clock::ahead(stack.clock().offset_ms() / 1_000) {
        writeln!(out, "The stack's time is {}. {ahead}\n", Timestamp::from_seconds(stack.clock().now_ms() / 1_000))?;
    }
    writeln!(out, "{first_steps}\nCtrl-C stops it.")?;
    out.flush()?;
    Ok(())
}

/// Prints when a function does not start, or dies: a person at the terminal waits for its answer.
async fn report_failures(stack: &Stack) {
    let mut position = stack.logs().position();
    let not_started = Event::FunctionNotStarted.as_str();
    let is_failure = |line: &LogLine| line.line.contains(not_started) || line.line.contains(PROCESS_DIED);
    loop {
        if let Some(line) = stack.logs().wait_for(position, Duration::from_secs(3_600), is_failure).await {
            position = line.number + 1;
            say(&format!("[{}] {}", line.function, line.line));
        }
    }
}

async fn wait_for_the_end() -> Result<(), CliError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}

fn say(what: &str) {
    eprintln!("umavez: {what}");
}
