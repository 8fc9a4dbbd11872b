//! The three kinds of rows that have a delivery: messages, offers and recipients of mailings. Each
//! function here calls the product's own function.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use umavez_domain::change::{Fence, Row};
use umavez_domain::channels::Channel;
use umavez_domain::channels::email::ses_events::SesEvent;
use umavez_domain::codes::Decision;
use umavez_domain::delivery::{
    Cancel, Claim, Delivered, Delivery, Gate, Outcome, Recovery, Settled, State, UnknownPolicy, Verdict, Window,
};
use umavez_domain::downsells::charges::{self, Charge, ChargeChange, OpenCharge};
use umavez_domain::downsells::{
    CancelReason, ChargesRow, ClosedGate, DownsellRow, OfferEnd, OfferId, OfferRow, OfferStatus, TransactionRow,
    Trigger,
};
use umavez_domain::mailings::MailingEntryRow;
use umavez_domain::messages::ledger::LedgerEntry;
use umavez_domain::messages::{MessageRow, Resend};
use umavez_domain::queue::{self, Priority};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::time::Timestamp;
use umavez_domain::work::Work;

/// The time before the deadline of the delivery.
pub const EARLY: Timestamp = Timestamp::from_seconds(1_000_000);
/// The deadline of the delivery: no attempt begins later. A charge stays open for longer.
const NOT_AFTER_DAYS: i64 = 5;
/// The time after the deadline.
pub const LATE_DAYS: i64 = 10;
/// How long an ended row is kept.
const KEEP_DAYS: i64 = 90;
/// The version of the stored row. The model only distinguishes the stored row from older ones, so
/// that the number of states stays small.
pub const STORED_VERSION: u64 = 2;
/// The version of every row that was read before the latest write.
pub const STALE_VERSION: u64 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    Message,
    Offer,
    Recipient,
}

