//! Measurements of a process from `/proc`.

use std::fs;
use std::time::Duration;

/// The unit of times in `/proc`, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the processor time of the process in nanoseconds, as the scheduler counts it, for the
/// threads that exist now.
pub fn nanoseconds(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let of = |path: std::path::PathBuf| fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    let first = |text: String| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    tasks.flatten().map(|task| first(of(task.path()))).sum::<f64>().max(Duration::from_nanos(1).as_nanos() as f64)
}

/// Returns the processor time of the process since its start in seconds, in user and system mode,
/// including threads that have ended. Coarser than [`nanoseconds`].
pub fn seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    // The second field is the name of the program in brackets, which can contain any character.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let (user, system) = (11, 12);
    let ticks: Vec<f64> = fields.map(|field| field.parse().unwrap_or(0.0)).collect();
    (ticks[user] + ticks[system]) / TICKS_PER_SECOND
}

/// Returns the peak memory of the process, in megabytes.
pub fn peak_megabytes(pid: u32) -> f64 {
    megabytes(pid, "VmHWM:")
}

/// Returns the current memory of the process, in megabytes.
pub fn resident_megabytes(pid: u32) -> f64 {
    megabytes(pid, "VmRSS:")
}

fn megabytes(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let text = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field of every process");
    let kilobytes: f64 = text.trim_end_matches("kB").trim().parse().expect("a number");
    kilobytes / 1_024.0
}
