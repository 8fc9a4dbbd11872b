//! The sender: it takes a shard, sends to its entries one by one, counts them, and ends the shard.

use umavez_domain::codes::SendingHold;
use umavez_domain::delivery::{Claim, Outcome, Settled, State, ThrottleScope, code};
use umavez_domain::mailings::{
    EntryNext, EntryState, LEASE_MS, MailingEntryRow, MailingEvent, MailingState, NotMoved, NotTaken, PassEnding,
    ShardRow, ShardState, ShardTurn, Sibling, Tally, end_of_pass, next_of_entry,
};

use crate::properties::name;
use crate::rows::{Entry, Held, Mailing, NOW, Shard, Shards, When, counts_of};
use crate::scenario::{Flaw, MailingModel};
use crate::world::{Answer, Attempt, CountedTally, Job, Seen, Sender, Step, Turn, World, at_of};

impl Turn {
    fn of(at: usize, turn: &ShardTurn) -> Self {
        Self { at, held: Held::of(&turn.held), row: Shard::of(&turn.row), stored: Shard::of(&turn.stored) }
    }

    fn product(&self) -> ShardTurn {
        ShardTurn { held: self.held.lease(), row: self.row.row(), stored: self.stored.row() }
    }
}

impl CountedTally {
    fn of(tally: Tally) -> Self {
        Self { counts: counts_of(&tally.counts), next_look: tally.next_look.map(When::of) }
    }

    fn product(self) -> Tally {
        let mut row = Shard::of(&ShardRow::new(crate::rows::id(), 0, Default::default()));
        row.counts = self.counts;
        Tally { counts: row.row().counts, next_look: self.next_look.map(When::at) }
    }
}

impl Answer {
    fn outcome(self) -> Outcome {
        match self {
            Self::Sent => Outcome::Sent { provider_id: "p".to_owned() },
            Self::Refused => Outcome::Throttled { retry_after_ms: 1_000, scope: ThrottleScope::Chat },
            Self::Rejected => Outcome::Permanent { code: code::REJECTED, suppress: false },
            Self::TimedOut => Outcome::Unknown { code: code::TIMED_OUT },
            Self::Held => Outcome::Held { why: SendingHold::NotAuthorized },
            Self::NotCalled => Outcome::Transient { code: code::NOT_CALLED },
        }
    }
}

impl MailingModel {
    /// Lets a sender take its next step. Returns `None` if there is none.
    pub fn sender_works(&self, world: &mut World, n: usize) -> Option<()> {
        let sender = std::mem::replace(&mut world.senders[n], Sender::Idle);
        match sender {
            Sender::Idle => return None,
            Sender::Received { job, mailing } => self.take(world, n, job, mailing),
            Sender::Completing { job, mailing, shards } => {
                if !self.complete(world, &mailing, &shards) {
                    world.senders[n] = self.completing(world, job);
                }
            }
            Sender::Turn { step: Step::Call { .. }, .. } => return None,
            Sender::Turn { job, turn, step } => {
                if let Some((turn, step)) = self.step(world, n, job, turn, step) {
                    world.senders[n] = Sender::Turn { job, turn, step };
                }
            }
        }
        Some(())
    }

    /// Takes the lease of the job's shard.
    fn take(&self, world: &mut World, n: usize, job: Job, mailing: MailingState) {
        let before = world.shards().own[job.at];
        let owner = n.to_string();
        world.senders[n] = match before.row().take(job.seq.into(), mailing, &owner, NOW) {
            Ok(held) => {
                let row = before.row().taken(held.clone(), NOW);
                world.store_shard(job.at, &before, &row);
                Sender::Turn { job, turn: Turn::of(job.at, &ShardTurn::new(held, row)), step: Step::Read }
            }
            Err(NotTaken::Busy(until)) => {
                world.put_job(Job { later: until > NOW, ..job });
                Sender::Idle
            }
            Err(NotTaken::Finished) => self.completing(world, job),
            Err(NotTaken::NothingToDo) => Sender::Idle,
        };
    }

