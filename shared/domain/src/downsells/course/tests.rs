use serde_json::json;

use super::*;
use crate::downsells::schedule::tests::{KEEP_DAYS, after_payment, downsell, minutes, now, offer, open, pix, start};
use crate::messages::CHECK_AFTER_MS;
use crate::work::LOOK_AHEAD_MS;

const HOLD: UnknownPolicy = UnknownPolicy::Hold;
const RESEND: UnknownPolicy = UnknownPolicy::Resend;

fn bot() -> BotRow {
    let body = json!({"slug": "loja"});
    BotRow::read(body.as_object().expect("an object"), now()).expect("a bot")
}

fn plain() -> DownsellRow {
    downsell(12, &json!({}))
}

/// Due in five minutes.
fn of_start() -> OfferRow {
    offer(&start("5001"), open(&["t1"]))
}

fn of_pix() -> OfferRow {
    offer(&pix("t1"), open(&["t1"]))
}

fn deadline() -> Timestamp {
    minutes(6)
}

/// Its first attempt is under way, since five minutes after now.
fn sending() -> OfferRow {
    of_start().claimed(1, "r/0", deadline(), minutes(5)).expect("it is queued")
}

fn learned(row: &OfferRow, attempt: u32, verdict: &Verdict) -> OfferRow {
    match row.settled(attempt, verdict, minutes(6), KEEP_DAYS) {
        Learned::New(row) => *row,
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

/// Queued again by policy: its first attempt may have been sent.
fn in_doubt() -> OfferRow {
    learned(&sending(), 1, &again(Again::Policy))
}

fn waits_in(row: &OfferRow) -> Option<(Wake, Timestamp)> {
    let shard = keys::wake_shard(row.id.as_str());
    let at = row.wake_at.as_deref().and_then(keys::time_of)?;
    let wakes = [Wake::Check, Wake::Due, Wake::Unknown];
    wakes.into_iter().find(|wake| row.wake == Some(keys::wake(*wake, shard))).map(|wake| (wake, at))
}

fn closed(end: End) -> Gate {
    Gate::Closed(end)
}

#[test]
fn an_offer_of_a_start_leaves_while_any_charge_is_open() {
    let gate = |charges: Option<&ChargesRow>, at| of_start().gate(Some(&bot()), Some(&plain()), charges, at);
    assert_eq!(gate(Some(&open(&["t1"])), minutes(5)), Gate::Open);
    assert_eq!(gate(Some(&open(&["t9"])), minutes(5)), Gate::Open, "whichever it is");
    let unpaid = closed(End::Skipped(Why::NoUnpaidPix));
    assert_eq!(gate(Some(&open(&["t1"])), minutes(60)), unpaid, "it is over by its own time");
    assert_eq!(gate(Some(&open(&[])), now()), unpaid);
    assert_eq!(gate(None, now()), unpaid);
}

#[test]
fn an_offer_of_a_charge_leaves_only_while_that_charge_is_open() {
    let gate = |charges: Option<&ChargesRow>, at| of_pix().gate(Some(&bot()), Some(&plain()), charges, at);
    assert_eq!(gate(Some(&open(&["t1", "t2"])), minutes(60).plus_ms(-1)), Gate::Open);
    let expired = closed(End::Canceled(Why::Expired));
    assert_eq!(gate(Some(&open(&["t1"])), minutes(60)), expired);
    let other = gate(Some(&open(&["t2"])), minutes(5));
    let Gate::PassedOn(passed) = other else { panic!("another charge is no reason to leave as it is: {other:?}") };
    let gate_of_passed = passed.gate(Some(&bot()), Some(&plain()), Some(&open(&["t2"])), minutes(5));
    assert_eq!((passed.transaction_id.as_deref(), gate_of_passed), (Some("t2"), Gate::Open));
    assert_eq!(gate(None, minutes(5)), expired);
}

#[test]
fn nothing_of_before_a_payment_leaves_whatever_else_is_open() {
    let charges = after_payment(&open(&["t1", "t2"]), "t2");
    for row in [of_start(), of_pix()] {
        let gate = row.gate(Some(&bot()), Some(&plain()), Some(&charges), minutes(5));
        assert_eq!(gate, closed(End::Canceled(Why::Paid)));
    }
    let since = offer(&start("5002"), charges.clone());
    assert_eq!(since.gate(Some(&bot()), Some(&plain()), Some(&charges), minutes(5)), Gate::Open);
}

#[test]
fn bots_and_downsells_that_rest_or_are_gone_send_nothing() {
    let charges = open(&["t1"]);
    let gate = |bot: Option<&BotRow>, downsell: Option<&DownsellRow>| {
        of_start().gate(bot, downsell, Some(&charges), minutes(5))
    };
    let (resting_bot, resting) = (BotRow { active: false, ..bot() }, DownsellRow { active: false, ..plain() });
    assert_eq!(gate(Some(&resting_bot), Some(&plain())), closed(End::Skipped(Why::BotInactive)));
    assert_eq!(gate(None, Some(&plain())), closed(End::Skipped(Why::BotInactive)));
    assert_eq!(gate(Some(&bot()), None), closed(End::Canceled(Why::Deleted)));
    assert_eq!(gate(Some(&bot()), Some(&resting)), closed(End::Skipped(Why::Inactive)));
}

#[test]
fn a_payment_is_the_reason_before_all_others() {
    let charges = after_payment(&open(&["t1"]), "t1");
    assert_eq!(of_pix().gate(None, None, Some(&charges), minutes(99)), closed(End::Canceled(Why::Paid)));
    assert_eq!(of_pix().outdated(Some(&charges), minutes(99)), Some(End::Canceled(Why::Paid)));
    assert_eq!(of_start().outdated(Some(&open(&[])), minutes(99)), None, "no open charge is no end, only a gate");
}

#[test]
fn only_a_queued_offer_is_claimed_and_only_as_its_next_attempt() {
    let row = of_start();
    assert_eq!((row.claimed(0, "r", deadline(), now()), row.claimed(2, "r", deadline(), now())), (None, None));
    let canceled = row.ended(End::Canceled(Why::Deleted), now(), KEEP_DAYS).expect("it is queued");
    for row in [sending(), unknown(), canceled, learned(&sending(), 1, &sent())] {
        let next = row.claimed(row.attempts + 1, "r", deadline(), now());
        assert_eq!(next, None, "{:?} {:?}", row.status, row.delivery);
    }
    assert_eq!(in_doubt().claimed(2, "r", deadline(), now()).map(|row| row.attempts), Some(2));
}

#[test]
fn a_claim_emits_nothing_and_is_looked_for_after_its_deadline() {
    let row = sending();
    assert_eq!((row.delivery, row.attempts, row.emit.as_ref()), (Some(Delivery::Sending), 1, None));
    assert_eq!((row.deadline, row.claim.as_deref()), (Some(deadline().millis()), Some("r/0")));
    assert_eq!((row.last_attempt_at, row.version), (Some(minutes(5)), of_start().version + 1));
    assert!(matches!(waits_in(&row), Some((Wake::Check, at)) if at >= deadline()), "{:?}", row.wake_at);
}

#[test]
fn what_was_sent_is_over_and_says_how_late_it_was() {
    let row = learned(&sending(), 1, &sent());
    assert_eq!((row.status, row.delivery, row.provider_id.as_deref()), (Status::Sent, None, Some("p-1")));
    assert_eq!((row.sent_at, row.late_ms), (Some(minutes(6)), Some(60_000)));
    assert_eq!((waits_in(&row), row.emit, row.deadline, row.claim), (None, None, None, None));
    assert_eq!(row.expires_at, Some(minutes(6).plus_days(KEEP_DAYS).seconds()));
}

#[test]
fn an_attempt_that_failed_or_came_too_late_ends_the_offer() {
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "blocked", suppress: true });
    assert_eq!((failed.status, failed.code.as_deref()), (Status::Failed, Some("blocked")));
    let expired = learned(&sending(), 1, &Verdict::Expired { code: "throttled" });
    assert_eq!((expired.status, expired.code.as_deref()), (Status::Expired, Some("throttled")));
    for row in [failed, expired] {
        assert_eq!((row.delivery, row.cancel_reason, waits_in(&row)), (None, None, None));
        assert!(row.expires_at.is_some());
    }
}

