use super::*;

const TIMING: Timing = Timing {
    debounce_ms: 5_000,
    max_wait_ms: 30_000,
    lease_ms: 45_000,
    callback_ms: 600_000,
    attempts: 3,
    backoff_ms: 5_000,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(1_000_000 + seconds)
}

fn received(times: &[i64]) -> Course {
    times.iter().fold(Course::default(), |course, seconds| course.receive(at(*seconds), Some(at(*seconds))))
}

/// Returns all pending messages as one batch.
fn all(course: &Course) -> Portion {
    Portion::UpTo { last: course.received, rest_since: None }
}

fn asked(course: &Course, seconds: i64) -> Course {
    match course.next(at(seconds), &TIMING) {
        WorkerStep::Claim => course.claim(all(course), at(seconds), &TIMING),
        WorkerStep::Ask(course) => course,
        other => panic!("not asked: {other:?}"),
    }
}

#[test]
fn a_burst_is_due_after_the_debounce_but_no_later_than_the_longest_wait() {
    assert_eq!(received(&[0]).due(&TIMING), Some(at(5)));
    assert_eq!(received(&[0, 3]).due(&TIMING), Some(at(8)));
    let steady: Vec<i64> = (0..=28).step_by(2).collect();
    assert_eq!(received(&steady).due(&TIMING), Some(at(30)), "the longest wait ends the debounce");
    assert_eq!(Course::default().due(&TIMING), None);
    let out_of_order = received(&[10, 4]);
    assert_eq!(out_of_order.due(&TIMING), Some(at(15)), "the latest time counts, not the last to arrive");
}

#[test]
fn a_claim_takes_all_received_messages_and_later_ones_form_the_next_batch() {
    let pending = received(&[0, 1]);
    assert_eq!(pending.next(at(5), &TIMING), WorkerStep::Wait(at(6)));
    let claimed = asked(&pending, 6);
    assert_eq!((claimed.answered, claimed.claimed, claimed.received), (0, 2, 2));
    let third = claimed.receive(at(6), None);
    assert_eq!((third.claimed, third.received), (2, 3));
    assert_eq!(third.pending_since, Some(at(6).millis()));
    let finished = third.replied(1, at(8)).part_ended(PartEnd::Sent, at(9));
    assert_eq!((finished.answered, finished.phase), (2, Phase::Idle));
    assert_eq!(finished.wake_up(at(9), &TIMING), Some(at(11)), "the finishing write wakes for the rest");
    let next = asked(&finished, 11);
    assert_eq!((next.answered, next.claimed), (2, 3));
}

#[test]
fn a_partial_claim_leaves_the_other_messages_pending_and_due_at_once() {
    let pending = received(&[0, 1, 2]);
    let portion = Portion::UpTo { last: 2, rest_since: Some(at(2)) };
    let claimed = pending.claim(portion, at(7), &TIMING);
    assert_eq!((claimed.answered, claimed.claimed, claimed.received), (0, 2, 3));
    assert_eq!((claimed.batch_since, claimed.pending_since), (Some(at(0).millis()), Some(at(2).millis())));
    let finished = claimed.replied(1, at(8)).part_ended(PartEnd::Sent, at(9));
    assert_eq!((finished.answered, finished.unanswered_since()), (2, Some(at(2).millis())));
    assert_eq!(finished.wake_up(at(9), &TIMING), Some(at(7)), "the rest is due");
    assert!(finished.recovery_check_at(at(9), &TIMING).is_some(), "recovery checks the rest");
    let next = asked(&finished, 9);
    assert_eq!((next.answered, next.claimed, next.pending_since), (2, 3, None));
}

#[test]
fn a_claim_takes_no_more_than_the_received_messages() {
    let claimed = received(&[0]).claim(Portion::UpTo { last: 9, rest_since: None }, at(5), &TIMING);
    assert_eq!((claimed.claimed, claimed.received, claimed.pending_since), (1, 1, None));
}

#[test]
fn expired_messages_are_skipped_without_asking_the_responder() {
    let pending = received(&[0, 1, 2]);
    let passed = pending.claim(Portion::Expired { last: 2 }, at(7), &TIMING);
    assert_eq!((passed.phase, passed.answered, passed.claimed, passed.attempts), (Phase::Idle, 2, 2, 0));
    assert_eq!(passed.next(at(7), &TIMING), WorkerStep::Claim, "the rest is claimed next");
    let all = pending.claim(Portion::Expired { last: 3 }, at(7), &TIMING);
    assert_eq!((all.is_pending(), all.wake_up(at(7), &TIMING)), (false, None));
}

