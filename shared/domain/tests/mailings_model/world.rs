//! The state of the model: the rows, the workers, the jobs in the queues, and the facts, which
//! record what really happened.

use umavez_domain::mailings::{EntryState, MailingEntryRow, MailingRow, MailingState, ShardRow, Tally};
use umavez_domain::time::Timestamp;

use crate::rows::{Emitted, Entry, Held, Mailing, NOW, OWN, Shard, Shards, When, emitted};
use crate::scenario::{Budget, MailingModel};

/// A job for a shard, in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// The index of the shard.
    pub at: usize,
    pub seq: u8,
    /// Whether the queue hides the job until later.
    pub later: bool,
}

/// The provider's answer to a call, as the sender sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Sent,
    Refused,
    Rejected,
    TimedOut,
    /// SES refuses mail of this account.
    Held,
    /// The deadline of the attempt was too near for a call.
    NotCalled,
}

/// A sender's turn at a shard: the product's `ShardTurn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn {
    pub at: usize,
    pub held: Held,
    pub row: Shard,
    pub stored: Shard,
}

/// What a sender has read of the mailing before it sends to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seen {
    pub retry: u8,
    pub run: Option<u8>,
    /// A cancel was answered before the sender read the mailing.
    pub canceled: bool,
}

/// What a sender does next under its lease. Each step ends with one request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read the next entry that may need work.
    Read,
    /// Read the mailing, and decide about the entry.
    Decide {
        entry: usize,
        row: Entry,
    },
    /// Begin an attempt: all checks before the write have passed.
    Claim {
        entry: usize,
        row: Entry,
        attempt: u32,
        deadline: When,
        seen: Seen,
    },
    Call {
        entry: usize,
        row: Entry,
        seen: Seen,
    },
    Settle {
        entry: usize,
        row: Entry,
        answer: Answer,
        seen: Seen,
    },
    /// Pause the mailing, because SES refuses its sender.
    Hold {
        seen: Seen,
    },
    /// The pass is over: renew the lease, and read the shard.
    Renew,
    Recount,
    ReadShards {
        tally: CountedTally,
    },
    EndPass {
        tally: CountedTally,
        shards: Shards,
    },
    /// Broken variant: enqueue the sibling after the write that ended the pass.
    Sibling {
        at: usize,
        read: Shard,
    },
    /// Release the shard in the middle of a pass: `true` enqueues it now.
    Release(bool),
}

/// A recount of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CountedTally {
    pub counts: [u8; 8],
    pub next_look: Option<When>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "a world has two senders, most of them at work")]
pub enum Sender {
    Idle,
    /// It has received a job and read the state of the mailing.
    Received {
        job: Job,
        mailing: MailingState,
    },
    Turn {
        job: Job,
        turn: Turn,
        step: Step,
    },
    /// It has read the mailing and the shards, to end the mailing.
    Completing {
        job: Job,
        mailing: Mailing,
        shards: Shards,
    },
}

/// The worker that enqueues the shards of the mailing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enqueuer {
    Idle,
    /// It has read the mailing.
    Begun(Mailing),
    /// It has read the shards.
    Follow(Mailing, Shards),
    /// The shards follow the latest retry order.
    Enqueue(Mailing, Shards),
    Clear(Mailing),
    Completing(Mailing, Shards),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    Idle,
    /// It has found a shard in the index and read the mailing.
    Shard {
        at: usize,
        is_sent: bool,
    },
    /// It has recovered a shard. Does any sender work on the mailing?
    Abandon(Mailing, Shards),
    Mailing(Mailing, Shards),
}

/// The worker that reads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Importer {
    Idle,
    /// It inserts the next line. `row` is the mailing as of the last checkpoint.
    Insert {
        held: Held,
        row: Mailing,
    },
    Checkpoint {
        held: Held,
        row: Mailing,
    },
    End {
        held: Held,
        progress: Mailing,
    },
}

/// What really happened to one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub calls: u8,
    pub sent: bool,
}

