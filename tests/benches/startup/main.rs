//! `cargo bench --bench startup`: for every function of the template, the time from the start of
//! its process to its first request to the Runtime API, its size, and its memory at that time,
//! relative to an empty `lambda_runtime` in the same run. Times are only printed: no check fails
//! because a machine is slow. Sizes are checked.
//!
//! By default cargo builds binaries of the release profile first, as they are deployed. To measure
//! existing binaries, set `UMAVEZ_BENCH_BINARIES` to a folder with `<function>/bootstrap`, such as
//! `target/lambda` after `sam build`.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use umavez_local::binaries::{build_profile, workspace_root};
use umavez_local::model::Function;
use umavez_local::template::load;
use umavez_tests::processes::{nanoseconds, resident_megabytes};
use umavez_tests::template;

const EMPTY: &str = "probe-empty";
const BINARIES_VARIABLE: &str = "UMAVEZ_BENCH_BINARIES";
const CERTIFICATES_VARIABLE: &str = "SSL_CERT_FILE";
const PROFILE: &str = "release";
const STARTS: usize = 20;
/// A process without a request within this time has failed to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// The goals: the ratio to the empty function for functions without TLS at their start and for
/// those with it, and megabytes.
const MOST_PLAIN: f64 = 2.0;
const MOST_WITH_TLS: f64 = 4.0;
const MOST_MEGABYTES: f64 = 12.0;

fn main() {
    let functions = load(&template(), &BTreeMap::new()).expect("the template loads").functions;
    let place = Place::of_this_run();
    let mut measured = vec![Measured::new(EMPTY, place.program(EMPTY), BTreeMap::new(), None)];
    measured.extend(functions.iter().map(|function| {
        let most = if sets_up_tls(function) { MOST_WITH_TLS } else { MOST_PLAIN };
        let program = place.program(&function.binary);
        Measured::new(&function.binary, program, function.environment.clone(), Some(most))
    }));
    // Starts all of them in turn, so that a disturbance of the machine affects all of them.
    for _ in 0..STARTS {
        measured.iter_mut().for_each(Measured::start_once);
    }
    table(&measured);
    for one in &measured {
        assert!(one.megabytes <= MOST_MEGABYTES, "{} has {:.1} MB", one.name, one.megabytes);
    }
}

/// Returns whether the function sets up TLS: a function with a resource of AWS in its environment
/// has a client for it, which reads the certificates of this machine when it is created.
fn sets_up_tls(function: &Function) -> bool {
    let kinds = ["_TABLE", "_QUEUE", "_SECRET", "_BUCKET"];
    function.environment.keys().any(|name| kinds.iter().any(|kind| name.ends_with(kind)))
}

/// Where the binaries are.
enum Place {
    Given(PathBuf),
    Built(PathBuf),
}

impl Place {
    fn of_this_run() -> Self {
        match std::env::var_os(BINARIES_VARIABLE) {
            Some(given) => Self::Given(workspace_root().join(given)),
            None => {
                eprintln!("building the functions with the {PROFILE} profile: a minute each to link");
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(build_profile(false, PROFILE)).expect("the functions build");
                let program = std::env::current_exe().expect("a path");
                let target = program.ancestors().nth(3).expect("target/<profile>/deps/<program>").to_owned();
                Self::Built(target.join(PROFILE))
            }
        }
    }

    fn program(&self, binary: &str) -> PathBuf {
        match self {
            Self::Given(folder) => folder.join(binary).join("bootstrap"),
            Self::Built(folder) => folder.join(binary),
        }
    }
}

/// A program, and the measurements of its starts.
struct Measured {
    name: String,
    program: PathBuf,
    environment: BTreeMap<String, String>,
    /// The limit of the ratio to the empty function.
    most: Option<f64>,
    megabytes: f64,
    starts: Vec<Start>,
}

/// Measurements up to the first request.
struct Start {
    milliseconds: f64,
    processor_milliseconds: f64,
    resident_megabytes: f64,
}

impl Measured {
    fn new(name: &str, program: PathBuf, environment: BTreeMap<String, String>, most: Option<f64>) -> Self {
        let file = std::fs::metadata(&program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let megabytes = file.len() as f64 / 1e6;
        Self { name: name.to_owned(), program, environment, most, megabytes, starts: Vec::new() }
    }

    fn start_once(&mut self) {
        let start = start(&self.program, &self.environment);
        self.starts.push(start);
    }

    fn quickest(&self) -> f64 {
        self.starts.iter().map(|start| start.milliseconds).fold(f64::INFINITY, f64::min)
    }

    fn median(&self, of: fn(&Start) -> f64) -> f64 {
        let mut values: Vec<_> = self.starts.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

fn start(program: &Path, environment: &BTreeMap<String, String>) -> Start {
    let api = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = api.local_addr().expect("an address").to_string();
    let (asked, asks) = mpsc::channel();
    std::thread::spawn(move || asked.send(api.accept()));
    let begin = Instant::now();
    let process = Command::new(program)
        .env_clear()
        .envs(environment)
        .envs(of_lambda(&address))
        .envs(certificates().map(|file| (CERTIFICATES_VARIABLE, file)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let process = Killed(process);
    let asks = asks.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{} makes no request", program.display()));
    let (mut connection, _) = asks.expect("a connection");
    let mut question = [0; 64];
    let read = connection.read(&mut question).expect("a request");
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    assert!(question[..read].starts_with(b"GET /2018-06-01/runtime/invocation/next"), "{}", program.display());
    let pid = process.0.id();
    Start { milliseconds, processor_milliseconds: nanoseconds(pid) / 1e6, resident_megabytes: resident_megabytes(pid) }
}

/// Returns the variables that Lambda sets for every function.
fn of_lambda(address: &str) -> [(&'static str, &str); 9] {
    [
        ("AWS_LAMBDA_RUNTIME_API", address),
        ("AWS_LAMBDA_FUNCTION_NAME", "bench"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "bench"),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "bench"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "bench"),
        ("AWS_SECRET_ACCESS_KEY", "bench"),
    ]
}

/// Returns the file with the certificates. Amazon Linux has one file. Where each certificate also
/// has its own file, as on Debian, the client would read all of them twice.
fn certificates() -> Option<&'static str> {
    let places = ["/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"];
    places.into_iter().find(|place| Path::new(place).is_file())
}

/// Kills the process when it is dropped, also after a panic.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints the table, and compares the goals with the medians. Other work on the machine interrupts
/// some starts; then the fastest start shows the time of the program itself.
fn table(measured: &[Measured]) {
    let wall = |one: &Measured| one.median(|start| start.milliseconds);
    let processor = |one: &Measured| one.median(|start| start.processor_milliseconds);
    let (empty_wall, empty_processor) = (wall(&measured[0]), processor(&measured[0]));
    println!(
        "| function | MB | ms to `/next`, median | × empty | at most | quickest | CPU ms, median | × empty | resident MB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for one in measured {
        let times = wall(one) / empty_wall;
        let goal = |most: f64| format!("{most}{}", if times > most { ", missed" } else { "" });
        println!(
            "| `{}` | {:.1} | {:.2} | {times:.1} | {} | {:.2} | {:.2} | {:.1} | {:.1} |",
            one.name,
            one.megabytes,
            wall(one),
            one.most.map(goal).unwrap_or_default(),
            one.quickest(),
            processor(one),
            processor(one) / empty_processor,
            one.median(|start| start.resident_megabytes),
        );
    }
}
