//! Checks the delivery protocol in every interleaving of small worlds. A world has a message, an
//! offer or a recipient of a mailing; two senders that may crash, or freeze and resume; a provider
//! that sends or does not send, and answers or does not answer; recovery; an operator; and events
//! of the provider that arrive late, twice and in any order. The product's own functions decide
//! every step.
//!
//! A step is the part of an operation between two requests. A sender reads the row, claims the
//! attempt on the condition that the row has not changed, calls the provider, and settles the
//! attempt. Other operations (outcomes, cancels, orders, events) read a row, decide, and after a
//! conflict decide again on the row that won. Each of them is one step here, because only the row
//! at the commit counts. Time is not counted: every wait is over when a sender reads the row, and
//! recovery may run as soon as an attempt has begun.
//!
//! The world records what really happens in facts ([`world::Fact`]), apart from the row. The
//! properties compare the row with the facts. The state `DEDUPED` does not occur: a message that is
//! deduplicated at acceptance is never delivered.

mod properties;
mod rows;
mod steps;
mod world;

use umavez_domain::delivery::{MAX_ATTEMPTS, UnknownPolicy};

use crate::properties::{assert_caught, assert_holds};
use crate::rows::{message, offer, recipient};
use crate::world::{Budget, DeliveryModel, Flaw, property};

#[test]
fn a_message_is_sent_once_despite_crashes_freezes_and_refusals() {
    let budget = Budget { refusals: 1, timeouts: 1, crashes: 1, freezes: 1, reenqueues: 1, ..Budget::default() };
    assert_holds(DeliveryModel::new(message(), budget), &["SENT", "FAILED", "UNKNOWN", "a second attempt is sent"]);
}

#[test]
fn a_message_is_sent_once_despite_lost_replies() {
    let budget = Budget { refusals: 1, lost_replies: 2, ..Budget::default() };
    assert_holds(DeliveryModel::new(message(), budget), &["SENT", "FAILED"]);
}

#[test]
fn the_resend_policy_repeats_a_message_but_not_after_a_cancel() {
    let budget = Budget { refusals: 1, timeouts: 1, freezes: 1, cancels: 1, ..Budget::default() };
    let reached = [
        "a recalled attempt ends as CANCELED",
        "a recalled attempt ends as SENT",
        "a recalled attempt is in doubt",
        "sent twice by order or policy",
        "an earlier attempt is proven while a later one is under way",
    ];
    assert_holds(DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) }, &reached);
}

#[test]
fn a_message_is_not_sent_again_after_its_last_attempt() {
    let mut row = message();
    row.delivery.attempt = MAX_ATTEMPTS - 1;
    let budget = Budget { refusals: 1, timeouts: 1, crashes: 1, freezes: 1, ..Budget::default() };
    let model = DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(row, budget) };
    assert_holds(model, &["SENT", "FAILED", "UNKNOWN"]);
}

#[test]
fn an_operator_may_cancel_resend_and_settle_a_message() {
    let budget =
        Budget { refusals: 1, timeouts: 1, freezes: 1, cancels: 1, resends: 1, declarations: 1, ..Budget::default() };
    let reached = [
        "CANCELED",
        "a recalled attempt ends as CANCELED",
        "a frozen sender reports late that it did not send",
        "proof overrides an operator who declared not sent",
        "proof names the attempt that an operator declared sent",
        "sent twice by order or policy",
    ];
    assert_holds(DeliveryModel::new(message(), budget), &reached);
}

#[test]
fn late_repeated_and_unordered_events_settle_a_message() {
    let budget = Budget { timeouts: 1, crashes: 1, freezes: 1, rejections: 1, events: 3, ..Budget::default() };
    assert_holds(
        DeliveryModel { senders: 1, ..DeliveryModel::new(message(), budget) },
        &["SENT", "FAILED", "UNKNOWN", "an accepted attempt is rejected"],
    );
}

#[test]
fn events_settle_every_attempt_at_a_message_with_the_resend_policy() {
    let budget = Budget { refusals: 1, timeouts: 2, freezes: 1, events: 2, ..Budget::default() };
    let model = DeliveryModel { senders: 1, policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) };
    let reached = ["an earlier attempt is proven while a later one is under way", "sent twice by order or policy"];
    assert_holds(model, &reached);
}

#[test]
fn events_and_an_operator_settle_the_same_message() {
    let budget =
        Budget { timeouts: 2, freezes: 1, events: 2, cancels: 1, resends: 1, declarations: 1, ..Budget::default() };
    let reached = [
        "a recalled attempt ends as SENT",
        "proof overrides an operator who declared not sent",
        "proof names the attempt that an operator declared sent",
    ];
    assert_holds(DeliveryModel { senders: 1, ..DeliveryModel::new(message(), budget) }, &reached);
}

