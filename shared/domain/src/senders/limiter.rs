//! The rate limit of a sender or of an address: a sequence of slots, each for one call.
//!
//! A bucket is a row. It stores when its next slot is free (GCRA's theoretical arrival time) and
//! the time of its last grant. A grant is one conditional write, which takes the next slots: now or
//! in the near future. The sender waits for its slot and then makes the call. How far ahead a
//! message may reserve depends on its priority. Higher priorities may reserve further ahead than
//! lower ones, so lower priorities leave them room. The longer a message of a lower priority waits,
//! the further ahead it may reserve, which bounds its wait.
//!
//! # The time of a bucket
//!
//! Clocks differ, so slots are not compared with one sender's clock. The time of a bucket is the
//! greatest time that a grant stored in its row (`seen_us`); it goes on as clocks do. A process
//! that finds a later time in a row than its own adds the difference to its clock from then on
//! ([`SharedClock`]). So all senders follow the clock that is furthest ahead. A time that is more
//! than [`CLOCKS_DIFFER_MS`] ahead comes from a wrong clock and is not followed.
//!
//! # The invariant
//!
//! 1. The slots of a bucket are at least one interval apart: a grant moves `free_at_us` forward,
//!    from the value that its condition checked.
//! 2. A call begins at its slot or up to [`TOLERANCE_MS`] after it, in the time of the bucket.
//! 3. A sender that calls has seen the row within the last [`TOLERANCE_MS`], and it was not parked.
//!
//! So the calls of one second have slots of one and a quarter seconds.
//!
//! # The interleavings
//!
//! | what happens | what keeps the invariant |
//! |---|---|
//! | Two senders ask at once | Each condition names the range of `free_at_us`, and the write moves it. |
//! | The table stalls between the reading of the clock and the write | The slot is over when the reply arrives: the clock is read again and the sender asks again. After more than 2 seconds, the condition refuses the write if others took slots meanwhile. |
//! | The reply to a grant is lost, and the SDK repeats the write | The condition refuses the second write, or it takes another slot. A slot may be lost, and is not used twice. |
//! | A sender is held up between its slot and its call (a slow claim, a pause) | [`check`], directly before the call: the slot is over, and the sender asks again. |
//! | A sender's clock is behind | It finds a later time in the row, in the read before a grant or in the refusal, and follows it. |
//! | A sender joins whose clock is ahead of all others | Its grant moves the time of the bucket forward, and the slots that others hold are over. A sender that waited longer than [`TOLERANCE_MS`] looks at the row before its call and finds that out. Calls of shorter waits are made. |
//! | A bucket is parked while senders wait for their slots | The same look finds it. |
//! | A slot is released | Only if the row was not written since its grant. |
//!
//! No fence can close one gap: the time between the last [`check`] and the moment when the provider
//! counts the call. A process that is frozen there makes its call late.
//!
//! # Why this is an expression
//!
//! A grant must cost one request, also if hundreds of senders share the row. The limiter therefore
//! does not read the row and write it under its version. [`ask`] returns the write with its
//! condition as data ([`Take`]). The platform sends it as an expression; models apply it to a
//! [`Bucket`]. A behaviour test compares the two.

use serde::Deserialize;

use crate::queue::Priority;
use crate::time::Timestamp;

/// The longest time after its time at which a slot is used, and the longest time for which a sender
/// relies on what it last saw of a bucket.
pub const TOLERANCE_MS: i64 = 250;
const TOLERANCE_US: i64 = TOLERANCE_MS * 1_000;
/// A grant whose clock was read longer ago than this, compared with the last grant, is refused. So
/// the time in a row never goes back by more. It is longer than the latency of a busy table, or
/// senders that ask at once would refuse each other.
const STALE_US: i64 = 2_000_000;
/// Clocks differ by less than this. A time further ahead is wrong.
pub const CLOCKS_DIFFER_MS: i64 = 60_000;
const CLOCKS_DIFFER_US: i64 = CLOCKS_DIFFER_MS * 1_000;

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
    /// further ahead, a sender with a wrong clock took it, or the limit was lower then.
    pub const fn furthest_us(self) -> i64 {
        self.interval_us.saturating_mul(2).saturating_add(CLOCKS_DIFFER_US)
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

/// How far ahead the next slot of an address may be for a message that waits for it without going
/// back to its queue. It is the same for every priority, because priorities compete only for
/// senders.
pub const ADDRESS_REACH_MS: i64 = START_REACH_MS;
/// How much later than the slot of its sender a call may be because of its address.
pub const ADDRESS_DELAY_MS: i64 = TOLERANCE_MS / 2;

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
pub const SEEN_US: &str = "seen_us";
pub const PARKED_UNTIL: &str = "parked_until";

/// The data of a bucket's row. A bucket that was never used has no row, and all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(default)]
pub struct Bucket {
    /// The time when the next slot is free, in microseconds.
    pub free_at_us: i64,
    /// The time of the last grant, in microseconds.
    pub seen_us: i64,
    /// A provider asked to wait: there is no slot before this time, in milliseconds.
    pub parked_until: i64,
}

impl Bucket {
    fn parked_until_us(self) -> i64 {
        self.parked_until.saturating_mul(1_000)
    }
}

/// How a process reads the time of the buckets: its own clock, and how far the clock is known to be
/// behind that of other senders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SharedClock {
    pub behind_us: i64,
}

