//! Checks how a conversation gets its replies, in every interleaving of small worlds: wake-ups that
//! the queue loses, delivers twice or too early; two workers that crash or freeze; a responder that
//! answers, answers later, has nothing to say or fails; replies of two parts whose messages are
//! sent, fail or end unknown; holds with and without an end, and releases with and without an
//! answer; a person who answers; and recovery. The product's own rows decide every step.
//!
//! `conversations_model` checks the claim of batches more closely. Here, a wake-up is a job in a
//! queue, as the rows emit it, and a worker does nothing without one.
//!
//! Time is past or future, as in `mailings_model`: one step of time ends every wait and every
//! lease. While a worker is in the middle of its work, such a step is a fault.

mod model;
mod properties;
mod steps;
mod world;

use crate::properties::{assert_caught, assert_holds, name};
use crate::world::{Budget, Flaw, RepliesModel};

#[test]
fn lost_duplicate_and_early_wake_ups_leave_no_message_unanswered() {
    let budget = Budget { losses: 1, doubles: 1, early: 1, ..Budget::default() };
    assert_holds(RepliesModel::new(2, budget), &["answered by the bot", "two batches"]);
}

#[test]
fn workers_that_crash_or_freeze_leave_no_message_unanswered() {
    let budget = Budget { crashes: 1, freezes: 1, ..Budget::default() };
    assert_holds(RepliesModel::new(1, budget), &["answered by the bot", "a worker takes over a batch"]);
}

#[test]
fn a_responder_may_answer_later_fail_or_return_an_empty_reply() {
    let budget = Budget { later: 1, problems: 2, nothing: 1, ..Budget::default() };
    let reached = ["answered by the bot", "stuck", "answered later", "nothing to say"];
    assert_holds(RepliesModel::new(1, budget), &reached);
}

#[test]
fn a_stuck_conversation_is_answered_after_a_release() {
    let budget = Budget { problems: 2, holds: 1, releases: 1, ..Budget::default() };
    assert_holds(RepliesModel::new(1, budget), &["answered by the bot", "stuck", "released"]);
}

#[test]
fn a_part_that_failed_or_is_unknown_is_not_repeated() {
    let budget = Budget { unknown: 1, failed: 1, unsent: 1, ..Budget::default() };
    let reached = ["a part is unknown", "a part has failed", "answered by the bot"];
    assert_holds(RepliesModel { parts: 2, ..RepliesModel::new(1, budget) }, &reached);
}

#[test]
fn no_attempt_begins_and_no_part_is_handed_over_during_a_hold() {
    let budget = Budget { holds: 1, releases: 1, unsent: 1, unknown: 1, ..Budget::default() };
    let reached = [
        "recalled",
        "recalled during an attempt",
        "withheld between two parts",
        "a recalled part is sent after the hold",
        "released",
    ];
    assert_holds(RepliesModel { parts: 2, ..RepliesModel::new(1, budget) }, &reached);
}

#[test]
fn a_hold_that_ends_by_itself_needs_no_release() {
    let budget = Budget { holds_with_end: 1, problems: 1, ..Budget::default() };
    let reached = ["recalled", "a recalled part is sent after the hold", "answered by the bot"];
    assert_holds(RepliesModel::new(1, budget), &reached);
}

#[test]
fn a_release_while_the_responder_is_asked_does_not_ask_twice() {
    let budget = Budget { holds: 1, releases: 1, slow: 1, later: 1, problems: 1, ..Budget::default() };
    assert_holds(RepliesModel::new(1, budget), &["released", "answered later"]);
}

#[test]
fn a_release_without_an_answer_settles_the_earlier_messages() {
    let budget = Budget { holds: 1, settles: 1, ..Budget::default() };
    let reached = ["settled by a release", "recalled", "a reply that is not needed any more"];
    assert_holds(RepliesModel { parts: 2, ..RepliesModel::new(2, budget) }, &reached);
}

#[test]
fn a_person_may_answer_while_the_responder_fails() {
    let budget = Budget { persons: 1, problems: 1, later: 1, ..Budget::default() };
    let reached = ["recalled", "answered by a person", "a person who answered nothing"];
    assert_holds(RepliesModel::new(1, budget), &reached);
}

#[test]
fn a_person_may_answer_during_a_hold() {
    let budget = Budget { persons: 1, holds: 1, releases: 1, ..Budget::default() };
    let reached = ["answered by a person", "released", "a reply that is not needed any more"];
    assert_holds(RepliesModel::new(1, budget), &reached);
}

#[test]
fn a_part_that_is_handed_over_during_a_hold_is_caught() {
    let model = RepliesModel { parts: 2, ..RepliesModel::new(1, Budget { holds: 1, ..Budget::default() }) };
    assert_caught(model, Flaw::PartLeavesDuringHold, name::HELD);
}

#[test]
fn a_release_that_ends_the_lease_of_a_worker_is_caught() {
    let budget = Budget { holds: 1, releases: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(1, budget), Flaw::ReleaseEndsLease, name::ONE_ASKS);
}

/// The lease must last longer than the responder may take.
#[test]
fn a_lease_without_its_margin_is_caught() {
    let budget = Budget { slow: 1, doubles: 1, ..Budget::default() };
    assert_holds(RepliesModel::new(1, budget), &["answered by the bot"]);
    assert_caught(RepliesModel::new(1, budget), Flaw::LeaseWithoutMargin, name::ONE_ASKS);
}

#[test]
fn an_unknown_part_that_is_repeated_is_caught() {
    let model = RepliesModel::new(1, Budget { unknown: 1, ..Budget::default() });
    assert_caught(model, Flaw::UnknownIsRepeated, name::PART_ONCE);
}

#[test]
fn a_withheld_reply_that_is_never_finished_is_caught() {
    let budget = Budget { holds: 1, settles: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(1, budget), Flaw::UnneededReplyStaysOpen, name::FINISHED);
}

#[test]
fn an_answer_of_a_worker_without_the_turn_is_caught() {
    let budget = Budget { freezes: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(1, budget), Flaw::TurnIgnored, name::ONE_REPLY);
}

#[test]
fn a_hold_that_does_not_cancel_the_reply_is_caught() {
    let budget = Budget { holds: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(1, budget), Flaw::HoldWithoutCancel, name::HELD);
}

#[test]
fn an_answer_of_a_person_that_ends_a_reply_under_way_is_caught() {
    let budget = Budget { persons: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(2, budget), Flaw::SettlesDuringSending, name::ONE_AT_A_TIME);
}

#[test]
fn a_missing_recovery_is_caught() {
    let budget = Budget { losses: 1, ..Budget::default() };
    assert_caught(RepliesModel::new(1, budget), Flaw::NoRecovery, name::ANSWERED);
}