    fn completing(&self, world: &World, job: Job) -> Sender {
        Sender::Completing { job, mailing: world.mailing, shards: *world.shards() }
    }

    /// Ends the mailing if it is over. Returns `false` if the mailing has changed since it was
    /// read.
    pub fn complete(&self, world: &mut World, mailing: &Mailing, shards: &Shards) -> bool {
        let (row, mut rows) = (mailing.row(), shards.rows());
        if self.has(Flaw::EndIgnoresOrders) {
            rows.iter_mut().for_each(|shard| shard.retried = row.retry);
        }
        row.completed(&rows, NOW).1.is_none_or(|after| world.commit_mailing(mailing, &after))
    }

    /// One step under the lease. Returns the next one, or `None` if the turn is over.
    fn step(&self, world: &mut World, n: usize, job: Job, mut turn: Turn, step: Step) -> Option<(Turn, Step)> {
        match step {
            Step::Read => {
                let next = self.next_entry(world, &turn);
                Some((turn, next.map_or(Step::Renew, |(entry, row)| Step::Decide { entry, row })))
            }
            Step::Decide { entry, row } => self.decide(world, turn, entry, row),
            Step::Claim { entry, row, attempt, deadline, seen } => {
                let claimed = self.claim(world, n, entry, &row, (attempt, deadline), seen);
                Some(match claimed {
                    Some(row) => (turn, Step::Call { entry, row, seen }),
                    None => (turn.after(entry), Step::Read),
                })
            }
            Step::Call { .. } => panic!("the provider answers"),
            Step::Settle { entry, row, answer, seen } => {
                let to = self.settle(world, entry, &row, answer);
                turn.row.moved(EntryState::Pending, to);
                match answer {
                    Answer::Held => Some((turn, Step::Hold { seen })),
                    _ => Some((turn.after(entry), Step::Read)),
                }
            }
            Step::Hold { seen } => {
                let read = Mailing { run: seen.run, ..world.mailing }.row();
                // If the mailing was paused or resumed since, it stays as it is.
                if !world.mailing.row().is_another_run(&read) {
                    let why = Some(SendingHold::NotAuthorized);
                    // A mailing that cannot pause is over.
                    world.change_mailing(|row| row.ordered(MailingEvent::Pause, why, NOW)).ok();
                }
                Some((turn, Step::Release(false)))
            }
            Step::Renew => {
                let mut turn = self.renewed(world, turn)?;
                let seen = world.shards().own[turn.at];
                if (seen.retried, seen.retried_unknown) != (turn.row.retried, turn.row.retried_unknown) {
                    (turn.row.retried, turn.row.retried_unknown) = (seen.retried, seen.retried_unknown);
                    turn.row.cursor = None;
                    return Some((turn, Step::Read));
                }
                turn.row.touched = seen.touched;
                Some((turn, Step::Recount))
            }
            Step::Recount => {
                let tally = CountedTally::of(world.tally(self, turn.at));
                // Only events and frozen senders can change an entry of a shard that was counted.
                let alone = self.budget.events == 0 && self.budget.freezes == 0;
                let shards = *world.shards();
                Some((turn, if alone { Step::EndPass { tally, shards } } else { Step::ReadShards { tally } }))
            }
            Step::ReadShards { tally } => Some((turn, Step::EndPass { tally, shards: *world.shards() })),
            Step::EndPass { tally, shards } => self.end_pass(world, n, job, turn, tally, &shards),
            Step::Sibling { at, read } => {
                world.commit_shard(at, &read, &read.row().enqueued(None, NOW));
                None
            }
            Step::Release(again) => {
                let before = world.shards().own[turn.at];
                let (row, product) = (before.row(), turn.product());
                if row.is_held_by(&product.held) {
                    let again = again.then_some(NOW);
                    let mut worked = product.row;
                    if self.has(Flaw::ReleaseIgnoresResume) {
                        worked.work.emits = row.work.emits;
                    }
                    world.store_shard(turn.at, &before, &row.released(&worked, again, NOW));
                }
                None
            }
        }
    }

