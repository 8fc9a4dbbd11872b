use super::*;
use crate::codes::SendingHold;
use crate::delivery::ThrottleScope;

const HOLD: UnknownPolicy = UnknownPolicy::Hold;
const RESEND: UnknownPolicy = UnknownPolicy::Resend;
const NOW: Timestamp = Timestamp::from_seconds(1_000_000);
const ANY_TIME: Window = Window { not_before: None, not_after: None };

fn claim(attempt: u32) -> Claim {
    Claim { attempt, token: format!("r/{attempt}"), deadline: NOW.plus_ms(30_000) }
}

fn queued() -> Delivery {
    Delivery::default()
}

fn sending(attempt: u32) -> Delivery {
    Delivery { attempt: attempt - 1, ..queued() }.claimed(&claim(attempt)).expect("claimed")
}

fn now(settled: Settled<Delivery>) -> Delivery {
    match settled {
        Settled::Now(delivery) => delivery,
        other => panic!("not settled: {other:?}"),
    }
}

fn unknown(attempt: u32) -> Delivery {
    now(sending(attempt).settled(attempt, &Verdict::Unknown { code: "timed_out" }, NOW))
}

fn judge(delivery: &Delivery, outcome: Outcome, policy: UnknownPolicy, not_after: Option<Timestamp>) -> Verdict {
    delivery.verdict(Window { not_before: None, not_after }, outcome, policy, NOW, 1_000)
}

fn again(why: Again) -> Verdict {
    Verdict::Again { why, code: "c", not_before: NOW.plus_ms(2_000) }
}

const FAILED: Verdict = Verdict::Failed { code: "c", suppress: false };

fn sent() -> Verdict {
    Verdict::Sent { provider_id: "p".to_owned() }
}

const ALL: [State; 9] = [
    State::Queued,
    State::Sending,
    State::Sent,
    State::Failed,
    State::Unknown,
    State::Deduped,
    State::Canceled,
    State::Suppressed,
    State::Expired,
];

#[test]
fn only_a_queued_delivery_is_claimed_and_each_claim_is_the_next_attempt() {
    assert_eq!(queued().next(ANY_TIME, NOW), NextStep::Claim { attempt: 1 });
    assert_eq!(Delivery { attempt: 3, ..queued() }.next(ANY_TIME, NOW), NextStep::Claim { attempt: 4 });
    assert_eq!(queued().claimed(&claim(2)), None, "the claim skips an attempt number");
    for state in ALL.into_iter().filter(|state| *state != State::Queued) {
        let delivery = Delivery { state, ..queued() };
        assert_eq!(delivery.next(ANY_TIME, NOW), NextStep::Leave, "{state:?}");
        assert_eq!(delivery.claimed(&claim(1)), None, "{state:?}");
    }
}

#[test]
fn a_delivery_waits_for_its_time_and_expires_after_it() {
    let at = |not_before| Window { not_before, not_after: None };
    let until = NOW.plus_ms(1);
    assert_eq!(queued().next(at(Some(until)), NOW), NextStep::Wait { until });
    assert_eq!(queued().next(at(Some(NOW)), NOW), NextStep::Claim { attempt: 1 });
    let backed_off = Delivery { not_before: Some(until), ..queued() };
    assert_eq!(backed_off.next(at(Some(NOW)), NOW), NextStep::Wait { until }, "the later of both times");
    let over = Window { not_before: None, not_after: Some(NOW.plus_ms(-1)) };
    assert_eq!(queued().next(over, NOW), NextStep::Expire);
    let last_moment = Window { not_before: None, not_after: Some(NOW) };
    assert_eq!(queued().next(last_moment, NOW), NextStep::Claim { attempt: 1 });
}

#[test]
fn a_transient_failure_is_retried_a_limited_number_of_times() {
    let transient = || Outcome::Transient { code: "c" };
    for attempt in 1..MAX_ATTEMPTS {
        let verdict = judge(&sending(attempt), transient(), HOLD, None);
        assert!(matches!(verdict, Verdict::Again { not_before, .. } if not_before > NOW), "{attempt}");
    }
    assert_eq!(judge(&sending(MAX_ATTEMPTS), transient(), HOLD, None), FAILED);
    let resent = Delivery { tries_from: MAX_ATTEMPTS, ..sending(MAX_ATTEMPTS + 1) };
    assert_eq!(judge(&resent, transient(), HOLD, None), again(Again::Retry), "tries count from the order to resend");
}