#[test]
fn a_rejection_settles_only_its_own_attempt_at_a_message() {
    let budget = Budget { timeouts: 2, rejections: 1, events: 3, ..Budget::default() };
    let model = DeliveryModel { senders: 1, policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) };
    assert_holds(
        model,
        &["an earlier attempt is proven while a later one is under way", "an accepted attempt is rejected"],
    );
}

#[test]
fn rejections_and_an_operator_settle_the_same_message() {
    let budget =
        Budget { refusals: 1, timeouts: 2, rejections: 2, events: 3, resends: 1, declarations: 1, ..Budget::default() };
    let reached = [
        "proof overrides an operator who declared not sent",
        "proof names the attempt that an operator declared sent",
        "an accepted attempt is rejected",
    ];
    assert_holds(DeliveryModel { senders: 1, ..DeliveryModel::new(message(), budget) }, &reached);
}

#[test]
fn an_echo_proves_that_a_message_was_sent() {
    let budget = Budget { timeouts: 1, freezes: 1, cancels: 1, echoes: 2, declarations: 1, ..Budget::default() };
    let reached = [
        "proof overrides an operator who declared not sent",
        "proof names the attempt that an operator declared sent",
        "an earlier attempt is proven while a later one is under way",
    ];
    assert_holds(DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) }, &reached);
}

#[test]
fn a_suppressed_or_expired_message_ends_unless_it_may_have_been_sent() {
    let budget = Budget { refusals: 1, timeouts: 1, suppressions: 1, expiries: 1, ..Budget::default() };
    let model = DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) };
    assert_holds(model, &["SUPPRESSED", "EXPIRED", "UNKNOWN", "SENT"]);
}

/// Returns the budget with one payment of the offer's charge, which is reported twice.
fn payment() -> Budget {
    Budget { payments: 1, payment_cancels: 2, ..Budget::default() }
}

#[test]
fn no_attempt_at_an_offer_begins_after_a_payment() {
    let budget = Budget { refusals: 1, timeouts: 1, crashes: 1, freezes: 1, ..payment() };
    let reached = [
        "SENT",
        "FAILED",
        "UNKNOWN",
        "CANCELED",
        "a recalled attempt ends as CANCELED",
        "a recalled attempt ends as SENT",
        "a payment finds an attempt under way",
    ];
    assert_holds(DeliveryModel::new(offer(), budget), &reached);
}

#[test]
fn no_attempt_at_an_offer_with_the_resend_policy_begins_after_a_payment() {
    let budget = Budget { refusals: 1, timeouts: 1, freezes: 1, ..payment() };
    let reached =
        ["a recalled attempt is in doubt", "a recalled attempt ends as CANCELED", "sent twice by order or policy"];
    assert_holds(DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(offer(), budget) }, &reached);
}

#[test]
fn no_attempt_at_an_offer_begins_after_a_payment_despite_lost_replies() {
    let budget = Budget { refusals: 1, lost_replies: 2, ..payment() };
    assert_holds(DeliveryModel::new(offer(), budget), &["SENT", "CANCELED"]);
}

#[test]
fn an_operator_settles_an_offer_that_expires_or_is_blocked() {
    let budget = Budget { timeouts: 1, freezes: 1, suppressions: 1, expiries: 1, declarations: 1, ..payment() };
    let reached = ["EXPIRED", "CANCELED", "proof overrides an operator who declared not sent"];
    assert_holds(DeliveryModel::new(offer(), budget), &reached);
}

#[test]
fn a_recipient_is_sent_to_once_despite_crashes_freezes_and_refusals() {
    let budget = Budget { refusals: 1, timeouts: 1, crashes: 1, freezes: 1, ..Budget::default() };
    assert_holds(DeliveryModel::new(recipient(), budget), &["SENT", "FAILED", "UNKNOWN", "a second attempt is sent"]);
}

#[test]
fn a_recipient_is_sent_to_once_despite_lost_replies() {
    let budget = Budget { refusals: 1, lost_replies: 2, ..Budget::default() };
    assert_holds(DeliveryModel::new(recipient(), budget), &["SENT", "FAILED"]);
}

#[test]
fn a_resend_order_sends_to_failed_and_unknown_recipients_once_more() {
    let budget = Budget { timeouts: 1, crashes: 1, freezes: 1, resends: 2, ..Budget::default() };
    let reached = [
        "sent twice by order or policy",
        "a second attempt is sent",
        "an earlier attempt is proven while a later one is under way",
    ];
    assert_holds(DeliveryModel::new(recipient(), budget), &reached);
}