    /// Returns the next entry after the cursor that may need work.
    fn next_entry(&self, world: &World, turn: &Turn) -> Option<(usize, Entry)> {
        let (failed, unknown) = (turn.row.retried > 0, turn.row.retried_unknown > 0);
        let first = turn.row.cursor.map_or(0, |cursor| usize::from(cursor) + 1);
        (first..self.recipients.len()).filter(|entry| self.recipients[*entry] == turn.at).find_map(|entry| {
            let row = world.entries[entry].clone()?;
            let is_open = match row.state() {
                EntryState::Pending | EntryState::Sending => true,
                EntryState::Failed => failed,
                EntryState::Unknown => unknown,
                _ => false,
            };
            is_open.then_some((entry, row))
        })
    }

    /// Reads the mailing, follows a retry order, and decides about an entry.
    fn decide(&self, world: &mut World, turn: Turn, entry: usize, read: Entry) -> Option<(Turn, Step)> {
        let has_begun = self.has(Flaw::MailingReadOnce) && turn.row.cursor.is_some();
        match world.mailing.state {
            _ if has_begun => {}
            MailingState::Processing | MailingState::Canceled | MailingState::Failed => {}
            MailingState::Pending | MailingState::Queued => {
                let since = NOW.plus_ms(world.runs.into());
                match world.change_mailing(|row| row.begun(&Default::default(), since)) {
                    // Runs are counted only in worlds where a provider refuses the account.
                    Ok(()) => world.runs += u8::from(self.budget.holds > 0),
                    Err(NotMoved::Already) => {}
                    Err(NotMoved::Refused) => return Some((turn, Step::Release(false))),
                }
            }
            MailingState::Paused | MailingState::Completed => return Some((turn, Step::Release(false))),
        }
        let turn = match turn.held.until {
            When::Future => turn,
            When::Past => self.renewed(world, turn)?,
        };
        let Some((mut turn, read)) = self.follow_order(world, turn, entry, read) else {
            return Some((turn.after(entry), Step::Read));
        };
        let mailing = world.mailing;
        let state = if has_begun { MailingState::Processing } else { mailing.state };
        match next_of_entry(&read.delivery, state, false, NOW) {
            EntryNext::Claim { attempt } => {
                let seen = Seen { retry: mailing.retry, run: mailing.run, canceled: world.canceled };
                return Some((turn, Step::Claim { entry, row: read, attempt, deadline: When::Future, seen }));
            }
            EntryNext::Cancel => {
                if let Some(after) = read.row().ended(State::Canceled, "mailing_canceled")
                    && world.commit_entry(entry, &read, after)
                {
                    turn.row.moved(read.state(), EntryState::Canceled);
                }
            }
            EntryNext::Lost => {
                let attempt = read.delivery.attempt;
                let after = match self.has(Flaw::LostAttemptIsRetried) {
                    true => {
                        let again = read.row().verdict(Answer::NotCalled.outcome(), NOW, 0);
                        settled(read.row().settled(attempt, &again, NOW))
                    }
                    false => read.row().lost(mailing.retry.into(), NOW),
                };
                if let Some(after) = after
                    && world.commit_entry(entry, &read, after)
                {
                    world.facts[entry].order_before = mailing.retry;
                    turn.row.moved(read.state(), EntryState::Unknown);
                }
            }
            EntryNext::Suppress => panic!("nothing is suppressed"),
            EntryNext::Wait { .. } | EntryNext::InFlight { .. } | EntryNext::Leave => {}
        }
        Some((turn.after(entry), Step::Read))
    }

