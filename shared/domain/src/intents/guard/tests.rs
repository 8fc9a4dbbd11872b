use uuid::Uuid;

use super::*;
use crate::intents::{HoldRequest, Holder, IntentTypes};
use crate::messages::MessageId;
use crate::time::DAY_MS;

const CLIENT: Uuid = Uuid::from_u128(7);

fn start() -> Timestamp {
    Timestamp::parse("2026-03-10T12:00:00Z").expect("a time")
}

fn message(number: u64) -> MessageId {
    MessageId::hash(&number.to_string())
}

/// Returns a request for a first-touch hold with contact scope and a rolling week. Each campaign
/// has its own fingerprint.
fn asked(campaign: u64, at: Timestamp, now: Timestamp) -> GuardRequest {
    let options = r#"{"discovery_first_touch": {"window": "rolling", "scope": "contact"}}"#;
    let types = IntentTypes::with_options(options).expect("options");
    let known = types.get("discovery_first_touch").expect("known");
    let check = Check::new(CLIENT, known, Some(Uuid::from_u128(u128::from(campaign))), at);
    let hold = HoldRequest::of(check, &Holder::Message(message(campaign)), "body", now);
    hold.guard.expect("guarded")
}

fn taken(guard: &GuardRow, asked: &GuardRequest, now: Timestamp) -> GuardRow {
    match guard.take(asked, now) {
        TakeOutcome::Yes(next) => next,
        refused => panic!("not free: {refused:?}"),
    }
}

fn released(guard: &GuardRow, asked: &GuardRequest, now: Timestamp) -> GuardRow {
    guard.give_back(&asked.hold.holder, &asked.hold.fingerprint, now).expect("it is held")
}

#[test]
fn every_hold_is_kept_and_is_released_separately() {
    let now = start();
    let [a, b, c] = [0, 9, 17].map(|days| asked(days, now.plus_days(days as i64), now));
    let guard = taken(&taken(&taken(&GuardRow::empty(now), &a, now), &b, now), &c, now);
    let guard = released(&released(&guard, &c, now), &b, now);
    assert_eq!(guard.holds, [a.hold]);
    let TakeOutcome::Conflicting(conflict) = guard.take(&asked(4, now, now), now) else { panic!("two in one window") };
    assert_eq!(conflict.next_eligible_at, now.plus_days(7).seconds());
}

#[test]
fn releasing_a_second_hold_does_not_restore_the_first() {
    let now = start();
    let (a, b) = (asked(1, now.plus_days(200), now), asked(2, now.plus_days(300), now));
    let guard = taken(&taken(&GuardRow::empty(now), &a, now), &b, now);
    let guard = released(&released(&guard, &a, now), &b, now);
    assert_eq!((guard.holds.len(), guard.expires_at), (0, now.seconds()));
    assert!(guard.give_back(&a.hold.holder, &a.hold.fingerprint, now).is_none(), "there is nothing more to release");
}

#[test]
fn a_window_before_and_after_a_hold_is_exact_to_the_second() {
    let now = start();
    let in_ms = |ms: i64| asked(u64::try_from(ms).expect("later"), now.plus_ms(ms), now);
    let guard = taken(&GuardRow::empty(now), &in_ms(20 * DAY_MS), now);
    for (ms, free) in
        [(13 * DAY_MS, true), (13 * DAY_MS + 1_000, false), (27 * DAY_MS - 1_000, false), (27 * DAY_MS, true)]
    {
        assert_eq!(matches!(guard.take(&in_ms(ms), now), TakeOutcome::Yes(_)), free, "{ms}");
    }
}

#[test]
fn the_next_eligible_moment_has_room_for_a_whole_window() {
    let now = start();
    let guard = taken(&GuardRow::empty(now), &asked(1, now, now), now);
    let guard = taken(&guard, &asked(2, now.plus_days(12), now), now);
    let TakeOutcome::Conflicting(conflict) = guard.take(&asked(3, now.plus_days(1), now), now) else {
        panic!("no conflict")
    };
    assert_eq!(conflict.hold.holder, format!("message:{}", message(1)));
    assert_eq!(conflict.next_eligible_at, now.plus_days(19).seconds());
}

#[test]
fn a_requester_sees_its_own_hold_before_other_conflicting_holds() {
    let now = start();
    let guard = taken(&GuardRow::empty(now), &asked(1, now, now), now);
    let own = asked(2, now.plus_days(7), now);
    let guard = taken(&guard, &own, now);
    let mut again = asked(3, now.plus_days(4), now);
    again.hold.holder.clone_from(&own.hold.holder);
    let TakeOutcome::Conflicting(conflict) = guard.take(&again, now) else { panic!("no conflict") };
    assert_eq!(conflict.hold, own.hold);
}