#[test]
fn a_claimed_batch_is_taken_over_only_after_its_lease_is_over() {
    let claimed = asked(&received(&[0]), 5);
    assert_eq!(claimed.next(at(49), &TIMING), WorkerStep::Rest);
    let taken_over = asked(&claimed, 50);
    assert_eq!((taken_over.claimed, taken_over.epoch, taken_over.attempts), (1, 2, 2));
    assert!(!taken_over.is_turn(1, 1), "the first worker has lost its turn");
    assert!(taken_over.is_turn(1, 2));
    assert!(!taken_over.is_turn(2, 2));
}

#[test]
fn a_failing_responder_is_retried_and_then_the_conversation_is_stuck() {
    let first = asked(&received(&[0]), 5).failed(at(6), &TIMING);
    assert_eq!(first.next(at(7), &TIMING), WorkerStep::Wait(at(11)));
    let second = asked(&first, 11).failed(at(12), &TIMING);
    assert_eq!(second.next(at(12), &TIMING), WorkerStep::Wait(at(22)));
    let third = asked(&second, 22).failed(at(23), &TIMING);
    assert_eq!((third.phase, third.attempts), (Phase::Stuck, 3));
    assert_eq!(third.next(at(9_999), &TIMING), WorkerStep::Rest);
    let later = third.receive(at(30), None);
    assert_eq!((later.claimed, later.received), (1, 2), "the claimed messages and the later ones stay pending");
    let again = asked(&later.release(), 31);
    assert_eq!((again.claimed, again.attempts), (1, 1), "the same batch begins again with its first attempt");
}

#[test]
fn a_conversation_whose_workers_always_crash_becomes_stuck() {
    let mut course = received(&[0]);
    let mut now = 5;
    for _ in 0..TIMING.attempts {
        course = asked(&course, now);
        now += 45;
    }
    let WorkerStep::GiveUp(course) = course.next(at(now), &TIMING) else { panic!("the attempts have no limit") };
    assert_eq!(course.phase, Phase::Stuck);
}

#[test]
fn a_late_answer_is_accepted_until_another_answer_has_arrived() {
    let awaiting = asked(&received(&[0]), 5).awaiting(at(6), &TIMING);
    assert_eq!(awaiting.next(at(605), &TIMING), WorkerStep::Rest);
    assert!(awaiting.wants_reply(1) && !awaiting.wants_reply(2));
    let again = asked(&awaiting, 606);
    assert_eq!(again.attempts, 2, "no answer arrived, so the responder is asked again");
    let sending = awaiting.replied(1, at(7));
    assert!(!sending.wants_reply(1));
    let stuck = Course { phase: Phase::Stuck, ..awaiting };
    assert!(stuck.wants_reply(1), "a late answer is better than none");
}

#[test]
fn an_empty_reply_finishes_the_batch() {
    let finished = asked(&received(&[0]), 5).replied(0, at(6));
    assert_eq!((finished.answered, finished.phase, finished.unanswered_since()), (1, Phase::Idle, None));
}

#[test]
fn parts_are_sent_one_after_the_other_and_a_failed_part_ends_the_reply() {
    let sending = asked(&received(&[0]), 5).replied(2, at(6));
    assert_eq!((sending.phase, sending.part, sending.handed), (Phase::Sending, 0, 1));
    let second = sending.part_ended(PartEnd::Sent, at(7));
    assert_eq!((second.phase, second.part, second.handed), (Phase::Sending, 1, 2));
    assert_eq!(second.part_ended(PartEnd::Sent, at(8)).answered, 1);
    assert_eq!(sending.part_ended(PartEnd::NotSent, at(7)).phase, Phase::Idle);
}

fn held(course: &Course, until: Option<i64>) -> Course {
    let until = until.map(|seconds| at(seconds).millis());
    course.hold(ConversationHold { by: HeldBy::Operator, since: at(0).millis(), until })
}

#[test]
fn a_held_conversation_is_neither_claimed_nor_answered() {
    let pending = held(&received(&[0]), None);
    assert_eq!(pending.next(at(99), &TIMING), WorkerStep::Rest);
    assert_eq!(pending.wake_up(at(99), &TIMING), None);
    assert_eq!(pending.release().wake_up(at(99), &TIMING), Some(at(5)), "a release wakes it");

    let asking = held(&asked(&received(&[0]), 5), None);
    let replied = asking.replied(1, at(6));
    assert_eq!((replied.phase, replied.handed), (Phase::Replied, 0));
    assert_eq!(replied.next(at(7), &TIMING), WorkerStep::Rest);
    let WorkerStep::HandOver(sending) = replied.release().next(at(8), &TIMING) else { panic!("not handed over") };
    assert_eq!((sending.phase, sending.handed), (Phase::Sending, 1));
}

