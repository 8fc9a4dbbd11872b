//! `cargo run`: builds the local stack and the functions with one call of cargo, and then becomes
//! the local stack's program (`umavez-local`).
//!
//! This program has no dependencies, so cargo compiles it within a second, and it can print at once
//! what is built and how long that takes. If the sources are gone, it builds nothing. The container
//! of the `Dockerfile` does not use it: it starts `umavez-local` directly.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use umavez::cargo_variables;

/// The program of the local stack, beside this one.
const PROGRAM: &str = "umavez-local";
/// The program of `simulate`, beside this one.
const SIMULATOR: &str = "umavez-simulator";
/// The variable that the program finds set if the functions are built.
const BUILT: &str = "UMAVEZ_BUILT";
/// Options whose value is a word of its own.
const OPTIONS_WITH_VALUES: &[&str] = &["--port", "--data", "--concurrency", "--parameter", "--table"];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&arguments) {
        Ok(never) => match never {},
        Err(problem) => {
            eprintln!("umavez: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[OsString]) -> Result<std::convert::Infallible, String> {
    let this = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let directory = this.parent().unwrap_or(Path::new(".")).to_owned();
    let (name, arguments) = match of_simulate(arguments) {
        Some(rest) => (SIMULATOR, rest),
        None => (PROGRAM, arguments.to_vec()),
    };
    let program = directory.join(name);
    if let Some(root) = sources() {
        build(&root, &directory, &program, Parts::of(name, &arguments))?;
    }
    let mut command = Command::new(&program);
    for name in cargo_variables() {
        command.env_remove(name);
    }
    let error = command.args(arguments).env(BUILT, "1").exec();
    Err(format!("{} cannot be started: {error}", program.display()))
}

/// Returns the workspace that this program was built from, if it is still there.
fn sources() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    root.join("template.yaml").is_file().then(|| root.to_owned())
}

/// What a command needs to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// The local stack and the functions.
    Stack,
    /// The program of the local stack, which talks to one that runs.
    Commands,
    Simulator,
}

impl Parts {
    fn of(program: &str, arguments: &[OsString]) -> Self {
        match program {
            SIMULATOR => Self::Simulator,
            _ if needs_functions(arguments) => Self::Stack,
            _ => Self::Commands,
        }
    }

    fn selection(self) -> &'static [&'static str] {
        match self {
            Self::Stack => &["--workspace", "--exclude", SIMULATOR, "--exclude", "probe"],
            Self::Commands => &["--package", PROGRAM],
            Self::Simulator => &["--package", SIMULATOR],
        }
    }

    /// What the first build prints that it builds.
    fn description(self) -> &'static str {
        match self {
            Self::Stack => "the local stack and the functions; this takes about five minutes on two cores, once",
            Self::Commands => "the local stack; this takes some minutes, once",
            Self::Simulator => "the simulator; this takes some minutes, once",
        }
    }
}

/// Returns the words that are not values of options, with their places.
fn words(arguments: &[OsString]) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (place, word) in arguments.iter().enumerate() {
        let is_value = found
            .last()
            .is_some_and(|(before, option)| before + 1 == place && OPTIONS_WITH_VALUES.contains(&option.as_str()));
        if !is_value {
            found.push((place, word.to_string_lossy().into_owned()));
        }
    }
    found
}

/// Returns the command and its place. `None` if there is none.
fn command(arguments: &[OsString]) -> Option<(usize, String)> {
    words(arguments).into_iter().find(|(_, word)| !word.starts_with('-'))
}

/// Returns whether one of the words asks for help or the version.
fn asks_for_help(arguments: &[OsString]) -> bool {
    words(arguments).iter().any(|(_, word)| matches!(word.as_str(), "--help" | "-h" | "--version" | "-V" | "help"))
}

/// Returns the arguments after `simulate`, if that is the command, and `--json` if it comes before.
/// The simulator has no use for the other options that may come before a command.
fn of_simulate(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let (place, word) = command(arguments)?;
    let (before, after) = (&arguments[..place], &arguments[place + 1..]);
    let is_simulate = word == "simulate" && !asks_for_help(before);
    let json = before.iter().filter(|word| *word == "--json");
    is_simulate.then(|| json.chain(after).cloned().collect())
}

/// Returns whether the command starts a stack. All others only talk to one that runs.
fn needs_functions(arguments: &[OsString]) -> bool {
    let starts = |(_, command): (usize, String)| command == "start" || command == "demo";
    !asks_for_help(arguments) && command(arguments).is_none_or(starts)
}

fn build(root: &Path, directory: &Path, program: &Path, parts: Parts) -> Result<(), String> {
    let is_first = !program.is_file();
    if is_first {
        eprintln!("umavez: building {}", parts.description());
    } else if parts == Parts::Stack {
        eprintln!("umavez: building what has changed");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    for name in cargo_variables() {
        command.env_remove(name);
    }
    command.current_dir(root).args(["build", "--bins", "--profile", profile]);
    command.args(parts.selection());
    if !is_first && parts != Parts::Stack {
        command.arg("--quiet");
    }
    // The binaries go beside this program, also if its target folder is not the default one.
    if let Some(target) = directory.parent() {
        command.arg("--target-dir").arg(target);
    }
    let status = command.status().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if status.success() { Ok(()) } else { Err("the build failed".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(words: &str) -> bool {
        needs_functions(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn only_a_start_and_the_demo_need_the_functions() {
        for words in ["", "start", "demo", "--ephemeral", "--port 3100", "--port 3100 start --json", "--logs start"] {
            assert!(needs(words), "{words}");
        }
        for words in ["sent --wait", "--port 3100 clock", "keys --table T list", "--help", "--version", "demo --help"] {
            assert!(!needs(words), "{words}");
        }
    }

    #[test]
    fn simulate_is_found_after_options_and_gets_the_arguments_after_it() {
        let after = |words: &str| {
            let arguments: Vec<_> = words.split_whitespace().map(OsString::from).collect();
            of_simulate(&arguments)
        };
        assert_eq!(after("simulate"), Some(Vec::new()));
        for words in ["simulate --seed 1", "--port 3100 simulate --seed 1"] {
            assert_eq!(after(words), Some(vec!["--seed".into(), "1".into()]), "{words}");
        }
        assert_eq!(after("--json simulate --seed 1"), Some(vec!["--json".into(), "--seed".into(), "1".into()]));
        assert_eq!(after("simulate --help"), Some(vec!["--help".into()]));
        for words in ["", "start", "--data simulate", "--help simulate", "help simulate", "explain simulate"] {
            assert_eq!(after(words), None, "{words}");
        }
    }
}
