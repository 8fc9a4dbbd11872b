//! The source times that went into an entry, and the rule for which input is newer.
//!
//! A source whose clock is ahead must not make all later inputs stale, so a time ahead of our clock
//! counts as its time of arrival. That time is known only at the first delivery: if the same input
//! is redelivered later, it would count as newer than the input that has replaced it since. The
//! entry therefore remembers times that were ahead until its stored time is later than they are,
//! and a remembered time is never newer.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// Number of times ahead of our clock that an entry remembers.
const REMEMBERED: usize = 32;

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTimes {
    /// The latest time that went into the entry, regardless of which columns an update was allowed
    /// to change. It is never ahead of our clock.
    pub source_time: Option<Timestamp>,
    /// The same time as the source stated it.
    source_time_said: Option<Timestamp>,
    /// Times that were ahead of our clock on arrival and are still later than `source_time`, in
    /// order of arrival.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    times_ahead: Vec<Timestamp>,
    /// The latest of the times that `times_ahead` had no room for.
    times_forgotten: Option<Timestamp>,
}

impl SourceTimes {
    /// Returns the times of a new entry.
    pub fn of(said: Option<Timestamp>, now: Timestamp) -> Self {
        Self::default().after(said, now).unwrap_or_default()
    }

    /// Returns the times after an input with the time `said`. `None` if the input is stale: it is
    /// older than the stored time, or it was merged before and has been replaced since. An input
    /// without a time is never stale.
    pub fn after(&self, said: Option<Timestamp>, now: Timestamp) -> Option<Self> {
        let Some(said) = said else { return Some(self.clone()) };
        if self.source_time_said == Some(said) {
            return Some(self.clone());
        }
        let is_ahead = said > now;
        let is_old = self.source_time.is_some_and(|stored| said <= stored);
        let was_forgotten = is_ahead && self.times_forgotten.is_some_and(|forgotten| said <= forgotten);
        if is_old || was_forgotten || self.times_ahead.contains(&said) {
            return None;
        }
        let counted = said.min(now);
        let mut next = Self {
            source_time: Some(self.source_time.map_or(counted, |stored| stored.max(counted))),
            source_time_said: Some(said),
            ..self.clone()
        };
        if is_ahead {
            next.times_ahead.push(said);
        }
        next.forget();
        Some(next)
    }

    /// Drops times that are not needed because the stored time is later, and the oldest times if
    /// there are too many.
    fn forget(&mut self) {
        let stored = self.source_time;
        self.times_ahead.retain(|ahead| Some(*ahead) > stored);
        while self.times_ahead.len() > REMEMBERED {
            let oldest = self.times_ahead.remove(0);
            self.times_forgotten = self.times_forgotten.max(Some(oldest));
        }
        self.times_forgotten = self.times_forgotten.filter(|forgotten| Some(*forgotten) > stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_seconds(1_751_342_400 + minutes * 60)
    }

    /// Applies an input, and returns whether it replaced the stored one.
    fn takes(times: &mut SourceTimes, said: i64, now: i64) -> bool {
        let before = times.clone();
        match times.after(Some(at(said)), at(now)) {
            Some(next) => *times = next,
            None => return false,
        }
        *times != before
    }

    #[test]
    fn a_source_time_in_the_future_counts_as_the_time_of_arrival() {
        let mut times = SourceTimes::of(Some(at(60)), at(0));
        assert_eq!(times.source_time, Some(at(0)));
        assert!(takes(&mut times, 10, 10), "a later input with a correct time is newer");
        assert_eq!(times.source_time, Some(at(10)));
    }

    #[test]
    fn a_replaced_source_time_is_never_newer_again() {
        let mut times = SourceTimes::of(Some(at(60)), at(0));
        assert!(takes(&mut times, 10, 10));
        for now in [20, 70, 700] {
            assert_eq!(times.after(Some(at(60)), at(now)), None, "minute {now}");
        }
        assert!(takes(&mut times, 90, 100));
        assert_eq!(times.times_ahead, [], "the stored time is newer");
        assert_eq!(times.after(Some(at(60)), at(110)), None);
    }

    #[test]
    fn a_repeated_source_time_changes_nothing() {
        let times = SourceTimes::of(Some(at(60)), at(0));
        for now in [5, 60, 600] {
            assert_eq!(times.after(Some(at(60)), at(now)), Some(times.clone()), "minute {now}");
        }
    }

    #[test]
    fn two_sources_whose_clocks_are_ahead_keep_the_order_of_arrival() {
        let mut times = SourceTimes::of(Some(at(120)), at(0));
        assert!(takes(&mut times, 60, 1), "it arrived later, although its own time is earlier");
        assert_eq!(times.after(Some(at(120)), at(2)), None);
        assert!(takes(&mut times, 121, 3));
        assert_eq!(times.after(Some(at(60)), at(4)), None);
    }

    #[test]
    fn our_own_clock_moves_no_time_back_if_it_is_behind() {
        let mut times = SourceTimes::of(Some(at(10)), at(10));
        assert!(takes(&mut times, 60, 5));
        assert_eq!(times.source_time, Some(at(10)));
        assert_eq!(times.after(Some(at(9)), at(11)), None);
    }

    #[test]
    fn remembered_times_are_limited_and_an_input_with_a_correct_time_is_still_newer() {
        let mut times = SourceTimes::default();
        for minute in 0..100 {
            assert!(takes(&mut times, 100_000 + minute, minute));
        }
        assert_eq!(times.times_ahead.len(), REMEMBERED);
        for minute in 0..100 {
            let again = times.after(Some(at(100_000 + minute)), at(200));
            assert_eq!(again.is_some(), minute == 99, "minute {minute}: only the stored time is known");
        }
        assert!(takes(&mut times, 201, 202), "an input with a correct time is newer");
        assert!(takes(&mut times, 100_100, 203), "a new input of the source that is ahead is newer too");
    }

    #[test]
    fn a_source_time_that_was_seen_before_changes_nothing() {
        let mut dice = fastrand::Rng::with_seed(41);
        for round in 0..5_000 {
            let mut times = SourceTimes::default();
            let (mut now, mut seen) = (0, Vec::new());
            for _ in 0..dice.usize(1..REMEMBERED) {
                now += dice.i64(0..20);
                let said = (now + dice.i64(-30..60)).max(0);
                times = times.after(Some(at(said)), at(now)).unwrap_or(times);
                seen.push(said);
            }
            for _ in 0..100 {
                now += dice.i64(0..10);
                let said = seen[dice.usize(0..seen.len())];
                let again = times.after(Some(at(said)), at(now));
                assert!(again.is_none_or(|again| again == times), "round {round}: {said} again at {now} of {seen:?}");
            }
        }
    }
}