#[test]
fn a_paused_or_canceled_mailing_begins_no_attempt() {
    let budget = Budget {
        refusals: 1,
        timeouts: 1,
        resends: 1,
        pauses: 1,
        mailing_cancels: 1,
        suppressions: 1,
        ..Budget::default()
    };
    assert_holds(DeliveryModel::new(recipient(), budget), &["SENT", "CANCELED", "SUPPRESSED", "UNKNOWN"]);
}

#[test]
fn events_settle_every_attempt_at_a_recipient() {
    let budget = Budget { timeouts: 2, crashes: 1, freezes: 1, events: 2, resends: 1, ..Budget::default() };
    let reached = ["an earlier attempt is proven while a later one is under way", "sent twice by order or policy"];
    assert_holds(DeliveryModel::new(recipient(), budget), &reached);
}

#[test]
fn a_rejection_settles_only_its_own_attempt_at_a_recipient() {
    let budget = Budget { timeouts: 2, rejections: 2, events: 3, resends: 1, ..Budget::default() };
    let reached = ["an earlier attempt is proven while a later one is under way", "an accepted attempt is rejected"];
    assert_holds(DeliveryModel { senders: 1, ..DeliveryModel::new(recipient(), budget) }, &reached);
}

#[test]
fn a_claim_without_its_fence_is_caught() {
    let budget = Budget { refusals: 1, ..Budget::default() };
    assert_caught(DeliveryModel::new(message(), budget), Flaw::ClaimWithoutFence, property::ONE_CALL);
    assert_caught(DeliveryModel::new(recipient(), budget), Flaw::ClaimWithoutFence, property::ONE_CALL);
}

#[test]
fn a_claim_without_its_gate_is_caught() {
    assert_caught(DeliveryModel::new(offer(), payment()), Flaw::ClaimWithoutGate, property::NO_ATTEMPT_AFTER_GATE);
}

#[test]
fn an_assumption_about_a_lost_reply_is_caught() {
    let budget = Budget { lost_replies: 1, ..Budget::default() };
    let model = || DeliveryModel::new(message(), budget);
    assert_caught(model(), Flaw::LostReplyMeansNotClaimed, property::LIVING_SENDER_KEEPS_ATTEMPT);
    assert_caught(model(), Flaw::LostReplyMeansClaimed, property::ONE_CALL);
}

#[test]
fn an_outcome_that_settles_any_attempt_is_caught() {
    let budget = Budget { timeouts: 1, refusals: 1, freezes: 1, ..Budget::default() };
    let model = DeliveryModel { policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) };
    assert_caught(model, Flaw::SettlesAnyAttempt, property::BEGINS_AFTER_UNSENT);
}

#[test]
fn an_outcome_that_overwrites_a_recall_is_caught() {
    let budget = Budget { refusals: 1, cancels: 1, ..Budget::default() };
    assert_caught(
        DeliveryModel::new(message(), budget),
        Flaw::SettlesWithoutNewDecision,
        property::NO_ATTEMPT_AFTER_CANCEL,
    );
}

#[test]
fn an_unknown_outcome_that_ends_as_failed_is_caught() {
    let budget = Budget { timeouts: 1, ..Budget::default() };
    assert_caught(DeliveryModel::new(message(), budget), Flaw::UnknownEndsAsFailed, property::UNSENT_WAS_NOT_SENT);
    assert_caught(DeliveryModel::new(recipient(), budget), Flaw::UnknownEndsAsFailed, property::UNSENT_WAS_NOT_SENT);
}

#[test]
fn a_lost_attempt_that_is_retried_is_caught() {
    let budget = Budget { crashes: 1, freezes: 1, ..Budget::default() };
    assert_caught(DeliveryModel::new(message(), budget), Flaw::LostAttemptIsRetried, property::BEGINS_AFTER_UNSENT);
    assert_caught(DeliveryModel::new(offer(), budget), Flaw::LostAttemptIsRetried, property::SENT_ONCE);
}

#[test]
fn a_missing_recovery_is_caught() {
    let budget = Budget { crashes: 1, ..Budget::default() };
    assert_caught(DeliveryModel::new(message(), budget), Flaw::NoRecovery, property::EVERYTHING_SETTLED);
}

#[test]
fn ignored_proof_of_an_earlier_attempt_is_caught() {
    let budget = Budget { timeouts: 1, events: 1, ..Budget::default() };
    let model = DeliveryModel { senders: 1, policy: UnknownPolicy::Resend, ..DeliveryModel::new(message(), budget) };
    assert_caught(model, Flaw::EarlierProofIgnored, property::PROVEN_IS_SENT);
}

#[test]
fn a_resend_order_that_is_not_recorded_is_caught() {
    let budget = Budget { resends: 1, ..Budget::default() };
    assert_caught(DeliveryModel::new(recipient(), budget), Flaw::OrderNotRecorded, property::ORDER_FOLLOWED_ONCE);
}
