//! Payments against sending, checked in every interleaving of a small world: two offers of one
//! contact, two senders that receive jobs for either of them and may crash, a payment webhook that
//! is delivered twice, an expiry webhook, recovery, triggers, and time. The product's own functions
//! decide every step.
//!
//! A step is the part of an operation between two requests to the store: it reads rows, or it
//! commits one transaction on the condition that the rows still have the versions that were read.
//! Where the product changes one row and, on a conflict, decides again on the row that won
//! (outcomes, cancels, recovered offers), that is one step here: only the row at the commit counts.
//! The queue is left open: an idle sender may receive a job for any offer that is due.
//!
//! A payment cancels every offer that was created before it. An offer that is queued ends; an offer
//! whose attempt is under way is recalled: it has no further attempt.
//!
//! A contact has two charges. The second one is open from the start, does not exist, or is created
//! while the first one expires: then the offer of the first charge must not be lost to the second.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::json;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use umavez_domain::delivery::{Claim, Delivery, NextStep, Outcome, Recovery, Settled, State, UnknownPolicy, code};
use umavez_domain::downsells::charges::{self, Charge, ChargeChange, OpenCharge};
use umavez_domain::downsells::{
    CancelReason, ChargeStatus, ChargesRow, ClosedGate, Contact, DownsellRow, OfferEnd, OfferRow, OfferStatus, Plan,
    PlanStep, SlotRow, TransactionRow, Trigger, TriggerEvent, plan,
};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::time::Timestamp;
use umavez_domain::work::Work;

const BOT: &str = "loja";
const PERSON: i64 = 7;
const KEEP_DAYS: i64 = 90;
/// One tick of the clock. After a tick, deadlines and backoffs that were set before it are over.
const TICK_MS: i64 = 60_000;
/// The tick at which no charge can be paid any more.
const CHARGES_END: u8 = 3;
/// The number of offers that this world can have. Each has its place: the offer of the /start, the
/// offer of the first charge, the offer of the first charge for the downsell of the /start, and the
/// offer of the second charge.
const PLACES: usize = 4;

/// A row as it is stored or was read. Its hash is computed once, because thousands of states share
/// the row.
struct Row<T>(Arc<(T, u64)>);

impl<T: Hash> Row<T> {
    fn of(row: T) -> Self {
        let hash = digest(&row);
        Self(Arc::new((row, hash)))
    }
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Row<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T> Hash for Row<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.1);
    }
}

impl<T> PartialEq for Row<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

impl<T> Eq for Row<T> {}

impl<T: fmt::Debug> fmt::Debug for Row<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

/// Clears the fields of an offer that no rule of this world reads: they would only make several
/// states out of one.
fn bare_offer(row: OfferRow) -> Row<OfferRow> {
    Row::of(OfferRow {
        delivery: Delivery { claim: None, reason: None, sent_at: None, ..row.delivery },
        work: Work::default(),
        last_attempt_at: None,
        late_ms: None,
        enqueued: false,
        listed_at: String::new(),
        created_at: at(0),
        updated_at: at(0),
        expires_at: None,
        ..row
    })
}

/// Does the same for the charges of a contact.
fn bare_charges(row: ChargesRow) -> Row<ChargesRow> {
    Row::of(ChargesRow { paid_at: None, work: Work::default(), created_at: at(0), updated_at: at(0), ..row })
}

/// Returns the transaction as it was read, or as the row of a transaction that is not stored.
fn known_or_new(of: &Charge<'_>, stored: Option<&Row<TransactionRow>>) -> TransactionRow {
    stored.map_or_else(|| TransactionRow::unknown(of.transaction_id, at(0)), |row| (**row).clone())
}

/// Does the same for a transaction.
fn bare_transaction(row: TransactionRow) -> Row<TransactionRow> {
    Row::of(TransactionRow { created_at: at(0), updated_at: at(0), expires_at: None, ..row })
}

fn at(tick: u8) -> Timestamp {
    Timestamp::from_millis(i64::from(tick) * TICK_MS)
}

/// A set of small numbers: the places of offers, or the attempts of one offer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Set(u8);

impl Set {
    fn has(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn with(self, number: usize) -> Self {
        Self(self.0 | (1 << number))
    }

    fn without(self, number: usize) -> Self {
        Self(self.0 & !(1 << number))
    }

    fn numbers(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |number| self.has(*number))
    }

    fn first(self) -> Option<usize> {
        self.numbers().next()
    }
}

/// The number of an attempt in a [`Set`].
fn number(attempt: u32) -> usize {
    attempt as usize
}

/// How a call to the provider ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Sent,
    /// Not sent; a later attempt may succeed.
    Refused,
    /// Not sent, and no later attempt would succeed.
    Rejected,
    /// The person received it, but the sender does not learn that.
    TimedOut,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sender {
    Idle,
    /// It has read the offer and the charges.
    Read {
        place: usize,
        offer: Row<OfferRow>,
        charges: Row<ChargesRow>,
    },
    /// It has begun an attempt. `offer` is the row as it was claimed.
    Claimed {
        place: usize,
        offer: Row<OfferRow>,
    },
    /// The call has ended, or the sender gave up the attempt before the call.
    Called {
        place: usize,
        offer: Row<OfferRow>,
        answer: Answer,
    },
}

/// The answer of a webhook about its offers, and the offers that it still has to change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Report {
    to_change: Set,
    canceled: Set,
    in_flight: Set,
    sent: Set,
    passed_on: Set,
}

/// One delivery of a payment webhook or of an expiry webhook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Webhook {
    Waiting,
    /// It has read the contact before the transaction: only in a flawed world.
    ReadEarly(Report, Row<ChargesRow>),
    /// It has read the transaction and the charges.
    Read {
        transaction: Option<Row<TransactionRow>>,
        charges: Row<ChargesRow>,
    },
    /// The payment or expiry is stored; the webhook reads the contact next.
    Written,
    /// It changes the offers one by one.
    Changing(Report),
    Answered,
}

/// Recovery, while it ends or passes on the offers that the charges have made outdated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ChargesRecovery {
    Idle,
    Read { charges: Row<ChargesRow>, outdated: Set },
}

/// A /start or a charge that is created.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TriggerRequest {
    Waiting,
    Read(Box<View>),
    Done,
}

/// The pending offer of a downsell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Slot {
    place: usize,
    pending: bool,
    version: u64,
}

/// All rows of the contact, as they are stored or were read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct View {
    now: u8,
    charges: Row<ChargesRow>,
    /// The first transaction. Nothing changes the second one after it is created.
    transaction: Option<Row<TransactionRow>>,
    offers: [Option<Row<OfferRow>>; PLACES],
    /// One for each downsell.
    slots: [Option<Slot>; 2],
}

