//! What a row waits for, and the work that it enqueues.
//!
//! The row is the outbox: the write that changes its state also sets `emit`, which the relay
//! publishes. A row that waits for its time, for a worker or for a person is in the index by time.
//! The write that makes it wait also puts it there. So nothing is lost between two writes, and
//! recovery finds work that no worker took on.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::absent::is_default;
use crate::change::Fence;
use crate::keys::{self, Wake};
use crate::outbox::{Emit, MAX_DELAY_SECONDS};
use crate::time::{SECOND_MS, Timestamp};

/// A sweep takes rows out of the index that are due within this time. It is the longest delay of a
/// queue, less one tick of the schedule.
pub const LOOK_AHEAD_MS: i64 = (MAX_DELAY_SECONDS - 60) * SECOND_MS;

/// If no worker takes on the work for this long, recovery enqueues it again. The time grows with
/// each recovery.
const CHECK_AFTER_MS: i64 = 10 * 60 * SECOND_MS;

/// Returns how long after its `recoveries`-th recovery work is checked again.
pub const fn check_after_ms(recoveries: u32) -> i64 {
    CHECK_AFTER_MS << if recoveries < 6 { recoveries } else { 6 }
}

/// The scheduling part of a row. Every row that a queue, a sweep or recovery hands on embeds it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// The relay publishes it when its number changes. It is absent while a worker has the row,
    /// because rows without one do not invoke the relay.
    pub emit: Option<Emit>,
    /// What a sweep emits when its time has come.
    pub later: Option<Emit>,
    /// The number of the last emission, made or prepared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub emits: u64,
    /// The keys of the index by time: what the row waits for, and since or until when.
    pub wake: Option<String>,
    pub wake_at: Option<String>,
    /// How often recovery had to enqueue it again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recoveries: u32,
}

impl Work {
    /// Enqueues the work, to be delivered no earlier than `at`. Until a worker takes it on,
    /// recovery checks on it.
    pub fn hand_over(&mut self, id: &str, at: Option<Timestamp>, now: Timestamp, emit: impl FnOnce(u64) -> Emit) {
        self.emits += 1;
        self.emit = Some(emit(self.emits));
        let from = at.map_or(now, |at| at.max(now));
        self.wait_until(Wake::Check, id, from.plus_ms(check_after_ms(self.recoveries)));
    }

    /// Enqueues the work now if a queue can delay it until `at`. Otherwise puts it into the due
    /// index, and a sweep emits it when its time has come.
    pub fn schedule(
        &mut self,
        id: &str,
        at: Option<Timestamp>,
        now: Timestamp,
        emit: impl FnOnce(u64, Option<i64>) -> Emit,
    ) {
        let at = at.filter(|at| *at > now);
        let not_before = at.map(Timestamp::millis);
        match at {
            Some(due_at) if due_at > now.plus_ms(LOOK_AHEAD_MS) => {
                self.emits += 1;
                (self.emit, self.later) = (None, Some(emit(self.emits, not_before)));
                self.wait_until(Wake::Due, id, due_at);
            }
            at => {
                self.later = None;
                self.hand_over(id, at, now, |seq| emit(seq, not_before));
            }
        }
    }

    /// Waits for something that is checked at `at`. This leaves the emission as it is.
    pub fn wait_until(&mut self, wake: Wake, id: &str, at: Timestamp) {
        self.wake = Some(keys::wake(wake, keys::wake_shard(id)));
        self.wake_at = Some(keys::at_time(at, id));
    }

    /// Records that a worker has the work until `deadline`: nothing is emitted, and recovery checks
    /// on it then.
    pub fn taken_on(&mut self, id: &str, deadline: Timestamp) {
        self.emit = None;
        self.wait_until(Wake::Check, id, deadline);
    }

    /// Ends the wait: neither a sweep nor recovery checks on the row.
    pub fn rest(&mut self) {
        (self.emit, self.later, self.wake, self.wake_at) = (None, None, None, None);
    }

    /// Counts a recovery, so that the next check comes later than the last.
    pub fn recovered(&mut self) {
        self.recoveries += 1;
    }

    /// The work has not been enqueued since the row was read.
    pub fn fence(&self) -> Fence {
        #[derive(Serialize)]
        struct HandedOver {
            emits: Option<u64>,
        }
        Fence::same(&HandedOver { emits: Some(self.emits).filter(|emits| *emits > 0) })
    }

