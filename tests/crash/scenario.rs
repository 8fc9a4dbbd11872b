//! A scenario: the actions of clients, and the invariants at the end.

use std::future::Future;
use std::pin::Pin;

use umavez_local::faults::Action;
use umavez_tests::Setup;

use crate::run::{Point, Run};

pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub struct Scenario {
    pub name: &'static str,
    pub setup: fn() -> Setup,
    pub play: for<'a> fn(&'a Run) -> Work<'a, ()>,
    /// Panics if an invariant is broken.
    pub audit: for<'a> fn(&'a Run) -> Work<'a, ()>,
    /// Whether clients send requests concurrently, so that the order of calls differs between runs.
    pub concurrent: bool,
    /// Whether other functions than the called one have work to do. If so, time passes and
    /// schedules tick.
    pub swept: bool,
    /// Selects the calls that faults hit. A scenario leaves out calls that another scenario covers.
    pub strikes: fn(&Point) -> bool,
}

/// The faults that can hit a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    KilledBefore,
    KilledAfter,
    ReplyLost,
    ErrorAfterApply,
    Throttled,
    /// The first half of a batch is applied, the rest is throttled.
    Partial,
    Conflict,
    /// The call is delayed while others go on.
    Stalled,
}

/// Calls that change nothing.
pub const LOOKS: [&str; 5] = ["GetItem", "Query", "BatchGetItem", "GetSecretValue", "GetObject"];

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::KilledBefore,
        Self::KilledAfter,
        Self::ReplyLost,
        Self::ErrorAfterApply,
        Self::Throttled,
        Self::Partial,
        Self::Conflict,
        Self::Stalled,
    ];

    pub fn fits(self, operation: &str, concurrent: bool) -> bool {
        let look = LOOKS.contains(&operation);
        match self {
            // A read changes nothing: it does not matter whether the function dies before or after
            // it, and a lost answer is read again.
            Self::KilledAfter | Self::ReplyLost | Self::ErrorAfterApply if look => false,
            Self::Conflict => operation == "TransactWriteItems",
            Self::Partial => operation == "BatchExecuteStatement",
            Self::Stalled => concurrent,
            _ => true,
        }
    }

    pub fn action(self) -> Action {
        match self {
            Self::KilledBefore => Action::KillBefore,
            Self::KilledAfter => Action::KillAfter,
            Self::ReplyLost => Action::DropReply,
            Self::ErrorAfterApply => Action::ErrorAfter,
            Self::Throttled => Action::Throttle,
            Self::Partial => Action::Partial,
            Self::Conflict => Action::Conflict,
            Self::Stalled => Action::DelayBefore,
        }
    }
}
