//! Checks the rate limiter in every interleaving of a small world: two processes with clocks of
//! their own share a bucket of two calls a second. The table stalls, replies are lost, senders
//! freeze between their slot and their call, a provider answers 429, slots are released, and one
//! message has a lower priority. Every decision is made by the product's own functions: [`ask`],
//! [`Take::apply`](umavez_domain::senders::limiter::Take::apply), [`check`], [`looked`] and
//! [`SharedClock`].

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use umavez_domain::queue::Priority;
use umavez_domain::senders::limiter::{
    Ask, Bucket, Check, FreeAt, Limit, SharedClock, Slot, TOLERANCE_MS, Take, Wanted, ask, check, looked, reach_ms,
};
use umavez_domain::time::Timestamp;

/// The step of time. A slot may be used this much later than its time.
const TICK_MS: i64 = TOLERANCE_MS;
const SECOND: u8 = 4;
const LIMIT: Limit = Limit::per(2, 1_000);
/// The most calls of one second: those of one and a quarter.
const ALLOWED: usize = 3;
/// How long a stall or a freeze takes, in ticks, and a 429 in milliseconds.
const HELD_UP: u8 = 6;
const PARKED_MS: i64 = 1_500;
/// The last tick at which a stall begins.
const LATEST_STALL: u8 = 0;

/// A mistake in a rule or in a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A grant is written without its condition.
    Unconditional,
    /// A sender calls after its wait, however long it was, without a look at the row.
    NoLook,
    /// A sender uses its slot however late it is.
    UsedLate,
    /// A process trusts its own clock only.
    OwnClock,
    /// A slot is released although others may have taken the next ones.
    ReleasedBlindly,
    /// A look does not notice that the bucket is parked.
    ParkOverlooked,
    /// A process is frozen between its last check and its call. It is no mistake: no fence can
    /// close this gap.
    FrozenAfterCheck,
}

/// What may happen once in a world. The model tries it at every moment; a stall begins early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Faults {
    stall: bool,
    freeze: bool,
    lost_reply: bool,
    throttled: bool,
    released: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    tick: u8,
    bucket: Bucket,
    /// The message whose write the bucket's row carries.
    writer: Option<usize>,
    clocks: [SharedClock; 2],
    messages: Vec<Message>,
    /// The ticks of the calls in the last second.
    calls: Vec<u8>,
    /// The ticks for which the table does not answer.
    stalled: u8,
    /// When the bucket was parked.
    parked_at: Option<u8>,
    /// The faults that can still happen.
    left: Faults,
    /// A call began while the sender should have known that the bucket was parked.
    called_while_parked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Message {
    sender: usize,
    low: bool,
    /// When it comes in.
    from: u8,
    frozen: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Waiting,
    /// The write of a grant is under way. It was made up from this row at this time.
    Asking {
        row: Bucket,
        time_us: i64,
        made: bool,
    },
    Holding(Slot),
    /// Between its last check and its call.
    Checked,
    Called,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Ask(usize),
    Commit(usize),
    LoseReply(usize),
    Look(usize),
    AskAgain(usize),
    Call(usize),
    Throttled(usize),
    Release(usize),
    Freeze(usize),
    FreezeAfterCheck(usize),
    Stall,
    Tick,
}

struct Limited {
    flaw: Flaw,
    /// How far the clocks of the two processes are ahead, in ticks.
    skews: [i64; 2],
    messages: Vec<(usize, bool, u8)>,
    faults: Faults,
    ticks: u8,
}

impl Limited {
    fn now(&self, world: &World, sender: usize) -> Timestamp {
        Timestamp::from_millis(1_000_000 + (i64::from(world.tick) + self.skews[sender]) * TICK_MS)
    }

    fn time_us(&self, world: &World, sender: usize) -> i64 {
        world.clocks[sender].time_us(self.now(world, sender))
    }

