//! Checks the delivery protocol in every interleaving of small worlds: a message, an offer or a
//! recipient of a mailing; two senders that may crash, or freeze and resume; a provider that sends
//! or does not send, and answers or does not answer; recovery; an operator; and events of the
//! provider that arrive late, twice and in any order. The product's own functions decide every
//! step.
//!
//! A step is the part of an operation between two requests. A sender reads, claims on the fence of
//! the row that it read, calls, and settles. Where the product reads a row, decides, and on a
//! conflict decides again on the row that won (outcomes, cancels, orders, events), that is one step
//! here, because only the row at the commit counts. Time is not counted: a sender comes when the
//! wait is over, and recovery may come as soon as an attempt has begun.
//!
//! The world records the real events beside the row, in [`Fact`]s; the properties compare the two.
//! `DEDUPED` does not occur: a message that is deduplicated at acceptance is never delivered.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use umavez_domain::change::{Fence, Row};
use umavez_domain::channels::Channel;
use umavez_domain::channels::email::ses_events::{Kind as EventKind, SesEvent};
use umavez_domain::codes::Decision;
use umavez_domain::delivery::{
    Cancel, Claim, Delivered, Delivery, Gate, MAX_ATTEMPTS, NextStep, Outcome, Recovery, Settled, State, ThrottleScope,
    UnknownPolicy, Verdict, Window, code,
};
use umavez_domain::downsells::charges::{self, Charge, ChargeChange, OpenCharge};
use umavez_domain::downsells::{
    CancelReason, ChargesRow, ClosedGate, DownsellRow, OfferEnd, OfferId, OfferRow, OfferStatus, TransactionRow,
    Trigger,
};
use umavez_domain::keys::Wake;
use umavez_domain::mailings::{
    EntryNext, EntryState, MailingEntryRow, MailingEvent, MailingState, Move, move_mailing, next_of_entry,
};
use umavez_domain::messages::ledger::LedgerEntry;
use umavez_domain::messages::{MessageRow, Resend};
use umavez_domain::queue::{self, Priority};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::time::Timestamp;
use umavez_domain::work::Work;

const EARLY: Timestamp = Timestamp::from_seconds(1_000_000);
/// No attempt begins after this. A charge is open for longer.
const NOT_AFTER_DAYS: i64 = 5;
const LATE_DAYS: i64 = 10;
const KEEP_DAYS: i64 = 90;
/// The stored row has the version `STORED`, and every older row has the version `STALE`. Nothing
/// else about versions matters.
const STORED: u64 = 2;
const STALE: u64 = 1;

// ---- The rows ----

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Offer,
    Recipient,
}

/// The functions that the three kinds of rows share. Each calls the product's function.
trait Subject: Row + Delivered + PartialEq + fmt::Debug + Send + Sync + 'static {
    const KIND: Kind;
    fn version(&self) -> u64;
    /// Clears the fields that no rule of this world reads: they would only make several states out
    /// of one.
    fn bare(self, version: u64) -> Self;
    fn digest(&self) -> u64;
    fn window(&self) -> Window;
    /// Returns the id of the row in the index by time, and its work there. `None` for a recipient,
    /// which senders find through its shard.
    fn work(&self) -> Option<(&str, &Work)>;
    /// Returns whether the store may remove the row when it expires.
    fn is_removable(&self) -> bool;
    fn claim(&self, claim: &Claim, order: u32, now: Timestamp) -> Option<Self>;
    fn judge(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict;
    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self>;
    fn end(&self, state: State, now: Timestamp) -> Option<Self>;
    fn recover(&self, policy: UnknownPolicy, now: Timestamp) -> Option<Self>;
    /// Returns the conditions for the beginning of an attempt.
    fn gates(&self, _charges: &ChargesRow) -> Vec<Gate> {
        Vec::new()
    }
    /// Returns the row of an offer that may not be sent, and whether the charges are the reason.
    fn closed(&self, _shop: &Shop, _paid: bool, _now: Timestamp) -> Option<(Self, bool)> {
        None
    }
    /// Returns the last order to send again that the row followed.
    fn order(&self) -> u32 {
        0
    }
    /// Gives up the attempt of a recipient.
    fn lose(&self, _order: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    fn confirm(&self, _attempt: u32, _now: Timestamp) -> Settled<Self> {
        Settled::TooLate
    }
    fn apply(&self, _event: &SesEvent, _attempt: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    fn recall(&self, _now: Timestamp) -> (Cancel, Option<Self>) {
        (Cancel::Ended, None)
    }
    fn resend(&self, _order: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    fn declare(&self, _was_sent: bool, _now: Timestamp) -> Option<Self> {
        None
    }
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn bare_work(work: Work) -> Work {
    Work { emit: None, later: None, emits: 0, recoveries: 0, ..work }
}

fn recovered<R>(recovery: Recovery<R>) -> Option<R> {
    match recovery {
        Recovery::Emitted(row) | Recovery::GivenUp(row) => Some(row),
        Recovery::Nothing => None,
    }
}

impl Subject for MessageRow {
    const KIND: Kind = Kind::Message;

    fn version(&self) -> u64 {
        self.version
    }

    fn bare(self, version: u64) -> Self {
        let work = bare_work(self.work);
        Self { work, version, ledger: Vec::new(), resends: Vec::new(), updated_at: EARLY, ..self }
    }

    fn digest(&self) -> u64 {
        digest(&(&self.delivery, &self.marks, &self.work, self.version, self.expires_at))
    }

    fn window(&self) -> Window {
        self.window()
    }

    fn work(&self) -> Option<(&str, &Work)> {
        Some((self.id.as_str(), &self.work))
    }

    fn is_removable(&self) -> bool {
        self.expires_at.is_some()
    }

    fn claim(&self, claim: &Claim, _order: u32, now: Timestamp) -> Option<Self> {
        self.claimed(claim, now)
    }

    fn judge(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict {
        self.delivery.verdict(self.window(), outcome, policy, now, 0)
    }

    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, verdict, now, KEEP_DAYS)
    }

    fn end(&self, state: State, now: Timestamp) -> Option<Self> {
        self.ended(state, &LedgerEntry::new(now, Decision::Expired), now, KEEP_DAYS)
    }

    fn recover(&self, policy: UnknownPolicy, now: Timestamp) -> Option<Self> {
        recovered(self.recovered(policy, now, 0, KEEP_DAYS))
    }

    fn gates(&self, _charges: &ChargesRow) -> Vec<Gate> {
        self.gates(&self.sender)
    }

    fn confirm(&self, attempt: u32, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, &Verdict::Sent { provider_id: "echo".to_owned() }, now, KEEP_DAYS)
    }

    fn apply(&self, event: &SesEvent, attempt: u32, now: Timestamp) -> Option<Self> {
        self.of_event(event, attempt, now, KEEP_DAYS).map(|(row, _)| row)
    }

    fn recall(&self, now: Timestamp) -> (Cancel, Option<Self>) {
        self.cancel(now, KEEP_DAYS)
    }

    fn resend(&self, _order: u32, now: Timestamp) -> Option<Self> {
        let order = Resend { key: String::new(), body: String::new(), after: self.delivery.attempt };
        self.resent(order, None, now).filter(|_| !self.window().is_over(now))
    }

    fn declare(&self, was_sent: bool, now: Timestamp) -> Option<Self> {
        self.declared(was_sent, now, KEEP_DAYS)
    }
}

impl Subject for OfferRow {
    const KIND: Kind = Kind::Offer;

    fn version(&self) -> u64 {
        self.version
    }

    fn bare(self, version: u64) -> Self {
        let work = bare_work(self.work);
        Self { work, version, last_attempt_at: None, late_ms: None, enqueued: true, updated_at: EARLY, ..self }
    }

    fn digest(&self) -> u64 {
        digest(&(&self.delivery, &self.work, self.version, self.status, self.cancel_reason, self.expires_at))
    }

    fn window(&self) -> Window {
        self.window()
    }

    fn work(&self) -> Option<(&str, &Work)> {
        Some((self.id.as_str(), &self.work))
    }

    fn is_removable(&self) -> bool {
        self.expires_at.is_some()
    }

    fn claim(&self, claim: &Claim, _order: u32, now: Timestamp) -> Option<Self> {
        self.claimed(claim, now)
    }

    fn judge(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict {
        self.delivery.verdict(self.window(), outcome, policy, now, 0)
    }

    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, verdict, now, KEEP_DAYS)
    }

    fn end(&self, state: State, now: Timestamp) -> Option<Self> {
        let end = if state == State::Expired { OfferEnd::Expired } else { OfferEnd::Skipped(CancelReason::Blocked) };
        self.ended(end, now, KEEP_DAYS)
    }

    fn recover(&self, policy: UnknownPolicy, now: Timestamp) -> Option<Self> {
        recovered(self.recovered(policy, now, 0, KEEP_DAYS))
    }

    fn gates(&self, charges: &ChargesRow) -> Vec<Gate> {
        self.gates(Some(charges), "-")
    }

    fn closed(&self, shop: &Shop, paid: bool, now: Timestamp) -> Option<(Self, bool)> {
        let charges = Some(&shop.charges[usize::from(paid)]);
        match self.gate(Some(&shop.bot), Some(&shop.downsell), charges, now) {
            None => None,
            Some(ClosedGate::Ends(end)) => Some((self.ended(end, now, KEEP_DAYS)?, end.rests_on_charges())),
            Some(ClosedGate::PassedOn(_)) => panic!("there is one charge"),
        }
    }

    fn recall(&self, now: Timestamp) -> (Cancel, Option<Self>) {
        self.cancel(CancelReason::Paid, now, KEEP_DAYS)
    }

    fn declare(&self, was_sent: bool, now: Timestamp) -> Option<Self> {
        self.declared(was_sent, now, KEEP_DAYS)
    }
}

impl Subject for MailingEntryRow {
    const KIND: Kind = Kind::Recipient;

    fn version(&self) -> u64 {
        0
    }

    fn bare(self, _version: u64) -> Self {
        Self { last_attempt: None, ..self }
    }

    fn digest(&self) -> u64 {
        digest(&(&self.delivery, &self.marks, self.retried))
    }

    fn window(&self) -> Window {
        Window::default()
    }

    fn work(&self) -> Option<(&str, &Work)> {
        None
    }

    fn is_removable(&self) -> bool {
        self.delivery.state.is_settled() && self.delivery.state != State::Unknown
    }

    fn claim(&self, claim: &Claim, order: u32, now: Timestamp) -> Option<Self> {
        self.claimed(claim, order, now)
    }

    fn judge(&self, outcome: Outcome, _policy: UnknownPolicy, now: Timestamp) -> Verdict {
        self.verdict(outcome, now, 0)
    }

    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, verdict, now)
    }

    fn end(&self, state: State, _now: Timestamp) -> Option<Self> {
        self.ended(state, "-")
    }

    /// A sender that processes the shard recovers a recipient, so recovery does nothing here.
    fn recover(&self, _policy: UnknownPolicy, _now: Timestamp) -> Option<Self> {
        None
    }

    fn order(&self) -> u32 {
        self.retried
    }

    fn lose(&self, order: u32, now: Timestamp) -> Option<Self> {
        self.lost(order, now)
    }

    fn apply(&self, event: &SesEvent, attempt: u32, _now: Timestamp) -> Option<Self> {
        self.of_event(event, attempt).map(|(row, _)| row)
    }

    fn resend(&self, order: u32, _now: Timestamp) -> Option<Self> {
        self.sent_again(order)
    }
}