/// The functions that the three kinds of rows share. Each calls the function of the product. The
/// defaults are for kinds without such a function.
pub trait DeliveryRow: Row + Delivered + PartialEq + fmt::Debug + Send + Sync + 'static {
    const KIND: RowKind;
    fn version(&self) -> u64;
    /// Sets the version, and clears the fields that no rule of the model reads. Rows that differ
    /// only in such fields count as one state.
    fn normalized(self, version: u64) -> Self;
    /// Returns a hash of the fields that the model compares.
    fn digest(&self) -> u64;
    fn window(&self) -> Window;
    /// Returns the id of the row and its scheduled work in the index by time. Returns `None` for a
    /// recipient: senders find it through its shard.
    fn work(&self) -> Option<(&str, &Work)>;
    /// Returns whether the store may remove the row when it expires.
    fn is_removable(&self) -> bool;
    /// Begins an attempt. A recipient also records `order`, the latest order to send again.
    fn claim(&self, claim: &Claim, order: u32, now: Timestamp) -> Option<Self>;
    fn verdict(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict;
    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self>;
    fn end(&self, state: State, now: Timestamp) -> Option<Self>;
    fn recover(&self, policy: UnknownPolicy, now: Timestamp) -> Option<Self>;
    /// Returns the further conditions of the claim.
    fn gates(&self, _charges: &ChargesRow) -> Vec<Gate> {
        Vec::new()
    }
    /// Ends an offer that may not be sent any more. Returns the ended row, and whether the charges
    /// are the reason.
    fn ended_by_gate(&self, _rows: &GateRows, _paid: bool, _now: Timestamp) -> Option<(Self, bool)> {
        None
    }
    /// Returns the number of the last order to send again that the row followed.
    fn followed_order(&self) -> u32 {
        0
    }
    /// Gives up the attempt of a recipient whose sender did not report an outcome.
    fn give_up(&self, _order: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    /// Settles an attempt of a message as sent, because its echo arrived.
    fn settle_as_sent(&self, _attempt: u32, _now: Timestamp) -> Settled<Self> {
        Settled::TooLate
    }
    /// Applies an event of the provider about one attempt.
    fn apply_event(&self, _event: &SesEvent, _attempt: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    /// Cancels the delivery. Returns the answer to the caller, and the row if it changed.
    fn cancel(&self, _now: Timestamp) -> (Cancel, Option<Self>) {
        (Cancel::Ended, None)
    }
    /// Queues a failed or unknown delivery again, by order of an operator.
    fn resend(&self, _order: u32, _now: Timestamp) -> Option<Self> {
        None
    }
    /// Settles an unknown delivery as an operator declares it.
    fn declare(&self, _was_sent: bool, _now: Timestamp) -> Option<Self> {
        None
    }
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn normalized_work(work: Work) -> Work {
    Work { emit: None, later: None, emits: 0, recoveries: 0, ..work }
}

fn recovered_row<R>(recovery: Recovery<R>) -> Option<R> {
    match recovery {
        Recovery::Emitted(row) | Recovery::GivenUp(row) => Some(row),
        Recovery::Nothing => None,
    }
}

impl DeliveryRow for MessageRow {
    const KIND: RowKind = RowKind::Message;

    fn version(&self) -> u64 {
        self.version
    }

    fn normalized(self, version: u64) -> Self {
        let work = normalized_work(self.work);
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

    fn verdict(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict {
        self.delivery.verdict(self.window(), outcome, policy, now, 0)
    }

    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, verdict, now, KEEP_DAYS)
    }

    fn end(&self, state: State, now: Timestamp) -> Option<Self> {
        self.ended(state, &LedgerEntry::new(now, Decision::Expired), now, KEEP_DAYS)
    }

    fn recover(&self, policy: UnknownPolicy, now: Timestamp) -> Option<Self> {
        recovered_row(self.recovered(policy, now, 0, KEEP_DAYS))
    }

    fn gates(&self, _charges: &ChargesRow) -> Vec<Gate> {
        self.gates(&self.sender)
    }

    fn settle_as_sent(&self, attempt: u32, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, &Verdict::Sent { provider_id: "echo".to_owned() }, now, KEEP_DAYS)
    }

    fn apply_event(&self, event: &SesEvent, attempt: u32, now: Timestamp) -> Option<Self> {
        self.of_event(event, attempt, now, KEEP_DAYS).map(|(row, _)| row)
    }

    fn cancel(&self, now: Timestamp) -> (Cancel, Option<Self>) {
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

impl DeliveryRow for OfferRow {
    const KIND: RowKind = RowKind::Offer;

    fn version(&self) -> u64 {
        self.version
    }

    fn normalized(self, version: u64) -> Self {
        let work = normalized_work(self.work);
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

    fn verdict(&self, outcome: Outcome, policy: UnknownPolicy, now: Timestamp) -> Verdict {
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
        recovered_row(self.recovered(policy, now, 0, KEEP_DAYS))
    }

    fn gates(&self, charges: &ChargesRow) -> Vec<Gate> {
        self.gates(Some(charges), "-")
    }

    fn ended_by_gate(&self, gate_rows: &GateRows, paid: bool, now: Timestamp) -> Option<(Self, bool)> {
        let charges = Some(gate_rows.charges(paid));
        match self.gate(Some(&gate_rows.bot), Some(&gate_rows.downsell), charges, now) {
            None => None,
            Some(ClosedGate::Ends(end)) => Some((self.ended(end, now, KEEP_DAYS)?, end.rests_on_charges())),
            Some(ClosedGate::PassedOn(_)) => panic!("there is one charge"),
        }
    }

    fn cancel(&self, now: Timestamp) -> (Cancel, Option<Self>) {
        self.cancel(CancelReason::Paid, now, KEEP_DAYS)
    }

    fn declare(&self, was_sent: bool, now: Timestamp) -> Option<Self> {
        self.declared(was_sent, now, KEEP_DAYS)
    }
}

impl DeliveryRow for MailingEntryRow {
    const KIND: RowKind = RowKind::Recipient;

    fn version(&self) -> u64 {
        0
    }

    fn normalized(self, _version: u64) -> Self {
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

    fn verdict(&self, outcome: Outcome, _policy: UnknownPolicy, now: Timestamp) -> Verdict {
        self.verdict(outcome, now, 0)
    }

    fn settle(&self, attempt: u32, verdict: &Verdict, now: Timestamp) -> Settled<Self> {
        self.settled(attempt, verdict, now)
    }

    fn end(&self, state: State, _now: Timestamp) -> Option<Self> {
        self.ended(state, "-")
    }

    /// Does nothing: the sender of the shard gives up a lost attempt of a recipient.
    fn recover(&self, _policy: UnknownPolicy, _now: Timestamp) -> Option<Self> {
        None
    }

    fn followed_order(&self) -> u32 {
        self.retried
    }

    fn give_up(&self, order: u32, now: Timestamp) -> Option<Self> {
        self.lost(order, now)
    }

    fn apply_event(&self, event: &SesEvent, attempt: u32, _now: Timestamp) -> Option<Self> {
        self.of_event(event, attempt).map(|(row, _)| row)
    }

    fn resend(&self, order: u32, _now: Timestamp) -> Option<Self> {
        self.sent_again(order)
    }
}

const MESSAGE: &str = "msg_00000000000000000000000000000001";

pub fn message() -> MessageRow {
    let row = json!({
        "id": MESSAGE, "caller": "-", "body_hash": "-", "channel": Channel::Email, "sender": "-", "to": "-",
        "priority": Priority::Shot, "state": State::Queued, "not_after": EARLY.plus_days(NOT_AFTER_DAYS),
        "recipient": "-", "asked_at": "-", "ledger": [], "created_at": EARLY, "updated_at": EARLY, "version": STORED_VERSION,
    });
    let mut row: MessageRow = serde_json::from_value(row).expect("a row");
    let id = row.id.clone();
    row.work.schedule(MESSAGE, None, EARLY, |seq, at| queue::emit_message(&id, Priority::Shot, seq, at));
    row
}

const BOT: &str = "loja";
const PERSON: i64 = 7;
const CHARGE: Charge<'static> = Charge { bot: BOT, telegram_id: PERSON, transaction_id: "t1" };

pub fn offer() -> OfferRow {
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
        version: STORED_VERSION,
        expires_at: None,
    };
    let (contact, id) = (row.contact(), row.id.clone());
    row.work.schedule(id.as_str(), None, EARLY, |seq, at| queue::emit_offer(&contact, &id, seq, at));
    row
}

pub fn recipient() -> MailingEntryRow {
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

/// The rows that decide whether an offer may be sent.
pub struct GateRows {
    bot: BotRow,
    downsell: DownsellRow,
    /// The charges before and after the payment.
    charges: [ChargesRow; 2],
}

impl GateRows {
    pub fn new() -> Self {
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

    pub fn charges(&self, paid: bool) -> &ChargesRow {
        &self.charges[usize::from(paid)]
    }
}

/// A stored row, or a copy that a sender read. Thousands of states share the row, so its hash is
/// computed once.
pub struct SharedRow<R>(Arc<(R, u64)>);

impl<R: DeliveryRow> SharedRow<R> {
    pub fn new(row: R, version: u64) -> Self {
        let row = row.normalized(version);
        let digest = row.digest();
        Self(Arc::new((row, digest)))
    }

    /// Returns the same copy with the version that it has after the stored row changed.
    pub fn outdated(&self) -> Self {
        if self.version() < STORED_VERSION { self.clone() } else { Self::new(self.0.0.clone(), STALE_VERSION) }
    }
}

impl<R> Clone for SharedRow<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Deref for SharedRow<R> {
    type Target = R;
    fn deref(&self) -> &R {
        &self.0.0
    }
}

impl<R> Hash for SharedRow<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.1);
    }
}

impl<R> PartialEq for SharedRow<R> {
    fn eq(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

impl<R> Eq for SharedRow<R> {}

impl<R: fmt::Debug> fmt::Debug for SharedRow<R> {
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

/// Returns whether the store accepts a write with this condition.
pub fn fence_holds<R: DeliveryRow>(fence: &Fence, stored: &R) -> bool {
    match fence {
        Fence::Absent => false,
        Fence::Version(version) => stored.version() == *version,
        Fence::Same(parts) => {
            let stored = attributes(stored);
            parts.iter().all(|(name, value)| stored.get(name).unwrap_or(&Value::Null) == value)
        }
    }
}

/// Returns the stored row with the attributes changed in which `before` and `after` differ.
pub fn merged<R: DeliveryRow>(stored: &R, before: &R, after: &R) -> R {
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
