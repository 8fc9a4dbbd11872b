//! The steps of the model: what follows from an action.

use umavez_domain::conversations::batch::Portion;
use umavez_domain::conversations::{
    ConversationHold, ConversationRow, Course, HeldBy, PartEnd, Phase, Received, WorkerStep,
};
use umavez_domain::delivery::{Again, Claim, Delivery, State, Verdict, code};
use umavez_domain::senders::instances::Timing;

use crate::properties::name;
use crate::world::{
    Action, Answer, Batch, Flaw, INSTANCE, LONG_MS, NOW, Part, RepliesModel, WakeUp, Worker, World, inbound,
};

fn spend(budget: &mut u8) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}

impl RepliesModel {
    fn timing(&self) -> Timing {
        let timing = INSTANCE.timing();
        let timeout_ms = i64::from(INSTANCE.responder_timeout_seconds) * 1_000;
        let without = timeout_ms - (timing.lease_ms - timeout_ms);
        Timing { lease_ms: if self.has(Flaw::LeaseWithoutMargin) { without } else { timing.lease_ms }, ..timing }
    }

    /// Stores the row, and enqueues the wake-up that it emits.
    fn store(&self, world: &mut World, row: &ConversationRow) {
        let before = world.course.phase;
        world.course = row.course.clone();
        world.check = row.check_at.map(|at| at <= NOW.millis());
        for worker in &mut world.workers {
            if let Worker::Woken { is_stale, .. } = worker {
                *is_stale = true;
            }
        }
        if let Some(emit) = &row.work.emit {
            world.wake(row.course.received, emit.not_before);
        }
        let open = world.batches.last_mut().filter(|_| row.course.phase == Phase::Idle);
        let stays_open = self.has(Flaw::UnneededReplyStaysOpen) && before == Phase::Replied;
        if let Some(batch) = open.filter(|_| !stays_open) {
            batch.finished = true;
        }
        world.was_stuck |= row.course.phase == Phase::Stuck;
    }

    /// Changes the course, and hands a part of the reply over if the new course says so.
    fn move_on(&self, world: &mut World, course: Course) {
        let row = world.row().moved(course, NOW, &self.timing());
        let next = &row.course;
        if next.phase == Phase::Sending && next.handed > world.course.handed {
            if world.parts.iter().any(|part| !part.delivery.state.is_settled()) {
                world.violate(name::ONE_AT_A_TIME);
            }
            if world.course.is_held(NOW) {
                world.violate(name::HELD);
            }
            let part =
                Part { batch: next.claimed, handed: next.handed, part: next.part, delivery: Delivery::default() };
            world.parts.push(part);
        }
        self.store(world, &row);
    }

    /// Stores the one reply of a batch.
    fn reply(&self, world: &mut World, parts: u32) {
        let number = world.course.claimed;
        if world.batches.iter().any(|batch| batch.number == number) {
            return world.violate(name::ONE_REPLY);
        }
        world.batches.push(Batch { number, parts, finished: false });
        let course = world.course.replied(parts, NOW);
        self.move_on(world, course);
    }