#[test]
fn a_missing_credential_is_retried_without_limit_at_growing_intervals() {
    let refused = || Outcome::Unauthorized { code: "c" };
    assert_eq!(judge(&sending(1), refused(), HOLD, None), again(Again::Retry));
    let last = sending(MAX_ATTEMPTS);
    let verdict = judge(&last, refused(), HOLD, None);
    let not_before = NOW.plus_ms(HELD_WAIT_MS);
    assert_eq!(verdict, Verdict::Again { why: Again::Throttled, code: "c", not_before });
    let next =
        Delivery { attempt: MAX_ATTEMPTS + 1, state: State::Sending, ..now(last.settled(MAX_ATTEMPTS, &verdict, NOW)) };
    assert_eq!(judge(&next, refused(), HOLD, None), verdict, "every later attempt waits as long");
}

#[test]
fn a_throttle_or_a_hold_waits_exactly_and_does_not_count_as_a_try() {
    let last = sending(MAX_ATTEMPTS);
    let hour = 3_600_000;
    for (outcome, code, wait_ms) in [
        (Outcome::Throttled { retry_after_ms: hour, scope: ThrottleScope::Bot }, "throttled", hour),
        (Outcome::NoSlot { wait_ms: 700 }, "provider_not_called", 700),
        (Outcome::Held { why: SendingHold::SendingPaused }, "sending_paused", HELD_WAIT_MS),
    ] {
        let verdict = judge(&last, outcome.clone(), HOLD, None);
        assert_eq!(verdict, Verdict::Again { why: Again::Throttled, code, not_before: NOW.plus_ms(wait_ms) });
        assert_eq!(now(last.settled(MAX_ATTEMPTS, &verdict, NOW)).tries_from, 1);
        let impatient = Some(NOW.plus_ms(wait_ms - 1));
        assert_eq!(judge(&last, outcome, HOLD, impatient), Verdict::Expired { code });
    }
}

#[test]
fn an_unknown_attempt_is_resent_only_by_policy_and_a_limited_number_of_times() {
    let lost = || Outcome::Unknown { code: "c" };
    let held = Verdict::Unknown { code: "c" };
    assert_eq!(judge(&sending(1), lost(), HOLD, None), held);
    assert_eq!(judge(&sending(1), lost(), RESEND, None), again(Again::Policy));
    assert_eq!(judge(&sending(MAX_ATTEMPTS), lost(), RESEND, None), held);
    assert_eq!(judge(&sending(1), lost(), RESEND, Some(NOW)), held, "too late to resend, but it may have been sent");
    let recalled = sending(1).cancel().1.expect("a recall");
    assert_eq!(judge(&recalled, lost(), RESEND, None), held, "it was canceled");
}

#[test]
fn an_outcome_settles_only_the_attempt_that_is_under_way() {
    for (verdict, state) in [
        (sent(), State::Sent),
        (FAILED, State::Failed),
        (Verdict::Expired { code: "c" }, State::Expired),
        (Verdict::Unknown { code: "c" }, State::Unknown),
        (again(Again::Retry), State::Queued),
        (again(Again::Policy), State::Queued),
    ] {
        let settled = now(sending(2).settled(2, &verdict, NOW));
        assert_eq!((settled.state, settled.deadline, settled.claim.as_ref()), (state, None, None), "{verdict:?}");
        if verdict != sent() {
            assert_eq!(sending(2).settled(1, &verdict, NOW), Settled::TooLate, "{verdict:?}");
        }
        if verdict != again(Again::Policy) {
            assert_eq!(settled.settled(2, &verdict, NOW), Settled::Already, "{verdict:?}");
        }
    }
}

