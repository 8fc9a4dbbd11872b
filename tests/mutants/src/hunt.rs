//! Tries mutants one by one, and reports those that nothing notices.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::accepted::Accepted;
use crate::defects::DEFECTS;
use crate::programs::{Ended, Program};
use crate::tree::{Placed, Tree};

/// The outcome of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// A program fails with it.
    Caught(String),
    /// Programs reach it, and all of them pass.
    Missed,
    /// No program reaches it.
    Unreached,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(by) => write!(f, "caught by {by}"),
            Self::Missed => f.write_str("missed"),
            Self::Unreached => f.write_str("unreached"),
        }
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, mutant } = self;
        write!(f, "{}:{} {}: {}", file.display(), mutant.line, mutant.function, mutant.change)
    }
}

/// Draws a part of the mutants: the same part every time, spread over all files.
pub fn is_chosen(number: u32, one_in: u32, part: u32) -> bool {
    number.wrapping_mul(2_654_435_761) / 65_536 % one_in.max(1) == part
}

/// Tries the mutants, on all processors.
pub fn hunt(tree: &Tree, programs: &[Program], numbers: &[u32]) -> BTreeMap<u32, Fate> {
    let (next, found, begun) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Instant::now());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = try_one(programs, *number);
                    let mut found = found.lock().expect("no thread panics with the lock");
                    if !matches!(fate, Fate::Caught(_)) {
                        eprintln!("{fate}: {}", tree.mutants[number]);
                    }
                    found.insert(*number, fate);
                    if found.len().is_multiple_of(200) {
                        let rate = found.len() as f64 / begun.elapsed().as_secs_f64();
                        let left = (numbers.len() - found.len()) as f64 / rate;
                        eprintln!("{} of {} mutants, {left:.0} s left", found.len(), numbers.len());
                    }
                }
            });
        }
    });
    found.into_inner().expect("no thread panics with the lock")
}

fn try_one(programs: &[Program], number: u32) -> Fate {
    let mut reaching = programs.iter().filter(|program| program.reaches.contains(&number)).peekable();
    if reaching.peek().is_none() {
        return Fate::Unreached;
    }
    let notices = reaching.find(|program| program.run(number) != Ended::Passed);
    notices.map_or(Fate::Missed, |program| Fate::Caught(program.name.clone()))
}

/// Plays each defect in its workload until a seed notices it. Fails if one is missed.
pub fn defects(programs: &[Program], part: &str, seeds: u32) -> ExitCode {
    let simulator = &programs[0];
    let mut missed = 0;
    for (number, defect) in (1..).zip(DEFECTS).filter(|(_, defect)| defect.name.contains(part)) {
        if defect.workload.is_empty() {
            println!("      - {} (tests)", defect.name);
            continue;
        }
        match simulator.first_failure(defect.workload, number, seeds) {
            Some(after) => println!("{after:>7} {}: {}", defect.workload, defect.name),
            None => {
                missed += 1;
                println!(" missed {}: {}", defect.workload, defect.name);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what was found. Fails if too small a share of the mutants is caught or accepted.
pub fn report(
    tree: &Tree,
    found: &BTreeMap<u32, Fate>,
    accepted: &[Accepted],
    at_least: f64,
    file: Option<&Path>,
) -> ExitCode {
    if let Some(file) = file {
        let mut file = std::fs::File::create(file).expect("the report can be written");
        for (number, fate) in found {
            writeln!(file, "{fate}\t{}", tree.mutants[number]).expect("the report can be written");
        }
    }
    let mut by_crate: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    let mut lines = Vec::new();
    for (number, fate) in found {
        let placed = &tree.mutants[number];
        let name = placed.file.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned());
        let counts = by_crate.entry(name.unwrap_or_default()).or_default();
        let is_accepted = accepted.iter().any(|accepted| accepted.is(placed));
        let at = match fate {
            Fate::Caught(_) => 0,
            _ if is_accepted => 1,
            Fate::Missed => 2,
            Fate::Unreached => 3,
        };
        counts[at] += 1;
        if at > 1 {
            lines.push(format!("{fate}: {placed}"));
        }
    }
    lines.iter().for_each(|line| println!("{line}"));
    for (name, [caught, accepted, missed, unreached]) in &by_crate {
        let all = caught + accepted + missed + unreached;
        let share = 100.0 * *caught as f64 / all as f64;
        println!(
            "{name}: {caught} of {all} mutants are caught ({share:.1} %), {accepted} are accepted, {missed} missed, \
             {unreached} not reached"
        );
    }
    let share = 100.0 * (found.len() - lines.len()) as f64 / found.len().max(1) as f64;
    println!("{} mutants, {share:.1} % are caught or accepted, {at_least} % are wanted", found.len());
    if share >= at_least { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
