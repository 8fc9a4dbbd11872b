//! The state of the model: the row, the senders, and the facts, which record what really happened.
//! Also the actions, the flaws of the broken variants, and the names of the properties.

use umavez_domain::channels::email::ses_events::{Kind as EventKind, SesEvent};
use umavez_domain::delivery::{Outcome, State, ThrottleScope, UnknownPolicy, code};
use umavez_domain::mailings::MailingState;
use umavez_domain::time::Timestamp;

use crate::rows::{DeliveryRow, EARLY, GateRows, LATE_DAYS, RowKind, STORED_VERSION, SharedRow, fence_holds, merged};

/// A model of one delivery: its row at the start, and what may happen to it.
pub struct DeliveryModel<R> {
    pub row: R,
    pub gate_rows: GateRows,
    /// How many senders work at the same time, at most two.
    pub senders: usize,
    pub policy: UnknownPolicy,
    pub budget: Budget,
    pub flaw: Option<Flaw>,
}

impl<R: DeliveryRow> DeliveryModel<R> {
    pub fn new(row: R, budget: Budget) -> Self {
        let (gate_rows, policy) = (GateRows::new(), UnknownPolicy::Hold);
        Self { row, gate_rows, senders: 2, policy, budget, flaw: None }
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// What the provider really did with an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RealOutcome {
    #[default]
    NotCalled,
    NotSent,
    Sent,
    /// The provider accepted the attempt, and later refused to send it.
    Rejected,
}

/// What really happened to one attempt, and what was reported about it to the row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    /// How many times the provider was called.
    pub calls: u8,
    pub outcome: RealOutcome,
    /// The policy or an operator allows another attempt, whatever the outcome of this one is.
    pub may_repeat: bool,
    /// The attempt was given up because its sender did not report an outcome.
    pub given_up: bool,
    /// The attempt is over, and its outcome was not reported.
    pub unresolved: bool,
    /// Proof that the attempt was sent has arrived.
    pub proven_sent: bool,
    /// The provider's rejection of the attempt has arrived.
    pub rejection_reported: bool,
    /// An operator declared the delivery sent while the outcome of the attempt was unknown.
    pub declared_sent: bool,
    /// An operator declared the delivery not sent while the outcome of the attempt was unknown.
    pub declared_unsent: bool,
    /// The latest order to send again when the attempt began or was given up.
    pub latest_order: u32,
}

/// The provider's answer to a call, as the sender sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Sent,
    Transient,
    Throttled,
    Permanent,
    TimedOut,
    /// The sender gave up the attempt before the call.
    NotCalled,
}

impl Answer {
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Sent => Outcome::Sent { provider_id: "p".to_owned() },
            Self::Transient => Outcome::Transient { code: code::NOT_CONNECTED },
            Self::Throttled => Outcome::Throttled { retry_after_ms: 1, scope: ThrottleScope::Chat },
            Self::Permanent => Outcome::Permanent { code: code::REJECTED, suppress: false },
            Self::TimedOut => Outcome::Unknown { code: code::TIMED_OUT },
            Self::NotCalled => Outcome::Transient { code: code::NOT_CALLED },
        }
    }
}

/// The data beside the row that a sender reads: the gates, and the orders to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SendContext {
    pub paid: bool,
    pub suppressed: bool,
    pub mailing: MailingState,
    /// The number of the latest order to send failed recipients again.
    pub orders: u32,
    /// The number of the latest order that also includes unknown recipients.
    pub orders_for_unknown: u32,
}

/// A sender between two requests. `H` is always a [`SharedRow`]; as a parameter, it lets the
/// derives require `Hash` and `Eq` of the shared row and not of the row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SenderState<H> {
    Idle,
    /// The sender has read the row and its context.
    Read {
        row: H,
        seen: SendContext,
    },
    /// The reply to the claim was lost, so the sender reads whether the claim was made.
    CheckingClaim {
        row: H,
        /// Whether the claim was made. The sender does not know this.
        made: bool,
    },
    Claimed {
        row: H,
    },
    Called {
        row: H,
        answer: Answer,
    },
}

pub type Sender<R> = SenderState<SharedRow<R>>;

impl<H> SenderState<H> {
    pub fn row_mut(&mut self) -> Option<&mut H> {
        match self {
            Self::Idle => None,
            Self::Read { row, .. }
            | Self::CheckingClaim { row, .. }
            | Self::Claimed { row }
            | Self::Called { row, .. } => Some(row),
        }
    }
}

