//! The steps of the model: what may happen in a state, and what follows.

use stateright::{Model, Property};
use umavez_domain::channels::email::ses_events::{Kind as EventKind, SesEvent};
use umavez_domain::mailings::{EntryCounts, ImportState, KeyedOrder, MailingEvent, MailingState};

use crate::properties::{always, reachable};
use crate::rows::{Entry, Mailing, NOW, When};
use crate::scenario::{Action, Budget, Flaw, MailingModel};
use crate::world::{Answer, Enqueuer, Importer, Recovery, Sender, Step, World};

/// Takes one from a budget. Returns `None` if it is used up.
fn spend(budget: &mut u8) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}

impl MailingModel {
    fn start(&self) -> World {
        let mut mailing = Mailing {
            state: MailingState::Pending,
            import: ImportState::Queued,
            retry: 0,
            retry_unknown: 0,
            emits: 1,
            emits_now: true,
            wake: Some(When::Future),
            lease: None,
            lines: 0,
            by_shard: [0, 0],
            partial: false,
            run: None,
            version: 1,
        };
        let mut world = World {
            mailing,
            shards: None,
            entries: vec![None; self.recipients.len()],
            facts: vec![Default::default(); self.recipients.len()],
            jobs: Vec::new(),
            hand_outs: 0,
            imports: vec![false],
            senders: [Sender::Idle, Sender::Idle],
            enqueuer: Enqueuer::Idle,
            recovery: Recovery::Idle,
            importers: [Importer::Idle; 2],
            budget: self.budget,
            canceled: false,
            runs: 0,
            violated: None,
        };
        if self.imported {
            mailing.lines = u8::try_from(self.recipients.len()).expect("few");
            self.recipients.iter().for_each(|at| mailing.by_shard[*at] += 1);
            let row = mailing.row();
            let (after, shards) = row.imported(&row.progress, true, NOW);
            world.mailing = Mailing::of(&after);
            world.imports.clear();
            world.entries.fill(Some(Entry::default()));
            self.create_shards(&mut world, &shards);
        }
        world
    }

    fn add_sender_actions(&self, world: &World, n: usize, actions: &mut Vec<Action>) {
        let budget = &world.budget;
        match &world.senders[n] {
            Sender::Idle => {
                // Idle senders are alike.
                let is_first = n == 0 || world.senders[0] != Sender::Idle;
                for job in (0..world.jobs.len()).filter(|job| is_first && !world.jobs[*job].later) {
                    actions.push(Action::Receive(n, job, false));
                    if budget.doubles > 0 {
                        actions.push(Action::Receive(n, job, true));
                    }
                }
                return;
            }
            Sender::Turn { step: Step::Call { row, .. }, .. } if row.delivery.is_lost(NOW) => {
                actions.push(Action::Call(n, Answer::NotCalled, false));
            }
            Sender::Turn { step: Step::Call { .. }, .. } => {
                actions.push(Action::Call(n, Answer::Sent, true));
                let refusals = [
                    (Answer::Refused, budget.refusals),
                    (Answer::Rejected, budget.rejections),
                    (Answer::Held, budget.holds),
                ];
                let possible = refusals.into_iter().filter(|(_, left)| *left > 0);
                actions.extend(possible.map(|(answer, _)| Action::Call(n, answer, false)));
                if budget.timeouts > 0 {
                    actions.extend([true, false].map(|sent| Action::Call(n, Answer::TimedOut, sent)));
                }
            }
            Sender::Turn { step: Step::Read, .. } if budget.yields > 0 => {
                actions.extend([Action::Work(n), Action::Yield(n)]);
            }
            _ => actions.push(Action::Work(n)),
        }
        if let Sender::Turn { step: Step::Call { .. } | Step::Settle { .. }, .. } = &world.senders[n]
            && budget.renewals > 0
        {
            actions.push(Action::Renew(n));
        }
        if budget.crashes > 0 {
            actions.push(Action::Crash(n));
        }
    }