    /// Makes an entry pending again if a retry order covers it. Returns `None` if the entry has
    /// changed since it was read.
    fn follow_order(&self, world: &mut World, mut turn: Turn, entry: usize, read: Entry) -> Option<(Turn, Entry)> {
        let order = match read.state() {
            EntryState::Failed => turn.row.retried,
            EntryState::Unknown => turn.row.retried_unknown,
            _ => 0,
        };
        if read.retried >= order.into() {
            return Some((turn, read));
        }
        let after = read.row().sent_again(order.into())?;
        if !world.commit_entry(entry, &read, after.clone()) {
            return None;
        }
        let facts = &mut world.facts[entry];
        (facts.ordered, facts.orders) = (true, facts.orders + 1);
        if facts.order_before >= order {
            world.violate(name::ORDER_ONCE);
        }
        turn.row.moved(read.state(), EntryState::Pending);
        Some((turn, Entry::of(after)))
    }

    /// Extends the lease. Returns `None` if another sender has taken over.
    fn renewed(&self, world: &mut World, turn: Turn) -> Option<Turn> {
        let (renewed, written) = turn.product().renewal(NOW.plus_ms(LEASE_MS));
        if !is_held(&turn, world) {
            return None;
        }
        world.store_shard(turn.at, &turn.stored, &written);
        let stored = world.shards().own[turn.at];
        let mut turn = Turn::of(turn.at, &renewed.renewed(stored.row()));
        if self.has(Flaw::RenewalHidesJob) {
            turn.row.emits = stored.emits;
        }
        Some(turn)
    }

    /// Renews the lease while a call is under way. Returns `None` if the lease is lost.
    pub fn keep_lease(&self, world: &mut World, n: usize) -> Option<()> {
        let Sender::Turn { turn, .. } = world.senders[n] else { return None };
        let renewed = self.renewed(world, turn)?;
        if let Sender::Turn { turn, .. } = &mut world.senders[n] {
            *turn = renewed;
        }
        Some(())
    }

    /// Begins an attempt. Returns the entry as it was claimed.
    fn claim(
        &self,
        world: &mut World,
        n: usize,
        entry: usize,
        read: &Entry,
        (attempt, deadline): (u32, When),
        seen: Seen,
    ) -> Option<Entry> {
        let claim = Claim { attempt, token: n.to_string(), deadline: deadline.at() };
        let order = if self.has(Flaw::OrderNotRecorded) { read.retried } else { seen.retry.into() };
        let after = read.row().claimed(&claim, order, NOW)?;
        if !world.commit_entry(entry, read, after.clone()) {
            if !self.has(Flaw::ClaimWithoutFence) {
                return None;
            }
            world.entries[entry] = Some(Entry::of(after.clone()));
        }
        if seen.canceled {
            world.violate(name::AFTER_CANCEL);
        }
        let is_over = attempt < 2 || !world.may_be_called(entry, attempt - 1);
        let facts = &mut world.facts[entry];
        let last = (attempt as usize).checked_sub(2).and_then(|last| facts.attempts.get(last)).copied();
        let is_unsent = is_over && last.is_none_or(|last| !last.sent);
        let ordered = std::mem::take(&mut facts.ordered);
        facts.order_before = seen.retry;
        facts.attempts.resize(facts.attempts.len().max(attempt as usize), Attempt::default());
        if !is_unsent && !ordered {
            world.violate(name::AFTER_UNSENT);
        }
        Some(Entry::of(after))
    }

    /// Calls the provider.
    pub fn call(&self, world: &mut World, n: usize, answer: Answer, sent: bool) -> Option<()> {
        let Sender::Turn { step, .. } = &mut world.senders[n] else { return None };
        let Step::Call { entry, row, seen } = step.clone() else { return None };
        *step = Step::Settle { entry, row: row.clone(), answer, seen };
        if answer == Answer::NotCalled {
            return Some(());
        }
        let is_canceled = sent && world.entries[entry].as_ref()?.state() == EntryState::Canceled;
        let fact = &mut world.facts[entry].attempts[row.delivery.attempt as usize - 1];
        (fact.calls, fact.sent) = (fact.calls + 1, fact.sent || sent);
        if fact.calls > 1 {
            world.violate(name::ONE_CALL);
        }
        if is_canceled {
            world.violate(name::CANCELED_NOT_SENT);
        }
        Some(())
    }

