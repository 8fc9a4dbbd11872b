//! The transitions of the model: which actions are possible in a state, and what each one does.

use stateright::{Model, Property};
use umavez_domain::change::Fence;
use umavez_domain::delivery::{Cancel, Claim, Gate, NextStep, Settled, State, UnknownPolicy, Verdict, code};
use umavez_domain::mailings::{EntryNext, EntryState, MailingEvent, MailingState, Move, move_mailing, next_of_entry};
use umavez_domain::time::Timestamp;

use crate::properties::{always, reachable};
use crate::rows::{DeliveryRow, RowKind, STALE_VERSION, STORED_VERSION, SharedRow, merged};
use crate::world::{
    Action, Answer, Budget, DeliveryModel, Fact, Flaw, ProviderEvent, RealOutcome, SendContext, Sender, World, property,
};

impl<R: DeliveryRow> Model for DeliveryModel<R> {
    type State = World<R>;
    type Action = Action;

    fn init_states(&self) -> Vec<World<R>> {
        let mailing = MailingState::Processing;
        let context = SendContext { paid: false, suppressed: false, mailing, orders: 0, orders_for_unknown: 0 };
        let unsent = Fact { calls: 1, outcome: RealOutcome::NotSent, ..Fact::default() };
        let facts = vec![unsent; self.row.delivery().attempt as usize];
        vec![World {
            row: SharedRow::new(self.row.clone(), STORED_VERSION),
            senders: [Sender::Idle, Sender::Idle],
            facts,
            context,
            is_late: false,
            budget: self.budget,
            recalled: false,
            canceled: false,
            violated: None,
        }]
    }

    fn actions(&self, world: &World<R>, actions: &mut Vec<Action>) {
        let budget = world.budget;
        // Senders are interchangeable, so only the first idle one receives work.
        let idle = world.senders.iter().take(self.senders).position(|sender| *sender == Sender::Idle);
        if let Some(n) = idle.filter(|_| self.has_work(world)) {
            actions.push(Action::Read(n));
        }
        for (n, sender) in world.senders.iter().enumerate() {
            add_sender_actions(n, sender, budget, actions);
        }
        let can_recover = match world.state() {
            State::Sending => self.may_be_given_up(world),
            State::Queued => budget.reenqueues > 0,
            _ => false,
        };
        if can_recover && R::KIND != RowKind::Recipient && !self.has(Flaw::NoRecovery) {
            actions.push(Action::Recover);
        }
        self.add_outside_actions(world, actions);
    }

