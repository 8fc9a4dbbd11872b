//! Checks the guard of an intent in every interleaving. Workers read a guard, decide by the
//! product's own functions, and write on the condition that the guard still has the version that
//! they read. Replies can be lost, workers can crash, and clients can repeat requests.

use stateright::{Checker, Model, Property};
use umavez_domain::intents::{Check, GuardRequest, GuardRow, HoldRequest, Holder, IntentTypes, TakeOutcome};
use umavez_domain::messages::MessageId;
use umavez_domain::time::{DAY_MS, Timestamp};
use uuid::Uuid;

/// The days on which the messages are to be sent. Each message may be accepted once, and canceled.
const MESSAGES: [i64; 4] = [0, 3, 9, 17];
/// The message that may fail although it was sent.
const PROVEN: usize = 1;

fn holder(message: usize) -> Holder {
    Holder::Message(MessageId::parse(&format!("msg_{message:032}")).expect("an id"))
}

/// A mistake in the store or in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A guard is written without a check of its version.
    Unfenced,
    /// A guard keeps only the newest hold and the one before it.
    OneBefore,
    /// The hold is released in the intent's row, but stays in the guard.
    RowOnly,
    /// A hold that is taken again overwrites the guard with the one that it had.
    ProofRestoresGuard,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    guard: Option<GuardRow>,
    messages: Vec<Message>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    /// Whether the intent's row is held, and so the message is accepted.
    held: bool,
    accepted: Option<bool>,
    canceled: bool,
    /// Proof that the message was sent although it had failed took its hold again, or found that
    /// another message has its place now.
    proven: bool,
    /// The guard that a worker read; the inner `None` means that there was no guard.
    accepting: Option<Option<GuardRow>>,
    canceling: Option<Option<GuardRow>>,
    proving: Option<Option<GuardRow>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    ReadToAccept(usize),
    Accept(usize),
    /// The message is canceled, fails or expires: the hold is released.
    ReadToCancel(usize),
    Cancel(usize),
    /// A message that failed turns out to have been sent: it takes its hold again.
    ReadToProve(usize),
    Prove(usize),
    /// The worker crashes, or its reply is lost and the client sends the request again.
    Die(usize),
}

struct Guarded {
    flaw: Flaw,
    types: IntentTypes,
}

impl Guarded {
    fn new(flaw: Flaw) -> Self {
        let options = r#"{"discovery_first_touch": {"window": "rolling", "scope": "contact"}}"#;
        Self { flaw, types: IntentTypes::with_options(options).expect("options") }
    }

    fn time(days: i64) -> Timestamp {
        Timestamp::parse("2026-03-10T12:00:00Z").expect("a time").plus_days(days)
    }

    /// Returns the hold of a message that is to be sent on its day.
    fn asked(&self, message: usize) -> GuardRequest {
        let (at, now) = (Self::time(MESSAGES[message]), Self::time(0));
        let known = self.types.get("discovery_first_touch").expect("known");
        let check = Check::new(Uuid::from_u128(7), known, Some(Uuid::from_u128(message as u128)), at);
        let hold = HoldRequest::of(check, &holder(message), "body", now);
        hold.guard.expect("guarded")
    }

    /// The guard still has the version that the worker read.
    fn as_read(&self, world: &World, seen: &Option<GuardRow>) -> bool {
        let version = |guard: &Option<GuardRow>| guard.as_ref().map(|guard| guard.version);
        self.flaw == Flaw::Unfenced || version(seen) == version(&world.guard)
    }
}