/// Rules about steps that were violated on the way to a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Violations {
    sent_after_answer: bool,
    sent_twice: bool,
    claimed_with_closed_gate: bool,
    canceled_without_reason: bool,
    moved_backwards: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    view: View,
    senders: [Sender; 2],
    /// Two deliveries of the payment webhook, and one of the expiry webhook.
    webhooks: [Option<Webhook>; 3],
    /// A /start, and a charge that is created.
    triggers: [Option<TriggerRequest>; 2],
    recovery: ChargesRecovery,
    /// Jobs that the queue still delivers to senders.
    jobs: u8,
    /// The remaining runs of recovery over the charges. The fields below are remaining counts too.
    recoveries: u8,
    crashes: u8,
    refusals: u8,
    rejections: u8,
    timeouts: u8,
    /// For each offer, the attempts that reached the person.
    reached: [Set; PLACES],
    /// The offers that every answer to a payment webhook reported as in flight or sent; `None`
    /// while no answer was given. The second is the same for the expiry webhook.
    may_be_sent: [Option<Set>; 2],
    /// The reports of all answers together.
    reported: Report,
    violations: Violations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    /// A sender receives the job of an offer and reads its rows.
    TakeJob(usize, usize),
    Decide(usize),
    Call(usize, Answer),
    /// The claim took so long that the call could not end before its deadline.
    GiveUp(usize),
    Settle(usize),
    SenderCrashes(usize),
    ReadCharge(usize),
    WriteCharge(usize),
    ReadContact(usize),
    ChangeOffer(usize),
    WebhookCrashes(usize),
    /// Recovery finds an offer whose attempt is overdue.
    RecoverOffer(usize),
    /// Recovery reads the contact of overdue charges.
    ReadOverdue,
    FollowCharges,
    ReadTrigger(usize),
    WriteTrigger(usize),
}

/// A mistake that the product does not make. The model must find every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// The claim does not check that the charges have not changed since they were read.
    ClaimIgnoresCharges,
    /// The claim does not check that the offer has not changed since it was read.
    ClaimIgnoresOffer,
    /// A sender that lost a race for the offer decides again on the charges that it read before.
    LoserKeepsCharges,
    /// A repeated payment webhook reports offers that it read before the transaction.
    ContactBeforeTransaction,
    /// An offer whose charge expired ends, even if its contact has another unpaid charge.
    ExpiryEndsOffers,
    /// Recovery does not check that the charges have not changed since they were read.
    RecoveryIgnoresCharges,
    /// A charge that found a pending offer does not check that the offer is still pending.
    TriggerIgnoresSlot,
    /// A payment cancels only queued offers, and writes no recall during an attempt.
    PaymentLeavesAttempts,
    /// The outcome is decided on the row as it was claimed, and overwrites a recall.
    OutcomeIgnoresRecall,
    /// A late outcome that says "not sent" also removes the doubt about other attempts.
    LateOutcomeRemovesAllDoubts,
}

/// The second charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// Open from the start.
    Open,
    None,
    /// Created on the way. The first charge is open already and expires at the first tick.
    Created,
}

#[derive(Debug)]
struct Scenario {
    policy: UnknownPolicy,
    payments: usize,
    expiries: usize,
    /// Whether the offers are created on the way. Otherwise they exist at the start.
    triggers: bool,
    second: Second,
    /// The last tick of the clock.
    last: u8,
    jobs: u8,
    recoveries: u8,
    crashes: u8,
    refusals: u8,
    rejections: u8,
    timeouts: u8,
    /// The conditions of [`reachable`] that some state must satisfy.
    reached: &'static [&'static str],
    flaw: Option<Flaw>,
    bot: BotRow,
    downsells: [DownsellRow; 2],
}

fn bot() -> BotRow {
    let body = json!({ "slug": BOT });
    BotRow::read(body.as_object().expect("an object"), at(0)).expect("a bot")
}

/// A downsell without a delay: its offers are due at once.
fn downsell(id: u64, after_start: bool, after_pix: bool) -> DownsellRow {
    let content = json!({"text": "?"});
    let when = json!({"delay_minutes": 0, "after_start": after_start, "after_pix": after_pix});
    let mut body = json!({"name": "-", "content": content});
    body.as_object_mut().expect("an object").extend(when.as_object().expect("an object").clone());
    DownsellRow { id, ..DownsellRow::read(BOT, body.as_object().expect("an object"), at(0)).expect("a downsell") }
}

const FIRST: Charge<'static> = Charge { bot: BOT, telegram_id: PERSON, transaction_id: "t1" };
const SECOND: Charge<'static> = Charge { transaction_id: "t2", ..FIRST };

fn place_of(offer: &OfferRow) -> usize {
    match (offer.downsell_id, offer.event_id.contains(":start:")) {
        (1, true) => 0,
        (2, _) if offer.event_id.ends_with(":t2") => 3,
        (2, _) => 1,
        _ => 2,
    }
}

fn slot_of(downsell_id: u64) -> usize {
    downsell_id as usize - 1
}

impl Scenario {
    fn new() -> Self {
        Self {
            policy: UnknownPolicy::Hold,
            payments: 1,
            expiries: 0,
            triggers: false,
            second: Second::Open,
            last: 1,
            jobs: 2,
            recoveries: 0,
            crashes: 0,
            refusals: 0,
            rejections: 0,
            timeouts: 0,
            reached: &[],
            flaw: None,
            bot: bot(),
            downsells: [downsell(1, true, false), downsell(2, false, true)],
        }
    }

    fn with_triggers() -> Self {
        Self { triggers: true, downsells: [downsell(1, true, true), downsell(2, false, true)], last: 0, ..Self::new() }
    }

    /// The second charge is created while the first, which has an offer, expires.
    fn with_second_charge() -> Self {
        let downsells = [downsell(1, false, false), downsell(2, false, true)];
        Self { second: Second::Created, payments: 0, downsells, ..Self::new() }
    }

    /// The tick at which the first charge expires.
    fn first_ends(&self) -> u8 {
        if self.second == Second::Created { 1 } else { CHARGES_END }
    }

    /// Returns the charge that is created on the way.
    fn created(&self) -> Charge<'static> {
        if self.second == Second::Created { SECOND } else { FIRST }
    }

    fn downsell_of(&self, offer: &OfferRow) -> Option<&DownsellRow> {
        self.downsells.iter().find(|downsell| downsell.id == offer.downsell_id)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Plans a trigger, on the contact as it was read.
    fn plan(&self, view: &View, trigger: Trigger, of: &Charge<'_>) -> Plan {
        let asked = TriggerEvent {
            bot: BOT,
            telegram_id: PERSON,
            trigger,
            source: if trigger == Trigger::Pix { of.transaction_id } else { "5001" },
            at: at(0),
            correlation_id: "",
            meta: None,
            keep_days: KEEP_DAYS,
        };
        plan(&asked, &self.downsells, &view.contact(), at(view.now))
    }
}

impl View {
    /// A contact without a charge.
    fn new() -> Self {
        Self {
            now: 0,
            charges: bare_charges(ChargesRow::none(BOT, PERSON, at(0))),
            transaction: None,
            offers: [const { None }; PLACES],
            slots: [None; 2],
        }
    }

    fn time(&self) -> Timestamp {
        at(self.now)
    }

    fn offer(&self, place: usize) -> &Row<OfferRow> {
        self.offers[place].as_ref().expect("an offer that was read exists")
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Row<OfferRow>)> {
        self.offers.iter().enumerate().filter_map(|(place, offer)| Some((place, offer.as_ref()?)))
    }

