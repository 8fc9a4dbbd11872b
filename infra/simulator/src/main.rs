//! `umavez simulate`: plays seeds and reports the first one that fails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use umavez_simulator::play::play;
use umavez_simulator::profile::Profile;
use umavez_simulator::runner::{Totals, run, threads};
use umavez_simulator::shrink::shrink;
use umavez_simulator::workloads::{NAMES, workload};

/// The workloads in which broken variants are played: those of one capability.
const SINGLE: &[&str] =
    &["outbound", "downsells", "conversations", "absences", "mailings", "ingest", "windows", "limits"];
/// How many seeds tell what a workload writes.
const KNOWN: u64 = 150;
/// How many seeds of a workload are played before those of the next one.
const FIRST: u64 = 50;

/// Plays random schedules of the product, with faults, and audits each
#[derive(Debug, Parser)]
#[command(name = "umavez simulate", version)]
struct Arguments {
    /// Play one seed
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// How many seeds to play
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// What to play: outbound, unless broken variants are played in all workloads
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    workload: Option<String>,
    /// Print everything that happens in the play of --seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Fail at the first violation, without looking for the smallest play that fails, and fail too
    /// if the plays do not reach what many plays reach
    #[arg(long, conflicts_with = "seed")]
    quick: bool,
    /// Fail at the first violation, and print its seed
    #[arg(long, conflicts_with = "seed")]
    first: bool,
    /// Print the result as one JSON object
    #[arg(long, conflicts_with_all = ["trace", "quick", "first", "broken"])]
    json: bool,
    /// Play broken variants of the product, one after the other, and print after how many seeds
    /// each is caught; TEXT selects those that contain it
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", conflicts_with = "seed")]
    broken: Option<String>,
}

impl Arguments {
    fn name(&self) -> &str {
        self.workload.as_deref().unwrap_or("outbound")
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return one(seed, &arguments);
    }
    let seeds = arguments.from..arguments.from + arguments.seeds;
    if let Some(part) = &arguments.broken {
        let names = arguments.workload.as_deref().map_or_else(|| SINGLE.to_vec(), |name| vec![name]);
        return broken(seeds, &names, part);
    }
    if arguments.json {
        let (totals, failed) = run(seeds, arguments.name(), &Profile::rough(), threads(), |_, _| {});
        return print_json(arguments.name(), &totals, failed);
    }
    if arguments.first {
        let (totals, failed) = run(seeds, arguments.name(), &Profile::rough(), threads(), |_, _| {});
        println!("{totals}");
        failed.iter().for_each(|seed| println!("first failure: seed {seed}"));
        return if failed.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let threads = if arguments.quick { 1 } else { threads() };
    let (totals, failed) = run(seeds, arguments.name(), &Profile::rough(), threads, show);
    println!("{totals}");
    if arguments.quick {
        let missing = totals.not_reached(arguments.name());
        missing.iter().for_each(|missing| println!("no play reached: {missing}"));
        return if failed.is_none() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    for (reached, times) in &totals.reached {
        println!("{times:>9} × {reached}");
    }
    match failed {
        Some(seed) => report(seed, arguments.name()),
        None => ExitCode::SUCCESS,
    }
}

/// Prints the progress of a run.
fn show(totals: &Totals, of: u64) {
    if totals.seeds.is_multiple_of(500) {
        let left = (of - totals.seeds) as f64 / totals.rate();
        eprintln!("{} of {of} seeds, {:.1} a second, {left:.0} s left", totals.seeds, totals.rate());
    }
}

/// Prints a run as one JSON object.
fn print_json(workload: &str, totals: &Totals, failed: Option<u64>) -> ExitCode {
    let Totals { seeds, calls, virtual_ms, faults, violations, .. } = totals;
    println!(
        "{}",
        json!({
            "workload": workload, "seeds": seeds, "calls": calls, "virtual_hours": virtual_ms / 3_600_000,
            "faults": faults, "violations": violations, "seeds_per_second": totals.rate(), "failed_seed": failed,
        })
    );
    if failed.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    if arguments.json {
        let (totals, failed) = run(seed..seed + 1, arguments.name(), &Profile::rough(), 1, |_, _| {});
        return print_json(arguments.name(), &totals, failed);
    }
    let workload = workload(arguments.name()).expect("clap knows the names");
    let outcome = play(seed, &*workload, Profile::rough());
    if arguments.trace {
        outcome.trace.lines.iter().for_each(|line| println!("{line}"));
        println!("trace {:016x}", outcome.trace.hash());
    }
    match outcome.violations.is_empty() {
        true => {
            println!("seed {seed}: {} calls, {} faults, 0 violations", outcome.calls, outcome.trace.faults.len());
            ExitCode::SUCCESS
        }
        false => report(seed, arguments.name()),
    }
}

/// Prints the smallest failing play of a seed.
fn report(seed: u64, name: &str) -> ExitCode {
    let outcome = play(seed, &*workload(name).expect("clap knows the names"), Profile::rough());
    eprintln!("seed {seed} fails: {}", outcome.violations.join("; "));
    let before = outcome.trace.faults.len();
    let (_, least) = shrink(seed, name, Profile::rough(), outcome);
    eprintln!("with {} of its {before} faults:", least.trace.faults.len());
    least.trace.faults.iter().for_each(|fault| eprintln!("  {fault}"));
    least.trace.lines.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("replay it with: cargo run -- simulate --workload {name} --seed {seed} --trace");
    ExitCode::FAILURE
}

/// Plays each broken variant of what the first plays of the workloads write, and prints after how
/// many seeds it is caught, and in which workload.
fn broken(seeds: Range<u64>, names: &[&str], part: &str) -> ExitCode {
    let mut variants: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        let known = seeds.start..(seeds.start + KNOWN).min(seeds.end);
        let collects = Profile { collects_variants: true, ..Profile::rough() };
        let (totals, _) = run(known, name, &collects, threads(), |_, _| {});
        for variant in totals.variants.into_iter().filter(|variant| variant.contains(part)) {
            variants.entry(variant).or_default().push(name);
        }
    }
    let (mut caught, mut missed) = (0, 0);
    for (variant, names) in variants {
        let profile = Profile { broken: Some(variant.clone()), ..Profile::rough() };
        let found = caught_after(seeds.clone(), &names, &profile);
        match found {
            Some((number, name)) => {
                caught += 1;
                println!("{number:>7} {name}: {variant}");
            }
            None => {
                missed += 1;
                println!(" missed {}: {variant}", names.join(", "));
            }
        }
    }
    println!("{caught} variants are caught, {missed} are missed in {} seeds", seeds.end - seeds.start);
    ExitCode::SUCCESS
}

/// Plays a variant in some workloads in turn, ever longer. Returns after how many seeds of a
/// workload it is caught.
fn caught_after<'a>(seeds: Range<u64>, names: &[&'a str], profile: &Profile) -> Option<(u64, &'a str)> {
    let mut from = seeds.start;
    while from < seeds.end {
        let to = (seeds.start + ((from - seeds.start) * 4).max(FIRST)).min(seeds.end);
        for name in names {
            if let (_, Some(seed)) = run(from..to, name, profile, threads(), |_, _| {}) {
                return Some((seed - seeds.start + 1, name));
            }
        }
        from = to;
    }
    None
}
