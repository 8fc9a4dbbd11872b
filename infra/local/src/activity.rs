//! "Something moved": a number that grows with every write, message and invocation, so that whoever waits for work or
//! for rest can sleep until there is a reason to look.

use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub struct Activity(watch::Sender<u64>);

impl Activity {
    pub fn moved(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// A view whose `changed` returns as soon as anything has moved since now.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