#[test]
fn proof_of_sending_settles_a_delivery_at_any_time() {
    let resent = unknown(1).resent().expect("queued again");
    let failed = now(sending(1).settled(1, &FAILED, NOW));
    let not_sent = unknown(1).declared(false, NOW).expect("settled");
    for delivery in [sending(1), unknown(1), resent.clone(), failed, not_sent] {
        let settled = now(delivery.confirmed(1, "p", NOW));
        assert_eq!((settled.state, settled.sent_attempt()), (State::Sent, Some(1)), "{delivery:?}");
        assert!(settled.reason.is_none() && settled.not_before.is_none());
        assert_eq!(settled.confirmed(1, "p", NOW), Settled::Already);
    }
    for state in [State::Canceled, State::Suppressed, State::Expired, State::Deduped] {
        let ended = Delivery { state, attempt: 1, ..queued() };
        assert_eq!(ended.confirmed(1, "p", NOW), Settled::TooLate, "{state:?}");
    }
    assert_eq!(queued().confirmed(1, "p", NOW), Settled::TooLate, "no such attempt");
    assert_eq!(queued().confirmed(0, "p", NOW), Settled::TooLate);
}

#[test]
fn proof_adds_the_provider_id_to_a_delivery_that_an_operator_declared_sent() {
    let declared = unknown(1).declared(true, NOW).expect("settled");
    let settled = now(declared.confirmed(1, "p", NOW.plus_ms(5)));
    assert_eq!((settled.state, settled.provider_id.as_deref()), (State::Sent, Some("p")));
    assert_eq!(settled.sent_at, Some(NOW), "the time of the operator's declaration is kept");
}

#[test]
fn an_earlier_attempt_that_was_sent_decides_the_outcome_of_the_delivery() {
    let second = unknown(1).resent().and_then(|queued| queued.claimed(&claim(2))).expect("a second attempt");
    let known = now(second.confirmed(1, "p", NOW));
    assert_eq!((known.state, known.sent_attempt()), (State::Sending, Some(1)), "the later one is under way");
    assert_eq!(known.confirmed(1, "p", NOW), Settled::Already);
    for verdict in [FAILED, again(Again::Retry), Verdict::Unknown { code: "c" }] {
        let settled = now(known.settled(2, &verdict, NOW));
        assert_eq!((settled.state, settled.provider_id.as_deref()), (State::Sent, Some("p")), "{verdict:?}");
    }
    assert_eq!(now(known.rejected(2, "r")).state, State::Sent);
}

#[test]
fn a_delivery_in_doubt_does_not_end_as_not_sent() {
    let doubtful = unknown(1).resent().expect("queued again");
    assert_eq!(doubtful.doubts, [1]);
    assert_eq!(doubtful.ended(State::Suppressed, None).map(|ended| ended.state), Some(State::Unknown));
    assert_eq!(doubtful.cancel().0, Cancel::InFlight);
    let second = doubtful.claimed(&claim(2)).expect("a second attempt");
    for verdict in [FAILED, Verdict::Expired { code: "c" }] {
        assert_eq!(now(second.settled(2, &verdict, NOW)).state, State::Unknown, "{verdict:?}");
    }
    let by_policy = now(sending(1).settled(1, &again(Again::Policy), NOW));
    assert_eq!((by_policy.state, by_policy.doubts.as_slice()), (State::Queued, [1].as_slice()));
}

#[test]
fn a_late_sender_resolves_the_doubt_about_its_own_attempt_only() {
    for verdict in [FAILED, again(Again::Retry), Verdict::Expired { code: "c" }] {
        let settled = now(unknown(1).settled(1, &verdict, NOW));
        assert_eq!((settled.state, settled.reason.as_deref()), (State::Failed, Some("c")), "{verdict:?}");
    }
    assert_eq!(unknown(1).settled(1, &again(Again::Policy), NOW), Settled::TooLate, "outcome unknown");
    let second = now(unknown(1).resent().expect("queued").claimed(&claim(2)).expect("claimed").settled(
        2,
        &Verdict::Unknown { code: "c" },
        NOW,
    ));
    assert_eq!(second.doubts, [1, 2]);
    let first_resolved = now(second.settled(1, &FAILED, NOW));
    assert_eq!((first_resolved.state, first_resolved.doubts.as_slice()), (State::Unknown, [2].as_slice()));
    assert_eq!(now(first_resolved.settled(2, &FAILED, NOW)).state, State::Failed);
    let resent = unknown(1).resent().expect("queued");
    let resolved = now(resent.settled(1, &FAILED, NOW));
    assert_eq!((resolved.state, resolved.doubts.len()), (State::Queued, 0), "the order to resend still holds");
}