    fn contact(&self) -> Contact {
        let slot = |(index, slot): (usize, &Option<Slot>)| {
            let Slot { place, pending, version } = (*slot)?;
            let downsell_id = index as u64 + 1;
            let offer = self.offer(place).id.clone();
            let (ended_at, sent_at, pay_epoch, sent) = (None, None, self.offer(place).pay_epoch, 0);
            Some((downsell_id, SlotRow { downsell_id, offer, pending, ended_at, sent_at, pay_epoch, sent, version }))
        };
        Contact {
            charges: Some((*self.charges).clone()),
            slots: self.slots.iter().enumerate().filter_map(slot).collect(),
            offers: self.all().map(|(_, offer)| (offer.id.clone(), (**offer).clone())).collect(),
            ..Contact::default()
        }
    }

    /// Creates a charge. `None` if it is over, or was created before.
    fn with_charge(&self, of: &Charge<'_>, ends: u8) -> Option<Self> {
        let is_first = of.transaction_id == FIRST.transaction_id;
        let known = known_or_new(of, self.transaction.as_ref().filter(|_| is_first));
        let open = OpenCharge { made_at: self.time().millis(), until: at(ends).millis() };
        match charges::created(&self.charges, &known, of, open, self.time()) {
            ChargeChange::Both { charges, transaction } => Some(Self {
                charges: bare_charges(*charges),
                transaction: if is_first { Some(bare_transaction(*transaction)) } else { self.transaction.clone() },
                ..self.clone()
            }),
            _ => None,
        }
    }

    fn put(&mut self, offer: OfferRow) {
        let place = place_of(&offer);
        self.offers[place] = Some(bare_offer(offer));
    }

    /// Writes all rows of a plan.
    fn apply(&mut self, plan: Plan) {
        for step in plan.steps {
            match step {
                PlanStep::Schedule { offer, slot, stale, .. } => {
                    if let Some(stale) = stale {
                        self.put(stale.1);
                    }
                    let slot = Slot { place: place_of(&offer), pending: true, version: slot.version };
                    self.slots[slot_of(offer.downsell_id)] = Some(slot);
                    self.put(*offer);
                }
                PlanStep::Refuse { .. } => {}
                PlanStep::Join { after, .. } => self.put(*after),
            }
        }
    }

    /// Returns whether every row that a plan depends on has not changed since it was read.
    fn still_holds(&self, scenario: &Scenario, read: &Self, plan: &Plan) -> bool {
        let same = |place: usize| self.offers[place] == read.offers[place];
        let same_slot = |downsell_id: u64| self.slots[slot_of(downsell_id)] == read.slots[slot_of(downsell_id)];
        let holds = |step: &PlanStep| match step {
            PlanStep::Schedule { offer, stale, .. } => {
                same_slot(offer.downsell_id) && stale.as_ref().is_none_or(|stale| same(place_of(&stale.0)))
            }
            PlanStep::Refuse { pending: Some(slot), .. } if !scenario.has(Flaw::TriggerIgnoresSlot) => {
                same_slot(slot.downsell_id)
            }
            PlanStep::Refuse { .. } => true,
            PlanStep::Join { before, .. } => same(place_of(before)),
        };
        self.charges.version == read.charges.version && plan.steps.iter().all(holds)
    }
}

impl World {
    fn now(&self) -> Timestamp {
        self.view.time()
    }

    /// Commits a change of an offer, and of its slot if the offer has ended or was sent. A slot
    /// that another offer has taken since then stays unchanged.
    fn write(&mut self, place: usize, after: OfferRow) {
        let (before, charges, now) = (self.view.offer(place).clone(), &self.view.charges, self.now());
        let transaction = after.transaction_id.as_deref().unwrap_or_default();
        self.violations.canceled_without_reason |= match after.cancel_reason {
            Some(CancelReason::Expired) => charges.is_open(transaction, now),
            Some(CancelReason::Paid) => charges.pay_epoch == after.pay_epoch,
            // It was skipped because no charge is unpaid.
            Some(CancelReason::NoUnpaidPix) if !before.delivery.state.is_settled() => charges.any_open(now),
            _ => false,
        };
        self.violations.moved_backwards |= after.version != before.version + 1;
        if let Some(slot) = &mut self.view.slots[slot_of(after.downsell_id)]
            && before.slot_end(&after).is_some()
            && (slot.place, slot.pending) == (place, before.is_pending())
        {
            *slot = Slot { place, pending: false, version: slot.version + 1 };
        }
        self.view.offers[place] = Some(bare_offer(after));
    }

    fn read(&self, place: usize) -> Sender {
        Sender::Read { place, offer: self.view.offer(place).clone(), charges: self.view.charges.clone() }
    }

    /// A sender decides on the rows that it has read: one round of the sender's function.
    fn decide(&mut self, scenario: &Scenario, n: usize) {
        let Sender::Read { place, offer, charges } = std::mem::replace(&mut self.senders[n], Sender::Idle) else {
            return;
        };
        let attempt = match offer.delivery.next(offer.window(), self.now()) {
            NextStep::Leave | NextStep::Wait { .. } => return,
            NextStep::Expire => return self.end(scenario, n, (place, &offer, charges), OfferEnd::Expired),
            NextStep::Claim { attempt } => attempt,
        };
        match offer.gate(Some(&scenario.bot), scenario.downsell_of(&offer), Some(&charges), self.now()) {
            Some(ClosedGate::Ends(end)) => self.end(scenario, n, (place, &offer, charges), end),
            None => self.claim(scenario, n, (place, &offer, charges), attempt),
            Some(ClosedGate::PassedOn(_)) if scenario.has(Flaw::ExpiryEndsOffers) => {
                self.end(scenario, n, (place, &offer, charges), OfferEnd::Canceled(CancelReason::Expired));
            }
            Some(ClosedGate::PassedOn(after)) => {
                let as_read = self.view.offer(place).version == offer.version;
                if as_read && self.view.charges.version == charges.version {
                    self.write(place, *after);
                }
                self.senders[n] = self.read(place);
            }
        }
    }

    /// Begins an attempt, if the offer and the charges have not changed since they were read.
    fn claim(
        &mut self,
        scenario: &Scenario,
        n: usize,
        (place, offer, charges): (usize, &OfferRow, Row<ChargesRow>),
        attempt: u32,
    ) {
        let claim = Claim { attempt, token: String::new(), deadline: at(self.view.now + 1) };
        let claimed = offer.claimed(&claim, self.now()).expect("the offer is queued, and this is its next attempt");
        if self.view.offer(place).version != offer.version && !scenario.has(Flaw::ClaimIgnoresOffer) {
            return self.read_again(scenario, n, place, charges);
        }
        if self.view.charges.version != charges.version && !scenario.has(Flaw::ClaimIgnoresCharges) {
            self.senders[n] = self.read(place);
            return;
        }
        let (charges, now) = (&self.view.charges, self.now());
        let its_own = offer.transaction_id.as_deref().is_none_or(|transaction| charges.is_open(transaction, now));
        let is_closed = charges.pay_epoch != offer.pay_epoch || !charges.any_open(now) || !its_own;
        self.violations.claimed_with_closed_gate |= is_closed;
        self.violations.sent_twice |= self.may_be_called(n, place);
        self.write(place, claimed);
        self.senders[n] = Sender::Claimed { place, offer: self.view.offer(place).clone() };
    }

    /// Returns whether another sender may still call the provider for this offer.
    fn may_be_called(&self, n: usize, of: usize) -> bool {
        let is_late = |offer: &OfferRow| offer.delivery.is_lost(self.now());
        let may =
            |sender: &Sender| matches!(sender, Sender::Claimed { place, offer } if *place == of && !is_late(offer));
        self.senders.iter().enumerate().any(|(other, sender)| other != n && may(sender))
    }

