//! The state of the model: the course of the conversation, the wake-ups in the queue, the workers
//! and the messages of the replies.

use std::sync::LazyLock;

use umavez_domain::conversations::inbound::{Inbound, MessageKind};
use umavez_domain::conversations::{ConversationRow, Course, Via};
use umavez_domain::delivery::{Delivery, Settled, State, Verdict};
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::time::Timestamp;

pub const NOW: Timestamp = Timestamp::from_seconds(1_000_000);
/// Longer than every wait.
pub const LONG_MS: i64 = 10_000_000;
/// How often the responder is asked about a batch.
const ATTEMPTS: u32 = 2;

#[derive(Debug, Clone, Copy)]
pub struct RepliesModel {
    /// The number of messages that the contact sends.
    pub messages: u8,
    /// The number of parts of each reply.
    pub parts: u32,
    pub budget: Budget,
    pub flaw: Option<Flaw>,
}

/// How many times each fault or outside event may still occur.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Wake-ups that no worker receives, that are delivered twice, or too early.
    pub losses: u8,
    pub doubles: u8,
    pub early: u8,
    pub crashes: u8,
    /// Steps of time while a worker is in the middle of its work.
    pub freezes: u8,
    /// Calls that take as long as the responder may take.
    pub slow: u8,
    /// Answers of the responder: "later", failures, and nothing to say.
    pub later: u8,
    pub problems: u8,
    pub nothing: u8,
    /// Messages of a reply whose outcome is unknown, that fail, and attempts that are not sent.
    pub unknown: u8,
    pub failed: u8,
    pub unsent: u8,
    pub holds: u8,
    pub holds_with_end: u8,
    pub releases: u8,
    /// Releases that leave what came before unanswered.
    pub settles: u8,
    /// Messages of a person.
    pub persons: u8,
}

/// A deliberate mistake. The checker must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    PartLeavesDuringHold,
    ReleaseEndsLease,
    LeaseWithoutMargin,
    UnknownIsRepeated,
    UnneededReplyStaysOpen,
    TurnIgnored,
    HoldWithoutCancel,
    SettlesDuringSending,
    NoRecovery,
}

/// A wake-up in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakeUp {
    pub received: u64,
    /// Whether the queue hides it until later.
    pub later: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Worker {
    Idle,
    /// It has read the row. `is_stale` means that the row has changed since.
    Woken {
        wake: WakeUp,
        read: Course,
        is_stale: bool,
    },
    /// It calls the responder. `frozen` means that it does not know how much time has passed.
    Asking {
        wake: WakeUp,
        batch: u64,
        epoch: u64,
        frozen: bool,
    },
}

/// A message of a reply, with outbound.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Part {
    pub batch: u64,
    pub handed: u32,
    pub part: u32,
    pub delivery: Delivery,
}

/// A batch that has its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Batch {
    pub number: u64,
    pub parts: u32,
    pub finished: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub course: Course,
    /// When recovery looks at the conversation: `true` if it is time.
    pub check: Option<bool>,
    pub queue: Vec<WakeUp>,
    pub workers: [Worker; 2],
    pub parts: Vec<Part>,
    pub batches: Vec<Batch>,
    pub left: u8,
    pub budget: Budget,
    /// The batch for which the responder promised a later answer.
    pub promised: Option<u64>,
    /// The number of the last message that a person answered, and that a release settled.
    pub by_person: u64,
    pub by_release: u64,
    /// A hold was answered: nothing leaves from now on.
    pub hold_answered: bool,
    pub was_stuck: bool,
    pub released: bool,
    /// The first property that a step on the way to this state violated.
    pub violated: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Time,
    Message,
    /// A person writes. `true` if the message was written before all others, and arrives late.
    Person(bool),
    /// A worker receives a wake-up. `true` if the queue delivers it once more.
    Receive(usize, usize, bool),
    Lose(usize),
    Work(usize),
    Answer(usize, Answer),
    Slow(usize),
    Crash(usize),
    Callback,
    Begin,
    End(State),
    NotSent,
    Hold(bool),
    /// The second half of a hold or of a person's message: cancels the reply that is not sent yet.
    CancelReply,
    /// `true` if the bot answers the messages that came before.
    Release(bool),
    Recover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Reply,
    Nothing,
    Later,
    Problem,
}