const MESSAGE: &str = "msg_00000000000000000000000000000001";

fn message() -> MessageRow {
    let row = json!({
        "id": MESSAGE, "caller": "-", "body_hash": "-", "channel": Channel::Email, "sender": "-", "to": "-",
        "priority": Priority::Shot, "state": State::Queued, "not_after": EARLY.plus_days(NOT_AFTER_DAYS),
        "recipient": "-", "asked_at": "-", "ledger": [], "created_at": EARLY, "updated_at": EARLY, "version": STORED,
    });
    let mut row: MessageRow = serde_json::from_value(row).expect("a row");
    let id = row.id.clone();
    row.work.schedule(MESSAGE, None, EARLY, |seq, at| queue::emit_message(&id, Priority::Shot, seq, at));
    row
}

const BOT: &str = "loja";
const PERSON: i64 = 7;
const CHARGE: Charge<'static> = Charge { bot: BOT, telegram_id: PERSON, transaction_id: "t1" };

fn offer() -> OfferRow {
    let mut row = OfferRow {
        id: OfferId::of("e"),
        event_id: "e".to_owned(),
        bot: BOT.to_owned(),
        telegram_id: PERSON,
        downsell_id: 1,
        trigger: Trigger::Pix,
        transaction_id: Some(CHARGE.transaction_id.to_owned()),
        passed_from: Vec::new(),
        scheduled_at: EARLY,
        not_after: EARLY.plus_days(NOT_AFTER_DAYS),
        status: OfferStatus::Pending,
        cancel_reason: None,
        meta: None,
        correlation_id: String::new(),
        pay_epoch: 0,
        delivery: Delivery::default(),
        work: Work::default(),
        last_attempt_at: None,
        late_ms: None,
        enqueued: true,
        unknown: false,
        listed: String::new(),
        listed_at: String::new(),
        created_at: EARLY,
        updated_at: EARLY,
        version: STORED,
        expires_at: None,
    };
    let (contact, id) = (row.contact(), row.id.clone());
    row.work.schedule(id.as_str(), None, EARLY, |seq, at| queue::emit_offer(&contact, &id, seq, at));
    row
}

fn recipient() -> MailingEntryRow {
    MailingEntryRow {
        pk: "-".to_owned(),
        sk: "-".to_owned(),
        email: "-".to_owned(),
        line: 1,
        variables: Default::default(),
        delivery: Delivery::default(),
        marks: Default::default(),
        retried: 0,
        last_attempt: None,
    }
}

/// The rows that an offer's gate checks. `charges` are those before and after the payment.
struct Shop {
    bot: BotRow,
    downsell: DownsellRow,
    charges: [ChargesRow; 2],
}

impl Shop {
    fn new() -> Self {
        let open = OpenCharge { made_at: EARLY.millis(), until: EARLY.plus_days(2 * LATE_DAYS).millis() };
        let none = ChargesRow::none(BOT, PERSON, EARLY);
        let unknown = TransactionRow::unknown(CHARGE.transaction_id, EARLY);
        let ChargeChange::Both { charges: unpaid, transaction } =
            charges::created(&none, &unknown, &CHARGE, open, EARLY)
        else {
            panic!("a new charge")
        };
        let ChargeChange::Both { charges: paid, .. } = charges::paid(&unpaid, &transaction, &CHARGE, EARLY) else {
            panic!("a payment")
        };
        let body = json!({"name": "-", "content": {"text": "?"}, "delay_minutes": 0, "after_pix": true});
        let downsell = DownsellRow::read(BOT, body.as_object().expect("an object"), EARLY).expect("a downsell");
        let bot = BotRow::read(json!({"slug": BOT}).as_object().expect("an object"), EARLY).expect("a bot");
        Self { bot, downsell: DownsellRow { id: 1, ..downsell }, charges: [*unpaid, *paid] }
    }
}

/// A row as it is stored or was read. Its hash is computed once, because thousands of states share
/// the row.
struct Held<R>(Arc<(R, u64)>);

impl<R: Subject> Held<R> {
    fn of(row: R, version: u64) -> Self {
        let row = row.bare(version);
        let digest = row.digest();
        Self(Arc::new((row, digest)))
    }

    /// Returns the same row after another writer has changed the stored row.
    fn outdated(&self) -> Self {
        if self.version() < STORED { self.clone() } else { Self::of(self.0.0.clone(), STALE) }
    }
}

impl<R> Clone for Held<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Deref for Held<R> {
    type Target = R;
    fn deref(&self) -> &R {
        &self.0.0
    }
}

impl<R> Hash for Held<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.1);
    }
}