impl SharedClock {
    /// Returns the time of the buckets at this time of the process's own clock.
    pub fn time_us(self, now: Timestamp) -> i64 {
        now.millis() * 1_000 + self.behind_us
    }

    /// Returns the clock after a row was seen. It follows a later time in the row, unless that time
    /// is too far ahead to be right. It never goes back.
    #[must_use]
    pub fn follow(self, seen_us: i64, now: Timestamp) -> Self {
        let ahead_us = seen_us - now.millis() * 1_000;
        if ahead_us > CLOCKS_DIFFER_US { self } else { Self { behind_us: self.behind_us.max(ahead_us) } }
    }

    /// Returns when the process's own clock shows this time of a bucket. It is rounded up, so that
    /// a sender is never early.
    pub fn own(self, time_us: i64) -> Timestamp {
        Timestamp::from_millis(time_us.saturating_sub(self.behind_us).saturating_add(999).div_euclid(1_000))
    }
}

/// The slots that a sender asks a bucket for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub limit: Limit,
    /// How many consecutive slots.
    pub slots: i64,
    /// How far ahead the first slot may be.
    pub reach_ms: i64,
    /// The first slot is not before this time.
    pub from_us: i64,
}

impl Wanted {
    /// Asks for one slot, now or up to `reach_ms` ahead.
    pub const fn one(limit: Limit, reach_ms: i64) -> Self {
        Self { limit, slots: 1, reach_ms, from_us: 0 }
    }

    fn taken_us(self) -> i64 {
        self.limit.interval_us.saturating_mul(self.slots.max(1))
    }
}

/// The next step for a bucket that was read in this state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Make this write. It holds if the bucket still allows it.
    Take(Take),
    /// No slot is within reach now. One may be within reach from this time of the bucket on.
    Later(i64),
}

/// The one write that takes slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    pub free_at: FreeAt,
    /// The time of this grant.
    pub seen_us: i64,
    /// One of these must hold in full.
    pub when: Vec<Vec<Bound>>,
    /// The part of the time line that the slots take.
    pub taken_us: i64,
}

/// How a grant moves `free_at_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeAt {
    Add(i64),
    Set(i64),
}

/// A part of the condition of a grant. A missing attribute counts as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    AtMost(&'static str, i64),
    MoreThan(&'static str, i64),
}

/// Decides how to take slots of a bucket that was read in this state. `time_us` is the time of the
/// bucket as the sender reads it, after it has followed the time in this row.
pub fn ask(bucket: Bucket, wanted: Wanted, time_us: i64) -> Ask {
    let from_us = time_us.max(wanted.from_us);
    if bucket.parked_until_us() > from_us {
        return Ask::Later(bucket.parked_until_us());
    }
    let (furthest_us, taken_us) = (from_us.saturating_add(wanted.limit.furthest_us()), wanted.taken_us());
    let reach_us = from_us.saturating_add(wanted.reach_ms * 1_000);
    let not_parked = Bound::AtMost(PARKED_UNTIL, from_us.div_euclid(1_000));
    // The clock was read lately, compared with the last grant.
    let is_recent = Bound::AtMost(SEEN_US, time_us.saturating_add(STALE_US));
    let right_us = time_us.saturating_add(CLOCKS_DIFFER_US);
    let (free_at, when) = if bucket.seen_us > right_us || bucket.free_at_us > furthest_us {
        // A process with a wrong clock used the bucket, or the limit was lower. It counts as idle.
        let wrong_clock = vec![Bound::MoreThan(SEEN_US, right_us), not_parked];
        let wrong_slot = vec![Bound::MoreThan(FREE_AT_US, furthest_us), not_parked];
        (FreeAt::Set(from_us + taken_us), vec![wrong_clock, wrong_slot])
    } else if bucket.free_at_us <= from_us {
        // The bucket was never used, or not for a while.
        let idle = vec![Bound::AtMost(FREE_AT_US, from_us), is_recent, not_parked];
        (FreeAt::Set(from_us + taken_us), vec![idle])
    } else if bucket.free_at_us <= reach_us {
        let ahead = Bound::MoreThan(FREE_AT_US, from_us);
        let within_reach = vec![ahead, Bound::AtMost(FREE_AT_US, reach_us), is_recent, not_parked];
        (FreeAt::Add(taken_us), vec![within_reach])
    } else {
        return Ask::Later(bucket.free_at_us - (reach_us - from_us));
    };
    Ask::Take(Take { free_at, seen_us: time_us, when, taken_us })
}