pub static INSTANCE: LazyLock<InstanceRow> =
    LazyLock::new(|| InstanceRow { responder_attempts: ATTEMPTS, ..InstanceRow::by_default(Via::Whatsapp, "a", NOW) });

static BASE: LazyLock<ConversationRow> =
    LazyLock::new(|| ConversationRow::new(Via::Whatsapp, "a", "5511912345678", NOW));

pub fn inbound(from_me: bool, sent_at: Timestamp) -> Inbound {
    Inbound {
        contact: "5511912345678".into(),
        message_id: "a".into(),
        from_me,
        by_gateway: false,
        kind: MessageKind::Text,
        text: None,
        media: None,
        name: None,
        sent_at: Some(sent_at),
    }
}

impl RepliesModel {
    pub fn new(messages: u8, budget: Budget) -> Self {
        Self { messages, parts: 1, budget, flaw: None }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

impl World {
    pub fn violate(&mut self, property: &'static str) {
        self.violated.get_or_insert(property);
    }

    pub fn row(&self) -> ConversationRow {
        let at = |is_over: bool| if is_over { NOW.millis() } else { NOW.plus_ms(1).millis() };
        ConversationRow { course: self.course.clone(), check_at: self.check.map(at), version: 1, ..BASE.clone() }
    }

    /// Puts a wake-up into the queue. Two that say the same are one.
    pub fn wake(&mut self, received: u64, not_before: Option<i64>) {
        self.queue.push(WakeUp { received, later: not_before.is_some_and(|at| at > NOW.millis()) });
        self.queue.sort_unstable();
        self.queue.dedup();
    }

    /// Returns the message of a reply that is not settled.
    pub fn on_its_way(&mut self) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| !part.delivery.state.is_settled())
    }

    /// Settles the attempt under way. If it is the last one, the message wakes the conversation.
    pub fn settle_part(&mut self, verdict: &Verdict) -> Option<()> {
        let delivery = &mut self.on_its_way()?.delivery;
        let Settled::Now(next) = delivery.settled(delivery.attempt, verdict, NOW) else { return None };
        *delivery = Delivery { reason: None, sent_at: None, provider_id: None, not_before: None, ..next };
        if delivery.state.is_settled() {
            self.wake(self.course.received, None);
        }
        Some(())
    }

    /// Lets time pass: every wait, every lease and every hold with an end is over.
    pub fn pass_time(&mut self) {
        let is_over = |at: &mut i64| *at = (*at).min(NOW.millis());
        let long_ago = |at: &mut i64| *at = NOW.plus_ms(-LONG_MS).millis();
        let pass = |course: &mut Course| {
            course.lease_until.iter_mut().for_each(is_over);
            course.not_before.iter_mut().for_each(is_over);
            course.hold.iter_mut().filter_map(|hold| hold.until.as_mut()).for_each(is_over);
            for since in
                [&mut course.pending_since, &mut course.last_at, &mut course.last_sent_at, &mut course.batch_since]
            {
                since.iter_mut().for_each(long_ago);
            }
        };
        pass(&mut self.course);
        self.check = self.check.map(|_| true);
        self.queue.iter_mut().for_each(|wake| wake.later = false);
        self.queue.sort_unstable();
        self.queue.dedup();
        for worker in &mut self.workers {
            match worker {
                Worker::Idle => {}
                Worker::Woken { read, .. } => pass(read),
                Worker::Asking { frozen, .. } => *frozen = true,
            }
        }
    }
}
