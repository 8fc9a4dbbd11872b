//! The conditions that every state satisfies, the conditions that some state satisfies, and the
//! functions that check a model.

use stateright::{Checker, Expectation, HasDiscoveries, Model};
use umavez_domain::conversations::{Course, Phase};
use umavez_domain::delivery::State;

use crate::world::{Batch, Flaw, Part, RepliesModel, Worker, World};

pub type Condition = fn(&RepliesModel, &World) -> bool;

/// The names of the properties.
pub mod name {
    // A step violates these; the world records the violation.
    pub const ONE_REPLY: &str = "a batch has one reply";
    pub const ONE_AT_A_TIME: &str = "a part leaves only after the one before has ended";
    pub const HELD: &str = "no attempt begins and no part leaves during a hold that was answered";
    pub const ONE_ASKS: &str = "one worker at a time asks the responder";

    // A state violates these.
    pub const WATERMARKS: &str = "the watermarks are in order";
    pub const PART_ONCE: &str = "a part that may have been sent is not repeated";
    pub const FINISHED: &str = "an answered batch is finished";
    pub const CHECKED: &str = "recovery checks every unanswered conversation, unless a person has to act";
    pub const ANSWERED: &str = "in the end every message is answered, or the conversation says why not";
}

/// Asserts that every state satisfies the conditions of [`always`], and that some state satisfies
/// each condition of [`reachable`] that `reached` names.
pub fn assert_holds(model: RepliesModel, reached: &[&'static str]) {
    let checked = model.checker().spawn_bfs().join();
    println!("{} states", checked.unique_state_count());
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
pub fn assert_caught(model: RepliesModel, flaw: Flaw, property: &'static str) {
    let model = RepliesModel { flaw: Some(flaw), ..model };
    let found = HasDiscoveries::AnyOf([property].into());
    let checked = model.checker().finish_when(found).spawn_bfs().join();
    assert!(checked.discovery(property).is_some(), "{flaw:?} was not caught");
}

fn may_be_sent(part: &Part) -> bool {
    matches!(part.delivery.state, State::Sent | State::Unknown)
}

/// Returns the conditions that must hold in every state.
pub fn always() -> Vec<(&'static str, Condition)> {
    vec![
        (name::ONE_REPLY, |_, world| world.violated != Some(name::ONE_REPLY)),
        (name::ONE_AT_A_TIME, |_, world| world.violated != Some(name::ONE_AT_A_TIME)),
        (name::HELD, |_, world| world.violated != Some(name::HELD)),
        (name::ONE_ASKS, |_, world| world.violated != Some(name::ONE_ASKS)),
        (name::WATERMARKS, |_, world| {
            let Course { received, claimed, answered, phase, .. } = world.course;
            answered <= claimed && claimed <= received && (phase == Phase::Idle) == (answered == claimed)
        }),
        (name::PART_ONCE, |_, world| {
            let sent: Vec<_> = world.parts.iter().filter(|part| may_be_sent(part)).collect();
            sent.windows(2).all(|pair| (pair[0].batch, pair[0].part) < (pair[1].batch, pair[1].part))
        }),
        (name::FINISHED, |_, world| {
            world.batches.iter().all(|batch| batch.finished == (batch.number <= world.course.answered))
        }),
        (name::CHECKED, |_, world| {
            let waits_for_person = world.course.phase == Phase::Stuck || world.course.hold.is_some();
            world.course.answered == world.course.received || waits_for_person || world.check.is_some()
        }),
        (name::ANSWERED, |model, world| !is_finished(model, world) || is_explained(world)),
    ]
}

/// Returns whether nothing can happen any more.
fn is_finished(model: &RepliesModel, world: &World) -> bool {
    if world.workers.iter().any(|worker| *worker != Worker::Idle) {
        return false;
    }
    let mut actions = Vec::new();
    model.actions(world, &mut actions);
    actions.into_iter().all(|action| model.next_state(world, action).is_none())
}

/// Returns whether every message is answered, or the conversation says why not.
fn is_explained(world: &World) -> bool {
    let Course { answered, received, phase, hold, .. } = world.course;
    let waits_for_person = phase == Phase::Stuck || hold.is_some_and(|hold| hold.until.is_none());
    let settled = world.by_person.max(world.by_release);
    let is_said = |batch: &Batch| {
        let ended = |part: u32, is: fn(&Part) -> bool| {
            let of_it = |one: &&Part| (one.batch, one.part) == (batch.number, part);
            world.parts.iter().filter(of_it).any(is)
        };
        let failed = |part: &Part| part.delivery.state == State::Failed;
        let has_failed = (0..batch.parts).any(|part| ended(part, failed));
        has_failed || (0..batch.parts).all(|part| ended(part, may_be_sent))
    };
    let is_answered = |number: u64| {
        number <= settled || world.batches.iter().find(|batch| batch.number >= number).is_some_and(is_said)
    };
    (answered == received || waits_for_person) && (1..=answered).all(is_answered)
}

/// Returns the conditions that must hold in some state of some model. Without them, a model in
/// which nothing happens would pass.
pub fn reachable() -> Vec<(&'static str, Condition)> {
    fn any(world: &World, is: impl Fn(&Part) -> bool) -> bool {
        world.parts.iter().any(is)
    }
    vec![
        ("answered by the bot", |model, world| {
            let all = u64::from(model.messages);
            world.course.answered == all && world.by_person == 0 && world.by_release == 0 && any(world, may_be_sent)
        }),
        ("two batches", |_, world| world.batches.len() == 2),
        ("a worker takes over a batch", |_, world| world.course.attempts > 1),
        ("stuck", |_, world| world.was_stuck),
        ("answered later", |_, world| {
            world.course.phase == Phase::Sending && world.promised.is_none() && world.budget.later == 0
        }),
        ("nothing to say", |_, world| world.batches.iter().any(|batch| batch.parts == 0)),
        ("released", |model, world| world.released && world.course.answered == u64::from(model.messages)),
        ("a part is unknown", |_, world| any(world, |part| part.delivery.state == State::Unknown)),
        ("a part has failed", |_, world| any(world, |part| part.delivery.state == State::Failed)),
        ("recalled", |_, world| any(world, |part| part.delivery.state == State::Canceled)),
        ("recalled during an attempt", |_, world| {
            any(world, |part| part.delivery.state == State::Sending && part.delivery.recalled.is_some())
        }),
        ("withheld between two parts", |_, world| world.course.phase == Phase::Replied && world.course.part > 0),
        ("a recalled part is sent after the hold", |_, world| {
            let canceled = |part: &Part| part.delivery.state == State::Canceled;
            let later =
                |one: &Part| any(world, |part| part.handed > one.handed && part.part == one.part && may_be_sent(part));
            any(world, |part| canceled(part) && later(part))
        }),
        ("settled by a release", |_, world| world.by_release > 0),
        ("a reply that is not needed any more", |_, world| {
            let settled = world.by_person.max(world.by_release);
            let unsent = |batch: &Batch| !any(world, |part| part.batch == batch.number && may_be_sent(part));
            world.batches.iter().any(|batch| batch.finished && batch.number <= settled && unsent(batch))
        }),
        ("answered by a person", |_, world| world.by_person > 0),
        ("a person who answered nothing", |model, world| {
            model.budget.persons > 0 && world.budget.persons == 0 && world.by_person == 0
        }),
    ]
}