    /// A process sees the row, and follows its time.
    fn follow(&self, world: &mut World, sender: usize, row: Bucket) -> i64 {
        if self.flaw != Flaw::OwnClock {
            world.clocks[sender] = world.clocks[sender].follow(row.seen_us, self.now(world, sender));
        }
        self.time_us(world, sender)
    }

    fn wanted(message: Message) -> Wanted {
        let priority = if message.low { Priority::Downsell } else { Priority::Start };
        Wanted::one(LIMIT, reach_ms(priority, 0))
    }

    /// A process that has seen this row decides to ask, or goes back to its queue.
    fn decide(&self, world: &mut World, number: usize, row: Bucket) {
        let message = world.messages[number];
        let time_us = self.follow(world, message.sender, row);
        world.messages[number].state = match ask(row, Self::wanted(message), time_us) {
            Ask::Take(_) => State::Asking { row, time_us, made: false },
            Ask::Later(_) => State::Waiting,
        };
    }

    fn take(message: Message, row: Bucket, time_us: i64) -> Option<Take> {
        match ask(row, Self::wanted(message), time_us) {
            Ask::Take(take) => Some(take),
            Ask::Later(_) => None,
        }
    }

    fn apply(&self, take: &Take, bucket: Bucket) -> Option<Bucket> {
        if self.flaw != Flaw::Unconditional {
            return take.apply(bucket);
        }
        let free_at_us = match take.free_at {
            FreeAt::Add(us) => bucket.free_at_us + us,
            FreeAt::Set(us) => us,
        };
        Some(Bucket { free_at_us, seen_us: take.seen_us, ..bucket })
    }

    fn check(&self, world: &World, message: Message, slot: Slot) -> Check {
        match check(slot, self.time_us(world, message.sender)) {
            Check::Over if self.flaw == Flaw::UsedLate => Check::Call,
            Check::Look if self.flaw == Flaw::NoLook => Check::Call,
            next => next,
        }
    }

    /// Returns whether a message can go on now, so that time does not pass without it.
    fn is_due(&self, world: &World, message: Message) -> bool {
        if message.frozen > 0 || world.tick < message.from {
            return false;
        }
        match message.state {
            State::Waiting => {
                let mut seen = world.clone();
                let time_us = self.follow(&mut seen, message.sender, world.bucket);
                world.stalled == 0 && Self::take(message, world.bucket, time_us).is_some()
            }
            State::Asking { .. } => world.stalled == 0,
            State::Holding(slot) => match self.check(world, message, slot) {
                Check::Wait(_) => false,
                Check::Look => world.stalled == 0,
                Check::Call | Check::Over => true,
            },
            State::Checked => true,
            State::Called => false,
        }
    }

    fn call(&self, world: &mut World, number: usize) {
        let message = world.messages[number];
        let time_us = self.time_us(world, message.sender);
        let known = world.parked_at.is_some_and(|at| world.tick > at + 1);
        world.called_while_parked |= known && world.bucket.parked_until * 1_000 > time_us;
        world.calls.push(world.tick);
        world.messages[number].state = State::Called;
    }

    /// The steps of one message that can be taken now.
    fn steps(&self, world: &World, number: usize, steps: &mut Vec<Step>) {
        let message = world.messages[number];
        if !self.is_due(world, message) && !matches!(message.state, State::Holding(_)) || message.frozen > 0 {
            return;
        }
        match message.state {
            State::Waiting => steps.push(Step::Ask(number)),
            State::Asking { made, .. } => {
                steps.push(Step::Commit(number));
                if world.left.lost_reply && !made {
                    steps.push(Step::LoseReply(number));
                }
            }
            State::Holding(slot) => {
                match self.check(world, message, slot) {
                    Check::Wait(_) if world.left.released && world.stalled == 0 => steps.push(Step::Release(number)),
                    Check::Wait(_) => {}
                    Check::Look if world.stalled > 0 => {}
                    Check::Look => steps.push(Step::Look(number)),
                    Check::Over => steps.push(Step::AskAgain(number)),
                    Check::Call => {
                        steps.push(Step::Call(number));
                        if world.left.throttled {
                            steps.push(Step::Throttled(number));
                        }
                        if world.left.freeze && self.flaw == Flaw::FrozenAfterCheck {
                            steps.push(Step::FreezeAfterCheck(number));
                        }
                    }
                }
                if world.left.freeze && self.flaw != Flaw::FrozenAfterCheck {
                    steps.push(Step::Freeze(number));
                }
            }
            State::Checked => steps.push(Step::Call(number)),
            State::Called => {}
        }
    }

