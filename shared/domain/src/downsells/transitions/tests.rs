use serde_json::json;

use super::*;
use crate::delivery::{Again, NextStep, code};
use crate::downsells::schedule::tests::{KEEP_DAYS, after_payment, downsell, minutes, now, offer, open, pix, start};
use crate::work::{LOOK_AHEAD_MS, Work};

const CHECK_AFTER_MS: i64 = check_after_ms(0);

const HOLD: UnknownPolicy = UnknownPolicy::Hold;
const RESEND: UnknownPolicy = UnknownPolicy::Resend;

fn bot() -> BotRow {
    let body = json!({"slug": "loja"});
    BotRow::read(body.as_object().expect("an object"), now()).expect("a bot")
}

fn plain() -> DownsellRow {
    downsell(12, &json!({}))
}

/// Returns an offer that is due in five minutes.
fn of_start() -> OfferRow {
    offer(&start("5001"), open(&["t1"]))
}

fn of_pix() -> OfferRow {
    offer(&pix("t1"), open(&["t1"]))
}

fn deadline() -> Timestamp {
    minutes(6)
}

/// Returns an offer whose first attempt has been under way since five minutes after now.
fn sending() -> OfferRow {
    of_start().claimed(&claim(1, deadline()), minutes(5)).expect("it is queued")
}

fn claim(attempt: u32, deadline: Timestamp) -> Claim {
    Claim { attempt, token: "r/0".to_owned(), deadline }
}

fn learned(row: &OfferRow, attempt: u32, verdict: &Verdict) -> OfferRow {
    match row.settled(attempt, verdict, minutes(6), KEEP_DAYS) {
        Settled::Now(row) => row,
        other => panic!("{other:?}"),
    }
}

fn sent() -> Verdict {
    Verdict::Sent { provider_id: "p-1".to_owned() }
}

fn again(why: Again) -> Verdict {
    Verdict::Again { why, code: "a_code", not_before: minutes(7) }
}

fn unknown() -> OfferRow {
    learned(&sending(), 1, &Verdict::Unknown { code: "timed_out" })
}

/// Returns an offer that the policy queued again; its first attempt may have been sent.
fn in_doubt() -> OfferRow {
    learned(&sending(), 1, &again(Again::Policy))
}

fn waits_in(row: &OfferRow) -> Option<(Wake, Timestamp)> {
    let shard = keys::wake_shard(row.id.as_str());
    let at = row.work.wake_at.as_deref().and_then(keys::time_of)?;
    let wakes = [Wake::Check, Wake::Due, Wake::Unknown];
    wakes.into_iter().find(|wake| row.work.wake == Some(keys::wake(*wake, shard))).map(|wake| (wake, at))
}

fn closed(end: OfferEnd) -> Option<ClosedGate> {
    Some(ClosedGate::Ends(end))
}

#[test]
fn an_offer_of_a_start_may_be_sent_while_any_charge_is_open() {
    let gate = |charges: Option<&ChargesRow>, at| of_start().gate(Some(&bot()), Some(&plain()), charges, at);
    assert_eq!(gate(Some(&open(&["t1"])), minutes(5)), None);
    assert_eq!(gate(Some(&open(&["t9"])), minutes(5)), None, "any open charge is enough");
    let unpaid = closed(OfferEnd::Skipped(CancelReason::NoUnpaidPix));
    assert_eq!(gate(Some(&open(&["t1"])), minutes(60)), unpaid, "the charge has expired by its own time");
    assert_eq!(gate(Some(&open(&[])), now()), unpaid);
    assert_eq!(gate(None, now()), unpaid);
}

