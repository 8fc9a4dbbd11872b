//! "Something moved": a number that grows with every write, message and invocation, so that whoever
//! waits for work or for rest can sleep until there is a reason to look. And the calls that are
//! being carried out, which nobody may be waiting for any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub struct Activity {
    moves: watch::Sender<u64>,
    under_way: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    receiving: Arc<AtomicUsize>,
}

impl Activity {
    pub fn moved(&self) {
        self.moves.send_modify(|count| *count += 1);
    }

    /// A view whose `changed` returns as soon as anything has moved since now.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Something is under way until the guard is dropped.
    pub fn begin(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// Whoever takes things in is to stop doing so.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.moved();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// How many take things in, for [`Self::stop`] to take effect.
    pub fn receiving(&self) -> usize {
        self.receiving.load(Ordering::SeqCst)
    }

    pub fn receiver_began(&self) {
        self.receiving.fetch_add(1, Ordering::SeqCst);
    }

    pub fn receiver_ended(&self) {
        self.receiving.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
pub struct UnderWay(Activity);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.moved();
    }
}
