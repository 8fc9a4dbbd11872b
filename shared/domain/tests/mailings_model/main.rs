//! Checks how a mailing is sent, in every interleaving of small worlds. A world has a mailing with
//! one group of two shards, two senders that may crash, or freeze and resume after their lease; the
//! worker that enqueues shards; recovery; the provider; and an operator who pauses, resumes,
//! cancels and retries at any time. Some worlds also have the importer. The product's own functions
//! decide every step.
//!
//! A step is the part of an operation between two requests. Where the product changes one row and,
//! on a conflict, decides again on the row that won, that is one step here: only the row at the
//! commit counts. Queues lose jobs, deliver them twice, and deliver them again after a crash.
//!
//! Time is past or future: one step of time ends every wait and every lease. While a worker is in
//! the middle of its work, such a step is a fault: that worker was frozen. Recovery is free to run
//! when nothing else would continue the work, and a fault when it comes too early.

mod model;
mod properties;
mod rows;
mod scenario;
mod sender;
mod workers;
mod world;

use crate::properties::{assert_caught, assert_holds, name};
use crate::scenario::{Budget, Flaw, MailingModel};

/// One recipient in each of the two shards of a group.
const ONE_EACH: &[usize] = &[0, 1];
/// Two recipients in one shard.
const TOGETHER: &[usize] = &[0, 0];
const ONE: &[usize] = &[0];

#[test]
fn a_group_is_sent_shard_by_shard_although_senders_crash() {
    let reached = ["COMPLETED, and all are sent", "COMPLETED with an unknown recipient", "the second shard is sent"];
    assert_holds(MailingModel::new(ONE_EACH, Budget { crashes: 1, ..Budget::default() }), &reached);
}

#[test]
fn lost_and_duplicate_jobs_do_not_stop_a_group() {
    let budget = Budget { losses: 1, doubles: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE_EACH, budget), &["COMPLETED, and all are sent"]);
}

#[test]
fn two_senders_that_both_believe_that_they_hold_a_shard_break_no_rule() {
    let budget = Budget { freezes: 1, ..Budget::default() };
    let reached = ["two senders believe that they hold a shard", "COMPLETED with an unknown recipient"];
    assert_holds(MailingModel::new(TOGETHER, budget), &reached);
}

#[test]
fn a_sender_that_resumes_after_its_group_went_on_breaks_no_rule() {
    let budget = Budget { freezes: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE_EACH, budget), &["two senders believe that they hold a shard"]);
}

#[test]
fn a_recovery_that_runs_too_early_breaks_no_rule() {
    let budget = Budget { spurious: 1, refusals: 1, yields: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE, budget), &["COMPLETED, and all are sent"]);
}

#[test]
fn a_pause_and_a_resume_at_any_time_do_not_stop_a_group() {
    let budget = Budget { pauses: 1, resumes: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE_EACH, budget), &["COMPLETED, and all are sent", "paused"]);
}

#[test]
fn a_pause_and_a_resume_do_not_stop_a_group_while_the_account_is_on_hold() {
    let budget = Budget { holds: 1, pauses: 1, resumes: 1, renewals: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE, budget), &["COMPLETED, and all are sent", "paused"]);
}

#[test]
fn a_canceled_mailing_begins_no_attempt_and_ends() {
    let budget = Budget { cancels: 1, pauses: 1, ..Budget::default() };
    let reached = ["a canceled recipient", "an attempt ends after a cancel"];
    assert_holds(MailingModel::new(ONE_EACH, budget), &reached);
}

#[test]
fn a_canceled_mailing_begins_no_attempt_and_ends_even_if_a_worker_crashes() {
    let budget = Budget { cancels: 1, crashes: 1, ..Budget::default() };
    assert_holds(MailingModel::new(ONE, budget), &["a canceled recipient"]);
}

#[test]
fn a_resend_order_sends_to_failed_recipients_once_more() {
    let budget = Budget { rejections: 1, retries: 1, ..Budget::default() };
    let reached = ["a failed recipient is sent to by order", "COMPLETED with a failed recipient"];
    assert_holds(MailingModel::new(ONE_EACH, budget), &reached);
}

#[test]
fn each_of_several_resend_orders_sends_at_most_once() {
    let budget = Budget { timeouts: 1, retries: 1, retries_unknown: 1, ..Budget::default() };
    let reached = ["sent twice by order", "COMPLETED with an unknown recipient"];
    assert_holds(MailingModel::new(ONE, budget), &reached);
}

#[test]
fn late_events_keep_the_counts_right() {
    let budget = Budget { timeouts: 1, events: 1, retries_unknown: 1, ..Budget::default() };
    let reached = ["an event corrects a finished shard", "sent twice by order"];
    assert_holds(MailingModel::new(ONE, budget), &reached);
    let budget = Budget { timeouts: 1, events: 1, ..Budget::default() };
    assert_holds(MailingModel::new(TOGETHER, budget), &["COMPLETED with an unknown recipient"]);
}