    fn work(&self, world: &mut World, n: usize) {
        let Worker::Woken { wake, read, is_stale } = world.workers[n].clone() else { return };
        let timing = self.timing();
        let step = read.next(NOW, &timing);
        if is_stale && !matches!(step, WorkerStep::Rest | WorkerStep::Wait(_)) {
            world.workers[n] = Worker::Woken { wake, read: world.course.clone(), is_stale: false };
            return;
        }
        world.workers[n] = Worker::Idle;
        match step {
            WorkerStep::Rest => {}
            WorkerStep::Wait(_) if read.phase == Phase::Idle && wake.received < read.received => {}
            WorkerStep::Wait(until) => world.wake(wake.received, Some(until.millis())),
            step @ (WorkerStep::Claim | WorkerStep::Ask(_)) => {
                let course = match step {
                    WorkerStep::Ask(course) => course,
                    _ => read.claim(Portion::UpTo { last: read.received, rest_since: None }, NOW, &timing),
                };
                let asks = |worker: &Worker| match worker {
                    Worker::Asking { batch, epoch, frozen: false, .. } => world.course.is_turn(*batch, *epoch),
                    _ => false,
                };
                if world.workers.iter().any(asks) {
                    world.violate(name::ONE_ASKS);
                }
                let (batch, epoch) = (course.claimed, course.epoch);
                self.move_on(world, course);
                world.workers[n] = Worker::Asking { wake, batch, epoch, frozen: false };
            }
            WorkerStep::GiveUp(course) | WorkerStep::HandOver(course) => self.move_on(world, course),
            WorkerStep::CheckReply => {
                let of_course = |part: &&Part| (part.batch, part.handed) == (read.claimed, read.handed);
                let end = match world.parts.iter().find(of_course).map(|part| part.delivery.state) {
                    Some(State::Unknown) if self.has(Flaw::UnknownIsRepeated) => PartEnd::Canceled,
                    Some(State::Sent | State::Unknown) => PartEnd::Sent,
                    Some(State::Canceled) => PartEnd::Canceled,
                    Some(State::Failed) => PartEnd::NotSent,
                    _ => return,
                };
                let repeats = self.has(Flaw::UnknownIsRepeated) && end == PartEnd::Canceled;
                let ended = Course { recalled: if repeats { read.handed } else { read.recalled }, ..read.clone() };
                let leaves = self.has(Flaw::PartLeavesDuringHold) && end == PartEnd::Sent;
                // The rule, as if there was no hold.
                let mut course = match leaves {
                    true => Course { hold: None, ..ended }.part_ended(end, NOW),
                    false => ended.part_ended(end, NOW),
                };
                course.hold = read.hold;
                self.move_on(world, course);
            }
        }
    }

    fn answer(&self, world: &mut World, n: usize, answer: Answer) -> Option<()> {
        let Worker::Asking { wake, batch, epoch, .. } = world.workers[n].clone() else { return None };
        match answer {
            Answer::Reply => {}
            Answer::Nothing => spend(&mut world.budget.nothing)?,
            Answer::Later => spend(&mut world.budget.later)?,
            Answer::Problem => spend(&mut world.budget.problems)?,
        }
        world.workers[n] = Worker::Idle;
        if !world.course.is_turn(batch, epoch) && !self.has(Flaw::TurnIgnored) {
            return Some(());
        }
        match answer {
            Answer::Reply => self.reply(world, self.parts),
            Answer::Nothing => self.reply(world, 0),
            Answer::Later => {
                world.promised = Some(batch);
                let course = world.course.awaiting(NOW, &self.timing());
                self.move_on(world, course);
            }
            Answer::Problem => {
                let course = world.course.failed(NOW, &self.timing());
                let again = course.not_before.filter(|_| course.phase == Phase::Asking);
                self.move_on(world, course);
                if again.is_some() {
                    world.wake(wake.received, again);
                }
            }
        }
        Some(())
    }

    fn hold(&self, world: &mut World, until: Option<i64>) {
        let hold = ConversationHold { by: HeldBy::Operator, since: NOW.millis(), until };
        let course = world.course.hold(hold);
        self.move_on(world, course);
        world.hold_answered = !world.course.is_recalled() || self.has(Flaw::HoldWithoutCancel);
    }

    fn person(&self, world: &mut World, late: bool) {
        let sent_at = if late { NOW.plus_ms(-2 * LONG_MS) } else { NOW.plus_ms(1) };
        let message = inbound(true, sent_at);
        let received = Received { instance: &INSTANCE, message: &message, retention_days: 90 };
        let before = world.course.clone();
        let (mut row, _) = received.apply(&world.row(), NOW);
        if self.has(Flaw::SettlesDuringSending) && before.phase == Phase::Sending {
            let idle = Course { phase: Phase::Replied, ..before.clone() }.settle();
            row = world.row().moved(Course { hold: None, ..idle }, NOW, &self.timing());
        }
        if row.course.answered.max(row.course.settled) == before.received {
            world.by_person = before.received;
        }
        self.store(world, &row);
        world.hold_answered = !world.course.is_recalled();
    }