    fn next_state(&self, before: &World<R>, action: Action) -> Option<World<R>> {
        let mut world = before.clone();
        let now = world.now();
        match action {
            Action::Read(n) => {
                // The first sender that reads a mailing moves it to PROCESSING.
                if let Move::To(state) = move_mailing(world.context.mailing, MailingEvent::Begun, true) {
                    world.context.mailing = state;
                }
                world.senders[n] = Sender::Read { row: world.row.clone(), seen: world.context };
            }
            Action::Decide(n) => {
                if let Some(claim) = self.decide(&mut world, n)
                    && self.try_claim(&mut world, &claim)
                {
                    world.senders[n] = Sender::Claimed { row: world.row.clone() };
                }
            }
            Action::ClaimReplyLost(n, made) => {
                let claim = self.decide(&mut world, n)?;
                world.budget.lost_replies -= 1;
                let made = made && self.try_claim(&mut world, &claim);
                let row = if made { world.row.clone() } else { SharedRow::new(claim.after, STALE_VERSION) };
                world.senders[n] = Sender::CheckingClaim { row, made };
            }
            Action::CheckClaim(n) => {
                let Sender::CheckingClaim { row, .. } = world.senders[n].clone() else { return None };
                let stored = world.row.delivery();
                let is_its_claim = stored.state == State::Sending && stored.claim == row.delivery().claim;
                let claimed = match self.flaw {
                    Some(Flaw::LostReplyMeansNotClaimed) => false,
                    Some(Flaw::LostReplyMeansClaimed) => true,
                    _ => is_its_claim,
                };
                if claimed && world.facts.len() < row.delivery().attempt as usize {
                    return None;
                }
                world.senders[n] = if claimed { Sender::Claimed { row } } else { Sender::Idle };
            }
            Action::Call(n, outcome, answer) => {
                let Sender::Claimed { row } = world.senders[n].clone() else { return None };
                match answer {
                    Answer::Transient | Answer::Throttled | Answer::NotCalled => world.budget.refusals -= 1,
                    Answer::TimedOut => world.budget.timeouts -= 1,
                    Answer::Sent | Answer::Permanent => {}
                }
                world.budget.rejections -= u8::from(outcome == RealOutcome::Rejected);
                if answer != Answer::NotCalled {
                    world.record_call(row.delivery().attempt, outcome);
                }
                world.senders[n] = Sender::Called { row, answer };
            }
            Action::Settle(n) | Action::SettleReplyLost(n) => {
                let Sender::Called { row, answer } = world.senders[n].clone() else { return None };
                self.settle(&mut world, &row, answer);
                if action == Action::Settle(n) {
                    world.senders[n] = Sender::Idle;
                } else {
                    world.budget.lost_replies -= 1;
                }
            }
            Action::Crash(n) => {
                world.budget.crashes -= 1;
                world.senders[n] = Sender::Idle;
            }
            Action::Recover => self.recover(&mut world, now)?,
            _ => self.apply_outside_action(&mut world, action, now)?,
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = always().into_iter().map(|(name, condition)| Property::always(name, condition));
        let reachable = reachable().into_iter().map(|(name, condition)| Property::sometimes(name, condition));
        always.chain(reachable).collect()
    }
}

/// A claim that a sender has decided to write.
struct PlannedClaim<R> {
    /// The row as the sender read it.
    before: SharedRow<R>,
    after: R,
    seen: SendContext,
}

impl<R: DeliveryRow> DeliveryModel<R> {
    /// Returns whether the attempt under way may be given up: its sender has crashed, or may have
    /// been frozen for long.
    fn may_be_given_up(&self, world: &World<R>) -> bool {
        let delivery = world.row.delivery();
        delivery.state == State::Sending && (world.budget.freezes > 0 || !world.has_living_sender(delivery.attempt))
    }

    /// Records that an attempt was given up. That is a violation if no sender has crashed and none
    /// may freeze.
    fn record_given_up(&self, world: &mut World<R>, attempt: u32) {
        let is_frozen = world.has_living_sender(attempt);
        world.budget.freezes = world.budget.freezes.saturating_sub(u8::from(is_frozen));
        if (self.budget.freezes, world.budget.crashes) == (0, self.budget.crashes) {
            world.violate(property::LIVING_SENDER_KEEPS_ATTEMPT);
        }
        let fact = world.fact(attempt);
        (fact.given_up, fact.unresolved) = (true, true);
        fact.may_repeat |= self.policy == UnknownPolicy::Resend;
    }

    /// Returns whether a sender that reads the row now finds something to do.
    fn has_work(&self, world: &World<R>) -> bool {
        let state = world.state();
        if R::KIND != RowKind::Recipient {
            return state == State::Queued;
        }
        let SendContext { mailing, orders, orders_for_unknown, .. } = world.context;
        let is_stopped = matches!(mailing, MailingState::Paused | MailingState::Completed);
        let followed = world.row.followed_order();
        !is_stopped
            && match state {
                State::Queued => true,
                State::Sending => self.may_be_given_up(world),
                State::Failed => orders > followed,
                State::Unknown => orders_for_unknown > followed,
                _ => false,
            }
    }