    fn commit(&self, world: &mut World, number: usize, lost: bool) {
        let message = world.messages[number];
        let State::Asking { row, time_us, made } = message.state else { return };
        let Some(take) = Self::take(message, row, time_us) else { return };
        let after = match self.apply(&take, world.bucket) {
            Some(after) => after,
            // The write was made before; the SDK repeated it because the reply was lost.
            None if made && world.writer == Some(number) => world.bucket,
            None => return self.decide(world, number, world.bucket),
        };
        (world.bucket, world.writer) = (after, Some(number));
        if lost {
            world.messages[number].state = State::Asking { row, time_us, made: true };
            world.left.lost_reply = false;
            return;
        }
        let slot = Slot::new(take.slot_us(after), time_us);
        match self.check(world, message, slot) {
            Check::Over => self.decide(world, number, after),
            _ => world.messages[number].state = State::Holding(slot),
        }
    }

    /// Releases the slot of a message, if no other write to the row followed its grant.
    fn release(&self, world: &mut World, number: usize) {
        let State::Holding(slot) = world.messages[number].state else { return };
        if world.writer == Some(number) || self.flaw == Flaw::ReleasedBlindly {
            (world.bucket.free_at_us, world.writer) = (slot.at_us, None);
        }
    }

    /// Returns the slots that senders hold, sorted.
    fn slots(world: &World) -> Vec<i64> {
        let held = |message: &Message| match message.state {
            State::Holding(slot) => Some(slot.at_us),
            _ => None,
        };
        let mut slots: Vec<_> = world.messages.iter().filter_map(held).collect();
        slots.sort_unstable();
        slots
    }
}

