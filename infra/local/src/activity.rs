//! A counter that grows with every write, message and invocation, so that tasks that wait for work
//! or for the stack to become idle can sleep until something changes. Also counts the calls in
//! progress, including those whose caller no longer waits for the response.

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

    /// Returns a receiver whose `changed` returns as soon as there is any activity from now on.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Counts a call as in progress until the guard is dropped.
    pub fn begin(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// Asks all receivers to stop receiving.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.moved();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Returns how many receivers are still running. [`Self::stop`] has taken effect when there are
    /// none.
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