/// How many times each fault or outside event may still occur.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Answers that the attempt was not sent, but that a later one may succeed.
    pub refusals: u8,
    /// Calls without an answer.
    pub timeouts: u8,
    /// Attempts that the provider accepts and later rejects.
    pub rejections: u8,
    pub crashes: u8,
    /// Attempts that are given up while their sender is alive, because it was frozen for long.
    pub freezes: u8,
    /// Writes of a claim or an outcome whose reply is lost.
    pub lost_replies: u8,
    /// Recoveries that enqueue a queued delivery again.
    pub reenqueues: u8,
    /// Whether the deadline of the delivery may pass (0 or 1).
    pub expiries: u8,
    pub cancels: u8,
    pub resends: u8,
    /// Declarations of an operator that an unknown delivery was sent or not sent.
    pub declarations: u8,
    pub events: u8,
    pub echoes: u8,
    pub suppressions: u8,
    pub payments: u8,
    /// Cancels of the offer that a report of the payment causes.
    pub payment_cancels: u8,
    pub pauses: u8,
    pub mailing_cancels: u8,
}

/// One state of the model. See [`SenderState`] for `H`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorldState<H> {
    pub row: H,
    pub senders: [SenderState<H>; 2],
    /// One fact per attempt, in the order of their numbers.
    pub facts: Vec<Fact>,
    pub context: SendContext,
    /// Whether the deadline of the delivery has passed.
    pub is_late: bool,
    /// What may still happen.
    pub budget: Budget,
    /// A cancel was answered with "in flight". No attempt may begin without a new order.
    pub recalled: bool,
    /// A cancel was answered with "canceled".
    pub canceled: bool,
    /// The first property that a step on the way to this state violated.
    pub violated: Option<&'static str>,
}

pub type World<R> = WorldState<SharedRow<R>>;

/// One step of the model. A `usize` is the index of a sender, a `u32` the number of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Read(usize),
    /// The sender decides on the row that it read, and claims the attempt or ends the delivery.
    Decide(usize),
    /// The reply to the claim is lost. The claim was made (`true`) or did not arrive (`false`).
    ClaimReplyLost(usize, bool),
    CheckClaim(usize),
    Call(usize, RealOutcome, Answer),
    Settle(usize),
    /// The outcome is written and the reply is lost, so the sender writes it again.
    SettleReplyLost(usize),
    Crash(usize),
    Recover,
    /// The deadline of the delivery passes.
    TimePasses,
    Suppress,
    Cancel,
    Resend,
    /// An operator declares that an unknown delivery was sent (`true`) or not (`false`).
    Declare(bool),
    ReceiveEvent(u32, ProviderEvent),
    /// The provider reports our own message in a webhook.
    Echo,
    Pay,
    Pause,
    Resume,
    CancelMailing,
    /// An operator orders to send failed recipients again, with the unknown ones (`true`) or not.
    OrderResend(bool),
}

/// An event that the provider reports about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderEvent {
    Send,
    Delivery,
    Reject,
}

impl ProviderEvent {
    pub fn to_ses_event(self) -> SesEvent {
        let kind = match self {
            Self::Send => EventKind::Send,
            Self::Delivery => EventKind::Delivery,
            Self::Reject => EventKind::Reject,
        };
        SesEvent { kind, at: EARLY, provider_id: "p".to_owned(), message: None, recipients: Vec::new() }
    }
}

/// A deliberate mistake in one of the product's functions or in the writes around them. The checker
/// must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The claim does not check that the row has not changed since it was read.
    ClaimWithoutFence,
    /// The claim does not check that the charges have not changed since they were read.
    ClaimWithoutGate,
    /// A sender whose claim got no reply assumes that the claim was not made.
    LostReplyMeansNotClaimed,
    /// A sender whose claim got no reply assumes that the claim was made.
    LostReplyMeansClaimed,
    /// An outcome settles the attempt under way, even if it belongs to another attempt.
    SettlesAnyAttempt,
    /// An outcome that loses a race against another write is written without a new decision.
    SettlesWithoutNewDecision,
    /// A delivery whose attempt may have been sent ends as failed.
    UnknownEndsAsFailed,
    /// An attempt whose sender is lost counts as not sent.
    LostAttemptIsRetried,
    /// Proof counts only for the last attempt.
    EarlierProofIgnored,
    /// A claim does not record the order that its attempt already follows.
    OrderNotRecorded,
    /// Recovery never runs.
    NoRecovery,
}