/// What really happened to one recipient.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    pub attempts: Vec<Attempt>,
    /// An order allows another attempt, whatever the outcome of the last one is.
    pub ordered: bool,
    /// The number of orders that the recipient has followed.
    pub orders: u8,
    /// The latest order when the last attempt began.
    pub order_before: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub mailing: Mailing,
    /// The shards exist from the end of the import on.
    pub shards: Option<Shards>,
    pub entries: Vec<Option<Entry>>,
    pub facts: Vec<Facts>,
    pub jobs: Vec<Job>,
    /// Jobs of the mailing: to enqueue its shards, and to import its file. `true` if the queue
    /// hides the job until later.
    pub hand_outs: u8,
    pub imports: Vec<bool>,
    pub senders: [Sender; 2],
    pub enqueuer: Enqueuer,
    pub recovery: Recovery,
    pub importers: [Importer; 2],
    pub budget: Budget,
    /// A cancel was answered.
    pub canceled: bool,
    /// The number of runs of sending, if the model distinguishes them.
    pub runs: u8,
    /// The first property that a step on the way to this state violated.
    pub violated: Option<&'static str>,
}

impl World {
    pub fn shards(&self) -> &Shards {
        self.shards.as_ref().expect("the shards exist")
    }

    pub fn shard(&mut self, at: usize) -> &mut Shard {
        &mut self.shards.as_mut().expect("the shards exist").own[at]
    }

    /// Records that a step violated a property. The first violation is kept.
    pub fn violate(&mut self, property: &'static str) {
        self.violated.get_or_insert(property);
    }

    /// Writes a change of the mailing, if it has not changed since `before` was read. Returns
    /// `false` if it has.
    pub fn commit_mailing(&mut self, before: &Mailing, after: &MailingRow) -> bool {
        let is_as_read = before.is_as_read(&self.mailing);
        if is_as_read {
            self.store_mailing(before, after);
        }
        is_as_read
    }

    /// Writes what a change of the mailing changes, and enqueues its job.
    pub fn store_mailing(&mut self, before: &Mailing, after: &MailingRow) {
        let copy = Mailing { version: before.version, ..Mailing::of(after) };
        self.mailing.merge(before, &copy);
        self.outdate_mailing();
        if copy.emits != before.emits {
            match emitted(after).expect("a new emission") {
                Emitted::HandOut => self.hand_outs += 1,
                Emitted::Import => self.imports.push(false),
            }
        }
    }

    /// A write that changes the version: copies that workers hold are outdated.
    fn outdate_mailing(&mut self) {
        for sender in &mut self.senders {
            if let Sender::Completing { mailing, .. } = sender {
                mailing.version = 0;
            }
        }
        match &mut self.enqueuer {
            Enqueuer::Completing(mailing, _) => mailing.version = 0,
            Enqueuer::Idle | Enqueuer::Begun(_) | Enqueuer::Follow(..) | Enqueuer::Enqueue(..) | Enqueuer::Clear(_) => {
            }
        }
        match &mut self.recovery {
            Recovery::Abandon(mailing, _) | Recovery::Mailing(mailing, _) => mailing.version = 0,
            Recovery::Idle | Recovery::Shard { .. } => {}
        }
    }

    /// Changes the mailing by a rule, on the row as it is now. Returns the answer of the rule.
    pub fn change_mailing<E>(&mut self, rule: impl Fn(&MailingRow) -> Result<MailingRow, E>) -> Result<(), E> {
        let before = self.mailing;
        let after = rule(&before.row())?;
        self.store_mailing(&before, &after);
        Ok(())
    }

    /// Writes a change of a shard, if its fence still holds.
    pub fn commit_shard(&mut self, at: usize, before: &Shard, after: &ShardRow) -> bool {
        let is_as_read = before.is_as_read(&self.shards().own[at]);
        if is_as_read {
            self.store_shard(at, before, after);
        }
        is_as_read
    }

    /// Writes what a change of a shard changes, and enqueues its job.
    pub fn store_shard(&mut self, at: usize, before: &Shard, after: &ShardRow) {
        let copy = Shard::of(after);
        self.shard(at).merge(before, &copy);
        if copy.emits != before.emits {
            let not_before = after.work.emit.as_ref().expect("a new emission").not_before;
            let later = not_before.is_some_and(|at| at > NOW.millis());
            self.put_job(Job { at, seq: copy.emits, later });
        }
    }

    pub fn put_job(&mut self, job: Job) {
        self.jobs.push(job);
        self.jobs.sort_unstable();
    }

    /// Returns whether a job for a shard waits for a sender, or a sender is about to handle it.
    pub fn is_queued(&self, at: usize) -> bool {
        let receives = |sender: &Sender| matches!(sender, Sender::Received { job, .. } if job.at == at);
        self.jobs.iter().any(|job| job.at == at) || self.senders.iter().any(receives)
    }

