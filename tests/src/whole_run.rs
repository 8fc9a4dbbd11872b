//! What the functions did over a full run of the tests: the grants of the template that they used,
//! the calls that were denied, and the metrics that they emitted.
//!
//! Each world records this when it ends. The last test binary of `cargo test`, `whole_run`, reads
//! what the other binaries of the same run recorded. A run is identified by the process that
//! started its binaries. A binary that runs only some of its tests records nothing, because the
//! other tests may use what these do not use.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;
use umavez_local::binaries;
use umavez_local::functions::LogLine;
use umavez_local::local_parameters::with_local;
use umavez_local::permissions::Permissions;
use umavez_local::template::load;

use crate::{template, watched};

/// The binaries that run the functions.
const RECORDING_BINARIES: &[&str] = &["behaviour", "crash_points"];
const USED: &str = "used";
const REFUSED: &str = "refused";
const METRIC: &str = "metric";

/// The result of a full run.
#[derive(Debug, Default)]
pub struct Report {
    pub granted: usize,
    /// One line each: the function, the action, and the resource.
    pub unused: Vec<String>,
    pub refused: Vec<String>,
    /// Metrics that alarms or the dashboard watch, but that no function emitted with that name,
    /// namespace and dimensions.
    pub unemitted: Vec<String>,
}

/// Records what the functions of a stack used, which calls were denied, and which metrics they
/// emitted.
pub(crate) fn record(permissions: &Permissions, lines: &[LogLine]) {
    static RECORDS: LazyLock<Mutex<Option<Records>>> = LazyLock::new(|| Mutex::new(Records::begin()));
    let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(records) = records.as_mut() else { return };
    for grant in permissions.grants().iter().filter(|grant| grant.used) {
        records.add(USED, &line(&grant.function, &grant.action, &grant.resource));
    }
    for refusal in permissions.refusals() {
        records.add(REFUSED, &line(&refusal.function, &refusal.action, &refusal.resource));
    }
    for metric in lines.iter().flat_map(|line| metrics(&line.line)) {
        records.add(METRIC, &metric);
    }
}

/// Returns the metrics in a log line, each as its namespace, its name and the names of its
/// dimensions.
fn metrics(line: &str) -> Vec<String> {
    let event = Some(line).filter(|line| line.contains("CloudWatchMetrics")).map(serde_json::from_str::<Value>);
    let Some(Ok(event)) = event else { return Vec::new() };
    let mut metrics = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for directive in list(&event["_aws"]["CloudWatchMetrics"]) {
        let namespace = directive["Namespace"].as_str().unwrap_or_default();
        for dimensions in list(&directive["Dimensions"]) {
            let dimensions: Vec<_> = list(&dimensions).iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let names = list(&directive["Metrics"]);
            let names = names.iter().filter_map(|metric| metric["Name"].as_str());
            metrics.extend(names.map(|name| watched::line(namespace, name, dimensions.iter().map(String::as_str))));
        }
    }
    metrics
}

/// Returns the report of this run; `None` unless all binaries ran all of their tests.
pub fn report() -> Option<Report> {
    let mut recorded = BTreeSet::new();
    for name in RECORDING_BINARIES {
        let text = fs::read_to_string(directory()?.join(name)).ok()?;
        recorded.extend(text.lines().map(str::to_owned));
    }
    let parameters = with_local(Default::default()).ok()?;
    let model = load(&template(), &parameters).expect("the template loads");
    let permissions = Permissions::of(&model, |function| function.binary.clone()).expect("the roles are known");
    let mut report = Report::default();
    // Grants that Lambda itself uses count as used from the start.
    for grant in permissions.grants() {
        report.granted += 1;
        let line = line(&grant.function, &grant.action, &grant.resource);
        if !grant.used && !recorded.contains(&format!("{USED} {line}")) {
            report.unused.push(line);
        }
    }
    let refused = recorded.iter().filter_map(|line| line.strip_prefix(REFUSED));
    report.refused = refused.map(|line| line.trim_start().to_owned()).collect();
    let watched = watched::metrics(&template()).into_iter();
    report.unemitted = watched.filter(|metric| !recorded.contains(&format!("{METRIC} {metric}"))).collect();
    Some(report)
}

/// Deletes the records of this run.
pub fn forget() {
    if let Some(directory) = directory() {
        let _ = fs::remove_dir_all(directory);
    }
}

struct Records {
    file: File,
    lines: BTreeSet<String>,
}

impl Records {
    fn begin() -> Option<Self> {
        let program = std::env::current_exe().ok()?;
        let name = program.file_stem()?.to_string_lossy().into_owned();
        let name = name.rsplit_once('-').map_or(name.as_str(), |(name, _)| name);
        if !RECORDING_BINARIES.contains(&name) || !is_whole(std::env::args().skip(1)) {
            return None;
        }
        let directory = directory()?;
        fs::create_dir_all(&directory).ok()?;
        Some(Self { file: File::create(directory.join(name)).ok()?, lines: BTreeSet::new() })
    }

    fn add(&mut self, kind: &str, line: &str) {
        let line = format!("{kind} {line}");
        if self.lines.contains(&line) {
            return;
        }
        // Does not panic, because a world may be dropped during a panic.
        if let Err(error) = writeln!(self.file, "{line}") {
            eprintln!("the record of a test could not be written: {error}");
        }
        self.lines.insert(line);
    }
}

/// Returns whether a test binary with these arguments runs all of its tests. (A runner that starts
/// one process per test passes the name of the test.)
fn is_whole(mut arguments: impl Iterator<Item = String>) -> bool {
    if std::env::var_os("CRASH_SCENARIOS").is_some() {
        return false;
    }
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--test-threads" | "--color" | "--format" | "--seeds" => {
                let _value = arguments.next();
            }
            "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q" => {}
            flag if flag.starts_with("--test-threads=") => {}
            _ => return false,
        }
    }
    true
}

fn directory() -> Option<PathBuf> {
    Some(binaries::directory().ok()?.join("whole-run").join(parent_id().to_string()))
}

fn line(function: &str, action: &str, resource: &str) -> String {
    format!("{function} {action} {resource}")
}