impl Take {
    /// Returns the bucket after this write, or `None` if its condition does not hold.
    pub fn apply(&self, bucket: Bucket) -> Option<Bucket> {
        let holds = |bound: &Bound| match *bound {
            Bound::AtMost(name, number) => bucket.number(name) <= number,
            Bound::MoreThan(name, number) => bucket.number(name) > number,
        };
        let free_at_us = match self.free_at {
            FreeAt::Add(us) => bucket.free_at_us + us,
            FreeAt::Set(us) => us,
        };
        let allowed = self.when.iter().any(|all| all.iter().all(holds));
        allowed.then_some(Bucket { free_at_us, seen_us: self.seen_us, ..bucket })
    }

    /// Returns the first slot that this write took. `after` is the bucket after the write.
    pub fn slot_us(&self, after: Bucket) -> i64 {
        after.free_at_us - self.taken_us
    }
}

impl Bucket {
    fn number(self, name: &str) -> i64 {
        match name {
            FREE_AT_US => self.free_at_us,
            SEEN_US => self.seen_us,
            _ => self.parked_until,
        }
    }
}

/// A slot that a sender holds, in the time of its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The call does not begin before this time.
    pub at_us: i64,
    /// The call does not begin after this time.
    pub until_us: i64,
    /// When the sender last saw the row.
    pub known_us: i64,
}

impl Slot {
    pub fn new(at_us: i64, known_us: i64) -> Self {
        Self { at_us, until_us: at_us.saturating_add(TOLERANCE_US), known_us }
    }

    /// Returns the slot that is `us` after this one, of a grant of several slots.
    #[must_use]
    pub fn plus_us(self, us: i64) -> Self {
        Self { at_us: self.at_us + us, until_us: self.until_us + us, ..self }
    }
}

/// What a sender does with its slot now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Wait until this time of the bucket.
    Wait(i64),
    /// Make the call.
    Call,
    /// Read the row first: it was last seen too long ago.
    Look,
    /// The slot is over: ask for another one.
    Over,
}

/// Decides what a sender does with its slot. It is called again directly before the call.
pub fn check(slot: Slot, time_us: i64) -> Check {
    if time_us < slot.at_us {
        Check::Wait(slot.at_us)
    } else if time_us > slot.until_us {
        Check::Over
    } else if time_us > slot.known_us.saturating_add(TOLERANCE_US) {
        Check::Look
    } else {
        Check::Call
    }
}