    /// Lets a sender decide on the row that it read. Returns the claim to write. If there is
    /// nothing to claim, ends the delivery where the product would, and returns `None`.
    fn decide(&self, world: &mut World<R>, n: usize) -> Option<PlannedClaim<R>> {
        let Sender::Read { row, seen } = std::mem::replace(&mut world.senders[n], Sender::Idle) else { return None };
        let (now, when_due) = (world.now(), world.now().plus_days(1));
        let attempt = match R::KIND {
            RowKind::Message | RowKind::Offer => match row.delivery().next(row.window(), when_due) {
                NextStep::Claim { attempt } => attempt,
                NextStep::Wait { .. } => panic!("no wait is longer than a day"),
                NextStep::Expire => {
                    let after = row.end(State::Expired, now)?;
                    world.commit(&row, &after);
                    return None;
                }
                NextStep::Leave => return None,
            },
            RowKind::Recipient => return self.decide_on_recipient(world, n, row, seen),
        };
        if let Some((after, by_charges)) = row.ended_by_gate(&self.gate_rows, seen.paid, now) {
            if !by_charges || seen.paid == world.context.paid {
                world.commit(&row, &after);
            }
            return None;
        }
        self.plan_claim(n, row, attempt, seen, now)
    }

    /// Lets a sender decide on a recipient of its shard: follow an order to send again, claim, end,
    /// or give up the attempt of another sender.
    fn decide_on_recipient(
        &self,
        world: &mut World<R>,
        n: usize,
        row: SharedRow<R>,
        seen: SendContext,
    ) -> Option<PlannedClaim<R>> {
        let (now, when_due) = (world.now(), world.now().plus_days(1));
        let order = match EntryState::from(row.delivery().state) {
            EntryState::Failed => seen.orders,
            EntryState::Unknown => seen.orders_for_unknown,
            _ => 0,
        };
        if order > row.followed_order() {
            let after = row.resend(order, now)?;
            if world.commit(&row, &after) {
                let fact = world.fact(row.delivery().attempt);
                fact.may_repeat = true;
                if fact.latest_order >= order {
                    world.violate(property::ORDER_FOLLOWED_ONCE);
                }
                world.senders[n] = Sender::Read { row: world.row.clone(), seen };
            }
            return None;
        }
        let ended = match next_of_entry(row.delivery(), seen.mailing, seen.suppressed, when_due) {
            EntryNext::Claim { attempt } => return self.plan_claim(n, row, attempt, seen, now),
            EntryNext::Suppress => row.end(State::Suppressed, now),
            EntryNext::Cancel => row.end(State::Canceled, now),
            EntryNext::Lost => {
                let attempt = row.delivery().attempt;
                let after = match self.has(Flaw::UnknownEndsAsFailed) {
                    true => settled_row(row.settle(attempt, &failed_verdict(), now))?,
                    false => row.give_up(seen.orders, now)?,
                };
                if world.commit(&row, &after) {
                    self.record_given_up(world, attempt);
                    world.fact(attempt).latest_order = seen.orders;
                }
                return None;
            }
            EntryNext::Wait { .. } => panic!("no wait is longer than a day"),
            EntryNext::InFlight { .. } => panic!("the deadline of a claim passes at once"),
            EntryNext::Leave => None,
        };
        if let Some(after) = ended {
            world.commit(&row, &after);
        }
        None
    }

    fn plan_claim(
        &self,
        n: usize,
        row: SharedRow<R>,
        attempt: u32,
        seen: SendContext,
        now: Timestamp,
    ) -> Option<PlannedClaim<R>> {
        let claim = Claim { attempt, token: n.to_string(), deadline: now };
        let order = if self.has(Flaw::OrderNotRecorded) { row.followed_order() } else { seen.orders };
        let after = row.claim(&claim, order, now)?;
        Some(PlannedClaim { before: row, after, seen })
    }

