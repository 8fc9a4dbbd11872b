//! Plays a range of seeds. The same seeds every time, so that a failure is a failure for everyone;
//! `cargo run -- simulate --from N` plays others.

use umavez_simulator::play::play;
use umavez_simulator::profile::Profile;
use umavez_simulator::runner::{run, threads};
use umavez_simulator::workloads::{NAMES, workload};

/// How many seeds of each workload are played.
const SEEDS: u64 = 2_000;
/// How many seeds are played twice.
const TWICE: u64 = 10;

#[test]
fn no_seed_violates_an_invariant() {
    for name in NAMES {
        let (totals, failed) = run(0..SEEDS, name, &Profile::rough(), threads(), |_, _| {});
        println!("{name}: {totals}");
        assert_eq!(failed, None, "replay it with: cargo run -- simulate --workload {name} --seed N --trace");
    }
}

#[test]
fn a_seed_is_the_same_play_every_time() {
    for name in NAMES {
        for seed in 0..TWICE {
            let traces = [(); 2].map(|()| {
                let workload = workload(name).expect("a workload");
                play(seed, &*workload, Profile::rough()).trace
            });
            assert_eq!(traces[0].lines, traces[1].lines, "{name}, seed {seed}");
        }
    }
}

#[test]
fn without_faults_every_message_is_sent_in_a_minute() {
    for name in NAMES {
        let workload = workload(name).expect("a workload");
        let outcome = play(1, &*workload, Profile::calm());
        assert_eq!(outcome.violations, Vec::<String>::new());
        assert!(outcome.trace.faults.is_empty());
    }
}

/// Conditional writes of the product, and a number of seeds within which each is noticed if its
/// condition is missing.
const BROKEN: &[(&str, &str, u64)] = &[
    ("outbound", "outbound-api: Put MESSAGE MESSAGE if attribute_not_exists(pk)", 20),
    ("outbound", "outbound-api: Update MESSAGE MESSAGE if version = ?", 500),
];

#[test]
fn a_write_without_its_condition_is_noticed() {
    for (name, sentence, seeds) in BROKEN {
        let profile = Profile { broken: Some((*sentence).to_owned()), ..Profile::rough() };
        let (totals, failed) = run(0..*seeds, name, &profile, threads(), |_, _| {});
        assert!(failed.is_some(), "{sentence}: {totals}");
        println!("{sentence}: noticed after {} seeds", totals.seeds);
    }
}