impl Model for Guarded {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let message = Message {
            held: false,
            accepted: None,
            canceled: false,
            proven: false,
            accepting: None,
            canceling: None,
            proving: None,
        };
        vec![World { guard: None, messages: vec![message; MESSAGES.len()] }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        for (number, message) in world.messages.iter().enumerate() {
            match &message.accepting {
                Some(_) => actions.extend([Step::Accept(number), Step::Die(number)]),
                None if message.accepted.is_none() => actions.push(Step::ReadToAccept(number)),
                None => {}
            }
            match &message.canceling {
                Some(_) => actions.extend([Step::Cancel(number), Step::Die(number)]),
                // The first message is also canceled a second time, which changes nothing.
                None if message.held && !message.proven || (message.canceled && !message.proven && number == 0) => {
                    actions.push(Step::ReadToCancel(number));
                }
                None => {}
            }
            match &message.proving {
                Some(_) => actions.extend([Step::Prove(number), Step::Die(number)]),
                None if message.canceled && !message.proven && number == PROVEN => {
                    actions.push(Step::ReadToProve(number));
                }
                None => {}
            }
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let now = Self::time(0);
        match step {
            Step::ReadToAccept(number) => world.messages[number].accepting = Some(world.guard.clone()),
            Step::ReadToCancel(number) => world.messages[number].canceling = Some(world.guard.clone()),
            Step::ReadToProve(number) => world.messages[number].proving = Some(world.guard.clone()),
            Step::Prove(number) => {
                let seen = world.messages[number].proving.take()?;
                let restores = self.flaw == Flaw::ProofRestoresGuard;
                let read = seen.clone().filter(|_| !restores).unwrap_or_else(|| GuardRow::empty(now));
                match read.take(&GuardRequest { earliest: i64::MIN, ..self.asked(number) }, now) {
                    TakeOutcome::Yes(next) if self.as_read(&world, &seen) => {
                        world.guard = Some(next);
                        (world.messages[number].held, world.messages[number].proven) = (true, true);
                    }
                    // The guard has changed since the worker read it: the worker reads again.
                    TakeOutcome::Yes(_) => {}
                    TakeOutcome::Conflicting(_) => world.messages[number].proven = true,
                    TakeOutcome::Full => return None,
                }
            }
            Step::Accept(number) => {
                let seen = world.messages[number].accepting.take()?;
                let guard = seen.clone().unwrap_or_else(|| GuardRow::empty(now));
                match guard.take(&self.asked(number), now) {
                    TakeOutcome::Yes(mut next) => {
                        // If the version has changed, the worker reads again.
                        if self.as_read(&world, &seen) {
                            if self.flaw == Flaw::OneBefore {
                                next.holds.sort_by_key(|hold| hold.created_at);
                                let first = next.holds.len().saturating_sub(2);
                                next.holds.drain(..first);
                            }
                            world.guard = Some(next);
                            (world.messages[number].held, world.messages[number].accepted) = (true, Some(true));
                        }
                    }
                    TakeOutcome::Conflicting(_) => world.messages[number].accepted = Some(false),
                    TakeOutcome::Full => return None,
                }
            }
            Step::Cancel(number) => {
                let seen = world.messages[number].canceling.take()?;
                let asked = self.asked(number);
                let next = seen.as_ref().and_then(|g| g.give_back(&asked.hold.holder, &asked.hold.fingerprint, now));
                match next {
                    Some(next) if self.as_read(&world, &seen) => {
                        if self.flaw != Flaw::RowOnly {
                            world.guard = Some(next);
                        }
                        (world.messages[number].held, world.messages[number].canceled) = (false, true);
                    }
                    // The guard has changed since the worker read it: the worker reads again.
                    Some(_) => {}
                    // The guard does not contain the hold: only the intent's row is written, if it
                    // is still held.
                    None => (world.messages[number].held, world.messages[number].canceled) = (false, true),
                }
            }
            Step::Die(number) => {
                let message = &mut world.messages[number];
                (message.accepting, message.canceling, message.proving) = (None, None, None);
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("two sends are a window apart", |_: &Self, world: &World| {
                let held = (0..MESSAGES.len()).filter(|number| world.messages[*number].held);
                let days: Vec<_> = held.map(|number| MESSAGES[number]).collect();
                days.windows(2).all(|pair| (pair[1] - pair[0]) * DAY_MS >= 7 * DAY_MS)
            }),
            Property::always("the guard lists exactly the holds that stand", |_: &Self, world: &World| {
                let listed = |number: usize| {
                    let holder = holder(number).to_string();
                    world.guard.iter().flat_map(|guard| &guard.holds).filter(|hold| hold.holder == holder).count()
                };
                (0..MESSAGES.len()).all(|number| listed(number) == usize::from(world.messages[number].held))
            }),
            Property::sometimes("three holds stand under one guard", |_: &Self, world: &World| {
                world.messages.iter().filter(|message| message.held).count() == 3
            }),
            Property::sometimes("a cancelled message makes room for another", |_: &Self, world: &World| {
                world.messages[0].canceled && world.messages[1].held
            }),
            Property::sometimes("a message that had failed takes its hold again", |_: &Self, world: &World| {
                world.messages[PROVEN].proven && world.messages[PROVEN].held
            }),
            Property::sometimes("a message that had failed finds its place taken", |_: &Self, world: &World| {
                world.messages[PROVEN].proven && !world.messages[PROVEN].held
            }),
            Property::sometimes("a message is refused", |_: &Self, world: &World| {
                world.messages.iter().any(|message| message.accepted == Some(false))
            }),
        ]
    }
}

#[test]
fn a_guard_lists_exactly_the_valid_holds_in_every_interleaving() {
    let checked = Guarded::new(Flaw::None).checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.unique_state_count() > 10_000, "{} states", checked.unique_state_count());
}

#[test]
fn a_guard_with_a_flaw_is_caught() {
    for (flaw, property) in [
        (Flaw::Unfenced, "the guard lists exactly the holds that stand"),
        (Flaw::OneBefore, "the guard lists exactly the holds that stand"),
        (Flaw::RowOnly, "the guard lists exactly the holds that stand"),
        (Flaw::ProofRestoresGuard, "the guard lists exactly the holds that stand"),
    ] {
        let checked = Guarded::new(flaw).checker().threads(2).spawn_bfs().join();
        assert!(checked.discovery(property).is_some(), "{flaw:?} was not caught");
    }
}