    /// Ends an offer that may not be sent, if it has not changed since it was read. If the charges
    /// are the reason for the end, they must not have changed either.
    fn end(
        &mut self,
        scenario: &Scenario,
        n: usize,
        (place, offer, charges): (usize, &OfferRow, Row<ChargesRow>),
        end: OfferEnd,
    ) {
        let keeps = scenario.has(Flaw::LoserKeepsCharges);
        let as_read = keeps || !end.rests_on_charges() || self.view.charges.version == charges.version;
        match offer.ended(end, self.now(), KEEP_DAYS) {
            Some(after) if as_read && self.view.offer(place).version == offer.version => self.write(place, after),
            Some(_) => self.read_again(scenario, n, place, charges),
            None => {}
        }
    }

    /// A sender that lost a race reads the offer and the charges again.
    fn read_again(&mut self, scenario: &Scenario, n: usize, place: usize, charges: Row<ChargesRow>) {
        let offer = self.view.offer(place).clone();
        let charges = if scenario.has(Flaw::LoserKeepsCharges) { charges } else { self.view.charges.clone() };
        self.senders[n] = Sender::Read { place, offer, charges };
    }

    fn call(&mut self, scenario: &Scenario, n: usize, answer: Answer) {
        let Sender::Claimed { place, offer } = self.senders[n].clone() else { return };
        let is_outdated = offer.pay_epoch < self.view.charges.pay_epoch;
        let concerned = [is_outdated, offer.transaction_id.as_deref() == Some(FIRST.transaction_id)];
        let unreported = |(reported, concerned): (&Option<Set>, bool)| {
            concerned && reported.is_some_and(|reported| !reported.has(place))
        };
        self.violations.sent_after_answer |= self.may_be_sent.iter().zip(concerned).any(unreported);
        let again = !self.reached[place].is_empty() && scenario.policy == UnknownPolicy::Hold;
        self.violations.sent_twice |= again || self.may_be_called(n, place);
        if matches!(answer, Answer::Sent | Answer::TimedOut) {
            self.reached[place] = self.reached[place].with(number(offer.delivery.attempt));
        }
        self.senders[n] = Sender::Called { place, offer, answer };
    }

    /// Writes the outcome of an attempt. As in the product, the row as it was claimed gives the
    /// verdict, and the row as it is stored decides what the verdict changes.
    fn settle(&mut self, scenario: &Scenario, n: usize) {
        let Sender::Called { place, offer, answer } = std::mem::replace(&mut self.senders[n], Sender::Idle) else {
            return;
        };
        let outcome = match answer {
            Answer::Sent => Outcome::Sent { provider_id: String::new() },
            Answer::Refused => Outcome::Transient { code: code::NOT_CONNECTED },
            Answer::Rejected => Outcome::Permanent { code: code::REJECTED, suppress: false },
            Answer::TimedOut => Outcome::Unknown { code: code::TIMED_OUT },
        };
        let (attempt, now, stored) = (offer.delivery.attempt, self.now(), self.view.offer(place).clone());
        let verdict = offer.delivery.verdict(offer.window(), outcome, scenario.policy, now, 0);
        let ignores_recall = scenario.has(Flaw::OutcomeIgnoresRecall) && stored.delivery.is_sending(attempt);
        let decided_on = if ignores_recall { &offer } else { &stored };
        if let Settled::Now(after) = decided_on.settled(attempt, &verdict, now, KEEP_DAYS) {
            let is_late = !stored.delivery.is_sending(attempt);
            self.write(
                place,
                match scenario.has(Flaw::LateOutcomeRemovesAllDoubts) && is_late {
                    true => OfferRow { delivery: Delivery { doubts: Vec::new(), ..after.delivery }, ..after },
                    false => after,
                },
            );
        }
    }

    /// Reports the offers that a webhook concerns, on the contact as it is read. Offers that the
    /// webhook has to cancel, end or pass on are changed afterwards, one by one.
    fn report(&self, scenario: &Scenario, webhook: usize) -> Report {
        let concerns = |offer: &OfferRow| match why(webhook) {
            CancelReason::Paid => offer.pay_epoch == 0,
            _ => offer.was_of(FIRST.transaction_id),
        };
        let mut report = Report::default();
        for (place, offer) in self.view.all().filter(|(_, offer)| concerns(offer)) {
            let to_change = match why(webhook) {
                CancelReason::Paid => self.canceled(scenario, place).is_some(),
                _ => offer.is_queued() && offer.outdated(Some(&self.view.charges), self.now()).is_some(),
            };
            match to_change {
                true => report.to_change = report.to_change.with(place),
                false => report.add(place, offer, why(webhook)),
            }
        }
        report
    }

    /// Ends an offer or passes it on, if these charges require that.
    fn follow(&mut self, scenario: &Scenario, place: usize, charges: &ChargesRow) {
        let (offer, now) = (self.view.offer(place).clone(), self.now());
        let after = match offer.follow_charges(Some(charges), scenario.downsell_of(&offer), now) {
            Some(ClosedGate::PassedOn(_)) if scenario.has(Flaw::ExpiryEndsOffers) => {
                offer.ended(OfferEnd::Canceled(CancelReason::Expired), now, KEEP_DAYS)
            }
            Some(ClosedGate::PassedOn(after)) => Some(*after),
            Some(ClosedGate::Ends(end)) => offer.ended(end, now, KEEP_DAYS),
            None => None,
        };
        if let Some(after) = after {
            self.write(place, after);
        }
    }

    /// Returns the offer after a payment has canceled it: ended if it is queued, recalled if an
    /// attempt is under way. `None` if there is nothing to write.
    fn canceled(&self, scenario: &Scenario, place: usize) -> Option<OfferRow> {
        let offer = self.view.offer(place);
        let is_left = scenario.has(Flaw::PaymentLeavesAttempts) && !offer.is_queued();
        offer.cancel(CancelReason::Paid, self.now(), KEEP_DAYS).1.filter(|_| !is_left)
    }

    fn read_charge(&mut self, scenario: &Scenario, n: usize) {
        let (transaction, charges) = (self.view.transaction.clone(), self.view.charges.clone());
        self.webhooks[n] = Some(match self.webhooks[n].take() {
            Some(Webhook::Waiting) if scenario.has(Flaw::ContactBeforeTransaction) => {
                Webhook::ReadEarly(self.report(scenario, n), charges)
            }
            Some(Webhook::ReadEarly(report, _)) if self.is_paid() => self.answer_or_change(n, report),
            Some(Webhook::ReadEarly(_, charges)) => Webhook::Read { transaction, charges },
            _ => Webhook::Read { transaction, charges },
        });
    }

    fn is_paid(&self) -> bool {
        self.view.transaction.as_ref().is_some_and(|row| row.status == ChargeStatus::Paid)
    }