#[test]
fn scheduled_holds_are_limited_and_a_hold_for_now_does_not_count() {
    let now = start();
    let mut guard = GuardRow::empty(now);
    for number in 1..=MOST_SCHEDULED as u64 {
        guard = taken(&guard, &asked(number, now.plus_days(8 * number as i64), now), now);
    }
    assert_eq!(guard.take(&asked(99, now.plus_days(350), now), now), TakeOutcome::Full);
    let guard = taken(&guard, &asked(100, now, now), now);
    assert_eq!(guard.holds.len(), MOST_SCHEDULED + 1);
    let guard = released(&guard, &asked(5, now.plus_days(40), now), now);
    taken(&guard, &asked(99, now.plus_days(350), now), now);
}

#[test]
fn holds_whose_window_is_over_are_removed() {
    let mut guard = GuardRow::empty(start());
    for week in 0..100 {
        let now = start().plus_days(7 * week);
        guard = taken(&guard, &asked(week as u64, now, now), now);
        assert!(guard.holds.len() <= 2, "{} in week {week}", guard.holds.len());
    }
}

#[test]
fn a_guard_that_is_created_again_does_not_reuse_a_version() {
    let (now, later) = (start(), start().plus_days(60));
    let old = taken(&GuardRow::empty(now), &asked(1, now, now), now);
    assert!(GuardRow::empty(later).version > old.version + 1_000_000);
}

/// Any order of accepting, cancelling, failing and expiring leaves exactly the windows of the
/// messages that were sent or are still scheduled. The oracle keeps every hold that was taken and
/// not released, and compares moments in milliseconds.
#[test]
fn after_any_history_the_guard_allows_exactly_the_sends_that_are_a_window_apart() {
    const WEEK_MS: i64 = 7 * DAY_MS;
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = start();
        let mut guard = GuardRow::empty(now);
        let mut standing: Vec<(GuardRequest, Timestamp)> = Vec::new();
        for campaign in 0..60 {
            now = now.plus_ms(random.i64(0..3 * DAY_MS) / 1_000 * 1_000);
            match random.u8(0..10) {
                // A message is cancelled before its time, fails at it, or expires after it.
                0..4 if !standing.is_empty() => {
                    let (given, _) = standing.swap_remove(random.usize(..standing.len()));
                    let before = guard.holds.len();
                    if let Some(next) = guard.give_back(&given.hold.holder, &given.hold.fingerprint, now) {
                        guard = next;
                        assert_eq!(guard.holds.len() + 1, before, "seed {seed}: one hold goes, and no other");
                    } else {
                        assert!(given.hold.until <= now.seconds(), "seed {seed}: a hold went before its time");
                    }
                }
                what => {
                    let at = if what < 7 { now } else { now.plus_ms(random.i64(0..60 * DAY_MS) / 1_000 * 1_000) };
                    let asked = asked(campaign, at, now);
                    let distance = |at_other: &Timestamp| (at_other.millis() - at.millis()).abs();
                    let free = standing.iter().all(|(_, other)| distance(other) >= WEEK_MS);
                    match guard.take(&asked, now) {
                        TakeOutcome::Yes(next) => {
                            assert!(free, "seed {seed}: two sends inside one window");
                            standing.push((asked, at));
                            guard = next;
                        }
                        TakeOutcome::Conflicting(conflict) => {
                            assert!(!free, "seed {seed}: blocked by {}, which is not valid", conflict.hold.holder);
                        }
                        TakeOutcome::Full => panic!("seed {seed}: there is room"),
                    }
                }
            }
        }
    }
}

/// Returns the hold of a message whose attempt begins now and is over after `ATTEMPT_MS`.
fn begun(asked: &GuardRequest, now: Timestamp) -> IntentHold {
    let until = now.plus_ms(ATTEMPT_MS).plus_days(7).seconds();
    IntentHold { at: now.seconds(), until, pending: false, ..asked.hold.clone() }
}

const ATTEMPT_MS: i64 = 25_000;

fn attempted(guard: &GuardRow, asked: &GuardRequest, now: Timestamp) -> GuardRow {
    match guard.begin(&begun(asked, now), now) {
        BeginOutcome::Yes(next) => next,
        wait @ BeginOutcome::Wait { .. } => panic!("it has to wait: {wait:?}"),
    }
}

#[test]
fn an_attempt_moves_its_hold_and_a_scheduled_message_waits_for_it() {
    let now = start();
    let (late, next) = (asked(1, now, now), asked(2, now.plus_days(7), now));
    let guard = taken(&taken(&GuardRow::empty(now), &late, now), &next, now);
    let sent_at = now.plus_days(2);
    let guard = attempted(&guard, &late, sent_at);
    let TakeOutcome::Conflicting(conflict) = guard.take(&asked(3, now.plus_days(13), now), now) else {
        panic!("two in one window")
    };
    assert_eq!(conflict.hold.holder, next.hold.holder, "a scheduled hold keeps its place");
    let due = now.plus_days(7);
    let BeginOutcome::Wait { by, guard } = guard.begin(&begun(&next, due), due) else { panic!("two in one window") };
    assert_eq!((by.holder, by.at), (late.hold.holder, sent_at.seconds()));
    let place = guard.holds.iter().find(|hold| hold.holder == next.hold.holder).expect("a place");
    assert_eq!((place.at, place.pending), (by.until, true), "it follows the late send");
    attempted(&guard, &next, Timestamp::from_seconds(by.until));
}