impl Model for Limited {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let message =
            |&(sender, low, from): &(usize, bool, u8)| Message { sender, low, from, frozen: 0, state: State::Waiting };
        vec![World {
            tick: 0,
            bucket: Bucket::default(),
            writer: None,
            clocks: [SharedClock::default(); 2],
            messages: self.messages.iter().map(message).collect(),
            calls: Vec::new(),
            stalled: 0,
            parked_at: None,
            left: self.faults,
            called_while_parked: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        if world.tick >= self.ticks {
            return;
        }
        for (number, message) in world.messages.iter().enumerate() {
            // Messages that do not differ take their steps in order.
            let same = |other: &Message| {
                (other.sender, other.low, other.from, other.state, other.frozen)
                    == (message.sender, message.low, message.from, message.state, message.frozen)
            };
            if !world.messages[..number].iter().any(same) {
                self.steps(world, number, actions);
            }
        }
        if world.left.stall && world.tick == LATEST_STALL {
            actions.push(Step::Stall);
        }
        if !world.messages.iter().any(|message| self.is_due(world, *message)) {
            actions.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Ask(number) => self.decide(&mut world, number, before.bucket),
            Step::AskAgain(number) => {
                // The slot is over, and is released if the table answers.
                if world.stalled == 0 {
                    self.release(&mut world, number);
                }
                world.messages[number].state = State::Waiting;
            }
            Step::Commit(number) => self.commit(&mut world, number, false),
            Step::LoseReply(number) => self.commit(&mut world, number, true),
            Step::Look(number) => {
                let (message, row) = (world.messages[number], world.bucket);
                let State::Holding(slot) = message.state else { return None };
                let time_us = self.time_us(&world, message.sender);
                self.follow(&mut world, message.sender, row);
                let row = if self.flaw == Flaw::ParkOverlooked { Bucket { parked_until: 0, ..row } } else { row };
                let known = looked(slot, row, time_us);
                world.messages[number].state = known.map_or(State::Waiting, State::Holding);
            }
            Step::Call(number) => self.call(&mut world, number),
            Step::Throttled(number) => {
                self.call(&mut world, number);
                let time_us = self.time_us(&world, world.messages[number].sender);
                world.bucket.parked_until = time_us / 1_000 + PARKED_MS;
                (world.writer, world.parked_at, world.left.throttled) = (None, Some(world.tick), false);
            }
            Step::Release(number) => {
                self.release(&mut world, number);
                world.left.released = false;
                world.messages[number].state = State::Waiting;
            }
            Step::Freeze(number) => {
                world.messages[number].frozen = HELD_UP;
                world.left.freeze = false;
            }
            Step::FreezeAfterCheck(number) => {
                (world.messages[number].frozen, world.messages[number].state) = (HELD_UP, State::Checked);
            }
            Step::Stall => (world.stalled, world.left.stall) = (HELD_UP, false),
            Step::Tick => {
                world.tick += 1;
                world.stalled = world.stalled.saturating_sub(1);
                for message in &mut world.messages {
                    message.frozen = message.frozen.saturating_sub(1);
                }
                world.calls.retain(|at| at + SECOND > world.tick);
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no second has more calls than the limit allows", |_: &Self, world: &World| {
                world.calls.len() <= ALLOWED
            }),
            Property::always("the slots that senders hold are an interval apart", |_: &Self, world: &World| {
                Self::slots(world).windows(2).all(|pair| pair[1] - pair[0] >= LIMIT.interval_us)
            }),
            Property::always("a sender that knows of a park does not call", |_: &Self, world: &World| {
                !world.called_while_parked
            }),
            Property::always("in the end every message was called", |model: &Self, world: &World| {
                world.tick < model.ticks || world.messages.iter().all(|message| message.state == State::Called)
            }),
            Property::sometimes("every message was called", |_: &Self, world: &World| {
                world.messages.iter().all(|message| message.state == State::Called)
            }),
            Property::sometimes("a sender holds a slot ahead", |_: &Self, world: &World| Self::slots(world).len() > 2),
        ]
    }
}

/// Two processes with the same time. Four messages, and one of a lower priority.
fn same_clocks(flaw: Flaw, faults: Faults) -> Limited {
    let messages = vec![(0, false, 0), (0, false, 0), (1, false, 0), (1, true, 0)];
    Limited { flaw, skews: [0, 0], messages, faults, ticks: 22 }
}

/// Two processes with the same time, and more messages than the reach of one second has slots.
fn crowd(flaw: Flaw, faults: Faults) -> Limited {
    let messages = vec![(0, false, 0), (0, false, 0), (0, false, 0), (0, false, 0), (1, false, 0)];
    Limited { messages, ..same_clocks(flaw, faults) }
}

/// Two processes whose clocks differ by two seconds. The one whose clock is ahead, or behind, comes
/// in when the other holds slots.
fn different_clocks(flaw: Flaw, seconds: i64, faults: Faults) -> Limited {
    let messages = vec![(0, false, 0), (0, false, 0), (0, false, 0), (1, false, 1), (1, false, 1), (1, false, 1)];
    let skews = [0, seconds * i64::from(SECOND)];
    Limited { flaw, skews, messages, faults, ticks: 22 }
}

/// A stall has many interleavings, so its world has fewer messages.
fn few(model: Limited) -> Limited {
    Limited { messages: vec![(0, false, 0), (0, false, 0), (1, false, 1), (1, false, 1)], ..model }
}

