//! What may happen in a state of the model.

use stateright::{Model, Property};
use umavez_domain::conversations::{Course, Phase};
use umavez_domain::delivery::State;

use crate::properties::{always, reachable};
use crate::world::{Action, Answer, Flaw, RepliesModel, Worker, World};

impl Model for RepliesModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            course: Course::default(),
            check: None,
            queue: Vec::new(),
            workers: [Worker::Idle, Worker::Idle],
            parts: Vec::new(),
            batches: Vec::new(),
            left: self.messages,
            budget: self.budget,
            promised: None,
            by_person: 0,
            by_release: 0,
            hold_answered: false,
            was_stuck: false,
            released: false,
            violated: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let budget = &world.budget;
        if world.left > 0 {
            actions.push(Action::Message);
        }
        if world.workers.iter().all(|worker| *worker == Worker::Idle) || budget.freezes > 0 {
            actions.push(Action::Time);
        }
        for (n, worker) in world.workers.iter().enumerate() {
            match worker {
                Worker::Idle => {
                    let is_first = n == 0 || world.workers[0] != Worker::Idle;
                    for (at, wake) in world.queue.iter().enumerate().filter(|_| is_first) {
                        if !wake.later || budget.early > 0 {
                            actions.push(Action::Receive(n, at, false));
                        }
                        if !wake.later && budget.doubles > 0 {
                            actions.push(Action::Receive(n, at, true));
                        }
                    }
                    continue;
                }
                Worker::Woken { .. } => actions.push(Action::Work(n)),
                Worker::Asking { .. } => {
                    let answers = [
                        (Answer::Nothing, budget.nothing),
                        (Answer::Later, budget.later),
                        (Answer::Problem, budget.problems),
                    ];
                    let possible = answers.into_iter().filter(|(_, left)| *left > 0);
                    actions.extend(possible.map(|(answer, _)| Action::Answer(n, answer)));
                    actions.push(Action::Answer(n, Answer::Reply));
                    if budget.slow > 0 {
                        actions.push(Action::Slow(n));
                    }
                }
            }
            if budget.crashes > 0 {
                actions.push(Action::Crash(n));
            }
        }
        if budget.losses > 0 {
            actions.extend((0..world.queue.len()).map(Action::Lose));
        }
        if world.promised.is_some() {
            actions.push(Action::Callback);
        }
        let on_its_way = world.parts.iter().find(|part| !part.delivery.state.is_settled());
        match on_its_way.map(|part| part.delivery.state) {
            Some(State::Queued) => actions.push(Action::Begin),
            Some(_) => {
                actions.push(Action::End(State::Sent));
                let ends = [(State::Unknown, budget.unknown), (State::Failed, budget.failed)];
                actions.extend(ends.into_iter().filter(|(_, left)| *left > 0).map(|(state, _)| Action::End(state)));
                if budget.unsent > 0 {
                    actions.push(Action::NotSent);
                }
            }
            None => {}
        }
        let is_held = world.course.hold.is_some();
        let has_messages = world.course.received > 0;
        if has_messages && !is_held {
            actions.extend((budget.holds > 0).then_some(Action::Hold(false)));
            actions.extend((budget.holds_with_end > 0).then_some(Action::Hold(true)));
        }
        let is_recalled = on_its_way.is_some_and(|part| part.delivery.recalled.is_some());
        if world.course.is_recalled() && !is_recalled && !self.has(Flaw::HoldWithoutCancel) {
            actions.push(Action::CancelReply);
        }
        if is_held || world.course.phase == Phase::Stuck {
            actions.extend((budget.releases > 0).then_some(Action::Release(true)));
            actions.extend((budget.settles > 0).then_some(Action::Release(false)));
        }
        if budget.persons > 0 && has_messages {
            actions.extend([Action::Person(false), Action::Person(true)]);
        }
        let is_stopped = |worker: &Worker| matches!(worker, Worker::Idle | Worker::Asking { frozen: true, .. });
        let is_idle = world.queue.is_empty() && world.workers.iter().all(is_stopped);
        // A reply that is on its way needs no recovery: its end wakes the conversation.
        if is_idle && world.check == Some(true) && on_its_way.is_none() && !self.has(Flaw::NoRecovery) {
            actions.push(Action::Recover);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.act(&mut world, action)?;
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = always().into_iter().map(|(name, holds)| Property::always(name, holds));
        let reachable = reachable().into_iter().map(|(name, holds)| Property::sometimes(name, holds));
        always.chain(reachable).collect()
    }
}
