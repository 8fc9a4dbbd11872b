//! Checks the claim protocol in every interleaving of a small world: two messages, one of them
//! delivered twice; two workers that may crash; a responder that may fail; a person who may answer,
//! and whose message may be delivered late; an operator who holds and releases; replies of several
//! parts; attempts that are not sent; and time. The product's own [`Course`] decides every step.
//! The store accepts a write only if the row has not changed since it was read. The model compares
//! the rows themselves; the product compares their versions.

use std::collections::BTreeMap;

use stateright::{Checker, Model, Property};
use umavez_domain::conversations::batch::Portion;
use umavez_domain::conversations::{ConversationHold, Course, HeldBy, PartEnd, Phase, WorkerStep};
use umavez_domain::delivery::{Again, Delivery, Settled, State, Verdict};
use umavez_domain::senders::instances::Timing;
use umavez_domain::time::Timestamp;

const TIMING: Timing =
    Timing { debounce_ms: 1, max_wait_ms: 2, lease_ms: 2, callback_ms: 2, attempts: 3, backoff_ms: 1 };
/// The last moment of the world.
const LAST: i64 = 3;
/// The number of extra moments that are needed to answer messages that arrived at the end.
const PATIENCE: i64 = 7;
/// The last moment at which a worker may crash: later there would be no time to detect the crash.
const LAST_TROUBLE: i64 = 1;

/// The webhook of one message. The provider may deliver it twice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Producer {
    /// The row as the webhook read it, until the webhook stores the message.
    read: Option<Course>,
    left: u8,
    /// When the contact sent the message, by the provider's clock.
    sent: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    /// The worker has read the row.
    Woken(Course),
    /// The worker has claimed a batch and calls the responder.
    Asking {
        batch: u64,
        epoch: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    course: Course,
    /// Each stored message, in the order of its number, and when it was received.
    stored: Vec<(usize, i64)>,
    producers: [Producer; 2],
    workers: [Worker; 2],
    /// The range of messages of each batch that was ever claimed.
    batches: BTreeMap<u64, (u64, u64)>,
    /// The batches that have their one reply, with the number of its parts.
    replies: Vec<(u64, u32)>,
    /// The messages that were handed to outbound, with their states.
    handed: Vec<Handed>,
    troubles: u8,
    /// The number of attempts that may still turn out not to have been sent.
    unsent: u8,
    persons: u8,
    /// When a person wrote a message that is not delivered yet, by the provider's clock.
    written: Option<i64>,
    /// The number of holds that an operator may still set. A release follows each of them.
    holds: u8,
    /// The number of the last message that a person answered.
    by_person: u64,
    /// The first property that a step on the way to this state violated.
    broken: Option<&'static str>,
}