#[test]
fn an_offer_of_a_charge_may_be_sent_only_while_that_charge_is_open() {
    let gate = |charges: Option<&ChargesRow>, at| of_pix().gate(Some(&bot()), Some(&plain()), charges, at);
    assert_eq!(gate(Some(&open(&["t1", "t2"])), minutes(60).plus_ms(-1)), None);
    let expired = closed(OfferEnd::Canceled(CancelReason::Expired));
    assert_eq!(gate(Some(&open(&["t1"])), minutes(60)), expired);
    let other = gate(Some(&open(&["t2"])), minutes(5));
    let Some(ClosedGate::PassedOn(passed)) = other else {
        panic!("the offer is not moved to the other charge: {other:?}")
    };
    let gate_of_passed = passed.gate(Some(&bot()), Some(&plain()), Some(&open(&["t2"])), minutes(5));
    assert_eq!((passed.transaction_id.as_deref(), gate_of_passed), (Some("t2"), None));
    assert_eq!(gate(None, minutes(5)), expired);
}

#[test]
fn an_offer_from_before_a_payment_is_not_sent_even_if_a_charge_is_open() {
    let charges = after_payment(&open(&["t1", "t2"]), "t2");
    for row in [of_start(), of_pix()] {
        let gate = row.gate(Some(&bot()), Some(&plain()), Some(&charges), minutes(5));
        assert_eq!(gate, closed(OfferEnd::Canceled(CancelReason::Paid)));
    }
    let since = offer(&start("5002"), charges.clone());
    assert_eq!(since.gate(Some(&bot()), Some(&plain()), Some(&charges), minutes(5)), None);
}

#[test]
fn inactive_and_deleted_bots_and_downsells_send_nothing() {
    let charges = open(&["t1"]);
    let gate = |bot: Option<&BotRow>, downsell: Option<&DownsellRow>| {
        of_start().gate(bot, downsell, Some(&charges), minutes(5))
    };
    let (resting_bot, resting) = (BotRow { active: false, ..bot() }, DownsellRow { active: false, ..plain() });
    assert_eq!(gate(Some(&resting_bot), Some(&plain())), closed(OfferEnd::Skipped(CancelReason::BotInactive)));
    assert_eq!(gate(None, Some(&plain())), closed(OfferEnd::Skipped(CancelReason::BotInactive)));
    assert_eq!(gate(Some(&bot()), None), closed(OfferEnd::Canceled(CancelReason::Deleted)));
    assert_eq!(gate(Some(&bot()), Some(&resting)), closed(OfferEnd::Skipped(CancelReason::Inactive)));
}

#[test]
fn a_payment_outranks_all_other_reasons() {
    let charges = after_payment(&open(&["t1"]), "t1");
    assert_eq!(of_pix().gate(None, None, Some(&charges), minutes(99)), closed(OfferEnd::Canceled(CancelReason::Paid)));
    assert_eq!(of_pix().outdated(Some(&charges), minutes(99)), Some(OfferEnd::Canceled(CancelReason::Paid)));
    assert_eq!(of_start().outdated(Some(&open(&[])), minutes(99)), None, "a closed gate does not end the offer");
}

#[test]
fn only_a_queued_offer_is_claimed_and_only_as_its_next_attempt() {
    let row = of_start();
    assert_eq!((row.claimed(&claim(0, deadline()), now()), row.claimed(&claim(2, deadline()), now())), (None, None));
    let canceled = row.ended(OfferEnd::Canceled(CancelReason::Deleted), now(), KEEP_DAYS).expect("it is queued");
    for row in [sending(), unknown(), canceled, learned(&sending(), 1, &sent())] {
        let next = row.claimed(&claim(row.delivery.attempt + 1, deadline()), now());
        assert_eq!(next, None, "{:?} {:?}", row.status, row.delivery.state);
    }
    assert_eq!(in_doubt().claimed(&claim(2, deadline()), now()).map(|row| row.delivery.attempt), Some(2));
}

#[test]
fn a_claim_emits_nothing_and_recovery_checks_it_after_its_deadline() {
    let row = sending();
    assert_eq!((row.delivery.state, row.delivery.attempt, row.work.emit.as_ref()), (State::Sending, 1, None));
    assert_eq!((row.delivery.deadline, row.delivery.claim.as_deref()), (Some(deadline().millis()), Some("r/0")));
    assert_eq!((row.last_attempt_at, row.version), (Some(minutes(5)), of_start().version + 1));
    assert!(matches!(waits_in(&row), Some((Wake::Check, at)) if at >= deadline()), "{:?}", row.work.wake_at);
}