    fn add_worker_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let budget = &world.budget;
        match world.enqueuer {
            Enqueuer::Idle if world.hand_outs > 0 => {
                actions.push(Action::ReceiveHandOut(false));
                if budget.doubles > 0 {
                    actions.push(Action::ReceiveHandOut(true));
                }
                if budget.losses > 0 {
                    actions.push(Action::LoseHandOut);
                }
            }
            Enqueuer::Idle => {}
            _ => {
                actions.push(Action::Enqueuer);
                if budget.crashes > 0 {
                    actions.push(Action::EnqueuerCrashes);
                }
            }
        }
        for n in 0..2 {
            match world.importers[n] {
                Importer::Idle => {
                    let is_first = n == 0 || world.importers[0] != Importer::Idle;
                    let jobs = (0..world.imports.len()).filter(|job| is_first && !world.imports[*job]);
                    actions.extend(jobs.map(|job| Action::ReceiveImport(n, job)));
                }
                _ => {
                    actions.push(Action::Import(n));
                    if budget.crashes > 0 {
                        actions.push(Action::ImporterCrashes(n));
                    }
                }
            }
        }
        if world.recovery != Recovery::Idle {
            actions.push(Action::Recovery);
            return;
        }
        // Recovery of work that only waits for a worker is a fault: it comes too early.
        for (at, shard) in world.shards.iter().flat_map(|shards| shards.own.iter().enumerate()) {
            let is_queued = world.is_queued(at);
            let is_found = shard.wake == Some(When::Past) && !self.has(Flaw::ShardsNotWatched);
            if is_found && (!is_queued || budget.spurious > 0) {
                actions.push(Action::RecoverShard(at));
            }
        }
        let is_found = world.mailing.wake == Some(When::Past) && !self.has(Flaw::MailingNotWatched);
        if is_found && (budget.spurious > 0 || !self.is_waiting(world)) {
            actions.push(Action::RecoverMailing);
        }
    }

    fn add_outside_actions(&self, world: &World, actions: &mut Vec<Action>) {
        let (budget, state) = (&world.budget, world.mailing.state);
        let is_ended = matches!(state, MailingState::Canceled | MailingState::Completed);
        if budget.pauses > 0 && !is_ended && state != MailingState::Paused {
            actions.push(Action::Pause);
        }
        if budget.resumes > 0 && state == MailingState::Paused {
            actions.push(Action::Resume);
        }
        if budget.cancels > 0 && !is_ended {
            actions.push(Action::Cancel);
        }
        if budget.retries > 0 {
            actions.push(Action::Retry(false));
        }
        if budget.retries_unknown > 0 {
            actions.push(Action::Retry(true));
        }
        if budget.losses > 0 {
            actions.extend((0..world.jobs.len()).map(Action::LoseJob));
        }
        for (entry, facts) in world.facts.iter().enumerate().filter(|_| budget.events > 0) {
            let sent = (1..).zip(&facts.attempts).filter(|(_, fact)| fact.sent);
            actions.extend(sent.map(|(attempt, _)| Action::Event(entry, attempt)));
        }
        if world.is_quiet() || budget.freezes > 0 {
            actions.push(Action::Time);
        }
    }

    fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Time => {
                let (is_quiet, before) = (world.is_quiet(), world.clone());
                world.pass_time();
                if *world == before {
                    return None;
                }
                if !is_quiet {
                    spend(&mut world.budget.freezes)?;
                }
            }
            Action::Receive(n, job, twice) => {
                let job = match twice {
                    true => {
                        spend(&mut world.budget.doubles)?;
                        world.jobs[job]
                    }
                    false => world.jobs.remove(job),
                };
                world.senders[n] = Sender::Received { job, mailing: world.mailing.state };
            }
            Action::Work(n) => self.sender_works(world, n)?,
            Action::Call(n, answer, sent) => {
                let Budget { refusals, rejections, timeouts, holds, .. } = &mut world.budget;
                match answer {
                    Answer::Refused => spend(refusals)?,
                    Answer::Rejected => spend(rejections)?,
                    Answer::TimedOut => spend(timeouts)?,
                    Answer::Held => spend(holds)?,
                    Answer::Sent | Answer::NotCalled => {}
                }
                self.call(world, n, answer, sent)?;
            }
            Action::Yield(n) => {
                spend(&mut world.budget.yields)?;
                let Sender::Turn { step, .. } = &mut world.senders[n] else { return None };
                *step = Step::Release(true);
            }
            Action::Renew(n) => {
                spend(&mut world.budget.renewals)?;
                self.keep_lease(world, n)?;
            }
            Action::Crash(n) => {
                spend(&mut world.budget.crashes)?;
                match std::mem::replace(&mut world.senders[n], Sender::Idle) {
                    Sender::Idle => return None,
                    // The queue delivers the job again.
                    Sender::Received { job, .. } | Sender::Turn { job, .. } | Sender::Completing { job, .. } => {
                        world.put_job(job);
                    }
                }
            }
            Action::LoseJob(job) => {
                spend(&mut world.budget.losses)?;
                world.jobs.remove(job);
            }
            Action::LoseHandOut => {
                spend(&mut world.budget.losses)?;
                world.hand_outs -= 1;
            }
            Action::ReceiveHandOut(twice) => {
                if twice {
                    spend(&mut world.budget.doubles)?;
                    world.hand_outs += 1;
                }
                self.receive_hand_out(world);
            }
            Action::Enqueuer => self.enqueuer_works(world)?,
            Action::EnqueuerCrashes => {
                spend(&mut world.budget.crashes)?;
                world.enqueuer = Enqueuer::Idle;
                world.hand_outs += 1;
            }
            Action::RecoverShard(at) => {
                if world.is_queued(at) {
                    spend(&mut world.budget.spurious)?;
                }
                world.recovery = Recovery::Shard { at, is_sent: world.mailing.row().needs_senders() };
            }
            Action::RecoverMailing => self.find_mailing(world)?,
            Action::Recovery => self.recovery_works(world)?,
            Action::ReceiveImport(n, job) => self.receive_import(world, n, job),
            Action::Import(n) => self.importer_works(world, n)?,
            Action::ImporterCrashes(n) => {
                spend(&mut world.budget.crashes)?;
                world.importers[n] = Importer::Idle;
                world.imports.push(false);
            }
            Action::Pause | Action::Resume | Action::Cancel => self.order(world, action)?,
            Action::Retry(unknown) => {
                let budget = if unknown { &mut world.budget.retries_unknown } else { &mut world.budget.retries };
                spend(budget)?;
                let rows = world.shards?.rows();
                let counts: EntryCounts = rows.iter().map(|shard| shard.counts).sum();
                let order = KeyedOrder { key: String::new(), body: String::new(), entries: 0 };
                world.change_mailing(|row| row.retry_ordered(&order, unknown, &counts, NOW)).ok()?;
            }
            Action::Event(entry, attempt) => {
                spend(&mut world.budget.events)?;
                let event = SesEvent {
                    kind: EventKind::Send,
                    at: NOW,
                    provider_id: "p".to_owned(),
                    message: None,
                    recipients: Vec::new(),
                };
                self.change_entry(world, entry, |row| row.of_event(&event, attempt).map(|(row, _)| row));
            }
        }
        Some(())
    }

    /// Returns whether the mailing only waits for a worker, or for the end of its shards.
    fn is_waiting(&self, world: &World) -> bool {
        match world.mailing.import == ImportState::Done {
            true => world.hand_outs > 0 || world.enqueuer != Enqueuer::Idle || !self.is_stalled(world),
            false => !world.imports.is_empty(),
        }
    }

    fn find_mailing(&self, world: &mut World) -> Option<()> {
        if self.is_waiting(world) {
            spend(&mut world.budget.spurious)?;
        }
        match world.shards {
            Some(shards) => world.recovery = Recovery::Mailing(world.mailing, shards),
            None => {
                let before = world.mailing;
                let mut after = before.row();
                after.enqueue_import(NOW);
                world.store_mailing(&before, &after);
            }
        }
        Some(())
    }

    fn order(&self, world: &mut World, action: Action) -> Option<()> {
        let (event, budget) = match action {
            Action::Pause => (MailingEvent::Pause, &mut world.budget.pauses),
            Action::Resume => (MailingEvent::Resume, &mut world.budget.resumes),
            _ => (MailingEvent::Cancel, &mut world.budget.cancels),
        };
        spend(budget)?;
        let leaves_senders = self.has(Flaw::CancelWithoutSenders) && event == MailingEvent::Cancel;
        world
            .change_mailing(|row| {
                let mut after = row.ordered(event, None, NOW)?;
                if leaves_senders {
                    after.work = row.work.clone();
                }
                Ok::<_, umavez_domain::mailings::NotMoved>(after)
            })
            .ok()?;
        world.canceled |= event == MailingEvent::Cancel;
        Some(())
    }
}

impl Model for MailingModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        (0..2).for_each(|n| self.add_sender_actions(world, n, actions));
        self.add_worker_actions(world, actions);
        self.add_outside_actions(world, actions);
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