#[test]
fn an_unknown_offer_is_pending_and_waits_for_a_person() {
    let row = unknown();
    assert_eq!((row.status, row.delivery, row.unknown), (Status::Pending, Some(Delivery::Unknown), true));
    assert_eq!((row.code.as_deref(), row.expires_at), (Some("timed_out"), None));
    assert_eq!((waits_in(&row), row.emit), (Some((Wake::Unknown, minutes(6))), None));
}

#[test]
fn another_try_waits_for_its_time_and_a_limit_is_not_the_offers_fault() {
    let row = learned(&sending(), 1, &again(Again::Retry));
    assert_eq!((row.delivery, row.not_before, row.tries_from), (Some(Delivery::Queued), Some(minutes(7)), 0));
    assert_eq!((row.doubt, row.deadline, row.claim.as_deref()), (None, None, None));
    assert_eq!(row.emit.as_ref().and_then(|emit| emit.not_before), Some(minutes(7).millis()));
    assert_eq!(row.progress().send_at, Some(minutes(7)), "not before it");
    assert_eq!(learned(&sending(), 1, &again(Again::Throttled)).tries_from, 1);
    let hour = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: minutes(66) };
    let row = learned(&sending(), 1, &hour);
    assert_eq!((waits_in(&row), row.emit), (Some((Wake::Due, minutes(66))), None), "longer than a queue can hold");
}