/// Returns the state of a message whose attempt was not sent.
fn not_sent(recalled: bool) -> State {
    let sending =
        Delivery { state: State::Sending, attempt: 1, recalled: recalled.then_some(1), ..Delivery::default() };
    let again = Verdict::Again { why: Again::Throttled, code: "throttled", not_before: Timestamp::from_millis(0) };
    match sending.settled(1, &again, Timestamp::from_millis(0)) {
        Settled::Now(delivery) => delivery.state,
        other => panic!("an attempt under way is settled: {other:?}"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Handed {
    batch: u64,
    /// The index of this message among the messages of its batch. `part` is the part of the reply
    /// that it contains.
    handed: u32,
    part: u32,
    state: State,
    /// A hold or a person canceled the message, before or during its attempt.
    recalled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Tick,
    /// A provider delivers a message of the contact.
    Deliver(usize),
    Store(usize),
    Wake(usize),
    Work(usize),
    Replies(usize),
    SaysNothing(usize),
    Fails(usize),
    Dies(usize),
    /// A sender begins an attempt.
    Begins,
    Sends,
    /// The attempt under way was not sent.
    NotSent,
    PersonWrites,
    /// The provider delivers the message that the person wrote.
    DeliverPersons,
    Holds,
    /// The second half of a hold: recalls the reply that is not sent yet.
    CallsBack,
    Releases,
}

#[derive(Clone, Copy)]
struct Small {
    messages: usize,
    workers: usize,
    /// The maximum number of messages in a batch.
    most: u64,
    parts: u32,
    with_person: bool,
    troubles: u8,
    unsent: u8,
    holds: u8,
}

const PLAIN: Small =
    Small { messages: 2, workers: 2, most: 2, parts: 1, with_person: false, troubles: 0, unsent: 0, holds: 0 };

fn at(now: i64) -> Timestamp {
    Timestamp::from_millis(now)
}

impl World {
    fn write(&mut self, course: Course) {
        self.course = course;
    }

    /// The transaction of a reply: it writes the course, the row of the batch and the message.
    fn reply(&mut self, batch: u64, parts: u32) {
        if self.replies.iter().any(|reply| reply.0 == batch) {
            return;
        }
        self.replies.push((batch, parts));
        let course = self.course.replied(parts, at(self.now));
        self.hand_over(&course);
        self.write(course);
    }

    fn hand_over(&mut self, course: &Course) {
        if course.phase == Phase::Sending && course.handed > self.course.handed {
            if self.on_its_way().is_some() {
                self.broken = Some("two replies are under way");
            }
            if self.course.is_held(at(self.now)) {
                self.broken = Some("a reply is handed over during a hold");
            }
            let Course { claimed: batch, handed, part, .. } = *course;
            self.handed.push(Handed { batch, handed, part, state: State::Queued, recalled: false });
        }
    }

    fn on_its_way(&self) -> Option<usize> {
        self.handed.iter().position(|message| !message.state.is_settled())
    }

    /// Returns the pending messages that one batch takes. The product's `portion` does this by its
    /// own limits.
    fn portion(&self, read: &Course, most: u64) -> Portion {
        let last = read.received.min(read.claimed + most);
        let next = usize::try_from(last).expect("few");
        Portion::UpTo { last, rest_since: self.stored.get(next).map(|(_, received)| at(*received)) }
    }

    fn claimed(&mut self, course: &Course, most: u64) {
        let range = (course.answered + 1, course.claimed);
        if range.1 + 1 - range.0 > most {
            self.broken = Some("a batch is too large");
        }
        let before = self.batches.insert(course.claimed, range);
        if before.is_some_and(|before| before != range) {
            self.broken = Some("a batch has changed");
        }
    }

    /// Delivers the message that a person wrote.
    fn person(&mut self, written: i64) {
        let before = self.course.clone();
        let open: Vec<_> = self.stored.iter().skip(usize::try_from(before.answered).expect("few")).collect();
        let seen = open.iter().all(|(n, _)| self.producers[*n].sent < Some(written));
        let course = before.answered_by_person(Some(at(written)));
        let settled = course.answered.max(course.settled) == before.received;
        // The reply on its way was settled before, or this message does not settle it.
        if settled && !seen && before.answered.max(before.settled) < before.received {
            self.broken = Some("a message sent after the person's message counts as answered");
        }
        let latest = self.stored.iter().filter_map(|(n, _)| self.producers[*n].sent).max();
        if !settled && latest < Some(written) {
            self.broken = Some("a message that a person has answered stays open");
        }
        if settled {
            self.by_person = before.received;
        }
        self.write(course.hold(ConversationHold { by: HeldBy::Person, since: self.now, until: Some(self.now + 1) }));
    }

    fn work(&mut self, worker: usize, most: u64) {
        let Worker::Woken(read) = self.workers[worker].clone() else { return };
        let fresh = self.course == read;
        self.workers[worker] = Worker::Idle;
        match read.next(at(self.now), &TIMING) {
            WorkerStep::Rest | WorkerStep::Wait(_) => {}
            // A worker that lost a race decides again on the row that won.
            _ if !fresh => self.workers[worker] = Worker::Woken(self.course.clone()),
            step @ (WorkerStep::Claim | WorkerStep::Ask(_)) => {
                let course = match step {
                    WorkerStep::Ask(course) => course,
                    _ => read.claim(self.portion(&read, most), at(self.now), &TIMING),
                };
                self.claimed(&course, most);
                self.workers[worker] = Worker::Asking { batch: course.claimed, epoch: course.epoch };
                self.write(course);
            }
            WorkerStep::GiveUp(course) => self.write(course),
            WorkerStep::HandOver(course) => {
                self.hand_over(&course);
                self.write(course);
            }
            WorkerStep::CheckReply => {
                let of_course = |message: &&Handed| (message.batch, message.handed) == (read.claimed, read.handed);
                let end = match self.handed.iter().find(of_course).map(|message| message.state) {
                    Some(State::Sent) => PartEnd::Sent,
                    Some(State::Canceled) => PartEnd::Canceled,
                    _ => return,
                };
                let course = read.part_ended(end, at(self.now));
                self.hand_over(&course);
                self.write(course);
            }
        }
    }

    fn is_stored(&self, message: usize) -> bool {
        self.stored.iter().any(|(n, _)| *n == message)
    }

    fn is_answered(&self) -> bool {
        self.course.answered == self.course.received || self.course.phase == Phase::Stuck
    }
}

impl Small {
    /// Returns whether no action can change the world any more.
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
        let producer = |left| Producer { read: None, left, sent: None };
        let second = u8::from(self.messages > 1);
        vec![World {
            now: 0,
            course: Course::default(),
            stored: Vec::new(),
            // Only the world with troubles delivers a message twice, so that the two deliveries
            // race. In the other worlds a second delivery would add nothing: their other events
            // interact with either delivery in the same way.
            producers: [producer(if self.troubles > 0 { 2 } else { 1 }), producer(second)],
            workers: [Worker::Idle, Worker::Idle],
            batches: BTreeMap::new(),
            replies: Vec::new(),
            handed: Vec::new(),
            troubles: self.troubles,
            unsent: self.unsent,
            persons: u8::from(self.with_person),
            written: None,
            holds: self.holds,
            by_person: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        // Towards the end, time passes only while a message is unanswered and no webhook is open:
        // by then, all requests have ended.
        let is_all_stored = world.producers.iter().all(|producer| producer.read.is_none());
        let waits = is_all_stored && !world.is_answered() && world.now < LAST + PATIENCE;
        if world.now < LAST || waits {
            actions.push(Act::Tick);
        }
        let trouble = world.troubles > 0 && world.now <= LAST_TROUBLE;
        for (n, producer) in world.producers.iter().enumerate() {
            match producer.read {
                Some(_) => actions.push(Act::Store(n)),
                // A provider that redelivers a message does so soon.
                None if producer.left > 0 && world.now <= LAST_TROUBLE => actions.push(Act::Deliver(n)),
                None => {}
            }
        }
        for (n, worker) in world.workers.iter().enumerate().take(self.workers) {
            match worker {
                // A worker that finds nothing to do changes nothing.
                Worker::Idle => match world.course.next(at(world.now), &TIMING) {
                    WorkerStep::Rest | WorkerStep::Wait(_) => {}
                    WorkerStep::CheckReply if world.on_its_way().is_some() => {}
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
        let on_its_way = world.on_its_way().map(|message| &world.handed[message]);
        match on_its_way.map(|message| message.state) {
            // If no attempt can fail, the beginning of an attempt needs no step of its own.
            Some(State::Queued) if self.unsent > 0 => actions.push(Act::Begins),
            Some(State::Sending) if world.unsent > 0 => actions.extend([Act::Sends, Act::NotSent]),
            Some(_) => actions.push(Act::Sends),
            None => {}
        }
        // An operator sets a hold while there is something to hold, and releases it soon.
        let held = world.course.hold.is_some();
        if world.holds > 0 && !held && world.now <= LAST_TROUBLE + 1 && world.course.received > 0 {
            actions.push(Act::Holds);
        }
        if world.course.is_recalled() && on_its_way.is_some_and(|message| !message.recalled) {
            actions.push(Act::CallsBack);
        }
        if held && !self.with_person {
            actions.push(Act::Releases);
        }
        if world.persons > 0 && world.now <= LAST_TROUBLE && world.course.received > 0 {
            actions.push(Act::PersonWrites);
        }
        if world.written.is_some() && world.now <= LAST_TROUBLE + 1 {
            actions.push(Act::DeliverPersons);
        }
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        let now = at(world.now);
        match act {
            Act::Tick => world.now += 1,
            Act::Deliver(n) => {
                world.producers[n].left -= 1;
                // Only the world with a person uses the provider's times.
                if self.with_person {
                    world.producers[n].sent.get_or_insert(world.now);
                }
                world.producers[n].read = Some(world.course.clone());
            }
            Act::Store(n) => {
                let read = world.producers[n].read.take()?;
                if world.is_stored(n) {
                    // The message has a row already: this delivery is a duplicate.
                } else if read == world.course {
                    // The time matters only for messages that a batch leaves for the next one.
                    let received = if self.most < 2 { world.now } else { 0 };
                    world.stored.push((n, received));
                    world.write(read.receive(now, world.producers[n].sent.map(at)));
                } else {
                    world.producers[n].read = Some(world.course.clone());
                }
            }
            Act::Wake(n) => world.workers[n] = Worker::Woken(world.course.clone()),
            Act::Work(n) => world.work(n, self.most),
            Act::Replies(n) | Act::SaysNothing(n) | Act::Fails(n) => {
                let Worker::Asking { batch, epoch } = world.workers[n].clone() else { return None };
                world.workers[n] = Worker::Idle;
                if world.course.is_turn(batch, epoch) {
                    match act {
                        Act::Replies(_) => world.reply(batch, self.parts),
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
            Act::Begins => {
                let message = world.on_its_way()?;
                if world.handed[message].recalled {
                    world.broken = Some("an attempt begins at a reply that was recalled");
                }
                world.handed[message].state = State::Sending;
            }
            Act::Sends => {
                let message = world.on_its_way()?;
                world.handed[message].state = State::Sent;
            }
            Act::NotSent => {
                let message = world.on_its_way()?;
                world.unsent -= 1;
                world.handed[message].state = not_sent(world.handed[message].recalled);
            }
            Act::CallsBack => {
                let message = world.on_its_way()?;
                world.handed[message].recalled = true;
                if world.handed[message].state == State::Queued {
                    world.handed[message].state = State::Canceled;
                }
            }
            Act::Holds => {
                world.holds -= 1;
                let hold = ConversationHold { by: HeldBy::Operator, since: world.now, until: None };
                let course = world.course.hold(hold);
                world.write(course);
            }
            Act::Releases => {
                let course = world.course.release();
                world.write(course);
            }
            Act::PersonWrites => {
                world.persons -= 1;
                world.written = Some(world.now);
            }
            Act::DeliverPersons => {
                let written = world.written.take()?;
                world.person(written);
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
                let twice = world.stored.len() == 2 && world.stored[0].0 == world.stored[1].0;
                !twice && world.stored.len() as u64 == world.course.received
            }),
            Property::always("no step breaks a rule", |_, world: &World| world.broken.is_none()),
            Property::always("batches do not overlap", |_, world: &World| {
                let ranges: Vec<_> = world.batches.values().collect();
                ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
            }),
            Property::always("a part is sent once, and parts and batches in order", |_, world: &World| {
                let sent: Vec<_> = world.handed.iter().filter(|message| message.state != State::Canceled).collect();
                sent.windows(2).all(|pair| (pair[0].batch, pair[0].part) < (pair[1].batch, pair[1].part))
            }),
            Property::always("a reply is sent to its end", |model, world: &World| {
                let said = |batch: u64, part: u32| {
                    let of_it = |message: &&Handed| (message.batch, message.part) == (batch, part);
                    world.handed.iter().filter(of_it).any(|message| message.state == State::Sent)
                };
                let whole = |(batch, parts): &(u64, u32)| (0..*parts).all(|part| said(*batch, part));
                let by_bot = |reply: &&(u64, u32)| reply.0 > world.by_person;
                !model.is_over(world) || world.replies.iter().filter(by_bot).all(whole)
            }),
            Property::always("a message that was not shown is not answered", |_, world: &World| {
                let asked = |number: u64| {
                    let in_batch = |(batch, _): &(u64, u32)| {
                        world.batches.get(batch).is_some_and(|(from, to)| (*from..=*to).contains(&number))
                    };
                    world.replies.iter().any(in_batch)
                };
                (1..=world.course.answered).all(|number| asked(number) || number <= world.by_person)
            }),
            Property::always("recovery checks every unanswered conversation", |_, world: &World| {
                let held = world.course.hold.is_some_and(|hold| hold.by == HeldBy::Operator);
                world.is_answered() || held || world.course.recovery_check_at(at(world.now), &TIMING).is_some()
            }),
            Property::always("in the end every message is answered", |model, world: &World| {
                let every = world.stored.len() as u64 == world.course.received && world.is_answered();
                !model.is_over(world) || every
            }),
            Property::sometimes("two messages have one answer", |_, world: &World| {
                world.batches.len() == 1 && world.course.answered == 2 && world.handed.len() == 1
            }),
            Property::sometimes("each message has an answer", |_, world: &World| {
                world.batches.len() == 2 && world.course.answered == 2 && world.handed.len() == 2
            }),
            Property::sometimes("a worker takes over a batch", |_, world: &World| world.course.attempts > 1),
            Property::sometimes("a reply is recalled before its attempt and sent later", |_, world: &World| {
                let sent = |part: u32| world.handed.iter().any(|m| m.part == part && m.state == State::Sent);
                world.handed.iter().any(|m| m.state == State::Canceled && m.recalled && sent(m.part))
            }),
            Property::sometimes("a reply is recalled while its attempt is under way", |_, world: &World| {
                world.handed.iter().any(|message| message.state == State::Sending && message.recalled)
            }),
            Property::sometimes("a reply waits between its parts for the end of a hold", |_, world: &World| {
                world.course.phase == Phase::Replied && world.course.part > 0
            }),
            Property::sometimes("a person's answer cancels a reply", |_, world: &World| {
                world.by_person > 0 && world.handed.iter().any(|message| message.state == State::Canceled)
            }),
            Property::sometimes("a person's message is delivered late and answers nothing", |_, world: &World| {
                world.persons == 0 && world.written.is_none() && world.by_person == 0 && world.course.received > 0
            }),
        ]
    }
}

/// Checks that every `always` property holds, and that the conditions in `reached` are reached.
fn check(small: Small, reached: &[&'static str]) {
    let checked = small.checker().threads(2).spawn_bfs().join();
    println!("{} states", checked.unique_state_count());
    for property in checked.model().properties() {
        if property.expectation == stateright::Expectation::Always {
            checked.assert_no_discovery(property.name);
        }
    }
    for name in reached {
        checked.assert_any_discovery(name);
    }
}

#[test]
fn two_messages_and_two_workers_that_crash_lose_and_repeat_no_answer() {
    let reached = ["two messages have one answer", "each message has an answer", "a worker takes over a batch"];
    check(Small { troubles: 1, ..PLAIN }, &reached);
}

#[test]
fn a_limit_on_the_size_of_a_batch_loses_and_repeats_no_answer() {
    check(Small { most: 1, ..PLAIN }, &["each message has an answer"]);
}

#[test]
fn a_persons_answer_that_is_reported_late_loses_and_repeats_no_answer() {
    let reached = ["a person's answer cancels a reply", "a person's message is delivered late and answers nothing"];
    // The worlds above cover the races between two workers.
    check(Small { workers: 1, with_person: true, ..PLAIN }, &reached);
}

#[test]
fn an_operator_who_holds_and_releases_loses_and_repeats_no_answer() {
    // `replies_model` has holds with two workers.
    let small = Small { workers: 1, holds: 1, ..PLAIN };
    check(small, &["a reply is recalled before its attempt and sent later"]);
}

#[test]
fn a_hold_between_parts_or_during_an_attempt_loses_and_repeats_no_answer() {
    let reached = [
        "a reply is recalled before its attempt and sent later",
        "a reply is recalled while its attempt is under way",
        "a reply waits between its parts for the end of a hold",
    ];
    check(Small { messages: 1, workers: 1, most: 1, parts: 2, unsent: 2, holds: 1, ..PLAIN }, &reached);
}

/// Shows that the check can fail: a store that accepts every write without a condition loses
/// messages.
#[test]
fn a_store_without_conditional_writes_is_caught() {
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
                Act::Store(n) if !world.is_stored(n) => {
                    let read = careless.producers[n].read.take()?;
                    careless.stored.push((n, world.now));
                    careless.write(read.receive(at(world.now), None));
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
    let checked = Careless(PLAIN).checker().spawn_bfs().join();
    assert!(checked.discovery("a message is one row with one number").is_some(), "a lost update is found");
}