#[test]
fn a_retry_that_became_due_during_a_hold_runs_after_the_release() {
    let failed = held(&asked(&received(&[0]), 5).failed(at(6), &TIMING), None);
    assert_eq!(failed.next(at(11), &TIMING), WorkerStep::Rest, "its wake-up is a no-op");
    let released = failed.release();
    assert_eq!(released.wake_up(at(60), &TIMING), Some(at(60)));
    assert_eq!(asked(&released, 60).attempts, 2);
}

#[test]
fn a_reply_that_a_hold_canceled_is_sent_after_the_release() {
    let sending = held(&asked(&received(&[0]), 5).replied(1, at(6)), None);
    let withheld = sending.part_ended(PartEnd::Canceled, at(7));
    assert_eq!(withheld.phase, Phase::Replied);
    let WorkerStep::HandOver(again) = withheld.release().next(at(8), &TIMING) else { panic!("not handed over") };
    assert_eq!(again.handed, 2, "it is handed over as another message");
    let released = sending.release().part_ended(PartEnd::Canceled, at(7));
    assert_eq!(
        (released.phase, released.wake_up(at(7), &TIMING)),
        (Phase::Replied, Some(at(7))),
        "the release came before the result of the cancel"
    );
    let by_order = asked(&received(&[0]), 5).replied(1, at(6)).part_ended(PartEnd::Canceled, at(7));
    assert_eq!(by_order.phase, Phase::Idle, "a cancel by an operator ends the reply");
}

#[test]
fn a_hold_ends_at_its_time_and_the_longer_of_two_holds_stays() {
    let pending = held(&received(&[0]), Some(60));
    assert_eq!(pending.recovery_check_at(at(10), &TIMING), Some(at(60)));
    assert!(pending.is_held(at(59)) && !pending.is_held(at(60)));
    assert_eq!(pending.next(at(60), &TIMING), WorkerStep::Claim);
    let longer = held(&held(&received(&[0]), None), Some(60));
    assert_eq!(longer.hold.and_then(|hold| hold.until), None);
    let by_person = |until| ConversationHold { by: HeldBy::Person, since: at(10).millis(), until: Some(until) };
    for (until, by) in [(at(59), HeldBy::Operator), (at(60), HeldBy::Operator), (at(61), HeldBy::Person)] {
        let hold = pending.hold(by_person(until.millis())).hold;
        assert_eq!(hold.map(|hold| hold.by), Some(by), "of two holds with the same end, the first one stays: {until}");
    }
}

#[test]
fn messages_that_a_person_answered_are_settled() {
    let pending = received(&[0, 1]).settle();
    assert_eq!((pending.answered, pending.claimed, pending.pending_since), (2, 2, None));
    let asking = asked(&received(&[0]), 5);
    let settled = asking.settle();
    assert_eq!((settled.answered, settled.phase), (1, Phase::Idle));
    assert!(!settled.is_turn(1, asking.epoch), "a later answer of the responder is not sent");

    let sending = asked(&received(&[0]), 5).replied(1, at(6)).receive(at(7), None).settle();
    assert!(!sending.is_pending(), "the second message was answered by a person");
    let third = sending.receive(at(9), None);
    assert_eq!(third.pending_since, Some(at(9).millis()));
    let finished = third.part_ended(PartEnd::Sent, at(10));
    assert_eq!((finished.answered, finished.received), (2, 3));
    assert_eq!(finished.due(&TIMING), Some(at(14)));
}

#[test]
fn a_person_has_not_answered_a_message_that_was_sent_later_or_at_the_same_time() {
    let pending = received(&[0, 3]);
    assert!(pending.answered_by_person(Some(at(2))).is_pending(), "the person's message was reported late");
    assert!(pending.answered_by_person(Some(at(3))).is_pending(), "it is unknown which message was first");
    assert!(!pending.answered_by_person(Some(at(4))).is_pending());
}

#[test]
fn the_providers_times_decide_which_messages_a_person_answered() {
    let late = Course::default().receive(at(300), Some(at(0)));
    assert!(!late.answered_by_person(Some(at(60))).is_pending(), "both messages were delivered late");
    let ahead = Course::default().receive(at(0), Some(at(7)));
    assert!(ahead.answered_by_person(Some(at(5))).is_pending(), "the provider's clock is ahead of ours");
    let wrong = Course::default().receive(at(3), Some(at(30_000_000)));
    assert!(!wrong.answered_by_person(Some(at(70))).is_pending(), "a time of next year does not count");
    let out_of_order = late.receive(at(301), Some(at(-9)));
    assert_eq!(out_of_order.last_sent_at, Some(at(0).millis()), "the latest time counts");
}