#[test]
fn an_outcome_other_than_sent_counts_only_while_its_attempt_is_under_way() {
    let queued = learned(&sending(), 1, &again(Again::Retry));
    let second = queued.claimed(2, "r", minutes(9), minutes(8)).expect("it is queued");
    let others = [
        Verdict::Failed { code: "a", suppress: false },
        Verdict::Expired { code: "a" },
        Verdict::Unknown { code: "a" },
        again(Again::Retry),
    ];
    for verdict in &others {
        for row in [&of_start(), &queued, &second, &unknown(), &learned(&sending(), 1, &sent())] {
            let late = row.settled(1, verdict, minutes(9), KEEP_DAYS);
            assert_eq!(late, Learned::TooLate, "{verdict:?} {:?} {:?}", row.status, row.delivery);
        }
    }
}

#[test]
fn sent_is_true_whoever_says_it_and_whenever() {
    let second = in_doubt().claimed(2, "r", minutes(9), minutes(8)).expect("it is queued");
    for row in [sending(), unknown(), in_doubt(), second] {
        let row = learned(&row, 1, &sent());
        assert_eq!((row.status, row.delivery, row.unknown), (Status::Sent, None, false));
        assert_eq!((row.doubt, row.code, row.emit, row.wake), (None, None, None, None), "nothing is tried again");
    }
    let already = learned(&sending(), 1, &sent());
    assert_eq!(already.settled(1, &sent(), minutes(9), KEEP_DAYS), Learned::Already);
}

#[test]
fn sent_is_not_taken_of_an_attempt_that_was_never_begun_nor_of_what_has_ended() {
    assert_eq!(of_start().settled(1, &sent(), minutes(9), KEEP_DAYS), Learned::TooLate);
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "a", suppress: false });
    assert_eq!(failed.settled(1, &sent(), minutes(9), KEEP_DAYS), Learned::TooLate);
}

