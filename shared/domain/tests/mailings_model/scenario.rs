//! A scenario: the mailing, the budgets of what may happen to it, the actions, and the flaws of the
//! broken variants.

use crate::world::Answer;

/// A model of one mailing: its recipients, and what may happen to it.
#[derive(Debug, Clone, Copy)]
pub struct MailingModel {
    /// The shard of each recipient, as an index of [`OWN`].
    pub recipients: &'static [usize],
    /// Whether the file is imported at the start. Otherwise the importer begins.
    pub imported: bool,
    pub budget: Budget,
    pub flaw: Option<Flaw>,
}

/// How many times each fault or outside event may still occur.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    /// Steps of time while a worker is in the middle of its work. Its lease ends, and it resumes.
    pub freezes: u8,
    /// Jobs that no worker receives.
    pub losses: u8,
    /// Jobs that are delivered twice.
    pub doubles: u8,
    /// Recoveries of work that only waits in its queue.
    pub spurious: u8,
    /// Turns that end in the middle of a pass, because a sender has no time left.
    pub yields: u8,
    /// Answers that the attempt was not sent, but that a later one may succeed.
    pub refusals: u8,
    /// Answers that the attempt was not sent, and that no later one can succeed.
    pub rejections: u8,
    /// Calls without an answer.
    pub timeouts: u8,
    /// Renewals of a lease while a call is under way.
    pub renewals: u8,
    /// Refusals of the account, which pause the mailing.
    pub holds: u8,
    /// Events of the provider about attempts that were sent.
    pub events: u8,
    pub pauses: u8,
    pub resumes: u8,
    pub cancels: u8,
    /// Orders to send failed entries again, and such orders that include unknown entries.
    pub retries: u8,
    pub retries_unknown: u8,
}

/// One step of the model. The first number is that of a sender, an importer, a job or a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Time,
    /// A sender receives a job. `true` if the queue delivers it once more.
    Receive(usize, usize, bool),
    Work(usize),
    Call(usize, Answer, bool),
    Yield(usize),
    /// A sender renews its lease while its call is under way.
    Renew(usize),
    Crash(usize),
    LoseJob(usize),
    LoseHandOut,
    ReceiveHandOut(bool),
    Enqueuer,
    EnqueuerCrashes,
    RecoverShard(usize),
    RecoverMailing,
    Recovery,
    ReceiveImport(usize, usize),
    Import(usize),
    ImporterCrashes(usize),
    Pause,
    Resume,
    Cancel,
    Retry(bool),
    /// The provider reports that an attempt was sent.
    Event(usize, u32),
}

/// A deliberate mistake in one of the product's functions or in the writes around them. The checker
/// must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The claim does not check that the entry has not changed since it was read.
    ClaimWithoutFence,
    /// A claim does not record the order that its attempt already follows.
    OrderNotRecorded,
    /// An attempt whose sender is lost counts as not sent.
    LostAttemptIsRetried,
    /// The sender reads the mailing only when it begins.
    MailingReadOnce,
    /// The end of a pass does not check that its entries have not changed since they were counted.
    EndIgnoresEvents,
    /// The end of a pass enqueues the next shard in a write of its own.
    HandOverInTwoWrites,
    /// A shard that is released while the mailing is held is never enqueued.
    ReleaseIgnoresResume,
    /// A renewal makes the sender forget that the shard was enqueued during its turn.
    RenewalHidesJob,
    /// A mailing ends although a shard has not followed the latest order.
    EndIgnoresOrders,
    /// A canceled mailing is not handed to its senders.
    CancelWithoutSenders,
    /// Recovery never looks at the mailing itself.
    MailingNotWatched,
    /// Recovery never looks at a shard.
    ShardsNotWatched,
}

impl MailingModel {
    pub fn new(recipients: &'static [usize], budget: Budget) -> Self {
        Self { recipients, imported: true, budget, flaw: None }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}
