//! The conditions that every state satisfies, the conditions that some state satisfies, and the
//! functions that check a model.

use stateright::{Checker, Expectation, HasDiscoveries, Model};
use umavez_domain::delivery::{Delivery, State};
use umavez_domain::keys::Wake;
use umavez_domain::mailings::{EntryNext, MailingState, next_of_entry};

use crate::rows::DeliveryRow;
use crate::world::{DeliveryModel, Fact, Flaw, RealOutcome, Sender, World, property};

/// A condition on one state of a model.
pub type Condition<R> = fn(&DeliveryModel<R>, &World<R>) -> bool;

/// Asserts that every state satisfies the conditions of [`always`], and that some state satisfies
/// each condition of [`reachable`] that `reached` names.
pub fn assert_holds<R: DeliveryRow>(model: DeliveryModel<R>, reached: &[&'static str]) {
    let checked = model.checker().spawn_bfs().join();
    for property in checked.model().properties() {
        if property.expectation == Expectation::Always {
            let violation = checked.discovery(property.name).map(|path| path.into_actions());
            assert!(violation.is_none(), "violated: {}: {violation:?}", property.name);
        }
    }
    for name in reached {
        assert!(checked.discovery(name).is_some(), "not reached: {name}");
    }
}

/// Asserts that the checker finds a violation of the property in a model with the flaw.
pub fn assert_caught<R: DeliveryRow>(model: DeliveryModel<R>, flaw: Flaw, property: &'static str) {
    let model = DeliveryModel { flaw: Some(flaw), ..model };
    let found = HasDiscoveries::AnyOf([property].into());
    let checked = model.checker().finish_when(found).spawn_bfs().join();
    assert!(checked.discovery(property).is_some(), "{flaw:?} was not caught");
}

/// Returns the conditions that must hold in every state.
pub fn always<R: DeliveryRow>() -> Vec<(&'static str, Condition<R>)> {
    vec![
        (property::ONE_CALL, |_, world| world.violated != Some(property::ONE_CALL)),
        (property::BEGINS_AFTER_UNSENT, |_, world| world.violated != Some(property::BEGINS_AFTER_UNSENT)),
        (property::NO_ATTEMPT_AFTER_CANCEL, |_, world| world.violated != Some(property::NO_ATTEMPT_AFTER_CANCEL)),
        (property::NO_ATTEMPT_AFTER_GATE, |_, world| world.violated != Some(property::NO_ATTEMPT_AFTER_GATE)),
        (property::FINAL_STATES, |_, world| world.violated != Some(property::FINAL_STATES)),
        (property::ONE_VERSION_PER_CHANGE, |_, world| world.violated != Some(property::ONE_VERSION_PER_CHANGE)),
        (property::LIVING_SENDER_KEEPS_ATTEMPT, |_, world| {
            world.violated != Some(property::LIVING_SENDER_KEEPS_ATTEMPT)
        }),
        (property::ORDER_FOLLOWED_ONCE, |_, world| world.violated != Some(property::ORDER_FOLLOWED_ONCE)),
        (property::NOT_SENT_AFTER_CANCEL, |_, world| world.violated != Some(property::NOT_SENT_AFTER_CANCEL)),
        (property::SENT_WAS_SENT, |_, world| {
            let may_be_sent = |fact: &Fact| match fact.outcome {
                RealOutcome::Sent => true,
                RealOutcome::Rejected => !fact.rejection_reported,
                RealOutcome::NotCalled | RealOutcome::NotSent => fact.declared_sent,
            };
            world.state() != State::Sent || world.facts.iter().any(may_be_sent)
        }),
        (property::UNSENT_WAS_NOT_SENT, |_, world| {
            let was_sent = |fact: &Fact| fact.outcome == RealOutcome::Sent && !fact.declared_unsent;
            !world.state().is_unsent() || !world.facts.iter().any(was_sent)
        }),
        (property::PROVEN_IS_SENT, |_, world| {
            let delivery = world.row.delivery();
            let will_be = delivery.state == State::Sending && delivery.sent_attempt().is_some();
            let is_final = matches!(delivery.state, State::Canceled | State::Suppressed | State::Expired);
            let proven = |fact: &Fact| {
                fact.outcome == RealOutcome::Sent && fact.proven_sent && !(is_final && fact.declared_unsent)
            };
            delivery.state == State::Sent || will_be || !world.facts.iter().any(proven)
        }),
        (property::SENT_ONCE, |_, world| world.facts.iter().any(|fact| fact.may_repeat) || world.sent_count() <= 1),
        (property::CANCELED_STAYS_CANCELED, |_, world| !world.canceled || world.state() == State::Canceled),
        (property::UNRESOLVED_IN_DOUBT, |_, world| {
            let delivery = world.row.delivery();
            let mut facts = (1..).zip(&world.facts);
            is_known_sent(delivery)
                || facts.all(|(attempt, fact)| !fact.unresolved || delivery.doubts.contains(&attempt))
        }),
        (property::ONLY_UNRESOLVED_IN_DOUBT, |_, world| {
            let delivery = world.row.delivery();
            is_known_sent(delivery)
                || delivery.doubts.iter().all(|attempt| world.facts[*attempt as usize - 1].unresolved)
        }),
        (property::UNKNOWN_HAS_DOUBT, |_, world| {
            world.state() != State::Unknown || !world.row.delivery().doubts.is_empty()
        }),
        (property::RECOVERY_FINDS_UNFINISHED, |model, world| {
            let Some((id, work)) = world.row.work() else {
                let when_due = world.now().plus_days(1);
                let next = next_of_entry(world.row.delivery(), MailingState::Processing, false, when_due);
                return world.state().is_settled() || next != EntryNext::Leave;
            };
            let is_indexed = |wake: Wake| work.wakes_at(wake, id).is_some();
            let is_recoverable = || world.row.recover(model.policy, world.now()).is_some();
            match world.state() {
                State::Queued | State::Sending => is_indexed(Wake::Check) && is_recoverable(),
                State::Unknown => is_indexed(Wake::Unknown),
                _ => work.wake.is_none(),
            }
        }),
        (property::ONLY_ENDED_REMOVABLE, |_, world| {
            let is_over = world.state().is_settled() && world.state() != State::Unknown;
            world.row.is_removable() == is_over
        }),
        (property::SENT_HAS_TIME, |_, world| world.state() != State::Sent || world.row.delivery().sent_at.is_some()),
        (property::EVERYTHING_SETTLED, |model, world| world.state().is_settled() || !is_finished(model, world)),
    ]
}

fn is_known_sent(delivery: &Delivery) -> bool {
    delivery.state == State::Sent || delivery.sent_attempt().is_some()
}

/// Returns whether nothing can happen any more.
fn is_finished<R: DeliveryRow>(model: &DeliveryModel<R>, world: &World<R>) -> bool {
    if world.senders.iter().any(|sender| *sender != Sender::Idle) {
        return false;
    }
    let mut actions = Vec::new();
    model.actions(world, &mut actions);
    actions.is_empty()
}

/// Returns the conditions that must hold in some state of some model. Without them, a model in
/// which nothing happens would pass.
pub fn reachable<R: DeliveryRow>() -> Vec<(&'static str, Condition<R>)> {
    vec![
        ("SENT", |_, world| world.state() == State::Sent),
        ("FAILED", |_, world| world.state() == State::Failed),
        ("UNKNOWN", |_, world| world.state() == State::Unknown),
        ("CANCELED", |_, world| world.state() == State::Canceled),
        ("SUPPRESSED", |_, world| world.state() == State::Suppressed),
        ("EXPIRED", |_, world| world.state() == State::Expired),
        ("a recalled attempt ends as CANCELED", |_, world| {
            world.state() == State::Canceled && world.row.delivery().recalled.is_some()
        }),
        ("a recalled attempt ends as SENT", |_, world| {
            world.state() == State::Sent && world.row.delivery().recalled.is_some()
        }),
        ("a recalled attempt is in doubt", |_, world| {
            world.state() == State::Unknown && world.row.delivery().recalled.is_some()
        }),
        ("a frozen sender reports late that it did not send", |_, world| {
            let resolved = |fact: &Fact| fact.given_up && !fact.unresolved && !fact.declared_unsent;
            world.state() == State::Failed && world.facts.iter().any(resolved)
        }),
        ("proof overrides an operator who declared not sent", |_, world| {
            world.state() == State::Sent
                && world.facts.iter().any(|fact| fact.declared_unsent && fact.outcome == RealOutcome::Sent)
        }),
        ("proof names the attempt that an operator declared sent", |_, world| {
            let declared = world.facts.iter().any(|fact| fact.declared_sent);
            world.state() == State::Sent && declared && world.row.delivery().sent_attempt().is_some()
        }),
        ("an earlier attempt is proven while a later one is under way", |_, world| {
            world.state() == State::Sending && world.row.delivery().sent_attempt().is_some()
        }),
        ("an accepted attempt is rejected", |_, world| {
            world.state() == State::Failed && world.facts.iter().any(|fact| fact.rejection_reported)
        }),
        ("sent twice by order or policy", |_, world| world.sent_count() > 1),
        ("a second attempt is sent", |_, world| {
            world.state() == State::Sent && world.row.delivery().sent_attempt() == Some(2)
        }),
        ("a payment finds an attempt under way", |_, world| {
            world.context.paid && world.recalled && world.state() == State::Sending
        }),
    ]
}
