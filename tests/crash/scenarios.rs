//! All scenarios. A capability adds its own here.

mod intents;
mod jobs;

use crate::scenario::Scenario;

pub fn all() -> Vec<Scenario> {
    let mut all = intents::scenarios();
    all.extend(jobs::scenarios());
    all
}

pub use jobs::scenarios as of_the_probe;