#[test]
fn a_sent_offer_has_ended_and_records_its_lateness() {
    let row = learned(&sending(), 1, &sent());
    assert_eq!((row.status, row.delivery.provider_id.as_deref()), (OfferStatus::Sent, Some("p-1")));
    assert_eq!((row.delivery.sent_at, row.late_ms), (Some(minutes(6)), Some(60_000)));
    assert_eq!((waits_in(&row), row.work.emit, row.delivery.deadline, row.delivery.claim), (None, None, None, None));
    assert_eq!(row.expires_at, Some(minutes(6).plus_days(KEEP_DAYS).seconds()));
}

#[test]
fn a_failed_or_expired_attempt_ends_the_offer() {
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "blocked", suppress: true });
    assert_eq!((failed.status, failed.delivery.reason.as_deref()), (OfferStatus::Failed, Some("blocked")));
    let expired = learned(&sending(), 1, &Verdict::Expired { code: "throttled" });
    assert_eq!((expired.status, expired.delivery.reason.as_deref()), (OfferStatus::Expired, Some("throttled")));
    for row in [failed, expired] {
        assert_eq!((row.cancel_reason, waits_in(&row)), (None, None));
        assert!(row.expires_at.is_some());
    }
}

#[test]
fn an_unknown_offer_is_pending_and_waits_for_an_operator() {
    let row = unknown();
    assert_eq!((row.status, row.delivery.state, row.unknown), (OfferStatus::Pending, State::Unknown, true));
    assert_eq!((row.delivery.reason.as_deref(), row.expires_at), (Some("timed_out"), None));
    assert_eq!((waits_in(&row), row.work.emit), (Some((Wake::Unknown, minutes(6))), None));
}

#[test]
fn a_retry_waits_for_its_time_and_a_throttle_does_not_count_as_a_try() {
    let row = learned(&sending(), 1, &again(Again::Retry));
    assert_eq!(
        (row.delivery.state, row.delivery.not_before, row.delivery.tries_from),
        (State::Queued, Some(minutes(7)), 0)
    );
    assert_eq!((row.delivery.doubts.len(), row.delivery.deadline, row.delivery.claim.as_deref()), (0, None, None));
    assert_eq!(row.work.emit.as_ref().and_then(|emit| emit.not_before), Some(minutes(7).millis()));
    let next = row.delivery.next(row.window(), minutes(6));
    assert_eq!(next, NextStep::Wait { until: minutes(7) }, "it waits for its time");
    assert_eq!(learned(&sending(), 1, &again(Again::Throttled)).delivery.tries_from, 1);
    let hour = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: minutes(66) };
    let row = learned(&sending(), 1, &hour);
    assert_eq!((waits_in(&row), row.work.emit), (Some((Wake::Due, minutes(66))), None), "longer than a queue can hold");
}

#[test]
fn an_outcome_other_than_sent_counts_only_while_its_attempt_is_under_way() {
    let queued = learned(&sending(), 1, &again(Again::Retry));
    let second = queued.claimed(&claim(2, minutes(9)), minutes(8)).expect("it is queued");
    let others = [
        Verdict::Failed { code: "a", suppress: false },
        Verdict::Expired { code: "a" },
        Verdict::Unknown { code: "a" },
        again(Again::Retry),
    ];
    for verdict in &others {
        for row in [&of_start(), &second, &learned(&sending(), 1, &sent())] {
            let late = row.settled(1, verdict, minutes(9), KEEP_DAYS);
            assert_eq!(late, Settled::TooLate, "{verdict:?} {:?} {:?}", row.status, row.delivery.state);
        }
    }
}

