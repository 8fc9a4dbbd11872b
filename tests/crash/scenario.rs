//! A scenario: what clients do, and what must hold when everything has come to rest.

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
    /// Panics when a promise is broken.
    pub audit: for<'a> fn(&'a Run) -> Work<'a, ()>,
    /// Clients that ask at the same time: the order of calls is not the same in every run.
    pub concurrent: bool,
    /// Whether anything is left to others than the function that was asked: then time passes and
    /// schedules tick.
    pub swept: bool,
    /// The calls that faults strike. A scenario leaves out what another one strikes.
    pub strikes: fn(&Point) -> bool,
}

/// The ways in which a call can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    KilledBefore,
    KilledAfter,
    ReplyLost,
    ErrorAfterApply,
    Throttled,
    /// The first half of a batch is done, and the rest throttled.
    Partial,
    Conflict,
    /// Held up while others go on.
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
            // A look changes nothing: died before it or after, it is the same; and so is any answer
            // that is asked for again.
            Self::KilledAfter | Self::ReplyLost | Self::ErrorAfterApply if look => false,
            Self::Conflict => operation == "TransactWriteItems",
            Self::Partial => operation == "BatchExecuteStatement",
            Self::Stalled => concurrent,
            _ => true,
        }
    }

    /// The kind that comes to the same for the caller: a write that it does not know of, or one
    /// that was not made.
    pub fn like(self) -> Option<Self> {
        match self {
            Self::ReplyLost => Some(Self::ErrorAfterApply),
            Self::ErrorAfterApply => Some(Self::ReplyLost),
            Self::KilledBefore => Some(Self::Throttled),
            Self::Throttled => Some(Self::KilledBefore),
            _ => None,
        }
    }

    /// Of two that are alike, the one of the even turns.
    pub fn is_first(self) -> bool {
        matches!(self, Self::ReplyLost | Self::KilledBefore)
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
