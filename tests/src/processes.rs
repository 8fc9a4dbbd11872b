//! What the system knows of a process.

use std::fs;
use std::time::Duration;

/// The unit of times in `/proc`, on every Linux that there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// What the process has run on a processor: by the scheduler's own account, of the threads that it
/// has.
pub fn nanoseconds(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let of = |path: std::path::PathBuf| fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    let first = |text: String| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    tasks.flatten().map(|task| first(of(task.path()))).sum::<f64>().max(Duration::from_nanos(1).as_nanos() as f64)
}

/// What the process has run on a processor since its start, for itself and in the system: with the
/// threads that it had. Coarser than [`nanoseconds`].
pub fn seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    // Its second field is the program's name in brackets, which may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let (user, system) = (11, 12);
    let ticks: Vec<f64> = fields.map(|field| field.parse().unwrap_or(0.0)).collect();
    (ticks[user] + ticks[system]) / TICKS_PER_SECOND
}

/// The most memory that the process ever had at a time, in megabytes.
pub fn peak_megabytes(pid: u32) -> f64 {
    megabytes(pid, "VmHWM:")
}

/// The memory that the process has, in megabytes.
pub fn resident_megabytes(pid: u32) -> f64 {
    megabytes(pid, "VmRSS:")
}

fn megabytes(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let text = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field of every process");
    let kilobytes: f64 = text.trim_end_matches("kB").trim().parse().expect("a number");
    kilobytes / 1_024.0
}
