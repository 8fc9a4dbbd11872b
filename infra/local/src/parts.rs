//! The components that the front, the event source mappings and the schedules share.

use crate::activity::Activity;
use crate::clock::Clock;
use crate::dynamo::Dynamo;
use crate::faults::Faults;
use crate::functions::Functions;
use crate::queues::Queues;

#[derive(Clone)]
pub struct Parts {
    pub functions: Functions,
    pub dynamo: Dynamo,
    pub queues: Queues,
    pub clock: Clock,
    pub activity: Activity,
    pub faults: Faults,
}