#[test]
fn a_cancel_takes_effect_when_a_lost_attempt_turns_out_not_sent() {
    let recalled = sending(1).cancel().1.expect("a recall");
    let given_up = now(recalled.settled(1, &Verdict::Unknown { code: "sender_lost" }, NOW));
    assert_eq!((given_up.state, given_up.reason.as_deref()), (State::Unknown, Some("sender_lost")));
    assert_eq!(now(given_up.settled(1, &again(Again::Retry), NOW)).state, State::Canceled);
    assert_eq!(now(given_up.settled(1, &sent(), NOW)).state, State::Sent);
}

#[test]
fn a_rejected_attempt_was_not_sent_and_later_proof_is_ignored() {
    for delivery in [sending(1), unknown(1), now(sending(1).settled(1, &sent(), NOW))] {
        let rejected = now(delivery.rejected(1, "rejected"));
        assert_eq!((rejected.state, rejected.reason.as_deref()), (State::Failed, Some("rejected")), "{delivery:?}");
        assert_eq!(rejected.confirmed(1, "p", NOW), Settled::TooLate);
        assert_eq!(rejected.rejected(1, "rejected"), Settled::Already);
    }
    assert_eq!(sending(1).rejected(2, "rejected"), Settled::TooLate, "no such attempt");
}

#[test]
fn a_rejected_attempt_leaves_the_doubt_about_another_attempt() {
    let second = unknown(1).resent().and_then(|queued| queued.claimed(&claim(2))).expect("a second attempt");
    let rejected = now(second.rejected(2, "rejected"));
    assert_eq!((rejected.state, rejected.doubts.as_slice()), (State::Unknown, [1].as_slice()));
    let sent_then_rejected = now(now(second.settled(2, &sent(), NOW)).rejected(2, "rejected"));
    assert_eq!(sent_then_rejected.state, State::Unknown, "the first may have been sent");
    let both_unknown = now(second.settled(2, &Verdict::Unknown { code: "c" }, NOW));
    assert_eq!(now(both_unknown.rejected(1, "rejected")).state, State::Unknown, "the second may have been sent");
    let first_rejected = now(second.rejected(1, "rejected"));
    assert_eq!((first_rejected.state, first_rejected.doubts.len()), (State::Sending, 0));
}

#[test]
fn the_order_of_events_does_not_change_what_is_known_about_attempts() {
    let second = unknown(1).resent().and_then(|queued| queued.claimed(&claim(2))).expect("a second attempt");
    // Both attempts were sent, and the provider then rejects one of them.
    let both = now(now(second.confirmed(1, "p", NOW)).settled(2, &sent(), NOW));
    assert_eq!((both.state, both.sent_attempts.as_slice()), (State::Sent, [1, 2].as_slice()));
    assert_eq!(now(both.rejected(1, "r")).state, State::Sent);
    // The first attempt is proved sent, the second is unknown. If the provider rejects the first,
    // the second may still have been sent.
    let first = now(now(second.confirmed(1, "p", NOW)).settled(2, &Verdict::Unknown { code: "c" }, NOW));
    assert_eq!((first.state, first.doubts.as_slice()), (State::Sent, [2].as_slice()));
    assert_eq!(now(first.rejected(1, "r")).state, State::Unknown);
    // The rejection of another attempt is recorded, so that late proof of that attempt does not
    // count.
    let by_second = now(second.settled(2, &sent(), NOW));
    let rejected = now(now(by_second.rejected(1, "r")).rejected(2, "r"));
    assert_eq!((rejected.state, rejected.sent_at), (State::Failed, None));
    assert_eq!(rejected.confirmed(1, "p", NOW), Settled::TooLate);
}

#[test]
fn a_cancel_and_its_repeat_answer_canceled_in_flight_or_already_sent() {
    use Cancel::{Already, AlreadySent, Ended, InFlight, Now};
    let answers: Vec<_> = ALL.into_iter().map(|state| Delivery { state, attempt: 1, ..queued() }.cancel().0).collect();
    assert_eq!(answers, [Now, InFlight, AlreadySent, Ended, InFlight, Ended, Already, Ended, Ended]);
    let recalled = sending(1).cancel().1.expect("a recall");
    assert_eq!((recalled.state, recalled.recalled), (State::Sending, Some(1)));
    assert_eq!(recalled.cancel(), (InFlight, None), "nothing more to write");
    for why in [Again::Retry, Again::Throttled] {
        assert_eq!(now(recalled.settled(1, &again(why), NOW)).state, State::Canceled, "{why:?}");
    }
    assert_eq!(now(recalled.settled(1, &again(Again::Policy), NOW)).state, State::Unknown, "it may have been sent");
    assert_eq!(now(recalled.settled(1, &sent(), NOW)).state, State::Sent);
}