#[test]
fn proof_of_sending_settles_an_offer_at_any_time() {
    let second = in_doubt().claimed(&claim(2, minutes(9)), minutes(8)).expect("it is queued");
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "a", suppress: false });
    for row in [sending(), unknown(), in_doubt(), failed] {
        let row = learned(&row, 1, &sent());
        assert_eq!((row.status, row.unknown), (OfferStatus::Sent, false));
        assert_eq!((row.delivery.reason, row.work.emit, row.work.wake), (None, None, None), "nothing is tried again");
    }
    let known = learned(&second, 1, &sent());
    assert_eq!(
        (known.status, known.delivery.sent_attempt()),
        (OfferStatus::Pending, Some(1)),
        "the second is under way"
    );
    assert_eq!(learned(&known, 2, &again(Again::Retry)).status, OfferStatus::Sent);
    let already = learned(&sending(), 1, &sent());
    assert_eq!(already.settled(1, &sent(), minutes(9), KEEP_DAYS), Settled::Already);
}

#[test]
fn proof_is_ignored_for_an_attempt_not_begun_and_for_a_canceled_offer() {
    assert_eq!(of_start().settled(1, &sent(), minutes(9), KEEP_DAYS), Settled::TooLate);
    let queued = learned(&sending(), 1, &again(Again::Retry));
    let canceled = queued.ended(OfferEnd::Canceled(CancelReason::Paid), minutes(8), KEEP_DAYS).expect("it is queued");
    assert_eq!(canceled.settled(1, &sent(), minutes(9), KEEP_DAYS), Settled::TooLate);
}

#[test]
fn an_offer_in_doubt_does_not_end_as_not_sent() {
    let second = in_doubt().claimed(&claim(2, minutes(9)), minutes(8)).expect("it is queued");
    assert_eq!((in_doubt().delivery.doubts, &second.delivery.doubts), (vec![1], &vec![1]));
    let ends = [
        in_doubt().ended(OfferEnd::Canceled(CancelReason::Paid), minutes(8), KEEP_DAYS),
        in_doubt().ended(OfferEnd::Skipped(CancelReason::NoUnpaidPix), minutes(8), KEEP_DAYS),
        in_doubt().ended(OfferEnd::Expired, minutes(8), KEEP_DAYS),
        Some(learned(&second, 2, &Verdict::Failed { code: "a", suppress: false })),
        Some(learned(&second, 2, &Verdict::Expired { code: "a" })),
    ];
    for row in ends {
        let row = row.expect("it can be ended");
        assert_eq!((row.status, row.delivery.state, row.unknown), (OfferStatus::Pending, State::Unknown, true));
        assert_eq!(
            (row.expires_at, row.work.emit.as_ref(), row.claimed(&claim(3, minutes(9)), minutes(8))),
            (None, None, None)
        );
    }
    let retried = learned(&second, 2, &again(Again::Retry));
    assert_eq!(retried.delivery.doubts, [1], "the outcome of a later attempt does not settle the first");
}

#[test]
fn a_canceled_offer_in_doubt_that_turns_out_sent_is_no_longer_canceled() {
    let row = in_doubt().ended(OfferEnd::Canceled(CancelReason::Paid), minutes(8), KEEP_DAYS).expect("it is queued");
    assert_eq!(row.cancel_reason, Some(CancelReason::Paid));
    let row = learned(&row, 1, &sent());
    assert_eq!((row.status, row.cancel_reason, row.delivery.doubts.len()), (OfferStatus::Sent, None, 0));
}

#[test]
fn a_queued_offer_ends_with_its_reason_and_is_kept_for_some_days() {
    for (end, status, why) in [
        (OfferEnd::Canceled(CancelReason::Paid), OfferStatus::Canceled, Some(CancelReason::Paid)),
        (OfferEnd::Skipped(CancelReason::NoUnpaidPix), OfferStatus::Skipped, Some(CancelReason::NoUnpaidPix)),
        (OfferEnd::Expired, OfferStatus::Expired, None),
    ] {
        let row = of_start().ended(end, minutes(5), KEEP_DAYS).expect("it is queued");
        assert_eq!((row.status, row.cancel_reason), (status, why));
        assert_eq!((waits_in(&row), row.work.emit, row.version), (None, None, 2));
        assert_eq!(row.expires_at, Some(minutes(5).plus_days(KEEP_DAYS).seconds()));
    }
    for row in [sending(), unknown(), learned(&sending(), 1, &sent())] {
        assert_eq!(row.ended(OfferEnd::Expired, minutes(5), KEEP_DAYS), None, "{:?}", row.delivery.state);
    }
}

