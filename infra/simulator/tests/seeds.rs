//! Plays a range of seeds. The same seeds every time, so that a failure is a failure for everyone;
//! `cargo run -- simulate --from N` plays others.

use umavez_simulator::play::play;
use umavez_simulator::profile::Profile;
use umavez_simulator::runner::{run, threads};
use umavez_simulator::workloads::{NAMES, workload};

/// The workloads, how many seeds of each are played, and what they must reach, so that the audit has
/// something to look at.
const PLAYS: &[(&str, u64, &[&str])] = &[
    (
        "outbound",
        1_000,
        &[
            "a message is SENT",
            "a message is UNKNOWN",
            "a message is CANCELED",
            "a message is DEDUPED",
            "a message is EXPIRED",
            "a message is FAILED",
            "a resend is accepted",
            "a message is settled",
            "an intent is released",
            "an address is suppressed",
        ],
    ),
    (
        "downsells",
        700,
        &[
            "an offer is sent",
            "an offer is UNKNOWN",
            "an offer is canceled",
            "an offer is skipped",
            "an offer is in flight",
            "a charge is closed",
        ],
    ),
    (
        "conversations",
        600,
        &[
            "a reply is SENT",
            "a reply is UNKNOWN",
            "a reply is CANCELED",
            "a reply has parts",
            "a batch is answered by responder",
            "a batch is answered by callback",
            "a conversation is held",
            "a conversation is idle",
            "a conversation needs a person",
            "a person answers",
        ],
    ),
    (
        "mailings",
        700,
        &[
            "a mailing is COMPLETED",
            "a mailing is CANCELED",
            "an entry is SENT",
            "an entry is UNKNOWN",
            "an entry is FAILED",
            "a retry is ordered",
        ],
    ),
    (
        "ingest",
        700,
        &[
            "an item is inserted",
            "an item is updated",
            "an item is skipped",
            "a backfill is COMPLETED",
            "the mode is switched",
        ],
    ),
    (
        "windows",
        600,
        &[
            "a message is SENT",
            "a message is DEDUPED",
            "a message is CANCELED",
            "a message is UNKNOWN",
            "a message is sent late",
            "a check may send",
            "a cancel is answered",
        ],
    ),
    ("limits", 200, &["a message is SENT", "a bot is parked", "3 calls begin within a second"]),
    ("everything", 60, &["a message is SENT", "an offer is sent", "a reply is SENT", "an entry is SENT"]),
];
/// How many seeds are played twice.
const TWICE: u64 = 5;

#[test]
fn no_seed_violates_an_invariant() {
    assert_eq!(PLAYS.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), NAMES);
    for (name, seeds, wanted) in PLAYS {
        let (totals, failed) = run(0..*seeds, name, &Profile::rough(), threads(), |_, _| {});
        println!("{name}: {totals}");
        assert_eq!(failed, None, "replay it with: cargo run -- simulate --workload {name} --seed N --trace");
        for reached in *wanted {
            assert!(totals.reached.contains_key(*reached), "no play reached: {reached}");
        }
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
fn without_faults_nothing_goes_wrong() {
    for name in NAMES {
        let workload = workload(name).expect("a workload");
        let outcome = play(1, &*workload, Profile::calm());
        assert_eq!(outcome.violations, Vec::<String>::new());
        assert!(outcome.trace.faults.is_empty());
    }
}

/// Broken variants of the product, and a number of seeds within which each is caught.
const BROKEN: &[(&str, &str, u64)] = &[
    ("outbound", "outbound-api: Put MESSAGE MESSAGE if attribute_not_exists(pk)", 50),
    ("outbound", "outbound-sender: Update MESSAGE MESSAGE if version = ?", 500),
    ("outbound", "in parts: outbound-api: Put MESSAGE MESSAGE + Update CLIENT INTENT", 100),
    ("outbound", "in no index: outbound-api: Put MESSAGE MESSAGE", 100),
    ("outbound", "tried again: outbound-sender: Update MESSAGE MESSAGE", 200),
    ("downsells", "outbound-sender: Update CONTACT OFFER if version = ?", 300),
];

#[test]
fn a_broken_variant_is_caught() {
    for (name, variant, seeds) in BROKEN {
        let profile = Profile { broken: Some((*variant).to_owned()), ..Profile::rough() };
        let (totals, failed) = run(0..*seeds, name, &profile, threads(), |_, _| {});
        assert!(failed.is_some(), "{variant}: {totals}");
        println!("{variant}: caught after {} seeds", totals.seeds);
    }
}