impl<R: DeliveryRow> World<R> {
    pub fn now(&self) -> Timestamp {
        if self.is_late { EARLY.plus_days(LATE_DAYS) } else { EARLY }
    }

    pub fn state(&self) -> State {
        self.row.delivery().state
    }

    /// Records that a step violated a property. The first violation is kept.
    pub fn violate(&mut self, property: &'static str) {
        self.violated.get_or_insert(property);
    }

    /// Stores a row without a condition. Copies that senders hold become stale.
    pub fn store(&mut self, row: R) {
        let (before, after) = (self.row.delivery(), row.delivery());
        let is_final = matches!(before.state, State::Canceled | State::Suppressed | State::Expired);
        if is_final && after.state != before.state {
            self.violate(property::FINAL_STATES);
        }
        if R::KIND != RowKind::Recipient && row.version() != STORED_VERSION + 1 {
            self.violate(property::ONE_VERSION_PER_CHANGE);
        }
        for sender in &mut self.senders {
            if let Some(row) = sender.row_mut() {
                *row = row.outdated();
            }
        }
        self.row = SharedRow::new(row, STORED_VERSION);
    }

    /// Writes a change on the condition that the row has not changed since it was read. Returns
    /// `false` if it has.
    pub fn commit(&mut self, before: &R, after: &R) -> bool {
        let is_as_read = fence_holds(&before.fence(), &*self.row);
        if is_as_read {
            self.store(merged(&*self.row, before, after));
        }
        is_as_read
    }

    /// Changes the row by a rule. If the row has changed since it was read as `read`, applies the
    /// rule again, to the stored row.
    pub fn change(&mut self, read: &R, rule: impl Fn(&R) -> Option<R>) {
        match rule(read) {
            Some(after) if self.commit(read, &after) => {}
            None if fence_holds(&read.fence(), &*self.row) => {}
            _ => {
                if let Some(after) = rule(&self.row) {
                    self.store(after);
                }
            }
        }
    }

    pub fn fact(&mut self, attempt: u32) -> &mut Fact {
        &mut self.facts[attempt as usize - 1]
    }

    /// Returns whether a living sender has begun the attempt and has not settled it.
    pub fn has_living_sender(&self, attempt: u32) -> bool {
        self.senders.iter().any(|sender| match sender {
            Sender::CheckingClaim { row, made: true } | Sender::Claimed { row } | Sender::Called { row, .. } => {
                row.delivery().attempt == attempt
            }
            Sender::Idle | Sender::Read { .. } | Sender::CheckingClaim { .. } => false,
        })
    }

    /// Returns whether the provider may still be called for the attempt.
    pub fn may_be_called(&self, attempt: u32) -> bool {
        self.senders.iter().any(|sender| match sender {
            Sender::CheckingClaim { row, made: true } | Sender::Claimed { row } => row.delivery().attempt == attempt,
            _ => false,
        })
    }

    /// Records that a sender that read `seen` began an attempt.
    pub fn record_begin(&mut self, attempt: u32, seen: SendContext) {
        if self.recalled || self.canceled {
            self.violate(property::NO_ATTEMPT_AFTER_CANCEL);
        }
        let gate_is_closed = match R::KIND {
            RowKind::Message => self.context.suppressed,
            RowKind::Offer => self.context.suppressed || self.context.paid,
            // The sender reads the gates of a recipient before each sub-batch. The claim does not
            // check them again.
            RowKind::Recipient => seen.suppressed || seen.mailing != MailingState::Processing,
        };
        if gate_is_closed {
            self.violate(property::NO_ATTEMPT_AFTER_GATE);
        }
        if let Some(last) = self.facts.get((attempt as usize).wrapping_sub(2)).copied() {
            let is_unsent = match last.outcome {
                RealOutcome::NotCalled => !self.may_be_called(attempt - 1),
                RealOutcome::NotSent => true,
                RealOutcome::Sent | RealOutcome::Rejected => false,
            };
            if !is_unsent && !last.may_repeat {
                self.violate(property::BEGINS_AFTER_UNSENT);
            }
        }
        if self.facts.len() < attempt as usize {
            self.facts.push(Fact { latest_order: seen.orders, ..Fact::default() });
        }
    }