    /// Writes the charges and the transaction of a payment or an expiry, if they have not changed
    /// since they were read.
    fn write_charge(&mut self, n: usize) {
        let Some(Webhook::Read { transaction, charges }) = self.webhooks[n].take() else { return };
        let change = match (&transaction, why(n)) {
            (known, CancelReason::Paid) => {
                charges::paid(&charges, &known_or_new(&FIRST, known.as_ref()), &FIRST, self.now())
            }
            (Some(known), _) => charges::expired(&charges, known, self.now()),
            (None, _) => unreachable!("the expiry webhook waits until the transaction exists"),
        };
        let as_read = charges.version == self.view.charges.version && transaction == self.view.transaction;
        self.webhooks[n] = Some(match change {
            ChargeChange::OtherContact | ChargeChange::Transaction(_) | ChargeChange::TooMany => {
                unreachable!("there is one contact, and no charge is created here")
            }
            // The expiry of a paid charge only reports the offers of that payment. The model leaves
            // this out.
            ChargeChange::Known(ChargeStatus::Paid) if n == 2 => Webhook::Answered,
            ChargeChange::Known(_) => Webhook::Written,
            ChargeChange::Both { .. } if !as_read => Webhook::Waiting,
            ChargeChange::Both { charges, transaction } => {
                let before = self.view.transaction.replace(bare_transaction(*transaction));
                let status = |row: &Option<Row<TransactionRow>>| row.as_ref().map(|row| row.status);
                self.violations.moved_backwards |= status(&before) > status(&self.view.transaction);
                self.view.charges = bare_charges(*charges);
                Webhook::Written
            }
        });
    }

    /// A webhook changes the next offer, and reports its state after the change.
    fn change_offer(&mut self, scenario: &Scenario, n: usize) {
        let Some(Webhook::Changing(mut report)) = self.webhooks[n].take() else { return };
        if let Some(place) = report.to_change.first() {
            match (why(n), self.canceled(scenario, place)) {
                (CancelReason::Paid, Some(after)) => self.write(place, after),
                (CancelReason::Paid, None) => {}
                _ => self.follow(scenario, place, &self.view.charges.clone()),
            }
            report.to_change = report.to_change.without(place);
            report.add(place, self.view.offer(place), why(n));
        }
        self.webhooks[n] = Some(self.answer_or_change(n, report));
    }

    /// A webhook answers when it has no offer left to change.
    fn answer_or_change(&mut self, n: usize, report: Report) -> Webhook {
        if !report.to_change.is_empty() {
            return Webhook::Changing(report);
        }
        let may_be_sent = Set(report.in_flight.0 | report.sent.0);
        let answers = &mut self.may_be_sent[n / 2];
        *answers = Some(answers.map_or(may_be_sent, |before| Set(before.0 & may_be_sent.0)));
        self.reported.canceled.0 |= report.canceled.0;
        self.reported.in_flight.0 |= report.in_flight.0;
        self.reported.sent.0 |= report.sent.0;
        self.reported.passed_on.0 |= report.passed_on.0;
        Webhook::Answered
    }

    fn read_overdue(&mut self) {
        let (charges, now) = (self.view.charges.clone(), self.now());
        let queued = self.view.all().filter(|(_, offer)| offer.is_queued());
        let outdated = queued.filter(|(_, offer)| offer.outdated(Some(&charges), now).is_some());
        let outdated = outdated.fold(Set::default(), |places, (place, _)| places.with(place));
        self.recovery = ChargesRecovery::Read { charges, outdated };
    }

    /// One write of recovery. It gives up if the charges have changed since they were read.
    fn follow_charges(&mut self, scenario: &Scenario) {
        let ChargesRecovery::Read { charges, outdated } = std::mem::replace(&mut self.recovery, ChargesRecovery::Idle)
        else {
            return;
        };
        let as_read = charges.version == self.view.charges.version;
        match outdated.first() {
            Some(place) if as_read || scenario.has(Flaw::RecoveryIgnoresCharges) => {
                self.follow(scenario, place, &charges);
                self.recovery = ChargesRecovery::Read { charges, outdated: outdated.without(place) };
            }
            None if as_read => self.view.charges = bare_charges(charges.checked(self.now())),
            _ => {}
        }
    }

    fn recover_offer(&mut self, scenario: &Scenario, place: usize) {
        match self.view.offer(place).recovered(scenario.policy, self.now(), 0, KEEP_DAYS) {
            Recovery::Emitted(after) | Recovery::GivenUp(after) => self.write(place, after),
            Recovery::Nothing => {}
        }
    }

    /// Commits a trigger; if a row has changed since it was read, the trigger reads again.
    fn write_trigger(&mut self, scenario: &Scenario, n: usize) {
        let Some(TriggerRequest::Read(read)) = self.triggers[n].take() else { return };
        let trigger = [Trigger::Start, Trigger::Pix][n];
        let of = scenario.created();
        let with_charge = if n == 1 { read.with_charge(&of, CHARGES_END) } else { Some((*read).clone()) };
        let known_as_read = n == 0 || scenario.second == Second::Created || self.view.transaction == read.transaction;
        let planned = with_charge.map(|base| (scenario.plan(&base, trigger, &of), base));
        self.triggers[n] = Some(match planned {
            None => TriggerRequest::Done,
            Some((plan, base)) if known_as_read && self.view.still_holds(scenario, &read, &plan) => {
                if n == 1 {
                    self.view.charges = base.charges;
                    // The second charge does not write the first transaction, which may have
                    // expired since it was read.
                    if scenario.second != Second::Created {
                        self.view.transaction = base.transaction;
                    }
                }
                self.view.apply(plan);
                TriggerRequest::Done
            }
            Some(_) => TriggerRequest::Read(Box::new(self.view.clone())),
        });
    }

    /// Returns whether the second charge is unpaid and every offer of its downsell has ended
    /// because the first charge expired.
    fn is_left_without_offer(&self) -> bool {
        let (charges, now) = (&self.view.charges, self.now());
        let of_downsell = || self.view.all().filter(|(_, offer)| offer.downsell_id == 2);
        let ended = |offer: &OfferRow| {
            (offer.status, offer.cancel_reason) == (OfferStatus::Canceled, Some(CancelReason::Expired))
        };
        let unpaid = charges.pay_epoch == 0 && charges.is_open(SECOND.transaction_id, now);
        unpaid && of_downsell().next().is_some() && of_downsell().all(|(_, offer)| ended(offer))
    }

    /// Orders interchangeable actors, so that states that differ only in their order count once.
    fn in_order(mut self) -> Self {
        if digest(&self.senders[0]) > digest(&self.senders[1]) {
            self.senders.swap(0, 1);
        }
        if digest(&self.webhooks[0]) > digest(&self.webhooks[1]) {
            self.webhooks.swap(0, 1);
        }
        self
    }
}

/// Returns why a webhook cancels offers: the first two are payments, the third is an expiry.
fn why(webhook: usize) -> CancelReason {
    if webhook < 2 { CancelReason::Paid } else { CancelReason::Expired }
}