#[test]
fn a_cancel_answers_canceled_in_flight_or_already_sent() {
    let cancel = |row: &OfferRow| row.cancel(CancelReason::Paid, minutes(8), KEEP_DAYS);
    let (now, row) = cancel(&of_start());
    assert_eq!((now, row.map(|row| row.status)), (Cancel::Now, Some(OfferStatus::Canceled)));
    let (in_flight, row) = cancel(&in_doubt());
    assert_eq!((in_flight, row.map(|row| (row.is_pending(), row.unknown))), (Cancel::InFlight, Some((true, true))));
    assert_eq!(cancel(&unknown()), (Cancel::InFlight, None));
    assert_eq!(cancel(&learned(&sending(), 1, &sent())), (Cancel::AlreadySent, None));
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "a", suppress: false });
    assert_eq!(cancel(&failed), (Cancel::Ended, None));
}

#[test]
fn a_cancel_during_an_attempt_is_the_reason_only_if_the_attempt_was_not_sent() {
    let (cancel, recalled) = sending().cancel(CancelReason::Paid, minutes(6), KEEP_DAYS);
    let recalled = recalled.expect("a recall");
    assert_eq!(
        (cancel, recalled.status, recalled.delivery.recalled),
        (Cancel::InFlight, OfferStatus::Pending, Some(1))
    );
    let canceled = learned(&recalled, 1, &again(Again::Retry));
    assert_eq!((canceled.status, canceled.cancel_reason), (OfferStatus::Canceled, Some(CancelReason::Paid)));
    let left = learned(&recalled, 1, &sent());
    assert_eq!((left.status, left.cancel_reason), (OfferStatus::Sent, None));
    let failed = learned(&recalled, 1, &Verdict::Failed { code: "a", suppress: false });
    assert_eq!((failed.status, failed.cancel_reason), (OfferStatus::Failed, None));
}

#[test]
fn an_operator_declares_the_outcome_only_of_an_unknown_offer() {
    let sent_row = unknown().declared(true, minutes(9), KEEP_DAYS).expect("it is unknown");
    assert_eq!(
        (sent_row.status, sent_row.delivery.sent_at, sent_row.unknown),
        (OfferStatus::Sent, Some(minutes(9)), false)
    );
    let canceled_in_doubt =
        in_doubt().ended(OfferEnd::Canceled(CancelReason::Paid), minutes(8), KEEP_DAYS).expect("it is queued");
    for row in [unknown(), canceled_in_doubt] {
        let unsent = row.declared(false, minutes(9), KEEP_DAYS).expect("it is unknown");
        assert!(!unsent.is_pending() && unsent.status != OfferStatus::Sent, "{:?}", unsent.status);
        assert_eq!((unsent.delivery.doubts.len(), unsent.unknown, waits_in(&unsent)), (0, false, None));
        assert!(unsent.expires_at.is_some() && sent_row.expires_at.is_some());
    }
    for row in [of_start(), sending(), in_doubt(), sent_row] {
        assert_eq!(row.declared(true, minutes(9), KEEP_DAYS), None, "{:?} {:?}", row.status, row.delivery.state);
    }
}

fn emitted(recovery: Recovery<OfferRow>) -> OfferRow {
    match recovery {
        Recovery::Emitted(row) => row,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_offer_without_a_claim_is_emitted_again_and_checked_less_and_less_often() {
    let mut row = of_start();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (_, at) = waits_in(&row).expect("it is checked");
        let before = row.work.emit.as_ref().map(|emit| emit.seq);
        row = emitted(row.recovered(HOLD, at, 0, KEEP_DAYS));
        assert!(row.work.emit.as_ref().map(|emit| emit.seq) > before, "the relay sees another emission");
        assert!(row.is_queued() && row.delivery.attempt == 0);
        waits.push((waits_in(&row).expect("it is checked").1.millis() - at.millis()) / CHECK_AFTER_MS);
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 64, 64, 64, 64]);
}

