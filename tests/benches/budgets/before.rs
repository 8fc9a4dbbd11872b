//! The consumption of each operation when `before.tsv` was recorded, to compare with the current
//! run. `cargo bench --bench budgets -- record` records it again.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use umavez_local::calls::Call;

use crate::prices;

/// The argument that records the current run.
pub const ARGUMENT: &str = "record";

/// Operations over thousands of mails. How often senders poll for work depends on timing, and
/// differs by a few percent between runs of the same code.
const TIMED: &[&str] = &[", at ", ", as fast as it goes"];
const NOISE: f64 = 1.1;

static BEFORE: LazyLock<BTreeMap<&'static str, Took>> = LazyLock::new(|| {
    let lines = include_str!("before.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parse(line).unwrap_or_else(|| panic!("before.tsv: {line}"))).collect()
});
static NOW: Mutex<Vec<(String, Took)>> = Mutex::new(Vec::new());

/// Requests, write units and read units of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    pub requests: f64,
    pub write: f64,
    pub read: f64,
}

impl Took {
    pub fn of(calls: &[Call]) -> Self {
        Self { requests: calls.len() as f64, write: prices::write_units(calls), read: prices::read_units(calls) }
    }

    /// Returns the share of one of `all`.
    pub fn of_one(self, all: usize) -> Self {
        let share = |sum: f64| (sum / all as f64 * 1_000.0).round() / 1_000.0;
        Self { requests: share(self.requests), write: share(self.write), read: share(self.read) }
    }

    /// Returns whether one of the numbers is larger than before, by more than the noise of the
    /// operation.
    fn is_more_than(&self, name: &str, before: &Self) -> bool {
        let noise = if TIMED.iter().any(|part| name.contains(part)) { NOISE } else { 1.0 };
        let is_more = |now: f64, before: f64| now > before * noise;
        is_more(self.requests, before.requests) || is_more(self.write, before.write) || is_more(self.read, before.read)
    }
}

fn parse(line: &'static str) -> Option<(&'static str, Took)> {
    let mut parts = line.split('\t');
    let name = parts.next()?;
    let mut number = || parts.next()?.parse().ok();
    Some((name, Took { requests: number()?, write: number()?, read: number()? }))
}

/// The title of the column that [`column`] fills.
pub const TITLE: &str = "before: requests, write u., read u.";

/// Records the consumption of an operation, and returns the column with the earlier one.
pub fn column(name: &str, now: Took) -> String {
    NOW.lock().expect("no panic here").push((name.to_owned(), now));
    match BEFORE.get(name) {
        Some(before) => {
            let Took { requests, write, read } = before;
            let mark = if now.is_more_than(name, before) { "  MORE NOW" } else { "" };
            format!("   {requests:>8} {write:>8} {read:>8}{mark}")
        }
        None => "   not measured before".to_owned(),
    }
}

/// Prints the operations that consume more than before.
pub fn compare() {
    let now = NOW.lock().expect("no panic here");
    let known: Vec<_> = now.iter().filter_map(|(name, now)| Some((name, now, BEFORE.get(name.as_str())?))).collect();
    let more: Vec<_> = known.iter().filter(|(name, now, before)| now.is_more_than(name, before)).collect();
    let less = known.iter().filter(|(name, now, before)| before.is_more_than(name, now)).count();
    println!("\n{} operations were measured before: {less} take less now, {} take more", known.len(), more.len());
    for (name, now, before) in more {
        println!("{name}: before {before:?}, now {now:?}");
    }
}

/// Records this run as the baseline.
pub fn record() {
    let mut text = "# operation\trequests\twrite units\tread units\n".to_owned();
    for (name, Took { requests, write, read }) in NOW.lock().expect("no panic here").iter() {
        text.push_str(&format!("{name}\t{requests}\t{write}\t{read}\n"));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/budgets/before.tsv");
    std::fs::write(path, text).expect("written");
}