/// Returns the slot after a look at its row, or `None` if the row was parked since its grant.
/// `time_us` is the time before the look. The sender then checks the slot again, with the clock
/// that follows the time in this row.
pub fn looked(slot: Slot, bucket: Bucket, time_us: i64) -> Option<Slot> {
    (bucket.parked_until_us() <= time_us).then_some(Slot { known_us: time_us, ..slot })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: i64 = 1_000_000_000;

    fn bucket(free_at_ms: i64) -> Bucket {
        Bucket { free_at_us: free_at_ms * 1_000, ..Bucket::default() }
    }

    /// Asks for one slot and applies the write to the bucket. Returns the slot, or the time from
    /// which there may be one.
    fn take(bucket: Bucket, limit: Limit, reach_ms: i64) -> Result<i64, i64> {
        match ask(bucket, Wanted::one(limit, reach_ms), NOW_US) {
            Ask::Take(take) => Ok(take.slot_us(take.apply(bucket).expect("it was read in this state"))),
            Ask::Later(at) => Err(at),
        }
    }

    #[test]
    fn slots_are_never_closer_than_the_limit_allows() {
        assert_eq!(Limit::BOT.interval_us, 33_334);
        assert_eq!(Limit::GROUP.interval_us, 3_000_000);
        let thirty_slots = Limit::per(30, 1_000).interval_us * 30;
        assert!((1_000_000..1_001_000).contains(&thirty_slots), "the thirty-first is in the next second");
    }

    #[test]
    fn higher_priorities_reach_further_and_long_waits_catch_up() {
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
    fn a_slot_within_reach_is_taken_and_a_later_slot_is_waited_for() {
        let of_bot = |free_at_ms: i64| take(bucket(free_at_ms), Limit::BOT, 500);
        assert_eq!(of_bot(0), Ok(NOW_US));
        assert_eq!(of_bot(999_999), Ok(NOW_US));
        assert_eq!(of_bot(1_000_000), Ok(NOW_US));
        assert_eq!(of_bot(1_000_500), Ok(NOW_US + 500_000));
        assert_eq!(of_bot(1_000_501), Err(NOW_US + 1_000));
        let parked = Bucket { parked_until: 1_003_600, ..bucket(0) };
        assert_eq!(take(parked, Limit::BOT, 500), Err(NOW_US + 3_600_000));
    }

    #[test]
    fn a_slot_is_never_before_the_requested_time() {
        let wanted = Wanted { from_us: NOW_US + 700_000, ..Wanted::one(Limit::CHAT, ADDRESS_DELAY_MS) };
        let slot = |free_at_ms: i64| match ask(bucket(free_at_ms), wanted, NOW_US) {
            Ask::Take(take) => Ok((take.slot_us(take.apply(bucket(free_at_ms)).expect("as read")), take.seen_us)),
            Ask::Later(at) => Err(at),
        };
        assert_eq!(slot(1_000_600), Ok((NOW_US + 700_000, NOW_US)), "the grant has the current time");
        assert_eq!(slot(1_000_825), Ok((NOW_US + 825_000, NOW_US)));
        assert_eq!(slot(1_000_826), Err(NOW_US + 701_000));
    }

    #[test]
    fn an_implausible_slot_time_delays_no_sender() {
        let at = |ahead_ms: i64, limit: Limit| take(bucket(1_000_000 + ahead_ms), limit, 500);
        assert_eq!(at(60_000, Limit::BOT), Err(NOW_US + 59_500_000));
        assert_eq!(at(7 * 86_400_000, Limit::BOT), Ok(NOW_US));
        // With a slow limit, the next slot can correctly be far ahead.
        let daily = Limit::per(1, 86_400_000);
        assert!(at(86_400_000, daily).is_err());
        assert_eq!(at(3 * 86_400_000, daily), Ok(NOW_US));
        let of_wrong_clock = Bucket { seen_us: NOW_US + CLOCKS_DIFFER_US + 1, ..bucket(1_060_100) };
        assert_eq!(take(of_wrong_clock, Limit::BOT, 500), Ok(NOW_US));
    }

    #[test]
    fn a_grant_with_an_old_time_is_refused() {
        let Ask::Take(take) = ask(bucket(0), Wanted::one(Limit::BOT, 500), NOW_US) else { panic!("no grant") };
        let seen = |ms: i64| Bucket { seen_us: NOW_US + ms * 1_000, ..bucket(0) };
        assert!(take.apply(seen(2_000)).is_some());
        assert_eq!(take.apply(seen(2_001)), None);
    }

    #[test]
    fn a_clock_that_is_behind_follows_the_bucket_and_never_goes_back() {
        let now = Timestamp::from_millis(1_000_000);
        let clock = SharedClock::default().follow(NOW_US + 2_000_000, now);
        assert_eq!(clock.time_us(now), NOW_US + 2_000_000);
        assert_eq!(clock.follow(NOW_US + 1_000_000, now), clock);
        assert_eq!(clock.follow(NOW_US + CLOCKS_DIFFER_US + 1, now), clock, "a wrong clock is not followed");
        assert_eq!(clock.own(NOW_US + 2_500_001), now.plus_ms(501));
    }

    #[test]
    fn a_slot_is_used_on_time_and_only_if_its_row_was_read_recently() {
        let slot = Slot::new(NOW_US, NOW_US - 100_000);
        assert_eq!(check(slot, NOW_US - 1), Check::Wait(NOW_US));
        assert_eq!(check(slot, NOW_US), Check::Call);
        assert_eq!(check(slot, NOW_US + 150_000), Check::Call);
        assert_eq!(check(slot, NOW_US + 150_001), Check::Look);
        assert_eq!(check(slot, NOW_US + 250_001), Check::Over);
        let parked = Bucket { parked_until: 1_000_500, ..bucket(0) };
        assert_eq!(looked(slot, parked, NOW_US + 200_000), None);
        let known = looked(slot, bucket(0), NOW_US + 200_000).expect("not parked");
        assert_eq!(check(known, NOW_US + 250_000), Check::Call);
    }
}