#[test]
fn an_attempt_is_given_up_at_its_deadline_and_not_before() {
    assert_eq!(sending().recovered(HOLD, deadline().plus_ms(-1), 0, KEEP_DAYS), Recovery::Nothing);
    let Recovery::GivenUp(row) = sending().recovered(HOLD, deadline(), 0, KEEP_DAYS) else { panic!("it is unknown") };
    assert_eq!((row.delivery.state, row.delivery.reason.as_deref()), (State::Unknown, Some(code::SENDER_LOST)));
}

#[test]
fn the_resend_policy_repeats_a_lost_attempt_only_before_the_offer_expires() {
    let row = emitted(sending().recovered(RESEND, deadline(), 0, KEEP_DAYS));
    assert_eq!((row.delivery.state, row.delivery.doubts, row.delivery.attempt), (State::Queued, vec![1], 1));
    assert!(row.work.emit.is_some() && row.delivery.not_before > Some(deadline()));
    let late = OfferRow { not_after: deadline(), ..sending() };
    assert!(
        matches!(late.recovered(RESEND, deadline(), 0, KEEP_DAYS), Recovery::GivenUp(_)),
        "the offer expires before another attempt"
    );
}

#[test]
fn recovery_leaves_indexed_unknown_and_sent_offers_unchanged() {
    let far = offer(&start("5001"), open(&["t1"])).scheduled(now().plus_ms(LOOK_AHEAD_MS + 1), now());
    assert_eq!(far.work.emit, None);
    for row in [far, unknown(), learned(&sending(), 1, &sent())] {
        assert_eq!(
            row.recovered(RESEND, now().plus_days(9), 0, KEEP_DAYS),
            Recovery::Nothing,
            "{:?}",
            row.delivery.state
        );
    }
}

#[test]
fn an_offer_hidden_in_its_queue_is_not_checked_before_it_is_visible() {
    let row = of_start();
    let (_, check_at) = waits_in(&row).expect("it is checked");
    assert_eq!(row.postponed(minutes(5), minutes(5)), None, "the check comes late enough");
    let back = row.postponed(check_at, minutes(5)).expect("the check would come too soon");
    assert_eq!(waits_in(&back), Some((Wake::Check, check_at.plus_ms(CHECK_AFTER_MS))));
    assert_eq!(
        (back.work.emit, back.delivery.state, back.version),
        (row.work.emit, row.delivery.state, row.version + 1)
    );
    assert_eq!(sending().postponed(minutes(99), minutes(5)), None, "an attempt is under way");
}

#[test]
fn an_offer_of_a_start_gains_the_charge_and_keeps_its_earlier_time() {
    let row = of_start();
    let joined = row.joined("t1", minutes(9), minutes(4)).expect("it is queued");
    assert_eq!((joined.trigger, joined.transaction_id.as_deref()), (Trigger::Pix, Some("t1")));
    assert_eq!(
        (joined.scheduled_at, &joined.work.emit, &joined.work.wake_at),
        (row.scheduled_at, &row.work.emit, &row.work.wake_at)
    );
    assert_eq!((joined.id, joined.version), (row.id, row.version + 1));
}

#[test]
fn an_offer_of_a_start_that_gains_an_earlier_time_is_emitted_for_that_time() {
    let far = OfferRow { scheduled_at: minutes(50), ..of_start() }.scheduled(minutes(50), now());
    assert_eq!((&far.work.emit, waits_in(&far)), (&None, Some((Wake::Due, minutes(50)))));
    let joined = far.joined("t1", minutes(9), minutes(4)).expect("it is queued");
    assert_eq!(joined.scheduled_at, minutes(9));
    assert_eq!(joined.work.emit.as_ref().and_then(|emit| emit.not_before), Some(minutes(9).millis()));
    assert_eq!(waits_in(&joined), Some((Wake::Check, minutes(9).plus_ms(CHECK_AFTER_MS))));
}