#[test]
fn only_a_failed_or_unknown_delivery_is_resent_and_the_resend_clears_a_recall() {
    for state in ALL {
        let delivery = Delivery { state, attempt: 2, recalled: Some(2), ..queued() };
        let resent = delivery.resent();
        assert_eq!(resent.is_some(), matches!(state, State::Failed | State::Unknown), "{state:?}");
        if let Some(resent) = resent {
            assert_eq!((resent.state, resent.tries_from, resent.recalled), (State::Queued, 2, None));
        }
    }
}

#[test]
fn only_a_queued_delivery_is_deferred() {
    let until = NOW.plus_ms(5);
    for state in ALL {
        let deferred = Delivery { state, ..queued() }.deferred(until, "c");
        let waiting = Delivery { not_before: Some(until), reason: Some("c".to_owned()), ..queued() };
        assert_eq!(deferred, (state == State::Queued).then_some(waiting), "{state:?}");
    }
}

#[test]
fn a_delivery_may_be_sent_if_an_attempt_was_sent_or_is_in_doubt() {
    for (sent_attempts, doubts, expected) in
        [(vec![], vec![], false), (vec![1], vec![], true), (vec![], vec![1], true), (vec![1], vec![2], true)]
    {
        let delivery = Delivery { attempt: 2, sent_attempts, doubts, ..queued() };
        assert_eq!(delivery.may_be_sent(), expected, "{delivery:?}");
    }
}

#[test]
fn an_operator_settles_only_an_unknown_delivery() {
    for state in ALL.into_iter().filter(|state| *state != State::Unknown) {
        assert_eq!(Delivery { state, ..queued() }.declared(true, NOW), None, "{state:?}");
    }
    let sent = unknown(1).declared(true, NOW).expect("settled");
    assert_eq!((sent.state, sent.sent_at, sent.doubts.as_slice()), (State::Sent, Some(NOW), [1].as_slice()));
    let failed = unknown(1).declared(false, NOW).expect("settled");
    assert_eq!((failed.state, failed.doubts.len()), (State::Failed, 0));
    assert_eq!(now(sent.rejected(1, "rejected")).state, State::Failed, "no other attempt is in doubt");
}

#[test]
fn the_wake_up_of_a_delivery_follows_from_its_state() {
    let emit =
        |seq, not_before| crate::outbox::Emit { seq, queue: "q".into(), not_before, id: "a".into(), body: "{}".into() };
    let waits = |delivery: &Delivery| {
        let mut work = Work::default();
        work.follow(delivery, "a", NOW, emit);
        (work.wake.map(|wake| wake.split('#').next().unwrap_or_default().to_owned()), work.emit.is_some(), work.later)
    };
    assert_eq!(waits(&queued()), (Some("CHECK".into()), true, None));
    let (wake, emitted, later) = waits(&Delivery { not_before: Some(NOW.plus_days(1)), ..queued() });
    assert_eq!((wake.as_deref(), emitted, later.is_some()), (Some("DUE"), false, true));
    assert_eq!(waits(&sending(1)), (Some("CHECK".into()), false, None));
    assert_eq!(waits(&unknown(1)), (Some("UNKNOWN".into()), false, None));
    assert_eq!(waits(&Delivery { state: State::Sent, ..queued() }), (None, false, None));
    let far = Delivery { not_before: Some(NOW.plus_days(1)), ..queued() };
    for next in [queued(), sending(1), unknown(1), Delivery { state: State::Sent, ..queued() }] {
        let mut work = Work::default();
        work.follow(&far, "a", NOW, emit);
        assert!(work.later.is_some());
        work.follow(&next, "a", NOW, emit);
        assert_eq!(work.later, None, "a sweep no longer emits it: {:?}", next.state);
    }
}
