//! The conditions that every state satisfies, the conditions that some state satisfies, and the
//! functions that check a model.

use stateright::{Checker, Expectation, HasDiscoveries, Model};
use umavez_domain::mailings::{EntryState, ImportState, MailingState, ShardState};

use crate::rows::{Shard, counts_of};
use crate::scenario::{Flaw, MailingModel};
use crate::world::{Importer, Sender, World};

pub type Condition = fn(&MailingModel, &World) -> bool;

/// The names of the properties.
pub mod name {
    // A step violates these; the world records the violation.
    pub const ONE_CALL: &str = "an attempt is one call at most";
    pub const AFTER_UNSENT: &str = "an attempt begins only if the one before was not sent, or by order";
    pub const AFTER_CANCEL: &str = "no attempt begins that was decided on after a cancel was answered";
    pub const CANCELED_NOT_SENT: &str = "nothing is sent to a canceled recipient";
    pub const ORDER_ONCE: &str = "an order is not followed by an attempt that began after it";

    // A state violates these.
    pub const SENT_ONCE: &str = "a recipient is sent to once, and once more for each order";
    pub const COMPLETED: &str = "COMPLETED means that every recipient has ended, and that the counts add up";
    pub const FINISHED: &str = "the counts of a finished shard are those of its recipients";
    pub const GROUP: &str = "a group that is to be sent has an active shard, or is about to get one";
    pub const ENDS: &str = "in the end every mailing that is not paused is over, and every order is followed";
}

/// Asserts that every state satisfies the conditions of [`always`], and that some state satisfies
/// each condition of [`reachable`] that `reached` names.
pub fn assert_holds(model: MailingModel, reached: &[&'static str]) {
    let started = std::time::Instant::now();
    let checked = model.checker().spawn_bfs().join();
    println!("{} states in {:?}", checked.unique_state_count(), started.elapsed());
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
pub fn assert_caught(model: MailingModel, flaw: Flaw, property: &'static str) {
    let model = MailingModel { flaw: Some(flaw), ..model };
    let found = HasDiscoveries::AnyOf([property].into());
    let checked = model.checker().finish_when(found).spawn_bfs().join();
    assert!(checked.discovery(property).is_some(), "{flaw:?} was not caught");
}

/// Returns the conditions that must hold in every state.
pub fn always() -> Vec<(&'static str, Condition)> {
    vec![
        (name::ONE_CALL, |_, world| world.violated != Some(name::ONE_CALL)),
        (name::AFTER_UNSENT, |_, world| world.violated != Some(name::AFTER_UNSENT)),
        (name::AFTER_CANCEL, |_, world| world.violated != Some(name::AFTER_CANCEL)),
        (name::CANCELED_NOT_SENT, |_, world| world.violated != Some(name::CANCELED_NOT_SENT)),
        (name::ORDER_ONCE, |_, world| world.violated != Some(name::ORDER_ONCE)),
        (name::SENT_ONCE, |_, world| {
            world.facts.iter().all(|facts| {
                facts.attempts.iter().filter(|attempt| attempt.sent).count() <= 1 + usize::from(facts.orders)
            })
        }),
        (name::COMPLETED, |_, world| {
            let is_open = |state| world.count(state) > 0;
            world.mailing.state != MailingState::Completed
                || !is_open(EntryState::Pending) && !is_open(EntryState::Sending)
        }),
        (name::FINISHED, |model, world| {
            let Some(shards) = &world.shards else { return true };
            let mut own = shards.own.iter().enumerate();
            own.all(|(at, shard)| {
                shard.state != ShardState::Finished || shard.counts == counts_of(&world.tally(model, at).counts)
            })
        }),
        (name::GROUP, |_, world| {
            let Some(shards) = &world.shards else { return true };
            let is_open = |shard: &&Shard| shard.state != ShardState::Finished;
            let mut open = shards.own.iter().filter(is_open);
            let is_idle = !world.mailing.emits_now && open.all(|shard| shard.wake.is_none());
            // No shard is open, or none has to be sent.
            !is_idle || shards.own.iter().filter(is_open).count() == 0 || !world.mailing.row().needs_senders()
        }),
        (name::ENDS, |model, world| !is_finished(model, world) || is_over(world)),
    ]
}

/// Returns whether nothing can happen any more.
fn is_finished(model: &MailingModel, world: &World) -> bool {
    if !world.is_quiet() {
        return false;
    }
    let mut actions = Vec::new();
    model.actions(world, &mut actions);
    actions.into_iter().all(|action| model.next_state(world, action).is_none())
}

fn is_over(world: &World) -> bool {
    let is_settled = world.entries.iter().flatten().all(|entry| entry.state().is_settled());
    let rows = world.shards.map(|shards| shards.rows()).unwrap_or_default();
    let is_followed = !world.mailing.row().has_new_order(&rows);
    let is_counted = rows.iter().all(|shard| shard.state == ShardState::Finished);
    match world.mailing.state {
        MailingState::Paused => true,
        MailingState::Completed => is_settled && is_followed && is_counted,
        MailingState::Canceled => is_settled && is_counted && world.mailing.import == ImportState::Done,
        _ => false,
    }
}

/// Returns the conditions that must hold in some state of some model. Without them, a model in
/// which nothing happens would pass.
pub fn reachable() -> Vec<(&'static str, Condition)> {
    vec![
        ("COMPLETED", |_, world| world.mailing.state == MailingState::Completed),
        ("COMPLETED, and all are sent", |_, world| {
            world.mailing.state == MailingState::Completed && world.count(EntryState::Sent) == world.entries.len()
        }),
        ("COMPLETED with an unknown recipient", |_, world| {
            world.mailing.state == MailingState::Completed && world.count(EntryState::Unknown) > 0
        }),
        ("COMPLETED with a failed recipient", |_, world| {
            world.mailing.state == MailingState::Completed && world.count(EntryState::Failed) > 0
        }),
        ("a canceled recipient", |_, world| world.count(EntryState::Canceled) > 0),
        ("an attempt ends after a cancel", |_, world| world.canceled && world.count(EntryState::Sent) > 0),
        ("two senders believe that they hold a shard", |_, world| {
            let turn = |sender: &Sender| matches!(sender, Sender::Turn { turn, .. } if turn.at == 0);
            world.senders.iter().all(turn)
        }),
        ("the second shard is sent", |_, world| {
            world.shards.is_some_and(|shards| shards.own[1].state == ShardState::Finished)
        }),
        ("paused", |_, world| world.mailing.state == MailingState::Paused),
        ("a failed recipient is sent to by order", |_, world| {
            world.facts.iter().any(|facts| facts.orders > 0 && facts.attempts.len() > 1)
        }),
        ("sent twice by order", |_, world| {
            world.facts.iter().any(|facts| facts.attempts.iter().filter(|attempt| attempt.sent).count() > 1)
        }),
        ("an event corrects a finished shard", |_, world| {
            world.mailing.state == MailingState::Completed
                && world.budget.events == 0
                && world.count(EntryState::Sent) > 0
        }),
        ("an import that stopped halfway", |_, world| world.mailing.partial),
        ("two importers believe that they hold the file", |_, world| {
            world.importers.iter().all(|importer| *importer != Importer::Idle)
        }),
    ]
}