    /// Writes a change of an entry, if its fence still holds.
    pub fn commit_entry(&mut self, entry: usize, before: &Entry, after: MailingEntryRow) -> bool {
        let stored = self.entries[entry].as_mut().expect("a stored entry");
        let is_as_read = before.is_as_read(stored);
        if is_as_read {
            *stored = Entry::of(after);
        }
        is_as_read
    }

    /// Counts the entries of a shard.
    pub fn tally(&self, model: &MailingModel, at: usize) -> Tally {
        let mut tally = Tally::default();
        let of_shard = |(entry, _): &(usize, &Option<Entry>)| model.recipients[*entry] == at;
        for entry in self.entries.iter().enumerate().filter(of_shard).filter_map(|(_, entry)| entry.as_ref()) {
            let delivery = &entry.delivery;
            let deadline = delivery.deadline.map(Timestamp::from_millis);
            tally.add(entry.state(), delivery.not_before, deadline, NOW);
        }
        tally
    }

    /// Returns whether no worker is in the middle of its work.
    pub fn is_quiet(&self) -> bool {
        self.senders.iter().all(|sender| *sender == Sender::Idle)
            && self.enqueuer == Enqueuer::Idle
            && self.recovery == Recovery::Idle
            && self.importers.iter().all(|importer| *importer == Importer::Idle)
    }

    /// Returns whether a sender may still call the provider for this attempt.
    pub fn may_be_called(&self, of: usize, attempt: u32) -> bool {
        self.senders.iter().any(|sender| {
            let Sender::Turn { step: Step::Call { entry, row, .. }, .. } = sender else { return false };
            *entry == of && row.delivery.attempt == attempt && !row.delivery.is_lost(NOW)
        })
    }

    pub fn count(&self, state: EntryState) -> usize {
        self.entries.iter().flatten().filter(|entry| entry.state() == state).count()
    }

    /// Lets time pass: every wait and every lease is over.
    pub fn pass_time(&mut self) {
        self.mailing.pass();
        self.shards.iter_mut().for_each(|shards| shards.own.iter_mut().for_each(Shard::pass));
        self.entries.iter_mut().flatten().for_each(Entry::pass);
        self.jobs.iter_mut().for_each(|job| job.later = false);
        self.jobs.sort_unstable();
        self.imports.iter_mut().for_each(|later| *later = false);
        for sender in &mut self.senders {
            match sender {
                Sender::Idle | Sender::Received { .. } => {}
                Sender::Turn { turn, step, .. } => {
                    turn.held.until.pass();
                    turn.row.pass();
                    turn.stored.pass();
                    step.pass();
                }
                Sender::Completing { mailing, shards, .. } => pass_both(mailing, shards),
            }
        }
        match &mut self.enqueuer {
            Enqueuer::Idle => {}
            Enqueuer::Begun(mailing) | Enqueuer::Clear(mailing) => mailing.pass(),
            Enqueuer::Follow(mailing, shards)
            | Enqueuer::Enqueue(mailing, shards)
            | Enqueuer::Completing(mailing, shards) => pass_both(mailing, shards),
        }
        match &mut self.recovery {
            Recovery::Idle | Recovery::Shard { .. } => {}
            Recovery::Abandon(mailing, shards) | Recovery::Mailing(mailing, shards) => pass_both(mailing, shards),
        }
        for importer in &mut self.importers {
            match importer {
                Importer::Idle => {}
                Importer::Insert { held, row }
                | Importer::Checkpoint { held, row }
                | Importer::End { held, progress: row } => {
                    held.until.pass();
                    row.pass();
                }
            }
        }
    }
}

fn pass_both(mailing: &mut Mailing, shards: &mut Shards) {
    mailing.pass();
    shards.own.iter_mut().for_each(Shard::pass);
}

impl Step {
    fn pass(&mut self) {
        match self {
            Self::Decide { row, .. } => row.pass(),
            Self::Claim { row, deadline, .. } => {
                row.pass();
                deadline.pass();
            }
            Self::Call { row, .. } | Self::Settle { row, .. } => row.pass(),
            Self::ReadShards { tally } => tally.next_look.iter_mut().for_each(When::pass),
            Self::EndPass { tally, shards } => {
                tally.next_look.iter_mut().for_each(When::pass);
                shards.own.iter_mut().for_each(Shard::pass);
            }
            Self::Sibling { read, .. } => read.pass(),
            Self::Hold { .. } | Self::Read | Self::Renew | Self::Recount | Self::Release(_) => {}
        }
    }
}

/// Returns the index of the shard with this number.
pub fn at_of(number: u32) -> usize {
    OWN.iter().position(|own| *own == number).expect("a shard with entries")
}