impl Report {
    fn add(&mut self, place: usize, offer: &OfferRow, why: CancelReason) {
        let passed_on =
            why == CancelReason::Expired && offer.passed_from.iter().any(|from| from == FIRST.transaction_id);
        match (offer.status, offer.cancel_reason) {
            _ if passed_on => self.passed_on = self.passed_on.with(place),
            (OfferStatus::Canceled, Some(reason)) if reason == why => self.canceled = self.canceled.with(place),
            (OfferStatus::Pending, _) => self.in_flight = self.in_flight.with(place),
            (OfferStatus::Sent, _) => self.sent = self.sent.with(place),
            _ => {}
        }
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut view = View::new();
        if self.second == Second::Open {
            view = view.with_charge(&SECOND, CHARGES_END).expect("the charge is new");
        }
        if !self.triggers {
            view = view.with_charge(&FIRST, self.first_ends()).expect("the charge is new");
            for trigger in [Trigger::Start, Trigger::Pix] {
                let plan = self.plan(&view, trigger, &FIRST);
                view.apply(plan);
            }
        }
        let webhook = |takes_part: bool| takes_part.then_some(Webhook::Waiting);
        let trigger = |takes_part: bool| takes_part.then_some(TriggerRequest::Waiting);
        vec![
            World {
                view,
                senders: [Sender::Idle, Sender::Idle],
                webhooks: [webhook(self.payments > 0), webhook(self.payments > 1), webhook(self.expiries > 0)],
                triggers: [trigger(self.triggers), trigger(self.triggers || self.second == Second::Created)],
                recovery: ChargesRecovery::Idle,
                jobs: self.jobs,
                recoveries: self.recoveries,
                crashes: self.crashes,
                refusals: self.refusals,
                rejections: self.rejections,
                timeouts: self.timeouts,
                reached: [Set::default(); PLACES],
                may_be_sent: [None; 2],
                reported: Report::default(),
                violations: Violations::default(),
            }
            .in_order(),
        ]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let (view, now) = (&world.view, world.now());
        if view.now < self.last {
            actions.push(Action::Tick);
        }
        for (n, sender) in world.senders.iter().enumerate() {
            match sender {
                // A job for an offer that is not due changes nothing, so it is left out. If both
                // senders are idle, it is enough that the first one receives a job.
                Sender::Idle if world.jobs > 0 && (n == 0 || world.senders[0] != Sender::Idle) => {
                    let next = |offer: &OfferRow| offer.delivery.next(offer.window(), now);
                    let is_due = |offer: &OfferRow| !matches!(next(offer), NextStep::Leave | NextStep::Wait { .. });
                    let due = view.all().filter(|(_, offer)| is_due(offer));
                    actions.extend(due.map(|(place, _)| Action::TakeJob(n, place)));
                }
                Sender::Idle => {}
                Sender::Read { .. } => actions.push(Action::Decide(n)),
                Sender::Claimed { offer, .. } if offer.delivery.is_lost(now) => actions.push(Action::GiveUp(n)),
                Sender::Claimed { .. } => {
                    actions.push(Action::Call(n, Answer::Sent));
                    actions.extend((world.refusals > 0).then_some(Action::Call(n, Answer::Refused)));
                    actions.extend((world.rejections > 0).then_some(Action::Call(n, Answer::Rejected)));
                    actions.extend((world.timeouts > 0).then_some(Action::Call(n, Answer::TimedOut)));
                }
                Sender::Called { .. } => actions.push(Action::Settle(n)),
            }
            if world.crashes > 0 && matches!(sender, Sender::Claimed { .. } | Sender::Called { .. }) {
                actions.push(Action::SenderCrashes(n));
            }
        }
        for (n, webhook) in world.webhooks.iter().enumerate() {
            match webhook {
                Some(Webhook::Waiting) if n == 2 && view.transaction.is_none() => {}
                Some(Webhook::Waiting | Webhook::ReadEarly(..)) => actions.push(Action::ReadCharge(n)),
                Some(Webhook::Read { .. }) => actions.push(Action::WriteCharge(n)),
                Some(Webhook::Written) => {
                    actions.push(Action::ReadContact(n));
                    actions.extend((world.crashes > 0).then_some(Action::WebhookCrashes(n)));
                }
                Some(Webhook::Changing(_)) => actions.push(Action::ChangeOffer(n)),
                Some(Webhook::Answered) | None => {}
            }
        }
        let lost = view.all().filter(|(_, offer)| offer.delivery.is_lost(now));
        actions.extend(lost.map(|(place, _)| Action::RecoverOffer(place)));
        match world.recovery {
            ChargesRecovery::Idle if world.recoveries > 0 && view.charges.is_overdue(now) => {
                actions.push(Action::ReadOverdue);
            }
            ChargesRecovery::Idle => {}
            ChargesRecovery::Read { .. } => actions.push(Action::FollowCharges),
        }
        for (n, trigger) in world.triggers.iter().enumerate() {
            match trigger {
                Some(TriggerRequest::Waiting) => actions.push(Action::ReadTrigger(n)),
                Some(TriggerRequest::Read(_)) => actions.push(Action::WriteTrigger(n)),
                Some(TriggerRequest::Done) | None => {}
            }
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Tick => world.view.now += 1,
            Action::TakeJob(n, place) => {
                world.jobs -= 1;
                world.senders[n] = world.read(place);
            }
            Action::Decide(n) => world.decide(self, n),
            Action::Call(n, answer) => {
                world.refusals -= u8::from(answer == Answer::Refused);
                world.rejections -= u8::from(answer == Answer::Rejected);
                world.timeouts -= u8::from(answer == Answer::TimedOut);
                world.call(self, n, answer);
            }
            Action::GiveUp(n) => {
                let Sender::Claimed { place, offer } = world.senders[n].clone() else { return None };
                world.senders[n] = Sender::Called { place, offer, answer: Answer::Refused };
            }
            Action::Settle(n) => world.settle(self, n),
            Action::SenderCrashes(n) => {
                world.crashes -= 1;
                world.senders[n] = Sender::Idle;
            }
            Action::ReadCharge(n) => world.read_charge(self, n),
            Action::WriteCharge(n) => world.write_charge(n),
            Action::ReadContact(n) => {
                let report = world.report(self, n);
                world.webhooks[n] = Some(world.answer_or_change(n, report));
            }
            Action::ChangeOffer(n) => world.change_offer(self, n),
            // The webhook gives no answer. The gate is closed, and recovery ends the remaining
            // offers.
            Action::WebhookCrashes(n) => {
                world.crashes -= 1;
                world.webhooks[n] = None;
            }
            Action::RecoverOffer(place) => world.recover_offer(self, place),
            Action::ReadOverdue => {
                world.recoveries -= 1;
                world.read_overdue();
            }
            Action::FollowCharges => world.follow_charges(self),
            Action::ReadTrigger(n) => world.triggers[n] = Some(TriggerRequest::Read(Box::new(world.view.clone()))),
            Action::WriteTrigger(n) => world.write_trigger(self, n),
        }
        Some(world.in_order())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(AFTER_ANSWER, |_, world: &World| !world.violations.sent_after_answer),
            Property::always(TWICE, |_, world: &World| !world.violations.sent_twice),
            Property::always(GATE, |_, world: &World| !world.violations.claimed_with_closed_gate),
            Property::always(REASON, |_, world: &World| !world.violations.canceled_without_reason),
            Property::always(REACHED, |_, world: &World| {
                world.view.all().all(|(place, offer)| world.reached[place].numbers().all(|n| is_remembered(offer, n)))
            }),
            Property::always("offers that were reported as canceled or sent stay so", |_, world: &World| {
                let all_are = |places: Set, status: OfferStatus| {
                    world.view.all().all(|(place, offer)| !places.has(place) || offer.status == status)
                };
                all_are(world.reported.canceled, OfferStatus::Canceled)
                    && all_are(world.reported.sent, OfferStatus::Sent)
            }),
            Property::always("offers that were reported as passed on are another charge's", |_, world: &World| {
                let is_first = |offer: &OfferRow| offer.transaction_id.as_deref() == Some(FIRST.transaction_id);
                world.view.all().all(|(place, offer)| !world.reported.passed_on.has(place) || !is_first(offer))
            }),
            Property::always(LEFT, |_, world: &World| !world.is_left_without_offer()),
            Property::always(ONE_PAYMENT, |_, world: &World| {
                !world.violations.moved_backwards && world.view.charges.pay_epoch == u64::from(world.is_paid())
            }),
            Property::always(NOT_QUEUED, |_, world: &World| {
                let is_queued = |offer: &OfferRow| offer.pay_epoch == 0 && offer.is_queued();
                world.may_be_sent[0].is_none() || !world.view.all().any(|(_, offer)| is_queued(offer))
            }),
            Property::always("a slot is pending exactly while its offer is", |_, world: &World| {
                let slots = world.view.slots.iter().flatten();
                slots.into_iter().all(|slot| slot.pending == world.view.offer(slot.place).is_pending())
            }),
            Property::always(LAST_ATTEMPT, |_, world: &World| {
                let is_last = |delivery: &Delivery| {
                    delivery.recalled.is_none_or(|recalled| recalled == delivery.attempt)
                        && !(delivery.recalled.is_some() && delivery.state == State::Queued)
                };
                world.view.all().all(|(_, offer)| is_last(&offer.delivery))
            }),
        ];
        let reached = reachable().into_iter().filter(|(name, _)| self.reached.contains(name));
        properties.extend(reached.map(|(name, holds)| Property::sometimes(name, holds)));
        properties
    }
}

