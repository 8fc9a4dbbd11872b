//! Plays many seeds, on all processors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::play::play;
use crate::profile::Profile;
use crate::workloads::workload;

/// What a run has done so far.
#[derive(Debug)]
pub struct Totals {
    pub seeds: u64,
    pub calls: u64,
    pub virtual_ms: u64,
    pub faults: usize,
    pub violations: usize,
    /// How often the plays reached something.
    pub reached: BTreeMap<String, u64>,
    /// The broken variants of what was written.
    pub variants: BTreeSet<String>,
    begun: Instant,
    took: Option<Duration>,
}

impl Totals {
    /// Returns what at least one play must reach, and none has reached.
    pub fn not_reached(&self, name: &str) -> Vec<&'static str> {
        let wanted = workload(name).map_or(&[][..], |workload| workload.must_reach());
        wanted.iter().copied().filter(|wanted| !self.reached.contains_key(*wanted)).collect()
    }

    /// Returns the seeds per second.
    pub fn rate(&self) -> f64 {
        self.seeds as f64 / self.took.unwrap_or_else(|| self.begun.elapsed()).as_secs_f64()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.virtual_ms as f64 / 3_600_000.0;
        let Self { seeds, calls, faults, violations, .. } = self;
        write!(f, "{seeds} seeds, {calls} calls, {hours:.0} virtual hours, {faults} faults, {violations} violations")?;
        write!(f, ", {:.1} seeds a second", self.rate())
    }
}

/// The number of processors.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, Into::into)
}

/// Plays the seeds until one fails. Returns the lowest seed that failed.
pub fn run(
    seeds: Range<u64>,
    name: &str,
    profile: &Profile,
    threads: usize,
    show: impl Fn(&Totals, u64) + Sync,
) -> (Totals, Option<u64>) {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let of = seeds.end - seeds.start;
    let totals = Mutex::new(Totals {
        seeds: 0,
        calls: 0,
        virtual_ms: 0,
        faults: 0,
        violations: 0,
        reached: BTreeMap::new(),
        variants: BTreeSet::new(),
        begun: Instant::now(),
        took: None,
    });
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let workload = workload(name).expect("the workload exists");
                    let outcome = play(seed, &*workload, profile.clone());
                    if !outcome.violations.is_empty() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                    let mut totals = totals.lock().expect("no player panics with the lock");
                    totals.seeds += 1;
                    totals.calls += outcome.calls;
                    totals.virtual_ms += outcome.virtual_ms;
                    totals.faults += outcome.trace.faults.len();
                    totals.violations += outcome.violations.len();
                    for reached in outcome.reached {
                        *totals.reached.entry(reached).or_default() += 1;
                    }
                    totals.variants.extend(outcome.variants);
                    show(&totals, of);
                }
            });
        }
    });
    let mut totals = totals.into_inner().expect("no player panics with the lock");
    totals.took = Some(totals.begun.elapsed());
    let failed = failed.into_inner();
    (totals, (failed != u64::MAX).then_some(failed))
}
