//! The claim protocol, checked in every interleaving of a small world: two messages, one of them told twice, two
//! workers that may die, a responder that may fail, a person who may answer, time that passes. The product's own
//! [`Course`] decides every step. The store takes a write only if the row is as it was read; the model compares the
//! rows themselves, where the product compares their versions.

use std::collections::BTreeMap;

use stateright::{Checker, Model, Property};
use umavez_domain::conversations::{Course, HeldBy, Hold, PartEnd, Phase, Step, Timing};
use umavez_domain::time::Timestamp;

const TIMING: Timing =
    Timing { debounce_ms: 1, max_wait_ms: 2, lease_ms: 2, callback_ms: 2, attempts: 3, backoff_ms: 1 };
/// Moments that the world has.
const LAST: i64 = 3;
/// And those that it takes to answer what came at its end.
const PATIENCE: i64 = 7;
/// Nobody dies so late that there is no time to be found.
const LAST_TROUBLE: i64 = 1;

/// A webhook of one message, which its provider may tell twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Producer {
    /// The row as it was read, while it stores.
    read: Option<Course>,
    left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    /// It has read the row.
    Woken(Course),
    /// It has claimed a batch, and asks.
    Asking {
        batch: u64,
        epoch: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    course: Course,
    /// Which message has which number.
    stored: Vec<usize>,
    producers: [Producer; 2],
    workers: [Worker; 2],
    /// The messages of each batch that was ever asked about.
    batches: BTreeMap<u64, (u64, u64)>,
    /// Batches that have their one reply.
    replies: Vec<u64>,
    /// What was handed to outbound, and what became of it.
    handed: Vec<(u64, u32, Message)>,
    troubles: u8,
    persons: u8,
    /// Holds that an operator still gives, each with its release.
    holds: u8,
    /// What a person answered.
    by_person: u64,
    /// A promise that was broken on the way here.
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Queued,
    Sent,
    Canceled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Tick,
    Tell(usize),
    Store(usize),
    Wake(usize),
    Work(usize),
    Replies(usize),
    SaysNothing(usize),
    Fails(usize),
    Dies(usize),
    Sends,
    PersonAnswers,
    Holds,
    /// The second half of a hold: what has not left is called back.
    CallsBack,
    Releases,
}

struct Small {
    with_person: bool,
    troubles: u8,
    holds: u8,
}

fn at(now: i64) -> Timestamp {
    Timestamp::from_millis(now)
}

impl World {
    fn write(&mut self, course: Course) {
        self.course = course;
    }

    /// The transaction of a reply: where the conversation stands, the row of the batch, and the message.
    fn reply(&mut self, batch: u64, parts: u32) {
        if self.replies.contains(&batch) {
            return;
        }
        self.replies.push(batch);
        let course = self.course.replied(parts, at(self.now));
        self.hand_over(&course);
        self.write(course);
    }

    fn hand_over(&mut self, course: &Course) {
        if course.phase == Phase::Sending && course.handed > self.course.handed {
            if self.on_its_way().is_some() {
                self.broken = Some("two replies are on their way");
            }
            self.handed.push((course.claimed, course.handed, Message::Queued));
        }
    }

    fn on_its_way(&self) -> Option<usize> {
        self.handed.iter().position(|(_, _, message)| *message == Message::Queued)
    }

    fn claimed(&mut self, course: &Course) {
        let range = (course.answered + 1, course.claimed);
        let before = self.batches.insert(course.claimed, range);
        if before.is_some_and(|before| before != range) {
            self.broken = Some("a batch has changed");
        }
    }