fn importing(recipients: &'static [usize], budget: Budget) -> MailingModel {
    MailingModel { imported: false, ..MailingModel::new(recipients, budget) }
}

#[test]
fn an_import_that_is_taken_over_creates_each_recipient_once() {
    assert_holds(importing(ONE_EACH, Budget { crashes: 1, ..Budget::default() }), &["COMPLETED, and all are sent"]);
}

#[test]
fn a_mailing_that_is_paused_during_its_import_is_sent_after_the_resume() {
    let budget = Budget { pauses: 1, resumes: 1, ..Budget::default() };
    assert_holds(importing(ONE_EACH, budget), &["COMPLETED, and all are sent", "paused"]);
}

#[test]
fn a_mailing_that_is_canceled_during_its_import_ends() {
    let budget = Budget { cancels: 1, ..Budget::default() };
    let reached = ["an import that stopped halfway", "a canceled recipient"];
    assert_holds(importing(ONE_EACH, budget), &reached);
}

#[test]
fn two_importers_that_both_believe_that_they_hold_a_file_break_no_rule() {
    let budget = Budget { freezes: 1, ..Budget::default() };
    assert_holds(importing(ONE, budget), &["two importers believe that they hold the file"]);
}

#[test]
fn a_claim_without_its_fence_is_caught() {
    let model = MailingModel::new(ONE, Budget { freezes: 1, ..Budget::default() });
    assert_caught(model, Flaw::ClaimWithoutFence, name::AFTER_UNSENT);
}

#[test]
fn a_lost_attempt_that_is_retried_is_caught() {
    let model = MailingModel::new(ONE, Budget { crashes: 1, ..Budget::default() });
    assert_caught(model, Flaw::LostAttemptIsRetried, name::SENT_ONCE);
}

#[test]
fn a_resend_order_that_is_not_recorded_is_caught() {
    let model = MailingModel::new(ONE_EACH, Budget { timeouts: 2, retries_unknown: 1, ..Budget::default() });
    assert_caught(model, Flaw::OrderNotRecorded, name::ORDER_ONCE);
}

#[test]
fn a_sender_that_does_not_read_the_mailing_again_is_caught() {
    let model = MailingModel::new(TOGETHER, Budget { cancels: 1, ..Budget::default() });
    assert_caught(model, Flaw::MailingReadOnce, name::AFTER_CANCEL);
}

/// An event corrects a recipient between the recount and the end of the pass.
#[test]
fn a_recount_that_misses_an_event_is_caught() {
    let model = MailingModel::new(ONE, Budget { timeouts: 1, events: 1, ..Budget::default() });
    assert_caught(model, Flaw::EndIgnoresEvents, name::FINISHED);
}

#[test]
fn a_group_that_is_handed_over_in_two_writes_is_caught() {
    let model = MailingModel::new(ONE_EACH, Budget::default());
    assert_caught(model, Flaw::HandOverInTwoWrites, name::GROUP);
}

#[test]
fn a_release_that_does_not_see_a_resume_is_caught() {
    let model = MailingModel::new(ONE, Budget { pauses: 1, resumes: 1, ..Budget::default() });
    assert_caught(model, Flaw::ReleaseIgnoresResume, name::GROUP);
}

#[test]
fn a_renewal_that_hides_an_enqueued_shard_is_caught() {
    let budget = Budget { holds: 1, pauses: 1, resumes: 1, renewals: 1, ..Budget::default() };
    assert_caught(MailingModel::new(ONE, budget), Flaw::RenewalHidesJob, name::GROUP);
}

#[test]
fn a_mailing_that_ends_before_a_resend_order_is_followed_is_caught() {
    let model = MailingModel::new(ONE, Budget { rejections: 1, retries: 1, ..Budget::default() });
    assert_caught(model, Flaw::EndIgnoresOrders, name::ENDS);
}

#[test]
fn a_canceled_mailing_that_no_sender_clears_is_caught() {
    let model = MailingModel::new(ONE, Budget { cancels: 1, pauses: 1, ..Budget::default() });
    assert_caught(model, Flaw::CancelWithoutSenders, name::ENDS);
}

#[test]
fn a_missing_recovery_is_caught() {
    let model = MailingModel::new(ONE, Budget { losses: 1, ..Budget::default() });
    assert_caught(model, Flaw::ShardsNotWatched, name::ENDS);
    let model = MailingModel::new(ONE, Budget { losses: 1, pauses: 1, resumes: 1, ..Budget::default() });
    assert_caught(model, Flaw::MailingNotWatched, name::ENDS);
}