#[test]
fn without_times_of_the_provider_the_order_of_arrival_decides() {
    assert!(!received(&[0]).answered_by_person(None).is_pending());
    assert!(!Course::default().receive(at(0), None).answered_by_person(Some(at(-60))).is_pending());
}

#[test]
fn a_reply_is_recalled_only_by_a_hold_or_by_a_person() {
    let sending = asked(&received(&[0]), 5).replied(1, at(6));
    assert!(!sending.is_recalled());
    assert!(held(&sending, None).is_recalled() && sending.settle().is_recalled());
    assert!(!sending.receive(at(7), None).answered_by_person(Some(at(-1))).is_recalled(), "it was sent before");
    let again = held(&sending, None).part_ended(PartEnd::Canceled, at(7)).release().handed_over();
    assert!(!again.is_recalled(), "after the hold, it is handed over as another message");
    assert!(!held(&received(&[0]), None).is_recalled(), "no part was handed over");
}

#[test]
fn the_next_part_waits_for_the_end_of_a_hold_and_the_last_part_ends_the_reply() {
    let first = held(&asked(&received(&[0]), 5).replied(2, at(6)), None);
    let withheld = first.part_ended(PartEnd::Sent, at(7));
    assert_eq!((withheld.phase, withheld.part, withheld.handed), (Phase::Replied, 1, 1));
    let second = withheld.release().handed_over();
    assert_eq!((second.phase, second.part, second.handed), (Phase::Sending, 1, 2));
    let finished = held(&second, None).part_ended(PartEnd::Sent, at(9));
    assert_eq!((finished.phase, finished.answered), (Phase::Idle, 1), "the reply has only two parts");
    let called_back = held(&second, None).part_ended(PartEnd::Canceled, at(9));
    assert_eq!((called_back.phase, called_back.part), (Phase::Replied, 1), "the same part is sent after the hold");
}

#[test]
fn the_remaining_parts_are_not_sent_after_a_person_has_answered() {
    let sending = asked(&received(&[0]), 5).replied(3, at(6)).settle();
    assert_eq!(sending.part_ended(PartEnd::Sent, at(7)).phase, Phase::Idle);
    let called_back = held(&asked(&received(&[0]), 5).replied(1, at(6)), None).settle();
    assert_eq!(called_back.part_ended(PartEnd::Canceled, at(7)).phase, Phase::Idle);
}

#[test]
fn recovery_checks_every_unsettled_conversation_unless_a_person_holds_it() {
    let pending = received(&[0]);
    assert_eq!(pending.recovery_check_at(at(0), &TIMING), Some(at(65)));
    let asking = asked(&pending, 5);
    assert_eq!(asking.recovery_check_at(at(5), &TIMING), Some(at(50)));
    assert_eq!(asking.failed(at(6), &TIMING).recovery_check_at(at(6), &TIMING), Some(at(71)));
    assert_eq!(asking.awaiting(at(6), &TIMING).recovery_check_at(at(6), &TIMING), Some(at(606)));
    assert!(asking.replied(1, at(6)).recovery_check_at(at(6), &TIMING).is_some());
    assert_eq!(asking.replied(0, at(6)).recovery_check_at(at(6), &TIMING), None);
    assert_eq!(held(&pending, None).recovery_check_at(at(6), &TIMING), None);
}

/// One message every two seconds for ten minutes, each with its own wake-up. These are the figures
/// from the issue.
#[test]
fn a_steady_stream_is_answered_in_batches_that_miss_and_repeat_no_message() {
    let (mut course, mut batches, mut longest) = (Course::default(), Vec::new(), 0);
    let mut arrived = Vec::new();
    for second in 0..700 {
        if course.next(at(second), &TIMING) == WorkerStep::Claim {
            let claimed = course.claim(all(&course), at(second), &TIMING);
            batches.push((claimed.answered + 1..=claimed.claimed).collect::<Vec<_>>());
            let first = arrived[usize::try_from(claimed.answered).expect("few")];
            longest = longest.max(second - first);
            course = claimed.replied(1, at(second)).part_ended(PartEnd::Sent, at(second));
        }
        if second < 600 && second % 2 == 0 {
            course = course.receive(at(second), None);
            arrived.push(second);
        }
    }
    assert!(batches.len() >= 20, "{} batches", batches.len());
    assert_eq!(batches.concat(), (1..=300).collect::<Vec<u64>>());
    assert!(longest <= 31, "the longest wait was {longest} s");
}
