//! What each crate with mutants gets: which mutant is on, and which ones a run has reached.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{LazyLock, Mutex};

/// The number of the mutant that is on, or 0.
static CHOSEN: LazyLock<u32> = LazyLock::new(|| {
    std::env::var("UMAVEZ_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
});

/// Where the mutants that a run reaches are listed.
static REACHED: LazyLock<Option<Mutex<(std::fs::File, BTreeSet<u32>)>>> = LazyLock::new(|| {
    let path = std::env::var_os("UMAVEZ_MUTANTS_REACHED")?;
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the list can be written");
    Some(Mutex::new((file, BTreeSet::new())))
});

pub fn on(number: u32) -> bool {
    if let Some(reached) = &*REACHED {
        let mut reached = reached.lock().expect("no thread panics with the lock");
        if reached.1.insert(number) {
            writeln!(reached.0, "{number}").expect("the list can be written");
        }
    }
    number == *CHOSEN
}