#[test]
fn what_may_have_been_sent_does_not_end_as_unsent() {
    let second = in_doubt().claimed(2, "r", minutes(9), minutes(8)).expect("it is queued");
    assert_eq!((in_doubt().doubt, second.doubt), (Some(1), Some(1)));
    let ends = [
        in_doubt().ended(End::Canceled(Why::Paid), minutes(8), KEEP_DAYS),
        in_doubt().ended(End::Skipped(Why::NoUnpaidPix), minutes(8), KEEP_DAYS),
        in_doubt().ended(End::Expired, minutes(8), KEEP_DAYS),
        Some(learned(&second, 2, &Verdict::Failed { code: "a", suppress: false })),
        Some(learned(&second, 2, &Verdict::Expired { code: "a" })),
    ];
    for row in ends {
        let row = row.expect("it can be ended");
        assert_eq!((row.status, row.delivery, row.unknown), (Status::Pending, Some(Delivery::Unknown), true));
        assert_eq!(
            (row.expires_at, row.emit.as_ref(), row.claimed(3, "r", minutes(9), minutes(8))),
            (None, None, None)
        );
    }
    let retried = learned(&second, 2, &again(Again::Retry));
    assert_eq!(retried.doubt, Some(1), "a later attempt that was not sent says nothing of the first");
}

#[test]
fn an_offer_in_doubt_that_was_canceled_and_turns_out_sent_was_not_canceled() {
    let row = in_doubt().ended(End::Canceled(Why::Paid), minutes(8), KEEP_DAYS).expect("it is queued");
    assert_eq!(row.cancel_reason, Some(Why::Paid));
    let row = learned(&row, 1, &sent());
    assert_eq!((row.status, row.cancel_reason, row.doubt), (Status::Sent, None, None));
}

#[test]
fn what_is_still_to_be_sent_ends_with_its_reason_and_is_kept_for_a_while() {
    for (end, status, why) in [
        (End::Canceled(Why::Paid), Status::Canceled, Some(Why::Paid)),
        (End::Skipped(Why::NoUnpaidPix), Status::Skipped, Some(Why::NoUnpaidPix)),
        (End::Expired, Status::Expired, None),
    ] {
        let row = of_start().ended(end, minutes(5), KEEP_DAYS).expect("it is queued");
        assert_eq!((row.status, row.cancel_reason, row.delivery), (status, why, None));
        assert_eq!((waits_in(&row), row.emit, row.version), (None, None, 2));
        assert_eq!(row.expires_at, Some(minutes(5).plus_days(KEEP_DAYS).seconds()));
    }
    for row in [sending(), unknown(), learned(&sending(), 1, &sent())] {
        assert_eq!(row.ended(End::Expired, minutes(5), KEEP_DAYS), None, "{:?}", row.delivery);
    }
}

#[test]
fn a_cancel_tells_the_truth() {
    let cancel = |row: &OfferRow| row.cancel(Why::Paid, minutes(8), KEEP_DAYS);
    assert!(matches!(cancel(&of_start()), Cancel::Now(row) if row.status == Status::Canceled));
    assert!(matches!(cancel(&in_doubt()), Cancel::Now(row) if row.is_pending() && row.unknown), "it may have left");
    assert_eq!((cancel(&sending()), cancel(&unknown())), (Cancel::InFlight, Cancel::InFlight));
    assert_eq!(cancel(&learned(&sending(), 1, &sent())), Cancel::AlreadySent);
    let skipped = of_start().ended(End::Skipped(Why::Inactive), minutes(8), KEEP_DAYS).expect("it is queued");
    assert_eq!(cancel(&skipped), Cancel::Ended);
}