    /// Writes a claim, on the condition that the row has not changed since it was read and that the
    /// gates are open. Returns whether the claim was made.
    fn try_claim(&self, world: &mut World<R>, claim: &PlannedClaim<R>) -> bool {
        let PlannedClaim { before, after, seen } = claim;
        if self.is_refused_by_gate(world, before, *seen) {
            return false;
        }
        if self.has(Flaw::ClaimWithoutFence) {
            let row = merged(&*world.row, before, after);
            world.row = SharedRow::new(row, STORED_VERSION);
        } else if !world.commit(before, after) {
            return false;
        }
        world.record_begin(after.delivery().attempt, *seen);
        true
    }

    /// Checks the gates of the claim, and ends a suppressed delivery. Returns `true` if a gate is
    /// closed.
    fn is_refused_by_gate(&self, world: &mut World<R>, before: &R, seen: SendContext) -> bool {
        let now = world.now();
        for gate in before.gates(self.gate_rows.charges(seen.paid)) {
            match gate {
                Gate::Unchanged { fence, .. } => {
                    let charges = self.gate_rows.charges(world.context.paid);
                    if fence != Fence::version(charges.version) && !self.has(Flaw::ClaimWithoutGate) {
                        return true;
                    }
                }
                Gate::NotSuppressed { .. } if world.context.suppressed => {
                    if let Some(after) = before.end(State::Suppressed, now) {
                        world.commit(before, &after);
                    }
                    return true;
                }
                Gate::NotSuppressed { .. } => {}
            }
        }
        false
    }

    /// Writes the outcome of an attempt that a sender made with `row`.
    fn settle(&self, world: &mut World<R>, row: &SharedRow<R>, answer: Answer) {
        let (now, attempt) = (world.now(), row.delivery().attempt);
        let verdict = match row.verdict(answer.outcome(), self.policy, now) {
            Verdict::Unknown { .. } if self.has(Flaw::UnknownEndsAsFailed) => failed_verdict(),
            verdict => verdict,
        };
        world.record_report(attempt, answer, self.policy);
        let settled = |row: &R| {
            let any = self.has(Flaw::SettlesAnyAttempt) && !matches!(verdict, Verdict::Sent { .. });
            settled_row(row.settle(if any { row.delivery().attempt } else { attempt }, &verdict, now))
        };
        match settled(row) {
            Some(after) if self.has(Flaw::SettlesWithoutNewDecision) => {
                let after = merged(&*world.row, row, &after);
                world.store(after.normalized(STORED_VERSION + 1));
            }
            _ => world.change(row, settled),
        }
    }

    /// Runs recovery: gives up the attempt under way, or enqueues a queued delivery again. Returns
    /// `None` if recovery does nothing.
    fn recover(&self, world: &mut World<R>, now: Timestamp) -> Option<()> {
        let (row, state) = (world.row.clone(), world.state());
        let attempt = row.delivery().attempt;
        let after = match state {
            State::Sending if self.has(Flaw::UnknownEndsAsFailed) => {
                settled_row(row.settle(attempt, &failed_verdict(), now))
            }
            State::Sending if self.has(Flaw::LostAttemptIsRetried) => {
                let not_sent = row.verdict(Answer::Transient.outcome(), self.policy, now);
                settled_row(row.settle(attempt, &not_sent, now))
            }
            _ => row.recover(self.policy, now),
        };
        world.store(after?);
        match state {
            State::Sending => self.record_given_up(world, attempt),
            _ => world.budget.reenqueues -= 1,
        }
        Some(())
    }