    /// Returns whether the row still waits at the place where an index found it. An index may lag
    /// behind its table.
    pub fn waits_at(&self, place: &str) -> bool {
        self.wake_at.as_deref() == Some(place)
    }

    /// Returns when the row is checked, if it waits for `wake`.
    pub fn wakes_at(&self, wake: Wake, id: &str) -> Option<Timestamp> {
        let waits_for_it = self.wake.as_deref() == Some(keys::wake(wake, keys::wake_shard(id)).as_str());
        self.wake_at.as_deref().filter(|_| waits_for_it).and_then(keys::time_of)
    }

    /// Postpones the check by recovery, because the queue hides the work until `until`. `None` if
    /// the check already comes late enough, or if the row waits for something else.
    pub fn postponed(&self, id: &str, until: Timestamp, now: Timestamp) -> Option<Self> {
        let check_at = self.wakes_at(Wake::Check, id)?;
        let is_soon = check_at.millis() <= until.millis() + CHECK_AFTER_MS / 2;
        let mut next = self.clone();
        next.wait_until(Wake::Check, id, until.max(now).plus_ms(CHECK_AFTER_MS));
        is_soon.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::delay_seconds;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    fn emit(seq: u64) -> Emit {
        Emit { seq, queue: "work".into(), not_before: None, id: format!("a/{seq}"), body: "{}".into() }
    }

    fn handed_over() -> Work {
        let mut work = Work::default();
        work.hand_over("a", None, NOW, emit);
        work
    }

    #[test]
    fn recovery_checks_enqueued_work_later_after_each_recovery() {
        let mut work = handed_over();
        assert_eq!((work.emits, work.emit.as_ref().map(|emit| emit.seq)), (1, Some(1)));
        assert_eq!(work.wakes_at(Wake::Check, "a"), Some(NOW.plus_ms(600_000)));
        work.recovered();
        work.hand_over("a", None, NOW, emit);
        assert_eq!((work.emits, work.wakes_at(Wake::Check, "a")), (2, Some(NOW.plus_ms(1_200_000))));
        assert_eq!(check_after_ms(99), check_after_ms(6));
    }

    #[test]
    fn claimed_work_emits_nothing_and_is_checked_at_its_deadline() {
        let mut work = handed_over();
        work.taken_on("a", NOW.plus_ms(30_000));
        assert_eq!((&work.emit, work.wakes_at(Wake::Check, "a")), (&None, Some(NOW.plus_ms(30_000))));
        work.rest();
        assert_eq!((work.wake, work.wake_at, work.emits), (None, None, 1));
    }

    #[test]
    fn only_a_check_that_would_come_too_soon_is_postponed() {
        let work = handed_over();
        let until = NOW.plus_ms(500_000);
        let postponed = work.postponed("a", until, NOW).expect("the check would come too soon");
        assert_eq!(postponed.wakes_at(Wake::Check, "a"), Some(until.plus_ms(600_000)));
        assert_eq!(postponed.postponed("a", until, NOW), None);
        let mut due = work;
        due.wait_until(Wake::Due, "a", NOW);
        assert_eq!(due.postponed("a", until, NOW), None, "a sweep enqueues it");
    }

    #[test]
    fn work_due_soon_is_emitted_and_later_work_is_indexed() {
        let scheduled = |at| {
            let mut work = Work::default();
            work.schedule("a", at, NOW, |seq, not_before| Emit { not_before, ..emit(seq) });
            work
        };
        let emitted = |not_before| Some(Emit { not_before, ..emit(1) });
        assert_eq!(scheduled(None).emit, emitted(None));
        assert_eq!(scheduled(Some(NOW.plus_ms(-1))).emit, emitted(None));
        let soon = NOW.plus_ms(LOOK_AHEAD_MS);
        assert_eq!(scheduled(Some(soon)).emit, emitted(Some(soon.millis())));
        assert!(delay_seconds(Some(soon.millis()), NOW) < MAX_DELAY_SECONDS, "a queue holds it to its time");
        let later = soon.plus_ms(1);
        let indexed = scheduled(Some(later));
        assert_eq!((&indexed.emit, &indexed.later), (&None, &emitted(Some(later.millis()))));
        assert_eq!(indexed.wakes_at(Wake::Due, "a"), Some(later));
    }
}
