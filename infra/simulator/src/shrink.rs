//! Makes a failing play smaller: leaves out faults while it still fails.

use crate::play::{Outcome, play};
use crate::profile::Profile;
use crate::workloads::workload;

/// Returns the profile with as many faults left out as possible, and its play.
pub fn shrink(seed: u64, name: &str, profile: Profile, failed: Outcome) -> (Profile, Outcome) {
    let (mut profile, mut failed) = (profile, failed);
    let mut size = failed.trace.faults.len();
    // Halves first, then single faults.
    while size > 0 {
        let faults: Vec<_> = failed.trace.faults.iter().cloned().collect();
        let mut is_smaller = false;
        for part in faults.chunks(size) {
            let mut fewer = profile.clone();
            fewer.left_out.extend(part.iter().cloned());
            let Some(workload) = workload(name) else { return (profile, failed) };
            let outcome = play(seed, &*workload, fewer.clone());
            if !outcome.violations.is_empty() {
                (profile, failed) = (fewer, outcome);
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            size /= 2;
        } else {
            size = size.min(failed.trace.faults.len());
        }
    }
    (profile, failed)
}