const AFTER_ANSWER: &str = "no offer is sent after an answer that did not report it as in flight or sent";
const TWICE: &str = "an offer that may have been sent is sent again only by policy, and not during another call";
const GATE: &str = "an attempt begins only while a charge is unpaid, and the offer's own charge is";
const REASON: &str = "an offer is canceled as paid or expired, or skipped without a charge, only if it is";
const REACHED: &str = "an offer that reached the person was sent, or its attempt is under way or in doubt";
const LEFT: &str = "the expiry of the first charge does not leave an unpaid second one without an offer";
const ONE_PAYMENT: &str = "a payment counts once, and rows only move forward";
const NOT_QUEUED: &str = "no offer from before a payment is queued after the payment was answered";
const LAST_ATTEMPT: &str = "a recalled attempt is the last one";

/// Returns whether the row of an offer still says that this attempt was or may have been sent.
fn is_remembered(offer: &OfferRow, attempt: usize) -> bool {
    let delivery = &offer.delivery;
    let is_in_doubt = delivery.doubts.iter().any(|doubt| number(*doubt) == attempt);
    let is_under_way = delivery.state == State::Sending && number(delivery.attempt) == attempt;
    let is_sent_soon = delivery.state == State::Sending && delivery.sent_attempt().is_some();
    match offer.status {
        OfferStatus::Sent => true,
        OfferStatus::Pending => is_in_doubt || is_under_way || is_sent_soon,
        _ => false,
    }
}

type Condition = fn(&Scenario, &World) -> bool;

/// Conditions that must hold in some state of some scenario. Without them, a world in which nothing
/// happens would satisfy every property.
fn reachable() -> Vec<(&'static str, Condition)> {
    fn any(world: &World, is_it: impl Fn(&OfferRow) -> bool) -> bool {
        world.view.all().any(|(_, offer)| is_it(offer))
    }
    vec![
        ("sent", |_, world| any(world, |offer| offer.status == OfferStatus::Sent)),
        ("canceled by a payment", |_, world| !world.reported.canceled.is_empty()),
        ("reported as in flight", |_, world| !world.reported.in_flight.is_empty()),
        ("reported as sent", |_, world| !world.reported.sent.is_empty()),
        ("skipped", |_, world| any(world, |offer| offer.cancel_reason == Some(CancelReason::NoUnpaidPix))),
        ("canceled by an expiry", |_, world| any(world, |offer| offer.cancel_reason == Some(CancelReason::Expired))),
        ("unknown", |_, world| any(world, |offer| offer.delivery.state == State::Unknown)),
        ("a second attempt", |_, world| {
            any(world, |offer| offer.delivery.attempt > 1 && offer.status == OfferStatus::Sent)
        }),
        ("canceled in doubt", |_, world| {
            any(world, |offer| {
                offer.delivery.state == State::Unknown
                    && offer.delivery.recalled.is_none()
                    && offer.cancel_reason == Some(CancelReason::Paid)
            })
        }),
        ("recalled and canceled", |_, world| {
            let is_it = |offer: &OfferRow| {
                (offer.status, offer.cancel_reason) == (OfferStatus::Canceled, Some(CancelReason::Paid))
            };
            any(world, |offer| offer.delivery.recalled.is_some() && is_it(offer))
        }),
        ("recalled and sent", |_, world| {
            any(world, |offer| offer.delivery.recalled.is_some() && offer.status == OfferStatus::Sent)
        }),
        ("recalled and unknown", |_, world| {
            any(world, |offer| offer.delivery.recalled.is_some() && offer.delivery.state == State::Unknown)
        }),
        ("recalled and in doubt about an earlier attempt", |_, world| {
            let is_earlier = |delivery: &Delivery| delivery.doubts.iter().any(|doubt| *doubt < delivery.attempt);
            any(world, |offer| offer.delivery.recalled.is_some() && is_earlier(&offer.delivery))
        }),
        ("failed after a late outcome", |_, world| {
            // If no attempt is rejected, only a late outcome can end an offer as failed.
            any(world, |offer| offer.status == OfferStatus::Failed)
        }),
        ("sent by an earlier attempt while a later one is under way", |_, world| {
            any(world, |offer| offer.delivery.state == State::Sending && offer.delivery.sent_attempt().is_some())
        }),
        ("sent by an earlier attempt", |_, world| {
            let is_earlier = |delivery: &Delivery| delivery.sent_attempt().is_some_and(|sent| sent < delivery.attempt);
            any(world, |offer| offer.status == OfferStatus::Sent && is_earlier(&offer.delivery))
        }),
        ("rejected in doubt", |scenario, world| {
            let was_rejected = world.rejections < scenario.rejections;
            was_rejected && any(world, |offer| offer.delivery.attempt > 1 && offer.delivery.state == State::Unknown)
        }),
        ("passed on", |_, world| any(world, |offer| !offer.passed_from.is_empty())),
        ("passed on and sent", |_, world| {
            any(world, |offer| !offer.passed_from.is_empty() && offer.status == OfferStatus::Sent)
        }),
        ("reported as passed on", |_, world| !world.reported.passed_on.is_empty()),
        ("canceled after it was passed on", |_, world| {
            any(world, |offer| {
                !offer.passed_from.is_empty()
                    && (offer.status, offer.cancel_reason) == (OfferStatus::Canceled, Some(CancelReason::Paid))
            })
        }),
        ("a second offer", |_, world| world.view.offers[3].is_some()),
        ("joined", |_, world| any(world, |offer| offer.trigger == Trigger::Pix && offer.event_id.contains(":start:"))),
    ]
}

