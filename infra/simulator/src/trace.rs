//! What happened in a play, line by line.

use std::collections::{BTreeMap, BTreeSet};

/// A play's history. Times are milliseconds since the play began.
#[derive(Debug, Default)]
pub struct Trace {
    pub lines: Vec<String>,
    /// The faults that struck, by name.
    pub faults: BTreeSet<String>,
    /// How often each decision was made, to number them.
    decisions: BTreeMap<String, u64>,
}

impl Trace {
    pub fn note(&mut self, at_ms: u64, line: &str) {
        self.lines.push(format!("{:>10.3} {line}", at_ms as f64 / 1_000.0));
    }

    /// Returns the name of the next decision of this kind.
    pub fn decision(&mut self, kind: &str) -> String {
        let number = self.decisions.entry(kind.to_owned()).or_default();
        *number += 1;
        format!("{kind} #{number}")
    }

    /// Returns a number that two equal histories share.
    pub fn hash(&self) -> u64 {
        let bytes = self.lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}