const CALM: Faults = Faults { stall: false, freeze: false, lost_reply: false, throttled: false, released: false };
const STALLED: Faults = Faults { stall: true, ..CALM };
const FROZEN: Faults = Faults { freeze: true, ..CALM };
const LOST_REPLY: Faults = Faults { lost_reply: true, ..CALM };
const THROTTLED: Faults = Faults { throttled: true, ..CALM };
const RELEASED: Faults = Faults { released: true, ..CALM };

#[test]
fn the_limit_holds_in_every_interleaving() {
    for (name, model) in [
        ("a stall", crowd(Flaw::None, STALLED)),
        ("a freeze", same_clocks(Flaw::None, FROZEN)),
        ("a lost reply", same_clocks(Flaw::None, LOST_REPLY)),
        ("a 429", same_clocks(Flaw::None, THROTTLED)),
        ("a released slot", crowd(Flaw::None, RELEASED)),
        ("a clock ahead", different_clocks(Flaw::None, 2, RELEASED)),
        ("a clock ahead and a 429", different_clocks(Flaw::None, 2, THROTTLED)),
        ("a clock ahead and a freeze", different_clocks(Flaw::None, 2, FROZEN)),
        ("a clock behind", different_clocks(Flaw::None, -2, RELEASED)),
        ("a clock behind and a 429", different_clocks(Flaw::None, -2, THROTTLED)),
        ("a clock behind and a stall", few(different_clocks(Flaw::None, -2, STALLED))),
        ("a clock ahead and a stall", few(different_clocks(Flaw::None, 2, STALLED))),
    ] {
        let begun = std::time::Instant::now();
        let checked = model.checker().threads(2).spawn_bfs().join();
        println!("{name}: {} states in {:?}", checked.unique_state_count(), begun.elapsed());
        for property in checked.model().properties() {
            let found = checked.discovery(property.name);
            let wanted = property.expectation == Expectation::Sometimes;
            let steps = found.as_ref().map(|path| format!("{:?} {:?}", path.clone().into_actions(), path.last_state()));
            assert_eq!(found.is_some(), wanted, "{name}: {}: {steps:?}", property.name);
        }
    }
}

/// Returns whether the checker finds a state that breaks this property, or that has it, if the
/// property is that there is one.
fn finds(model: Limited, property: &'static str) -> bool {
    let until = HasDiscoveries::AnyOf([property].into());
    model.checker().threads(2).finish_when(until).spawn_bfs().join().discovery(property).is_some()
}

const LIMIT_HOLDS: &str = "no second has more calls than the limit allows";
const APART: &str = "the slots that senders hold are an interval apart";
const PARKED: &str = "a sender that knows of a park does not call";

#[test]
fn a_limiter_with_a_flaw_is_caught() {
    for (model, property) in [
        (crowd(Flaw::Unconditional, CALM), APART),
        (crowd(Flaw::UsedLate, STALLED), LIMIT_HOLDS),
        (different_clocks(Flaw::NoLook, 2, CALM), LIMIT_HOLDS),
        (different_clocks(Flaw::OwnClock, 2, CALM), LIMIT_HOLDS),
        (crowd(Flaw::NoLook, THROTTLED), PARKED),
        (crowd(Flaw::ParkOverlooked, THROTTLED), PARKED),
        (crowd(Flaw::ReleasedBlindly, RELEASED), APART),
    ] {
        let (flaw, skews) = (model.flaw, model.skews);
        assert!(finds(model, property), "{flaw:?} with {skews:?} was not caught");
    }
}

/// The gap that no fence closes. If this test fails, the gap is closed, and the documentation has
/// to say so.
#[test]
fn a_freeze_between_the_last_check_and_the_call_is_not_fenced() {
    assert!(finds(crowd(Flaw::FrozenAfterCheck, FROZEN), LIMIT_HOLDS));
}