/// Checks that every property holds in every state, and that these conditions can be reached.
fn holds(scenario: Scenario, reached: &'static [&'static str]) {
    let started = std::time::Instant::now();
    let checked = Scenario { reached, ..scenario }.checker().spawn_bfs().join();
    println!("{} states in {:?}", checked.unique_state_count(), started.elapsed());
    for property in checked.model().properties() {
        if property.expectation == Expectation::Always {
            checked.assert_no_discovery(property.name);
        }
    }
    for name in reached {
        checked.assert_any_discovery(name);
    }
}

/// Checks that a flawed world violates this property.
fn is_caught(scenario: Scenario, violated: &'static str) {
    let found = HasDiscoveries::AnyOf([violated].into());
    let checked = scenario.checker().finish_when(found).spawn_bfs().join();
    let path = checked.discovery(violated).expect("the flaw is found");
    println!("{violated}: {:?}", path.into_actions());
}

#[test]
fn no_offer_is_sent_after_a_payment_even_if_its_webhook_is_delivered_twice() {
    let scenario = Scenario { payments: 2, jobs: 3, refusals: 1, last: 1, ..Scenario::new() };
    let reached = &[
        "sent",
        "canceled by a payment",
        "reported as in flight",
        "reported as sent",
        "a second attempt",
        "recalled and canceled",
        "recalled and sent",
    ];
    holds(scenario, reached);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_the_charge_expires_at_the_same_time() {
    let alone = Scenario { expiries: 1, second: Second::None, ..Scenario::new() };
    holds(alone, &["sent", "reported as in flight", "canceled by an expiry"]);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_the_charge_expires_and_another_is_open() {
    let scenario = Scenario { expiries: 1, ..Scenario::new() };
    let reached =
        &["passed on and sent", "reported as passed on", "reported as in flight", "canceled after it was passed on"];
    holds(scenario, reached);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_a_charge_is_created_while_another_expires() {
    let scenario = Scenario { expiries: 1, payments: 1, jobs: 1, ..Scenario::with_second_charge() };
    let reached = &["passed on and sent", "reported as passed on", "canceled after it was passed on", "a second offer"];
    holds(scenario, reached);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_a_charge_is_created_at_an_unreported_expiry() {
    let scenario = Scenario { payments: 1, recoveries: 1, ..Scenario::with_second_charge() };
    holds(scenario, &["passed on and sent", "canceled after it was passed on", "a second offer"]);
}

#[test]
fn no_offer_is_sent_after_its_charge_expired_without_a_webhook() {
    let scenario = Scenario { payments: 0, expiries: 1, recoveries: 1, last: CHARGES_END, ..Scenario::new() };
    holds(scenario, &["sent", "skipped", "canceled by an expiry"]);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_a_sender_or_a_webhook_crashes() {
    let scenario = Scenario { payments: 2, recoveries: 1, crashes: 1, timeouts: 1, ..Scenario::new() };
    let reached = &[
        "unknown",
        "reported as in flight",
        "canceled by a payment",
        "recalled and unknown",
        "failed after a late outcome",
    ];
    holds(scenario, reached);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_an_offer_in_doubt_is_resent() {
    let scenario = Scenario { policy: UnknownPolicy::Resend, crashes: 1, timeouts: 1, last: 2, ..Scenario::new() };
    let reached = &[
        "unknown",
        "a second attempt",
        "canceled in doubt",
        "recalled and unknown",
        "recalled and in doubt about an earlier attempt",
        "sent by an earlier attempt while a later one is under way",
        "sent by an earlier attempt",
    ];
    holds(scenario, reached);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_an_offer_in_doubt_is_rejected() {
    let policy = UnknownPolicy::Resend;
    holds(Scenario { policy, timeouts: 1, rejections: 1, last: 2, ..Scenario::new() }, &["rejected in doubt"]);
}

#[test]
fn no_offer_is_sent_after_a_payment_if_offers_are_created_meanwhile() {
    holds(Scenario { payments: 2, ..Scenario::with_triggers() }, &["sent", "canceled by a payment", "joined"]);
}

#[test]
fn a_claim_that_does_not_check_the_offer_is_caught() {
    is_caught(Scenario { flaw: Some(Flaw::ClaimIgnoresOffer), ..Scenario::new() }, AFTER_ANSWER);
}

#[test]
fn a_claim_that_does_not_check_the_charges_is_caught() {
    is_caught(Scenario { flaw: Some(Flaw::ClaimIgnoresCharges), ..Scenario::new() }, GATE);
}

/// The offer of a /start joins a charge while a sender waits for its rate slot. In the charges that
/// the sender read before, that charge is not open.
#[test]
fn a_sender_that_decides_again_on_old_charges_is_caught() {
    let flaw = Some(Flaw::LoserKeepsCharges);
    is_caught(Scenario { payments: 0, second: Second::None, flaw, ..Scenario::with_triggers() }, REASON);
}

#[test]
fn an_expiry_that_ends_offers_instead_of_moving_them_is_caught() {
    let scenario = Scenario { expiries: 1, flaw: Some(Flaw::ExpiryEndsOffers), ..Scenario::with_second_charge() };
    is_caught(scenario, LEFT);
}

/// The second charge saw the first one open when it was read, and is created between the two
/// requests of recovery.
#[test]
fn a_recovery_that_does_not_check_the_charges_is_caught() {
    let flaw = Some(Flaw::RecoveryIgnoresCharges);
    is_caught(Scenario { recoveries: 1, flaw, ..Scenario::with_second_charge() }, LEFT);
}

/// The second charge finds the offer of the first one pending, and that offer ends before the
/// second charge is written.
#[test]
fn a_charge_that_does_not_check_the_slot_is_caught() {
    let scenario = Scenario { recoveries: 1, flaw: Some(Flaw::TriggerIgnoresSlot), ..Scenario::with_second_charge() };
    is_caught(scenario, LEFT);
}

/// Between the two reads of the second delivery, an offer is created and claimed, and the first
/// delivery writes the payment.
#[test]
fn a_payment_that_reports_an_outdated_state_of_its_contact_is_caught() {
    is_caught(
        Scenario { payments: 2, flaw: Some(Flaw::ContactBeforeTransaction), ..Scenario::with_triggers() },
        AFTER_ANSWER,
    );
}

/// The payment finds an attempt under way, and the provider then refuses the attempt.
#[test]
fn a_payment_that_does_not_recall_an_attempt_is_caught() {
    is_caught(Scenario { refusals: 1, flaw: Some(Flaw::PaymentLeavesAttempts), ..Scenario::new() }, NOT_QUEUED);
}

#[test]
fn an_outcome_that_overwrites_a_recall_is_caught() {
    is_caught(Scenario { refusals: 1, flaw: Some(Flaw::OutcomeIgnoresRecall), ..Scenario::new() }, NOT_QUEUED);
}

/// The first attempt is in doubt and reached the person. A later attempt is given up, and its
/// sender reports that after recovery.
#[test]
fn a_late_outcome_that_removes_all_doubts_is_caught() {
    let flaw = Some(Flaw::LateOutcomeRemovesAllDoubts);
    let scenario =
        Scenario { policy: UnknownPolicy::Resend, payments: 0, timeouts: 1, last: 2, flaw, ..Scenario::new() };
    is_caught(scenario, REACHED);
}
