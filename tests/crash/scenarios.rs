//! All scenarios. A capability adds its own here.

mod conversations;
mod downsells;
mod guards;
mod ingest;
mod intents;
mod jobs;
mod mailings;
mod outbound;

use crate::scenario::Scenario;

pub fn all() -> Vec<Scenario> {
    let mut all = intents::scenarios();
    all.extend(guards::scenarios());
    all.extend(jobs::scenarios());
    all.extend(outbound::scenarios());
    all.extend(ingest::scenarios());
    all.extend(mailings::scenarios());
    all.extend(conversations::scenarios());
    all.extend(downsells::scenarios());
    all
}

pub use jobs::scenarios as of_the_probe;