    /// Writes the outcome of an attempt.
    fn settle(&self, world: &mut World, entry: usize, claimed: &Entry, answer: Answer) -> EntryState {
        let (row, attempt) = (claimed.row(), claimed.delivery.attempt);
        let verdict = row.verdict(answer.outcome(), NOW, 0);
        self.change_entry(world, entry, |row| settled(row.settled(attempt, &verdict, NOW)));
        world.entries[entry].as_ref().expect("a stored entry").state()
    }

    /// Changes an entry by a rule. If the entry had ended and its state changes, the same
    /// transaction changes the counts of its shard.
    pub fn change_entry(
        &self,
        world: &mut World,
        entry: usize,
        rule: impl Fn(&MailingEntryRow) -> Option<MailingEntryRow>,
    ) {
        let before = world.entries[entry].clone().expect("a stored entry");
        let Some(after) = rule(&before.row()) else { return };
        let (from, to) = (before.state(), after.state());
        world.entries[entry] = Some(Entry::of(after));
        if from.is_settled() && from != to {
            let shard = world.shard(self.recipients[entry]);
            match shard.state == ShardState::Finished {
                true => shard.moved(from, to),
                false => shard.touched += 1,
            }
        }
    }

    fn end_pass(
        &self,
        world: &mut World,
        n: usize,
        job: Job,
        mut turn: Turn,
        tally: CountedTally,
        shards: &Shards,
    ) -> Option<(Turn, Step)> {
        let rows = shards.rows();
        if self.has(Flaw::EndIgnoresEvents) {
            turn.row.touched = shards.own[turn.at].touched;
        }
        let held = turn.held.lease();
        let (before, after, sibling) = match end_of_pass(&turn.row.row(), &held, &rows, tally.product(), NOW) {
            PassEnding::Ends { before, after, sibling } => (Shard::of(before), after, sibling),
            PassEnding::Changed => return Some((turn, Step::Renew)),
            PassEnding::Lost => return None,
        };
        let other = match sibling {
            Sibling::Enqueued { before, after } => Some((at_of(before.shard), Shard::of(before), Some(after))),
            Sibling::Active(one) => Some((at_of(one.shard), Shard::of(one), None)),
            Sibling::None => None,
        };
        let holds = match &other {
            Some((at, before, Some(_))) => before.is_as_read(&world.shards().own[*at]),
            Some((at, _, None)) => world.shards().own[*at].wake.is_some(),
            None => true,
        };
        let in_two = self.has(Flaw::HandOverInTwoWrites);
        let is_as_read = before.is_as_read(&world.shards().own[turn.at]);
        let writes = is_as_read || self.has(Flaw::EndIgnoresEvents) && is_held(&turn, world);
        if !writes || !holds && !in_two {
            return Some((turn, Step::ReadShards { tally }));
        }
        world.store_shard(turn.at, &before, &after);
        if let Some((at, before, Some(after))) = other {
            if in_two {
                return Some((turn, Step::Sibling { at, read: before }));
            }
            world.store_shard(at, &before, &after);
        }
        if after.state == ShardState::Finished {
            world.senders[n] = self.completing(world, job);
        }
        None
    }
}

fn is_held(turn: &Turn, world: &World) -> bool {
    world.shards().own[turn.at].row().is_held_by(&turn.held.lease())
}

/// Returns the row if the verdict changed it.
fn settled(settled: Settled<MailingEntryRow>) -> Option<MailingEntryRow> {
    match settled {
        Settled::Now(row) => Some(row),
        Settled::Already | Settled::TooLate => None,
    }
}

impl Turn {
    /// The sender is done with an entry.
    fn after(mut self, entry: usize) -> Self {
        self.row.cursor = u8::try_from(entry).ok();
        self
    }
}