    /// Returns whether an event about the attempt is applied to the row.
    fn applies_event(&self, row: &R, attempt: u32) -> bool {
        !self.has(Flaw::EarlierProofIgnored) || attempt == row.delivery().attempt
    }
}

/// Adds the actions of one sender: its next step, its faults, and the provider's answers to it.
fn add_sender_actions<R: DeliveryRow>(n: usize, sender: &Sender<R>, budget: Budget, actions: &mut Vec<Action>) {
    match sender {
        Sender::Idle => {}
        Sender::Read { row, .. } => {
            actions.push(Action::Decide(n));
            if budget.lost_replies > 0 && row.delivery().state == State::Queued {
                actions.extend([Action::ClaimReplyLost(n, true), Action::ClaimReplyLost(n, false)]);
            }
        }
        Sender::CheckingClaim { .. } => actions.push(Action::CheckClaim(n)),
        Sender::Claimed { .. } => {
            actions.extend([
                Action::Call(n, RealOutcome::Sent, Answer::Sent),
                Action::Call(n, RealOutcome::NotSent, Answer::Permanent),
            ]);
            if budget.refusals > 0 {
                actions.extend([
                    Action::Call(n, RealOutcome::NotSent, Answer::Transient),
                    Action::Call(n, RealOutcome::NotSent, Answer::Throttled),
                    Action::Call(n, RealOutcome::NotCalled, Answer::NotCalled),
                ]);
            }
            if budget.timeouts > 0 {
                actions.push(Action::Call(n, RealOutcome::Sent, Answer::TimedOut));
                actions.push(Action::Call(n, RealOutcome::NotSent, Answer::TimedOut));
            }
            if budget.rejections > 0 {
                actions.push(Action::Call(n, RealOutcome::Rejected, Answer::Sent));
            }
            if budget.rejections > 0 && budget.timeouts > 0 {
                actions.push(Action::Call(n, RealOutcome::Rejected, Answer::TimedOut));
            }
        }
        Sender::Called { .. } => {
            actions.push(Action::Settle(n));
            if budget.lost_replies > 0 {
                actions.push(Action::SettleReplyLost(n));
            }
        }
    }
    let has_begun = matches!(sender, Sender::CheckingClaim { .. } | Sender::Claimed { .. } | Sender::Called { .. });
    if has_begun && budget.crashes > 0 {
        actions.push(Action::Crash(n));
    }
}

fn failed_verdict() -> Verdict {
    Verdict::Failed { code: code::REJECTED, suppress: false }
}

/// Returns the row if the verdict changed it.
fn settled_row<R>(settled: Settled<R>) -> Option<R> {
    match settled {
        Settled::Now(row) => Some(row),
        Settled::Already | Settled::TooLate => None,
    }
}

impl<R: DeliveryRow> DeliveryModel<R> {
    /// Adds the actions of everything but senders and recovery: time, the operator, the provider's
    /// events, the gates.
    fn add_outside_actions(&self, world: &World<R>, actions: &mut Vec<Action>) {
        let budget = world.budget;
        if budget.expiries > 0 && !world.is_late {
            actions.push(Action::TimePasses);
        }
        if budget.suppressions > 0 {
            actions.push(Action::Suppress);
        }
        if budget.cancels > 0 || (world.context.paid && budget.payment_cancels > 0) {
            actions.push(Action::Cancel);
        }
        if budget.resends > 0 && R::KIND == RowKind::Recipient {
            actions.extend([Action::OrderResend(false), Action::OrderResend(true)]);
        }
        if budget.resends > 0 && R::KIND == RowKind::Message {
            actions.push(Action::Resend);
        }
        if budget.declarations > 0 && world.state() == State::Unknown {
            actions.extend([Action::Declare(true), Action::Declare(false)]);
        }
        for (attempt, fact) in (1..).zip(&world.facts).filter(|_| budget.events > 0) {
            match fact.outcome {
                RealOutcome::NotCalled | RealOutcome::NotSent => {}
                RealOutcome::Sent => {
                    actions.push(Action::ReceiveEvent(attempt, ProviderEvent::Send));
                    actions.push(Action::ReceiveEvent(attempt, ProviderEvent::Delivery));
                }
                RealOutcome::Rejected => {
                    actions.push(Action::ReceiveEvent(attempt, ProviderEvent::Send));
                    actions.push(Action::ReceiveEvent(attempt, ProviderEvent::Reject));
                }
            }
        }
        if budget.echoes > 0 && world.sent_count() > 0 {
            actions.push(Action::Echo);
        }
        if budget.payments > 0 {
            actions.push(Action::Pay);
        }
        if budget.pauses > 0 && world.context.mailing != MailingState::Paused {
            actions.push(Action::Pause);
        }
        if world.context.mailing == MailingState::Paused {
            actions.push(Action::Resume);
        }
        if budget.mailing_cancels > 0 {
            actions.push(Action::CancelMailing);
        }
    }