#[test]
fn a_charge_joins_only_an_offer_of_a_start_without_an_attempt() {
    let tried = learned(&sending(), 1, &again(Again::Retry));
    let canceled = of_start().ended(OfferEnd::Expired, now(), KEEP_DAYS).expect("it is queued");
    for row in [sending(), unknown(), tried, of_pix(), canceled] {
        assert_eq!(row.joined("t2", now(), now()), None, "{:?} {:?}", row.trigger, row.delivery.state);
    }
}

#[test]
fn an_offer_has_the_same_delivery_states_as_a_message() {
    let states = |rows: &[OfferRow]| -> Vec<State> { rows.iter().map(|row| row.delivery.state).collect() };
    let ended = |end| of_start().ended(end, now(), KEEP_DAYS).expect("it is queued");
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "a", suppress: false });
    let rows = [of_start(), sending(), unknown(), learned(&sending(), 1, &sent()), failed];
    assert_eq!(states(&rows), [State::Queued, State::Sending, State::Unknown, State::Sent, State::Failed]);
    let rows = [
        ended(OfferEnd::Expired),
        ended(OfferEnd::Canceled(CancelReason::Paid)),
        ended(OfferEnd::Skipped(CancelReason::Inactive)),
    ];
    assert_eq!(states(&rows), [State::Expired, State::Canceled, State::Canceled]);
    let window = of_start().window();
    assert_eq!((window.not_before, window.not_after), (Some(minutes(5)), Some(minutes(5 + 1_440))));
}

#[test]
fn a_claim_moves_the_check_only_if_it_would_come_long_after_the_deadline() {
    let row = of_start();
    let claimed = row.claimed(&claim(1, deadline()), minutes(5)).expect("it is queued");
    assert_eq!(claimed.work.wake_at, row.work.wake_at, "an unchanged index entry costs no write");
    let work = Work { wake_at: Some(keys::at_time(minutes(600), row.id.as_str())), ..row.work.clone() };
    let often = OfferRow { work, ..row };
    let claimed = often.claimed(&claim(1, deadline()), minutes(5)).expect("it is queued");
    assert_eq!(waits_in(&claimed), Some((Wake::Check, deadline())), "the check moves to the deadline");
}

#[test]
fn a_duplicate_in_the_queue_does_not_postpone_an_offer_that_waits_for_a_sweep() {
    let limited = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: minutes(66) };
    let row = learned(&sending(), 1, &limited);
    assert_eq!(waits_in(&row), Some((Wake::Due, minutes(66))));
    assert_eq!(row.postponed(minutes(66), minutes(7)), None);
}

#[test]
fn a_slot_records_the_end_of_its_offer_and_its_send_time() {
    let held = |offer: &OfferRow, pending: bool| Fence::same(&json!({"offer": offer.id, "pending": pending}));
    assert_eq!(of_start().slot_end(&sending()), None, "an attempt under way does not end the offer");
    let delivered = learned(&sending(), 1, &sent());
    let (end, fence) = sending().slot_end(&delivered).expect("it was sent");
    assert_eq!((end.pending, end.ended_at, end.sent_at), (false, minutes(6), delivered.delivery.sent_at));
    assert!(end.sent_at.is_some());
    assert_eq!(fence, held(&delivered, true));
    let canceled =
        of_start().ended(OfferEnd::Canceled(CancelReason::Paid), minutes(1), KEEP_DAYS).expect("it is queued");
    let (end, fence) = of_start().slot_end(&canceled).expect("it ends");
    assert_eq!((json!(end), fence), (json!({"pending": false, "ended_at": minutes(1)}), held(&canceled, true)));
    // A late proof that an offer was sent after all.
    let (end, fence) = canceled.slot_end(&delivered).expect("it was sent");
    assert_eq!((end.sent_at.is_some(), fence), (true, held(&delivered, false)));
    assert_eq!(delivered.slot_end(&delivered), None);
}