    pub fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Time => {
                if world.workers.iter().any(|worker| *worker != Worker::Idle) {
                    spend(&mut world.budget.freezes)?;
                }
                world.pass_time();
            }
            Action::Message => {
                spend(&mut world.left)?;
                let message = inbound(false, NOW);
                let received = Received { instance: &INSTANCE, message: &message, retention_days: 90 };
                let (row, stored) = received.apply(&world.row(), NOW);
                self.store(world, &row);
                world.wake(row.course.received, stored.emit.and_then(|emit| emit.not_before));
            }
            Action::Person(late) => {
                spend(&mut world.budget.persons)?;
                self.person(world, late);
            }
            Action::Receive(n, wake, twice) => {
                let wake = if twice { world.queue[wake] } else { world.queue.remove(wake) };
                if twice {
                    spend(&mut world.budget.doubles)?;
                }
                if wake.later {
                    spend(&mut world.budget.early)?;
                }
                let (read, wake) = (world.course.clone(), WakeUp { later: false, ..wake });
                world.workers[n] = Worker::Woken { wake, read, is_stale: false };
            }
            Action::Lose(wake) => {
                spend(&mut world.budget.losses)?;
                world.queue.remove(wake);
            }
            Action::Work(n) => self.work(world, n),
            Action::Answer(n, answer) => self.answer(world, n, answer)?,
            Action::Slow(n) => {
                spend(&mut world.budget.slow)?;
                let Worker::Asking { batch, epoch, .. } = world.workers[n] else { return None };
                let timeout_ms = i64::from(INSTANCE.responder_timeout_seconds) * 1_000;
                if world.course.is_turn(batch, epoch) {
                    let over = world.course.lease_until.is_some_and(|until| until - timeout_ms <= NOW.millis());
                    if over {
                        world.course.lease_until = Some(NOW.millis());
                    }
                }
            }
            Action::Crash(n) => {
                spend(&mut world.budget.crashes)?;
                let (Worker::Woken { wake, .. } | Worker::Asking { wake, .. }) = world.workers[n] else { return None };
                world.workers[n] = Worker::Idle;
                world.wake(wake.received, None);
            }
            Action::Callback => {
                let batch = world.promised.take()?;
                if world.course.wants_reply(batch) {
                    self.reply(world, self.parts);
                }
            }
            Action::Begin => {
                if world.hold_answered && world.course.is_held(NOW) {
                    world.violate(name::HELD);
                }
                let delivery = &mut world.on_its_way()?.delivery;
                let attempt = delivery.attempt + 1;
                *delivery = delivery.claimed(&Claim { attempt, token: String::new(), deadline: NOW })?;
            }
            Action::End(state) => {
                let verdict = match state {
                    State::Sent => Verdict::Sent { provider_id: String::new() },
                    State::Unknown => Verdict::Unknown { code: code::TIMED_OUT },
                    _ => Verdict::Failed { code: code::REJECTED, suppress: false },
                };
                match state {
                    State::Unknown => spend(&mut world.budget.unknown)?,
                    State::Failed => spend(&mut world.budget.failed)?,
                    _ => {}
                }
                world.settle_part(&verdict)?;
            }
            Action::NotSent => {
                spend(&mut world.budget.unsent)?;
                world.settle_part(&Verdict::Again { why: Again::Throttled, code: code::THROTTLED, not_before: NOW })?;
            }
            Action::Hold(ends) => {
                spend(if ends { &mut world.budget.holds_with_end } else { &mut world.budget.holds })?;
                self.hold(world, ends.then(|| NOW.plus_ms(LONG_MS).millis()));
            }
            Action::CancelReply => {
                let delivery = &mut world.on_its_way()?.delivery;
                *delivery = delivery.cancel().1?;
                let is_over = delivery.state.is_settled();
                world.hold_answered = world.course.is_held(NOW);
                if is_over {
                    world.wake(world.course.received, None);
                }
            }
            Action::Release(answers) => {
                spend(if answers { &mut world.budget.releases } else { &mut world.budget.settles })?;
                let mut course = match answers {
                    true => world.course.release(),
                    false => Course { hold: None, ..world.course.settle() },
                };
                if self.has(Flaw::ReleaseEndsLease) && course.phase == Phase::Asking {
                    course.lease_until = None;
                }
                if !answers {
                    world.by_release = world.course.received;
                }
                (world.hold_answered, world.released) = (false, true);
                self.move_on(world, course);
            }
            Action::Recover => {
                let row = world.row();
                self.store(world, &row.recovered(NOW, &self.timing()));
            }
        }
        Some(())
    }
}