#[test]
fn an_attempt_that_was_not_sent_delays_no_other_message() {
    let now = start();
    let (first, next) = (asked(1, now, now), asked(2, now.plus_days(7), now));
    let guard = taken(&taken(&GuardRow::empty(now), &first, now), &next, now);
    let tried_at = now.plus_days(6);
    let guard = attempted(&guard, &first, tried_at);
    let due = now.plus_days(7);
    assert!(matches!(guard.begin(&begun(&next, due), due), BeginOutcome::Wait { .. }), "it may have been sent");
    let guard = guard.suspend(&first.hold.holder, &first.hold.fingerprint, tried_at).expect("it is held");
    assert!(guard.suspend(&first.hold.holder, &first.hold.fingerprint, tried_at).is_none(), "nothing is left to write");
    attempted(&guard, &next, due);
}

#[test]
fn a_hold_that_is_proved_to_be_sent_is_restored_beside_scheduled_holds() {
    let now = start();
    let (proved, scheduled) = (asked(1, now, now), asked(2, now.plus_days(5), now));
    let guard = taken(&GuardRow::empty(now), &scheduled, now);
    let guard = guard.put_back(&begun(&proved, now), now).expect("only a pending hold overlaps it");
    let due = now.plus_days(5);
    assert!(matches!(guard.begin(&begun(&scheduled, due), due), BeginOutcome::Wait { .. }));
    let other = asked(3, now.plus_days(1), now);
    let sent = attempted(&taken(&GuardRow::empty(now), &other, now), &other, now.plus_days(1));
    assert_eq!(sent.put_back(&begun(&proved, now), now), None, "another message was sent meanwhile");
}

/// Any order of accepting, sending late, trying in vain and cancelling leaves two sends a window
/// apart, and no message waits for one that was not sent. The oracle keeps the time of each send.
#[test]
fn after_any_history_late_sends_are_a_window_apart_and_wait_only_for_sends() {
    const WEEK_MS: i64 = 7 * DAY_MS;
    let (mut sends, mut waits) = (0, 0);
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = start();
        let mut guard = GuardRow::empty(now);
        let mut messages: Vec<(GuardRequest, Option<Timestamp>)> = Vec::new();
        for campaign in 0..80 {
            now = now.plus_ms(random.i64(0..3 * DAY_MS) / 1_000 * 1_000);
            let is_due =
                |(asked, sent): &(GuardRequest, Option<Timestamp>)| sent.is_none() && asked.hold.at <= now.seconds();
            let due: Vec<_> = (0..messages.len()).filter(|index| is_due(&messages[*index])).collect();
            match random.u8(0..10) {
                0..4 => {
                    let at = if random.bool() { now } else { now.plus_ms(random.i64(0..60 * DAY_MS) / 1_000 * 1_000) };
                    let asked = asked(campaign, at, now);
                    if let TakeOutcome::Yes(next) = guard.take(&asked, now) {
                        messages.push((asked, None));
                        guard = next;
                    }
                }
                4..8 if !due.is_empty() => {
                    let chosen = due[random.usize(..due.len())];
                    let asked = messages[chosen].0.clone();
                    match guard.begin(&begun(&asked, now), now) {
                        BeginOutcome::Yes(next) if random.bool() => {
                            for sent in messages.iter().filter_map(|(_, sent)| *sent) {
                                assert!(now.millis() - sent.millis() >= WEEK_MS, "seed {seed}: two sends in a window");
                            }
                            (messages[chosen].1, guard) = (Some(now), next);
                            sends += 1;
                        }
                        BeginOutcome::Yes(next) => {
                            let hold = &asked.hold;
                            guard = next.suspend(&hold.holder, &hold.fingerprint, now).expect("it is held");
                        }
                        BeginOutcome::Wait { by, guard: next } => {
                            let blocking = messages.iter().find(|(asked, _)| asked.hold.holder == by.holder);
                            let sent = blocking.and_then(|(_, sent)| *sent).expect("it waits for a send");
                            assert!(
                                now.millis() - sent.millis() < WEEK_MS + ATTEMPT_MS,
                                "seed {seed}: it waits too long"
                            );
                            assert!(by.until > now.seconds(), "seed {seed}");
                            guard = next;
                            waits += 1;
                        }
                    }
                }
                _ if !due.is_empty() => {
                    let (given, _) = messages.swap_remove(due[random.usize(..due.len())]);
                    guard = guard.give_back(&given.hold.holder, &given.hold.fingerprint, now).unwrap_or(guard);
                }
                _ => {}
            }
        }
    }
    assert!(sends > 1_000 && waits > 100, "{sends} sends, {waits} waits");
}