#[test]
fn a_person_can_say_what_became_of_an_unknown_offer_and_of_no_other() {
    let sent_row = unknown().declared(true, minutes(9), KEEP_DAYS).expect("it is unknown");
    assert_eq!((sent_row.status, sent_row.sent_at, sent_row.unknown), (Status::Sent, Some(minutes(9)), false));
    let canceled_in_doubt = in_doubt().ended(End::Canceled(Why::Paid), minutes(8), KEEP_DAYS).expect("it is queued");
    for row in [unknown(), canceled_in_doubt] {
        let unsent = row.declared(false, minutes(9), KEEP_DAYS).expect("it is unknown");
        assert!(!unsent.is_pending() && unsent.status != Status::Sent, "{:?}", unsent.status);
        assert_eq!((unsent.doubt, unsent.unknown, waits_in(&unsent)), (None, false, None));
        assert!(unsent.expires_at.is_some() && sent_row.expires_at.is_some());
    }
    for row in [of_start(), sending(), in_doubt(), sent_row] {
        assert_eq!(row.declared(true, minutes(9), KEEP_DAYS), None, "{:?} {:?}", row.status, row.delivery);
    }
}

fn emitted(recalled: Recalled) -> OfferRow {
    match recalled {
        Recalled::Emitted(row) => *row,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_offer_that_nobody_took_on_is_emitted_again_and_looked_for_less_and_less() {
    let mut row = of_start();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (_, at) = waits_in(&row).expect("it is looked for");
        let before = row.emit.as_ref().map(|emit| emit.seq);
        row = emitted(row.recalled(HOLD, at, 0, KEEP_DAYS));
        assert!(row.emit.as_ref().map(|emit| emit.seq) > before, "the relay sees another emission");
        assert!(row.is_queued() && row.attempts == 0);
        waits.push((waits_in(&row).expect("it is looked for").1.millis() - at.millis()) / CHECK_AFTER_MS);
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 64, 64, 64, 64]);
}

#[test]
fn an_attempt_is_given_up_at_its_deadline_and_not_before() {
    assert_eq!(sending().recalled(HOLD, deadline().plus_ms(-1), 0, KEEP_DAYS), Recalled::Left);
    let Recalled::Unknown(row) = sending().recalled(HOLD, deadline(), 0, KEEP_DAYS) else { panic!("it is unknown") };
    assert_eq!((row.delivery, row.code.as_deref()), (Some(Delivery::Unknown), Some(code::SENDER_LOST)));
}

#[test]
fn by_policy_a_lost_attempt_is_made_again_in_doubt_and_within_its_time() {
    let row = emitted(sending().recalled(RESEND, deadline(), 0, KEEP_DAYS));
    assert_eq!((row.delivery, row.doubt, row.attempts), (Some(Delivery::Queued), Some(1), 1));
    assert!(row.emit.is_some() && row.not_before > Some(deadline()));
    let late = OfferRow { not_after: deadline(), ..sending() };
    assert!(
        matches!(late.recalled(RESEND, deadline(), 0, KEEP_DAYS), Recalled::Unknown(_)),
        "too late to be made again"
    );
}

#[test]
fn what_waits_for_nothing_is_left_by_recovery() {
    let far = offer(&start("5001"), open(&["t1"])).handed_over(now().plus_ms(LOOK_AHEAD_MS + 1), now());
    assert_eq!(far.emit, None);
    for row in [far, unknown(), learned(&sending(), 1, &sent())] {
        assert_eq!(row.recalled(RESEND, now().plus_days(9), 0, KEEP_DAYS), Recalled::Left, "{:?}", row.delivery);
    }
}

#[test]
fn an_offer_that_goes_back_to_its_queue_is_not_looked_for_before_that_is_over() {
    let row = of_start();
    let (_, looked_for) = waits_in(&row).expect("it is looked for");
    assert_eq!(row.waits_until(minutes(5), minutes(5)), None, "there is time enough");
    let back = row.waits_until(looked_for, minutes(5)).expect("it would be taken for lost");
    assert_eq!(waits_in(&back), Some((Wake::Check, looked_for.plus_ms(CHECK_AFTER_MS))));
    assert_eq!((back.emit, back.delivery, back.version), (row.emit, row.delivery, row.version + 1));
    assert_eq!(sending().waits_until(minutes(99), minutes(5)), None, "it is not for this sender to say");
}

