//! The life of one thing on its way to a provider: a message, an offer or a mailing's recipient.

mod attempt;
mod outcome;

pub use attempt::{Again, Cancel, Next, Progress, State, UnknownPolicy, Verdict, cancel, next, read_policies, settle};
pub use outcome::*;