    /// Applies an action that [`add_outside_actions`](Self::add_outside_actions) added. Returns
    /// `None` if it changes nothing.
    fn apply_outside_action(&self, world: &mut World<R>, action: Action, now: Timestamp) -> Option<()> {
        let row = world.row.clone();
        let attempt = row.delivery().attempt;
        match action {
            Action::TimePasses => {
                world.budget.expiries -= 1;
                world.is_late = true;
            }
            Action::Suppress => {
                world.budget.suppressions -= 1;
                world.context.suppressed = true;
            }
            Action::Cancel => {
                let is_by_payment = world.context.paid && world.budget.payment_cancels > 0;
                let count = if is_by_payment { &mut world.budget.payment_cancels } else { &mut world.budget.cancels };
                *count -= 1;
                let (answer, after) = row.cancel(now);
                if let Some(after) = after {
                    world.store(after);
                }
                world.recalled |= answer == Cancel::InFlight;
                world.canceled |= answer == Cancel::Now;
            }
            Action::Resend => {
                world.store(row.resend(0, now)?);
                world.budget.resends -= 1;
                world.recalled = false;
                if attempt > 0 {
                    world.fact(attempt).may_repeat = true;
                }
            }
            Action::Declare(was_sent) => {
                world.budget.declarations -= 1;
                world.store(row.declare(was_sent, now)?);
                for fact in world.facts.iter_mut().filter(|fact| fact.unresolved) {
                    // "Sent" does not say which attempt was sent, so each stays unresolved.
                    fact.unresolved = was_sent;
                    *(if was_sent { &mut fact.declared_sent } else { &mut fact.declared_unsent }) = true;
                }
            }
            Action::ReceiveEvent(attempt, event) => {
                world.budget.events -= 1;
                let fact = world.fact(attempt);
                fact.unresolved = false;
                match event {
                    ProviderEvent::Send | ProviderEvent::Delivery => fact.proven_sent = true,
                    ProviderEvent::Reject => fact.rejection_reported = true,
                }
                if self.applies_event(&row, attempt)
                    && let Some(after) = row.apply_event(&event.to_ses_event(), attempt, now)
                {
                    world.store(after);
                }
            }
            Action::Echo => {
                world.budget.echoes -= 1;
                // An echo names no attempt: like the product, take the first one in doubt.
                let proven = row.delivery().doubts.first().copied().unwrap_or(attempt);
                if let Settled::Now(after) = row.settle_as_sent(proven, now) {
                    world.store(after);
                }
                world.fact(proven).unresolved = false;
                for fact in world.facts.iter_mut().filter(|fact| fact.outcome == RealOutcome::Sent) {
                    fact.proven_sent = true;
                }
            }
            Action::Pay => {
                world.budget.payments -= 1;
                world.context.paid = true;
            }
            Action::Pause | Action::Resume | Action::CancelMailing => {
                let event = match action {
                    Action::Pause => MailingEvent::Pause,
                    Action::Resume => MailingEvent::Resume,
                    _ => MailingEvent::Cancel,
                };
                let Move::To(state) = move_mailing(world.context.mailing, event, true) else { return None };
                world.context.mailing = state;
                world.budget.pauses -= u8::from(action == Action::Pause);
                world.budget.mailing_cancels -= u8::from(action == Action::CancelMailing);
            }
            Action::OrderResend(with_unknown) => {
                world.budget.resends -= 1;
                world.context.orders += 1;
                if with_unknown {
                    world.context.orders_for_unknown = world.context.orders;
                }
            }
            _ => return None,
        }
        Some(())
    }
}