#[test]
fn a_start_gains_the_charge_and_its_time_stays_if_it_is_the_earlier() {
    let row = of_start();
    let joined = row.joined("t1", minutes(9), minutes(4)).expect("it is queued");
    assert_eq!((joined.trigger, joined.transaction_id.as_deref()), (Trigger::Pix, Some("t1")));
    assert_eq!((joined.scheduled_at, &joined.emit, &joined.wake_at), (row.scheduled_at, &row.emit, &row.wake_at));
    assert_eq!((joined.id, joined.version), (row.id, row.version + 1));
}

#[test]
fn a_start_that_gains_an_earlier_time_is_emitted_for_that() {
    let far = OfferRow { scheduled_at: minutes(50), ..of_start() }.handed_over(minutes(50), now());
    assert_eq!((&far.emit, waits_in(&far)), (&None, Some((Wake::Due, minutes(50)))));
    let joined = far.joined("t1", minutes(9), minutes(4)).expect("it is queued");
    assert_eq!(joined.scheduled_at, minutes(9));
    assert_eq!(joined.emit.as_ref().and_then(|emit| emit.not_before), Some(minutes(9).millis()));
    assert_eq!(waits_in(&joined), Some((Wake::Check, minutes(9).plus_ms(CHECK_AFTER_MS))));
}

#[test]
fn nothing_is_gained_once_an_attempt_was_begun_or_by_an_offer_of_a_charge() {
    let tried = learned(&sending(), 1, &again(Again::Retry));
    let canceled = of_start().ended(End::Expired, now(), KEEP_DAYS).expect("it is queued");
    for row in [sending(), unknown(), tried, of_pix(), canceled] {
        assert_eq!(row.joined("t2", now(), now()), None, "{:?} {:?}", row.trigger, row.delivery);
    }
}

#[test]
fn a_sender_sees_an_offer_as_it_sees_any_message() {
    let states = |rows: &[OfferRow]| -> Vec<State> { rows.iter().map(|row| row.progress().state).collect() };
    let ended = |end| of_start().ended(end, now(), KEEP_DAYS).expect("it is queued");
    let failed = learned(&sending(), 1, &Verdict::Failed { code: "a", suppress: false });
    let rows = [of_start(), sending(), unknown(), learned(&sending(), 1, &sent()), failed];
    assert_eq!(states(&rows), [State::Queued, State::Sending, State::Unknown, State::Sent, State::Failed]);
    let rows = [ended(End::Expired), ended(End::Canceled(Why::Paid)), ended(End::Skipped(Why::Inactive))];
    assert_eq!(states(&rows), [State::Expired, State::Canceled, State::Canceled]);
    let progress = of_start().progress();
    assert_eq!((progress.send_at, progress.not_after), (Some(minutes(5)), Some(minutes(5 + 1_440))));
}

#[test]
fn a_claim_is_looked_for_soon_after_its_deadline_and_moves_only_where_it_would_not_be() {
    let row = of_start();
    let claimed = row.claimed(1, "r/0", deadline(), minutes(5)).expect("it is queued");
    assert_eq!(claimed.wake_at, row.wake_at, "its place costs nothing");
    let often = OfferRow { wake_at: Some(keys::at_time(minutes(600), row.id.as_str())), ..row };
    let claimed = often.claimed(1, "r/0", deadline(), minutes(5)).expect("it is queued");
    assert_eq!(waits_in(&claimed), Some((Wake::Check, deadline())), "not hours later");
}

#[test]
fn what_waits_for_a_sweep_is_not_put_off_by_a_second_copy_in_the_queue() {
    let limited = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: minutes(66) };
    let row = learned(&sending(), 1, &limited);
    assert_eq!(waits_in(&row), Some((Wake::Due, minutes(66))));
    assert_eq!(row.waits_until(minutes(66), minutes(7)), None);
}