    /// Records a call to the provider and what the provider did with it.
    pub fn record_call(&mut self, attempt: u32, outcome: RealOutcome) {
        let (canceled, has_successor) = (self.canceled, self.row.delivery().attempt > attempt);
        let fact = self.fact(attempt);
        fact.calls += 1;
        // After two calls of one attempt, the fact keeps the one that was sent.
        if fact.outcome != RealOutcome::Sent {
            fact.outcome = outcome;
        }
        let (calls, may_repeat, declared_unsent) = (fact.calls, fact.may_repeat, fact.declared_unsent);
        if calls > 1 {
            self.violate(property::ONE_CALL);
        }
        if outcome == RealOutcome::Sent && has_successor && !may_repeat {
            self.violate(property::BEGINS_AFTER_UNSENT);
        }
        if outcome == RealOutcome::Sent && canceled && !declared_unsent {
            self.violate(property::NOT_SENT_AFTER_CANCEL);
        }
    }

    /// Records that a sender reports the answer to its attempt, even if the row ignores the report.
    pub fn record_report(&mut self, attempt: u32, answer: Answer, policy: UnknownPolicy) {
        let is_under_way = self.row.delivery().is_sending(attempt);
        let fact = self.fact(attempt);
        match answer {
            Answer::Sent => (fact.proven_sent, fact.unresolved) = (true, false),
            Answer::TimedOut => {
                fact.unresolved |= is_under_way;
                fact.may_repeat |= policy == UnknownPolicy::Resend;
            }
            _ => fact.unresolved = false,
        }
    }

    /// Returns how many attempts were really sent.
    pub fn sent_count(&self) -> usize {
        self.facts.iter().filter(|fact| fact.outcome == RealOutcome::Sent).count()
    }
}

/// The names of the properties that hold in every state.
pub mod property {
    // A step violates these; the world records the violation.
    pub const ONE_CALL: &str = "an attempt is one call at most";
    pub const BEGINS_AFTER_UNSENT: &str =
        "an attempt begins only if the one before was not sent, or by policy or order";
    pub const NO_ATTEMPT_AFTER_CANCEL: &str = "nothing begins after a cancel was answered, unless by order";
    pub const NO_ATTEMPT_AFTER_GATE: &str = "no attempt begins after its gate was closed";
    pub const FINAL_STATES: &str = "CANCELED, SUPPRESSED and EXPIRED are final";
    pub const ONE_VERSION_PER_CHANGE: &str = "every change increments the version";
    pub const LIVING_SENDER_KEEPS_ATTEMPT: &str = "an attempt whose sender is alive is not given up";
    pub const ORDER_FOLLOWED_ONCE: &str = "an order is followed once, and not by an attempt that began after it";
    pub const NOT_SENT_AFTER_CANCEL: &str = "nothing is sent after it was canceled";

    // A state violates these.
    pub const SENT_WAS_SENT: &str =
        "a SENT delivery was sent, or an operator declared so and no rejection contradicts it";
    pub const UNSENT_WAS_NOT_SENT: &str = "a delivery that ended unsent was not sent, unless an operator declared so";
    pub const PROVEN_IS_SENT: &str =
        "a delivery that is proven to be sent is SENT, or will be when its attempt is over";
    pub const SENT_ONCE: &str = "without an order or a policy it is sent once";
    pub const CANCELED_STAYS_CANCELED: &str = "a delivery whose cancel was confirmed stays CANCELED";
    pub const UNRESOLVED_IN_DOUBT: &str =
        "unless the delivery is known to be sent, every unresolved attempt is in doubt";
    pub const ONLY_UNRESOLVED_IN_DOUBT: &str =
        "unless the delivery is known to be sent, only unresolved attempts are in doubt";
    pub const UNKNOWN_HAS_DOUBT: &str = "an UNKNOWN delivery has an attempt in doubt";
    pub const RECOVERY_FINDS_UNFINISHED: &str = "recovery finds every delivery that is not over, and can move it";
    pub const ONLY_ENDED_REMOVABLE: &str = "exactly the deliveries that are over for good may be removed";
    pub const EVERYTHING_SETTLED: &str = "in the end everything is settled";
    pub const SENT_HAS_TIME: &str = "a SENT delivery has the time at which it was sent";
}
