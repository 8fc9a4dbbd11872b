//! The programs that may notice a mutant: unit tests, models and the simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use umavez::cargo_variables;

use crate::tree::Tree;

/// The workloads of the simulator.
const WORKLOADS: &[&str] =
    &["outbound", "downsells", "conversations", "absences", "mailings", "ingest", "windows", "limits", "everything"];

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

    /// Splits unit tests into one program per module, so that a mutant is tried with few of them.
    fn modules(&self) -> Vec<Self> {
        let listed =
            Command::new(&self.path).args(["--list", "--format", "terse"]).output().expect("the tests are listed");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let module = |test: &str| test.split("::").take(2).collect::<Vec<_>>().join("::");
        let modules: BTreeSet<_> = tests.map(module).collect();
        let of = |module: &String| {
            let arguments = vec![module.clone()];
            let (path, directory) = (self.path.clone(), self.directory.clone());
            let name = format!("{} {module}", self.name);
            Self { name, path, arguments, directory, takes: Duration::ZERO, reaches: BTreeSet::new() }
        };
        modules.iter().map(of).collect()
    }

    /// Returns a program that plays so many seeds of a workload.
    pub fn plays(&self, workload: &str, seeds: u32) -> Self {
        let arguments = ["--workload", workload, "--seeds", &seeds.to_string(), "--quick"].map(str::to_owned);
        let Self { path, directory, .. } = self;
        Self {
            name: format!("simulate {workload}"),
            path: path.clone(),
            arguments: arguments.to_vec(),
            directory: directory.clone(),
            takes: Duration::ZERO,
            reaches: BTreeSet::new(),
        }
    }

    /// Plays seeds with a mutant. Returns how many until the first that fails, or `None` if none
    /// does.
    pub fn first_failure(&self, workload: &str, mutant: u32, seeds: u32) -> Option<String> {
        let played = Command::new(&self.path)
            .args(["--workload", workload, "--seeds", &seeds.to_string(), "--first"])
            .current_dir(&self.directory)
            .env("UMAVEZ_MUTANT", mutant.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .expect("the simulator runs");
        let printed = String::from_utf8_lossy(&played.stdout);
        let first = printed.lines().find_map(|line| line.strip_prefix("first failure: seed ")).map(str::to_owned);
        // A mutant that ends the process is noticed, too.
        if played.status.success() { None } else { Some(first.unwrap_or_else(|| "crash".to_owned())) }
    }

    /// Runs the program without a mutant, to learn how long it takes and what it reaches. Returns
    /// whether it takes less than this time.
    fn measure(&mut self, list: &Path, longest: Duration) -> bool {
        let begun = Instant::now();
        match self.start(&[], longest) {
            Ended::Passed => self.takes = begun.elapsed(),
            Ended::Failed => panic!("{} fails without a mutant", self.name),
            Ended::Stopped => return false,
        }
        let _ = fs::remove_file(list);
        let listed = [("UMAVEZ_MUTANTS_REACHED", list.display().to_string())];
        assert_eq!(self.start(&listed, longest * 10), Ended::Passed, "{} passes", self.name);
        let reached = fs::read_to_string(list).unwrap_or_default();
        self.reaches = reached.lines().filter_map(|line| line.parse().ok()).collect();
        true
    }
}

/// Which programs are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The unit tests of the domain, and the models.
    Domain,
    /// The unit tests of the platform.
    Platform,
    /// The simulator.
    Plays,
}

/// Builds the programs in a target folder of their own: in that of the workspace, cargo would take
/// the crates of the copy for those of the workspace. If mutants do not compile, returns their
/// lines.
pub fn build(tree: &Tree, kinds: &[Kind]) -> Result<Vec<Program>, BTreeMap<PathBuf, BTreeSet<usize>>> {
    let mut programs = Vec::new();
    let mut refused: BTreeMap<PathBuf, BTreeSet<usize>> = BTreeMap::new();
    for kind in kinds {
        let call: &[&str] = match kind {
            Kind::Domain => &["build", "--tests", "-p", "umavez-domain"],
            // Together with the functions, so that crates from elsewhere have the same features.
            Kind::Platform => &["build", "--tests", "-p", "umavez-platform", "-p", "umavez-simulator-registry"],
            Kind::Plays => &["build", "-p", "umavez-simulator", "--bin", "umavez-simulator"],
        };
        let mut cargo = Command::new("cargo");
        for name in cargo_variables() {
            cargo.env_remove(name);
        }
        let built = cargo
            .args(call)
            .args(["--keep-going", "--message-format", "json"])
            .current_dir(&tree.root)
            .env("CARGO_TARGET_DIR", tree.root.join("target"))
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
        let whole = new(name, Vec::new(), &directory);
        return Some(if target["kind"][0] == "lib" { whole.modules() } else { vec![whole] });
    }
    let simulator = new(name, Vec::new(), root);
    let seeds = |workload: &str| if ["absences", "everything"].contains(&workload) { 6 } else { 25 };
    Some(WORKLOADS.iter().map(|workload| simulator.plays(workload, seeds(workload))).collect())
}

/// Measures all programs, leaves out those that take longer than this, and sorts them: the quickest
/// first.
pub fn measure(programs: &mut Vec<Program>, list: &Path, longest: Duration) {
    programs.retain_mut(|program| {
        let is_short = program.measure(list, longest);
        match is_short {
            true => {
                let (seconds, number) = (program.takes.as_secs_f64(), program.reaches.len());
                eprintln!("{} takes {seconds:.1} s and reaches {number} mutants", program.name);
            }
            false => eprintln!("{} takes too long, and is left out", program.name),
        }
        is_short
    });
    programs.sort_by_key(|program| program.takes);
}
