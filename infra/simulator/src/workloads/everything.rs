//! All workloads at once: they share senders, contacts, queues and schedules.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};

use super::{NAMES, Workload, workload};
use crate::play::Setting;

pub struct Everything {
    parts: Vec<Box<dyn Workload>>,
}

impl Default for Everything {
    fn default() -> Self {
        // A slow bot would have no effect on the others but a longer play, and the rows of the
        // others expire during an absence.
        let names = NAMES.iter().filter(|name| ![NAME, "limits", "absences"].contains(name));
        Self { parts: names.filter_map(|name| workload(name)).collect() }
    }
}

const NAME: &str = "everything";

impl Workload for Everything {
    fn name(&self) -> &'static str {
        NAME
    }

    fn functions(&self) -> Vec<&'static str> {
        let mut functions: Vec<_> = self.parts.iter().flat_map(|part| part.functions()).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    fn longest_rest(&self) -> Duration {
        self.parts.iter().map(|part| part.longest_rest()).max().unwrap_or_default()
    }

    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            join_all(self.parts.iter().map(|part| part.run(setting.clone()))).await;
        })
    }

    fn is_at_rest(&self, setting: &Setting) -> bool {
        self.parts.iter().all(|part| part.is_at_rest(setting))
    }

    fn reached(&self, setting: &Setting) -> Vec<String> {
        self.parts.iter().flat_map(|part| part.reached(setting)).collect()
    }

    fn must_reach(&self) -> &'static [&'static str] {
        &["a message is SENT", "an offer is sent", "a reply is SENT", "an entry is SENT"]
    }

    fn audit(&self, setting: &Setting) -> Vec<String> {
        let violations = |part: &dyn Workload| {
            let name = part.name();
            part.audit(setting).into_iter().map(move |violation| format!("{name}: {violation}")).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(|part| violations(&**part)).collect()
    }
}
