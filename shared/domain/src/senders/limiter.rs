//! The rate limit of a bot, a chat or a group: a sequence of slots.
//!
//! A bucket stores when its next slot is free (GCRA's theoretical arrival time). A grant is a slot,
//! now or in the near future, and the sender does not call before it. So a second never has more
//! grants than slots. (A call follows its slot by the time that the writes before it take.) How far
//! ahead a message may reserve depends on its priority. Higher priorities may reserve further ahead
//! than lower ones, so lower priorities leave them room. The longer a message of a lower priority
//! waits, the further ahead it may reserve, which bounds its wait.

use serde::Deserialize;

use crate::queue::Priority;
use crate::time::Timestamp;

/// The interval between slots, in microseconds: thirty slots per second are not a whole number of
/// milliseconds apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub interval_us: i64,
}

impl Limit {
    /// Computes the interval for `count` slots per window. It is rounded up, so that the limit is
    /// never exceeded.
    pub const fn per(count: i64, window_ms: i64) -> Self {
        Self { interval_us: (window_ms * 1_000 + count - 1) / count }
    }

    /// Returns how far ahead of now the next slot of a bucket can be. A grant reaches a second or
    /// two ahead and takes a few slots, and clocks differ by less than a minute. If the slot is
    /// further ahead, a sender with a wrong clock took it.
    pub const fn furthest_us(self) -> i64 {
        self.interval_us.saturating_mul(2).saturating_add(60_000_000)
    }

    pub const BOT: Self = Self::per(30, 1_000);
    pub const CHAT: Self = Self::per(1, 1_000);
    pub const GROUP: Self = Self::per(20, 60_000);
}

/// How far ahead a new message may reserve a slot of its sender, by priority.
const START_REACH_MS: i64 = 1_500;
const SHOT_REACH_MS: i64 = 400;
const DOWNSELL_REACH_MS: i64 = 150;
/// The reach of a lower priority is constant up to the first age. It then grows, and equals the
/// reach of the highest priority at the second age.
const SHOT_AGES_MS: (i64, i64) = (30_000, 90_000);
const DOWNSELL_AGES_MS: (i64, i64) = (300_000, 600_000);

/// How far ahead a message may reserve a slot of its address. It is the same for every priority,
/// because priorities compete only for senders.
pub const ADDRESS_REACH_MS: i64 = START_REACH_MS;

/// Returns how far ahead a message may reserve a slot of its sender. `waited_ms` is the time since
/// the message was due.
pub fn reach_ms(priority: Priority, waited_ms: i64) -> i64 {
    let aged = |fresh: i64, (from, to): (i64, i64)| {
        let age = waited_ms.clamp(from, to) - from;
        fresh + age * (START_REACH_MS - fresh) / (to - from)
    };
    match priority {
        Priority::Start => START_REACH_MS,
        Priority::Shot => aged(SHOT_REACH_MS, SHOT_AGES_MS),
        Priority::Downsell => aged(DOWNSELL_REACH_MS, DOWNSELL_AGES_MS),
    }
}

/// The attributes of a bucket's row.
pub const FREE_AT_US: &str = "free_at_us";
pub const PARKED_UNTIL: &str = "parked_until";

/// The data of a bucket's row. A bucket that was never used has no row, and all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Bucket {
    /// The time when the next slot is free, in microseconds.
    pub free_at_us: i64,
    /// A provider asked to wait: there is no slot before this time, in milliseconds.
    pub parked_until: i64,
}

/// The next step for a bucket that was read in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The next slot is in the past, or further ahead than any grant could have moved it: take a
    /// slot now, if the bucket has not changed since it was read.
    Now,
    /// Take the next slot, if it is still within reach.
    Next,
    /// No slot is within reach now. One may be within reach from this time on.
    Later(Timestamp),
}

pub fn ask(bucket: Bucket, limit: Limit, reach_ms: i64, now: Timestamp) -> Ask {
    if bucket.parked_until > now.millis() {
        return Ask::Later(Timestamp::from_millis(bucket.parked_until));
    }
    let now_us = now.millis() * 1_000;
    if bucket.free_at_us <= now_us || bucket.free_at_us > now_us.saturating_add(limit.furthest_us()) {
        Ask::Now
    } else if bucket.free_at_us <= now_us + reach_ms * 1_000 {
        Ask::Next
    } else {
        Ask::Later(at_us(bucket.free_at_us).plus_ms(-reach_ms))
    }
}

/// Converts a slot's time to milliseconds, rounded up: a sender is never early.
pub fn at_us(us: i64) -> Timestamp {
    Timestamp::from_millis(us.saturating_add(999).div_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_millis(1_000_000)
    }

    fn bucket(free_at_ms: i64) -> Bucket {
        Bucket { free_at_us: free_at_ms * 1_000, parked_until: 0 }
    }

    #[test]
    fn slots_are_never_nearer_than_the_limit() {
        assert_eq!(Limit::BOT.interval_us, 33_334);
        assert_eq!(Limit::GROUP.interval_us, 3_000_000);
        let thirty_slots = Limit::per(30, 1_000).interval_us * 30;
        assert!((1_000_000..1_001_000).contains(&thirty_slots), "the thirty-first is in the next second");
    }

    #[test]
    fn higher_classes_reach_further_and_the_lowest_catches_up() {
        let fresh = [Priority::Start, Priority::Shot, Priority::Downsell].map(|priority| reach_ms(priority, 0));
        assert!(fresh[0] > fresh[1] && fresh[1] > fresh[2]);
        // A new message of a higher priority goes before one of a lower priority that has waited
        // for minutes.
        assert!(reach_ms(Priority::Downsell, 300_000) < fresh[1]);
        assert!(reach_ms(Priority::Shot, 30_000) < fresh[0]);
        assert_eq!(reach_ms(Priority::Shot, 90_000), fresh[0]);
        assert_eq!(reach_ms(Priority::Downsell, i64::MAX), fresh[0]);
        assert_eq!(reach_ms(Priority::Downsell, -5), fresh[2]);
    }

    #[test]
    fn a_slot_is_taken_now_or_next_or_waited_for() {
        let ask = |bucket: Bucket| ask(bucket, Limit::BOT, 500, now());
        assert_eq!(ask(bucket(999_999)), Ask::Now);
        assert_eq!(ask(bucket(1_000_000)), Ask::Now);
        assert_eq!(ask(bucket(1_000_500)), Ask::Next);
        assert_eq!(ask(bucket(1_000_501)), Ask::Later(Timestamp::from_millis(1_000_001)));
        let parked = Bucket { parked_until: 1_003_600, ..bucket(0) };
        assert_eq!(ask(parked), Ask::Later(Timestamp::from_millis(1_003_600)));
    }

    #[test]
    fn a_slot_that_no_grant_can_have_taken_holds_nobody_up() {
        let at = |ahead_ms: i64, limit: Limit| ask(bucket(1_000_000 + ahead_ms), limit, 500, now());
        assert_eq!(at(60_000, Limit::BOT), Ask::Later(Timestamp::from_millis(1_059_500)));
        assert_eq!(at(7 * 86_400_000, Limit::BOT), Ask::Now);
        // With a slow limit, the next slot can correctly be far ahead.
        let daily = Limit::per(1, 86_400_000);
        assert!(matches!(at(86_400_000, daily), Ask::Later(_)));
        assert_eq!(at(3 * 86_400_000, daily), Ask::Now);
    }
}
