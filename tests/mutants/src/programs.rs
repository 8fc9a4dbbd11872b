//! The programs that may notice a mutant: unit tests, models and the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use umavez::cargo_variables;

use crate::tree::Tree;

/// The profile of Cargo.toml, so that nothing here replaces a program of the developer.
const PROFILE: &str = "mutants";
const WORKLOADS: &[&str] =
    &["outbound", "downsells", "conversations", "mailings", "ingest", "windows", "limits", "everything"];

/// A program, and which mutants it reaches.
#[derive(Debug)]
pub struct Program {
    pub name: String,
    path: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// How long it takes without a mutant.
    pub takes: Duration,
    pub reaches: BTreeSet<u32>,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Passed,
    Failed,
    /// It did not end within its time.
    Stopped,
}

impl Program {
    /// Runs the program with a mutant, for at most some times as long as without it.
    pub fn run(&self, mutant: u32) -> Ended {
        self.start(&[("UMAVEZ_MUTANT", mutant.to_string())], self.takes * 5 + Duration::from_secs(10))
    }

    fn start(&self, variables: &[(&str, String)], limit: Duration) -> Ended {
        let mut child = Command::new(&self.path)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env("RUST_BACKTRACE", "0")
            .env("RUST_TEST_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let begun = Instant::now();
        loop {
            match child.try_wait().expect("the program can be asked") {
                Some(status) if status.success() => return Ended::Passed,
                Some(_) => return Ended::Failed,
                None if begun.elapsed() > limit => {
                    child.kill().expect("the program can be stopped");
                    child.wait().expect("it has ended");
                    return Ended::Stopped;
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Runs the program without a mutant, to learn how long it takes and what it reaches.
    fn measure(&mut self, list: &Path) {
        let begun = Instant::now();
        assert_eq!(self.start(&[], Duration::from_secs(1_800)), Ended::Passed, "{} passes without a mutant", self.name);
        self.takes = begun.elapsed();
        let _ = fs::remove_file(list);
        let listed = [("UMAVEZ_MUTANTS_REACHED", list.display().to_string())];
        assert_eq!(self.start(&listed, Duration::from_secs(1_800)), Ended::Passed, "{} passes", self.name);
        let reached = fs::read_to_string(list).unwrap_or_default();
        self.reaches = reached.lines().filter_map(|line| line.parse().ok()).collect();
    }
}

/// Builds the programs. If mutants do not compile, returns their lines.
pub fn build(tree: &Tree) -> Result<Vec<Program>, BTreeMap<PathBuf, BTreeSet<usize>>> {
    let mut programs = Vec::new();
    let mut refused: BTreeMap<PathBuf, BTreeSet<usize>> = BTreeMap::new();
    let calls: [&[&str]; 2] = [
        &["test", "--no-run", "-p", "umavez-domain", "-p", "umavez-platform", "--lib", "--tests", "--keep-going"],
        &["build", "-p", "umavez-simulator", "--bin", "umavez-simulator", "--keep-going"],
    ];
    for call in calls {
        let mut cargo = Command::new("cargo");
        for name in cargo_variables() {
            cargo.env_remove(name);
        }
        let built = cargo
            .args(call)
            .args(["--profile", PROFILE, "--message-format", "json"])
            .current_dir(&tree.root)
            .env("RUSTFLAGS", "-Awarnings")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        for line in String::from_utf8_lossy(&built.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
                for span in message["message"]["spans"].as_array().into_iter().flatten() {
                    let file = PathBuf::from(span["file_name"].as_str().unwrap_or_default());
                    let lines =
                        [&span["line_start"], &span["line_end"]].map(|line| line.as_u64().unwrap_or(0) as usize);
                    refused.entry(file).or_default().extend(lines[0]..=lines[1]);
                }
            }
            if let Some(program) = program(&tree.root, &message) {
                programs.extend(program);
            }
        }
        if !built.status.success() {
            assert!(!refused.is_empty(), "cargo fails, but names no line");
            return Err(refused);
        }
    }
    Ok(programs)
}

/// Returns the program that a message of cargo names: once, or once per workload.
fn program(root: &Path, message: &Value) -> Option<Vec<Program>> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let (target, package) = (&message["target"], message["manifest_path"].as_str()?);
    let directory = Path::new(package).parent()?.to_owned();
    let name = target["name"].as_str()?.to_owned();
    let new = |name: String, arguments: Vec<String>, directory: &Path| Program {
        name,
        path: path.clone(),
        arguments,
        directory: directory.to_owned(),
        takes: Duration::ZERO,
        reaches: BTreeSet::new(),
    };
    if name != "umavez-simulator" {
        return Some(vec![new(name, Vec::new(), &directory)]);
    }
    let plays = WORKLOADS.iter().map(|workload| {
        let seeds = if *workload == "everything" { "6" } else { "25" };
        let arguments = ["--workload", workload, "--seeds", seeds, "--quick"].map(str::to_owned);
        new(format!("simulate {workload}"), arguments.to_vec(), root)
    });
    Some(plays.collect())
}

/// Measures all programs, and sorts them: the quickest first.
pub fn measure(programs: &mut [Program], list: &Path) {
    for program in programs.iter_mut() {
        program.measure(list);
        eprintln!(
            "{} takes {:.1} s and reaches {} mutants",
            program.name,
            program.takes.as_secs_f64(),
            program.reaches.len()
        );
    }
    programs.sort_by_key(|program| program.takes);
}