    fn work(&mut self, worker: usize) {
        let Worker::Woken(read) = self.workers[worker].clone() else { return };
        let fresh = self.course == read;
        self.workers[worker] = Worker::Idle;
        match read.next(at(self.now), &TIMING) {
            Step::Rest | Step::Wait(_) => {}
            // Whoever lost decides again on the row that won.
            _ if !fresh => self.workers[worker] = Worker::Woken(self.course.clone()),
            Step::Ask(course) => {
                self.claimed(&course);
                self.workers[worker] = Worker::Asking { batch: course.claimed, epoch: course.epoch };
                self.write(course);
            }
            Step::GiveUp(course) => self.write(course),
            Step::HandOver(course) => {
                self.hand_over(&course);
                self.write(course);
            }
            Step::Look => {
                let message =
                    self.handed.iter().find(|(batch, handed, _)| (*batch, *handed) == (read.claimed, read.handed));
                let end = match message {
                    Some((_, _, Message::Sent)) => PartEnd::Sent,
                    Some((_, _, Message::Canceled)) => PartEnd::Canceled,
                    _ => return,
                };
                let course = read.part_ended(end, at(self.now));
                self.hand_over(&course);
                self.write(course);
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.course.answered == self.course.received || self.course.phase == Phase::Stuck
    }
}

impl Small {
    /// Nothing can happen any more.
    fn is_over(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        self.actions(world, &mut actions);
        actions.iter().all(|act| self.next_state(world, *act).is_none())
    }
}

impl Model for Small {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let told = |left| Producer { read: None, left };
        vec![World {
            now: 0,
            course: Course::default(),
            stored: Vec::new(),
            // Two tellings of one message meet each other; what an operator does meets either alike.
            producers: [told(if self.holds > 0 { 1 } else { 2 }), told(1)],
            workers: [Worker::Idle, Worker::Idle],
            batches: BTreeMap::new(),
            replies: Vec::new(),
            handed: Vec::new(),
            troubles: self.troubles,
            persons: u8::from(self.with_person),
            holds: self.holds,
            by_person: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        // Towards the end time passes only for those who wait: requests have ended, one way or the other.
        let told = world.producers.iter().all(|producer| producer.read.is_none());
        let waits = told && !world.is_answered() && world.now < LAST + PATIENCE;
        if world.now < LAST || waits {
            actions.push(Act::Tick);
        }
        let trouble = world.troubles > 0 && world.now <= LAST_TROUBLE;
        for (n, producer) in world.producers.iter().enumerate() {
            match producer.read {
                Some(_) => actions.push(Act::Store(n)),
                // A provider that tells again does so soon.
                None if producer.left > 0 && world.now <= LAST_TROUBLE => actions.push(Act::Tell(n)),
                None => {}
            }
        }
        for (n, worker) in world.workers.iter().enumerate() {
            match worker {
                // A worker that finds nothing to do changes nothing.
                Worker::Idle => match world.course.next(at(world.now), &TIMING) {
                    Step::Rest | Step::Wait(_) => {}
                    Step::Look if world.on_its_way().is_some() => {}
                    _ => actions.push(Act::Wake(n)),
                },
                Worker::Woken(_) => actions.push(Act::Work(n)),
                Worker::Asking { .. } => {
                    actions.push(Act::Replies(n));
                    if n == 0 {
                        actions.push(Act::SaysNothing(n));
                    }
                    if trouble {
                        actions.extend([Act::Fails(n), Act::Dies(n)]);
                    }
                }
            }
        }
        let on_its_way = world.on_its_way();
        if on_its_way.is_some() {
            actions.push(Act::Sends);
        }
        // One is given while there is something to hold, and taken back before long.
        let held = world.course.hold.is_some();
        if world.holds > 0 && !held && world.now <= LAST_TROUBLE + 1 && world.course.received > 0 {
            actions.push(Act::Holds);
        }
        if held && world.course.recalled > 0 && on_its_way.is_some() {
            actions.push(Act::CallsBack);
        }
        if held && !self.with_person {
            actions.push(Act::Releases);
        }
        if world.persons > 0 && world.now <= LAST_TROUBLE && world.course.received > 0 {
            actions.push(Act::PersonAnswers);
        }
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        let now = at(world.now);
        match act {
            Act::Tick => world.now += 1,
            Act::Tell(n) => {
                world.producers[n].left -= 1;
                world.producers[n].read = Some(world.course.clone());
            }
            Act::Store(n) => {
                let read = world.producers[n].read.take()?;
                if world.stored.contains(&n) {
                    // Its row is there: it was told before.
                } else if read == world.course {
                    world.stored.push(n);
                    world.write(read.receive(now));
                } else {
                    world.producers[n].read = Some(world.course.clone());
                }
            }
            Act::Wake(n) => world.workers[n] = Worker::Woken(world.course.clone()),
            Act::Work(n) => world.work(n),
            Act::Replies(n) | Act::SaysNothing(n) | Act::Fails(n) => {
                let Worker::Asking { batch, epoch } = world.workers[n].clone() else { return None };
                world.workers[n] = Worker::Idle;
                if world.course.is_turn(batch, epoch) {
                    match act {
                        Act::Replies(_) => world.reply(batch, 1),
                        Act::SaysNothing(_) => world.reply(batch, 0),
                        _ => {
                            let failed = world.course.failed(now, &TIMING);
                            world.write(failed);
                        }
                    }
                }
                world.troubles -= u8::from(matches!(act, Act::Fails(_)));
            }
            Act::Dies(n) => {
                world.workers[n] = Worker::Idle;
                world.troubles -= 1;
            }
            Act::Sends => {
                let message = world.on_its_way()?;
                world.handed[message].2 = Message::Sent;
            }
            Act::CallsBack => {
                let message = world.on_its_way()?;
                world.handed[message].2 = Message::Canceled;
            }
            Act::Holds => {
                world.holds -= 1;
                let hold = Hold { by: HeldBy::Operator, since: world.now, until: None };
                let course = world.course.hold(hold);
                world.write(course);
            }
            Act::Releases => {
                let course = world.course.release();
                world.write(course);
            }
            Act::PersonAnswers => {
                world.persons -= 1;
                world.by_person = world.course.received;
                let hold = Hold { by: HeldBy::Person, since: world.now, until: Some(world.now + 1) };
                let course = world.course.settle().hold(hold);
                world.write(course);
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the watermarks are in order", |_, world: &World| {
                let Course { received, claimed, answered, phase, .. } = world.course;
                answered <= claimed && claimed <= received && (phase == Phase::Idle) == (answered == claimed)
            }),
            Property::always("a message is one row with one number", |_, world: &World| {
                let twice = world.stored.len() == 2 && world.stored[0] == world.stored[1];
                !twice && world.stored.len() as u64 == world.course.received
            }),
            Property::always("no promise is broken on the way", |_, world: &World| world.broken.is_none()),
            Property::always("batches do not overlap", |_, world: &World| {
                let ranges: Vec<_> = world.batches.values().collect();
                ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
            }),
            Property::always("a batch is sent once, and batches in their order", |_, world: &World| {
                let sent: Vec<_> = world.handed.iter().filter(|message| message.2 != Message::Canceled).collect();
                sent.windows(2).all(|pair| pair[0].0 < pair[1].0)
            }),
            Property::always("a batch with a reply is said in the end", |model, world: &World| {
                let said = |batch: &u64| {
                    let of_it = |message: &&(u64, u32, Message)| message.0 == *batch;
                    let tried = world.handed.iter().any(|message| of_it(&message));
                    !tried || world.handed.iter().any(|message| of_it(&message) && message.2 == Message::Sent)
                };
                !model.is_over(world) || world.by_person > 0 || world.replies.iter().all(said)
            }),
            Property::always("whatever is unanswered is looked for", |_, world: &World| {
                let held = world.course.hold.is_some_and(|hold| hold.by == HeldBy::Operator);
                world.is_answered() || held || world.course.look_again(at(world.now), &TIMING).is_some()
            }),
            Property::always("in the end every message is answered", |model, world: &World| {
                let over = model.is_over(world);
                let every = world.stored.len() as u64 == world.course.received && world.is_answered();
                let covered = (1..=world.course.answered).all(|number| {
                    let in_batch = world.batches.values().any(|(from, to)| (*from..=*to).contains(&number));
                    in_batch || number <= world.by_person
                });
                !over || (every && covered)
            }),
            Property::sometimes("one answer for two messages", |_, world: &World| {
                world.batches.len() == 1 && world.course.answered == 2 && world.handed.len() == 1
            }),
            Property::sometimes("an answer for each", |_, world: &World| {
                world.batches.len() == 2 && world.course.answered == 2 && world.handed.len() == 2
            }),
            Property::sometimes("a worker is taken over from", |_, world: &World| world.course.attempts > 1),
        ]
    }
}

#[test]
fn no_interleaving_of_two_messages_two_workers_and_their_deaths_loses_or_repeats_an_answer() {
    let checked = Small { with_person: false, troubles: 1, holds: 0 }.checker().threads(2).spawn_bfs().join();
    println!("{} states", checked.unique_state_count());
    checked.assert_properties();
}

/// Everything that must hold always; what is only reachable depends on who takes part.
fn holds_always(small: Small) {
    let checked = small.checker().threads(2).spawn_bfs().join();
    println!("{} states", checked.unique_state_count());
    for property in checked.model().properties() {
        if property.expectation == stateright::Expectation::Always {
            checked.assert_no_discovery(property.name);
        }
    }
}

#[test]
fn nor_does_a_person_who_answers_in_between() {
    holds_always(Small { with_person: true, troubles: 0, holds: 0 });
}

#[test]
fn nor_does_an_operator_who_holds_calls_back_and_releases() {
    holds_always(Small { with_person: false, troubles: 0, holds: 1 });
}

/// The check can fail: a store that takes every write, whatever was read, loses messages.
#[test]
fn a_store_without_its_condition_is_caught() {
    struct Careless(Small);
    impl Model for Careless {
        type State = World;
        type Action = Act;
        fn init_states(&self) -> Vec<World> {
            self.0.init_states()
        }
        fn actions(&self, world: &World, actions: &mut Vec<Act>) {
            self.0.actions(world, actions);
        }
        fn next_state(&self, world: &World, act: Act) -> Option<World> {
            let mut careless = world.clone();
            match act {
                Act::Store(n) if !world.stored.contains(&n) => {
                    let read = careless.producers[n].read.take()?;
                    careless.stored.push(n);
                    careless.write(read.receive(at(world.now)));
                    Some(careless)
                }
                _ => self.0.next_state(world, act),
            }
        }
        fn properties(&self) -> Vec<Property<Self>> {
            vec![Property::always("a message is one row with one number", |_, world: &World| {
                world.stored.len() as u64 == world.course.received
            })]
        }
    }
    let checked = Careless(Small { with_person: false, troubles: 0, holds: 0 }).checker().spawn_bfs().join();
    assert!(checked.discovery("a message is one row with one number").is_some(), "a lost update is found");
}
