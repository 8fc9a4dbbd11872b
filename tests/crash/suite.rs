//! Runs every scenario with every fault at every call.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use futures::StreamExt;
use umavez_tests::{Setup, World};

use crate::run::{Outcome, Point, Strike, run};
use crate::scenario::{Kind, Scenario};
use crate::scenarios;

/// The number of concurrent runs: the machine has few cores and a run has several processes.
pub const AT_ONCE: usize = 4;

/// Counts of a part of the suite, printed in one line.
#[derive(Default)]
struct Tally {
    scenarios: usize,
    effects: usize,
    runs: usize,
    unstruck: usize,
    violations: usize,
}

impl Tally {
    fn add(&mut self, name: &str, strikes: &[Strike], outcome: &Outcome) {
        self.runs += 1;
        self.unstruck += outcome.unstruck;
        if let Some(violation) = &outcome.violation {
            self.violations += 1;
            let strikes: Vec<_> = strikes.iter().map(ToString::to_string).collect();
            println!("VIOLATION in \"{name}\", {}: {violation}", strikes.join(" and "));
            outcome.trace.iter().for_each(|line| println!("    {line}"));
        }
    }
}

/// Runs every scenario with one fault at a time, at every call.
pub async fn single_faults(every_way: bool) -> usize {
    World::build().await;
    let mut tally = Tally::default();
    for scenario in scenarios::all().iter().filter(|scenario| is_asked_for(scenario)) {
        let (begin, before) = (Instant::now(), tally.runs);
        let baseline = baseline(scenario, (scenario.setup)()).await;
        tally.scenarios += 1;
        tally.effects += baseline.points.iter().filter(|point| (scenario.strikes)(point)).count();
        tally.add(scenario.name, &[], &baseline);
        let mut runs = futures::stream::iter(strikes(scenario, &baseline.points, every_way))
            .map(|strike| async move {
                let strikes = [strike];
                let outcome = run(scenario, (scenario.setup)(), &strikes).await;
                (strikes, outcome)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((strikes, mut outcome)) = runs.next().await {
            // The calls come in the same order every time, so a fault that hit no call tested
            // nothing.
            if outcome.unstruck > 0 && !scenario.concurrent {
                outcome.violation.get_or_insert_with(|| "the fault hit no call".to_owned());
            }
            tally.add(scenario.name, &strikes, &outcome);
        }
        println!("{}: {} runs in {} s", scenario.name, tally.runs - before, begin.elapsed().as_secs());
    }
    println!(
        "crash points: {} scenarios, {} effects, {} faults, {} runs ({} faults hit no call), {} violations",
        tally.scenarios,
        tally.effects,
        Kind::ALL.len(),
        tally.runs,
        tally.unstruck,
        tally.violations
    );
    tally.violations
}

/// `CRASH_SCENARIOS=mail` runs only the scenarios with that text in their names, for work on a
/// single scenario.
fn is_asked_for(scenario: &Scenario) -> bool {
    std::env::var("CRASH_SCENARIOS").map_or(true, |part| scenario.name.contains(&part))
}

/// Runs scenarios with two faults, sampled by seed.
pub async fn pairs(seeds: Range<u64>) -> usize {
    World::build().await;
    let baselines = sequential_baselines().await;
    let mut tally = Tally::default();
    let mut runs = futures::stream::iter(seeds.clone())
        .map(|seed| {
            let (scenario, strikes) = pair(&baselines, seed);
            async move {
                let outcome = run(scenario, (scenario.setup)(), &strikes).await;
                (seed, scenario, strikes, outcome)
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some((seed, scenario, strikes, outcome)) = runs.next().await {
        tally.add(&format!("{} (--replay {seed})", scenario.name), &strikes, &outcome);
    }
    println!(
        "pairs of faults: seeds {} to {}, {} runs, {} violations",
        seeds.start,
        seeds.end.saturating_sub(1),
        tally.runs,
        tally.violations
    );
    tally.violations
}

/// Runs one seed again and prints its trace.
pub async fn replay(seed: u64) -> usize {
    World::build().await;
    let baselines = sequential_baselines().await;
    let (scenario, strikes) = pair(&baselines, seed);
    let outcome = run(scenario, (scenario.setup)(), &strikes).await;
    println!("seed {seed}: {}", scenario.name);
    strikes.iter().for_each(|strike| println!("  with {strike}"));
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("{}", outcome.violation.as_deref().unwrap_or("no violation"));
    usize::from(outcome.violation.is_some())
}

/// A scenario without concurrent functions. In other scenarios the order of calls may differ.
const REPLAYED: &str = "a telegram message is sent";

/// Checks that a seed gives the same trace every time, so that a replay shows what happened.
pub async fn replays_are_alike() -> usize {
    let baselines = sequential_baselines().await;
    let of_it = (0..1_000).find(|seed| pair(&baselines, *seed).0.name == REPLAYED);
    let seed = of_it.expect("a seed of the scenario with that name");
    let (scenario, strikes) = pair(&baselines, seed);
    let first = run(scenario, (scenario.setup)(), &strikes).await;
    let second = run(scenario, (scenario.setup)(), &strikes).await;
    if by_function(&first.trace) == by_function(&second.trace) {
        println!("replay of seed {seed}: the same {} lines twice", first.trace.len());
        return 0;
    }
    println!(
        "VIOLATION: the replay of seed {seed} differs\nfirst:\n{}\nsecond:\n{}",
        first.trace.join("\n"),
        second.trace.join("\n")
    );
    1
}

/// Returns the lines of each function and of the client, in their order. Lines of concurrent
/// functions may be interleaved differently.
fn by_function(trace: &[String]) -> BTreeMap<String, Vec<&str>> {
    let mut lines: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in trace {
        let who = line.split_whitespace().next().unwrap_or_default().to_owned();
        lines.entry(who).or_default().push(line);
    }
    lines
}

/// Checks that the suite can fail: some run catches each deliberately broken primitive, by the
/// invariant that it breaks.
pub async fn broken_variants_are_caught() -> usize {
    let variants = [
        ("no_owner_token", "duplicate of itself"),
        ("unfenced_write", "completed 2 times"),
        ("publish_outside", "accepted, and lost"),
        ("read_then_write", "rivals"),
    ];
    assert_eq!(variants.map(|(name, _)| name), probe::broken::Broken::NAMES);
    let mut missed = 0;
    for (variant, promise) in variants {
        match first_violation(variant, promise).await {
            Ok(strike) => println!("broken variant {variant}: caught, {strike}"),
            Err(what) => {
                println!("VIOLATION: the broken variant {variant} was not caught: {what}");
                missed += 1;
            }
        }
    }
    missed
}

/// Returns the run that breaks the given invariant. Returns an error if none does, or if another
/// invariant is broken.
async fn first_violation(variant: &str, promise: &str) -> Result<String, String> {
    let judge = |strike: String, violation: String| {
        let first_line = violation.lines().next().unwrap_or_default().to_owned();
        if violation.contains(promise) {
            Ok(format!("{strike}: {first_line}"))
        } else {
            Err(format!("{strike}: {first_line}"))
        }
    };
    for scenario in &scenarios::of_the_probe() {
        let setup = || (scenario.setup)().parameter("Broken", variant);
        let baseline = baseline(scenario, setup()).await;
        if let Some(violation) = baseline.violation {
            return judge(format!("without a fault in \"{}\"", scenario.name), violation);
        }
        let mut runs = futures::stream::iter(strikes(scenario, &baseline.points, true))
            .map(|strike| async move {
                let outcome = run(scenario, setup(), std::slice::from_ref(&strike)).await;
                (strike, outcome)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((strike, outcome)) = runs.next().await {
            if let Some(violation) = outcome.violation {
                return judge(strike.to_string(), violation);
            }
        }
    }
    Err("no run broke an invariant".to_owned())
}

async fn baseline(scenario: &Scenario, setup: Setup) -> Outcome {
    run(scenario, setup, &[]).await
}

/// Besides the kills, the default run strikes one of this many writes, and one of this many reads.
const WRITES: usize = 2;
const READS: usize = 6;

/// Returns the faults of a run. With `every_way` these are all faults at all calls. Otherwise
/// each write gets a kill after it. One in [`WRITES`] writes and one in [`READS`] reads gets one of
/// its other faults, a different one from call to call. The simulator covers the rest.
fn strikes(scenario: &Scenario, points: &[Point], every_way: bool) -> Vec<Strike> {
    let points = points.iter().filter(|point| (scenario.strikes)(point));
    let of = |(nth, point): (usize, &Point)| {
        let fits = |kind: &Kind| kind.fits(&point.operation, scenario.concurrent);
        let (kills, others): (Vec<_>, Vec<_>) =
            Kind::ALL.into_iter().filter(fits).partition(|kind| *kind == Kind::KilledAfter);
        let is_left_out = !nth.is_multiple_of(if kills.is_empty() { READS } else { WRITES });
        let others = match others.len() {
            _ if every_way => others,
            0 => others,
            _ if is_left_out => Vec::new(),
            number => vec![others[nth / WRITES % number]],
        };
        let strike = |kind| Strike { point: point.clone(), kind };
        kills.into_iter().chain(others).map(strike).collect::<Vec<_>>()
    };
    points.enumerate().flat_map(of).collect()
}

/// Returns the scenarios whose calls come in the same order every time, with those calls.
async fn sequential_baselines() -> Vec<(&'static Scenario, Vec<Point>)> {
    let mut found = Vec::new();
    for scenario in scenarios::all().into_iter().filter(|scenario| !scenario.concurrent) {
        let scenario: &'static Scenario = Box::leak(Box::new(scenario));
        let outcome = baseline(scenario, (scenario.setup)()).await;
        found.push((scenario, outcome.points));
    }
    found
}

fn pair(baselines: &[(&'static Scenario, Vec<Point>)], seed: u64) -> (&'static Scenario, Vec<Strike>) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let (scenario, points) = &baselines[dice.usize(..baselines.len())];
    let all = strikes(scenario, points, true);
    let first = dice.usize(..all.len());
    // A different one: the same fault twice is one fault.
    let second = (first + dice.usize(1..all.len())) % all.len();
    (scenario, vec![all[first].clone(), all[second].clone()])
}