impl<R> PartialEq for Held<R> {
    fn eq(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

impl<R> Eq for Held<R> {}

impl<R: fmt::Debug> fmt::Debug for Held<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

fn attributes(row: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(row) {
        Ok(Value::Object(attributes)) => attributes,
        other => panic!("a row has attributes: {other:?}"),
    }
}

/// Returns whether the store accepts a write on this condition.
fn holds<R: Subject>(fence: &Fence, stored: &R) -> bool {
    match fence {
        Fence::Absent => false,
        Fence::Version(version) => stored.version() == *version,
        Fence::Same(parts) => {
            let stored = attributes(stored);
            parts.iter().all(|(name, value)| stored.get(name).unwrap_or(&Value::Null) == value)
        }
    }
}

/// Returns the stored row after a write of the differences between `before` and `after`.
fn written<R: Subject>(stored: &R, before: &R, after: &R) -> R {
    if stored == before {
        return after.clone();
    }
    let (mut row, before, after) = (attributes(stored), attributes(before), attributes(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names.into_iter().filter(|name| before.get(*name) != after.get(*name)) {
        match after.get(name) {
            Some(value) => row.insert(name.clone(), value.clone()),
            None => row.remove(name),
        };
    }
    serde_json::from_value(Value::Object(row)).expect("a row")
}

// ---- The world ----

/// What the provider really did with an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Fate {
    #[default]
    NotCalled,
    NotSent,
    Sent,
    /// The provider accepted the attempt, and later refused to send it.
    Rejected,
}

/// What really happened to one attempt, and what was reported about it to the row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Fact {
    calls: u8,
    fate: Fate,
    /// The policy or an operator ordered another attempt, whatever the outcome of this one is.
    licensed: bool,
    /// The attempt was given up because its sender did not report an outcome.
    lost: bool,
    /// The attempt is over, and its outcome was not reported.
    unresolved: bool,
    /// Proof that the attempt was sent was delivered.
    proven: bool,
    /// The provider's rejection of the attempt was delivered.
    rejected: bool,
    /// An operator declared the attempt sent (`vouched`) or not sent (`written_off`) while its
    /// outcome was unknown.
    vouched: bool,
    written_off: bool,
    /// The latest order to send again when the attempt began or was given up.
    order: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Sent,
    Transient,
    Throttled,
    Permanent,
    Nothing,
    /// The sender gave up the attempt before the call.
    NotCalled,
}

impl Answer {
    fn outcome(self) -> Outcome {
        match self {
            Self::Sent => Outcome::Sent { provider_id: "p".to_owned() },
            Self::Transient => Outcome::Transient { code: code::NOT_CONNECTED },
            Self::Throttled => Outcome::Throttled { retry_after_ms: 1, scope: ThrottleScope::Chat },
            Self::Permanent => Outcome::Permanent { code: code::REJECTED, suppress: false },
            Self::Nothing => Outcome::Unknown { code: code::TIMED_OUT },
            Self::NotCalled => Outcome::Transient { code: code::NOT_CALLED },
        }
    }
}

/// The other data that a sender read: the gate, and the orders to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Around {
    paid: bool,
    suppressed: bool,
    mailing: MailingState,
    orders: u32,
    /// The last order that also includes unknown recipients.
    orders_unknown: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SenderOf<H> {
    Idle,
    Read {
        row: H,
        seen: Around,
    },
    /// The reply to the claim was lost: the sender asks whether the claim was made.
    Asking {
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

type Sender<R> = SenderOf<Held<R>>;

impl<H> SenderOf<H> {
    fn row_mut(&mut self) -> Option<&mut H> {
        match self {
            Self::Idle => None,
            Self::Read { row, .. } | Self::Asking { row, .. } | Self::Claimed { row } | Self::Called { row, .. } => {
                Some(row)
            }
        }
    }
}

/// How many times each event may still occur.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Left {
    /// Answers that the attempt was not sent and that a later one may succeed.
    refusals: u8,
    /// Calls without an answer.
    silences: u8,
    /// Attempts that the provider accepts and later rejects.
    rejections: u8,
    deaths: u8,
    /// Recoveries while the sender of the attempt is alive, because it was frozen for a long time.
    freezes: u8,
    lost_replies: u8,
    /// Recoveries that enqueue a queued delivery again.
    handovers: u8,
    /// Whether the latest time to send may pass.
    lateness: u8,
    cancels: u8,
    resends: u8,
    /// Declarations of an operator about an unknown delivery.
    words: u8,
    events: u8,
    echoes: u8,
    suppressions: u8,
    payments: u8,
    /// Cancels of the offer by the payment.
    tellings: u8,
    pauses: u8,
    mailing_cancels: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WorldOf<H> {
    row: H,
    senders: [SenderOf<H>; 2],
    facts: Vec<Fact>,
    around: Around,
    late: bool,
    left: Left,
    /// A cancel was answered while an attempt was in flight: no attempt may begin without an order.
    recalled: bool,
    /// A cancel was answered with "canceled".
    canceled: bool,
    /// The first property that a step on the way to this state violated.
    broken: Option<&'static str>,
}

type World<R> = WorldOf<Held<R>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Read(usize),
    Decide(usize),
    /// The reply to the claim is lost, after the claim was made or before.
    LoseReply(usize, bool),
    Ask(usize),
    Call(usize, Fate, Answer),
    Settle(usize),
    /// The outcome is written and the reply is lost, so the sender writes it again.
    SettleReplyLost(usize),
    Die(usize),
    Recover,
    TimePasses,
    Suppress,
    Cancel,
    Resend,
    Declare(bool),
    Event(u32, EventName),
    Echo,
    Pay,
    Pause,
    Resume,
    CancelMailing,
    /// An order to send failed recipients again, with or without the unknown ones.
    Order(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum EventName {
    Send,
    Delivery,
    Reject,
}

impl EventName {
    fn event(self) -> SesEvent {
        let kind = match self {
            Self::Send => EventKind::Send,
            Self::Delivery => EventKind::Delivery,
            Self::Reject => EventKind::Reject,
        };
        SesEvent { kind, at: EARLY, provider_id: "p".to_owned(), message: None, recipients: Vec::new() }
    }
}

/// A mistake in one of the product's functions, or in the writes around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    ClaimWithoutFence,
    /// The claim does not check that the charges have not changed since they were read.
    ClaimWithoutGate,
    LostReplyTakenForNotClaimed,
    LostReplyTakenForClaimed,
    /// An outcome settles the attempt under way, even if it belongs to another attempt.
    SettlesAnyAttempt,
    /// An outcome that loses a race against another write is written without a new decision.
    DecidesOnce,
    /// A delivery whose attempt may have been sent ends as failed.
    DoubtFails,
    /// An attempt whose sender is lost counts as not sent.
    LostIsRetried,
    /// Proof counts only for the last attempt.
    EarlierProofIgnored,
    /// A claim does not record the order that it already follows.
    OrderNotRecorded,
    NobodyRecovers,
}

struct Small<R> {
    row: R,
    shop: Shop,
    senders: usize,
    policy: UnknownPolicy,
    left: Left,
    flaw: Option<Flaw>,
}

const ONE_CALL: &str = "an attempt is one call at most";
const BEGUN: &str = "an attempt begins only if the one before was not sent, or by policy or order";
const RECALL: &str = "nothing is begun after a cancel was answered, unless by order";
const GATED: &str = "nothing is begun after its gate was closed";
const FINAL: &str = "what ended unsent for good stays so";
const VERSION: &str = "every change has a version of its own";
const NEEDLESS: &str = "an attempt whose sender lives is not given up";
const ORDERED: &str = "an order is followed once, and not by an attempt that began after it";
const AFTER_CANCEL: &str = "nothing is sent after it was canceled";

impl<R: Subject> World<R> {
    fn now(&self) -> Timestamp {
        if self.late { EARLY.plus_days(LATE_DAYS) } else { EARLY }
    }

    fn state(&self) -> State {
        self.row.delivery().state
    }

    fn breaks(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }

    /// Stores a row without a condition.
    fn store(&mut self, row: R) {
        let (before, after) = (self.row.delivery(), row.delivery());
        let is_final = matches!(before.state, State::Canceled | State::Suppressed | State::Expired);
        if is_final && after.state != before.state {
            self.broken.get_or_insert(FINAL);
        }
        if R::KIND != Kind::Recipient && row.version() != STORED + 1 {
            self.breaks(VERSION);
        }
        for sender in &mut self.senders {
            if let Some(row) = sender.row_mut() {
                *row = row.outdated();
            }
        }
        self.row = Held::of(row, STORED);
    }

    /// Commits one change on the fence of the row that was read. Returns `false` if the row has
    /// changed.
    fn commit(&mut self, before: &R, after: &R) -> bool {
        let is_as_read = holds(&before.fence(), &*self.row);
        if is_as_read {
            self.store(written(&*self.row, before, after));
        }
        is_as_read
    }

    /// Changes the row by a rule. If the row has changed since it was read, applies the rule again
    /// to the stored row.
    fn change(&mut self, start: &R, rule: impl Fn(&R) -> Option<R>) {
        match rule(start) {
            Some(after) if self.commit(start, &after) => {}
            None if holds(&start.fence(), &*self.row) => {}
            _ => {
                if let Some(after) = rule(&self.row) {
                    self.store(after);
                }
            }
        }
    }

    fn fact(&mut self, attempt: u32) -> &mut Fact {
        &mut self.facts[attempt as usize - 1]
    }

    /// Returns whether a living sender has begun the attempt and has not settled it.
    fn is_in_hand(&self, attempt: u32) -> bool {
        self.senders.iter().any(|sender| match sender {
            Sender::Asking { row, made: true } | Sender::Claimed { row } | Sender::Called { row, .. } => {
                row.delivery().attempt == attempt
            }
            Sender::Idle | Sender::Read { .. } | Sender::Asking { .. } => false,
        })
    }

    /// Returns whether the provider may still be called for the attempt.
    fn may_be_called(&self, attempt: u32) -> bool {
        self.senders.iter().any(|sender| match sender {
            Sender::Asking { row, made: true } | Sender::Claimed { row } => row.delivery().attempt == attempt,
            _ => false,
        })
    }

    /// Records that a sender that read `seen` began an attempt.
    fn begun(&mut self, attempt: u32, seen: Around) {
        if self.recalled || self.canceled {
            self.breaks(RECALL);
        }
        let gate_is_closed = match R::KIND {
            Kind::Message => self.around.suppressed,
            Kind::Offer => self.around.suppressed || self.around.paid,
            // The sender reads the gate of a mailing before each sub-batch, and not again in the
            // claim.
            Kind::Recipient => seen.suppressed || seen.mailing != MailingState::Processing,
        };
        if gate_is_closed {
            self.breaks(GATED);
        }
        if let Some(last) = self.facts.get((attempt as usize).wrapping_sub(2)).copied() {
            let is_unsent = match last.fate {
                Fate::NotCalled => !self.may_be_called(attempt - 1),
                Fate::NotSent => true,
                Fate::Sent | Fate::Rejected => false,
            };
            if !is_unsent && !last.licensed {
                self.breaks(BEGUN);
            }
        }
        if self.facts.len() < attempt as usize {
            self.facts.push(Fact { order: seen.orders, ..Fact::default() });
        }
    }

    fn call(&mut self, attempt: u32, fate: Fate) {
        let (canceled, is_old) = (self.canceled, self.row.delivery().attempt > attempt);
        let fact = self.fact(attempt);
        fact.calls += 1;
        // If there are two calls, the fact keeps the one that was sent.
        if fact.fate != Fate::Sent {
            fact.fate = fate;
        }
        let (calls, licensed, written_off) = (fact.calls, fact.licensed, fact.written_off);
        if calls > 1 {
            self.breaks(ONE_CALL);
        }
        if fate == Fate::Sent && is_old && !licensed {
            self.breaks(BEGUN);
        }
        if fate == Fate::Sent && canceled && !written_off {
            self.breaks(AFTER_CANCEL);
        }
    }

    /// Records how a sender reports the end of its attempt, whatever the row does with the report.
    fn heard(&mut self, attempt: u32, answer: Answer, policy: UnknownPolicy) {
        let is_under_way = self.row.delivery().is_sending(attempt);
        let fact = self.fact(attempt);
        match answer {
            Answer::Sent => (fact.proven, fact.unresolved) = (true, false),
            Answer::Nothing => {
                fact.unresolved |= is_under_way;
                fact.licensed |= policy == UnknownPolicy::Resend;
            }
            _ => fact.unresolved = false,
        }
    }

    fn really_sent(&self) -> usize {
        self.facts.iter().filter(|fact| fact.fate == Fate::Sent).count()
    }
}

impl<R: Subject> Small<R> {
    fn new(row: R, left: Left) -> Self {
        let (shop, policy) = (Shop::new(), UnknownPolicy::Hold);
        Self { row, shop, senders: 2, policy, left, flaw: None }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Returns whether the attempt under way may be given up.
    fn may_be_given_up(&self, world: &World<R>) -> bool {
        let delivery = world.row.delivery();
        delivery.state == State::Sending && (world.left.freezes > 0 || !world.is_in_hand(delivery.attempt))
    }

    /// Records that the attempt was given up, because its sender crashed or was frozen for a long
    /// time.
    fn given_up(&self, world: &mut World<R>, attempt: u32) {
        let is_frozen = world.is_in_hand(attempt);
        world.left.freezes = world.left.freezes.saturating_sub(u8::from(is_frozen));
        if (self.left.freezes, world.left.deaths) == (0, self.left.deaths) {
            world.breaks(NEEDLESS);
        }
        let fact = world.fact(attempt);
        (fact.lost, fact.unresolved) = (true, true);
        fact.licensed |= self.policy == UnknownPolicy::Resend;
    }

    /// Returns whether a sender that reads now has anything to do.
    fn is_work(&self, world: &World<R>) -> bool {
        let state = world.state();
        if R::KIND != Kind::Recipient {
            return state == State::Queued;
        }
        let Around { mailing, orders, orders_unknown, .. } = world.around;
        let is_held = matches!(mailing, MailingState::Paused | MailingState::Completed);
        let followed = world.row.order();
        !is_held
            && match state {
                State::Queued => true,
                State::Sending => self.may_be_given_up(world),
                State::Failed => orders > followed,
                State::Unknown => orders_unknown > followed,
                _ => false,
            }
    }

    /// Lets a sender decide on the rows that it read. Returns the claim to make, or `None` if there
    /// is none.
    fn decided(&self, world: &mut World<R>, n: usize) -> Option<(Held<R>, R, Around)> {
        let Sender::Read { row, seen } = std::mem::replace(&mut world.senders[n], Sender::Idle) else { return None };
        let (now, due) = (world.now(), world.now().plus_days(1));
        let attempt = match R::KIND {
            Kind::Message | Kind::Offer => match row.delivery().next(row.window(), due) {
                NextStep::Claim { attempt } => attempt,
                NextStep::Wait { .. } => panic!("no wait is longer than a day"),
                NextStep::Expire => {
                    let after = row.end(State::Expired, now)?;
                    world.commit(&row, &after);
                    return None;
                }
                NextStep::Leave => return None,
            },
            Kind::Recipient => return self.decided_in_shard(world, n, row, seen),
        };
        if let Some((after, by_charges)) = row.closed(&self.shop, seen.paid, now) {
            if !by_charges || seen.paid == world.around.paid {
                world.commit(&row, &after);
            }
            return None;
        }
        self.claims(n, row, attempt, seen, now)
    }

    fn decided_in_shard(
        &self,
        world: &mut World<R>,
        n: usize,
        row: Held<R>,
        seen: Around,
    ) -> Option<(Held<R>, R, Around)> {
        let (now, due) = (world.now(), world.now().plus_days(1));
        let order = match EntryState::from(row.delivery().state) {
            EntryState::Failed => seen.orders,
            EntryState::Unknown => seen.orders_unknown,
            _ => 0,
        };
        if order > row.order() {
            let after = row.resend(order, now)?;
            if world.commit(&row, &after) {
                let fact = world.fact(row.delivery().attempt);
                fact.licensed = true;
                if fact.order >= order {
                    world.breaks(ORDERED);
                }
                world.senders[n] = Sender::Read { row: world.row.clone(), seen };
            }
            return None;
        }
        let end = match next_of_entry(row.delivery(), seen.mailing, seen.suppressed, due) {
            EntryNext::Claim { attempt } => return self.claims(n, row, attempt, seen, now),
            EntryNext::Suppress => row.end(State::Suppressed, now),
            EntryNext::Cancel => row.end(State::Canceled, now),
            EntryNext::Lost => {
                let attempt = row.delivery().attempt;
                let after = match self.has(Flaw::DoubtFails) {
                    true => now_of(row.settle(attempt, &failed(), now))?,
                    false => row.lose(seen.orders, now)?,
                };
                if world.commit(&row, &after) {
                    self.given_up(world, attempt);
                    world.fact(attempt).order = seen.orders;
                }
                return None;
            }
            EntryNext::Wait { .. } => panic!("no wait is longer than a day"),
            EntryNext::InFlight { .. } => panic!("a deadline passes at once"),
            EntryNext::Leave => None,
        };
        if let Some(after) = end {
            world.commit(&row, &after);
        }
        None
    }

    fn claims(
        &self,
        n: usize,
        row: Held<R>,
        attempt: u32,
        seen: Around,
        now: Timestamp,
    ) -> Option<(Held<R>, R, Around)> {
        let claim = Claim { attempt, token: n.to_string(), deadline: now };
        let order = if self.has(Flaw::OrderNotRecorded) { row.order() } else { seen.orders };
        let after = row.claim(&claim, order, now)?;
        Some((row, after, seen))
    }

    /// Makes a claim if the row has not changed since it was read and its gates are open. Returns
    /// whether the claim was made.
    fn made(&self, world: &mut World<R>, before: &R, after: &R, seen: Around) -> bool {
        if self.is_refused_by_gate(world, before, seen) {
            return false;
        }
        let attempt = after.delivery().attempt;
        if self.has(Flaw::ClaimWithoutFence) {
            let row = written(&*world.row, before, after);
            world.row = Held::of(row, STORED);
        } else if !world.commit(before, after) {
            return false;
        }
        world.begun(attempt, seen);
        true
    }

    /// Checks the gates of the claim, and ends a delivery that is suppressed. Returns `true` if a
    /// gate is closed.
    fn is_refused_by_gate(&self, world: &mut World<R>, before: &R, seen: Around) -> bool {
        let now = world.now();
        for gate in before.gates(&self.shop.charges[usize::from(seen.paid)]) {
            match gate {
                Gate::Unchanged { fence, .. } => {
                    let charges = &self.shop.charges[usize::from(world.around.paid)];
                    if fence != Fence::version(charges.version) && !self.has(Flaw::ClaimWithoutGate) {
                        return true;
                    }
                }
                Gate::NotSuppressed { .. } if world.around.suppressed => {
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

    fn settle(&self, world: &mut World<R>, row: &Held<R>, answer: Answer) {
        let (now, number) = (world.now(), row.delivery().attempt);
        let verdict = match row.judge(answer.outcome(), self.policy, now) {
            Verdict::Unknown { .. } if self.has(Flaw::DoubtFails) => failed(),
            verdict => verdict,
        };
        world.heard(number, answer, self.policy);
        let settled = |row: &R| {
            let any = self.has(Flaw::SettlesAnyAttempt) && !matches!(verdict, Verdict::Sent { .. });
            now_of(row.settle(if any { row.delivery().attempt } else { number }, &verdict, now))
        };
        match settled(row) {
            Some(after) if self.has(Flaw::DecidesOnce) => {
                let mut after = written(&*world.row, row, &after);
                after = after.bare(STORED + 1);
                world.store(after);
            }
            _ => world.change(row, settled),
        }
    }

    /// Returns whether proof of an attempt reaches the row.
    fn counts(&self, row: &R, attempt: u32) -> bool {
        !self.has(Flaw::EarlierProofIgnored) || attempt == row.delivery().attempt
    }

    fn is_over(&self, world: &World<R>) -> bool {
        if world.senders.iter().any(|sender| *sender != Sender::Idle) {
            return false;
        }
        let mut actions = Vec::new();
        self.actions(world, &mut actions);
        actions.is_empty()
    }
}

fn failed() -> Verdict {
    Verdict::Failed { code: code::REJECTED, suppress: false }
}

fn now_of<R>(settled: Settled<R>) -> Option<R> {
    match settled {
        Settled::Now(row) => Some(row),
        Settled::Already | Settled::TooLate => None,
    }
}

impl<R: Subject> Model for Small<R> {
    type State = World<R>;
    type Action = Act;

    fn init_states(&self) -> Vec<World<R>> {
        let mailing = MailingState::Processing;
        let around = Around { paid: false, suppressed: false, mailing, orders: 0, orders_unknown: 0 };
        let unsent = Fact { calls: 1, fate: Fate::NotSent, ..Fact::default() };
        let facts = vec![unsent; self.row.delivery().attempt as usize];
        vec![World {
            row: Held::of(self.row.clone(), STORED),
            senders: [Sender::Idle, Sender::Idle],
            facts,
            around,
            late: false,
            left: self.left,
            recalled: false,
            canceled: false,
            broken: None,
        }]
    }

    fn actions(&self, world: &World<R>, actions: &mut Vec<Act>) {
        let (left, delivery) = (world.left, world.row.delivery());
        // Senders are interchangeable, so only the first idle one receives work.
        let idle = world.senders.iter().take(self.senders).position(|sender| *sender == Sender::Idle);
        if let Some(n) = idle.filter(|_| self.is_work(world)) {
            actions.push(Act::Read(n));
        }
        for (n, sender) in world.senders.iter().enumerate() {
            match sender {
                Sender::Idle => {}
                Sender::Read { row, .. } => {
                    actions.push(Act::Decide(n));
                    if left.lost_replies > 0 && row.delivery().state == State::Queued {
                        actions.extend([Act::LoseReply(n, true), Act::LoseReply(n, false)]);
                    }
                }
                Sender::Asking { .. } => actions.push(Act::Ask(n)),
                Sender::Claimed { .. } => {
                    actions.extend([
                        Act::Call(n, Fate::Sent, Answer::Sent),
                        Act::Call(n, Fate::NotSent, Answer::Permanent),
                    ]);
                    if left.refusals > 0 {
                        actions.extend([
                            Act::Call(n, Fate::NotSent, Answer::Transient),
                            Act::Call(n, Fate::NotSent, Answer::Throttled),
                            Act::Call(n, Fate::NotCalled, Answer::NotCalled),
                        ]);
                    }
                    if left.silences > 0 {
                        actions.push(Act::Call(n, Fate::Sent, Answer::Nothing));
                        actions.push(Act::Call(n, Fate::NotSent, Answer::Nothing));
                    }
                    if left.rejections > 0 {
                        actions.push(Act::Call(n, Fate::Rejected, Answer::Sent));
                    }
                    if left.rejections > 0 && left.silences > 0 {
                        actions.push(Act::Call(n, Fate::Rejected, Answer::Nothing));
                    }
                }
                Sender::Called { .. } => {
                    actions.push(Act::Settle(n));
                    if left.lost_replies > 0 {
                        actions.push(Act::SettleReplyLost(n));
                    }
                }
            }
            let has_begun = matches!(sender, Sender::Asking { .. } | Sender::Claimed { .. } | Sender::Called { .. });
            if has_begun && left.deaths > 0 {
                actions.push(Act::Die(n));
            }
        }
        let is_recovered = match delivery.state {
            State::Sending => self.may_be_given_up(world),
            State::Queued => left.handovers > 0,
            _ => false,
        };
        if is_recovered && R::KIND != Kind::Recipient && !self.has(Flaw::NobodyRecovers) {
            actions.push(Act::Recover);
        }
        self.outside(world, actions);
    }

    fn next_state(&self, before: &World<R>, act: Act) -> Option<World<R>> {
        let mut world = before.clone();
        let now = world.now();
        match act {
            Act::Read(n) => {
                // A sender that takes a mailing starts it.
                if let Move::To(state) = move_mailing(world.around.mailing, MailingEvent::Begun, true) {
                    world.around.mailing = state;
                }
                world.senders[n] = Sender::Read { row: world.row.clone(), seen: world.around };
            }
            Act::Decide(n) => {
                if let Some((row, after, seen)) = self.decided(&mut world, n)
                    && self.made(&mut world, &row, &after, seen)
                {
                    world.senders[n] = Sender::Claimed { row: world.row.clone() };
                }
            }
            Act::LoseReply(n, made) => {
                let (row, after, seen) = self.decided(&mut world, n)?;
                world.left.lost_replies -= 1;
                let made = made && self.made(&mut world, &row, &after, seen);
                let row = if made { world.row.clone() } else { Held::of(after, STALE) };
                world.senders[n] = Sender::Asking { row, made };
            }
            Act::Ask(n) => {
                let Sender::Asking { row, .. } = world.senders[n].clone() else { return None };
                let stored = world.row.delivery();
                let is_its = stored.state == State::Sending && stored.claim == row.delivery().claim;
                let claimed = match self.flaw {
                    Some(Flaw::LostReplyTakenForNotClaimed) => false,
                    Some(Flaw::LostReplyTakenForClaimed) => true,
                    _ => is_its,
                };
                if claimed && world.facts.len() < row.delivery().attempt as usize {
                    return None;
                }
                world.senders[n] = if claimed { Sender::Claimed { row } } else { Sender::Idle };
            }
            Act::Call(n, fate, answer) => {
                let Sender::Claimed { row } = world.senders[n].clone() else { return None };
                match answer {
                    Answer::Transient | Answer::Throttled | Answer::NotCalled => world.left.refusals -= 1,
                    Answer::Nothing => world.left.silences -= 1,
                    Answer::Sent | Answer::Permanent => {}
                }
                world.left.rejections -= u8::from(fate == Fate::Rejected);
                if answer != Answer::NotCalled {
                    world.call(row.delivery().attempt, fate);
                }
                world.senders[n] = Sender::Called { row, answer };
            }
            Act::Settle(n) | Act::SettleReplyLost(n) => {
                let Sender::Called { row, answer } = world.senders[n].clone() else { return None };
                self.settle(&mut world, &row, answer);
                if act == Act::Settle(n) {
                    world.senders[n] = Sender::Idle;
                } else {
                    world.left.lost_replies -= 1;
                }
            }
            Act::Die(n) => {
                world.left.deaths -= 1;
                world.senders[n] = Sender::Idle;
            }
            Act::Recover => {
                let (state, attempt) = (world.state(), world.row.delivery().attempt);
                let row = world.row.clone();
                let after = match state {
                    State::Sending if self.has(Flaw::DoubtFails) => now_of(row.settle(attempt, &failed(), now)),
                    State::Sending if self.has(Flaw::LostIsRetried) => {
                        now_of(row.settle(attempt, &row.judge(Answer::Transient.outcome(), self.policy, now), now))
                    }
                    _ => row.recover(self.policy, now),
                };
                world.store(after?);
                match state {
                    State::Sending => self.given_up(&mut world, attempt),
                    _ => world.left.handovers -= 1,
                }
            }
            _ => self.happens(&mut world, act, now)?,
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = always().into_iter().map(|(name, condition)| Property::always(name, condition));
        let reachable = reachable().into_iter().map(|(name, condition)| Property::sometimes(name, condition));
        always.chain(reachable).collect()
    }
}

impl<R: Subject> Small<R> {
    /// Adds the actions from outside: time, the operator, the provider, the gates.
    fn outside(&self, world: &World<R>, actions: &mut Vec<Act>) {
        let (left, delivery) = (world.left, world.row.delivery());
        if left.lateness > 0 && !world.late {
            actions.push(Act::TimePasses);
        }
        if left.suppressions > 0 {
            actions.push(Act::Suppress);
        }
        if left.cancels > 0 || (world.around.paid && left.tellings > 0) {
            actions.push(Act::Cancel);
        }
        if left.resends > 0 && R::KIND == Kind::Recipient {
            actions.extend([Act::Order(false), Act::Order(true)]);
        }
        if left.resends > 0 && R::KIND == Kind::Message {
            actions.push(Act::Resend);
        }
        if left.words > 0 && delivery.state == State::Unknown {
            actions.extend([Act::Declare(true), Act::Declare(false)]);
        }
        for (attempt, fact) in (1..).zip(&world.facts).filter(|_| left.events > 0) {
            match fact.fate {
                Fate::NotCalled | Fate::NotSent => {}
                Fate::Sent => {
                    actions.extend([EventName::Send, EventName::Delivery].map(|name| Act::Event(attempt, name)));
                }
                Fate::Rejected => {
                    actions.extend([EventName::Send, EventName::Reject].map(|name| Act::Event(attempt, name)));
                }
            }
        }
        if left.echoes > 0 && world.really_sent() > 0 {
            actions.push(Act::Echo);
        }
        if left.payments > 0 {
            actions.push(Act::Pay);
        }
        if left.pauses > 0 && world.around.mailing != MailingState::Paused {
            actions.push(Act::Pause);
        }
        if world.around.mailing == MailingState::Paused {
            actions.push(Act::Resume);
        }
        if left.mailing_cancels > 0 {
            actions.push(Act::CancelMailing);
        }
    }

    fn happens(&self, world: &mut World<R>, act: Act, now: Timestamp) -> Option<()> {
        let row = world.row.clone();
        let attempt = row.delivery().attempt;
        match act {
            Act::TimePasses => {
                world.left.lateness -= 1;
                world.late = true;
            }
            Act::Suppress => {
                world.left.suppressions -= 1;
                world.around.suppressed = true;
            }
            Act::Cancel => {
                let of_payment = world.around.paid && world.left.tellings > 0;
                let left = if of_payment { &mut world.left.tellings } else { &mut world.left.cancels };
                *left -= 1;
                let (cancel, after) = row.recall(now);
                if let Some(after) = after {
                    world.store(after);
                }
                world.recalled |= cancel == Cancel::InFlight;
                world.canceled |= cancel == Cancel::Now;
            }
            Act::Resend => {
                world.store(row.resend(0, now)?);
                world.left.resends -= 1;
                world.recalled = false;
                if attempt > 0 {
                    world.fact(attempt).licensed = true;
                }
            }
            Act::Declare(was_sent) => {
                world.left.words -= 1;
                world.store(row.declare(was_sent, now)?);
                for fact in world.facts.iter_mut().filter(|fact| fact.unresolved) {
                    // A declaration of "sent" does not say which attempt was sent.
                    fact.unresolved = was_sent;
                    *(if was_sent { &mut fact.vouched } else { &mut fact.written_off }) = true;
                }
            }
            Act::Event(attempt, name) => {
                world.left.events -= 1;
                let fact = world.fact(attempt);
                fact.unresolved = false;
                *(if name == EventName::Reject { &mut fact.rejected } else { &mut fact.proven }) = true;
                if self.counts(&row, attempt)
                    && let Some(after) = row.apply(&name.event(), attempt, now)
                {
                    world.store(after);
                }
            }
            Act::Echo => {
                world.left.echoes -= 1;
                // As in the product, the echo names no attempt.
                let of = row.delivery().doubts.first().copied().unwrap_or(attempt);
                if let Settled::Now(after) = row.confirm(of, now) {
                    world.store(after);
                }
                world.fact(of).unresolved = false;
                world.facts.iter_mut().filter(|fact| fact.fate == Fate::Sent).for_each(|fact| fact.proven = true);
            }
            Act::Pay => {
                world.left.payments -= 1;
                world.around.paid = true;
            }
            Act::Pause | Act::Resume | Act::CancelMailing => {
                let event = match act {
                    Act::Pause => MailingEvent::Pause,
                    Act::Resume => MailingEvent::Resume,
                    _ => MailingEvent::Cancel,
                };
                let Move::To(state) = move_mailing(world.around.mailing, event, true) else { return None };
                world.around.mailing = state;
                world.left.pauses -= u8::from(act == Act::Pause);
                world.left.mailing_cancels -= u8::from(act == Act::CancelMailing);
            }
            Act::Order(unknown) => {
                world.left.resends -= 1;
                world.around.orders += 1;
                if unknown {
                    world.around.orders_unknown = world.around.orders;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

const SENT: &str = "what is SENT was sent, or an operator said so and nothing of it was rejected";
const UNSENT: &str = "what ended unsent was not sent, unless an operator wrote the attempt off";
const PROOF: &str = "what is proven to have been sent is SENT, or will be when its attempt is over";
const ONCE: &str = "without an order or a policy it is sent once";
const CANCELED: &str = "what was answered to be canceled stays canceled";
const DOUBTS: &str = "unless it is known to be sent, every attempt that may have been is in doubt";
const NO_NEEDLESS_DOUBT: &str = "unless it is known to be sent, no other attempt is in doubt";
const UNKNOWN: &str = "what is UNKNOWN has an attempt in doubt";
const FOUND: &str = "whatever is not over is looked for, and recovery can move it";
const KEPT: &str = "only what is over for good may be removed";
const ENDS: &str = "in the end everything is settled";
const TIME: &str = "what is SENT says when";

fn always<R: Subject>() -> Vec<(&'static str, Condition<R>)> {
    vec![
        (ONE_CALL, |_, world| world.broken != Some(ONE_CALL)),
        (BEGUN, |_, world| world.broken != Some(BEGUN)),
        (RECALL, |_, world| world.broken != Some(RECALL)),
        (GATED, |_, world| world.broken != Some(GATED)),
        (FINAL, |_, world| world.broken != Some(FINAL)),
        (VERSION, |_, world| world.broken != Some(VERSION)),
        (NEEDLESS, |_, world| world.broken != Some(NEEDLESS)),
        (ORDERED, |_, world| world.broken != Some(ORDERED)),
        (AFTER_CANCEL, |_, world| world.broken != Some(AFTER_CANCEL)),
        (SENT, |_, world| {
            let may_be = |fact: &Fact| match fact.fate {
                Fate::Sent => true,
                Fate::Rejected => !fact.rejected,
                Fate::NotCalled | Fate::NotSent => fact.vouched,
            };
            world.state() != State::Sent || world.facts.iter().any(may_be)
        }),
        (UNSENT, |_, world| {
            let was_sent = |fact: &Fact| fact.fate == Fate::Sent && !fact.written_off;
            !world.state().is_unsent() || !world.facts.iter().any(was_sent)
        }),
        (PROOF, |_, world| {
            let delivery = world.row.delivery();
            let will_be = delivery.state == State::Sending && delivery.sent_attempt().is_some();
            let is_final = matches!(delivery.state, State::Canceled | State::Suppressed | State::Expired);
            let proven = |fact: &Fact| fact.fate == Fate::Sent && fact.proven && !(is_final && fact.written_off);
            delivery.state == State::Sent || will_be || !world.facts.iter().any(proven)
        }),
        (ONCE, |_, world| world.facts.iter().any(|fact| fact.licensed) || world.really_sent() <= 1),
        (CANCELED, |_, world| !world.canceled || world.state() == State::Canceled),
        (DOUBTS, |_, world| {
            let delivery = world.row.delivery();
            let known = delivery.state == State::Sent || delivery.sent_attempt().is_some();
            let mut facts = (1..).zip(&world.facts);
            known || facts.all(|(attempt, fact)| !fact.unresolved || delivery.doubts.contains(&attempt))
        }),
        (NO_NEEDLESS_DOUBT, |_, world| {
            let delivery = world.row.delivery();
            let known = delivery.state == State::Sent || delivery.sent_attempt().is_some();
            known || delivery.doubts.iter().all(|attempt| world.facts[*attempt as usize - 1].unresolved)
        }),
        (UNKNOWN, |_, world| world.state() != State::Unknown || !world.row.delivery().doubts.is_empty()),
        (FOUND, |model, world| {
            let Some((id, work)) = world.row.work() else {
                let (running, due) = (MailingState::Processing, world.now().plus_days(1));
                let next = next_of_entry(world.row.delivery(), running, false, due);
                return world.state().is_settled() || next != EntryNext::Leave;
            };
            let waits_for = |wake: Wake| work.looked_for_at(wake, id).is_some();
            let moves = || world.row.recover(model.policy, world.now()).is_some();
            match world.state() {
                State::Queued | State::Sending => waits_for(Wake::Check) && moves(),
                State::Unknown => waits_for(Wake::Unknown),
                _ => work.wake.is_none(),
            }
        }),
        (KEPT, |_, world| {
            let is_over = world.state().is_settled() && world.state() != State::Unknown;
            world.row.is_removable() == is_over
        }),
        (TIME, |_, world| world.state() != State::Sent || world.row.delivery().sent_at.is_some()),
        (ENDS, |model, world| world.state().is_settled() || !model.is_over(world)),
    ]
}

type Condition<R> = fn(&Small<R>, &World<R>) -> bool;

/// Conditions that must hold in some state of some world. Without them, a world in which nothing
/// happens would satisfy every property.
fn reachable<R: Subject>() -> Vec<(&'static str, Condition<R>)> {
    vec![
        ("SENT", |_, world| world.state() == State::Sent),
        ("FAILED", |_, world| world.state() == State::Failed),
        ("UNKNOWN", |_, world| world.state() == State::Unknown),
        ("CANCELED", |_, world| world.state() == State::Canceled),
        ("SUPPRESSED", |_, world| world.state() == State::Suppressed),
        ("EXPIRED", |_, world| world.state() == State::Expired),
        ("a recall ends as CANCELED", |_, world| {
            world.state() == State::Canceled && world.row.delivery().recalled.is_some()
        }),
        ("a recall ends as SENT", |_, world| world.state() == State::Sent && world.row.delivery().recalled.is_some()),
        ("a recalled attempt is in doubt", |_, world| {
            world.state() == State::Unknown && world.row.delivery().recalled.is_some()
        }),
        ("a frozen sender says late that it did not send", |_, world| {
            let resolved = |fact: &Fact| fact.lost && !fact.unresolved && !fact.written_off;
            world.state() == State::Failed && world.facts.iter().any(resolved)
        }),
        ("proof moves what an operator wrote off", |_, world| {
            world.state() == State::Sent && world.facts.iter().any(|fact| fact.written_off && fact.fate == Fate::Sent)
        }),
        ("proof names the attempt of what an operator vouched for", |_, world| {
            let vouched = world.facts.iter().any(|fact| fact.vouched);
            world.state() == State::Sent && vouched && world.row.delivery().sent_attempt().is_some()
        }),
        ("an earlier attempt is proven while a later one is under way", |_, world| {
            world.state() == State::Sending && world.row.delivery().sent_attempt().is_some()
        }),
        ("a sent one is rejected", |_, world| {
            world.state() == State::Failed && world.facts.iter().any(|fact| fact.rejected)
        }),
        ("sent twice by order or policy", |_, world| world.really_sent() > 1),
        ("a second attempt is sent", |_, world| {
            world.state() == State::Sent && world.row.delivery().sent_attempt() == Some(2)
        }),
        ("a payment finds an attempt under way", |_, world| {
            world.around.paid && world.recalled && world.state() == State::Sending
        }),
    ]
}

/// Checks that every `always` property holds, and that the conditions in `reached` are reached.
fn holds_in<R: Subject>(small: Small<R>, reached: &[&'static str]) {
    let checked = small.checker().spawn_bfs().join();
    for property in checked.model().properties() {
        if property.expectation == Expectation::Always {
            let broken = checked.discovery(property.name).map(|path| path.into_actions());
            assert!(broken.is_none(), "not so: {}: {broken:?}", property.name);
        }
    }
    for name in reached {
        assert!(checked.discovery(name).is_some(), "not reached: {name}");
    }
}

/// Checks that the checker finds a violation of this property.
fn is_caught<R: Subject>(small: Small<R>, flaw: Flaw, property: &'static str) {
    let small = Small { flaw: Some(flaw), ..small };
    let found = HasDiscoveries::AnyOf([property].into());
    let checked = small.checker().finish_when(found).spawn_bfs().join();
    assert!(checked.discovery(property).is_some(), "{flaw:?} was not seen");
}

#[test]
fn a_message_is_sent_once_whoever_dies_freezes_or_is_refused() {
    let left = Left { refusals: 1, silences: 1, deaths: 1, freezes: 1, handovers: 1, ..Left::default() };
    holds_in(Small::new(message(), left), &["SENT", "FAILED", "UNKNOWN", "a second attempt is sent"]);
}

#[test]
fn a_message_is_sent_once_whatever_replies_are_lost() {
    let left = Left { refusals: 1, lost_replies: 2, ..Left::default() };
    holds_in(Small { ..Small::new(message(), left) }, &["SENT", "FAILED"]);
}

#[test]
fn a_message_whose_policy_is_to_resend_is_sent_again_and_not_after_a_cancel() {
    let left = Left { refusals: 1, silences: 1, freezes: 1, cancels: 1, ..Left::default() };
    let reached = [
        "a recall ends as CANCELED",
        "a recall ends as SENT",
        "a recalled attempt is in doubt",
        "sent twice by order or policy",
        "an earlier attempt is proven while a later one is under way",
    ];
    holds_in(Small { policy: UnknownPolicy::Resend, ..Small::new(message(), left) }, &reached);
}

#[test]
fn a_message_on_its_last_try_is_not_sent_again() {
    let mut row = message();
    row.delivery.attempt = MAX_ATTEMPTS - 1;
    let left = Left { refusals: 1, silences: 1, deaths: 1, freezes: 1, ..Left::default() };
    let small = Small { policy: UnknownPolicy::Resend, ..Small::new(row, left) };
    holds_in(small, &["SENT", "FAILED", "UNKNOWN"]);
}

#[test]
fn an_operator_may_cancel_resend_and_settle_a_message() {
    let left = Left { refusals: 1, silences: 1, freezes: 1, cancels: 1, resends: 1, words: 1, ..Left::default() };
    let reached = [
        "CANCELED",
        "a recall ends as CANCELED",
        "a frozen sender says late that it did not send",
        "proof moves what an operator wrote off",
        "proof names the attempt of what an operator vouched for",
        "sent twice by order or policy",
    ];
    holds_in(Small::new(message(), left), &reached);
}

#[test]
fn events_tell_late_twice_and_in_any_order_what_became_of_a_message() {
    let left = Left { silences: 1, deaths: 1, freezes: 1, rejections: 1, events: 3, ..Left::default() };
    holds_in(
        Small { senders: 1, ..Small::new(message(), left) },
        &["SENT", "FAILED", "UNKNOWN", "a sent one is rejected"],
    );
}

#[test]
fn events_tell_of_every_attempt_of_a_message_that_is_sent_again_by_policy() {
    let left = Left { refusals: 1, silences: 2, freezes: 1, events: 2, ..Left::default() };
    let small = Small { senders: 1, policy: UnknownPolicy::Resend, ..Small::new(message(), left) };
    let reached = ["an earlier attempt is proven while a later one is under way", "sent twice by order or policy"];
    holds_in(small, &reached);
}

#[test]
fn events_and_an_operator_speak_of_the_same_message() {
    let left = Left { silences: 2, freezes: 1, events: 2, cancels: 1, resends: 1, words: 1, ..Left::default() };
    let reached = [
        "a recall ends as SENT",
        "proof moves what an operator wrote off",
        "proof names the attempt of what an operator vouched for",
    ];
    holds_in(Small { senders: 1, ..Small::new(message(), left) }, &reached);
}

#[test]
fn a_rejection_of_one_attempt_at_a_message_says_nothing_about_the_others() {
    let left = Left { silences: 2, rejections: 1, events: 3, ..Left::default() };
    let small = Small { senders: 1, policy: UnknownPolicy::Resend, ..Small::new(message(), left) };
    holds_in(small, &["an earlier attempt is proven while a later one is under way", "a sent one is rejected"]);
}

#[test]
fn nor_when_an_operator_speaks_of_the_same_message() {
    let left = Left { refusals: 1, silences: 2, rejections: 2, events: 3, resends: 1, words: 1, ..Left::default() };
    let reached = [
        "proof moves what an operator wrote off",
        "proof names the attempt of what an operator vouched for",
        "a sent one is rejected",
    ];
    holds_in(Small { senders: 1, ..Small::new(message(), left) }, &reached);
}

#[test]
fn an_echo_proves_that_a_message_was_sent() {
    let left = Left { silences: 1, freezes: 1, cancels: 1, echoes: 2, words: 1, ..Left::default() };
    let reached = [
        "proof moves what an operator wrote off",
        "proof names the attempt of what an operator vouched for",
        "an earlier attempt is proven while a later one is under way",
    ];
    holds_in(Small { policy: UnknownPolicy::Resend, ..Small::new(message(), left) }, &reached);
}

#[test]
fn a_message_that_is_suppressed_or_late_ends_unless_it_may_have_been_sent() {
    let left = Left { refusals: 1, silences: 1, suppressions: 1, lateness: 1, ..Left::default() };
    let small = Small { policy: UnknownPolicy::Resend, ..Small::new(message(), left) };
    holds_in(small, &["SUPPRESSED", "EXPIRED", "UNKNOWN", "SENT"]);
}

/// The charge of the offer is paid, and the payment is reported twice.
fn payment() -> Left {
    Left { payments: 1, tellings: 2, ..Left::default() }
}

#[test]
fn no_attempt_at_an_offer_begins_after_a_payment() {
    let left = Left { refusals: 1, silences: 1, deaths: 1, freezes: 1, ..payment() };
    let reached = [
        "SENT",
        "FAILED",
        "UNKNOWN",
        "CANCELED",
        "a recall ends as CANCELED",
        "a recall ends as SENT",
        "a payment finds an attempt under way",
    ];
    holds_in(Small::new(offer(), left), &reached);
}

#[test]
fn nor_when_the_policy_is_to_resend() {
    let left = Left { refusals: 1, silences: 1, freezes: 1, ..payment() };
    let reached = ["a recalled attempt is in doubt", "a recall ends as CANCELED", "sent twice by order or policy"];
    holds_in(Small { policy: UnknownPolicy::Resend, ..Small::new(offer(), left) }, &reached);
}

#[test]
fn nor_when_replies_are_lost() {
    let left = Left { refusals: 1, lost_replies: 2, ..payment() };
    holds_in(Small { ..Small::new(offer(), left) }, &["SENT", "CANCELED"]);
}

#[test]
fn an_operator_settles_an_offer_that_expires_or_is_blocked() {
    let left = Left { silences: 1, freezes: 1, suppressions: 1, lateness: 1, words: 1, ..payment() };
    let reached = ["EXPIRED", "CANCELED", "proof moves what an operator wrote off"];
    holds_in(Small::new(offer(), left), &reached);
}

#[test]
fn a_recipient_is_sent_once_whoever_dies_freezes_or_is_refused() {
    let left = Left { refusals: 1, silences: 1, deaths: 1, freezes: 1, ..Left::default() };
    holds_in(Small::new(recipient(), left), &["SENT", "FAILED", "UNKNOWN", "a second attempt is sent"]);
}

#[test]
fn a_recipient_is_sent_once_whatever_replies_are_lost() {
    let left = Left { refusals: 1, lost_replies: 2, ..Left::default() };
    holds_in(Small { ..Small::new(recipient(), left) }, &["SENT", "FAILED"]);
}

#[test]
fn an_order_sends_failed_and_unknown_recipients_again_once() {
    let left = Left { silences: 1, deaths: 1, freezes: 1, resends: 2, ..Left::default() };
    let reached = [
        "sent twice by order or policy",
        "a second attempt is sent",
        "an earlier attempt is proven while a later one is under way",
    ];
    holds_in(Small::new(recipient(), left), &reached);
}

#[test]
fn a_mailing_that_is_paused_or_canceled_sends_nothing_to_whom_it_has_not_begun() {
    let left = Left {
        refusals: 1,
        silences: 1,
        resends: 1,
        pauses: 1,
        mailing_cancels: 1,
        suppressions: 1,
        ..Left::default()
    };
    holds_in(Small::new(recipient(), left), &["SENT", "CANCELED", "SUPPRESSED", "UNKNOWN"]);
}

#[test]
fn events_tell_of_every_attempt_at_a_recipient() {
    let left = Left { silences: 2, deaths: 1, freezes: 1, events: 2, resends: 1, ..Left::default() };
    let reached = ["an earlier attempt is proven while a later one is under way", "sent twice by order or policy"];
    holds_in(Small::new(recipient(), left), &reached);
}

#[test]
fn a_rejection_of_one_attempt_at_a_recipient_says_nothing_about_the_others() {
    let left = Left { silences: 2, rejections: 2, events: 3, resends: 1, ..Left::default() };
    let reached = ["an earlier attempt is proven while a later one is under way", "a sent one is rejected"];
    holds_in(Small { senders: 1, ..Small::new(recipient(), left) }, &reached);
}

#[test]
fn a_claim_without_its_fence_is_caught() {
    let left = Left { refusals: 1, ..Left::default() };
    is_caught(Small::new(message(), left), Flaw::ClaimWithoutFence, ONE_CALL);
    is_caught(Small::new(recipient(), left), Flaw::ClaimWithoutFence, ONE_CALL);
}

#[test]
fn a_claim_without_its_gate_is_caught() {
    is_caught(Small::new(offer(), payment()), Flaw::ClaimWithoutGate, GATED);
}

#[test]
fn a_lost_reply_that_is_taken_for_an_answer_is_caught() {
    let left = Left { lost_replies: 1, ..Left::default() };
    let small = || Small { ..Small::new(message(), left) };
    is_caught(small(), Flaw::LostReplyTakenForNotClaimed, NEEDLESS);
    is_caught(small(), Flaw::LostReplyTakenForClaimed, ONE_CALL);
}

#[test]
fn an_outcome_that_settles_any_attempt_is_caught() {
    let left = Left { silences: 1, refusals: 1, freezes: 1, ..Left::default() };
    let small = Small { policy: UnknownPolicy::Resend, ..Small::new(message(), left) };
    is_caught(small, Flaw::SettlesAnyAttempt, BEGUN);
}

#[test]
fn an_outcome_that_forgets_a_recall_is_caught() {
    let left = Left { refusals: 1, cancels: 1, ..Left::default() };
    is_caught(Small::new(message(), left), Flaw::DecidesOnce, RECALL);
}

#[test]
fn a_doubt_that_ends_as_failed_is_caught() {
    let left = Left { silences: 1, ..Left::default() };
    is_caught(Small::new(message(), left), Flaw::DoubtFails, UNSENT);
    is_caught(Small::new(recipient(), left), Flaw::DoubtFails, UNSENT);
}

#[test]
fn an_attempt_that_is_taken_over_is_caught() {
    let left = Left { deaths: 1, freezes: 1, ..Left::default() };
    is_caught(Small::new(message(), left), Flaw::LostIsRetried, BEGUN);
    is_caught(Small::new(offer(), left), Flaw::LostIsRetried, ONCE);
}

#[test]
fn an_attempt_that_nobody_recovers_is_caught() {
    let left = Left { deaths: 1, ..Left::default() };
    is_caught(Small::new(message(), left), Flaw::NobodyRecovers, ENDS);
}

#[test]
fn proof_that_is_ignored_for_an_earlier_attempt_is_caught() {
    let left = Left { silences: 1, events: 1, ..Left::default() };
    let small = Small { senders: 1, policy: UnknownPolicy::Resend, ..Small::new(message(), left) };
    is_caught(small, Flaw::EarlierProofIgnored, PROOF);
}

#[test]
fn an_order_that_is_not_recorded_is_caught() {
    let left = Left { resends: 1, ..Left::default() };
    is_caught(Small::new(recipient(), left), Flaw::OrderNotRecorded, ORDERED);
}
